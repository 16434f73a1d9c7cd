"""The state of a bucket: its bytes, its parts as text, and packed Arrow cells."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from ssbroker.exceptions import MalformedDataError, OptionError
from ssbroker.spark.reassembly_rows import to_spark_type
from ssbroker.spark.streams import row_kinds
from ssbroker.spark.streams.row_kinds import ArrowColumn, nulls, pc, same


def to_ipc(rows: pa.RecordBatch | pa.Table) -> bytes:
    """Rows with their schema as bytes.

    Examples:
        >>> of_ipc(to_ipc(pa.table({"a": [1, 2]}))).num_rows
        2
    """
    sink = pa.BufferOutputStream()
    write_ipc(rows, sink)
    return sink.getvalue().to_pybytes()


def write_ipc(rows: pa.RecordBatch | pa.Table, sink: pa.NativeFile) -> None:
    """Writes rows with their schema behind what has been written.

    Args:
        rows: The rows.
        sink: Where to write.

    Examples:
        >>> sink = pa.BufferOutputStream()
        >>> write_ipc(pa.table({"a": [1, 2]}), sink)
        >>> of_ipc(sink.getvalue().to_pybytes()).num_rows
        2
    """
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)


def of_ipc(data: bytes | memoryview) -> pa.Table:
    """The rows of what `to_ipc` gave, over the same memory."""
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


def pieces(rows: pa.RecordBatch, *, most: int) -> Iterator[pa.RecordBatch]:
    """Cuts rows so that a piece is not much larger than it should be, unless one row is.

    Args:
        rows: The rows.
        most: The bytes that a piece should not exceed.

    Yields:
        The pieces, in order.

    Examples:
        >>> [piece.num_rows for piece in pieces(pa.record_batch({"a": [b"1234"] * 4}), most=20)]
        [2, 2]
    """
    if rows.num_rows > 1 and rows.nbytes > most:
        half = rows.num_rows // 2
        yield from pieces(rows.slice(0, half), most=most)
        yield from pieces(rows.slice(half), most=most)
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
    """What is kept of a bucket.

    Attributes:
        fixed: The options under which it was begun.
        max_pending_age_us: After how long what does not grow is dropped, as of the last step.
        names: Where columns of conversations stand in `delayed`, by their names.
        catalog: The fingerprint of the catalog by which what waits was last routed.
        arrivals: How many messages have come since something waits for a route.
        further: The columns that are carried; None before the first row.
        assembler: The checkpoint of the reassembler, empty before the first fragment.
        waits: What is incomplete or behind a gap: `waiting.WAITS`; None for nothing.
        delayed: What waits for a route: messages and `delayed.TURN`; None for nothing.
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
        """The state as it is kept."""
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

    def checked(self, fixed: Mapping[str, str | int | bool | None]) -> BucketState:
        """The same, if it was begun under these options.

        Args:
            fixed: The options of now.

        Returns:
            The same.

        Raises:
            OptionError: One of them differs.
        """
        for name, value in fixed.items():
            began = self.fixed.get(name)
            if began != value:
                raise OptionError(
                    f"{name}: this checkpoint began with {began!r:.80}, now it is {value!r:.80}; it stays as it is while the "
                    "checkpoint lives: go on as before, or begin with a new checkpoint"
                )
        return replace(self, fixed=fixed)


def state_from_bytes(kept: bytes) -> BucketState:
    """Reads what is kept; nothing is believed before the digest is compared. What is wrong with `assembler` its reader finds.

    Args:
        kept: What `State.to_bytes` gave.

    Returns:
        The state.

    Raises:
        MalformedDataError: It is cut off, altered or of another version.

    Examples:
        >>> state_from_bytes(BucketState(fixed={"buckets": 16}, names={}).to_bytes()).fixed
        {'buckets': 16}
    """
    begin = len(MAGIC) + _VERSION.size
    if kept[: len(MAGIC)] != MAGIC or len(kept) < begin + _DIGEST_BYTES:
        raise _malformed("it does not begin as one, or is cut off")
    (version,) = _VERSION.unpack_from(kept, len(MAGIC))
    if version != VERSION:
        raise _malformed(
            f"it was kept by another version of ssbroker: its format is {version}, this version reads {VERSION}"
        )
    end = len(kept) - _DIGEST_BYTES
    try:
        sections = _sections(memoryview(kept)[begin:end])
    except (ValueError, struct.error) as error:
        raise _malformed(f"it is cut off or altered: {error}") from error
    if _digest(sections) != kept[end:]:
        raise _malformed("its digest does not match: it is cut off or altered")
    try:
        return _of_sections(*sections)
    except (ValueError, KeyError, TypeError, OSError, OverflowError, struct.error, pa.ArrowException) as error:
        raise _malformed(f"it contradicts itself: {error}") from error


