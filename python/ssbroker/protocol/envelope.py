"""The envelope: the columns of a fragment on the network, its header bytes, and acknowledgements."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import _core, schemas


class Protection(IntEnum):
    """How a fragment is protected."""

    PLAIN = 0
    """Digests only: they find accidents."""
    SIGNED = 1
    """MD5 signatures encrypted with the session key (`integrity="compat"`): the body is in clear."""
    SEALED = 2
    """Header signed and part sealed with keys of the session key."""


def _field(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field[Any]:
    return pa.field(name, kind, nullable=nullable)


HEADER: Final = (
    _field("is_sequenced", pa.bool_()),
    _field("from_service_name", pa.string()),
    _field("from_broker_instance", schemas.GUID),
    _field("to_service_name", pa.string()),
    _field("to_broker_instance", schemas.GUID, nullable=True),
    _field("service_contract_name", pa.string()),
    _field("message_type_name", pa.string(), nullable=True),
    _field("message_id", schemas.GUID, nullable=True),
    _field("priority", pa.int8()),
    _field("is_end_of_dialog", pa.bool_()),
    _field("is_conversation_error", pa.bool_()),
    _field("lifetime", pa.timestamp("us", tz="UTC"), nullable=True),
    _field("security", pa.int8()),
    _field("acked_sequence_number", pa.int64(), nullable=True),
    _field("acked_ahead", pa.binary(), nullable=True),
    _field("header_signature", pa.binary(16)),
)
"""The header's columns. `acked_ahead` is null where no acknowledgement rides along (P15)."""

ENVELOPE: Final = pa.schema([*schemas.FRAGMENTS, *HEADER])
"""A fragment on its way; an acknowledgement or an error of the broker is one without a number (`is_sequenced` false)."""

NAMES: Final = tuple(ENVELOPE.names)
NULL_GUID: Final = bytes(16)
SEQUENCE_MAX: Final = 2**63 - 2

_NAMES_KEPT: Final = 1 << 11  # neighbours may bring names of 4 KiB in each row: so many of them take less than 20 MiB
_STABLE: Final = struct.Struct(">16s16s16s16sqiiqHbb")
_RIDING: Final = struct.Struct(">BqI")
_LENGTH: Final = struct.Struct(">I")
_NULL: Final = 0xFFFF_FFFF

INITIATOR, SEQUENCED, END_OF_DIALOG, CONVERSATION_ERROR, HAS_TO_BROKER, HAS_MESSAGE_ID, HAS_LIFETIME = (
    1 << bit for bit in range(7)
)
"""Flags of the header as bytes; `BOUND`, `IDENTIFIED` and `ENDS` say that broker id, message id and lifetime are there."""


@lru_cache(maxsize=_NAMES_KEPT)
def encode_names(from_service: str, to_service: str, contract: str, message_type: str | None) -> bytes:
    """The names of a header, each with its length.

    Args:
        from_service: The sender.
        to_service: The receiver.
        contract: The contract.
        message_type: The message's type; None for an acknowledgement.

    Returns:
        The bytes; others for any other names.

    Examples:
        >>> encode_names("a", "b", "", None).hex()
        '0000000161000000016200000000ffffffff'
    """
    parts: list[bytes] = []
    for name in (from_service, to_service, contract, message_type):
        text = b"" if name is None else name.encode()
        parts += (_LENGTH.pack(_NULL if name is None else len(text)), text)
    return b"".join(parts)


def encode_header(
    conversation_id: bytes,
    from_broker: bytes,
    to_broker: bytes | None,
    message_id: bytes | None,
    sequence: int,
    fragment: int,
    count: int,
    lifetime: int | None,
    flags: int,
    priority: int,
    security: int,
    names: bytes,
) -> bytes:
    """What a part is sealed with (P22): every field of the header that is the same each time the fragment is sent.

    Positional and plain, since it is called for every row.

    Args:
        conversation_id: The conversation.
        from_broker: The sender's broker id.
        to_broker: The receiver's, where it is known.
        message_id: The message's id, where it has one.
        sequence: The message's number.
        fragment: The fragment's number.
        count: The count of fragments.
        lifetime: The moment at which the conversation ends, in microseconds, where there is one.
        flags: `INITIATOR`, `SEQUENCED`, `END_OF_DIALOG` and `CONVERSATION_ERROR`.
        priority: The conversation's priority.
        security: How the fragment is protected.
        names: `names_as_bytes`.

    Returns:
        The bytes; others for any other header.

    Examples:
        >>> len(encode_header(bytes(16), bytes(16), None, None, 0, 0, 1, None, 0, 5, 0, b""))
        92
    """
    if to_broker is not None:
        flags |= HAS_TO_BROKER
    if message_id is not None:
        flags |= HAS_MESSAGE_ID
    if lifetime is not None:
        flags |= HAS_LIFETIME
    return (
        _STABLE.pack(
            conversation_id,
            from_broker,
            to_broker or NULL_GUID,
            message_id or NULL_GUID,
            sequence,
            fragment,
            count,
            lifetime or 0,
            flags,
            priority,
            security,
        )
        + names
    )


