"""Rows between the operators of a stream: one struct for all kinds of rows, and extra columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker.exceptions import OptionError
from ssbroker.schemas import ACKNOWLEDGEMENTS, MESSAGES, PENDING, REJECTED
from ssbroker.spark import output_columns
from ssbroker.spark.arrow_columns import column
from ssbroker.spark.output_columns import extra_name
from ssbroker.spark.packed_decisions import PACKED_ARROW_TYPES, PACKED_FIELDS, Labels

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType


KIND: Final = output_columns.KIND
MESSAGE: Final = "message"
REJECTION: Final = "rejected"
ACKNOWLEDGEMENT: Final = "acknowledgement"
EXPIRY: Final = "expired"
METRICS: Final = "figures"
"""The size of a bucket: an internal kind, which only `observe` reads."""

_WAITING_SINCE: Final = pa.field("waiting_since", output_columns.TIMESTAMP)
EXPIRED: Final = pa.schema([*PENDING, _WAITING_SINCE])
"""Messages that were dropped because they had not grown: what was missing, and since when they had been pending."""

METRIC_COLUMNS: Final[dict[str, pa.DataType]] = {
    "state_bytes": pa.int64(),
    "incomplete_messages": pa.int64(),
    "delayed_messages": pa.int64(),
}

COLUMNS: Final[dict[str, pa.DataType]] = {
    **{
        field.name: output_columns.to_spark_type(field.type)
        for schema in (MESSAGES, REJECTED, ACKNOWLEDGEMENTS, EXPIRED)
        for field in schema
    },
    **METRIC_COLUMNS,
}
"""The columns of all kinds after `kind`, and their types; columns with the same name are shared."""

_NUMBER: Final = "message_sequence_number"


@dataclass(frozen=True)
class StreamKinds:
    """Selects the rows of one kind from a stream or from a `foreachBatch` batch; it holds no session and can be pickled."""

    _further: tuple[StructField, ...]
    _labels: Labels | None
    _acknowledgements: bool

    def messages(self, rows: DataFrame) -> DataFrame:
        """Selects the complete messages, in order; with a catalog, those that have a route or can no longer wait for one.

        Args:
            rows: `Stream.rows`, or a batch of them.

        Returns:
            `schemas.MESSAGES`, the extra columns of the fragments and, with a catalog, the decision columns.
        """
        own = output_columns.select_columns(MESSAGES, _key_columns(MESSAGES))
        extra = output_columns.select_extra_columns(self._further)
        return _of_kind(rows, MESSAGE).select(*own, *extra, *decision_columns(self._labels))

    def rejected(self, rows: DataFrame) -> DataFrame:
        """Selects the rejected fragments and the reasons.

        Args:
            rows: `Stream.rows`, or a batch of them.

        Returns:
            `schemas.REJECTED`.
        """
        return _of_kind(rows, REJECTION).select(*output_columns.select_columns(REJECTED, _key_columns(REJECTED)))

    def acknowledgements(self, rows: DataFrame) -> DataFrame:
        """Selects the acknowledgements for the senders: one for each direction of which a micro-batch accepted a fragment or saw a duplicate.

        Args:
            rows: `Stream.rows`, or a batch of them.

        Returns:
            `schemas.ACKNOWLEDGEMENTS`.

        Raises:
            OptionError: The stream was created without `acknowledgements=True`.
        """
        if not self._acknowledgements:
            raise OptionError("acknowledgements: this stream does not emit them; create it with acknowledgements=True")
        return _of_kind(rows, ACKNOWLEDGEMENT).select(
            *output_columns.select_columns(ACKNOWLEDGEMENTS, _key_columns(ACKNOWLEDGEMENTS))
        )

    def expired(self, rows: DataFrame) -> DataFrame:
        """Selects the messages that were dropped because they had not grown for `max_pending_age`.

        Args:
            rows: `Stream.rows`, or a batch of them.

        Returns:
            `schemas.PENDING`, then `waiting_since`: when the first fragment arrived.
        """
        return _of_kind(rows, EXPIRY).select(*output_columns.select_columns(EXPIRED, _key_columns(EXPIRED)))


def schema(extra: Mapping[str, StructField], *, reassembled: bool, routed: bool) -> StructType:
    """Returns the schema of the rows of all kinds: `kind`, `own_columns`, then the extra columns under their worker names."""
    from pyspark.sql.types import ArrayType, IntegerType, StructType  # noqa: PLC0415 - pyspark is an extra

    result = StructType().add(KIND, "string", nullable=False)
    for name, arrow_type in own_columns(reassembled=reassembled, routed=routed).items():
        result.add(
            name,
            ArrayType(IntegerType()) if pa.types.is_list(arrow_type) else output_columns.SPARK_TYPE_NAMES[arrow_type],
        )
    for name, field in extra.items():
        result.add(name, field.dataType, nullable=True, metadata=field.metadata)
    return result


def own_columns(*, reassembled: bool, routed: bool) -> dict[str, pa.DataType]:
    """Returns the types of all columns but `kind` and the extra ones, in the order of the schema."""
    return {**(COLUMNS if reassembled else METRIC_COLUMNS), **(PACKED_ARROW_TYPES if routed else {})}


def decision_columns(labels: Labels | None) -> list[Column]:
    """Returns the decision columns, unpacked; none without labels."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    if labels is None:
        return []
    packed = {name: sf.col(name) for name in PACKED_FIELDS}
    return [column.alias(name) for name, column in labels.unpack(packed).items()]


