"""Input in chunks: runs of rows of one file, small enough to keep several in memory."""

from __future__ import annotations

import binascii
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute

from ssbroker import schemas
from ssbroker.exceptions import InputError

PIECE_BYTES: Final = 4 << 20
PIECE_ROWS: Final = 32_768


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkUnit:
    """Rows to be worked on."""

    columns: pa.RecordBatch
    """The columns; of JSON lines that are passed on as they are, only those that the command reads."""
    lines: Any = None
    """The objects of JSON lines as they stand in the file, where they are passed on as they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """A run of rows of one file."""

    file: Path
    """The file."""
    first_row: int
    """Its first row, counted from 0 in the file."""
    size: int
    """Its bytes in memory, about."""
    position: int
    """How many bytes of the file are read when it is done."""
    load: Callable[[], WorkUnit]
    """Gives the rows; where that is work, it is left to the thread that works on them."""
    line_of: Callable[[int], int] | None = None
    """The line of the file on which a row of the piece stands, where lines may be blank; None where every line is a row."""

    def row_of(self, row: int) -> int:
        """The number in the file of a row of the piece, for errors."""
        return self.first_row + row if self.line_of is None else self.line_of(row)


class InputFile(Protocol):
    """A file that is read."""

    @property
    def file(self) -> Path:
        """The file."""
        ...

    @property
    def rows(self) -> int | None:
        """How many rows it has, None where that is not known before it is read."""
        ...

    @property
    def schema(self) -> pa.Schema | None:
        """Its columns, None where its lines are passed on as they are."""
        ...

    def pieces(self) -> Iterator[Chunk]:
        """Its rows, in order; at least one piece."""
        ...


def all_pieces(sources: Sequence[InputFile]) -> Iterator[tuple[Chunk, int]]:
    """The pieces of all files, each with how much of all files is read when it is done.

    Examples:
        >>> list(all_pieces([]))
        []
    """
    before = 0
    for source in sources:
        for piece in source.pieces():
            yield piece, before + piece.position
        before += source.file.stat().st_size


def without_rows(schema: pa.Schema) -> pa.RecordBatch:
    """A batch of these columns and no rows; unlike `pa.array`, it does not go and import pandas.

    Examples:
        >>> without_rows(pa.schema([("a", pa.int8())])).num_rows
        0
    """
    nulls: Any = pa.nulls  # its stubs know each type, but not all of them at once
    return pa.RecordBatch.from_arrays([nulls(0, kind) for kind in schema.types], schema=schema)


def rows_of(size: int, *, rows: int) -> int:
    """How many rows make a piece, where `rows` rows take `size` bytes.

    Examples:
        >>> rows_of(4_096_000, rows=1000)
        1024
    """
    if rows == 0 or size == 0:
        return PIECE_ROWS
    return max(1, min(PIECE_ROWS, PIECE_BYTES * rows // size))


def joined(batches: Iterator[tuple[pa.RecordBatch, int]], file: Path) -> Iterator[Chunk]:
    """Pieces made of batches: large ones are cut, small ones put together.

    Args:
        batches: Each with the position in the file after it.
        file: The file they are from.

    Yields:
        The pieces.
    """
    waiting: list[pa.RecordBatch] = []
    waiting_rows = waiting_bytes = first_row = position = 0
    for batch, position_after in batches:
        position = position_after
        step = rows_of(batch.nbytes, rows=batch.num_rows)
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            if waiting and (waiting_rows + part.num_rows > PIECE_ROWS or waiting_bytes + part.nbytes > PIECE_BYTES):
                yield _piece(waiting, file, first_row, position)
                first_row += waiting_rows
                waiting, waiting_rows, waiting_bytes = [], 0, 0
            waiting.append(part)
            waiting_rows += part.num_rows
            waiting_bytes += part.nbytes
        if not waiting and first_row == 0:
            waiting = [batch]
    if waiting:
        yield _piece(waiting, file, first_row, position)


def _piece(batches: list[pa.RecordBatch], file: Path, first_row: int, position: int) -> Chunk:
    batch = batches[0] if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return Chunk(
        file=file, first_row=first_row, size=batch.nbytes, position=position, load=lambda: WorkUnit(columns=batch)
    )


Column: TypeAlias = Any
"""An array of any type."""

pc: Any = pyarrow.compute  # its stubs know neither Python constants nor text with 64-bit offsets
_NO_VALUE: Final = ("", "NULL")
_TRUTH: Final = ("true", "1", "false", "0")
_TRUE_UP_TO: Final = 1
_DIGITS: Final = "^(0[xX])?([0-9a-fA-F]{2})*$"
_SHOWN_MAX: Final = 80


@dataclass(frozen=True, kw_only=True)
class InputColumns:
    """What a command reads of its files.

    Examples:
        >>> CONVERSATIONS.expected(pa.bool_())
        'true, false, 1 or 0'
    """

    columns: pa.Schema
    """The columns that it reads where they are there. Text formats have ids as text; what may be null may be spelt `NULL`."""
    added: tuple[str, ...]
    """The columns that it adds: the files must not have them."""
    by: str
    """What adds them, in a word."""

    @property
    def in_json(self) -> pa.Schema:
        """The columns as JSON has them: bytes are text."""
        columns = zip(self.columns.names, self.columns.types, strict=True)
        return pa.schema({name: _in_json(kind) for name, kind in columns})

    @staticmethod
    def expected(kind: pa.DataType) -> str:
        """What a cell of CSV has to be, in words."""
        if kind == pa.bool_():
            return "true, false, 1 or 0"
        if kind == pa.binary():
            return "bytes as hexadecimal digits, such as 0x01ff"
        return f"a whole number of {kind.bit_width} bits"


def columns_of(*fields: pa.Field[Any]) -> pa.Schema:
    """A schema of fields of any types.

    Examples:
        >>> columns_of(pa.field("a", pa.string())).names
        ['a']
    """
    return pa.schema(list(fields))


_IDS: Final[tuple[pa.Field[Any], ...]] = (
    pa.field("conversation_id", pa.string(), nullable=False),
    pa.field("conversation_handle", pa.string(), nullable=False),
)

CONVERSATIONS: Final = InputColumns(
    columns=columns_of(
        *_IDS,
        pa.field("database", pa.string()),
        pa.field("to_service_name", pa.string(), nullable=False),
        pa.field("to_broker_instance", pa.string()),
        pa.field("is_initiator", pa.bool_(), nullable=False),
    ),
    added=tuple(schemas.DECISIONS.names),
    by="routing",
)
"""What `route` reads."""


SESSION_KEYS: Final = InputColumns(
    columns=columns_of(*_IDS, pa.field("session_key", pa.binary(), nullable=False)), added=(), by="reassembly"
)
"""What `reassemble` reads of a file of session keys."""


def fragments(*, session_key_column: str | None = None) -> InputColumns:
    """What `reassemble` reads of fragments.

    Args:
        session_key_column: The column that has the session keys, if one has.

    Returns:
        The columns.

    Examples:
        >>> fragments(session_key_column="key").columns.field("key").type
        DataType(binary)
    """
    keys: list[pa.Field[Any]] = [] if session_key_column is None else [pa.field(session_key_column, pa.binary())]
    columns = columns_of(
        *_IDS,
        pa.field("is_initiator", pa.bool_(), nullable=False),
        pa.field("message_sequence_number", pa.int64(), nullable=False),
        pa.field("fragment_number", pa.int32(), nullable=False),
        pa.field("fragment_count", pa.int32(), nullable=False),
        pa.field("message_body", pa.binary(), nullable=False),
        pa.field("message_signature", pa.binary()),
        pa.field("fragment_signature", pa.binary()),
        *(key for key in keys if key.name not in schemas.FRAGMENTS.names),
    )
    return InputColumns(columns=columns, added=(), by="reassembly")


def from_csv(
    batch: pa.RecordBatch, intake: InputColumns, *, file: Path, row_of: Callable[[int], int] = int
) -> pa.RecordBatch:
    """Brings the text of a CSV file to what a command reads; other columns stay as they are.

    An empty cell is no value, and so is `NULL`, which SQL Server's tools write.

    Args:
        batch: The columns, all text.
        intake: What is read.
        file: The file, for messages.
        row_of: Tells the number in the file of a row of the batch, for messages.

    Returns:
        The columns.

    Raises:
        InputError: A cell is not what its column needs.

    Examples:
        >>> batch = pa.record_batch({"database": ["Sales", "NULL"], "is_initiator": ["1", "false"]})
        >>> from_csv(batch, CONVERSATIONS, file=Path("c.csv")).to_pylist()
        [{'database': 'Sales', 'is_initiator': True}, {'database': None, 'is_initiator': False}]
    """
    for number, name in enumerate(batch.schema.names):
        if name not in intake.columns.names:
            continue
        field, cells = intake.columns.field(name), batch.column(number)
        if field.nullable:
            cells = pc.if_else(pc.is_in(cells, value_set=pa.array(_NO_VALUE)), None, cells)
        if field.type != pa.string():
            cells = _typed(cells, field, file=file, row_of=row_of)
        batch = batch.set_column(number, name, cells)
    return batch


def from_json(
    batch: pa.RecordBatch, intake: InputColumns, *, file: Path, row_of: Callable[[int], int] = int
) -> pa.RecordBatch:
    r"""Brings the text of JSON lines to bytes where a command reads bytes.

    Args:
        batch: The columns, those that the command reads as in `intake.in_json`.
        intake: What is read.
        file: The file, for messages.
        row_of: Tells the number in the file of a row of the batch, for messages.

    Returns:
        The columns.

    Raises:
        InputError: A text is no bytes.

    Examples:
        >>> bodies = InputColumns(columns=pa.schema([("message_body", pa.binary())]), added=(), by="nobody")
        >>> from_json(pa.record_batch({"message_body": ["0x01ff"]}), bodies, file=Path("f.jsonl")).to_pylist()
        [{'message_body': b'\x01\xff'}]
    """
    for number, name in enumerate(batch.schema.names):
        if name in intake.columns.names and intake.columns.field(name).type == pa.binary():
            cells = _typed(batch.column(number), intake.columns.field(name), file=file, row_of=row_of)
            batch = batch.set_column(number, name, cells)
    return batch


def _in_json(kind: pa.DataType) -> pa.DataType:
    return pa.string() if kind == pa.binary() else kind


def _typed(cells: Column, field: pa.Field[Any], *, file: Path, row_of: Callable[[int], int]) -> Column:
    try:
        if field.type == pa.bool_():
            return _truth(cells)
        return _bytes(cells) if field.type == pa.binary() else _whole(cells, field.type)
    except _BadCellError as error:
        wrong = error.args[0]
        value, row, expected = cells[wrong].as_py()[:_SHOWN_MAX], row_of(wrong), InputColumns.expected(field.type)
        raise InputError(
            f"{file}: {field.name}, row {row}: {value!r} is not {expected}",
            column=field.name,
            row=row,
            value=value,
            expected=expected,
        ) from None


class _BadCellError(Exception):
    """The place of the first cell that is not what was expected."""


def _truth(cells: Column) -> Column:
    found = pc.index_in(pc.utf8_lower(pc.utf8_trim_whitespace(cells)), value_set=pa.array(_TRUTH))
    _refuse(pc.and_(pc.is_null(found), pc.is_valid(cells)))
    return pc.less_equal(found, _TRUE_UP_TO)


def _whole(cells: Column, kind: pa.DataType) -> Column:
    trimmed = pc.utf8_trim_whitespace(cells)
    try:
        return pc.cast(trimmed, kind)
    except pa.ArrowInvalid:
        _refuse(pa.array([not _fits(text, kind) for text in trimmed.to_pylist()], pa.bool_()))
        raise


def _fits(text: str | None, kind: pa.DataType) -> bool:
    try:
        pa.scalar(text, pa.string()).cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _bytes(cells: Column) -> Column:
    """The bytes that hexadecimal digits spell, with `0x` before them or without."""
    text = pc.fill_null(pc.cast(cells, pa.large_string()), "").view(pa.large_binary())
    marked = pc.or_(pc.starts_with(text, b"0x"), pc.starts_with(text, b"0X"))
    digits = pc.binary_replace_slice(text, 0, 2, b"") if pc.any(marked).as_py() else text
    if not pc.all(marked).as_py():
        digits = pc.if_else(marked, digits, text)
    digits = pa.concat_arrays([digits])  # a copy begins at offset 0
    lengths = pc.binary_length(digits)
    _, offsets, data = digits.buffers()
    plain = None
    if not pc.any(pc.equal(pc.bit_wise_and(lengths, 1), 1)).as_py():
        with contextlib.suppress(binascii.Error):
            plain = binascii.unhexlify(memoryview(data)[: pc.sum(lengths).as_py()] if data and len(digits) else b"")
    if plain is None:
        raise _BadCellError(pc.index(pc.match_substring_regex(cells, _DIGITS), False).as_py())
    ends = pa.Array.from_buffers(pa.int64(), len(digits) + 1, [None, offsets])
    halves = pc.shift_right(ends, 1).buffers()[1] if len(digits) else offsets
    decoded = pa.Array.from_buffers(pa.large_binary(), len(digits), [None, halves, pa.py_buffer(plain)])
    return pc.if_else(pc.is_valid(cells), decoded, None)


def _refuse(wrong: Column) -> None:
    """Raises for the first cell that is marked as wrong."""
    row = pc.index(pc.fill_null(wrong, False), True).as_py()
    if row >= 0:
        raise _BadCellError(row)
