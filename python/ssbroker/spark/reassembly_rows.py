"""The one DataFrame that reassembly computes: rows of three kinds, each with the columns of its kind and nulls in the others'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker.schemas import MESSAGES, PENDING, REJECTED

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField, StructType


MESSAGE: Final = 0
REJECTION: Final = 1
INCOMPLETE: Final = 2

KIND: Final = "kind"
KEYS: Final = ("conversation_id", "is_initiator", "message_sequence_number")
"""The columns that rows of every kind have."""


def plain(arrow_type: pa.DataType) -> pa.DataType:
    """The type as Spark takes it: no dictionary, no binary of fixed size."""
    if isinstance(arrow_type, pa.DictionaryType):
        values: pa.DataType = arrow_type.value_type
        return values
    return pa.binary() if pa.types.is_fixed_size_binary(arrow_type) else arrow_type


COLUMNS: Final[dict[str, pa.DataType]] = {
    KIND: pa.int8(),
    **{field.name: plain(field.type) for schema in (MESSAGES, REJECTED, PENDING) for field in schema},
}
"""The columns and types of the rows of all kinds; columns of one name are one."""

DECISION: Final[dict[str, pa.DataType]] = {
    "verdict": pa.int16(),
    "route_id": pa.int32(),
    "next_hop_address": pa.string(),
    "mirror_address": pa.string(),
    "target_database": pa.string(),
    "broker_instance": pa.binary(),
}
"""Those of a decision, which follow where there is one: the fields of `columns.PACKED`."""

SPARK_NAMES: Final[dict[pa.DataType, str]] = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
}
"""What Spark calls the types of these columns."""
_FILLERS: Final[dict[str, Any]] = {
    **dict.fromkeys(("byte", "short", "integer", "long", "float", "double"), 0),
    "boolean": False,
    "string": "",
    "binary": b"",
    "date": date(1970, 1, 1),
    "timestamp": datetime(1970, 1, 1, tzinfo=UTC),
}


def further_name(place: int) -> str:
    """The name that a further column has on the way, whatever its own is."""
    return f"further_{place}"


def schema(further: Sequence[StructField], *, routed: bool) -> StructType:
    """The schema of the rows of all kinds.

    Args:
        further: The further columns.
        routed: Whether each message has a decision.

    Returns:
        The schema: what stands here, in this order, then the further columns.
    """
    from pyspark.sql.types import StructType  # noqa: PLC0415 - pyspark is an extra

    made = StructType()
    for name, arrow_type in {**COLUMNS, **(DECISION if routed else {})}.items():
        made.add(name, SPARK_NAMES[arrow_type], nullable=name not in (KIND, *KEYS))
    for place, field in enumerate(further):
        made.add(further_name(place), field.dataType, nullable=True, metadata=field.metadata)
    return made


def selected(kind: pa.Schema, columns: Mapping[str, Column] | None = None) -> list[Column]:
    """The columns of one kind; those that are never null say so.

    Args:
        kind: The kind's schema.
        columns: What stands for some of them.

    Returns:
        The columns, under their names.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    given = columns or {}
    found = []
    for field in kind:
        column = given.get(field.name, sf.col(field.name))
        if not field.nullable and field.name not in KEYS:
            column = sf.coalesce(column, _filler(SPARK_NAMES[plain(field.type)]))
        found.append(column.alias(field.name))
    return found


def selected_further(further: Sequence[StructField]) -> list[Column]:
    """The further columns, under their own names. Those that are never null say so, if they are of a simple type."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    found = []
    for place, field in enumerate(further):
        column = sf.col(further_name(place))
        if not field.nullable and field.dataType.typeName() in _FILLERS:
            column = sf.coalesce(column, _filler(field.dataType))
        found.append(column.alias(field.name, metadata=field.metadata))
    return found


def _filler(spark_type: DataType | str) -> Column:
    """A value that no row has: it only tells Spark that there are no nulls."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    name = spark_type if isinstance(spark_type, str) else spark_type.typeName()
    return sf.lit(_FILLERS[name]).cast(spark_type)
