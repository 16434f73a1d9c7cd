"""The extra columns of a stream, fixed for the lifetime of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker.spark.reassembly_rows import extra_name
from ssbroker.spark.streams.row_kinds import column

if TYPE_CHECKING:
    from pyspark.sql.types import StructField


_NAME: Final = b"name"
_WATERMARK: Final = "spark.watermarkDelayMs"
"""By what Spark knows the column of event time behind `withWatermark`."""
_PLAIN: Final[dict[Any, Any]] = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


def of(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """The columns that are carried.

    Args:
        schema: The columns of rows on the way.
        names: What users call those that are carried, by their places.

    Returns:
        Their names on the way and types, with what users call them.

    Examples:
        >>> told(of(pa.schema({"message_body": pa.binary(), "further_0": pa.string()}), ["to_service_name"]))
        'to_service_name string'
    """
    called = {extra_name(place): name for place, name in enumerate(names)}
    return pa.schema(
        [
            pa.field(field.name, field.type, metadata={_NAME: called[field.name].encode()})
            for field in schema
            if field.name in called
        ]
    )


def without_watermark(fields: Sequence[StructField]) -> tuple[StructField, ...]:
    """The columns as they are behind the state, where what waits comes out later than Spark's watermark allows (U15).

    Args:
        fields: The columns before it.

    Returns:
        The same columns, of which none claims to be that of event time.
    """
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


def are_called(before: pa.Schema, names: Sequence[str]) -> bool:
    """Whether users call columns what they called them before, as far as that was kept."""
    called = {extra_name(place): name for place, name in enumerate(names)}
    return all(_name(field) in ("", called.get(field.name)) for field in before)


def are_same(before: pa.Schema, now: pa.Schema) -> bool:
    """Whether columns have the types of before.

    The zone of moments is that of the session, and whether text may be large is a setting of it: both say nothing of what they hold.
    """
    return [_plain(field.type) for field in before] == [_plain(field.type) for field in now]


def as_before(rows: pa.Table, before: pa.Schema) -> pa.Table:
    """The rows with columns of the types of before.

    Examples:
        >>> as_before(pa.table({"further_0": pa.array(["a"], pa.large_string())}), pa.schema({"further_0": pa.string()})).schema.types
        [DataType(string)]
    """
    for field in before:
        place = rows.schema.get_field_index(field.name)
        if rows.schema.field(place).type != field.type:
            rows = rows.set_column(place, field.name, column(rows, field.name).cast(field.type))
    return rows


def told(extra: pa.Schema) -> str:
    """The columns, in words."""
    return ", ".join(f"{_name(field)} {field.type}".strip() for field in extra) or "none"


def _name(field: Any) -> str:
    name: str = (field.metadata or {}).get(_NAME, b"").decode()
    return name


def _plain(kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(*(field.with_type(_plain(field.type)) for field in (kind.key_field, kind.item_field)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_plain(kind.value_type)))
    return _PLAIN.get(kind, kind)
