"""The interfaces between the message exchange and the network endpoint, and the peers to which the endpoint connects."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from ssbroker.protocol.storage import EndpointKey
from ssbroker.protocol.wire.frames import DropReason, MirroringRole

SEND_NOW_BYTES_MAX: Final = 64 << 10
"""The maximum number of bytes that are sent in the calling thread; encrypting more is worth another thread."""
PeerKey: TypeAlias = tuple[bytes, str | None]
"""An instance id, and the principal that states it. The same id with a different certificate is a different instance."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Another instance, as seen over one connection.

    Attributes:
        instance_id: The instance id that the peer states.
        name: The name that the peer states.
        principal: The principal that the peer's certificate proves; None if connections are not encrypted.
        address: The address that was dialled or that the connection came from: `TCP://host:port`.
        connection_id: The id of the connection.
        is_accept: Whether the peer dialled this instance.
    """

    instance_id: bytes
    name: str
    principal: str | None
    address: str
    connection_id: uuid.UUID
    is_accept: bool

    @property
    def key(self) -> PeerKey:
        """The instance id and the principal, which identify the peer on all of its connections."""
        return self.instance_id, self.principal

    @property
    def label(self) -> str:
        """The name that the peer states, and the principal that its certificate proves, for messages."""
        return self.name if self.principal is None else f"{self.name}, authenticated as {self.principal}"


class SendResult(NamedTuple):
    """The result of sending rows to an address."""

    is_accepted: bool
    """Whether the outbox of the address has accepted the rows."""
    is_full: bool
    """Whether the outbox accepts nothing more for now."""
    accepted_rows: int
    """How many rows the outbox has accepted so far, as in `NetworkEndpoint.progress`."""


class EndpointListener(Protocol):
    """Receives events about connections.

    All methods run in the endpoint's thread, except `outbox_drained`, which may run in any thread. They must not raise
    exceptions, nor wait for longer than the commit of a few rows takes.
    """

    def rows_received(self, peer: Peer, rows: pa.Table) -> None:
        """Handles received rows of `wire.frames.WIRE`."""

    def outbox_drained(self, address: str) -> None:
        """Reports that an address accepts rows again: its full outbox is half empty, or the wait after a failed dial has ended."""

    def connection_failed(self, address: str, why: str) -> None:
        """Reports that a dial failed or the last connection to an address broke; rows not yet written to a connection are lost."""

    def connected(self, address: str, peer: Peer) -> None:
        """Reports that a dialled address has answered, or that the instance at the address has dialled this instance."""

    def own_address_reached(self, address: str) -> None:
        """Reports that a dialled address belongs to this instance (R41); nothing more is sent there."""

    def mirroring_roles(self, broker_instances: Sequence[bytes]) -> Sequence[tuple[MirroringRole, int]]:
        """Returns the mirroring role and role number of databases of this instance."""

    def role_received(self, address: str, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """Handles the reply of an address to a role query."""

    def rows_dropped(self, address: str, reasons: Mapping[EndpointKey, DropReason]) -> None:
        """Handles the reasons why the instance at an address does not acknowledge the rows of endpoints."""


class NetworkEndpoint(Protocol):
    """Connections to other instances, by address. All methods may be called from any thread; no method waits for a peer."""

    @property
    def is_alive(self) -> bool:
        """Whether the endpoint is listening."""

    def start(self) -> tuple[str, int]:
        """Starts to listen.

        Returns:
            The host and port on which the endpoint listens.

        Raises:
            EndpointError: The endpoint cannot listen on the host and port.
        """

    def send(self, address: str, rows: pa.Table) -> SendResult:
        """Queues rows of `wire.frames.WIRE` in order, and writes a few at once if the socket accepts them; dials if there is no connection.

        Args:
            address: `TCP://host:port`, normalized.
            rows: The rows.

        Returns:
            Whether the outbox of the address has accepted the rows, and whether it is full. If so, send nothing more there until
            `outbox_drained` is called. If it was full before the call, or the wait after a failed dial has not ended, the rows are not
            accepted.
        """

    def dial(self, address: str) -> None:
        """Connects to an address unless it is connected; `connected`, `connection_failed` or `own_address_reached` follows."""

    def progress(self, address: str) -> tuple[int, int]:
        """Returns how many rows `send` has accepted for an address, and how many of these, counted from the first, were written or lost.

        Both numbers only increase. If the address was forgotten after a time without rows, both are higher than before.
        """

    def refusal_reason(self, address: str) -> str | None:
        """Returns why an address that a peer has chosen accepts no new rows; None if it accepts rows."""

    def set_routed_addresses(self, addresses: Collection[str]) -> None:
        """Sets the normalized addresses that routes name; all other addresses were learned from peers (R23)."""

    def query_role(self, address: str, broker_instance: bytes) -> None:
        """Asks an address for the mirroring role of a database; `role_received` or `connection_failed` follows."""

    def report_drops(self, peer_key: PeerKey, reasons: Mapping[EndpointKey, DropReason]) -> None:
        """Reports to a connected peer why rows of its endpoints are not acknowledged.

        Reasons are sent with best effort: they are lost if the peer is not connected, or if many reasons are waiting.
        The next retransmission produces them again.
        """

    def pause(self) -> None:
        """Stops reading from all connections until `resume`, so that TCP slows the senders down."""

    def resume(self) -> None:
        """Resumes reading."""

    @property
    def sent_by_priority(self) -> Mapping[int, int]:
        """The number of rows of each priority that were written to connections."""

    @property
    def pending(self) -> tuple[int, int]:
        """The number of rows that wait or are being written, and the size in bytes of the waiting rows."""

    @property
    def refusals(self) -> int:
        """The number of connections that were closed because their address dials too often."""

    @property
    def traffic(self) -> Mapping[str, int]:
        """The traffic of all connections, including closed ones, by column name of `sys.dm_broker_connections`."""

    def view_rows(self) -> Iterable[tuple[Any, ...]]:
        """Returns the rows of `sys.dm_broker_connections`."""

    def close(self, timeout: float) -> None:
        """Stops accepting rows, writes queued rows, sends GOODBYE, and ends the endpoint's thread.

        Args:
            timeout: Seconds after which connections are closed without GOODBYE.
        """
