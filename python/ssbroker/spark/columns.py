"""Columns of DataFrames: which ones routing and reassembly read, and how they are named."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker._arguments import EPOCH
from ssbroker._arrow import reject_misspelled_columns
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import OptionError, SchemaError
from ssbroker.reassembly import reassemble
from ssbroker.router import PendingRequest, Router, TieBreak
from ssbroker.schemas import CONVERSATIONS, DECISIONS, ROUTES
from ssbroker.spark.reassembly_rows import further_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField


PACKED_COLUMN: Final = "ssbroker decision"
"""The column of decisions in one piece, which is taken apart and dropped."""
TOLD: Final = ("ssbroker situation", "ssbroker text")
"""The columns that tell a worker of others, dropped like it."""


def quoted(name: str) -> str:
    """The name as Spark's expressions take it, whatever is in it.

    Examples:
        >>> quoted("a`b.c")
        '`a``b.c`'
    """
    return "`" + name.replace("`", "``") + "`"


def check_once(wanted: Sequence[str], names: Sequence[str]) -> None:
    """Whatever is read is there once.

    Args:
        wanted: What is read.
        names: The columns that there are.

    Raises:
        SchemaError: A column occurs twice.
    """
    for name in wanted:
        if names.count(name) > 1:
            raise SchemaError(f"{name}: expected one column of this name, there are {names.count(name)}", column=name)


def check_told_apart(read: Sequence[str], given: DataFrame) -> None:
    """No other column has the name of one that is read but for upper and lower case, where that makes no difference to Spark.

    Args:
        read: What is read, by its name.
        given: Has the columns, and knows whether upper and lower case differ.

    Raises:
        SchemaError: There is such a column.
    """
    if tells_case(given):
        return
    for name in read:
        other = next((each for each in given.columns if each != name and each.lower() == name), None)
        if other is not None:
            raise SchemaError(
                f"{name}: there is {other!r}, too, which is the same name to Spark; rename it or drop it",
                column=name,
                expected="one column of this name",
                actual=other,
            )


def tells_case(given: DataFrame) -> bool:
    """Whether upper and lower case differ in names of columns."""
    return str(given.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"


def check_free(given: DataFrame, names: Sequence[str]) -> None:
    """The names of the decision's columns are not taken, nor those of columns that are dropped in the end.

    Args:
        given: Knows whether upper and lower case differ.
        names: The columns beside which the decision's will stand.

    Raises:
        SchemaError: A column has the name of one that routing adds.
    """
    _check_free(names, (*DECISIONS.names, PACKED_COLUMN, *TOLD), exact=tells_case(given))


def check_free_names(names: Sequence[str], *, exact: bool) -> None:
    """The names of the decision's columns are not among these.

    Args:
        names: The columns beside which the decision's will stand.
        exact: Whether upper and lower case differ.

    Raises:
        SchemaError: A column has the name of one that routing adds.
    """
    _check_free(names, DECISIONS.names, exact=exact)


def _check_free(names: Sequence[str], added: Sequence[str], *, exact: bool) -> None:
    for name in names:
        if (name if exact else name.lower()) in added:
            raise SchemaError(
                f"{name}: there is a column of the name of one that routing adds; rename it or drop it",
                column=name,
                expected="no column of this name",
            )


def check_frame(given: object, *, name: str) -> None:
    """Refuses what is no DataFrame of Spark, such as one of pandas.

    Args:
        given: What was given.
        name: What it is, for messages.

    Raises:
        SchemaError: It is something else.
    """
    from pyspark.sql import DataFrame  # noqa: PLC0415 - pyspark is an extra

    if not isinstance(given, DataFrame):
        expected, actual = "a DataFrame of Spark", f"{type(given).__module__}.{type(given).__qualname__}"
        raise SchemaError(
            f"{name}: expected {expected}, such as spark.createDataFrame makes; got {actual.removeprefix('builtins.')}",
            expected=expected,
            actual=actual,
        )


def check_session(given: object) -> None:
    """Refuses what is no session of Spark, classic or of Connect.

    Args:
        given: What was given.

    Raises:
        SchemaError: It is something else.

    Examples:
        >>> check_session(None)
        Traceback (most recent call last):
        ssbroker.exceptions.SchemaError: spark: expected a SparkSession, got NoneType
    """
    # The two have no class in common, and that of Connect is not installed everywhere.
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(given).__mro__]
    if ("pyspark", "SparkSession") not in kinds:
        expected, actual = "a SparkSession", type(given).__qualname__
        raise SchemaError(f"spark: expected {expected}, got {actual}", expected=expected, actual=actual)


def check_catalog(given: object) -> None:
    """Refuses what is no catalog, such as the path of one.

    Args:
        given: What was given.

    Raises:
        SchemaError: It is something else.

    Examples:
        >>> check_catalog("routes.sql")
        Traceback (most recent call last):
        ssbroker.exceptions.SchemaError: catalog: expected an ssbroker.Catalog, as Catalog.load gives one; got str
    """
    if not isinstance(given, Catalog):
        expected, actual = "an ssbroker.Catalog", type(given).__qualname__
        raise SchemaError(
            f"catalog: expected {expected}, as Catalog.load gives one; got {actual}", expected=expected, actual=actual
        )


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
    reject_misspelled_columns(names, expected=wanted)
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
    decided = router.route(pa.RecordBatch.from_pylist([], schema=pa.schema(fields)), now=EPOCH)
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


_TYPES: Final = {
    _ID: "string or binary",
    "is_initiator": "boolean",
    "message_sequence_number": "bigint",
    "fragment_number": "int",
    "fragment_count": "int",
    "message_body": "binary",
    "message_signature": "binary",
    "fragment_signature": "binary",
}
_UNORDERED: Final = {"map", "variant", "geometry", "geography", "interval"}

PLACE: Final = "place"
"""The column that is added, by which rows are sorted: a hash of the direction, and below it the message's number; or a hash of both."""