def _sections(rest: memoryview) -> list[memoryview]:
    found = []
    while rest:
        (length,) = _LENGTH.unpack_from(rest)
        if length > len(rest) - _LENGTH.size:
            raise ValueError("a section is longer than what is there")
        found.append(rest[_LENGTH.size : _LENGTH.size + length])
        rest = rest[_LENGTH.size + length :]
    if len(found) != _SECTIONS:
        raise ValueError(f"it has {len(found)} sections")
    return found


def _of_sections(
    head: memoryview, extra: memoryview, waits: memoryview, delayed: memoryview, assembler: memoryview
) -> BucketState:
    told: dict[str, Any] = json.loads(bytes(head))
    return BucketState(
        **told,
        extra=pa.ipc.read_schema(pa.py_buffer(extra)) if extra else None,
        waits=_rows(waits),
        delayed=_rows(delayed),
        assembler=bytes(assembler),
    )


def _rows(section: memoryview) -> pa.Table | None:
    if not section:
        return None
    rows = of_ipc(section)
    rows.validate()
    return rows


def _digest(sections: Sequence[bytes | memoryview]) -> bytes:
    """Of the sections and their lengths, and of the last one only the end, which is the digest of the rest of it."""
    hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for section in sections:
        hashed.update(_LENGTH.pack(len(section)))
    for section in (*sections[:-1], sections[-1][-_DIGEST_BYTES:]):
        hashed.update(section)
    return hashed.digest()


def _malformed(why: str) -> MalformedDataError:
    return MalformedDataError(f"state: this is no state of a stream of ssbroker: {why}")


_BITS: Final = 7
_UPPER: Final = pa.scalar(0x80, pa.uint8())
_LOWER: Final = pa.scalar(0x7F, pa.uint8())


