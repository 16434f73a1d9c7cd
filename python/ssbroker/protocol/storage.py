"""The interface of dialog storages, and the changes that a received batch makes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from ssbroker import schemas
from ssbroker._compat import binary_view
from ssbroker.protocol.arrow_columns import body_column, tuples_to_table, tuples_to_view_table
from ssbroker.protocol.broker_errors import ConversationError
from ssbroker.protocol.conversation_states import ConversationState


class MessageRun(NamedTuple):
    """Consecutive messages of one conversation that can be enqueued together."""

    key: tuple[bytes, bool]
    """The receiving endpoint."""
    first: int
    """The number of the first message."""
    rows: int
    """The number of messages."""
    message_type_name: str
    """The message type of all messages."""


EndpointKey: TypeAlias = tuple[bytes, bool]
"""An endpoint: the conversation id, and whether the endpoint is the initiator."""


def _schema_of(*fields: pa.Field[Any]) -> pa.Schema:
    return pa.schema(list(fields))


_KIND_COLUMNS: Final = _schema_of(
    pa.field("message_type_name", pa.string(), nullable=False),
    pa.field("message_id", schemas.GUID),
    pa.field("is_end_of_dialog", pa.bool_(), nullable=False),
    pa.field("is_conversation_error", pa.bool_(), nullable=False),
)

MESSAGES: Final = _schema_of(
    *(schemas.FRAGMENTS.field(name) for name in ("conversation_id", "is_initiator", "message_sequence_number")),
    *_KIND_COLUMNS,
    schemas.FRAGMENTS.field("message_body"),
)
"""Whole messages, as read from a transmission queue or written to a queue. `is_initiator` refers to the sender."""

_BODY: Final = schemas.FRAGMENTS.get_field_index("message_body")
STORED_FRAGMENTS: Final = _schema_of(*schemas.FRAGMENTS, *_KIND_COLUMNS).set(
    _BODY, pa.field("message_body", binary_view(), nullable=False)
)
"""Decrypted fragments of incomplete or early messages (P14), with digests instead of signatures."""

_HEADER_COLUMNS: Final = pa.struct([each for each in MESSAGES if each.name != "message_body"])
_FRAGMENT_COLUMNS: Final = pa.struct(list(STORED_FRAGMENTS))


def messages_table(rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Converts rows to a table (`MESSAGES`) without copying large bodies."""
    made = tuples_to_table([row[:-1] for row in rows], _HEADER_COLUMNS)
    return made.append_column(MESSAGES.field("message_body"), body_column([row[-1] for row in rows]))


