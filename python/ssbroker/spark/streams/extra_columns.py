"""The extra columns of a stream: their names and types, which the state of a bucket keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker._arrow_types import replace_leaves
from ssbroker.spark.arrow_columns import column, with_column
from ssbroker.spark.reassembly_output import extra_name

if TYPE_CHECKING:
    from pyspark.sql.types import StructField


_NAME: Final = b"name"
_WATERMARK: Final = "spark.watermarkDelayMs"
"""The metadata key by which Spark marks the column that was passed to `withWatermark`."""
_SMALL_TYPES: Final[dict[Any, Any]] = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


def select_extra(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Returns the extra columns of a schema with their original names attached; `names` are the original names, by position.

    Examples:
        >>> describe(select_extra(pa.schema({"message_body": pa.binary(), "further_0": pa.string()}), ["to_service_name"]))
        'to_service_name string'
    """
    names_by_column = _names_by_column(names)
    return pa.schema(
        [
            pa.field(field.name, field.type, metadata={_NAME: names_by_column[field.name].encode()})
            for field in schema
            if field.name in names_by_column
        ]
    )


def without_watermark(fields: Sequence[StructField]) -> tuple[StructField, ...]:
    """Returns the columns without Spark's watermark, because pending messages leave the state later than the watermark allows."""
    from pyspark.sql.types import StructField  # noqa: PLC0415 - pyspark is an extra

    return tuple(
        StructField(
            field.name,
            field.dataType,
            field.nullable,
            {name: value for name, value in field.metadata.items() if name != _WATERMARK},
        )
        for field in fields
    )


def have_names(before: pa.Schema, names: Sequence[str]) -> bool:
    """Returns whether columns have the same names as before, as far as the names were stored."""
    names_by_column = _names_by_column(names)
    return all(_name(field) in ("", names_by_column.get(field.name)) for field in before)


def have_types(before: pa.Schema, now: pa.Schema) -> bool:
    """Returns whether columns have the same types as before.

    The time zone of timestamps and the width of the offsets of strings and binary values depend on session settings and are not compared.
    """
    return [_comparable_type(field.type) for field in before] == [_comparable_type(field.type) for field in now]


def cast_to(rows: pa.Table, before: pa.Schema) -> pa.Table:
    """Casts the extra columns of rows to the previous types.

    Examples:
        >>> rows = pa.table({"further_0": pa.array(["a"], pa.large_string())})
        >>> cast_to(rows, pa.schema({"further_0": pa.string()})).schema.types
        [DataType(string)]
    """
    for field in before:
        if rows.schema.field(field.name).type != field.type:
            rows = with_column(rows, field.name, column(rows, field.name).cast(field.type))
    return rows


def describe(extra: pa.Schema) -> str:
    """Describes the columns for an error message."""
    return ", ".join(f"{_name(field)} {field.type}".strip() for field in extra) or "none"


def _names_by_column(names: Sequence[str]) -> dict[str, str]:
    return {extra_name(index): name for index, name in enumerate(names)}


def _name(field: Any) -> str:
    name: str = (field.metadata or {}).get(_NAME, b"").decode()
    return name


def _comparable_type(arrow_type: Any) -> Any:
    return replace_leaves(arrow_type, _comparable_leaf)


def _comparable_leaf(leaf: Any) -> Any:
    if pa.types.is_timestamp(leaf):
        return leaf if leaf.tz is None else pa.timestamp(leaf.unit, "UTC")
    return _SMALL_TYPES.get(leaf, leaf)
