"""MD5 digests, fragmentation of messages, and reassembly of fragments into verified, ordered messages."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias, get_args, overload

import pyarrow as pa

from ssbroker import _core, schemas
from ssbroker import _notebook as notebook
from ssbroker._arguments import OnErrors, boolean, check_option, guid_bytes, integer_argument
from ssbroker._arrow import (
    ArrowArrayExportable,
    ArrowStreamExportable,
    Rows,
    as_column,
    input_batches,
    map_chunks,
    missing_column_error,
)
from ssbroker._text import quantity
from ssbroker.exceptions import InvalidGuidError, MalformedDataError, OptionError, SchemaError

_NONE_INVALID: Final = schemas.INVALID_FRAGMENTS.empty_table()


@dataclass(frozen=True)
class Reassembly:
    """Result of reassembling fragments.

    Attributes:
        messages: The complete messages that are released: the columns of `schemas.MESSAGES`, followed by the extra columns of the fragments.
        rejected: Rejected fragments with the reason (`schemas.REJECTED`).
        acknowledgements: Acknowledgements for the sender of each direction (`schemas.ACKNOWLEDGEMENTS`).
        invalid: The rows with an invalid value, which were ignored (`schemas.INVALID_FRAGMENTS`); empty without `errors="reject"`.

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
    _read_pending: Callable[[], pa.Table] = field(repr=False, compare=False)
    invalid: pa.Table = field(default_factory=lambda: _NONE_INVALID)

    @cached_property
    def pending(self) -> pa.Table:
        """Messages that are incomplete or wait for earlier messages (`schemas.PENDING`), as of the first access to this attribute."""
        return self._read_pending()

    def __repr__(self) -> str:
        invalid = f", invalid={self.invalid.num_rows}" if self.invalid.num_rows else ""
        return (
            f"Reassembly(messages={self.messages.num_rows}, rejected={self.rejected.num_rows}, "
            f"acknowledgements={self.acknowledgements.num_rows}, pending={self._pending_now().num_rows}{invalid})"
        )

    def _pending_now(self) -> pa.Table:
        """Returns the pending messages without caching them: displaying a result must not fix the value of `pending`."""
        kept: pa.Table | None = self.__dict__.get("pending")
        return self._read_pending() if kept is None else kept

    def _repr_html_(self) -> str:
        reasons = notebook.grid(("reason", "fragments"), notebook.counts(self.rejected["reason"]))
        title = (
            f"Reassembly: {quantity(self.messages.num_rows, 'message')}, {quantity(self.rejected.num_rows, 'rejected fragment')}, "
            f"{quantity(self._pending_now().num_rows, 'pending message')}"
        )
        invalid = []
        if self.invalid.num_rows:
            title += f", {quantity(self.invalid.num_rows, 'invalid row')}"
            invalid.append(notebook.collapsible("Invalid", notebook.table(self.invalid)))
        return notebook.section(
            title,
            notebook.collapsible("Messages", notebook.table(self.messages), is_open=True),
            notebook.collapsible("Rejected", reasons),
            notebook.collapsible("Acknowledgements", notebook.table(self.acknowledgements)),
            *invalid,
        )

    def __reduce__(self) -> tuple[Callable[..., Reassembly], tuple[Any, ...]]:
        return settled, (self.messages, self.rejected, self.acknowledgements, self.pending, self.invalid)


def settled(
    messages: pa.Table,
    rejected: pa.Table,
    acknowledgements: pa.Table,
    pending: pa.Table,
    invalid: pa.Table = _NONE_INVALID,
) -> Reassembly:
    """Returns a result that contains its pending messages and does not refer to a reassembler.

    Pickles contain the name of this function; pickles of version 0.1 lack `invalid`.
    """
    return Reassembly(messages, rejected, acknowledgements, lambda: pending, invalid)


