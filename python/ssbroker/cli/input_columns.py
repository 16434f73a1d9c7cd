"""The columns that the commands read, and their conversion from the text of CSV and JSON files."""

from __future__ import annotations

import binascii
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from ssbroker import schemas
from ssbroker._arrow import null_where, with_column
from ssbroker.cli.errors import line_of
from ssbroker.cli.text_conversion import ArrowColumn
from ssbroker.exceptions import InputError

pc: Any = pyarrow.compute  # the stubs know neither Python constants nor text with 64-bit offsets
_NULL_TEXTS: Final = ("", "NULL", "null")
_BOOLEAN_TEXTS: Final = ("true", "1", "false", "0")
_LAST_TRUE_INDEX: Final = 1
_HEX_PATTERN: Final = "^(0[xX])?([0-9a-fA-F]{2})*$"
_SHOWN_CHARACTERS_MAX: Final = 80


@dataclass(frozen=True, kw_only=True)
class InputColumns:
    """The columns that a command reads from its input files, and those that it adds to the output."""

    schema: pa.Schema
    """The columns that the command reads if present. Text formats have ids as text, and `NULL` as a spelling of null."""
    added: tuple[str, ...]
    """The columns that the command adds; an input file must not have them."""
    operation: str
    """The noun for what the command does, for messages."""

    @property
    def json_schema(self) -> pa.Schema:
        """The schema for JSON, in which binary columns are text."""
        columns = zip(self.schema.names, self.schema.types, strict=True)
        return pa.schema({name: _json_type(data_type) for name, data_type in columns})

    @staticmethod
    def expected_value(data_type: pa.DataType) -> str:
        """Describes the cells of CSV that are valid for a type, for messages."""
        if data_type == pa.bool_():
            return "true, false, 1 or 0"
        if data_type == pa.binary():
            return "hexadecimal digits, such as 0x01ff"
        return f"a {data_type.bit_width}-bit integer"


def make_schema(*fields: pa.Field[Any]) -> pa.Schema:
    """Returns a schema of fields of any types, which the stubs of pyarrow reject."""
    return pa.schema(list(fields))


_ID_FIELDS: Final[tuple[pa.Field[Any], ...]] = (
    pa.field("conversation_id", pa.string(), nullable=False),
    pa.field("conversation_handle", pa.string(), nullable=False),
)

_CONVERSATION_FIELDS: Final[tuple[pa.Field[Any], ...]] = (
    pa.field("database", pa.string()),
    pa.field("to_service_name", pa.string(), nullable=False),
    pa.field("to_broker_instance", pa.string()),
    pa.field("is_initiator", pa.bool_(), nullable=False),
)

CONVERSATION_COLUMNS: Final = InputColumns(
    schema=make_schema(*_ID_FIELDS, *_CONVERSATION_FIELDS),
    added=tuple(schemas.DECISIONS.names),
    operation="routing",
)
"""The input of `route` and `compare`."""


QUEUE_COLUMNS: Final = InputColumns(
    schema=make_schema(
        *_CONVERSATION_FIELDS,
        pa.field("from_service_name", pa.string()),
        pa.field("transmission_status", pa.string()),
    ),
    added=(),
    operation="the explanation",
)
"""The file of `stuck --queue`."""


SESSION_KEY_COLUMNS: Final = InputColumns(
    schema=make_schema(*_ID_FIELDS, pa.field("session_key", pa.binary(), nullable=False)),
    added=(),
    operation="reassembly",
)
"""The file of `reassemble --session-keys`."""


def fragment_columns(*, session_key_column: str | None = None) -> InputColumns:
    """Returns the input columns of `reassemble`, with the session key column if there is one."""
    keys: list[pa.Field[Any]] = [] if session_key_column is None else [pa.field(session_key_column, pa.binary())]
    schema = make_schema(
        *_ID_FIELDS,
        pa.field("is_initiator", pa.bool_(), nullable=False),
        pa.field("message_sequence_number", pa.int64(), nullable=False),
        pa.field("fragment_number", pa.int32(), nullable=False),
        pa.field("fragment_count", pa.int32(), nullable=False),
        pa.field("message_body", pa.binary(), nullable=False),
        pa.field("message_signature", pa.binary()),
        pa.field("fragment_signature", pa.binary()),
        *(key for key in keys if key.name not in schemas.FRAGMENTS.names),
    )
    return InputColumns(schema=schema, added=(), operation="reassembly")


