"""The durable side of dialogs that go over the network: what the machine reads of a database, and what a batch changes in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker.protocol.ledger import Effects, Endpoint, Key, Refusal, Wanted

if TYPE_CHECKING:
    from ssbroker.broker.database import Database


@dataclass(frozen=True, slots=True)
class Stale:
    """Why nothing of a batch was written: what it was planned with has changed meanwhile (N3).

    The plan is to be undone, the endpoints are to be forgotten by the machine, and the batch is to be routed and taken again.

    Attributes:
        keys: The endpoints that are not as the machine has them.
        is_whole: Whether the database itself is another now, such as disabled or under another broker id: the machine and its ledger
            are to be made anew.
    """

    keys: tuple[Key, ...] = ()
    is_whole: bool = False


class SqliteLedger:
    """Implements `protocol.ledger.Ledger` for one database of an instance. For one thread at a time, the one of its machine.

    Args:
        database: The database. The work table of a process before this one is emptied (P32).

    Raises:
        LockTimeoutError: Others were writing to the file.
        StorageError: The file cannot be used.
    """

    def __init__(self, database: Database) -> None:
        self._database: Final = database

    @property
    def broker_instance(self) -> bytes:
        """The broker id under which its endpoints send; where the database has another by now, commits are stale."""
        raise NotImplementedError

    def waiting(self) -> list[Key]:
        """The endpoints with messages in the transmission queue, wherever they are for: what a machine is told of after a restart."""
        raise NotImplementedError

    def keys_of(self, endpoint_ids: Iterable[int]) -> dict[int, Key]:
        """Endpoints by the ids that deliveries name; those that are gone are left out."""
        raise NotImplementedError

    def commit(self, effects: Effects) -> Stale | None:
        """Writes what a batch has come to, as one transaction; then whoever it concerns is told.

        Args:
            effects: What `Dialogs.arrived` gave.

        Returns:
            None where it is durable; else why nothing was written.

        Raises:
            LockTimeoutError: Others were writing to the file.
            StorageError: The file cannot be written; nothing has changed.
        """
        raise NotImplementedError

    def endpoints(self, keys: Sequence[Key]) -> Sequence[Endpoint | None]:
        """See `Ledger`."""
        raise NotImplementedError

    def outgoing(self, wanted: Sequence[Wanted]) -> pa.Table:
        """See `Ledger`."""
        raise NotImplementedError

    def stored(self, keys: Sequence[Key]) -> pa.Table:
        """See `Ledger`."""
        raise NotImplementedError

    def admit(self, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint | Refusal]:
        """See `Ledger`."""
        raise NotImplementedError

    def judge(self, messages: pa.Table) -> Mapping[int, Refusal]:
        """See `Ledger`."""
        raise NotImplementedError

    def put_aside(self, objects: Mapping[Key, bytes]) -> None:
        """See `Ledger`."""
        raise NotImplementedError

    def read_back(self, keys: Sequence[Key]) -> Mapping[Key, bytes]:
        """See `Ledger`."""
        raise NotImplementedError
