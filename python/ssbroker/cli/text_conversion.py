"""Converts columns from and to the text of CSV and JSON files."""

from __future__ import annotations

import binascii
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute

from ssbroker._arrow import guid_text, null_where, with_column
from ssbroker._compat import cast, is_binary_view, is_string_view
from ssbroker._csv import NULL_TEXTS
from ssbroker._text import quantity
from ssbroker.cli.errors import line_of
from ssbroker.cli.input_columns import InputColumns
from ssbroker.exceptions import InputError

ArrowColumn: TypeAlias = Any
"""An Arrow array of any type."""

pc: Any = pyarrow.compute  # the stubs support neither Python constants nor text with 64-bit offsets
GUID_COLUMNS: Final = ("conversation_id", "conversation_handle", "to_broker_instance")
BYTES_COLUMNS: Final = ("message_body", "message_signature", "fragment_signature", "session_key")
_BOOLEAN_TEXTS: Final = ("true", "1", "false", "0")
_LAST_TRUE_INDEX: Final = 1
_HEX_PATTERN: Final = "^(0[xX])?([0-9a-fA-F]{2})*$"
_SHOWN_CHARACTERS_MAX: Final = 80


class InvalidCellError(InputError):
    """A cell of a text file cannot be converted to the type of its column."""


def convert_csv(
    batch: pa.RecordBatch,
    input_columns: InputColumns,
    *,
    file: Path,
    row_in_file: Callable[[int], int] = int,
    invalid: dict[int, dict[str, Any]] | None = None,
) -> pa.RecordBatch:
    """Converts the text of a CSV file to the types that the command expects; other columns remain text.

    In nullable columns, an empty cell, `NULL` and `null` are null. If `invalid` is a dictionary, a cell that cannot be converted raises
    no error: the first such cell of each row is added to the dictionary, with the row in the batch as the key.

    Examples:
        >>> from ssbroker.cli.input_columns import CONVERSATION_COLUMNS
        >>> batch = pa.record_batch({"database": ["Sales", "NULL"], "is_initiator": ["1", "false"]})
        >>> convert_csv(batch, CONVERSATION_COLUMNS, file=Path("c.csv")).to_pylist()
        [{'database': 'Sales', 'is_initiator': True}, {'database': None, 'is_initiator': False}]
    """
    conversion = _Conversion(input_columns, file, row_in_file, invalid)
    for number, name in enumerate(batch.schema.names):
        if name not in input_columns.schema.names:
            continue
        field, cells = input_columns.schema.field(name), batch.column(number)
        if field.nullable:
            cells = null_where(pc.is_in(cells, value_set=pa.array(NULL_TEXTS)), cells)
        if field.type != pa.string():
            cells = conversion.convert(cells, field)
        batch = with_column(batch, number, pa.field(name, cells.type), cells)
    return batch


def convert_json(
    batch: pa.RecordBatch,
    input_columns: InputColumns,
    *,
    file: Path,
    row_in_file: Callable[[int], int] = int,
    invalid: dict[int, dict[str, Any]] | None = None,
) -> pa.RecordBatch:
    """Converts hexadecimal text to bytes in the binary columns that the command reads; `invalid` is as for `convert_csv`."""
    conversion = _Conversion(input_columns, file, row_in_file, invalid)
    for number, name in enumerate(batch.schema.names):
        if name in input_columns.schema.names and input_columns.schema.field(name).type == pa.binary():
            cells = conversion.convert(batch.column(number), input_columns.schema.field(name))
            batch = with_column(batch, number, pa.field(name, cells.type), cells)
    return batch


@dataclass(frozen=True, slots=True)
class _Conversion:
    input_columns: InputColumns
    file: Path
    row_in_file: Callable[[int], int]
    invalid: dict[int, dict[str, Any]] | None

    def convert(self, cells: ArrowColumn, field: pa.Field[Any]) -> ArrowColumn:
        """Converts the cells of a column; raises an error for the first invalid cell, or adds all to `invalid`."""
        values, is_invalid = _CONVERSIONS[field.type](cells)
        if is_invalid is None:
            return values
        for row in pc.indices_nonzero(is_invalid).to_pylist():
            shown = self._shown(cells[row].as_py(), field)
            if self.invalid is None:
                raise self._error(field, row, shown)
            self.invalid.setdefault(row, {"row": row, "column": field.name, "value": shown, "reason": "out_of_range"})
        return values

    def _shown(self, text: str, field: pa.Field[Any]) -> str:
        is_secret = field.name == self.input_columns.secret
        return quantity(len(text), "character") if is_secret else text[:_SHOWN_CHARACTERS_MAX]

    def _error(self, field: pa.Field[Any], row: int, shown: str) -> InvalidCellError:
        number, expected = self.row_in_file(row), InputColumns.expected_value(field.type)
        return InvalidCellError(
            f"{self.file}: {field.name}, row {number}: {shown!r} is not valid; expected {expected}{line_of(self.file, number)}",
            column=field.name,
            row=number,
            value=shown,
            expected=expected,
        )