# `Mapping` is invariant in its key type, so each type of id needs its own mapping.
SessionKeys: TypeAlias = (
    str
    | Mapping[uuid.UUID, bytes]
    | Mapping[str, bytes]
    | Mapping[bytes, bytes]
    | Mapping[uuid.UUID | str | bytes, bytes]
)
"""Session keys of 16, 24 or 32 bytes: a mapping from conversation id to key, or the name of a binary column with the key of each row (null for no key)."""

_OPTION: Final = "session_keys"


def normalize_session_keys(session_keys: object) -> str | dict[bytes, bytes] | _core.SessionKeys | None:
    """Returns session keys in a form that can be pickled: a column name, or keys by the 16 bytes of the conversation id.

    Returns None for None. Keys that are already in the form of the native module are returned unchanged.
    """
    if session_keys is None or isinstance(session_keys, str | _core.SessionKeys):
        return session_keys
    if not isinstance(session_keys, Mapping):
        got = type(session_keys).__qualname__
        raise OptionError(f"{_OPTION}: expected a column name or a mapping from conversation id to key, got {got}")
    keys: dict[bytes, bytes] = {}
    for conversation, key in session_keys.items():
        try:
            id_bytes = guid_bytes(conversation, name=_OPTION)
        except InvalidGuidError as error:
            raise OptionError(str(error)) from error
        if not isinstance(key, bytes):
            raise OptionError(
                f"{_OPTION}: the key of {uuid.UUID(bytes=id_bytes)} has the type {type(key).__qualname__}; expected bytes"
            )
        if keys.setdefault(id_bytes, key) != key:
            raise OptionError(
                f"{_OPTION}: the conversation id {uuid.UUID(bytes=id_bytes)} occurs twice, with different keys; specify each id once"
            )
    return keys


def native_session_keys(session_keys: object) -> str | _core.SessionKeys | None:
    """Returns session keys in the form of the native module, or the name of the column that contains them; None for None."""
    keys = normalize_session_keys(session_keys)
    return _core.SessionKeys(list(keys.items())) if isinstance(keys, dict) else keys


_BODY_BYTES_MAX: Final = 2**31 - 1
"""The maximum size of an Arrow `binary` value, and so of a fragment or message."""


@overload
def md5(values: pa.ChunkedArray[Any] | ArrowStreamExportable) -> pa.ChunkedArray[Any]: ...


@overload
def md5(values: pa.Array[Any] | ArrowArrayExportable) -> pa.FixedSizeBinaryArray: ...


def md5(values: object) -> pa.FixedSizeBinaryArray | pa.ChunkedArray[Any]:
    """Returns the MD5 digest of every value of a binary or string column.

    MD5 detects accidental damage; it does not protect against tampering.

    Args:
        values: Values of any binary or string type: a pyarrow `Array` or `ChunkedArray`, a Polars Series, or any Arrow object, DataFrame or DuckDB relation with a single column.

    Returns:
        A `FixedSizeBinaryArray` of 16-byte digests; the digest of a null value is null. If the values are chunked, so
        are the digests.

    Raises:
        SchemaError: `values` has a different type, such as a list, or its values are neither binary nor text.
        MalformedDataError: The Arrow data are corrupt.

    Examples:
        >>> from ssbroker import md5
        >>> import pyarrow as pa
        >>> [digest and digest.hex() for digest in md5(pa.array([b"abc", None])).to_pylist()]
        ['900150983cd24fb0d6963f7d28e17f72', None]
    """
    column = as_column(values, name="values")
    if isinstance(column, pa.Array):
        return _core.md5(column, 0)
    return map_chunks(column, _core.md5)


