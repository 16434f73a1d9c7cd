"""The durable side of dialogs that go over the network: what the machine reads of a database, and what a batch changes in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker import moment
from ssbroker.broker.network.exchange.admission import admitted, are_plain, judged
from ssbroker.broker.network.exchange.reading_ahead import ReadingAhead
from ssbroker.broker.network.exchange.settlement import OvertakenError, Settlement
from ssbroker.broker.work.own_work import own_work
from ssbroker.protocol.columns import listed
from ssbroker.protocol.ledger import MESSAGES, Effects, Endpoint, Kept, Key, Refusal, Wanted, parts_of
from ssbroker.protocol.states import BEGUN, State
from ssbroker.store import cuts, due, endpoints, fragments, remote, transmission_objects
from ssbroker.store.objects import Contract, Objects

if TYPE_CHECKING:
    from ssbroker.broker.database import Database


@dataclass(frozen=True, slots=True)
class Stale:
    """Why nothing of a batch was written: what it was planned with has changed meanwhile (N3).

    The plan is to be undone, the endpoints are to be forgotten by the machine, and the batch is to be routed and taken again.

    Attributes:
        keys: The endpoints that are not as the machine has them.
        is_whole: Whether the database itself is another now, such as disabled, a mirror, or under another broker id: the machine and
            its ledger are to be made anew.
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
        self._broker_instance: Final = database.objects().broker.service_broker_guid
        self._admitted: dict[Key, Endpoint] = {}
        self._ahead: Final = ReadingAhead()
        if not database.file.ask(transmission_objects.is_empty):
            with database.file.write() as connection:
                transmission_objects.clear(connection)

    @property
    def broker_instance(self) -> bytes:
        """The broker id under which its endpoints send; where the database has another by now, commits are stale."""
        return self._broker_instance

    def waiting(self) -> list[Key]:
        """The endpoints with messages in the transmission queue, wherever they are for: what a machine is told of after a restart."""
        with self._database.file.read() as connection:
            return list(remote.sides_of(connection, due.outbound(connection)).values())

    def keys_of(self, endpoint_ids: Iterable[int]) -> dict[int, Key]:
        """Endpoints by the ids that deliveries name; those that are gone are left out.

        Args:
            endpoint_ids: The ids.

        Returns:
            The key of each.
        """
        with self._database.file.read() as connection:
            return remote.sides_of(connection, endpoint_ids)

    def commit(self, effects: Effects, *, lock_timeout: float | None = None) -> Stale | None:
        """Writes what a batch has come to, as one transaction; then whoever it concerns is told.

        Args:
            effects: What `Dialogs.arrived` gave.
            lock_timeout: The seconds to wait for the write lock; None is as long as always.

        Returns:
            None where it is durable; else why nothing was written.

        Raises:
            LockTimeoutError: Others were writing to the file.
            StorageError: The file cannot be written; nothing has changed.
        """
        if effects.is_empty:
            return None
        try:
            with own_work(self._database, lock_timeout=lock_timeout) as work:
                if not work.objects.broker.is_delivering or work.broker_instance != self._broker_instance:
                    return Stale(is_whole=True)
                Settlement(work, effects).write()
        except OvertakenError as error:
            return Stale(error.keys)
        return None

    def endpoints(self, keys: Sequence[Key]) -> Sequence[Endpoint | None]:
        """See `Ledger`."""
        with self._database.file.read() as connection:
            objects = self._database.objects(connection)
            rows = remote.find(connection, keys)
        return [_planned(objects, rows[key]) if key in rows else None for key in keys]

    def cut_with(self, max_fragment_bytes: int) -> Mapping[Key, int]:
        """See `Ledger`."""
        with self._database.file.read() as connection:
            if cuts.is_settled(connection, max_fragment_bytes):
                return {}
        with self._database.file.write() as connection:
            return cuts.settle(connection, max_fragment_bytes)

    def outgoing(self, wanted: Sequence[Wanted]) -> pa.Table:
        """See `Ledger`."""
        with self._database.file.read() as connection:
            found, counts = connection.statements.waiting([_asked(each) for each in wanted])
            there = {each.key for each, count in zip(wanted, counts, strict=True) if count}
            if missing := dict.fromkeys(each.key for each in wanted if each.key not in there):
                errors = [Wanted(key, at, at, 1, 1) for key, at in remote.ended(connection, missing).items()]
                found += connection.statements.waiting([_asked(each) for each in errors])[0]
        # A body that was not read is null, though there is one.
        return pa.Table.from_arrays(pa.Table.from_batches(found).columns, schema=MESSAGES)

    def ended(self, keys: Sequence[Key]) -> Mapping[Key, int]:
        """See `Ledger`."""
        with self._database.file.read() as connection:
            return remote.ended(connection, keys)

    def parts(self, key: Key, sequence: int, spans: Sequence[tuple[int, int]]) -> Sequence[bytes] | None:
        """See `Ledger`."""
        with self._database.file.read() as connection:
            return self._ahead.parts(connection, key, sequence, spans)

    def let_go(self) -> None:
        """Holds nothing any more of what was read ahead."""
        self._ahead.let_go()

    def kept(self, keys: Sequence[Key]) -> Iterable[Kept]:
        """See `Ledger`."""
        with self._database.file.read() as connection:
            return [
                Kept((conversation, bool(side)), (number, fragment), count, digest, size)
                for conversation, side, number, fragment, count, digest, size in fragments.kept(connection, keys)
            ]

    def stored(self, key: Key, first: tuple[int, int], end: int, *, most_bytes: int) -> pa.Table:
        """See `Ledger`."""
        sender = (key[0], not key[1])
        with self._database.file.read() as connection:
            found = fragments.of(connection, key, first, end, most_bytes=most_bytes)
        rows = [(*sender, *fragment, bool(is_end), bool(is_error)) for *fragment, is_end, is_error in found]
        return parts_of(rows)

    def admit(self, endpoints: Sequence[Endpoint]) -> Sequence[Endpoint | Refusal]:
        """See `Ledger`."""
        objects = self._database.objects()
        now = moment.microseconds(self._database.now())
        answers = [admitted(objects, endpoint, now=now) for endpoint in endpoints]
        self._admitted = {answer.key: answer for answer in answers if isinstance(answer, Endpoint)}
        return answers

    def judge(self, messages: pa.Table, contracts: Sequence[str]) -> Mapping[int, Refusal]:
        """See `Ledger`."""
        if are_plain(self._database.objects(), messages, contracts):
            return {}
        return self._judge_each(messages)

    def _judge_each(self, messages: pa.Table) -> Mapping[int, Refusal]:
        conversations: list[Any] = listed(messages["conversation_id"])
        sides: list[Any] = messages["is_initiator"].to_pylist()
        keys = {(conversation, not side) for conversation, side in zip(conversations, sides, strict=True)}
        contracts: dict[Key, tuple[Contract, State]] = {}
        with self._database.file.read() as connection:
            objects = self._database.objects(connection)
            for key, (contract_id, state) in remote.contracts_of(connection, keys).items():
                contracts[key] = (objects.contracts_by_id[contract_id], State(state))
        for key in keys - contracts.keys():
            begins = self._admitted.get(key)
            contract = None if begins is None else objects.contracts.get(begins.service_contract_name)
            if contract is not None:  # else endpoint or contract have gone meanwhile, and the commit finds that
                contracts[key] = (contract, BEGUN)
        return judged(objects, messages, contracts)

    def put_aside(self, objects: Mapping[Key, bytes]) -> None:
        """See `Ledger`."""
        with self._database.file.write() as connection:
            rows = remote.find(connection, objects)
            transmission_objects.write(connection, [(row.endpoint_id, objects[key]) for key, row in rows.items()])

    def read_back(self, keys: Sequence[Key]) -> Mapping[Key, bytes]:
        """See `Ledger`."""
        found: dict[Key, bytes] = {}
        with self._database.file.read() as connection:
            if transmission_objects.is_empty(connection):
                return found
            for key, row in remote.find(connection, keys).items():
                packed = transmission_objects.read(connection, row.endpoint_id)
                if packed is not None:
                    found[key] = packed
        return found