def _of_kind(rows: DataFrame, kind: str) -> DataFrame:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return rows.where(sf.col(KIND) == kind)


def _key_columns(kind: pa.Schema) -> dict[str, Column]:
    """Returns the key columns of a kind, declared non-nullable; other kinds may lack them."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    placeholders = {"conversation_id": sf.lit(b""), "is_initiator": sf.lit(False), _NUMBER: sf.lit(0).cast("bigint")}
    return {
        name: sf.coalesce(sf.col(name), placeholder) for name, placeholder in placeholders.items() if name in kind.names
    }


_NAME: Final = b"name"
_WATERMARK: Final = "spark.watermarkDelayMs"
"""The metadata key by which Spark marks the event time column behind `withWatermark`."""
_SMALL_TYPES: Final[dict[Any, Any]] = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


def select_extra(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Returns the extra columns of a schema with their own names attached; `names` are those, by position.

    Examples:
        >>> describe(select_extra(pa.schema({"message_body": pa.binary(), "further_0": pa.string()}), ["to_service_name"]))
        'to_service_name string'
    """
    names_by_column = {extra_name(index): name for index, name in enumerate(names)}
    return pa.schema(
        [
            pa.field(field.name, field.type, metadata={_NAME: names_by_column[field.name].encode()})
            for field in schema
            if field.name in names_by_column
        ]
    )


def without_watermark(fields: Sequence[StructField]) -> tuple[StructField, ...]:
    """Returns the columns without Spark's watermark, because pending messages leave the state later than it allows."""
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
    """Whether columns still have the names of before, as far as those were stored."""
    names_by_column = {extra_name(index): name for index, name in enumerate(names)}
    return all(_name(field) in ("", names_by_column.get(field.name)) for field in before)


def have_types(before: pa.Schema, now: pa.Schema) -> bool:
    """Whether columns still have the types of before.

    The time zone of timestamps and the size of strings depend on session settings and are not compared.
    """
    return [_comparable_type(field.type) for field in before] == [_comparable_type(field.type) for field in now]


def cast_to(rows: pa.Table, before: pa.Schema) -> pa.Table:
    """Casts the extra columns of rows to the types of before.

    Examples:
        >>> rows = pa.table({"further_0": pa.array(["a"], pa.large_string())})
        >>> cast_to(rows, pa.schema({"further_0": pa.string()})).schema.types
        [DataType(string)]
    """
    for field in before:
        index = rows.schema.get_field_index(field.name)
        if rows.schema.field(index).type != field.type:
            rows = rows.set_column(index, field.name, column(rows, field.name).cast(field.type))
    return rows


def describe(extra: pa.Schema) -> str:
    """Describes the columns for an error message."""
    return ", ".join(f"{_name(field)} {field.type}".strip() for field in extra) or "none"


def _name(field: Any) -> str:
    name: str = (field.metadata or {}).get(_NAME, b"").decode()
    return name


def _comparable_type(arrow_type: Any) -> Any:
    if pa.types.is_timestamp(arrow_type):
        return arrow_type if arrow_type.tz is None else pa.timestamp(arrow_type.unit, "UTC")
    if pa.types.is_struct(arrow_type):
        return pa.struct([field.with_type(_comparable_type(field.type)) for field in arrow_type])
    if pa.types.is_map(arrow_type):
        return pa.map_(
            *(field.with_type(_comparable_type(field.type)) for field in (arrow_type.key_field, arrow_type.item_field))
        )
    if pa.types.is_list(arrow_type):
        return pa.list_(arrow_type.value_field.with_type(_comparable_type(arrow_type.value_type)))
    return _SMALL_TYPES.get(arrow_type, arrow_type)