NUMBER_BITS: Final = 32
_NUMBER_MAX: Final = (1 << NUMBER_BITS) - 1
# Who does not know it cannot choose ids that stand together.
_SEED: Final = secrets.randbits(63)


@dataclass(frozen=True, kw_only=True)
class FragmentColumns:
    """The columns of fragments.

    Attributes:
        names: What each is for a worker, by its place: one that is read, the one with session keys, or a further one by number.
        further: The further ones.
        has_text_ids: Whether conversation ids are text.
    """

    names: tuple[str, ...]
    further: tuple[StructField, ...]
    has_text_ids: bool

    def brought_together(self, fragments: DataFrame, *, by_message: bool, is_sorted: bool) -> DataFrame:
        """The rows of each conversation and direction one after the other in one partition, message by message.

        Args:
            fragments: As they came.
            by_message: Whether it is enough that the rows of each message are.
            is_sorted: Whether the rows of a message are to be sorted, too, by all there is.

        Returns:
            A column for each of `names`, under names without surprises, then `PLACE`.
        """
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        named = fragments.toDF(*(_on_the_way(place) for place in range(len(self.names))))
        column = {name: sf.col(_on_the_way(place)) for place, name in enumerate(self.names)}
        number = column["message_sequence_number"].cast("bigint")
        keys = [_id_bytes(column[_ID]) if self.has_text_ids else column[_ID], column["is_initiator"]]
        together = sf.xxhash64(sf.lit(_SEED), *keys, *([number] if by_message else []))
        # To sort by one number costs little. What stands together is put together while it is in the caches, and needs no memory but
        # for a message; a number beyond these bits, or two directions with the same ones, cost memory and nothing else.
        low = sf.coalesce(sf.least(sf.greatest(number, sf.lit(0)), sf.lit(_NUMBER_MAX)), sf.lit(0))
        place = together if by_message else sf.shiftleft(together, NUMBER_BITS).bitwiseOR(low)
        placed = named.repartition(together).withColumn(PLACE, place)
        return placed.sortWithinPartitions(PLACE, *(self._order(column) if is_sorted else []))

    def by_bucket(self, fragments: DataFrame, *, count: int, key: bytes) -> DataFrame:
        """The rows with the number of their bucket, which is that of their conversation.

        Args:
            fragments: As they came.
            count: How many buckets there are.
            key: By what conversations are spread, as well as by their ids.

        Returns:
            The number, then a column for each of `names`, under names without surprises.
        """
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        named = fragments.toDF(*(_on_the_way(place) for place in range(len(self.names))))
        column = sf.col(_on_the_way(self.names.index(_ID)))
        id_bytes = _id_bytes(column) if self.has_text_ids else column
        return named.select(bucket_of(id_bytes, count=count, key=key), *named.columns)

    def of_conversations(self) -> dict[str, tuple[str, DataType]]:
        """The columns that routing reads and a message carries: the name that each has on the way, and its type.

        Raises:
            SchemaError: One of them occurs twice.
        """
        names = [field.name for field in self.further]
        check_once(CONVERSATIONS.names, names)
        places = {name: names.index(name) for name in CONVERSATIONS.names if name in names}
        return {name: (further_name(place), self.further[place].dataType) for name, place in places.items()}

    def _order(self, column: Mapping[str, Column]) -> list[Column]:
        """By place; then by all there is, so that what has the same place has an order too: the signed first."""
        place = ("message_sequence_number", "fragment_number", "fragment_count")
        signatures = ("message_signature", "fragment_signature")
        further = {further_name(number): field.dataType for number, field in enumerate(self.further)}
        rest = [name for name in column if name not in {*place, *signatures, *further, _ID, "is_initiator"}]
        rest += [name for name, spark_type in further.items() if _is_ordered(spark_type)]
        return [
            *(column[name] for name in place),
            *(column[name].desc_nulls_last() for name in signatures if name in column),
            *(column[name] for name in (*rest, _ID, "is_initiator")),
        ]


