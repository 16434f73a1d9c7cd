"""The state of a bucket: its byte format, its parts in Spark's state store, and Arrow data in binary cells."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from ssbroker.exceptions import MalformedDataError, OptionError
from ssbroker.spark.arrow_columns import ArrowColumn, nulls, pc, repeat
from ssbroker.spark.output_columns import to_spark_type
from ssbroker.spark.streams import stream_rows


def to_ipc(rows: pa.RecordBatch | pa.Table) -> bytes:
    """Serializes rows with their schema.

    Examples:
        >>> from_ipc(to_ipc(pa.table({"a": [1, 2]}))).num_rows
        2
    """
    sink = pa.BufferOutputStream()
    write_ipc(rows, sink)
    return sink.getvalue().to_pybytes()


def write_ipc(rows: pa.RecordBatch | pa.Table, sink: pa.NativeFile) -> None:
    """Appends rows with their schema to a sink."""
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)


def from_ipc(data: bytes | memoryview) -> pa.Table:
    """Reads rows that `to_ipc` serialized, without a copy."""
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


def split_by_size(rows: pa.RecordBatch, *, max_bytes: int) -> Iterator[pa.RecordBatch]:
    """Splits rows into pieces of at most about `max_bytes`, unless a single row is larger.

    Examples:
        >>> [piece.num_rows for piece in split_by_size(pa.record_batch({"a": [b"1234"] * 4}), max_bytes=20)]
        [2, 2]
    """
    if rows.num_rows > 1 and rows.nbytes > max_bytes:
        half = rows.num_rows // 2
        yield from split_by_size(rows.slice(0, half), max_bytes=max_bytes)
        yield from split_by_size(rows.slice(half), max_bytes=max_bytes)
    elif rows.num_rows:
        yield rows


MAGIC: Final = b"ssbroker bucket\0"
VERSION: Final = 1

_VERSION: Final = struct.Struct("<H")
_LENGTH: Final = struct.Struct("<Q")
_DIGEST_BYTES: Final = 16
_SECTIONS: Final = 5


@dataclass(frozen=True, kw_only=True)
class BucketState:
    """The state of a bucket.

    Attributes:
        fixed: The options with which it was created.
        max_pending_age_us: After how long a message that does not grow is dropped, as of the last step.
        names: The columns in `delayed` that routing reads, by the name of the conversation column.
        catalog: The fingerprint of the catalog by which delayed messages were last routed.
        arrivals: How many messages have arrived since the first one was delayed.
        extra: The extra columns; None before the first row.
        assembler: The checkpoint of the reassembler, empty before the first fragment.
        waits: The messages that are incomplete or behind a gap: `bucket_step.WAITING_SCHEMA`; None for none.
        delayed: The messages that wait for a route, with `bucket_step.RETRY_COLUMNS`; None for none.
    """

    fixed: Mapping[str, str | int | bool | None]
    max_pending_age_us: int | None = None
    names: Mapping[str, str]
    catalog: str | None = None
    arrivals: int = 0
    extra: pa.Schema | None = None
    assembler: bytes = b""
    waits: pa.Table | None = None
    delayed: pa.Table | None = None

    def to_bytes(self) -> bytes:
        """Serializes the state: magic, version, five sections with their lengths, and a digest."""
        head = {
            "fixed": dict(self.fixed),
            "max_pending_age_us": self.max_pending_age_us,
            "names": dict(self.names),
            "catalog": self.catalog,
            "arrivals": self.arrivals,
        }
        sections = (
            json.dumps(head, sort_keys=True, separators=(",", ":")).encode(),
            b"" if self.extra is None else self.extra.serialize().to_pybytes(),
            b"" if self.waits is None else to_ipc(self.waits),
            b"" if self.delayed is None else to_ipc(self.delayed),
            self.assembler,
        )
        parts = [MAGIC, _VERSION.pack(VERSION)]
        for section in sections:
            parts += [_LENGTH.pack(len(section)), section]
        return b"".join([*parts, _digest(sections)])

    def with_options(self, fixed: Mapping[str, str | int | bool | None]) -> BucketState:
        """Returns the state if it was created with these options; raises `OptionError` if one differs."""
        for name, value in fixed.items():
            original = self.fixed.get(name)
            if original != value:
                raise OptionError(
                    f"{name}: this checkpoint was created with {original!r:.80}, but the query now has {value!r:.80}; "
                    "restore the value, or start the query with a new checkpoint"
                )
        return replace(self, fixed=fixed)


def state_from_bytes(data: bytes) -> BucketState:
    """Parses a state after comparing its digest; raises `MalformedDataError` if it is truncated, altered or of another version.

    The section `assembler` has its own digest, which its reader verifies.

    Examples:
        >>> state_from_bytes(BucketState(fixed={"buckets": 16}, names={}).to_bytes()).fixed
        {'buckets': 16}
    """
    start = len(MAGIC) + _VERSION.size
    if data[: len(MAGIC)] != MAGIC or len(data) < start + _DIGEST_BYTES:
        raise _malformed("wrong header, or truncated")
    (version,) = _VERSION.unpack_from(data, len(MAGIC))
    if version != VERSION:
        raise _malformed(
            f"written by another version of ssbroker: its format is {version}, this version reads {VERSION}"
        )
    end = len(data) - _DIGEST_BYTES
    try:
        sections = _sections(memoryview(data)[start:end])
    except (ValueError, struct.error) as error:
        raise _malformed(f"truncated or altered: {error}") from error
    if _digest(sections) != data[end:]:
        raise _malformed("digest mismatch: truncated or altered")
    try:
        return _from_sections(*sections)
    except (ValueError, KeyError, TypeError, OSError, OverflowError, struct.error, pa.ArrowException) as error:
        raise _malformed(f"inconsistent: {error}") from error


def _sections(rest: memoryview) -> list[memoryview]:
    found = []
    while rest:
        (length,) = _LENGTH.unpack_from(rest)
        if length > len(rest) - _LENGTH.size:
            raise ValueError("a section exceeds the data")
        found.append(rest[_LENGTH.size : _LENGTH.size + length])
        rest = rest[_LENGTH.size + length :]
    if len(found) != _SECTIONS:
        raise ValueError(f"{len(found)} sections instead of {_SECTIONS}")
    return found


def _from_sections(
    head: memoryview, extra: memoryview, waits: memoryview, delayed: memoryview, assembler: memoryview
) -> BucketState:
    fields: dict[str, Any] = json.loads(bytes(head))
    return BucketState(
        **fields,
        extra=pa.ipc.read_schema(pa.py_buffer(extra)) if extra else None,
        waits=_read_table(waits),
        delayed=_read_table(delayed),
        assembler=bytes(assembler),
    )


def _read_table(section: memoryview) -> pa.Table | None:
    if not section:
        return None
    rows = from_ipc(section)
    rows.validate()
    return rows


def _digest(sections: Sequence[bytes | memoryview]) -> bytes:
    """Returns the digest of the sections and their lengths; of the last section only its end, which is a digest of the rest."""
    hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for section in sections:
        hashed.update(_LENGTH.pack(len(section)))
    for section in (*sections[:-1], sections[-1][-_DIGEST_BYTES:]):
        hashed.update(section)
    return hashed.digest()


def _malformed(why: str) -> MalformedDataError:
    return MalformedDataError(f"state: invalid state of an ssbroker stream: {why}")


_BITS: Final = 7
_HIGH_BIT: Final = pa.scalar(0x80, pa.uint8())
_LOW_BITS: Final = pa.scalar(0x7F, pa.uint8())


def text_from_bytes(data: bytes) -> str:
    r"""Returns bytes as ASCII text: a block with the top bits of seven bytes each, then the low seven bits of every byte.

    Examples:
        >>> text_from_bytes(b"\x01\x82")
        '\x02\x01\x02'
    """
    size = -(-len(data) // _BITS)
    whole = _uint8_array(data)
    high_bits = _uint8_array(bytes(size))
    for place in range(_BITS):
        part = whole.slice(place * size, size)
        bits = pc.shift_right(pc.bit_wise_and(part, _HIGH_BIT), pa.scalar(_BITS - place, pa.uint8()))
        if len(bits) < size:
            bits = pa.concat_arrays([bits, _uint8_array(bytes(size - len(bits)))])
        high_bits = pc.bit_wise_or(high_bits, bits)
    return b"".join([_bytes(high_bits), _bytes(pc.bit_wise_and(whole, _LOW_BITS))]).decode("ascii")


def text_to_bytes(text: str) -> bytes:
    r"""Inverts `text_from_bytes`; raises `MalformedDataError` for text that is not ASCII. Other damage is left to the state's digest.

    Examples:
        >>> text_to_bytes(text_from_bytes(b"\x01\x82"))
        b'\x01\x82'
    """
    try:
        whole = _uint8_array(text.encode("ascii"))
    except ValueError as error:
        raise _malformed(str(error)) from error
    size = -(-len(whole) // (_BITS + 1))
    high_bits, low_bits = whole.slice(0, size), whole.slice(size)
    parts = []
    for place in range(_BITS):
        part = low_bits.slice(place * size, size)
        bits = pc.bit_wise_and(high_bits.slice(0, len(part)), pa.scalar(1 << place, pa.uint8()))
        parts.append(_bytes(pc.bit_wise_or(part, pc.shift_left(bits, pa.scalar(_BITS - place, pa.uint8())))))
    return b"".join(parts)


def _uint8_array(data: bytes) -> ArrowColumn:
    made: ArrowColumn = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    return made


def _bytes(numbers: ArrowColumn) -> memoryview:
    if not len(numbers):
        return memoryview(b"")
    return memoryview(numbers.buffers()[1])[numbers.offset : numbers.offset + len(numbers)]


STATE_VARIABLE: Final = "bucket"
"""The name of the state variable: a map from part numbers to parts."""

PART_CHARACTERS = 16 << 20
_KEY: Final = "part int"
_VALUE: Final = "state string, parts int"


class StateParts:
    """The state of the current bucket in Spark's state store; `handle` is Spark's."""

    def __init__(self, handle: Any) -> None:
        self._parts: Final = handle.getMapState(STATE_VARIABLE, _KEY, _VALUE)
        self._count = 0

    def get(self) -> bytes | None:
        """Returns the stored state, None if there is none; must be called before `put` and `clear`."""
        first = self._parts.getValue((0,))
        if first is None:
            self._count = 0
            return None
        start, self._count = first
        rest = [self._parts.getValue((number,))[0] for number in range(1, self._count)]
        return text_to_bytes("".join([start, *rest]))

    def put(self, state: bytes) -> None:
        """Replaces the stored state."""
        whole = text_from_bytes(state)
        count = -(-len(whole) // PART_CHARACTERS)
        for number in range(count):
            part = whole[number * PART_CHARACTERS : (number + 1) * PART_CHARACTERS]
            self._parts.updateValue((number,), (part, count))
        for number in range(count, self._count):
            self._parts.removeKey((number,))

    def clear(self) -> None:
        """Removes the stored state."""
        self._parts.clear()


def join_state_parts(rows: Iterable[tuple[int, int, str, int]]) -> Iterator[tuple[int, bytes]]:
    """Yields buckets and their states from rows of bucket, part number, part and number of parts, in any order.

    Raises `MalformedDataError` if a part is missing.
    """
    found: dict[int, dict[int, str]] = {}
    for bucket, number, part, count in rows:
        parts = found.setdefault(bucket, {})
        parts[number] = part
        if len(parts) == count:
            yield bucket, text_to_bytes("".join(parts[place] for place in range(count)))
            del found[bucket]
    if found:
        raise MalformedDataError(f"state: parts of bucket {min(found)} are missing")


PACKED_SCHEMA: Final = "bucket int, place bigint, cell binary"
"""Input rows of one bucket in one cell; the place restores the order in which the rows of a bucket arrived."""
OUTPUT_SCHEMA: Final = "kind string, cell binary"
"""Output rows of one kind in one cell."""

_PACKED_FIELDS: Final[dict[str, pa.DataType]] = {"bucket": pa.int32(), "place": pa.int64(), "cell": pa.binary()}
_PACKED_TYPES: Final = pa.schema(_PACKED_FIELDS)
_PACK_BYTES: Final = 32 << 20
_PIECE_BYTES: Final = 16 << 20
_PLACE_BITS: Final = 40


def pack_rows(names: Sequence[str], batches: Iterator[pa.RecordBatch], *, partition: int) -> Iterator[pa.RecordBatch]:
    """Packs the rows of a partition into few large cells, since each cell costs a row of Spark; yields batches of `PACKED_SCHEMA`.

    `names` are the columns in the cells; the bucket number is the column before them.
    """
    place = partition << _PLACE_BITS
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _PACK_BYTES:
            yield _pack(names, held, place)
            place, held, size = place + 1, [], 0
    if held:
        yield _pack(names, held, place)


def unpack_rows(
    own: Mapping[str, pa.DataType], extra: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Unpacks batches of `OUTPUT_SCHEMA` into rows of all kinds: `kind`, own and extra columns, with nulls in those that a kind lacks."""
    for batch in batches:
        for kind, cell in zip(batch.column(0), batch.column(1), strict=True):
            for rows in from_ipc(cell.as_buffer()).to_batches():
                yield _with_all_columns(str(kind), rows, own, extra)


