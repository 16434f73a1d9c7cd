"""Interfaces between the message exchange and the network endpoint, key exchange, forwarding and mirroring."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa

from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs.transmission_status import TransmissionStatus
from ssbroker.protocol.mirroring import MirroringRole
from ssbroker.protocol.storage import DialogEndpoint as Taken
from ssbroker.protocol.storage import ExchangedKeys

if TYPE_CHECKING:
    from ssbroker.store.endpoints import ConversationEndpoint


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


class EndpointListener(Protocol):
    """Who is told what connections bring. All of it is called in the endpoint's thread: it must not wait, and must not raise."""

    def rows_received(self, peer: Peer, rows: pa.Table) -> None:
        """Rows of `wire.frames.WIRE` have come."""

    def outbox_drained(self, address: str) -> None:
        """What goes to an address is taken again: its outbox, which was full, has drained to a half, or a wait after a failed dial is over."""

    def connection_failed(self, address: str, why: str) -> None:
        """A dial has failed, or the last connection to an address broke; what was not written to it is lost."""

    def connected(self, address: str, peer: Peer) -> None:
        """An address that was dialled has answered, or its instance has dialled us."""

    def own_address_reached(self, address: str) -> None:
        """An address that was dialled is this instance's (N9, R41). Nothing more is sent there."""

    def mirroring_roles(self, broker_instances: Sequence[bytes]) -> Sequence[tuple[MirroringRole, int]]:
        """The mirroring roles of databases here: "principal", "mirror" or "unknown"; and their numbers (N23, N24)."""

    def role_received(self, address: str, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """An address that was asked has told a role."""


class NetworkEndpoint(Protocol):
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
        """Sends rows of `wire.frames.WIRE`, in their order; dials where there is no connection.

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

    def refusal_reason(self, address: str) -> str | None:
        """Why nothing new is begun with an address that others have chosen (N34).

        Args:
            address: `TCP://host:port`, normalised.

        Returns:
            Why not; None where nothing is in the way.
        """

    def set_routed_addresses(self, addresses: Collection[str]) -> None:
        """Says which addresses routes name. All others were learnt from neighbours (R23).

        Args:
            addresses: The addresses, normalised.
        """

    def query_role(self, address: str, broker_instance: bytes) -> None:
        """Asks an address for the mirroring role of a database; `role_received` is called, or `unreachable`.

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


@dataclass(frozen=True, slots=True)
class KeyOffer:
    """How an endpoint's messages may leave the instance.

    Attributes:
        key_exchange: What rides with its rows, acknowledgements and errors as well, until the far side has it (N19); None for nothing.
            An initiator's far side has it once the endpoint is bound; a target's, once something of it was acknowledged.
        until: From when on it is too old and has to be asked for anew, in microseconds since 1970; None for never. Nothing may ride until
            then too: where nothing can be made.
    """

    key_exchange: bytes | None = field(default=None, repr=False)
    until: int | None = None


@dataclass(frozen=True, slots=True)
class KeyWait:
    """Why an endpoint's messages may not leave yet (N20).

    Attributes:
        status: What `transmission_status` says.
    """

    status: TransmissionStatus


@dataclass(frozen=True, slots=True)
class FirstRow:
    """The first row that has come of a direction whose key is not known here.

    Attributes:
        conversation_id: The conversation.
        is_initiator: Whether the sender is the initiator.
        from_service_name: The sender.
        from_broker_instance: The broker id of its database.
        to_service_name: The receiver.
        to_broker_instance: The broker id that it names, if any.
        security: How the row is protected (`envelope.Security`).
        key_exchange: The blob that came with it; None for none.
        principal: Who the neighbour is that brought it; None where connections have no principals.
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
class AcceptedDirection:
    """A direction that may begin.

    Attributes:
        session_key: Its key, 32 bytes; None for plain.
        answer_key: With what this side answers, where the conversation begins here; None for the same key.
        certificate: By which certificate the sender has proven itself, as its fingerprint; None for none.
    """

    session_key: bytes | None = field(default=None, repr=False)
    answer_key: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = None

    @property
    def keys(self) -> ExchangedKeys | None:
        """As `Dialogs.arrived` takes them; None for a plain direction."""
        return None if self.session_key is None else ExchangedKeys(self.session_key, self.answer_key, self.certificate)


@dataclass(frozen=True, slots=True)
class RefusedDirection:
    """A direction that may not begin. Its sender hears nothing, since nothing could be proven (fact 181); Message Undeliverable is told here.

    Attributes:
        error: Service Broker's number.
        text: What it means.
    """

    error: int
    text: str


Answer: TypeAlias = KeyOffer | KeyWait


class KeyExchange(Protocol):
    """Who settles the session keys of dialogs that leave the instance (N19, N20)."""

    def prepare_sending(self, database: DatabaseContext, endpoint: ConversationEndpoint) -> Answer:
        """How an endpoint's messages may leave. Where they are secured, the key is durable in the endpoint's row at return.

        Asked before the first message of an endpoint goes, again when an offer is too old or the catalog has changed, until the far
        side has the key, and after each restart.

        Args:
            database: Its database.
            endpoint: The endpoint, as committed.

        Returns:
            An offer, or why to wait.
        """

    def start_round(self) -> None:
        """A turn of the exchange begins: RSA is paid for some new keys again (N19)."""

    def accept_directions(
        self, database: DatabaseContext, beginnings: Sequence[FirstRow]
    ) -> Sequence[AcceptedDirection | RefusedDirection]:
        """Opens what came with the first rows of directions, and says whether they may begin.

        Asked for each direction in a batch whose endpoint is not there yet, and for each that brings a blob to one that was not
        answered so far.

        Args:
            database: The database that routing has found.
            beginnings: The directions.

        Returns:
            An answer for each, in the same order.
        """

    def update_certificate(self, database: DatabaseContext, endpoint: Taken, one: FirstRow) -> bool:
        """Looks at a blob that came for a conversation that was taken here before, for its sender may have another certificate by now.

        Where it brings the key that the conversation has, under another certificate, that is durable at return, and what is answered
        goes under it.

        Args:
            database: The database.
            endpoint: The target's endpoint, as committed.
            one: What came.

        Returns:
            Whether it is another certificate.

        Raises:
            LockTimeoutError: Others were writing to the file.
        """


class ForwardingService(Protocol):
    """Who passes on what is for other instances (R43, N21, N22)."""

    def forward(self, peer: Peer, rows: pa.Table, decisions: pa.Table) -> None:
        """Takes rows that routing would have passed on; forwarding is active.

        Args:
            peer: Who brought them.
            rows: The rows, as they came.
            decisions: `schemas.DECISIONS`, a row for each.
        """

    def outbox_full(self, address: str) -> None:
        """The outbox of an address is full, with what this instance sends itself; `has_room` follows."""

    def outbox_drained(self, address: str) -> None:
        """The outbox of an address that was full has drained to a half, or a wait after a failed dial is over."""

    def connected(self, address: str, peer: Peer) -> None:
        """A connection to an address stands: rows that this instance has brought do not go back there (N22). `has_room` follows."""

    def connection_failed(self, address: str, why: str) -> None:
        """A connection to an address failed or broke: what waits for it is dropped."""

    def mirrors_changed(self) -> None:
        """What `Mirrors.way` says may have become another answer."""

    def reroute(self, route: Callable[[pa.Table], pa.Table]) -> None:
        """What `route` says of rows that are held may have become another answer."""

    def run_due(self, *, now: int) -> int | None:
        """Does what is due; when it wants to be called again, in microseconds since 1970, if ever."""


class MirrorResolver(Protocol):
    """Who knows which of two mirrored addresses is the principal (R51 to R54, N23 to N25)."""

    def resolve(self, address: str, mirror_address: str, broker_instance: bytes | None) -> str | None:
        """Where to send now; None is to hold: the exchange is told with `changed` when that may have become another answer."""

    def principal(self, address: str, mirror_address: str, broker_instance: bytes | None) -> str | None:
        """What `way` would say, without wanting to send. It may be asked for by any thread."""

    def mirroring_roles(self, broker_instances: Sequence[bytes]) -> Sequence[tuple[MirroringRole, int]]:
        """The roles of databases here, and their numbers. Called in the endpoint's thread: it must not wait."""

    def role_received(self, address: str, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """An address has answered."""

    def connected(self, address: str) -> None:
        """A connection to an address stands."""

    def connection_failed(self, address: str) -> None:
        """A connection to an address failed or broke."""

    def run_due(self, *, now: int) -> int | None:
        """Does what is due; when it wants to be called again, in microseconds since 1970, if ever."""
