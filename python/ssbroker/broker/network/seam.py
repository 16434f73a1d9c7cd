"""Between the exchange, which knows conversations, and the endpoint, which knows connections."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from ssbroker.protocol.mirroring import MirroringRole


@dataclass(frozen=True, slots=True)
class Peer:
    """Another instance, as one connection knows it.

    Attributes:
        instance_id: Which instance it says that it is.
        name: What it calls itself.
        principal: Who it has proven to be (N8); None where connections are not encrypted.
        address: Where it was dialled, or from where it came: `TCP://host:port`.
        connection_id: The connection.
        is_accept: Whether it dialled us.
    """

    instance_id: bytes
    name: str
    principal: str | None
    address: str
    connection_id: uuid.UUID
    is_accept: bool

    @property
    def described(self) -> str:
        """What it calls itself, and who it has proven to be; for people."""
        return self.name if self.principal is None else f"{self.name}, {self.principal}"


class Receiver(Protocol):
    """Who is told what connections bring. All of it is called in the endpoint's thread: it must not wait, and must not raise."""

    def arrived(self, peer: Peer, rows: pa.Table) -> None:
        """Rows of `adjacent.batch.WIRE` have come."""

    def has_room(self, address: str) -> None:
        """What goes to an address is taken again: its outbox, which was full, has drained to a half, or a wait after a failed dial is over."""

    def unreachable(self, address: str, why: str) -> None:
        """A dial has failed, or the last connection to an address broke; what was not written to it is lost."""

    def reached(self, address: str, peer: Peer) -> None:
        """An address that was dialled has answered, or its instance has dialled us."""

    def is_own(self, address: str) -> None:
        """An address that was dialled is this instance's (N9, R41). Nothing more is sent there."""

    def roles_of(self, broker_instances: Sequence[bytes]) -> Sequence[tuple[MirroringRole, int]]:
        """The mirroring roles of databases here: "principal", "mirror" or "unknown"; and their numbers (N23, N24)."""

    def role_told(self, address: str, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """An address that was asked has told a role."""


class Endpoint(Protocol):
    """Connections to other instances, by their addresses. It may be called from any thread, and never waits."""

    @property
    def is_alive(self) -> bool:
        """Whether it listens."""

    def start(self) -> tuple[str, int]:
        """Begins to listen.

        Returns:
            The host and port that it listens on.

        Raises:
            EndpointError: It cannot.
        """

    def send(self, address: str, rows: pa.Table) -> int:
        """Sends rows of `adjacent.batch.WIRE`, in their order; dials where there is no connection.

        Args:
            address: `TCP://host:port`, normalised.
            rows: The rows.

        Returns:
            How many bytes more the outbox of the address takes. At 0 or less nothing more should be sent there until `has_room` is
            called. Where it was at 0 or less before the call, or a failed dial has to be waited for (N10), the rows are not taken.
        """

    def progress(self, address: str) -> tuple[int, int]:
        """How far what was sent to an address has come. Both numbers only grow, for as long as the endpoint is there.

        Args:
            address: As `send` has it.

        Returns:
            How many rows `send` has taken for it so far, and how many of those, the first ones, have been written or were lost. Of
            an address that was forgotten since nothing went there, both are more than they were.
        """

    def refuses(self, address: str) -> str | None:
        """Why nothing new is begun with an address that others have chosen (N34).

        Args:
            address: `TCP://host:port`, normalised.

        Returns:
            Why not; None where nothing is in the way.
        """

    def routes_lead_to(self, addresses: Collection[str]) -> None:
        """Says which addresses routes name. All others were learnt from neighbours (R23).

        Args:
            addresses: The addresses, normalised.
        """

    def ask_role(self, address: str, broker_instance: bytes) -> None:
        """Asks an address for the mirroring role of a database; `role_told` is called, or `unreachable`.

        Args:
            address: `TCP://host:port`, normalised.
            broker_instance: The database's broker id.
        """

    def pause(self) -> None:
        """Reads from no connection until `resume`, so that TCP slows the senders down (N12)."""

    def resume(self) -> None:
        """Reads again."""

    @property
    def sent_by_priority(self) -> Mapping[int, int]:
        """How many rows of each priority were written to connections."""

    @property
    def pending(self) -> tuple[int, int]:
        """How many rows wait to go to other instances, or are being written; and how many bytes those count that wait."""

    @property
    def refusals(self) -> int:
        """How many connections were cut off since their address dials too often (T13)."""

    @property
    def traffic(self) -> Mapping[str, int]:
        """What has gone over all connections, those that have ended included, by the names of `sys.dm_broker_connections`."""

    def view_rows(self) -> Iterable[tuple[Any, ...]]:
        """The rows of `sys.dm_broker_connections`."""

    def close(self, timeout: float) -> None:
        """Takes no more, writes what is queued, says goodbye and ends its thread.

        Args:
            timeout: The seconds after which connections are cut instead.
        """