def fragment(
    messages: Rows,
    *,
    max_fragment_bytes: int,
    session_keys: SessionKeys | None = None,
) -> pa.Table:
    """Splits messages into fragments, and signs both messages and fragments.

    Each body is split into parts of `max_fragment_bytes`; the last part can be shorter. An empty body becomes one empty fragment.
    The order of messages and fragments is kept. Bodies of type `binary` and `large_binary` are not copied: the fragments share the
    buffers of the messages.

    Args:
        messages: Messages (`schemas.MESSAGES`, with or without the signature) as a record batch, table, stream, DataFrame or list of
            dicts. Extra columns are repeated for each fragment, except columns with a name in `schemas.FRAGMENTS`,
            which are replaced.
        max_fragment_bytes: Maximum body size of a fragment in bytes, from 1 to 2**31 - 1.
        session_keys: Keys that encrypt the signatures: a mapping from conversation id to key, or the name of the column with the keys,
            which is omitted from the result.

    Returns:
        The fragments: the columns of `schemas.FRAGMENTS`, followed by the extra columns.

    Raises:
        OptionError: `max_fragment_bytes` is out of range, or `session_keys` contains an invalid id or key.
        SchemaError: `messages` is neither an Arrow object nor a list of dicts, or a column is missing or has the wrong type.
        InputError: A value is null, an invalid id, out of range or too large, or a key has the wrong length; the error names column,
            row and value.

    Examples:
        >>> from ssbroker import fragment
        >>> import pyarrow as pa
        >>> messages = pa.table({"conversation_id": [bytes(16)], "is_initiator": [True], "message_sequence_number": [0],
        ...                      "message_body": [b"Hello, world"]})
        >>> fragment(messages, max_fragment_bytes=5).select(["fragment_number", "fragment_count", "message_body"]).to_pydict()
        {'fragment_number': [0, 1, 2], 'fragment_count': [3, 3, 3], 'message_body': [b'Hello', b', wor', b'ld']}
    """
    limit = integer_argument(max_fragment_bytes, name="max_fragment_bytes", minimum=1, maximum=_BODY_BYTES_MAX)
    keys = native_session_keys(session_keys)
    fragments: list[pa.RecordBatch] = []
    first_row = 0
    for part in input_batches(messages, name="messages"):
        try:
            fragments.extend(_core.fragment(part, first_row, limit, keys))
        except SchemaError as error:
            raise missing_column_error(error, part, expected=schemas.MESSAGES.names) from None
        first_row += len(part)
    return pa.Table.from_batches(fragments)


_PICKLE_FORMAT: Final = 1
_INT64_MAX: Final = 2**63 - 1
_INPUT: Final = "fragments"


