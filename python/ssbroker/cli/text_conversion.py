"""Converts columns from and to the text of CSV and JSON files."""

from __future__ import annotations

import binascii
import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute

from ssbroker._arrow import guid_text, null_where, with_column
from ssbroker._compat import cast, is_binary_view, is_string_view
from ssbroker._csv import NULL_TEXTS
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


def convert_csv(
    batch: pa.RecordBatch,
    input_columns: InputColumns,
    *,
    file: Path,
    row_in_file: Callable[[int], int] = int,
    rejected: list[dict[str, Any]] | None = None,
) -> pa.RecordBatch:
    """Converts the text of a CSV file to the types that the command expects; other columns remain text.

    In nullable columns, an empty cell, `NULL` and `null` are null. If `rejected` is a list, a cell that is no boolean raises no error:
    the row is added to the list, and the cell becomes false.

    Examples:
        >>> from ssbroker.cli.input_columns import CONVERSATION_COLUMNS
        >>> batch = pa.record_batch({"database": ["Sales", "NULL"], "is_initiator": ["1", "false"]})
        >>> convert_csv(batch, CONVERSATION_COLUMNS, file=Path("c.csv")).to_pylist()
        [{'database': 'Sales', 'is_initiator': True}, {'database': None, 'is_initiator': False}]
    """
    for number, name in enumerate(batch.schema.names):
        if name not in input_columns.schema.names:
            continue
        field, cells = input_columns.schema.field(name), batch.column(number)
        if field.nullable:
            cells = null_where(pc.is_in(cells, value_set=pa.array(NULL_TEXTS)), cells)
        if field.type == pa.bool_() and rejected is not None:
            cells, is_invalid = _to_booleans(cells)
            for row in pc.indices_nonzero(is_invalid).to_pylist():
                value = batch.column(number)[row].as_py()[:_SHOWN_CHARACTERS_MAX]
                rejected.append({"row": row, "column": name, "value": value, "reason": "out_of_range"})
        elif field.type != pa.string():
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


def _converted(
    cells: ArrowColumn, field: pa.Field[Any], *, file: Path, row_in_file: Callable[[int], int]
) -> ArrowColumn:
    try:
        if field.type == pa.bool_():
            booleans, is_invalid = _to_booleans(cells)
            _raise_if_any(is_invalid)
            return booleans
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


def _to_booleans(cells: ArrowColumn) -> tuple[ArrowColumn, ArrowColumn]:
    """Returns booleans, and a mask of the cells that are neither boolean nor null."""
    indexes = pc.index_in(pc.utf8_lower(pc.utf8_trim_whitespace(cells)), value_set=pa.array(_BOOLEAN_TEXTS))
    is_invalid = pc.and_(pc.is_null(indexes), pc.is_valid(cells))
    return pc.and_(pc.less_equal(indexes, _LAST_TRUE_INDEX), pc.invert(is_invalid)), is_invalid


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
    """Raises `_BadCellError` for the first cell that is marked as bad."""
    index = pc.index(pc.fill_null(is_bad, False), True).as_py()
    if index >= 0:
        raise _BadCellError(index)


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