def signature_input(
    header: bytes,
    message_signature: bytes | None,
    fragment_signature: bytes | None,
    acked: int | None,
    ahead: bytes | None,
) -> bytes:
    """What a header's signature is of: the header, the signatures of the content, and the acknowledgement that rides along.

    Args:
        header: `header_as_bytes`.
        message_signature: The signature of the message.
        fragment_signature: The signature of the fragment.
        acked: The number up to which all is acknowledged.
        ahead: What is acknowledged beyond; None for no acknowledgement.

    Returns:
        The bytes.

    Examples:
        >>> signature_input(b"", None, None, None, None) == signature_input(b"", None, None, None, b"")
        False
    """
    there = (
        (message_signature is not None)
        | (fragment_signature is not None) << 1
        | (acked is not None) << 2
        | (ahead is not None) << 3
    )
    riding = _RIDING.pack(there, acked or 0, len(ahead or b""))
    return b"".join((header, riding, message_signature or b"", fragment_signature or b"", ahead or b""))


SHARED_BYTES_MIN: Final = 1 << 20
"""From so many bytes on, a value is not copied."""
_WORTH_CASTING: Final = 32
"""From so many values on, a cast and a list of what any length may have takes less time than the list alone."""
_WORTH_VIEWING: Final = 4096
"""From so many bytes on, a value is not copied where it can be looked at."""
_VIEW: Final = struct.Struct("<i4sii")
"""A view of a value beyond `_INLINE_BYTES`: its length, how it begins, in which buffer it lies, and where there."""
_INLINE: Final = struct.Struct("<i12s")
_INLINE_BYTES: Final = 12


def tuples_to_table(rows: Sequence[tuple[Any, ...]], row: pa.StructType) -> pa.Table:
    """Rows as a table, all columns at once: it takes a third of the time that they take one by one.

    Args:
        rows: The values of each.
        row: The columns.

    Returns:
        The table.

    Examples:
        >>> tuples_to_table([(1, b"a"), (2, None)], pa.struct([("number", pa.int64()), ("body", pa.binary())])).to_pydict()
        {'number': [1, 2], 'body': [b'a', None]}
    """
    made: Any = pa.array(rows, row)  # a StructArray, which the stubs do not say
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(made)])


def body_column(values: Sequence[bytes | None]) -> pa.ChunkedArray[Any]:
    """Bytes as a column; large values stay where they are, each in a chunk of its own.

    Args:
        values: The values, None for null.

    Returns:
        The column.

    Examples:
        >>> body_column([b"ab", bytes(1 << 20), b"c"]).num_chunks
        3
    """
    chunks: list[pa.Array[Any]] = []
    first = 0
    for at, value in enumerate(values):
        if value is not None and len(value) >= SHARED_BYTES_MIN:
            if first < at:
                chunks.append(pa.array(values[first:at], pa.binary()))
            offsets = pa.array([0, len(value)], pa.int32()).buffers()[1]
            chunks.append(pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(value)]))
            first = at + 1
    chunks.append(pa.array(values[first:], pa.binary()))
    return pa.chunked_array([chunk for chunk in chunks if len(chunk)], pa.binary())


def tuples_to_view_table(rows: Sequence[tuple[Any, ...]], row: pa.StructType, at: int) -> pa.Table:
    """Rows as a table, with one column of views, whose values stay where they are if they are long.

    Args:
        rows: The values of each; there is none missing in that column.
        row: The columns.
        at: Which of them is of views.

    Returns:
        The table.

    Examples:
        >>> row = pa.struct([("number", pa.int64()), ("body", pa.binary_view())])
        >>> tuples_to_view_table([(1, b"a"), (2, bytes(8192))], row, 1)["body"][0].as_py()
        b'a'
    """
    values = [each[at] for each in rows]
    if sum(map(len, values)) < _WORTH_VIEWING * max(1, len(values)):
        return tuples_to_table(rows, row)
    fields = list(row)
    field = fields.pop(at)
    others = tuples_to_table([(*each[:at], *each[at + 1 :]) for each in rows], pa.struct(fields))
    return others.add_column(at, field, _views(values))