def _planned(objects: Objects, row: endpoints.Endpoint) -> Endpoint:
    """A row as the protocol has to know it."""
    return Endpoint(
        conversation_id=row.conversation_id,
        is_initiator=bool(row.is_initiator),
        service_name=objects.services_by_id[row.service_id].name,
        broker_instance=objects.broker.service_broker_guid,
        far_service_name=row.far_service,
        far_broker_instance=row.far_broker_instance,
        service_contract_name=objects.contracts_by_id[row.service_contract_id].name,
        priority=row.priority,
        lifetime=row.lifetime,
        session_key=row.session_key,
        far_session_key=row.far_session_key,
        far_certificate=row.far_certificate,
        is_bound=bool(row.is_bound),
        far_peer=row.far_peer,
        receive_sequence=row.receive_sequence,
        state=State(row.state),
        send_sequence=row.send_sequence,
    )


def _asked(wanted: Wanted) -> tuple[bytes, bool, int, int, int, int, int, bytes]:
    return (*wanted.key, *wanted[1:], _first_id(wanted.key))


@lru_cache(maxsize=4096)
def _first_id(key: Key) -> bytes:
    """The id of an endpoint's first message, the same whenever it is sent: made of its conversation and its sender, as a GUID of version 8.

    The number of another message changes the last bits of it.
    """
    conversation_id, is_initiator = key
    place = conversation_id + is_initiator.to_bytes()
    made = bytearray(hashlib.blake2b(place, digest_size=16, person=b"ssb message id").digest())
    made[6] = made[6] & 0x0F | 0x80
    made[8] = made[8] & 0x3F | 0x80
    return bytes(made)
