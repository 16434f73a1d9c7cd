"""The rows that reassembly workers return: one schema for messages, rejected fragments and incomplete messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker.schemas import MESSAGES, PENDING, REJECTED
from ssbroker.spark.arrow_columns import to_spark_type
from ssbroker.spark.decision_codes import CODED_ARROW_TYPES

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField, StructType


MESSAGE: Final = 0
REJECTION: Final = 1
INCOMPLETE: Final = 2

KIND: Final = "kind"
KEYS: Final = ("conversation_id", "is_initiator", "message_sequence_number")
"""The columns that exist in rows of every kind."""


COLUMNS: Final[dict[str, pa.DataType]] = {
    KIND: pa.int8(),
    **{field.name: to_spark_type(field.type) for schema in (MESSAGES, REJECTED, PENDING) for field in schema},
}
"""The columns of all kinds and their types; columns with the same name are shared."""

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
"""Spark's timestamp."""

SPARK_TYPE_NAMES: Final[dict[pa.DataType, str]] = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
    TIMESTAMP: "timestamp",
}
"""Spark's names for the types of columns."""
_PLACEHOLDERS: Final[dict[str, Any]] = {
    **dict.fromkeys(("byte", "short", "integer", "long", "float", "double"), 0),
    "boolean": False,
    "string": "",
    "binary": b"",
    "date": date(1970, 1, 1),
    "timestamp": datetime(1970, 1, 1, tzinfo=UTC),
}


def extra_name(index: int) -> str:
    """Returns the name of an extra column in workers and in the state of a stream, regardless of its original name."""
    return f"further_{index}"


def schema(extra: Sequence[StructField], *, routed: bool) -> StructType:
    """Returns the schema of the rows of all kinds: `COLUMNS`, the decision if messages are routed, then the extra columns."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - pyspark is an extra

    result = StructType()
    for name, arrow_type in {**COLUMNS, **(CODED_ARROW_TYPES if routed else {})}.items():
        result.add(name, SPARK_TYPE_NAMES[arrow_type], nullable=name not in (KIND, *KEYS))
    for index, field in enumerate(extra):
        result.add(extra_name(index), field.dataType, nullable=True, metadata=field.metadata)
    return result


def select_columns(kind: pa.Schema, columns: Mapping[str, Column] | None = None) -> list[Column]:
    """Returns the columns of one kind, replacing those in `columns`; declares columns that are never null as non-nullable."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    replacements = columns or {}
    selected = []
    for field in kind:
        column = replacements.get(field.name, sf.col(field.name))
        if not field.nullable and field.name not in KEYS:
            column = sf.coalesce(column, _placeholder(SPARK_TYPE_NAMES[to_spark_type(field.type)]))
        selected.append(column.alias(field.name))
    return selected


def select_extra_columns(extra: Sequence[StructField]) -> list[Column]:
    """Returns the extra columns under their original names; declares columns of simple types that are never null as non-nullable."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    selected = []
    for index, field in enumerate(extra):
        column = sf.col(extra_name(index))
        if not field.nullable and field.dataType.typeName() in _PLACEHOLDERS:
            column = sf.coalesce(column, _placeholder(field.dataType))
        selected.append(column.alias(field.name, metadata=field.metadata))
    return selected


def _placeholder(spark_type: DataType | str) -> Column:
    """Returns a value that does not occur in any row; it only makes a column non-nullable for Spark."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    name = spark_type if isinstance(spark_type, str) else spark_type.typeName()
    return sf.lit(_PLACEHOLDERS[name]).cast(spark_type)