def _views(values: Sequence[bytes]) -> pa.Array[Any]:
    made = bytearray(len(values) * _VIEW.size)
    shared: list[pa.Buffer] = []
    for at, value in enumerate(values):
        if len(value) <= _INLINE_BYTES:
            _INLINE.pack_into(made, at * _VIEW.size, len(value), value)
        else:
            _VIEW.pack_into(made, at * _VIEW.size, len(value), value[:4], len(shared), 0)
            shared.append(pa.py_buffer(value))
    return pa.Array.from_buffers(pa.binary_view(), len(values), [None, pa.py_buffer(made), *shared])


def sliced_column(data: bytes, size: int) -> pa.Array[Any]:
    """Bytes as a column of parts; they stay where they are.

    Args:
        data: The bytes.
        size: How many a part has; the last may have fewer.

    Returns:
        The column.

    Examples:
        >>> sliced_column(b"onetwox", 3).to_pylist()
        [b'one', b'two', b'x']
    """
    offsets = [*range(0, len(data), size), len(data)]
    column = pa.array(offsets, pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, column, pa.py_buffer(data)])


def column_values(column: pa.ChunkedArray[Any]) -> list[Any]:
    """The values of a column. Those of a fixed length are listed as if they had any: pyarrow is twenty times as fast with these.

    Args:
        column: The column.

    Returns:
        The values.

    Examples:
        >>> column_values(pa.chunked_array([pa.array([b"ab", None], pa.binary(2))]))
        [b'ab', None]
    """
    if len(column) >= _WORTH_CASTING and pa.types.is_fixed_size_binary(column.type):
        column = column.cast(pa.binary())
    return column.to_pylist()


