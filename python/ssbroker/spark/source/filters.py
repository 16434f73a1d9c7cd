"""Filters of Spark's that are answered here, exactly as Spark would (U25)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

_VALUES_MAX: Final = 100
_NUMBER: Final = "queuing_order"
_DATABASE: Final = "database"
_COMPARED: Final = {
    "EqualTo": lambda field, value: field == value,
    "GreaterThan": lambda field, value: field > value,
    "GreaterThanOrEqual": lambda field, value: field >= value,
    "LessThan": lambda field, value: field < value,
    "LessThanOrEqual": lambda field, value: field <= value,
}
_PREFIXED: Final = {
    "StringStartsWith": pc.starts_with,
    "StringEndsWith": pc.ends_with,
    "StringContains": pc.match_substring,
}


@dataclass(frozen=True, slots=True)
class Pushed:
    """Filters that are taken over."""

    expression: pc.Expression | None = None
    """What a row has to meet; None is nothing."""
    after: int = 0
    """All rows of a queue have greater numbers."""
    until: int | None = None
    """No row of a queue has a greater number."""
    databases: frozenset[str] | None = None
    """The databases that rows can be of; None is any."""

    def apply(self, table: pa.Table) -> pa.Table:
        """The rows that meet the filters."""
        return table if self.expression is None else table.filter(self.expression)


def push(filters: Sequence[Any], schema: pa.Schema) -> tuple[Pushed, list[Any]]:
    """Takes over what can be answered here.

    Args:
        filters: Spark's filters; a row has to meet all.
        schema: The columns.

    Returns:
        What is taken over, and the filters that are left to Spark.
    """
    pushed, left = Pushed(), []
    for each in filters:
        expression = _expression(each, schema)
        if expression is None:
            left.append(each)
        else:
            pushed = _narrowed(pushed, each, expression)
    return pushed, left


def _expression(asked: Any, schema: pa.Schema) -> Any:
    """A filter as Arrow has it, with Spark's three values of truth; None where that is not known."""
    kind = type(asked).__name__
    if kind == "Not":
        inner = _expression(asked.child, schema)
        return None if inner is None else ~inner
    if len(asked.attribute) != 1 or asked.attribute[0] not in schema.names:
        return None
    name = asked.attribute[0]
    field, column = pc.field(name), schema.field(name).type
    if kind in {"IsNull", "IsNotNull"}:
        return field.is_null() if kind == "IsNull" else field.is_valid()
    values = asked.value if kind == "In" else (asked.value,)
    if not 0 < len(values) <= _VALUES_MAX or not all(_fits(value, column) for value in values):
        return None
    if kind == "In":
        return reduce(or_, (field == pa.scalar(value, column) for value in values))
    if kind in _COMPARED:
        return _COMPARED[kind](field, pa.scalar(values[0], column))
    if kind in _PREFIXED and column == pa.string():
        return _PREFIXED[kind](field, values[0])
    return None


def _fits(value: object, column: pa.DataType) -> bool:
    """Whether a value of a filter is one of the column's, so that they compare here as they do in Spark."""
    if pa.types.is_boolean(column):
        return isinstance(value, bool)
    if pa.types.is_integer(column):
        return isinstance(value, int) and not isinstance(value, bool)
    return (pa.types.is_string(column) and isinstance(value, str)) or (
        pa.types.is_binary(column) and isinstance(value, bytes | bytearray)
    )


def _narrowed(pushed: Pushed, asked: Any, expression: Any) -> Pushed:
    kind = type(asked).__name__
    name = asked.attribute[0] if kind != "Not" else None
    after, until, databases = pushed.after, pushed.until, pushed.databases
    if name == _NUMBER and kind in _COMPARED:
        value = asked.value
        if kind.startswith("Greater") or kind == "EqualTo":
            after = max(after, value - (kind != "GreaterThan"))
        if kind.startswith("Less") or kind == "EqualTo":
            most = max(
                0, value - (kind == "LessThan")
            )  # numbers begin with 1, and what is stored has no less than -2**63
            until = most if until is None else min(until, most)
    elif name == _DATABASE and kind in {"EqualTo", "In"}:
        named = frozenset(asked.value if kind == "In" else (asked.value,))
        databases = named if databases is None else databases & named
    whole = expression if pushed.expression is None else pushed.expression & expression
    return Pushed(whole, after, until, databases)