def convert_csv(
    batch: pa.RecordBatch, input_columns: InputColumns, *, file: Path, row_in_file: Callable[[int], int] = int
) -> pa.RecordBatch:
    """Converts the text of a CSV file to the types that the command reads; other columns stay text.

    In nullable columns, an empty cell and `NULL` or `null`, as tools write it, are null.

    Examples:
        >>> batch = pa.record_batch({"database": ["Sales", "NULL"], "is_initiator": ["1", "false"]})
        >>> convert_csv(batch, CONVERSATION_COLUMNS, file=Path("c.csv")).to_pylist()
        [{'database': 'Sales', 'is_initiator': True}, {'database': None, 'is_initiator': False}]
    """
    for number, name in enumerate(batch.schema.names):
        if name not in input_columns.schema.names:
            continue
        field, cells = input_columns.schema.field(name), batch.column(number)
        if field.nullable:
            cells = null_where(pc.is_in(cells, value_set=pa.array(_NULL_TEXTS)), cells)
        if field.type != pa.string():
            cells = _converted(cells, field, file=file, row_in_file=row_in_file)
        batch = with_column(batch, number, pa.field(name, cells.type), cells)
    return batch


def convert_json(
    batch: pa.RecordBatch, input_columns: InputColumns, *, file: Path, row_in_file: Callable[[int], int] = int
) -> pa.RecordBatch:
    """Converts hexadecimal text to bytes in the binary columns that the command reads."""
    for number, name in enumerate(batch.schema.names):
        if name in input_columns.schema.names and input_columns.schema.field(name).type == pa.binary():
            field = input_columns.schema.field(name)
            cells = _converted(batch.column(number), field, file=file, row_in_file=row_in_file)
            batch = with_column(batch, number, pa.field(name, cells.type), cells)
    return batch


def _json_type(data_type: pa.DataType) -> pa.DataType:
    return pa.string() if data_type == pa.binary() else data_type


def _converted(
    cells: ArrowColumn, field: pa.Field[Any], *, file: Path, row_in_file: Callable[[int], int]
) -> ArrowColumn:
    try:
        if field.type == pa.bool_():
            return _to_booleans(cells)
        return _to_bytes(cells) if field.type == pa.binary() else _to_integers(cells, field.type)
    except _BadCellError as error:
        index = error.args[0]
        value, row = cells[index].as_py()[:_SHOWN_CHARACTERS_MAX], row_in_file(index)
        expected = InputColumns.expected_value(field.type)
        raise InputError(
            f"{file}: {field.name}, row {row}: {value!r} is not valid; expected {expected}{line_of(file, row)}",
            column=field.name,
            row=row,
            value=value,
            expected=expected,
        ) from None


class _BadCellError(Exception):
    """Carries the index of the first invalid cell."""


def _to_booleans(cells: ArrowColumn) -> ArrowColumn:
    indexes = pc.index_in(pc.utf8_lower(pc.utf8_trim_whitespace(cells)), value_set=pa.array(_BOOLEAN_TEXTS))
    _raise_if_any(pc.and_(pc.is_null(indexes), pc.is_valid(cells)))
    return pc.less_equal(indexes, _LAST_TRUE_INDEX)


def _to_integers(cells: ArrowColumn, data_type: pa.DataType) -> ArrowColumn:
    trimmed = pc.utf8_trim_whitespace(cells)
    try:
        return pc.cast(trimmed, data_type)
    except pa.ArrowInvalid:
        _raise_if_any(pa.array([not _is_castable(text, data_type) for text in trimmed.to_pylist()], pa.bool_()))
        raise


def _is_castable(text: str | None, data_type: pa.DataType) -> bool:
    try:
        pa.scalar(text, pa.string()).cast(data_type)
    except pa.ArrowInvalid:
        return False
    return True


def _to_bytes(cells: ArrowColumn) -> ArrowColumn:
    """Decodes hexadecimal digits, with or without a leading `0x`."""
    text = pc.fill_null(pc.cast(cells, pa.large_string()), "").view(pa.large_binary())
    is_prefixed = pc.or_(pc.starts_with(text, b"0x"), pc.starts_with(text, b"0X"))
    digits = pc.binary_replace_slice(text, 0, 2, b"") if pc.any(is_prefixed).as_py() else text
    if not pc.all(is_prefixed).as_py():
        digits = pc.if_else(is_prefixed, digits, text)
    digits = pa.concat_arrays([digits])  # a copy starts at offset 0
    lengths = pc.binary_length(digits)
    _, offsets, data = digits.buffers()
    decoded = None
    if not pc.any(pc.equal(pc.bit_wise_and(lengths, 1), 1)).as_py():
        with contextlib.suppress(binascii.Error):
            decoded = binascii.unhexlify(memoryview(data)[: pc.sum(lengths).as_py()] if data and len(digits) else b"")
    if decoded is None:
        raise _BadCellError(pc.index(pc.match_substring_regex(cells, _HEX_PATTERN), False).as_py())
    ends = pa.Array.from_buffers(pa.int64(), len(digits) + 1, [None, offsets])
    halves = pc.shift_right(ends, 1).buffers()[1] if len(digits) else offsets
    values = pa.Array.from_buffers(pa.large_binary(), len(digits), [None, halves, pa.py_buffer(decoded)])
    return null_where(pc.is_null(cells), values)


def _raise_if_any(is_bad: ArrowColumn) -> None:
    """Raises for the first cell that is marked as bad."""
    index = pc.index(pc.fill_null(is_bad, False), True).as_py()
    if index >= 0:
        raise _BadCellError(index)