def replace_columns(table: pa.Table, schema: pa.Schema, columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """A table with other values in some of its columns.

    Args:
        table: The table.
        schema: What the columns are.
        columns: The values by name.

    Returns:
        The table.

    Examples:
        >>> schema = pa.schema([("number", pa.int64())])
        >>> replace_columns(pa.table({"number": [1]}), schema, {"number": [2]}).to_pydict()
        {'number': [2]}
    """
    for name, values in columns.items():
        field: pa.Field[Any] = schema.field(name)
        column: pa.Array[Any] = pa.array(values, field.type)
        table = table.set_column(table.schema.get_field_index(name), field, column)
    return table


AckRange: TypeAlias = tuple[int, int, int, int]
"""From which message and fragment to which, both included; all that lies between is there."""

ACK_RANGES_MAX: Final = 512
"""More runs than this are not told; their fragments are sent once more."""

_RUN: Final = struct.Struct(">qiqi")


def bit_ranges(mask: int) -> Iterator[tuple[int, int]]:
    """The runs of ones in a number, as first and last bit."""
    first = 0
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        mask >>= zeros
        ones = (mask ^ (mask + 1)).bit_length() - 1
        mask >>= ones
        first += zeros
        yield first, first + ones - 1
        first += ones


def pack_ack_ranges(runs: Iterable[AckRange]) -> bytes:
    """The runs as they travel.

    Args:
        runs: The runs.

    Returns:
        24 bytes for each.

    Examples:
        >>> unpack_ack_ranges(pack_ack_ranges([(3, 0, 4, 2)]))
        [(3, 0, 4, 2)]
    """
    return b"".join([_RUN.pack(*run) for run in runs])


def unpack_ack_ranges(data: bytes) -> list[AckRange] | None:
    """The runs that somebody sent.

    Args:
        data: What came.

    Returns:
        The runs; None where they are cut off, too many, not ascending or below nothing.

    Examples:
        >>> unpack_ack_ranges(b"x") is None, unpack_ack_ranges(pack_ack_ranges([(1, 2, 1, 1)])) is None
        (True, True)
    """
    if len(data) % _RUN.size or len(data) > ACK_RANGES_MAX * _RUN.size:
        return None
    runs: list[AckRange] = list(_RUN.iter_unpack(data))
    before = (-1, 0)
    for first_message, first, last_message, last in runs:
        if not before < (first_message, first) <= (last_message, last) or first < 0 or last < 0:
            return None
        before = (last_message, last)
    return runs


def lowest_bits(mask: int, most: int) -> int:
    """The lowest ones of a number, as many as may be.

    Args:
        mask: The number.
        most: How many.

    Returns:
        The number without its other ones.

    Examples:
        >>> bin(lowest_bits(0b10110, 2))
        '0b110'
    """
    if mask.bit_count() <= most:
        return mask
    taken = 0
    for first, last in bit_ranges(mask):
        number = min(most, last + 1 - first)
        taken |= ((1 << number) - 1) << first
        most -= number
        if not most:
            break
    return taken


def fragments_in_range(run: AckRange, sequence: int, count: int) -> int:
    """Which fragments of a message a run names.

    Args:
        run: The run.
        sequence: The message.
        count: How many fragments it has.

    Returns:
        They as bits.

    Examples:
        >>> bin(fragments_in_range((3, 1, 4, 0), 3, 4))
        '0b1110'
    """
    first_message, first, last_message, last = run
    low = first if sequence == first_message else 0
    high = min(last, count - 1) if sequence == last_message else count - 1
    return (2 << high) - (1 << low) if low <= high else 0


@dataclass(slots=True)
class EnvelopeRow:
    """A fragment as it came; the attributes are the columns of `envelope.ENVELOPE`, in their order, and one more.

    Attributes:
        is_digested: Whether the header's signature is its MD5, as in a plain conversation; an error of the broker has its body in it.
    """

    conversation_id: bytes
    is_initiator: bool
    sequence: int
    fragment: int
    count: int
    body: bytes
    message_signature: bytes | None
    fragment_signature: bytes | None
    is_sequenced: bool
    from_service: str
    from_broker: bytes
    to_service: str
    to_broker: bytes | None
    contract: str
    message_type: str | None
    message_id: bytes | None
    priority: int
    is_end: bool
    is_error: bool
    lifetime: int | None
    security: int
    acked: int | None
    acked_ahead: bytes | None
    header_signature: bytes
    has_valid_digest: bool = False

    @property
    def header(self) -> bytes:
        """All that stays the same whenever the fragment is sent, as bytes."""
        flags = self.is_initiator | self.is_sequenced << 1 | self.is_end << 2 | self.is_error << 3
        names = encode_names(self.from_service, self.to_service, self.contract, self.message_type)
        return encode_header(
            self.conversation_id,
            self.from_broker,
            self.to_broker,
            self.message_id,
            self.sequence,
            self.fragment,
            self.count,
            self.lifetime,
            flags,
            self.priority,
            self.security,
            names,
        )

    def signature_input(self, header: bytes) -> bytes:
        """What the header's signature is of.

        Args:
            header: That of this row.
        """
        return signature_input(header, self.message_signature, self.fragment_signature, self.acked, self.acked_ahead)

    @property
    def is_well_formed(self) -> bool:
        """Whether the fields agree with each other (fact 84)."""
        if self.acked_ahead is None:
            rides = self.acked is None
        else:
            rides = unpack_ack_ranges(self.acked_ahead) is not None and (self.acked is None or self.acked >= 0)
        if not rides or (self.is_end and self.is_error):
            return False
        if self.is_sequenced:
            numbered = 0 <= self.sequence <= SEQUENCE_MAX and 0 <= self.fragment < self.count
            return self.message_type is not None and numbered
        if self.message_type is None:  # an acknowledgement, whose signature has no body in it
            return (self.sequence, self.fragment, self.count) == (0, 0, 1) and not self.is_error and not self.body
        return (self.sequence, self.fragment, self.count) == (0, 0, 1) and self.is_error


_VALUES: Final = attrgetter(*EnvelopeRow.__slots__[:-1])
_ROW: Final = pa.struct(list(ENVELOPE))
_LIFETIME: Final = ENVELOPE.get_field_index("lifetime")


def rows_to_table(rows: Sequence[EnvelopeRow]) -> pa.Table:
    """A batch of rows.

    Args:
        rows: The rows.

    Returns:
        The same, as `envelope.ENVELOPE`.

    Examples:
        >>> table_to_rows(rows_to_table([])) == []
        True
    """
    return tuples_to_table([_VALUES(row) for row in rows], _ROW)


def table_to_rows(table: pa.Table) -> list[EnvelopeRow]:
    """The rows of a batch.

    Args:
        table: Rows of `envelope.ENVELOPE`.

    Returns:
        The same, as objects.

    Examples:
        >>> table_to_rows(ENVELOPE.empty_table())
        []
    """
    found = list(table.columns)
    if found[_LIFETIME].null_count < table.num_rows:
        found[_LIFETIME] = found[_LIFETIME].cast(pa.int64())
    is_digested: Any = pc.equal(table["header_signature"], _core.header_digests(table))
    columns: list[list[Any]] = [column_values(column) for column in (*found, is_digested)]
    return [EnvelopeRow(*values) for values in zip(*columns, strict=True)]


SenderKey: TypeAlias = tuple[bytes, bool, bytes | None]
"""A conversation, the sender's side, and the broker id that it sends to."""


def sender_runs(rows: pa.Table) -> tuple[list[tuple[SenderKey, int]], bool]:
    """The senders of rows, as they follow each other.

    Args:
        rows: The rows (`envelope.ENVELOPE`).

    Returns:
        Each with how many rows it sends there; and whether no row is secured.

    Examples:
        >>> from ssbroker.protocol.envelope import ENVELOPE
        >>> sender_runs(ENVELOPE.empty_table())
        ([], True)
    """
    found, are_plain = _core.sender_runs(rows)
    return [((conversation_id, side, broker), number) for conversation_id, side, broker, number in found], are_plain
