"""Which columns of a DataFrame routing reads, and how a decision travels from Python to the JVM."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker import further, moment
from ssbroker.catalog import Catalog
from ssbroker.exceptions import OptionError, SchemaError
from ssbroker.routing import PendingRequest, Router, TieBreak
from ssbroker.schemas import CONVERSATIONS, DECISIONS, ROUTES
from ssbroker.spark.frames import check_catalog, check_frame
from ssbroker.spark.names import check_free, check_once

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField

_ID: Final = "conversation_id"
_HANDLE: Final = "conversation_handle"
IDS: Final = (_ID, _HANDLE)
"""The names of the column that tells conversations apart; the first of those that are read, if it is there."""
BROKER: Final = "to_broker_instance"

EXPECTED: Final = {
    "conversation_id": "string or binary",
    "conversation_handle": "string or binary",
    "database": "string",
    "to_service_name": "string",
    "to_broker_instance": "string or binary",
    "is_initiator": "boolean",
}
"""The types of Spark that the columns of conversations may have."""

DECISION: Final = (
    "struct<outcome:string,match_step:tinyint,route_id:int,next_hop_address:string,mirror_address:string,"
    "target_database:string,broker_instance:binary,reason:string>"
)
"""The decision columns as Spark has them: labels as text, ids as 16 bytes."""

PACKED: Final = {
    "verdict": "smallint",
    "route_id": "int",
    "next_hop_address": "string",
    "mirror_address": "string",
    "target_database": "string",
    "broker_instance": "binary",
}
"""The same with outcome, reason and step in one number, which Spark takes apart: text costs more to move than to look up."""

_NOT_IN_ARROW: Final = ("YearMonthIntervalType", "CalendarIntervalType", "CharType", "VarcharType")
NO_STEP: Final = 15
"""Stands in a verdict for a step that is null."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The outcomes and reasons, in the order of the numbers that stand for them in a verdict."""

    outcomes: tuple[str, ...]
    reasons: tuple[str, ...]

    def unpacked(self, packed: Mapping[str, Column]) -> dict[str, Column]:
        """The decision columns of columns `PACKED`, in the order of the contract. One that is not there is null."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        verdict = packed["verdict"]
        step = verdict.bitwiseAND(15)
        taken_apart = {
            "outcome": sf.get(sf.array(*map(sf.lit, self.outcomes)), sf.shiftright(verdict, 8)),
            "reason": sf.get(sf.array(*map(sf.lit, self.reasons)), sf.shiftright(verdict, 4).bitwiseAND(15)),
            "match_step": sf.when(step != NO_STEP, step.cast("tinyint")),
        }
        missing = {name: sf.lit(None).cast(kind) for name, kind in PACKED.items() if name not in packed}
        found = {**packed, **missing, **taken_apart}
        return {name: found[name] for name in DECISIONS.names}


def settable(catalog: Catalog) -> dict[str, str]:
    """The columns `PACKED` that decisions by a catalog can have; the others are null, and need not come back from Python.

    Args:
        catalog: The catalog.

    Returns:
        Their types by name.
    """
    never = set()
    if not catalog.has_mirrors:
        never.add("mirror_address")
    if not catalog.has_services:
        never.add("target_database")
    return {name: kind for name, kind in PACKED.items() if name not in never}


def keys(conversations: DataFrame) -> list[str]:
    """The columns that routing reads, in the order of the contract.

    Args:
        conversations: What is to be routed.

    Returns:
        Their names; those that are left out are not among them.

    Raises:
        SchemaError: One of them occurs twice or is misspelt, or a column has the name of one that routing adds.
    """
    check_frame(conversations, name="conversations_df")
    names = conversations.columns
    wanted = [*CONVERSATIONS.names]
    if _ID not in names and _HANDLE in names:
        wanted[wanted.index(_ID)] = _HANDLE
    check_once(wanted, names)
    further.check_meant(names, read=wanted)
    check_free(conversations, names)
    return [name for name in wanted if name in names]


def check_tie_break(tie_break: TieBreak) -> None:
    """Workers can keep to it.

    Args:
        tie_break: As of the router.

    Raises:
        OptionError: It takes turns.
    """
    if tie_break == "round_robin":
        raise OptionError(
            "tie_break: round_robin takes turns, and Spark's workers have no turn in common; use hash or first"
        )


def arrow_type(name: str, spark_type: DataType, *, expected: str) -> pa.DataType:
    """The Arrow type as which a column reaches the workers.

    Args:
        name: The column.
        spark_type: Its type in Spark.
        expected: The types of Spark that it may have, in words.

    Returns:
        The type.

    Raises:
        SchemaError: No column that is read can have this type.
    """
    from pyspark.sql import types  # noqa: PLC0415 - pyspark is an extra

    kinds: list[tuple[type[DataType], pa.DataType]] = [
        (types.StringType, pa.string()),
        (types.CharType, pa.string()),
        (types.VarcharType, pa.string()),
        (types.BinaryType, pa.binary()),
        (types.BooleanType, pa.bool_()),
        (types.NullType, pa.null()),
    ]
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
    raise SchemaError(f"{name}: expected {expected}, got {actual}", column=name, expected=expected, actual=actual)


def check_carried(fields: Iterable[StructField]) -> None:
    """Spark can bring further columns to Python and back.

    Args:
        fields: The columns.

    Raises:
        SchemaError: One has a type, or holds one, for which Spark knows none of Arrow.
    """
    for field in fields:
        if not _is_carried(field.dataType):
            actual = field.dataType.simpleString()
            raise SchemaError(
                f"{field.name}: Spark cannot carry a column of type {actual:.200} through Python; cast it, or leave it out",
                column=field.name,
                expected="a type that Spark has in Arrow",
                actual=actual,
            )


def rehearse(
    catalog: Catalog, columns: Mapping[str, pa.DataType], *, tie_break: TieBreak, pending_request: PendingRequest
) -> Labels:
    """Routes no rows at all, so that what is wrong with the columns or options is told before a job starts.

    The routes have no say in it, so they are left out: to compile them takes a while.

    Args:
        catalog: The catalog.
        columns: The columns and their types.
        tie_break: As of the router.
        pending_request: As of the router.

    Returns:
        The labels of the decisions.

    Raises:
        SchemaError: A column is missing or has a type that cannot be read, or the catalog is none.
        OptionError: An option is not one of those allowed.
    """
    check_catalog(catalog)
    bare = Catalog(ROUTES.empty_table(), catalog.databases)
    router = Router(bare, tie_break=tie_break, pending_request=pending_request)
    fields = [pa.field(name, kind) for name, kind in columns.items()]
    decided = router.route(pa.RecordBatch.from_pylist([], schema=pa.schema(fields)), now=moment.EPOCH)
    return Labels(outcomes=_dictionary(decided["outcome"]), reasons=_dictionary(decided["reason"]))


def _dictionary(column: Any) -> tuple[str, ...]:
    return tuple(column.dictionary.to_pylist())


def _is_carried(spark_type: DataType, *, nullable: bool = True) -> bool:
    from pyspark.sql.types import ArrayType, MapType, NullType, StructType  # noqa: PLC0415 - pyspark is an extra

    if isinstance(spark_type, ArrayType):
        return _is_carried(spark_type.elementType, nullable=spark_type.containsNull)
    if isinstance(spark_type, MapType):
        is_key_carried = _is_carried(spark_type.keyType, nullable=False)
        return is_key_carried and _is_carried(spark_type.valueType, nullable=spark_type.valueContainsNull)
    if isinstance(spark_type, StructType):
        is_unique = len(set(spark_type.names)) == len(spark_type.names)
        return is_unique and all(_is_carried(field.dataType, nullable=field.nullable) for field in spark_type)
    if isinstance(spark_type, NullType):
        return nullable
    return type(spark_type).__name__ not in _NOT_IN_ARROW