def read(fragments: DataFrame, session_keys: Any) -> FragmentColumns:
    """Looks at the columns, so that what is wrong with them is told before a job starts.

    Args:
        fragments: The fragments.
        session_keys: As for `ssbroker.reassemble`.

    Returns:
        What each is for.

    Raises:
        SchemaError: One that is read is missing, occurs twice or has a type that cannot be read.
        OptionError: The session keys are not what they can be.
    """
    columns = fragments.columns
    own = {_ID if name == _HANDLE and _ID not in columns else name: name for name in columns}
    read_here = {name: own[name] for name in _TYPES if name in own}
    keys = {session_keys: session_keys} if isinstance(session_keys, str) and session_keys in own else {}
    if keys.keys() & read_here.keys():
        raise SchemaError(f"{session_keys}: this column holds no session keys", column=session_keys)
    check_once([*read_here.values(), *keys], columns)
    reject_misspelled_columns([*columns, *own], expected=_TYPES)
    by_own = {name: read_name for read_name, name in {**read_here, **keys}.items()}
    names: list[str] = []
    further: list[StructField] = []
    kinds: dict[str, pa.DataType] = {}
    for field in fragments.schema:
        name = by_own.get(field.name)
        if name is None:
            names.append(further_name(len(further)))
            further.append(field)
            continue
        names.append(name)
        kinds[name] = arrow_type(field.name, field.dataType, expected=_TYPES.get(name, "binary"))
    reassemble(pa.schema(kinds).empty_table(), session_keys=session_keys)
    check_carried(further)
    has_text_ids = pa.types.is_string(kinds[_ID])
    return FragmentColumns(names=tuple(names), further=tuple(further), has_text_ids=has_text_ids)


def bucket_of(column: Column, *, count: int, key: bytes) -> Column:
    """The number of the bucket of a value.

    Args:
        column: The value.
        count: How many buckets there are.
        key: By what values are spread, as well as by themselves.

    Returns:
        A column `bucket` from 0 to the count.
    """
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.pmod(sf.xxhash64(sf.lit(key), column), sf.lit(count)).cast("int").alias("bucket")


def _on_the_way(place: int) -> str:
    """A name that no dot or quote in it, and no other of the same name, can make Spark stumble over."""
    return f"c{place}"


def _id_bytes(text: Column) -> Column:
    """The bytes of an id; of text that is none, whatever comes out or null: it is told when it is read."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.unhex(sf.translate(text, "{}-", ""))


def _is_ordered(spark_type: DataType) -> bool:
    """Whether Spark can sort by a column of this type."""
    from pyspark.sql.types import ArrayType, StructType  # noqa: PLC0415 - pyspark is an extra

    if isinstance(spark_type, ArrayType):
        return _is_ordered(spark_type.elementType)
    if isinstance(spark_type, StructType):
        return all(_is_ordered(field.dataType) for field in spark_type)
    return spark_type.typeName() not in _UNORDERED
