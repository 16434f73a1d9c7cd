"""The storage interface of the dialog protocol, and the changes of one batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from ssbroker import schemas
from ssbroker.protocol.envelope import body_column, tuples_to_table, tuples_to_view_table
from ssbroker.protocol.states import ConversationState


class MessageRun(NamedTuple):
    """Messages that enter a queue one behind the other, and are no more than that (B47)."""

    key: tuple[bytes, bool]
    """The endpoint that receives them: its conversation's id, and whether it is the initiator."""
    first: int
    """The number of the first; each has the number behind that of the one before."""
    rows: int
    """How many."""
    message_type_name: str
    """Their type."""


Key: TypeAlias = tuple[bytes, bool]
"""An endpoint: its conversation's id, and whether it is the initiator."""


def _columns(*fields: pa.Field[Any]) -> pa.Schema:
    return pa.schema(list(fields))


_KIND: Final = _columns(
    pa.field("message_type_name", pa.string(), nullable=False),
    pa.field("message_id", schemas.GUID),
    pa.field("is_end_of_dialog", pa.bool_(), nullable=False),
    pa.field("is_conversation_error", pa.bool_(), nullable=False),
)

MESSAGES: Final = _columns(
    *(schemas.FRAGMENTS.field(name) for name in ("conversation_id", "is_initiator", "message_sequence_number")),
    *_KIND,
    schemas.FRAGMENTS.field("message_body"),
)
"""Whole messages: what a transmission queue gives, and what enters a queue. `is_initiator` is the sender's."""

_BODY: Final = schemas.FRAGMENTS.get_field_index("message_body")
STORED_FRAGMENTS: Final = _columns(*schemas.FRAGMENTS, *_KIND).set(
    _BODY, pa.field("message_body", pa.binary_view(), nullable=False)
)
"""Fragments of what is incomplete or early (P14), opened, with digests instead of signatures."""

_HEAD: Final = pa.struct([each for each in MESSAGES if each.name != "message_body"])
_PART: Final = pa.struct(list(STORED_FRAGMENTS))


