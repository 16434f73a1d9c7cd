"""Digests, fragmentation, and reassembly of fragments into complete, verified, ordered messages."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias, overload

import pyarrow as pa

from ssbroker import _core
from ssbroker._arguments import boolean, guid_bytes, whole_number
from ssbroker._arrow import ArrowArrayExportable, ArrowStreamExportable, as_column, input_batches
from ssbroker.exceptions import InvalidGuidError, MalformedDataError, OptionError, SchemaError


@dataclass(frozen=True)
class Reassembly:
    """What came of fragments.

    Attributes:
        messages: The messages that are whole and whose turn it is (`schemas.MESSAGES`), then the further columns.
        rejected: The fragments that were refused, and why (`schemas.REJECTED`).
        acknowledgements: What the sender of each direction is told (`schemas.ACKNOWLEDGEMENTS`).

    Examples:
        >>> import pyarrow as pa
        >>> from ssbroker import reassemble
        >>> fragments = {"conversation_id": [bytes(16)] * 2, "is_initiator": [True] * 2, "message_sequence_number": [0] * 2,
        ...              "fragment_number": [0] * 2, "fragment_count": [1] * 2, "message_body": [b"Hello"] * 2}
        >>> result = reassemble(pa.table(fragments))
        >>> result.messages["message_body"].to_pylist(), result.rejected["reason"].to_pylist()
        ([b'Hello'], ['duplicate'])
        >>> result.acknowledgements["acked_sequence_number"].to_pylist(), result.pending.num_rows
        ([0], 0)
    """

    messages: pa.Table
    rejected: pa.Table
    acknowledgements: pa.Table
    _ask: Callable[[], pa.Table] = field(repr=False, compare=False)

    @cached_property
    def pending(self) -> pa.Table:
        """The messages that are incomplete or wait for others (`schemas.PENDING`), as of the first time that this is asked."""
        return self._ask()

    def __reduce__(self) -> tuple[Callable[..., Reassembly], tuple[Any, ...]]:
        return settled, (self.messages, self.rejected, self.acknowledgements, self.pending)


def settled(messages: pa.Table, rejected: pa.Table, acknowledgements: pa.Table, pending: pa.Table) -> Reassembly:
    """A result that holds what was pending, and no reassembler that could be asked later.

    Examples:
        >>> from ssbroker import schemas
        >>> empty = [schema.empty_table() for schema in (schemas.MESSAGES, schemas.REJECTED, schemas.ACKNOWLEDGEMENTS)]
        >>> settled(*empty, schemas.PENDING.empty_table()).pending.num_rows
        0
    """
    return Reassembly(messages, rejected, acknowledgements, lambda: pending)


# One mapping for each kind of key: type checkers do not take a dict of one for a mapping of all.
SessionKeys: TypeAlias = (
    str
    | Mapping[uuid.UUID, bytes]
    | Mapping[str, bytes]
    | Mapping[bytes, bytes]
    | Mapping[uuid.UUID | str | bytes, bytes]
)
"""The name of a binary column with the key of each row (null is none), or the keys by conversation id; of 16, 24 or 32 bytes."""

NAME = "session_keys"


def normalize_session_keys(session_keys: object) -> str | dict[bytes, bytes] | _core.SessionKeys | None:
    """Session keys in one form, which pickles: the name of the column, or keys by the 16 bytes of the id.

    Args:
        session_keys: What the user gave; what is ready for the native module stays so.

    Returns:
        The same, with every id as bytes.

    Raises:
        OptionError: It is neither, an id is no GUID or occurs twice, or a key is no bytes.

    Examples:
        >>> normalize_session_keys({"00000000-0000-0000-0000-000000000001": bytes(16)}) == {(1).to_bytes(16, "big"): bytes(16)}
        True
    """
    if session_keys is None or isinstance(session_keys, str | _core.SessionKeys):
        return session_keys
    if not isinstance(session_keys, Mapping):
        got = type(session_keys).__qualname__
        raise OptionError(f"{NAME}: expected the name of a column or a mapping by conversation id; got {got}")
    keys: dict[bytes, bytes] = {}
    for conversation, key in session_keys.items():
        try:
            id_bytes = guid_bytes(conversation, name=NAME)
        except InvalidGuidError as error:
            raise OptionError(str(error)) from error
        if not isinstance(key, bytes):
            raise OptionError(
                f"{NAME}: the key of {uuid.UUID(bytes=id_bytes)} is no bytes but {type(key).__qualname__}"
            )
        if keys.setdefault(id_bytes, key) != key:
            raise OptionError(f"{NAME}: {uuid.UUID(bytes=id_bytes)} has two keys")
    return keys


def native_session_keys(session_keys: object) -> str | _core.SessionKeys | None:
    """Session keys as the native module takes them.

    Args:
        session_keys: What the user gave, or what is ready.

    Returns:
        The name of the column, or the keys made ready.

    Raises:
        OptionError: It is neither, or a key is not 16, 24 or 32 bytes long.

    Examples:
        >>> native_session_keys("session_key")
        'session_key'
    """
    keys = normalize_session_keys(session_keys)
    return _core.SessionKeys(list(keys.items())) if isinstance(keys, dict) else keys


BYTES_MAX: Final = 2**31 - 1
"""The most that one Arrow cell can hold, and so the largest fragment and message."""


@overload
def md5(values: pa.ChunkedArray[Any] | ArrowStreamExportable) -> pa.ChunkedArray[Any]: ...


@overload
def md5(values: pa.Array[Any] | ArrowArrayExportable) -> pa.FixedSizeBinaryArray: ...


def md5(values: object) -> pa.FixedSizeBinaryArray | pa.ChunkedArray[Any]:
    """The MD5 digest of every value of a column of bytes or text, many at a time in the vectors of the processor.

    MD5 finds accidents, not attackers.

    Args:
        values: An Array, a ChunkedArray, or any Arrow object of one column, of any binary or string type.

    Returns:
        A digest of 16 bytes for each value, null for null; in chunks where the values came in chunks.

    Raises:
        SchemaError: It is no Arrow object, or holds neither bytes nor text.
        MalformedDataError: The data contradict their own layout.

    Examples:
        >>> import pyarrow as pa
        >>> [digest and digest.hex() for digest in md5(pa.array([b"abc", None])).to_pylist()]
        ['900150983cd24fb0d6963f7d28e17f72', None]
    """
    column = as_column(values, name="values")
    if isinstance(column, pa.Array):
        return _core.md5(column, 0)
    digests: list[pa.FixedSizeBinaryArray] = []
    first_row = 0
    for chunk in column.chunks:
        digests.append(_core.md5(chunk, first_row))
        first_row += len(chunk)
    if not digests:
        # Without a chunk there is still a type, and it is checked like any other.
        digests.append(_core.md5(pa.nulls(0, column.type), 0))
    return pa.chunked_array(digests)


def fragment(
    messages: ArrowArrayExportable | ArrowStreamExportable,
    *,
    max_fragment_bytes: int,
    session_keys: SessionKeys | None = None,
) -> pa.Table:
    """Cuts messages into fragments and signs both (P13, P21, P23).

    Every body is cut into parts of `max_fragment_bytes`, of which the last may be shorter; an empty body is one empty fragment.
    Messages keep their order, and fragments theirs. Bodies of the types `binary` and `large_binary` are not copied: the fragments lie
    where the messages do.

    Args:
        messages: Messages (`schemas.MESSAGES`, the signature left out or not) as a batch, a table or a stream. Further columns are
            repeated for each fragment.
        max_fragment_bytes: The most bytes of a part.
        session_keys: Keys that encrypt the signatures, by conversation id, or the column that has them (and is left out of the result).

    Returns:
        The fragments (`schemas.FRAGMENTS`), then the further columns.

    Raises:
        OptionError: `max_fragment_bytes` or `session_keys` is not what it can be.
        SchemaError: It is no Arrow object, or a column is missing or has a type that cannot be read.
        InputError: A value is not what was expected; column, row and value are named.

    Examples:
        >>> import pyarrow as pa
        >>> messages = pa.table({"conversation_id": [bytes(16)], "is_initiator": [True], "message_sequence_number": [0],
        ...                      "message_body": [b"Hello, world"]})
        >>> fragment(messages, max_fragment_bytes=5).select(["fragment_number", "fragment_count", "message_body"]).to_pydict()
        {'fragment_number': [0, 1, 2], 'fragment_count': [3, 3, 3], 'message_body': [b'Hello', b', wor', b'ld']}
    """
    most = whole_number(max_fragment_bytes, name="max_fragment_bytes", minimum=1, maximum=BYTES_MAX)
    keys = native_session_keys(session_keys)
    fragments: list[pa.RecordBatch] = []
    first_row = 0
    for part in input_batches(messages, name="messages"):
        fragments.extend(_core.fragment(part, first_row, most, keys))
        first_row += len(part)
    return pa.Table.from_batches(fragments)


_PICKLE_FORMAT: Final = 1
_MOST: Final = 2**63 - 1
_INPUT: Final = "fragments"


class Reassembler:
    """Puts fragments together, push by push, in any order and any cut, within limits; the rest is remembered.

    Whatever a limit refuses is rejected as `limit_exceeded`, before memory is taken for it, and may come again. None is no limit. It
    may be used from several threads: one after the other gets its turn. It pickles, as its checkpoint and its session keys.

    Args:
        max_pending_bytes: What may be charged for all that is remembered: bodies, and a little for each fragment, message and direction.
            Directions of which no message has been whole yet may take half of it.
        max_pending_messages: How many messages may be incomplete or wait for others; half of it again.
        max_message_bytes: The largest message, at most 2**31 - 1.
        max_fragments_per_message: The most fragments of a message.
        max_sequence_distance: How far ahead of the first message that is missing a fragment may be.
        in_order: Whether a message waits for those before it in its direction; else it is released when it is whole.
        session_keys: Keys that encrypt the signatures, by conversation id, or the column that has them (and is left out of the messages).

    Raises:
        OptionError: An option is not what it can be.

    Examples:
        >>> import pyarrow as pa
        >>> from ssbroker import Reassembler, fragment
        >>> messages = pa.table({"conversation_id": [bytes(16)], "is_initiator": [True], "message_sequence_number": [0],
        ...                      "message_body": [b"Hello, world"]})
        >>> fragments = fragment(messages, max_fragment_bytes=8)
        >>> reassembler = Reassembler()
        >>> reassembler.push(fragments.slice(1)).messages.num_rows, reassembler.pending_messages
        (0, 1)
        >>> reassembler.push(fragments.slice(0, 1)).messages["message_body"].to_pylist()
        [b'Hello, world']
    """

    __slots__ = ("_keys", "_native", "_session_keys")

    def __init__(
        self,
        *,
        max_pending_bytes: int | None = 256 << 20,
        max_pending_messages: int | None = 1 << 20,
        max_message_bytes: int = 1 << 30,
        max_fragments_per_message: int | None = 1 << 20,
        max_sequence_distance: int | None = 1 << 20,
        in_order: bool = True,
        session_keys: SessionKeys | None = None,
    ) -> None:
        native = _core.Reassembler(
            max_pending_bytes=_limit("max_pending_bytes", max_pending_bytes, least=0, most=_MOST),
            max_pending_messages=_limit("max_pending_messages", max_pending_messages, least=0, most=_MOST),
            max_message_bytes=whole_number(max_message_bytes, name="max_message_bytes", minimum=1, maximum=BYTES_MAX),
            max_fragments_per_message=_limit(
                "max_fragments_per_message", max_fragments_per_message, least=1, most=2**31 - 1
            ),
            max_sequence_distance=_limit("max_sequence_distance", max_sequence_distance, least=1, most=_MOST),
            in_order=boolean(in_order, name="in_order"),
        )
        self._begin(native, session_keys)

    def _begin(self, native: _core.Reassembler, keys: SessionKeys | None) -> None:
        self._native = native
        self._session_keys = normalize_session_keys(keys)
        self._keys = native_session_keys(self._session_keys)

    def push(self, fragments: ArrowArrayExportable | ArrowStreamExportable) -> Reassembly:
        """Takes fragments in.

        All of them count as one push: if anything is wrong with the input, nothing has changed. So a stream is read to its end first;
        what is larger than memory is pushed batch by batch.

        Args:
            fragments: Fragments (`schemas.FRAGMENTS`, the signatures left out or not) as a batch, a table or a stream. Further columns
                are those of the first push; a message gets those of its fragment number 0.

        Returns:
            The messages that are whole now and whose turn it is, what was rejected, and what the senders are told.

        Raises:
            SchemaError: It is no Arrow object, a column is missing or has a type that cannot be read, or the further columns differ from
                those of the first push.
            InputError: A value is not what was expected; column, row and value are named.

        Examples:
            >>> import pyarrow as pa
            >>> from ssbroker import Reassembler
            >>> early = pa.table({"conversation_id": [bytes(16)], "is_initiator": [True], "message_sequence_number": [1],
            ...                   "fragment_number": [0], "fragment_count": [1], "message_body": [b"second"]})
            >>> reassembler = Reassembler()
            >>> reassembler.push(early).messages.num_rows
            0
            >>> reassembler.push(early).rejected["reason"].to_pylist()
            ['duplicate']
        """
        messages, rejected, acknowledgements = map(
            pa.Table.from_batches, self._native.push(list(input_batches(fragments, name=_INPUT)), self._keys)
        )
        return Reassembly(messages, rejected, acknowledgements, self.pending)

    def pending(self) -> pa.Table:
        """The messages that are incomplete, or whole and wait for others (P14).

        Returns:
            One row for each (`schemas.PENDING`), by conversation id, direction and sequence number.

        Examples:
            >>> from ssbroker import Reassembler
            >>> Reassembler().pending().num_rows
            0
        """
        return pa.Table.from_batches(self._native.pending())

    @property
    def pending_bytes(self) -> int:
        """What `max_pending_bytes` limits."""
        return self._native.pending_bytes

    @property
    def pending_messages(self) -> int:
        """What `max_pending_messages` limits."""
        return self._native.pending_messages

    def forget(
        self, conversation_id: uuid.UUID | str | bytes, *, is_initiator: bool, message_sequence_number: int
    ) -> bool:
        """Drops a message that is incomplete or waits for others, so that its fragments may come again.

        It is meant for one whose first fragment came with a damaged `message_signature`: all that come after it contradict it.

        Args:
            conversation_id: The message's conversation.
            is_initiator: Its direction: whether its sender is the initiator.
            message_sequence_number: Its number there.

        Returns:
            Whether there was such a message.

        Raises:
            InvalidGuidError: `conversation_id` is no GUID.
            OptionError: `is_initiator` is no boolean, or `message_sequence_number` no number that a message can have.

        Examples:
            >>> from ssbroker import Reassembler
            >>> Reassembler().forget(bytes(16), is_initiator=True, message_sequence_number=0)
            False
        """
        conversation = guid_bytes(conversation_id, name="conversation_id")
        direction = boolean(is_initiator, name="is_initiator")
        number = whole_number(message_sequence_number, name="message_sequence_number", minimum=0, maximum=_MOST)
        return self._native.forget(conversation, direction, number)

    def checkpoint(self) -> bytes:
        """All that is remembered, to go on from later, in another process or on another machine.

        Returns:
            The limits and all that is pending, about as large as that, and a digest; the session keys are no part of it.

        Examples:
            >>> from ssbroker import Reassembler
            >>> Reassembler.restore(Reassembler().checkpoint()).pending_messages
            0
        """
        return self._native.checkpoint()

    @classmethod
    def restore(cls, state: bytes, *, session_keys: SessionKeys | None = None) -> Reassembler:
        """Goes on from a checkpoint, as if it had never stopped.

        Args:
            state: What `checkpoint` gave; limits and `in_order` are those in it.
            session_keys: As for a new reassembler.

        Returns:
            The reassembler.

        Raises:
            MalformedDataError: The state is cut off, altered, of another version, or contradicts itself.
            SchemaError: The state is no bytes.
            OptionError: `session_keys` is not what it can be.

        Examples:
            >>> from ssbroker import Reassembler
            >>> Reassembler.restore(b"")
            Traceback (most recent call last):
            ssbroker.exceptions.MalformedDataError: state: this is no checkpoint of a reassembler: it does not begin as one
        """
        given: object = state
        if not isinstance(given, bytes):
            actual = type(given).__name__
            raise SchemaError(f"state: expected bytes, got {actual}", expected="bytes", actual=actual)
        self = cls.__new__(cls)
        self._begin(_core.Reassembler.restore(given), session_keys)
        return self

    def __repr__(self) -> str:
        return f"Reassembler(pending_messages={self.pending_messages}, pending_bytes={self.pending_bytes})"

    def __reduce__(self) -> tuple[Callable[..., Reassembler], tuple[Any, ...]]:
        return _restore, (_PICKLE_FORMAT, self.checkpoint(), self._session_keys)


def reassemble(
    fragments: ArrowArrayExportable | ArrowStreamExportable,
    *,
    in_order: bool = True,
    session_keys: SessionKeys | None = None,
    max_message_bytes: int = 1 << 30,
) -> Reassembly:
    """Puts the fragments of a table together, with no other limits: they are in memory already.

    Args:
        fragments: Fragments (`schemas.FRAGMENTS`, the signatures left out or not) as a batch, a table or a stream, in any order.
        in_order: Whether a message waits for those before it in its direction.
        session_keys: Keys that encrypt the signatures, by conversation id, or the column that has them.
        max_message_bytes: The largest message, at most 2**31 - 1.

    Returns:
        The messages, the fragments that were rejected, the acknowledgements, and what is incomplete.

    Raises:
        OptionError: An option is not what it can be.
        SchemaError: It is no Arrow object, or a column is missing or has a type that cannot be read.
        InputError: A value is not what was expected; column, row and value are named.

    Examples:
        >>> import pyarrow as pa
        >>> import ssbroker
        >>> messages = pa.table({"conversation_id": [bytes(16)], "is_initiator": [True], "message_sequence_number": [0],
        ...                      "message_body": [b"Hello, world"]})
        >>> fragments = ssbroker.fragment(messages, max_fragment_bytes=5)
        >>> ssbroker.reassemble(fragments.take([2, 0, 1])).messages["message_body"].to_pylist()
        [b'Hello, world']
        >>> ssbroker.reassemble(fragments.slice(1)).pending["first_missing_fragment"].to_pylist()
        [0]
    """
    reassembler = Reassembler(
        max_pending_bytes=None,
        max_pending_messages=None,
        max_message_bytes=max_message_bytes,
        max_fragments_per_message=None,
        max_sequence_distance=None,
        in_order=in_order,
        session_keys=session_keys,
    )
    result = reassembler.push(fragments)
    return settled(result.messages, result.rejected, result.acknowledgements, result.pending)


def _limit(name: str, value: int | None, *, least: int, most: int) -> int | None:
    return None if value is None else whole_number(value, name=name, minimum=least, maximum=most)


def _restore(pickle_format: int, *state: Any) -> Reassembler:
    if pickle_format != _PICKLE_FORMAT:
        raise MalformedDataError(
            f"the reassembler was pickled by another version of ssbroker: its format is {pickle_format!r}, "
            f"this version reads {_PICKLE_FORMAT}",
            value=repr(pickle_format),
            expected=str(_PICKLE_FORMAT),
        )
    checkpoint, keys = state
    return Reassembler.restore(checkpoint, session_keys=keys)