Converted: TypeAlias = tuple[ArrowColumn, ArrowColumn | None]
"""Converted cells, and a mask of the cells that cannot be converted, or None if there are none; their values are arbitrary."""


def _to_booleans(cells: ArrowColumn) -> Converted:
    indexes = pc.index_in(pc.utf8_lower(pc.utf8_trim_whitespace(cells)), value_set=pa.array(_BOOLEAN_TEXTS))
    return pc.less_equal(indexes, _LAST_TRUE_INDEX), _any_of(pc.and_(pc.is_null(indexes), pc.is_valid(cells)))


def _to_integers(cells: ArrowColumn, data_type: pa.DataType) -> Converted:
    trimmed = pc.utf8_trim_whitespace(cells)
    try:
        return pc.cast(trimmed, data_type), None
    except pa.ArrowInvalid:
        is_invalid = pa.array([not _is_castable(text, data_type) for text in trimmed.to_pylist()], pa.bool_())
        return pc.cast(null_where(is_invalid, trimmed), data_type), is_invalid


def _is_castable(text: str | None, data_type: pa.DataType) -> bool:
    try:
        pa.scalar(text, pa.string()).cast(data_type)
    except pa.ArrowInvalid:
        return False
    return True


def _to_bytes(cells: ArrowColumn) -> Converted:
    """Decodes hexadecimal digits, with or without a leading `0x`."""
    decoded = _decoded(cells)
    if decoded is not None:
        return decoded, None
    is_invalid = pc.fill_null(pc.invert(pc.match_substring_regex(cells, _HEX_PATTERN)), False)
    return _decoded(null_where(is_invalid, cells)), is_invalid


def _decoded(cells: ArrowColumn) -> ArrowColumn | None:
    """Returns the decoded cells; None if some are not hexadecimal digits."""
    text = pc.fill_null(pc.cast(cells, pa.large_string()), "").view(pa.large_binary())
    is_prefixed = pc.or_(pc.starts_with(text, b"0x"), pc.starts_with(text, b"0X"))
    digits = pc.binary_replace_slice(text, 0, 2, b"") if pc.any(is_prefixed).as_py() else text
    if not pc.all(is_prefixed).as_py():
        digits = pc.if_else(is_prefixed, digits, text)
    digits = pa.concat_arrays([digits])  # a copy starts at offset 0
    lengths = pc.binary_length(digits)
    _, offsets, data = digits.buffers()
    if pc.any(pc.equal(pc.bit_wise_and(lengths, 1), 1)).as_py():
        return None
    try:
        decoded = binascii.unhexlify(memoryview(data)[: pc.sum(lengths).as_py()] if data and len(digits) else b"")
    except binascii.Error:
        return None
    ends = pa.Array.from_buffers(pa.int64(), len(digits) + 1, [None, offsets])
    halves = pc.shift_right(ends, 1).buffers()[1] if len(digits) else offsets
    values = pa.Array.from_buffers(pa.large_binary(), len(digits), [None, halves, pa.py_buffer(decoded)])
    return null_where(pc.is_null(cells), values)


def _any_of(mask: ArrowColumn) -> ArrowColumn | None:
    """Returns a mask, or None if it marks nothing."""
    return mask if pc.any(mask).as_py() else None


_CONVERSIONS: Final[Mapping[pa.DataType, Callable[[ArrowColumn], Converted]]] = {
    pa.binary(): _to_bytes,
    pa.bool_(): _to_booleans,
    pa.int32(): partial(_to_integers, data_type=pa.int32()),
    pa.int64(): partial(_to_integers, data_type=pa.int64()),
}


def hex_text(column: ArrowColumn) -> ArrowColumn:
    """Converts bytes to hexadecimal digits."""
    if len(column) == 0:
        return pa.nulls(0, pa.large_string())
    compact = pa.concat_arrays([cast(column, pa.large_binary())])  # a copy starts at offset 0
    _, offsets, data = compact.buffers()
    ends = pa.Array.from_buffers(pa.int64(), len(compact) + 1, [None, offsets])
    start, stop = ends[0].as_py(), ends[-1].as_py()
    digits = memoryview(data)[start:stop].hex().encode() if stop > start else b""
    doubled = pc.multiply(pc.subtract(ends, start), 2)
    text = pa.Array.from_buffers(pa.large_string(), len(compact), [None, doubled.buffers()[1], pa.py_buffer(digits)])
    return null_where(pc.is_null(compact), text)


