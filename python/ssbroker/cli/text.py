"""Renders column values as text for CSV, JSON and tables."""

from __future__ import annotations

import json
import math
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute
from rich.text import Text

from ssbroker._text import terminal_safe

ArrowColumn: TypeAlias = Any
"""An array of any type."""

pc: Any = pyarrow.compute  # its stubs know neither Python constants nor text with 64-bit offsets
GUID_COLUMNS: Final = ("conversation_id", "conversation_handle", "to_broker_instance")
BYTES_COLUMNS: Final = ("message_body", "message_signature", "fragment_signature", "session_key")
_GUID_DIGITS: Final = [place for place in range(36) if place not in (8, 13, 18, 23)]


def guid_text(column: ArrowColumn) -> ArrowColumn:
    """GUIDs of 16 bytes as 36 characters.

    Examples:
        >>> guid_text(pa.array([bytes(range(16)), None], pa.binary(16))).to_pylist()
        ['00010203-0405-0607-0809-0a0b0c0d0e0f', None]
    """
    plain = pa.concat_arrays([pc.cast(column, pa.binary(16))])  # a copy begins at offset 0
    if len(plain) == 0:
        return pa.nulls(0, pa.large_string())
    digits = memoryview(plain.buffers()[1])[: 16 * len(plain)].hex().encode()
    text = bytearray(b"-" * (36 * len(plain)))
    for source, place in enumerate(_GUID_DIGITS):
        text[place::36] = digits[source::32]
    rows = pa.Array.from_buffers(pa.binary(36), len(plain), [None, pa.py_buffer(text)])
    return pc.if_else(pc.is_valid(plain), pc.cast(pc.cast(rows, pa.large_binary()), pa.large_string()), None)


def hex_text(column: ArrowColumn) -> ArrowColumn:
    r"""Bytes as hexadecimal digits, two for each.

    Examples:
        >>> hex_text(pa.array([b"\x01\xff", None, b""])).to_pylist()
        ['01ff', None, '']
    """
    if len(column) == 0:
        return pa.nulls(0, pa.large_string())
    plain = pa.concat_arrays([pc.cast(column, pa.large_binary())])  # a copy begins at offset 0
    _, offsets, data = plain.buffers()
    ends = pa.Array.from_buffers(pa.int64(), len(plain) + 1, [None, offsets])
    start, stop = ends[0].as_py(), ends[-1].as_py()
    digits = memoryview(data)[start:stop].hex().encode() if stop > start else b""
    doubled = pc.multiply(pc.subtract(ends, start), 2)
    text = pa.Array.from_buffers(pa.large_string(), len(plain), [None, doubled.buffers()[1], pa.py_buffer(digits)])
    return pc.if_else(pc.is_valid(plain), text, None)


def readable(column: ArrowColumn, *, name: str) -> ArrowColumn:
    r"""A column with what CSV and JSON can show: ids as GUIDs, other bytes as `0x` and digits, dictionaries as their values.

    Examples:
        >>> readable(pa.array([b"\x01\xff"]), name="message_body").to_pylist()
        ['0x01ff']
    """
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        is_uuid = kind.extension_name == "arrow.uuid"
        return guid_text(column.storage) if is_uuid else readable(column.storage, name=name)
    if pa.types.is_dictionary(kind):
        return readable(column.dictionary_decode(), name=name)
    if pa.types.is_string_view(kind):
        return pc.cast(column, pa.large_string())
    if pa.types.is_duration(kind) or pa.types.is_interval(kind):
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.large_string())
    if not _is_bytes(kind):
        return column
    is_guid = name in GUID_COLUMNS and _all_guids(column)
    if is_guid or (kind == pa.binary(16) and name not in BYTES_COLUMNS):
        return guid_text(column)
    return joined_text(["0x", hex_text(column)])


def csv_cells(column: ArrowColumn, *, name: str) -> ArrowColumn:
    """A column as the CSV writer takes it: nested values as JSON.

    Examples:
        >>> csv_cells(pa.array([[1, 2], None]), name="parts").to_pylist()
        ['[1,2]', None]
    """
    column = readable(column, name=name)
    return _dumped(column) if pa.types.is_nested(column.type) else column


def json_values(column: ArrowColumn, *, name: str) -> ArrowColumn:
    r"""A column as JSON values, each as its text; null is `null`.

    Examples:
        >>> json_values(pa.array(['say "hi"', None]), name="note").to_pylist()
        ['"say \\"hi\\""', 'null']
    """
    if pa.types.is_dictionary(column.type) and len(column.dictionary) < len(column):
        return pc.fill_null(json_values(column.dictionary, name=name).take(column.indices), "null")
    column = readable(column, name=name)
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        values = pc.cast(column, pa.large_string())
    elif pa.types.is_floating(kind):
        values = pc.cast(pc.if_else(pc.is_finite(column), column, None), pa.large_string())
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_temporal(kind):
        values = _quoted(pc.cast(column, pa.large_string()))
    else:
        values = _dumped(column)
    return pc.fill_null(values, "null")


def joined_text(parts: list[Any]) -> ArrowColumn:
    """Joins columns and constants, row by row, to one column of text.

    Examples:
        >>> joined_text([pa.array(["1", "2"], pa.large_string()), ";"]).to_pylist()
        ['1;', '2;']
    """
    texts = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*texts, pa.scalar("", pa.large_string()))


def _is_bytes(kind: pa.DataType) -> bool:
    return (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _all_guids(column: ArrowColumn) -> bool:
    lengths = pc.binary_length(pc.cast(column, pa.large_binary()))
    return bool(pc.all(pc.equal(lengths, 16), min_count=0).as_py())


def _quoted(column: ArrowColumn) -> ArrowColumn:
    if pc.any(pc.match_substring_regex(column, '[\\x00-\\x1f"\\\\]')).as_py():  # seldom, and dear
        for character in ("\\", '"', *map(chr, range(0x20))):
            column = pc.replace_substring(column, character, json.dumps(character)[1:-1])
    return joined_text(['"', column, '"'])


def _dumped(column: ArrowColumn) -> ArrowColumn:
    texts = [
        None if value is None else json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"))
        for value in column.to_pylist()
    ]
    return pa.array(texts, pa.large_string())


def _plain(value: Any) -> Any:
    """A Python value of any column as JSON has it."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def cell(text: str, style: str = "") -> Text:
    """The text as it stands in a table: what would steer a terminal as an escape, and what looks like rich's markup as it is.

    Examples:
        >>> cell("Sales[/red]").plain
        'Sales[/red]'
    """
    return Text(terminal_safe(text), style=style)
