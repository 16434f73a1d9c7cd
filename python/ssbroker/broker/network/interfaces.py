"""Interfaces between the message exchange and the network endpoint, key exchange, forwarding and mirroring."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs.transmission_status import TransmissionStatus
from ssbroker.broker.network.peer import Peer
from ssbroker.protocol.mirroring import MirroringRole
from ssbroker.protocol.storage import DialogEndpoint, EndpointKey, ExchangedKeys
from ssbroker.protocol.wire.frames import DropReason

if TYPE_CHECKING:
    from ssbroker.store.conversation_endpoints import ConversationEndpoint


class EndpointListener(Protocol):
    """Receives the events of connections.

    All methods run in the endpoint's thread, except `outbox_drained`, which may run in any. They must not raise, nor wait for more than the
    commit of a few rows.
    """

    def rows_received(self, peer: Peer, rows: pa.Table) -> None:
        """Handles received rows of `wire.frames.WIRE`."""

    def outbox_drained(self, address: str) -> None:
        """Reports that an address accepts rows again: its full outbox is half empty, or the wait after a failed dial has ended."""

    def connection_failed(self, address: str, why: str) -> None:
        """Reports that a dial failed or the last connection to an address broke; rows not yet written to it are lost."""

    def connected(self, address: str, peer: Peer) -> None:
        """Reports that a dialled address has answered, or that its instance has dialled this one."""

    def own_address_reached(self, address: str) -> None:
        """Reports that a dialled address belongs to this instance (R41); nothing more is sent there."""

    def mirroring_roles(self, broker_instances: Sequence[bytes]) -> Sequence[tuple[MirroringRole, int]]:
        """Returns the mirroring role and role number of databases of this instance."""

    def role_received(self, address: str, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """Handles the reply of an address to a role query."""

    def rows_dropped(self, address: str, reasons: Mapping[EndpointKey, DropReason]) -> None:
        """Handles the reasons why the instance at an address does not acknowledge the rows of endpoints."""


class NetworkEndpoint(Protocol):
    """Connections to other instances, by address. All methods may be called from any thread; none waits for a peer."""

    @property
    def is_alive(self) -> bool:
        """Whether it listens."""

    def start(self) -> tuple[str, int]:
        """Starts to listen.

        Returns:
            The host and port that it listens on.

        Raises:
            EndpointError: It cannot listen there.
        """

    def send(self, address: str, rows: pa.Table) -> int:
        """Queues rows of `wire.frames.WIRE` in order, and writes a few at once if the socket accepts them; dials if there is no connection.

        Args:
            address: `TCP://host:port`, normalized.
            rows: The rows.

        Returns:
            The bytes that the outbox of the address still accepts. At 0 or less, send nothing more there until `outbox_drained` is
            called. If it was 0 or less before the call, or the wait after a failed dial has not ended, the rows are not accepted.
        """

    def dial(self, address: str) -> None:
        """Connects to an address unless it is connected; `connected`, `connection_failed` or `own_address_reached` follows."""

    def progress(self, address: str) -> tuple[int, int]:
        """Returns how many rows `send` has accepted for an address, and how many of the first of these were written or lost.

        Both numbers only grow. If the address was forgotten after a time without rows, both are higher than before.
        """

    def refusal_reason(self, address: str) -> str | None:
        """Returns why nothing new may be sent to an address that other instances have chosen; None if it may."""

    def set_routed_addresses(self, addresses: Collection[str]) -> None:
        """Sets the normalized addresses that routes name; all others were learned from peers (R23)."""

    def query_role(self, address: str, broker_instance: bytes) -> None:
        """Asks an address for the mirroring role of a database; `role_received` or `connection_failed` follows."""

    def report_drops(self, instance_id: bytes, reasons: Mapping[EndpointKey, DropReason]) -> None:
        """Tells a connected instance why rows of its endpoints are not acknowledged.

        Reasons are best effort: they are lost if it is not connected or many are waiting. Its next retransmission causes them again.
        """

    def pause(self) -> None:
        """Stops reading from all connections until `resume`, so that TCP slows the senders down."""

    def resume(self) -> None:
        """Reads again."""

    @property
    def sent_by_priority(self) -> Mapping[int, int]:
        """The number of rows of each priority that were written to connections."""

    @property
    def pending(self) -> tuple[int, int]:
        """The number of rows that wait or are being written, and the bytes of those that wait."""

    @property
    def refusals(self) -> int:
        """The number of connections that were closed because their address dials too often."""

    @property
    def traffic(self) -> Mapping[str, int]:
        """The traffic of all connections, including closed ones, by column name of `sys.dm_broker_connections`."""

    def view_rows(self) -> Iterable[tuple[Any, ...]]:
        """Returns the rows of `sys.dm_broker_connections`."""

    def close(self, timeout: float) -> None:
        """Accepts nothing more, writes what is queued, sends GOODBYE and ends its thread.

        Args:
            timeout: Seconds after which connections are cut.
        """


@dataclass(frozen=True, slots=True)
class KeyOffer:
    """The key exchange blob that an endpoint's messages carry.

    Attributes:
        key_exchange: The blob. Rows, acknowledgements and errors carry it until the peer has the key; None for no blob. The target has
            the initiator's once the endpoint is bound; the initiator has the target's once it has acknowledged a row.
        valid_until: When the offer expires and has to be requested again, in microseconds since 1970; None for never. An offer without a
            blob expires too if a blob could not be made.
    """

    key_exchange: bytes | None = field(default=None, repr=False)
    valid_until: int | None = None


@dataclass(frozen=True, slots=True)
class FirstRow:
    """The first received row of a direction whose key is not known.

    Attributes:
        conversation_id: The conversation.
        is_initiator: Whether the sender is the initiator.
        from_service_name: The sending service.
        from_broker_instance: The broker id of its database.
        to_service_name: The receiving service.
        to_broker_instance: The broker id that the row names, if any.
        security: How the row is protected (`envelope.Protection`).
        key_exchange: The blob in the row; None for none.
        principal: The principal of the peer that sent it; None if connections are not encrypted.
    """

    conversation_id: bytes
    is_initiator: bool
    from_service_name: str
    from_broker_instance: bytes
    to_service_name: str
    to_broker_instance: bytes | None
    security: int
    key_exchange: bytes | None = field(repr=False)
    principal: str | None


@dataclass(frozen=True, slots=True)
class RefusedDirection:
    """A direction that is refused: a Message Undeliverable event is emitted here; the unauthenticated sender gets no reply.

    Attributes:
        error: Service Broker's error number.
        text: Its text.
    """

    error: int
    text: str


class KeyExchange(Protocol):
    """Agrees on the session keys of dialogs with other instances."""

    def prepare_sending(
        self, database: DatabaseContext, endpoint: ConversationEndpoint
    ) -> KeyOffer | TransmissionStatus:
        """Returns the key exchange data for an endpoint's messages, or the status of the messages if they must wait.

        A new key is durable in the endpoint's row on return. Called before an endpoint's first message, after an offer expires or the
        catalog changes, until the peer has the key, and after each restart.
        """

    def start_round(self) -> None:
        """Starts a round of the exchange: the limit of RSA operations for new keys is reset."""

    def accept_directions(
        self, database: DatabaseContext, first_rows: Sequence[FirstRow]
    ) -> Sequence[ExchangedKeys | RefusedDirection | None]:
        """Opens the blobs of first rows and returns, for each in order, the keys of its direction; None if it is not encrypted.

        Called for each direction in a batch that has no endpoint yet, and for each with a blob whose endpoint has not been answered.
        """

    def update_certificate(self, database: DatabaseContext, endpoint: DialogEndpoint, first_row: FirstRow) -> bool:
        """Checks whether a blob for an existing conversation brings the same key under another certificate of the sender.

        If so, the certificate is durable on return and replies use it.

        Returns:
            Whether the certificate changed.

        Raises:
            LockTimeoutError: The database file is locked by another writer.
        """


class ForwardingService(Protocol):
    """Forwards messages for other instances (R43)."""

    def forward(self, peer: Peer, rows: pa.Table, decisions: pa.Table) -> None:
        """Accepts received rows that routing forwards; `decisions` has a row of `schemas.DECISIONS` for each."""

    def outbox_full(self, address: str) -> None:
        """Reports that the outbox of an address is full of this instance's own rows; `outbox_drained` follows."""

    def outbox_drained(self, address: str) -> None:
        """Reports that an address accepts rows again: its full outbox is half empty, or the wait after a failed dial has ended."""

    def connected(self, address: str, peer: Peer) -> None:
        """Reports a connection to an address; rows from its instance are not sent back there. `outbox_drained` follows."""

    def connection_failed(self, address: str, why: str) -> None:
        """Reports that a connection to an address failed or broke; rows in its outbox are dropped."""

    def mirrors_changed(self) -> None:
        """Reports that `MirrorResolver.resolve` may return another address."""

    def reroute(self, route: Callable[[pa.Table], pa.Table]) -> None:
        """Routes the held rows again after a change of the catalog."""

    def run_due(self, *, now: int) -> int | None:
        """Does what is due; returns when to call it again, in microseconds since 1970, if ever."""


class MirrorResolver(Protocol):
    """Finds out which of two mirrored addresses is the principal (R51 to R54)."""

    def resolve(self, address: str, mirror_address: str, broker_instance: bytes | None) -> str | None:
        """Returns where to send now; None to wait until the resolver reports a change."""

    def principal_address(self, address: str, mirror_address: str, broker_instance: bytes | None) -> str | None:
        """Returns what `resolve` would return, without querying roles; may be called from any thread."""

    def mirroring_roles(self, broker_instances: Sequence[bytes]) -> Sequence[tuple[MirroringRole, int]]:
        """Returns the mirroring role and role number of databases of this instance; must not wait."""

    def role_received(self, address: str, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """Handles the reply of an address to a role query."""

    def connected(self, address: str) -> None:
        """Reports a connection to an address."""

    def connection_failed(self, address: str) -> None:
        """Reports that a connection to an address failed or broke."""

    def run_due(self, *, now: int) -> int | None:
        """Does what is due; returns when to call it again, in microseconds since 1970, if ever."""