def readable(column: ArrowColumn, *, name: str) -> ArrowColumn:
    r"""Converts values that CSV and JSON cannot represent: ids to GUIDs, other bytes to `0x` and hexadecimal digits, dictionaries to their values.

    Examples:
        >>> readable(pa.array([b"\x01\xff"]), name="message_body").to_pylist()
        ['0x01ff']
    """
    data_type = column.type
    if isinstance(data_type, pa.BaseExtensionType):
        is_uuid = data_type.extension_name == "arrow.uuid"
        return guid_text(column.storage) if is_uuid else readable(column.storage, name=name)
    if pa.types.is_dictionary(data_type):
        return readable(column.dictionary_decode(), name=name)
    if is_string_view(data_type):
        return pc.cast(column, pa.large_string())
    if pa.types.is_duration(data_type) or pa.types.is_interval(data_type):
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.large_string())
    if not _is_bytes(data_type):
        return column
    is_guid = name in GUID_COLUMNS and _all_guids(column)
    if is_guid or (data_type == pa.binary(16) and name not in BYTES_COLUMNS):
        return guid_text(column)
    return concat_text(["0x", hex_text(column)])


def csv_cells(column: ArrowColumn, *, name: str) -> ArrowColumn:
    """Converts a column for the CSV writer; nested values become JSON.

    Examples:
        >>> csv_cells(pa.array([[1, 2], None]), name="parts").to_pylist()
        ['[1,2]', None]
    """
    column = readable(column, name=name)
    return _json_dumped(column) if pa.types.is_nested(column.type) else column


def json_values(column: ArrowColumn, *, name: str) -> ArrowColumn:
    r"""Converts a column to the JSON text of each value.

    Examples:
        >>> json_values(pa.array(['say "hi"', None]), name="note").to_pylist()
        ['"say \\"hi\\""', 'null']
    """
    if pa.types.is_dictionary(column.type) and len(column.dictionary) < len(column):
        return pc.fill_null(json_values(column.dictionary, name=name).take(column.indices), "null")
    column = readable(column, name=name)
    data_type = column.type
    if pa.types.is_boolean(data_type) or pa.types.is_integer(data_type) or pa.types.is_decimal(data_type):
        values = pc.cast(column, pa.large_string())
    elif pa.types.is_floating(data_type):
        values = pc.cast(null_where(pc.invert(pc.is_finite(column)), column), pa.large_string())
    elif pa.types.is_string(data_type) or pa.types.is_large_string(data_type) or pa.types.is_temporal(data_type):
        values = _json_quoted(pc.cast(column, pa.large_string()))
    else:
        values = _json_dumped(column)
    return pc.fill_null(values, "null")


def concat_text(parts: list[Any]) -> ArrowColumn:
    """Concatenates columns and constants row by row into one text column.

    Examples:
        >>> concat_text([pa.array(["1", "2"], pa.large_string()), ";"]).to_pylist()
        ['1;', '2;']
    """
    texts = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*texts, pa.scalar("", pa.large_string()))


def _is_bytes(data_type: pa.DataType) -> bool:
    return (
        pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
        or pa.types.is_fixed_size_binary(data_type)
        or is_binary_view(data_type)
    )


def _all_guids(column: ArrowColumn) -> bool:
    lengths = pc.binary_length(cast(column, pa.large_binary()))
    return bool(pc.all(pc.equal(lengths, 16), min_count=0).as_py())


def _json_quoted(column: ArrowColumn) -> ArrowColumn:
    if pc.any(pc.match_substring_regex(column, '[\\x00-\\x1f"\\\\]')).as_py():  # rarely needed, and slow
        for character in ("\\", '"', *map(chr, range(0x20))):
            column = pc.replace_substring(column, character, json.dumps(character)[1:-1])
    return concat_text(['"', column, '"'])


def _json_dumped(column: ArrowColumn) -> ArrowColumn:
    texts = [
        None if value is None else json.dumps(_json_compatible(value), ensure_ascii=False, separators=(",", ":"))
        for value in column.to_pylist()
    ]
    return pa.array(texts, pa.large_string())


def _json_compatible(value: Any) -> Any:
    """Converts a Python value from any column for `json.dumps`."""
    if isinstance(value, dict):
        return {str(key): _json_compatible(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_compatible(item) for item in value]
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