def fragments_table(rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Converts rows to a table (`STORED_FRAGMENTS`) without copying large bodies."""
    return tuples_to_view_table(rows, _FRAGMENT_COLUMNS, _BODY)


NO_MESSAGES: Final = pa.Table.from_batches([], MESSAGES)
NO_FRAGMENTS: Final = pa.Table.from_batches([], STORED_FRAGMENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogEndpoint:
    """One side of a conversation, as the protocol sees it.

    Attributes:
        conversation_id: The conversation.
        is_initiator: Whether this side started the conversation.
        service_name: The local service.
        broker_instance: The broker id of the local database.
        far_service_name: The remote service.
        far_broker_instance: The broker id of the remote database; None if it is not known yet (R8).
        service_contract_name: The contract.
        priority: The priority, from 1 to 10.
        lifetime: When the conversation expires, in microseconds since 1970; None for never.
        session_key: The key with which this side seals, 32 bytes; None for an unsecured conversation.
        far_session_key: The key with which the peer seals; None if it equals `session_key`, or if the peer has not answered with its own key.
        far_certificate: The fingerprint of the certificate that authenticated the peer; None if there is none.
        is_bound: Whether the peer has answered, so that the remote broker id and the peer are fixed (R8, P25).
        far_peer: The peer that delivered the first message or acknowledgement of the remote endpoint, if the conversation is unsecured;
            None if connections have no certificates.
        receive_sequence: The number of the next expected message; all earlier messages are in the queue.
        state: The state of the conversation when the row was read.
        send_sequence: The number of the next message to send, when the row was read.
        route_broker_instance: The broker id of the route that the messages of an unbound initiator take.
    """

    conversation_id: bytes
    is_initiator: bool
    service_name: str
    broker_instance: bytes
    far_service_name: str
    far_broker_instance: bytes | None = None
    service_contract_name: str = "DEFAULT"
    priority: int = 5
    lifetime: int | None = None
    session_key: bytes | None = field(default=None, repr=False)
    far_session_key: bytes | None = field(default=None, repr=False)
    far_certificate: bytes | None = None
    is_bound: bool = False
    far_peer: bytes | None = None
    receive_sequence: int = 0
    state: ConversationState = field(default=ConversationState.CO, compare=False)
    send_sequence: int = field(default=0, compare=False)
    route_broker_instance: bytes | None = field(default=None, compare=False)

    @property
    def to_broker_instance(self) -> bytes | None:
        """The broker id that messages name: that of the remote database if it is known, else that of the route; None if neither is known."""
        return self.far_broker_instance or self.route_broker_instance

    @property
    def key(self) -> EndpointKey:
        """The key of the endpoint."""
        return (self.conversation_id, self.is_initiator)


@dataclass(frozen=True, slots=True)
class ExchangedKeys:
    """The keys in the first row of a direction.

    Attributes:
        far_session_key: The key with which the sender seals.
        session_key: The key for replies, if this side is the target; None if replies use `far_session_key`.
        far_certificate: The fingerprint of the certificate that authenticated the sender; None if there is none.
        valid_for: The rows for which the keys are valid: whether the initiator sends, the sending service and the
            receiving service. None means any row.
    """

    far_session_key: bytes = field(repr=False)
    session_key: bytes | None = field(default=None, repr=False)
    far_certificate: bytes | None = None
    valid_for: tuple[bool, str, str] | None = None


SessionKeys: TypeAlias = Mapping[bytes, bytes | ExchangedKeys]
"""The keys in a batch, by conversation id; plain bytes are the key of both directions."""


class MessageRange(NamedTuple):
    """A range of messages to read from a transmission queue."""

    key: EndpointKey
    """The sending endpoint."""
    first: int
    """The first message number."""
    last: int
    """The last message number."""
    max_messages: int
    """The maximum number of messages."""
    max_bytes: int
    """Reading may stop after this many bytes of bodies; at least one message is returned."""
    max_body_bytes: int = 2**63 - 1
    """The longest body that is read. A longer message is returned without its body, and ends the result."""


class StoredFragmentInfo(NamedTuple):
    """A fragment that is stored until its message is complete and next in order (P14)."""

    key: EndpointKey
    """The receiving endpoint."""
    position: tuple[int, int]
    """The message number and the fragment number."""
    fragment_count: int
    """The number of fragments of the message."""
    message_digest: bytes | None
    """The MD5 digest of the whole message."""
    size: int
    """The size of the body in bytes."""


@dataclass(frozen=True, slots=True)
class Refusal(ConversationError):  # noqa: N818 - not an exception
    """Why a message or a conversation is refused.

    Attributes:
        code: The Service Broker error number, negative.
        description: The error text.
        notifies_sender: Whether the sender is notified, which ends the conversation; otherwise nothing is sent, and the sender retries.
    """

    notifies_sender: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChanges:
    """The changes that a received batch causes, to be written in one transaction; acknowledgements wait for its commit (P16).

    Attributes:
        at: The time of arrival.
        created: Endpoints that first messages create.
        bound: Endpoints whose peer has answered for the first time, with its broker id and identity (R8, P25).
        messages: Messages to enqueue, in order (`MESSAGES`); messages that the endpoint's state does not accept are dropped.
        runs: The runs of `messages` that took the fast path; they come first, and the remaining messages are for other endpoints.
        stored: Fragments to store until their messages are complete and next in order (`STORED_FRAGMENTS`, P14).
        received: The new `receive_sequence` of endpoints; stored fragments of earlier messages can be deleted.
        dropped: Messages that do not match their digest (P23): endpoint and number. Their stored fragments are deleted.
        acknowledged: The last message acknowledged by the peer, by endpoint; messages up to it leave the transmission queue.
        errors: Errors of the remote broker, by endpoint: the endpoint goes to ER, its messages leave the transmission queue.
        refusals: Endpoints with a refused message, and the reason: they go to ER, and their queues get an error.
        lost_by_peer: Endpoints whose peers have lost messages that these peers had acknowledged: both ends go to ER.
        too_large: Endpoints with a message that is larger than the limit. Fragments up to the limit may be stored; later fragments are not.
        with_duplicates: Endpoints for which duplicates have arrived (P18). Those that are closed are kept longer.
    """

    at: int
    created: tuple[DialogEndpoint, ...]
    bound: tuple[DialogEndpoint, ...]
    messages: pa.Table
    stored: pa.Table
    received: Mapping[EndpointKey, int]
    dropped: tuple[tuple[EndpointKey, int], ...]
    acknowledged: Mapping[EndpointKey, int]
    errors: Mapping[EndpointKey, bytes]
    refusals: Mapping[EndpointKey, Refusal] = field(default_factory=dict)
    lost_by_peer: tuple[EndpointKey, ...] = ()
    runs: tuple[MessageRun, ...] = ()
    too_large: frozenset[EndpointKey] = frozenset()
    with_duplicates: frozenset[EndpointKey] = frozenset()

    @property
    def is_empty(self) -> bool:
        """Whether nothing has to be written before `confirm`, except that closed endpoints of `with_duplicates` are kept longer."""
        made = (self.created, self.bound, self.received, self.dropped, self.acknowledged)
        return (
            not any((*made, self.errors, self.refusals, self.lost_by_peer))
            and self.messages.num_rows == self.stored.num_rows == 0
        )


class MessageKind(NamedTuple):
    """The properties that decide whether a message may be received."""

    service_contract_name: str
    """The contract of the conversation."""
    from_initiator: bool
    """Whether the initiator sent the message."""
    message_type_name: str
    """The message type."""


class DialogStorage(Protocol):
    """The storage that the engine reads. The engine writes only fragment sizes and transmission objects; its caller writes the rest."""

    def sync(self) -> None:
        """Makes the caller's commits durable. The engine calls this before it returns rows to send."""

    def endpoints(self, keys: Sequence[EndpointKey]) -> Sequence[DialogEndpoint | None]:
        """Returns the endpoints, with None for missing endpoints. Recently closed endpoints are included, to recognize replays."""

    def set_fragment_bytes(self, max_fragment_bytes: int) -> Mapping[EndpointKey, int]:
        """Stores the fragment size durably; each engine calls it once when it starts.

        Returns:
            The endpoints that keep their previous fragment size, with that size: they have unacknowledged messages, and
            their peers may hold fragments that fragments of another size would contradict.
        """

    def outgoing(self, wanted: Sequence[MessageRange]) -> pa.Table:
        """Returns the committed messages of the wanted ranges (`MESSAGES`), range by range, ordered by message number.

        Missing messages are omitted. If the application ended a dialog with an error, the earlier messages of the dialog were dropped; if
        the ranges of the dialog contain no messages, that error is returned.
        """

    def ending_errors(self, keys: Sequence[EndpointKey]) -> Mapping[EndpointKey, int]:
        """Returns, by endpoint, the number of the queued error with which the application ended the dialog and dropped earlier messages."""

    def read_body_slices(
        self, key: EndpointKey, sequence: int, spans: Sequence[tuple[int, int]]
    ) -> Sequence[bytes] | None:
        """Reads slices of the body of a committed message in a transmission queue.

        Args:
            key: The sending endpoint.
            sequence: The message number.
            spans: Start (inclusive) and stop (exclusive) offset of each slice, in bytes; bytes beyond the end of the body are omitted.

        Returns:
            The bytes of each slice; None if the message does not exist.
        """

    def list_stored(self, keys: Sequence[EndpointKey]) -> Iterable[StoredFragmentInfo]:
        """Lists the stored fragments of endpoints in any order, without reading their bodies."""

    def read_stored(self, key: EndpointKey, first: tuple[int, int], end: int, *, most_bytes: int) -> pa.Table:
        """Reads stored fragments of an endpoint in order (`STORED_FRAGMENTS`); an endpoint in ER or CD may have none.

        Args:
            key: The receiving endpoint.
            first: The first message and fragment.
            end: The message before which to stop.
            most_bytes: Reading may stop after this many bytes of bodies.

        Returns:
            The fragments; none if there are no more.
        """

    def admit(self, endpoints: Sequence[DialogEndpoint]) -> Sequence[DialogEndpoint | Refusal]:
        """Returns, for each new conversation, the endpoint with its broker id, priority and lifetime set, or a refusal."""

    def accept_any_body(self, kinds: Collection[MessageKind]) -> bool:
        """Returns whether messages of all these kinds may be received with any body, so that they need no `validate`."""

    def validate(self, messages: pa.Table, contracts: Sequence[str]) -> Mapping[int, Refusal]:
        """Checks the type, direction and body of messages (`MESSAGES`), each under its contract; returns the refusals by row number."""

    def save_transmissions(self, objects: Mapping[EndpointKey, bytes]) -> None:
        """Writes transmission objects to the work table (P32), replacing older objects. The table must be emptied when the instance starts."""

    def load_transmissions(self, keys: Sequence[EndpointKey]) -> Mapping[EndpointKey, bytes]:
        """Reads transmission objects from the work table."""