class Reassembler:
    """Reassembles fragments into complete, verified messages.

    Fragments arrive in any number of pushes and in any order. The reassembler remembers incomplete messages between pushes, within
    limits. A fragment that would exceed a limit is rejected as `limit_exceeded` before any memory is allocated for it, and can be
    pushed again later. For every limit except `max_message_bytes`, None means unlimited.

    Several threads can use a reassembler; calls are serialized. It can be pickled: the pickle contains its checkpoint and its
    session keys.

    Args:
        max_pending_bytes: Maximum memory in bytes for all pending data: bodies, and a small overhead for each fragment,
            message and direction. Directions without any complete message so far can use at most half of it. The
            default, 256 MiB, is sufficient for endless streams, but too small for many complete files;
            `ssbroker.reassemble` has no such limit.
        max_pending_messages: Maximum number of messages that are incomplete or wait for earlier ones; directions
            without any complete message so far can account for at most half of this number.
        max_message_bytes: Maximum size of a message in bytes, at most 2**31 - 1.
        max_fragments_per_message: Maximum number of fragments of a message.
        max_sequence_distance: Maximum distance of a fragment's sequence number from the first missing message of its direction.
        in_order: Whether a message waits for earlier messages of its direction; if False, messages are released as they complete.
        session_keys: Keys that encrypt the signatures: a mapping from conversation id to key, or the name of the column with the keys,
            which is omitted from the messages.

    Raises:
        OptionError: An option has the wrong type, or is out of range.

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
            max_pending_bytes=_limit("max_pending_bytes", max_pending_bytes, minimum=0, maximum=_INT64_MAX),
            max_pending_messages=_limit("max_pending_messages", max_pending_messages, minimum=0, maximum=_INT64_MAX),
            max_message_bytes=integer_argument(
                max_message_bytes, name="max_message_bytes", minimum=1, maximum=_BODY_BYTES_MAX
            ),
            max_fragments_per_message=_limit(
                "max_fragments_per_message", max_fragments_per_message, minimum=1, maximum=2**31 - 1
            ),
            max_sequence_distance=_limit("max_sequence_distance", max_sequence_distance, minimum=1, maximum=_INT64_MAX),
            in_order=boolean(in_order, name="in_order"),
        )
        self._initialize(native, session_keys)

    def _initialize(self, native: _core.Reassembler, keys: SessionKeys | None) -> None:
        self._native = native
        self._session_keys = normalize_session_keys(keys)
        self._keys = native_session_keys(self._session_keys)

    def push(self, fragments: Rows, *, errors: OnErrors = "raise") -> Reassembly:
        """Adds fragments, and returns the messages that they complete.

        A push is atomic: if it raises an exception, nothing changes. A stream is therefore read to its end first; push input that
        is larger than memory in batches.

        Args:
            fragments: Fragments (`schemas.FRAGMENTS`, with or without the signatures) as a record batch, table, stream, DataFrame or list
                of dicts. Extra columns must be the same in every push; a message gets the values of its fragment 0.
            errors: What to do with a row that has a null, an invalid id, an integer out of range or a session key of the wrong length:
                `raise` an exception at the first one, or `reject` all such rows: ignore them, and list them in `invalid`.

        Returns:
            The messages that this push releases, the rejected fragments, the acknowledgements, and the invalid rows.

        Raises:
            SchemaError: `fragments` is neither an Arrow object nor a list of dicts, a column is missing or has the wrong type, or
                extra columns differ from those of the first push.
            InputError: A row has an invalid value, and `errors` is `raise`; the error names column, row and value.
            OptionError: `errors` is neither `raise` nor `reject`.

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
            >>> wrong = early.set_column(5, "message_body", pa.nulls(1, pa.binary()))
            >>> reassembler.push(wrong, errors="reject").invalid.to_pylist()
            [{'row': 0, 'column': 'message_body', 'value': None, 'reason': 'null'}]
        """
        check_option("errors", errors, get_args(OnErrors))
        batches = list(input_batches(fragments, name=_INPUT))
        try:
            *pushed, invalid = self._native.push(batches, self._keys, errors == "reject")
        except SchemaError as error:
            raise missing_column_error(error, batches[0], expected=schemas.FRAGMENTS.names) from None
        messages, rejected, acknowledgements = map(pa.Table.from_batches, pushed)
        invalid_rows = pa.Table.from_batches(invalid) if invalid else _NONE_INVALID
        return Reassembly(messages, rejected, acknowledgements, self.pending, invalid_rows)

    def pending(self) -> pa.Table:
        """Returns the messages that are incomplete, or complete and waiting for earlier messages.

        Returns:
            One row for each message (`schemas.PENDING`), ordered by conversation id, direction and sequence number.

        Examples:
            >>> import pyarrow as pa
            >>> from ssbroker import Reassembler
            >>> early = {"conversation_id": [bytes(16)], "is_initiator": [True], "message_sequence_number": [1],
            ...          "fragment_number": [0], "fragment_count": [1], "message_body": [b"second"]}
            >>> reassembler = Reassembler()
            >>> reassembler.push(pa.table(early)).messages.num_rows
            0
            >>> reassembler.pending().select(["message_sequence_number", "waits_for_sequence_number"]).to_pylist()
            [{'message_sequence_number': 1, 'waits_for_sequence_number': 0}]
        """
        return pa.Table.from_batches(self._native.pending())

    @property
    def pending_bytes(self) -> int:
        """Memory in bytes that counts towards `max_pending_bytes`."""
        return self._native.pending_bytes

    @property
    def pending_messages(self) -> int:
        """Number of messages that count towards `max_pending_messages`."""
        return self._native.pending_messages

    def forget(
        self, conversation_id: uuid.UUID | str | bytes, *, is_initiator: bool, message_sequence_number: int
    ) -> bool:
        """Discards an incomplete or waiting message, so that its fragments can be pushed again.

        Call this if the fragment of a message that arrived first had a damaged `message_signature`: all later fragments of the
        message are rejected, because their signature differs from the damaged one.

        With `in_order`, this does not unblock the direction: later messages, even complete ones, wait until the message arrives again.

        Args:
            conversation_id: Conversation of the message.
            is_initiator: Direction of the message: True if the initiator sent it.
            message_sequence_number: Sequence number of the message in its direction.

        Returns:
            Whether the reassembler contained such a message.

        Raises:
            InvalidGuidError: `conversation_id` is not a valid GUID.
            OptionError: `is_initiator` is not a boolean, or `message_sequence_number` is out of range.

        Examples:
            >>> import pyarrow as pa
            >>> from ssbroker import Reassembler
            >>> early = {"conversation_id": [bytes(16)], "is_initiator": [True], "message_sequence_number": [1],
            ...          "fragment_number": [0], "fragment_count": [1], "message_body": [b"second"]}
            >>> reassembler = Reassembler()
            >>> reassembler.push(pa.table(early)).messages.num_rows
            0
            >>> reassembler.forget(bytes(16), is_initiator=True, message_sequence_number=1), reassembler.pending_messages
            (True, 0)
        """
        conversation = guid_bytes(conversation_id, name="conversation_id")
        direction = boolean(is_initiator, name="is_initiator")
        number = integer_argument(
            message_sequence_number, name="message_sequence_number", minimum=0, maximum=_INT64_MAX
        )
        return self._native.forget(conversation, direction, number)

    def checkpoint(self) -> bytes:
        """Returns the state of the reassembler as bytes, from which `restore` continues in any process, even on another machine.

        Returns:
            The limits and the pending data, with a digest. The size is about that of the pending data. Session keys are not included.

        Examples:
            >>> import pyarrow as pa
            >>> from ssbroker import Reassembler
            >>> early = {"conversation_id": [bytes(16)], "is_initiator": [True], "message_sequence_number": [1],
            ...          "fragment_number": [0], "fragment_count": [1], "message_body": [b"second"]}
            >>> reassembler = Reassembler()
            >>> reassembler.push(pa.table(early)).messages.num_rows
            0
            >>> Reassembler.restore(reassembler.checkpoint()).pending_messages
            1
        """
        return self._native.checkpoint()

    @classmethod
    def restore(cls, state: bytes, *, session_keys: SessionKeys | None = None) -> Reassembler:
        """Creates a reassembler that continues from a checkpoint.

        Args:
            state: The result of `checkpoint`, which includes the limits and `in_order`.
            session_keys: As for a new reassembler.

        Returns:
            The reassembler.

        Raises:
            MalformedDataError: `state` is truncated, corrupt, or of an unsupported version.
            SchemaError: `state` is not `bytes`.
            OptionError: `session_keys` contains an invalid id or key.

        Examples:
            >>> import pyarrow as pa
            >>> from ssbroker import Reassembler
            >>> early = {"conversation_id": [bytes(16)], "is_initiator": [True], "message_sequence_number": [1],
            ...          "fragment_number": [0], "fragment_count": [1], "message_body": [b"second"]}
            >>> reassembler = Reassembler()
            >>> reassembler.push(pa.table(early)).messages.num_rows
            0
            >>> later = Reassembler.restore(reassembler.checkpoint())
            >>> first = pa.table({**early, "message_sequence_number": [0], "message_body": [b"first"]})
            >>> later.push(first).messages["message_body"].to_pylist()
            [b'first', b'second']
            >>> Reassembler.restore(b"")
            Traceback (most recent call last):
            ssbroker.exceptions.MalformedDataError: state: not a valid reassembler checkpoint (unknown format; expected what checkpoint() returned, or a file that --state wrote); restore it from a copy, or start without it
        """
        given: object = state
        if not isinstance(given, bytes):
            actual = type(given).__name__
            raise SchemaError(f"state: expected bytes, got {actual}", expected="bytes", actual=actual)
        self = cls.__new__(cls)
        self._initialize(_core.Reassembler.restore(given), session_keys)
        return self

    def __repr__(self) -> str:
        return f"Reassembler(pending_messages={self.pending_messages}, pending_bytes={self.pending_bytes})"

    def __reduce__(self) -> tuple[Callable[..., Reassembler], tuple[Any, ...]]:
        return _restore, (_PICKLE_FORMAT, self.checkpoint(), self._session_keys)


def reassemble(
    fragments: Rows,
    *,
    in_order: bool = True,
    session_keys: SessionKeys | None = None,
    max_message_bytes: int = 1 << 30,
    errors: OnErrors = "raise",
) -> Reassembly:
    """Reassembles the fragments of a table in one call.

    Only the message size is limited, because the fragments are already in memory.

    Each direction starts at sequence number 0: with `in_order`, messages wait for lower numbers that are missing from
    this table, even if an earlier call has released those messages. To continue after earlier calls, use a
    `Reassembler`, or `in_order=False`.

    Args:
        fragments: Fragments (`schemas.FRAGMENTS`, with or without the signatures) as a record batch, table, stream, DataFrame or list of
            dicts, in any order.
        in_order: Whether a message waits for earlier messages of its direction.
        session_keys: Keys that encrypt the signatures: a mapping from conversation id to key, or the name of the column with the keys.
        max_message_bytes: Maximum size of a message in bytes, at most 2**31 - 1.
        errors: What to do with a row that has a null, an invalid id, an integer out of range or a session key of the wrong length:
            `raise` an exception at the first one, or `reject` all such rows: ignore them, and list them in `invalid`. The message of
            such a row stays incomplete, unless the fragment also occurs in a valid row.

    Returns:
        The messages, the rejected fragments, the acknowledgements, the pending messages, and the invalid rows.

    Raises:
        OptionError: An option has the wrong type, or is out of range.
        SchemaError: `fragments` is neither an Arrow object nor a list of dicts, is a Spark DataFrame (see `ssbroker.spark.reassemble`), or a
            column is missing or has the wrong type.
        InputError: A row has an invalid value, and `errors` is `raise`; the error names column, row and value.

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
        >>> rows = fragments.to_pylist()
        >>> rows[1]["fragment_number"] = None
        >>> result = ssbroker.reassemble(rows, errors="reject")
        >>> result.invalid.to_pylist(), result.pending["first_missing_fragment"].to_pylist()
        ([{'row': 1, 'column': 'fragment_number', 'value': None, 'reason': 'null'}], [1])
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
    result = reassembler.push(fragments, errors=errors)
    return settled(result.messages, result.rejected, result.acknowledgements, result.pending, result.invalid)


def _limit(name: str, value: int | None, *, minimum: int, maximum: int) -> int | None:
    return None if value is None else integer_argument(value, name=name, minimum=minimum, maximum=maximum)


def _restore(pickle_format: int, *state: Any) -> Reassembler:
    if pickle_format != _PICKLE_FORMAT:
        raise MalformedDataError(
            f"the reassembler was pickled by an incompatible version of ssbroker: its format is {pickle_format!r}, "
            f"but this version reads format {_PICKLE_FORMAT}; create the reassembler again, or use the version that pickled it",
            value=repr(pickle_format),
            expected=str(_PICKLE_FORMAT),
        )
    checkpoint, keys = state
    return Reassembler.restore(checkpoint, session_keys=keys)
