"""Cells of CSV and JSON files, brought to the types of a schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import moment
from ssbroker.exceptions import InputError

_INT32: Final = range(-(2**31), 2**31)
_TRUTH: Final = {"true": True, "false": False, "1": True, "0": False}
_NO_VALUE: Final = ("", "NULL")


def typed_column(
    values: pa.ChunkedArray[Any] | Sequence[Any], field: pa.Field[Any], *, where: str
) -> pa.ChunkedArray[Any]:
    """Brings one column to the type of its field.

    GUIDs stay text: the catalog reads them.

    Args:
        values: The cells: text as CSV has it, or Python values as JSON has them.
        field: The field of the schema.
        where: File, table and column, for messages.

    Returns:
        The column.

    Raises:
        InputError: A cell is not what the field needs.

    Examples:
        >>> import pyarrow as pa
        >>> typed_column([1, None, 70000], pa.field("route_id", pa.int32()), where="routes.json: routes.route_id").type
        DataType(int32)
    """
    parse, kind, expected = _reading(field.type)
    if not isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([pa.array(_parsed(values, parse, where, expected), kind)])
    if pa.types.is_string(kind):
        return _without_nulls(values, _NO_VALUE if field.nullable else ("",))
    distinct = _without_nulls(pc.utf8_trim_whitespace(values), _NO_VALUE).combine_chunks().dictionary_encode()
    readable: list[Any] = []
    unreadable: list[int] = []
    for number, value in enumerate(distinct.dictionary.to_pylist()):
        try:
            readable.append(parse(value))
        except ValueError:
            readable.append(None)
            unreadable.append(number)
    if unreadable:
        row = pc.index(pc.is_in(distinct.indices, value_set=pa.array(unreadable, distinct.indices.type)), True).as_py()
        raise _error(values[row].as_py(), row, where, expected)
    return pa.chunked_array([pa.array(readable, kind).take(distinct.indices)])


def _parsed(values: Sequence[Any], parse: Callable[[Any], Any], where: str, expected: str) -> list[Any]:
    parsed = []
    for row, value in enumerate(values):
        try:
            parsed.append(None if value is None else parse(value))
        except ValueError as error:
            raise _error(value, row, where, expected) from error
    return parsed


def _reading(kind: pa.DataType) -> tuple[Callable[[Any], Any], pa.DataType, str]:
    """How a cell is read, the type that comes out, and what is expected in words."""
    if pa.types.is_int32(kind):
        return _whole_number, kind, "a whole number of 32 bits"
    if pa.types.is_boolean(kind):
        return _truth, kind, "true, false, 1 or 0"
    if pa.types.is_timestamp(kind):
        return _moment, kind, "a moment such as 2026-11-20T21:00:00Z or 2026-11-20 21:00:00.000"
    return _text, pa.string(), "text"


def _whole_number(value: Any) -> int:
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and value.isascii():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value not in _INT32:
        raise ValueError(value)
    return value


def _truth(value: Any) -> bool:
    if isinstance(value, str):
        value = _TRUTH.get(value.lower())
    if value is True or value is False:
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise ValueError(value)


def _moment(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(value)  # noqa: TRY004 - the caller turns every refusal into one error
    return moment.parse(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(value)  # noqa: TRY004 - the same
    value.encode()  # a lone surrogate, which JSON can spell, is no text
    return value


def _without_nulls(values: pa.ChunkedArray[Any], no_value: Sequence[str]) -> pa.ChunkedArray[Any]:
    """An empty cell is null, and so is, where there may be none, the word that SQL Server Management Studio writes for it."""
    filled: pa.ChunkedArray[Any] = pc.if_else(pc.is_in(values, value_set=pa.array(no_value)), None, values)
    return filled


def _error(value: object, row: int, where: str, expected: str) -> InputError:
    shown = ascii(value) if len(ascii(value)) <= 80 else ascii(value)[:77] + "..."  # noqa: PLR2004
    return InputError(
        f"{where}, row {row}: {shown} is not {expected}",
        column=where.rpartition(" ")[2],
        row=row,
        value=shown,
        expected=expected,
    )
