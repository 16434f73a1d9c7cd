"""The columns that routing and reassembly read: names, types, checks, and the values that errors show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker._arrow import reject_misspelled_columns
from ssbroker.exceptions import SchemaError
from ssbroker.schemas import CONVERSATIONS, DECISIONS
from ssbroker.spark.arguments import check_frame

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField


SHOWN_MAX: Final = 80
"""The maximum number of characters of a value that an error shows."""


DECISION_COLUMN: Final = "ssbroker decision"
"""The temporary column with the encoded decision, which is decoded and dropped."""
CODE_COLUMNS: Final = ("ssbroker situation", "ssbroker text")
"""The temporary columns that encode other columns for the worker, and are dropped after decoding."""


def start_of(text: Column) -> tuple[Column, Column]:
    """Returns the first 80 characters of a text, and whether there are more."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.substring(text, 1, SHOWN_MAX), sf.length(text) > SHOWN_MAX


def shortened(text: Column) -> Column:
    """Returns the part of a value that an error shows: its first 80 characters, followed by `…` if there are more; null for null."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    start, is_cut = start_of(text)
    return sf.concat(start, sf.when(is_cut, sf.lit("…")).otherwise(sf.lit("")))


def quoted(name: str) -> str:
    """Returns the name quoted for Spark's column expressions.

    Examples:
        >>> quoted("a`b.c")
        '`a``b.c`'
    """
    return "`" + name.replace("`", "``") + "`"


def check_unique(wanted: Sequence[str], names: Sequence[str]) -> None:
    """Raises `SchemaError` if a column that is read occurs twice."""
    for name in wanted:
        if names.count(name) > 1:
            raise SchemaError(
                f"{name}: expected one column with this name, got {names.count(name)}; rename or drop the others",
                column=name,
            )


def check_unambiguous(read: Sequence[str], given: DataFrame) -> None:
    """In a case-insensitive session, raises `SchemaError` if another column differs only in case from a column that is read."""
    if is_case_sensitive(given):
        return
    for name in read:
        other = next((each for each in given.columns if each != name and each.lower() == name), None)
        if other is not None:
            raise SchemaError(
                f"{name}: the name of column {other!r} differs from {name!r} only in case, which this Spark session ignores; rename or drop {other!r}",
                column=name,
                expected="one column with this name",
                actual=other,
            )


def is_case_sensitive(given: DataFrame) -> bool:
    """Returns whether column names are case-sensitive in the DataFrame's session."""
    return str(given.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"


def check_no_reserved_columns(given: DataFrame, names: Sequence[str]) -> None:
    """Raises `SchemaError` if a column has the name of a column that routing adds, temporarily or to its result."""
    _check_no_name(names, (*DECISIONS.names, DECISION_COLUMN, *CODE_COLUMNS), exact=is_case_sensitive(given))


def check_no_decision_columns(names: Sequence[str]) -> None:
    """Raises `SchemaError` if a column has the name of a decision column, case-insensitively."""
    _check_no_name(names, DECISIONS.names, exact=False)


def _check_no_name(names: Sequence[str], added: Sequence[str], *, exact: bool) -> None:
    for name in names:
        if (name if exact else name.lower()) in added:
            raise SchemaError(
                f"{name}: routing adds a column with this name; rename or drop the existing column",
                column=name,
                expected="no column with this name",
            )


ID_COLUMN: Final = "conversation_id"
HANDLE_COLUMN: Final = "conversation_handle"
ID_COLUMNS: Final = (ID_COLUMN, HANDLE_COLUMN)
"""The names of the conversation id column; the first name that is present is used."""
BROKER_COLUMN: Final = "to_broker_instance"

EXPECTED_TYPES: Final = {
    "conversation_id": "string or binary",
    "conversation_handle": "string or binary",
    "database": "string",
    "to_service_name": "string",
    "to_broker_instance": "string or binary",
    "is_initiator": "boolean",
}
"""The Spark types that the columns of conversations may have."""

_NOT_IN_ARROW: Final = ("YearMonthIntervalType", "CalendarIntervalType", "CharType", "VarcharType")


def conversation_columns(conversations: DataFrame) -> list[str]:
    """Returns the columns that routing reads, in contract order, after checking their names."""
    check_frame(conversations, name="conversations_df")
    names = conversations.columns
    wanted = [*CONVERSATIONS.names]
    if ID_COLUMN not in names and HANDLE_COLUMN in names:
        wanted[wanted.index(ID_COLUMN)] = HANDLE_COLUMN
    check_unique(wanted, names)
    reject_misspelled_columns(names, expected=wanted)
    check_no_reserved_columns(conversations, names)
    return [name for name in wanted if name in names]


def arrow_type(name: str, spark_type: DataType, *, expected: str) -> pa.DataType:
    """Returns the Arrow type with which a column reaches the workers; raises `SchemaError` for an unsupported type."""
    from pyspark.sql import types  # noqa: PLC0415 - pyspark is an extra

    kinds: list[tuple[type[DataType], pa.DataType]] = [
        (types.BinaryType, pa.binary()),
        (types.BooleanType, pa.bool_()),
        (types.NullType, pa.null()),
    ]
    if expected != "boolean":
        kinds += [(types.StringType, pa.string()), (types.CharType, pa.string()), (types.VarcharType, pa.string())]
    if "int" in expected:
        kinds += [
            (types.ByteType, pa.int8()),
            (types.ShortType, pa.int16()),
            (types.IntegerType, pa.int32()),
            (types.LongType, pa.int64()),
        ]
    for spark_kind, arrow_kind in kinds:
        if isinstance(spark_type, spark_kind):
            return arrow_kind
    actual = spark_type.simpleString()
    is_castable = isinstance(spark_type, types.NumericType | types.StringType) and " or " not in expected
    advice = f'; convert it with col("{name}").cast("{expected}")' if is_castable else ""
    raise SchemaError(
        f"{name}: expected {expected}, got {actual}{advice}", column=name, expected=expected, actual=actual
    )


def conversation_type(name: str, spark_type: DataType) -> pa.DataType:
    """Returns the Arrow type of a column of conversations; see `arrow_type`."""
    return arrow_type(name, spark_type, expected=EXPECTED_TYPES[name])


def are_arrow_types(fields: Iterable[StructField]) -> bool:
    """Returns whether Spark can convert all columns to Arrow."""
    return all(_has_arrow_type(field.dataType) for field in fields)


def check_arrow_types(fields: Iterable[StructField]) -> None:
    """Raises `SchemaError` if an extra column has a type that Spark cannot convert to Arrow."""
    for field in fields:
        if not _has_arrow_type(field.dataType):
            actual = field.dataType.simpleString()
            raise SchemaError(
                f"{field.name}: Spark cannot transfer a column of type {actual:.200} to Python; cast it or drop it",
                column=field.name,
                expected="a type that Spark can convert to Arrow",
                actual=actual,
            )


def _has_arrow_type(spark_type: DataType, *, nullable: bool = True) -> bool:
    from pyspark.sql.types import ArrayType, MapType, NullType, StructType  # noqa: PLC0415 - pyspark is an extra

    if isinstance(spark_type, ArrayType):
        return _has_arrow_type(spark_type.elementType, nullable=spark_type.containsNull)
    if isinstance(spark_type, MapType):
        has_arrow_key = _has_arrow_type(spark_type.keyType, nullable=False)
        return has_arrow_key and _has_arrow_type(spark_type.valueType, nullable=spark_type.valueContainsNull)
    if isinstance(spark_type, StructType):
        is_unique = len(set(spark_type.names)) == len(spark_type.names)
        return is_unique and all(_has_arrow_type(field.dataType, nullable=field.nullable) for field in spark_type)
    if isinstance(spark_type, NullType):
        return nullable
    return type(spark_type).__name__ not in _NOT_IN_ARROW