def to_cells(rows: Sequence[tuple[str, pa.RecordBatch]]) -> Iterator[tuple[str, bytes]]:
    """Yields the output of a bucket, kind by kind, in cells of bounded size."""
    for kind, batch in rows:
        for piece in split_by_size(batch, max_bytes=_PIECE_BYTES):
            yield kind, to_ipc(piece)


def _pack(names: Sequence[str], batches: Sequence[pa.RecordBatch], place: int) -> pa.RecordBatch:
    combined = pa.Table.from_batches(list(batches))
    buckets: ArrowColumn = combined.column(0).combine_chunks()
    order = pc.sort_indices(buckets)
    rows = combined.select(range(1, combined.num_columns)).rename_columns(list(names)).take(order)
    runs: Any = pc.run_end_encode(buckets.take(order))
    ends: list[int] = runs.run_ends.to_pylist()
    starts = [0, *ends[:-1]]
    # All cells are written into one buffer, which becomes the column; building it from many values would copy them several times.
    sink = pa.BufferOutputStream()
    offsets = [0]
    for start, end in zip(starts, ends, strict=True):
        write_ipc(rows.slice(start, end - start), sink)
        offsets.append(sink.tell())
    of_all = [None, pa.array(offsets, pa.int32()).buffers()[1], sink.getvalue()]
    packed_cells = pa.Array.from_buffers(pa.binary(), len(ends), of_all)
    places = repeat(place, pa.int64(), len(ends))
    return pa.RecordBatch.from_arrays([runs.values, places, packed_cells], schema=_PACKED_TYPES)


def _with_all_columns(
    kind: str, rows: pa.RecordBatch, own: Mapping[str, pa.DataType], extra: Sequence[str]
) -> pa.RecordBatch:
    count = rows.num_rows
    present: dict[str, ArrowColumn] = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns: dict[str, ArrowColumn] = {stream_rows.KIND: repeat(kind, pa.string(), count)}
    for name, arrow_type in own.items():
        columns[name] = _cast(present[name], arrow_type) if name in present else nulls(arrow_type, count)
    for name in extra:
        columns[name] = _cast(present[name], to_spark_type(present[name].type))
    fields = [pa.field(name, column.type, nullable=name != stream_rows.KIND) for name, column in columns.items()]
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))


def _cast(column: ArrowColumn, arrow_type: pa.DataType) -> ArrowColumn:
    return column if column.type == arrow_type else column.cast(arrow_type)