def messages_table(rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Messages as a table (`MESSAGES`); large bodies stay where they are.

    Examples:
        >>> messages_table([]).schema == MESSAGES
        True
    """
    made = tuples_to_table([row[:-1] for row in rows], _HEAD)
    return made.append_column(MESSAGES.field("message_body"), body_column([row[-1] for row in rows]))


def fragments_table(rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    """Fragments as a table (`STORED`); large bodies stay where they are.

    Examples:
        >>> fragments_table([]).schema == STORED_FRAGMENTS
        True
    """
    return tuples_to_view_table(rows, _PART, _BODY)


NO_MESSAGES: Final = pa.Table.from_batches([], MESSAGES)
NO_FRAGMENTS: Final = pa.Table.from_batches([], STORED_FRAGMENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogEndpoint:
    """One side of a conversation, as far as the protocol has to know it.

    Attributes:
        conversation_id: The conversation.
        is_initiator: Whether this side began it.
        service_name: The service of this side.
        broker_instance: The broker id of this side's database.
        far_service_name: The far side's service.
        far_broker_instance: The far side's broker id; None while it is not known (R8).
        service_contract_name: The contract.
        priority: From 1 to 10.
        lifetime: The moment at which the conversation ends, in microseconds since 1970; None for never.
        session_key: With what this side seals, 32 bytes; None for a plain conversation.
        far_session_key: With what the far side seals; None for the same key, or where it has not answered with its own (N19).
        far_certificate: By which certificate the far side has proven itself, as its fingerprint; None for none.
        is_bound: Whether the far side has answered, so that broker id and peer are settled (R8, P25).
        far_peer: Who brought the far side's first answer in a plain conversation (N17); None where connections have no certificates.
        receive_sequence: The number of the message that is expected next; all before it are in the queue.
        state: Its state, when it was read.
        send_sequence: The number of the message that it sends next, when it was read.
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

    @property
    def key(self) -> Key:
        """The conversation's id, and which side this is."""
        return (self.conversation_id, self.is_initiator)


@dataclass(frozen=True, slots=True)
class ExchangedKeys:
    """The keys that came with the first row of a direction (N19).

    Attributes:
        far_session_key: With what its sender seals.
        session_key: With what this side answers, where the conversation begins here; None for the same key.
        far_certificate: By which certificate the sender has proven itself, as its fingerprint; None for none.
        of: Whether the initiator sends, from which service, and to which: for other rows they are no keys. None for any.
    """

    far_session_key: bytes = field(repr=False)
    session_key: bytes | None = field(default=None, repr=False)
    far_certificate: bytes | None = None
    valid_for: tuple[bool, str, str] | None = None


SessionKeys: TypeAlias = Mapping[bytes, bytes | ExchangedKeys]
"""What came with a batch, by conversation id; where it is bytes alone, they are the one key of both directions."""


class MessageRange(NamedTuple):
    """Messages of one transmission queue that are to be sent."""

    key: Key
    """The endpoint that sends them."""
    first: int
    """The first number."""
    last: int
    """The last number."""
    max_messages: int
    """How many are wanted."""
    max_bytes: int
    """After how many bytes of bodies the rest may stay where it is; at least one message is given."""
    max_body_bytes: int = 2**63 - 1
    """The longest body that is read. A longer message is given without one, and none after it."""


class StoredFragmentInfo(NamedTuple):
    """A fragment that is kept until its turn comes (P14)."""

    key: Key
    """The endpoint that receives it."""
    position: tuple[int, int]
    """Its message and its own number."""
    fragment_count: int
    """How many its message has."""
    message_digest: bytes | None
    """The MD5 of the whole."""
    size: int
    """How many bytes it has."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a message cannot be taken (B11).

    Attributes:
        code: Service Broker's number, negative.
        description: What it means.
        is_told: Whether its sender is told, which ends the conversation; else nothing is answered, so that it is sent again.
    """

    code: int
    description: str
    notifies_sender: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChanges:
    """What a batch of arrivals changes. All of it belongs into one transaction; what is acknowledged waits for its commit (P16).

    Attributes:
        at: The moment of the arrival.
        created: Endpoints that the first messages of conversations make here.
        bound: Endpoints whose far side has answered for the first time, with its broker id and its peer (R8, P25).
        messages: Messages that enter their queues now, in order (`MESSAGES`); what the endpoint's state does not take is dropped.
        runs: What the first of these messages are, run behind run; the others are of other endpoints.
        stored: Fragments to be kept until their turn comes (`STORED`, P14).
        received: The new `receive_sequence` of endpoints; stored fragments of smaller numbers have served.
        dropped: Stored fragments of messages whose whole does not match (P23): endpoint and number.
        acknowledged: Up to which number the far side has the messages of an endpoint, which so leave its transmission queue.
        errors: Errors of the far broker, by endpoint: the endpoint goes to ER, its messages leave the transmission queue.
        refused: Endpoints of which a message cannot be taken, and why: they go to ER, with this in their own queue (B11).
        forgotten: Endpoints whose far sides have lost messages that they had acknowledged: both ends go to ER (B28).
    """

    at: int
    created: tuple[DialogEndpoint, ...]
    bound: tuple[DialogEndpoint, ...]
    messages: pa.Table
    stored: pa.Table
    received: Mapping[Key, int]
    dropped: tuple[tuple[Key, int], ...]
    acknowledged: Mapping[Key, int]
    errors: Mapping[Key, bytes]
    refusals: Mapping[Key, Refusal] = field(default_factory=dict)
    lost_by_peer: tuple[Key, ...] = ()
    runs: tuple[MessageRun, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be written, so that no transaction is needed before it is confirmed."""
        made = (self.created, self.bound, self.received, self.dropped, self.acknowledged)
        return (
            not any((*made, self.errors, self.refusals, self.lost_by_peer))
            and self.messages.num_rows == self.stored.num_rows == 0
        )


class DialogStorage(Protocol):
    """What the machine reads. It writes nothing: its owner puts `Effects` into the store."""

    def endpoints(self, keys: Sequence[Key]) -> Sequence[DialogEndpoint | None]:
        """The endpoints, None where there is none. One that was closed lately is still given, so that replays are told."""

    def set_fragment_bytes(self, max_fragment_bytes: int) -> Mapping[Key, int]:
        """Notes, durably, with how long fragments messages are cut from now on; asked once, by each machine that begins.

        Args:
            max_fragment_bytes: How long they are.

        Returns:
            The endpoints that go on with another length: they had messages in their transmission queues when it was that, and their far
            sides may keep fragments of these, which others would contradict.
        """

    def outgoing(self, wanted: Sequence[MessageRange]) -> pa.Table:
        """Committed messages of transmission queues (`MESSAGES`), by endpoint and number; what is not there is left out.

        Where there is nothing, the error with which the application has ended the dialog is given, if any: it has dropped what was
        before that (B13).
        """

    def ending_errors(self, keys: Sequence[Key]) -> Mapping[Key, int]:
        """The number of the error with which applications have ended dialogs, as far as it is in the transmission queue still.

        They have dropped what was before that (B13).
        """

    def read_body_slices(self, key: Key, sequence: int, spans: Sequence[tuple[int, int]]) -> Sequence[bytes] | None:
        """Parts of the body of a committed message of a transmission queue, without the rest of it being read.

        Args:
            key: The endpoint that sends it.
            sequence: Its number.
            spans: From which byte to before which; what is beyond the end is left out.

        Returns:
            The bytes of each part; None where the message is not there.
        """

    def list_stored(self, keys: Sequence[Key]) -> Iterable[StoredFragmentInfo]:
        """Which fragments are kept for endpoints, without their bodies being read, in any order."""

    def read_stored(self, key: Key, first: tuple[int, int], end: int, *, most_bytes: int) -> pa.Table:
        """Fragments that are kept for an endpoint (`STORED`), in order. For one that is in ER or CD none need be kept.

        Args:
            key: The endpoint that receives.
            first: From which message and fragment on.
            end: Before which message.
            most_bytes: After how many bytes of bodies the rest may stay where it is.

        Returns:
            The fragments; none where there are no more.
        """

    def admit(self, endpoints: Sequence[DialogEndpoint]) -> Sequence[DialogEndpoint | Refusal]:
        """The endpoints of new conversations with what is settled here (broker id, priority), or why a service does not take one."""

    def validate(self, messages: pa.Table, contracts: Sequence[str]) -> Mapping[int, Refusal]:
        """Which of the messages (`MESSAGES`), each with its conversation's contract, cannot be taken, by row: type, direction, validation (B11)."""

    def save_transmissions(self, objects: Mapping[Key, bytes]) -> None:
        """Writes transmission objects to the work table (P32), over what is there; it has to be emptied when the instance starts."""

    def load_transmissions(self, keys: Sequence[Key]) -> Mapping[Key, bytes]:
        """Reads transmission objects from the work table, where they stay."""