def text_from_bytes(data: bytes) -> str:
    r"""The text of some bytes.

    Examples:
        >>> text_from_bytes(b"\x01\x82")
        '\x02\x01\x02'
    """
    size = -(-len(data) // _BITS)
    whole = _numbers(data)
    upper = _numbers(bytes(size))
    for place in range(_BITS):
        part = whole.slice(place * size, size)
        bits = pc.shift_right(pc.bit_wise_and(part, _UPPER), pa.scalar(_BITS - place, pa.uint8()))
        if len(bits) < size:
            bits = pa.concat_arrays([bits, _numbers(bytes(size - len(bits)))])
        upper = pc.bit_wise_or(upper, bits)
    return b"".join([_bytes(upper), _bytes(pc.bit_wise_and(whole, _LOWER))]).decode("ascii")


def text_to_bytes(text: str) -> bytes:
    r"""The bytes of a text. Whether they are those that were kept, their digest tells.

    Raises:
        MalformedDataError: It is no text of bytes.

    Examples:
        >>> text_to_bytes(text_from_bytes(b"\x01\x82"))
        b'\x01\x82'
    """
    try:
        whole = _numbers(text.encode("ascii"))
    except ValueError as error:
        raise MalformedDataError(f"state: this is no state of a stream of ssbroker: {error}") from error
    size = -(-len(whole) // (_BITS + 1))
    upper, lower = whole.slice(0, size), whole.slice(size)
    parts = []
    for place in range(_BITS):
        part = lower.slice(place * size, size)
        bits = pc.bit_wise_and(upper.slice(0, len(part)), pa.scalar(1 << place, pa.uint8()))
        parts.append(_bytes(pc.bit_wise_or(part, pc.shift_left(bits, pa.scalar(_BITS - place, pa.uint8())))))
    return b"".join(parts)


def _numbers(data: bytes) -> ArrowColumn:
    made: ArrowColumn = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    return made


def _bytes(numbers: ArrowColumn) -> memoryview:
    if not len(numbers):
        return memoryview(b"")
    return memoryview(numbers.buffers()[1])[numbers.offset : numbers.offset + len(numbers)]


NAME: Final = "bucket"
"""The name of the state variable: a map from numbers to parts."""

PART_CHARACTERS = 16 << 20
_KEY: Final = "part int"
_VALUE: Final = "state string, parts int"


class StateParts:
    """The state of the bucket whose turn it is.

    Args:
        handle: Spark's.
    """

    def __init__(self, handle: Any) -> None:
        self._parts: Final = handle.getMapState(NAME, _KEY, _VALUE)
        self._count = 0

    def get(self) -> bytes | None:
        """What is kept, None for nothing. It is asked before anything is put or cleared."""
        first = self._parts.getValue((0,))
        if first is None:
            self._count = 0
            return None
        begin, self._count = first
        rest = [self._parts.getValue((number,))[0] for number in range(1, self._count)]
        return text_to_bytes("".join([begin, *rest]))

    def put(self, state: bytes) -> None:
        """Keeps this in place of what was kept."""
        whole = text_from_bytes(state)
        count = -(-len(whole) // PART_CHARACTERS)
        for number in range(count):
            part = whole[number * PART_CHARACTERS : (number + 1) * PART_CHARACTERS]
            self._parts.updateValue((number,), (part, count))
        for number in range(count, self._count):
            self._parts.removeKey((number,))

    def clear(self) -> None:
        """Keeps nothing."""
        self._parts.clear()


def whole_states(rows: Iterable[tuple[int, int, str, int]]) -> Iterator[tuple[int, bytes]]:
    """The states of buckets, of rows that have their parts in any order.

    Args:
        rows: The bucket, the number of the part, the part, how many there are.

    Yields:
        The bucket and its state.

    Raises:
        MalformedDataError: A part is missing.
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


PACKED: Final = "bucket int, place bigint, cell binary"
"""Rows of one bucket in one cell; the place puts the cells of a bucket in the order in which its rows came."""
TOLD: Final = "kind string, cell binary"
"""Rows of one kind in one cell."""

_FIELDS: Final[dict[str, pa.DataType]] = {"bucket": pa.int32(), "place": pa.int64(), "cell": pa.binary()}
_PACKED: Final = pa.schema(_FIELDS)
_PACK_BYTES: Final = 32 << 20
_PIECE_BYTES: Final = 16 << 20
_PLACE_BITS: Final = 40


def pack_rows(names: Sequence[str], batches: Iterator[pa.RecordBatch], *, partition: int) -> Iterator[pa.RecordBatch]:
    """Packs the rows of a partition: few large cells, since each costs a row of Spark.

    Args:
        names: What the columns are called in the cells; the number of the bucket stands before them.
        batches: The rows.
        partition: The number of the partition.

    Yields:
        Batches of `PACKED`.
    """
    place = partition << _PLACE_BITS
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= _PACK_BYTES:
            yield _packed(names, held, place)
            place, held, size = place + 1, [], 0
    if held:
        yield _packed(names, held, place)


def unpack_rows(
    own: Mapping[str, pa.DataType], extra: Sequence[str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Unpacks the rows of all kinds.

    Args:
        own: The columns that are not carried, and their types.
        further: The carried ones.
        batches: Batches of `TOLD`.

    Yields:
        Batches of `kind`, the own columns and the carried ones: nulls where a kind has none.
    """
    for batch in batches:
        for kind, cell in zip(batch.column(0), batch.column(1), strict=True):
            for rows in of_ipc(cell.as_buffer()).to_batches():
                yield _widened(str(kind), rows, own, extra)


def cells_of(rows: Sequence[tuple[str, pa.RecordBatch]]) -> Iterator[tuple[str, bytes]]:
    """What a bucket tells, in cells that are not too large for the way.

    Args:
        rows: Rows with their kind.

    Yields:
        Kinds and cells.
    """
    for kind, batch in rows:
        for piece in pieces(batch, most=_PIECE_BYTES):
            yield kind, to_ipc(piece)


def _packed(names: Sequence[str], batches: Sequence[pa.RecordBatch], place: int) -> pa.RecordBatch:
    together = pa.Table.from_batches(list(batches))
    buckets: ArrowColumn = together.column(0).combine_chunks()
    order = pc.sort_indices(buckets)
    rows = together.select(range(1, together.num_columns)).rename_columns(list(names)).take(order)
    runs: Any = pc.run_end_encode(buckets.take(order))
    ends: list[int] = runs.run_ends.to_pylist()
    starts = [0, *ends[:-1]]
    # All cells in one buffer, which is the column: whoever made it of many values would copy them all, several times as it grows.
    sink = pa.BufferOutputStream()
    offsets = [0]
    for start, end in zip(starts, ends, strict=True):
        write_ipc(rows.slice(start, end - start), sink)
        offsets.append(sink.tell())
    of_all = [None, pa.array(offsets, pa.int32()).buffers()[1], sink.getvalue()]
    packed_cells = pa.Array.from_buffers(pa.binary(), len(ends), of_all)
    places = same(place, pa.int64(), len(ends))
    return pa.RecordBatch.from_arrays([runs.values, places, packed_cells], schema=_PACKED)


def _widened(kind: str, rows: pa.RecordBatch, own: Mapping[str, pa.DataType], extra: Sequence[str]) -> pa.RecordBatch:
    count = rows.num_rows
    there: dict[str, ArrowColumn] = dict(zip(rows.schema.names, rows.columns, strict=True))
    columns: dict[str, ArrowColumn] = {row_kinds.KIND: same(kind, pa.string(), count)}
    for name, arrow_type in own.items():
        columns[name] = _cast(there[name], arrow_type) if name in there else nulls(arrow_type, count)
    for name in extra:
        columns[name] = _cast(there[name], to_spark_type(there[name].type))
    fields = [pa.field(name, column.type, nullable=name != row_kinds.KIND) for name, column in columns.items()]
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=pa.schema(fields))


def _cast(column: ArrowColumn, arrow_type: pa.DataType) -> ArrowColumn:
    return column if column.type == arrow_type else column.cast(arrow_type)
