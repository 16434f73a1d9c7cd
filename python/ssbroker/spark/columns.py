"""The DataFrame columns that routing and reassembly read: names, types and checks."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute

from ssbroker._arguments import EPOCH
from ssbroker._arrow import reject_misspelled_columns
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import OptionError, SchemaError
from ssbroker.reassembly import reassemble
from ssbroker.router import PendingRequest, Router, TieBreak
from ssbroker.schemas import CONVERSATIONS, DECISIONS, MESSAGES, PENDING, REJECTED, ROUTES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

_compute: Final[Any] = pyarrow.compute  # the stubs know too few types of arguments

MESSAGE: Final = 0
REJECTION: Final = 1
INCOMPLETE: Final = 2

KIND: Final = "kind"
SHOWN_MAX: Final = 80
"""The most characters that an error shows of a value."""
KEYS: Final = ("conversation_id", "is_initiator", "message_sequence_number")
"""The columns that rows of every kind have."""


def to_spark_type(arrow_type: pa.DataType) -> pa.DataType:
    """Returns the type that Spark accepts in place of an Arrow type: no dictionary and no fixed-size binary."""
    if isinstance(arrow_type, pa.DictionaryType):
        values: pa.DataType = arrow_type.value_type
        return values
    return pa.binary() if pa.types.is_fixed_size_binary(arrow_type) else arrow_type


COLUMNS: Final[dict[str, pa.DataType]] = {
    KIND: pa.int8(),
    **{field.name: to_spark_type(field.type) for schema in (MESSAGES, REJECTED, PENDING) for field in schema},
}
"""The columns of all kinds and their types; columns with the same name are shared."""

DECISION_COLUMNS: Final[dict[str, pa.DataType]] = {
    "verdict": pa.int16(),
    "route_id": pa.int32(),
    "next_hop_address": pa.string(),
    "mirror_address": pa.string(),
    "target_database": pa.string(),
    "broker_instance": pa.binary(),
}
"""The decision columns that follow if messages are routed: the fields of `columns.PACKED_FIELDS`."""

SPARK_TYPE_NAMES: Final[dict[pa.DataType, str]] = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.bool_(): "boolean",
    pa.string(): "string",
    pa.binary(): "binary",
}
"""Spark's names for the types of these columns."""
_PLACEHOLDERS: Final[dict[str, Any]] = {
    **dict.fromkeys(("byte", "short", "integer", "long", "float", "double"), 0),
    "boolean": False,
    "string": "",
    "binary": b"",
    "date": date(1970, 1, 1),
    "timestamp": datetime(1970, 1, 1, tzinfo=UTC),
}


def extra_name(index: int) -> str:
    """Returns the name of an extra column in workers and in state, whatever its own name is."""
    return f"further_{index}"


def schema(extra: Sequence[StructField], *, routed: bool) -> StructType:
    """Returns the schema of the rows of all kinds: `COLUMNS`, the decision if messages are routed, then the extra columns."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - pyspark is an extra

    result = StructType()
    for name, arrow_type in {**COLUMNS, **(DECISION_COLUMNS if routed else {})}.items():
        result.add(name, SPARK_TYPE_NAMES[arrow_type], nullable=name not in (KIND, *KEYS))
    for index, field in enumerate(extra):
        result.add(extra_name(index), field.dataType, nullable=True, metadata=field.metadata)
    return result


def select_columns(kind: pa.Schema, columns: Mapping[str, Column] | None = None) -> list[Column]:
    """Returns the columns of one kind, some of them replaced; columns that are never null are declared so."""
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
    """Returns the extra columns under their own names; those of simple types that are never null are declared so."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    selected = []
    for index, field in enumerate(extra):
        column = sf.col(extra_name(index))
        if not field.nullable and field.dataType.typeName() in _PLACEHOLDERS:
            column = sf.coalesce(column, _placeholder(field.dataType))
        selected.append(column.alias(field.name, metadata=field.metadata))
    return selected


def _placeholder(spark_type: DataType | str) -> Column:
    """Returns a value that no row has; it only declares a column non-nullable to Spark."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    name = spark_type if isinstance(spark_type, str) else spark_type.typeName()
    return sf.lit(_PLACEHOLDERS[name]).cast(spark_type)


PACKED_COLUMN: Final = "ssbroker decision"
"""The temporary column with the packed decision, which is unpacked and dropped."""
CODE_COLUMNS: Final = ("ssbroker situation", "ssbroker text")
"""The temporary columns that encode other columns for the worker, dropped like it."""


def start_of(text: Column) -> tuple[Column, Column]:
    """Returns the first 80 characters of a text, and whether there are more."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.substring(text, 1, SHOWN_MAX), sf.length(text) > SHOWN_MAX


def shortened(text: Column) -> Column:
    """Returns what an error shows of a value: its first 80 characters; null for null."""
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
    """Raises `SchemaError` if one of the columns that are read occurs twice."""
    for name in wanted:
        if names.count(name) > 1:
            raise SchemaError(f"{name}: expected one column of this name, found {names.count(name)}", column=name)


def check_unambiguous(read: Sequence[str], given: DataFrame) -> None:
    """Raises `SchemaError` if another column differs from one that is read only in case, in a case-insensitive session."""
    if is_case_sensitive(given):
        return
    for name in read:
        other = next((each for each in given.columns if each != name and each.lower() == name), None)
        if other is not None:
            raise SchemaError(
                f"{name}: column {other!r} has the same name in this session, which ignores case; rename or drop it",
                column=name,
                expected="one column of this name",
                actual=other,
            )


def is_case_sensitive(given: DataFrame) -> bool:
    """Whether column names are case-sensitive in the DataFrame's session."""
    return str(given.sparkSession.conf.get("spark.sql.caseSensitive")).lower() == "true"


def check_no_reserved_columns(given: DataFrame, names: Sequence[str]) -> None:
    """Raises `SchemaError` if a column has the name of one that routing adds, temporarily or in its result."""
    _check_no_name(names, (*DECISIONS.names, PACKED_COLUMN, *CODE_COLUMNS), exact=is_case_sensitive(given))


def check_no_decision_columns(names: Sequence[str], *, exact: bool) -> None:
    """Raises `SchemaError` if a column has the name of a decision column."""
    _check_no_name(names, DECISIONS.names, exact=exact)


def _check_no_name(names: Sequence[str], added: Sequence[str], *, exact: bool) -> None:
    for name in names:
        if (name if exact else name.lower()) in added:
            raise SchemaError(
                f"{name}: routing adds a column of this name; rename or drop the existing one",
                column=name,
                expected="no column of this name",
            )


def check_frame(given: object, *, name: str) -> None:
    """Raises `SchemaError` unless the argument is a Spark DataFrame; `name` is the argument, for the error message."""
    from pyspark.sql import DataFrame  # noqa: PLC0415 - pyspark is an extra

    if not isinstance(given, DataFrame):
        expected, actual = "a Spark DataFrame", f"{type(given).__module__}.{type(given).__qualname__}"
        raise SchemaError(
            f"{name}: expected {expected}, as spark.createDataFrame returns, got {actual.removeprefix('builtins.')}",
            expected=expected,
            actual=actual,
        )


def check_session(given: object) -> None:
    """Raises `SchemaError` unless the argument is a classic or Spark Connect session.

    Examples:
        >>> check_session(None)
        Traceback (most recent call last):
        ssbroker.exceptions.SchemaError: spark: expected a SparkSession, got NoneType
    """
    # The two kinds share no class, and Spark Connect is not always installed.
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(given).__mro__]
    if ("pyspark", "SparkSession") not in kinds:
        expected, actual = "a SparkSession", type(given).__qualname__
        raise SchemaError(f"spark: expected {expected}, got {actual}", expected=expected, actual=actual)


def check_catalog(given: object) -> None:
    """Raises `SchemaError` unless the argument is a `Catalog`.

    Examples:
        >>> check_catalog("routes.sql")
        Traceback (most recent call last):
        ssbroker.exceptions.SchemaError: catalog: expected an ssbroker.Catalog, as Catalog.load returns, got str
    """
    if not isinstance(given, Catalog):
        expected, actual = "an ssbroker.Catalog", type(given).__qualname__
        raise SchemaError(
            f"catalog: expected {expected}, as Catalog.load returns, got {actual}", expected=expected, actual=actual
        )


_ID: Final = "conversation_id"
_HANDLE: Final = "conversation_handle"
ID_COLUMNS: Final = (_ID, _HANDLE)
"""The names of the conversation id column; the first one that is present is read."""
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

DECISION_STRUCT: Final = (
    "struct<outcome:string,match_step:tinyint,route_id:int,next_hop_address:string,mirror_address:string,"
    "target_database:string,broker_instance:binary,reason:string>"
)
"""The decision columns as Spark types: labels as strings, ids as 16 bytes."""

PACKED_FIELDS: Final = {
    "verdict": "smallint",
    "route_id": "int",
    "next_hop_address": "string",
    "mirror_address": "string",
    "target_database": "string",
    "broker_instance": "binary",
}
"""The decision with outcome, reason and step packed into one number, which Spark unpacks: strings cost more to transfer than to look up."""

_NOT_IN_ARROW: Final = ("YearMonthIntervalType", "CalendarIntervalType", "CharType", "VarcharType")
NO_STEP: Final = 15
"""The code of a null step in a verdict."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The outcomes and reasons, in the order of their codes in a verdict."""

    outcomes: tuple[str, ...]
    reasons: tuple[str, ...]

    def pack(self, decided: pa.RecordBatch) -> Any:
        """Returns outcome, reason and step of decisions as numbers; null if the outcome is null."""
        outcome = _label_codes(decided["outcome"], self.outcomes, shift=8)
        reason = _label_codes(decided["reason"], self.reasons, shift=4)
        step: Any = decided["match_step"].cast(pa.int16())
        return _compute.add(_compute.add(outcome, reason), step.fill_null(NO_STEP))

    def unpack(self, packed: Mapping[str, Column]) -> dict[str, Column]:
        """Returns the decision columns, in contract order, from columns `PACKED_FIELDS`; a missing one is null."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        verdict = packed["verdict"]
        step = verdict.bitwiseAND(15)
        from_verdict = {
            "outcome": sf.get(sf.array(*map(sf.lit, self.outcomes)), sf.shiftright(verdict, 8)),
            "reason": sf.get(sf.array(*map(sf.lit, self.reasons)), sf.shiftright(verdict, 4).bitwiseAND(15)),
            "match_step": sf.when(step != NO_STEP, step.cast("tinyint")),
        }
        missing = {name: sf.lit(None).cast(kind) for name, kind in PACKED_FIELDS.items() if name not in packed}
        found = {**packed, **missing, **from_verdict}
        return {name: found[name] for name in DECISIONS.names}


def _label_codes(column: Any, labels: tuple[str, ...], *, shift: int) -> Any:
    """Returns the code of each row's label, shifted to its position in a verdict; a dictionary may have any order."""
    encoded = column.dictionary_encode()
    codes = [labels.index(label) << shift for label in encoded.dictionary.to_pylist()]
    return pa.array(codes, pa.int16()).take(encoded.indices)


def possible_fields(catalog: Catalog) -> dict[str, str]:
    """Returns the fields of `PACKED_FIELDS` that decisions by this catalog can have; the others are always null and are not transferred."""
    never = set()
    if not catalog.has_mirrors:
        never.add("mirror_address")
    if not catalog.has_services:
        never.add("target_database")
    return {name: kind for name, kind in PACKED_FIELDS.items() if name not in never}


def conversation_columns(conversations: DataFrame) -> list[str]:
    """Returns the columns that routing reads, in contract order, after checking their names."""
    check_frame(conversations, name="conversations_df")
    names = conversations.columns
    wanted = [*CONVERSATIONS.names]
    if _ID not in names and _HANDLE in names:
        wanted[wanted.index(_ID)] = _HANDLE
    check_unique(wanted, names)
    reject_misspelled_columns(names, expected=wanted)
    check_no_reserved_columns(conversations, names)
    return [name for name in wanted if name in names]


def check_tie_break(tie_break: TieBreak) -> None:
    """Raises `OptionError` for `round_robin`, which needs a counter that Spark's workers cannot share."""
    if tie_break == "round_robin":
        raise OptionError("tie_break: round_robin needs a counter that Spark's workers cannot share; use hash or first")


def arrow_type(name: str, spark_type: DataType, *, expected: str) -> pa.DataType:
    """Returns the Arrow type in which a column reaches the workers; raises `SchemaError` for a type that is not read."""
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


def are_arrow_types(fields: Iterable[StructField]) -> bool:
    """Whether Spark can convert all columns to Arrow."""
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


def validate_routing(
    catalog: Catalog,
    columns: Mapping[str, pa.DataType],
    *,
    now: datetime,
    tie_break: TieBreak,
    pending_request: PendingRequest,
) -> Labels:
    """Routes zero rows, so that wrong columns or options are reported before a job starts; returns the decision labels."""
    check_catalog(catalog)
    without_routes = Catalog(ROUTES.empty_table(), catalog.databases)
    router = Router(without_routes, tie_break=tie_break, pending_request=pending_request)
    fields = [pa.field(name, kind) for name, kind in columns.items()]
    decided = router.route(pa.RecordBatch.from_pylist([], schema=pa.schema(fields)), now=EPOCH)
    if tie_break == "hash" and columns.keys().isdisjoint(ID_COLUMNS):
        _reject_ties(catalog, now=now, pending_request=pending_request)
    return Labels(outcomes=_dictionary_values(decided["outcome"]), reasons=_dictionary_values(decided["reason"]))


def _reject_ties(catalog: Catalog, *, now: datetime, pending_request: PendingRequest) -> None:
    """Raises SchemaError if some service has several equal candidates, so that no task fails because ids are missing."""
    table: Any = Router(catalog, pending_request=pending_request).decision_table(now=now)
    is_tie = _compute.not_equal(table["hash_from"], -(2**63))
    if _compute.any(is_tie).as_py():
        services: list[Any] = table.filter(is_tie)["to_service_name"].to_pylist()
        service = next((f'the service "{name}"' for name in services if name is not None), "a service")
        expected = (
            f"a conversation id for each row, because {service} has several equal candidates, "
            'or the argument tie_break="first"'
        )
        raise SchemaError(
            f"conversation_id: the column is missing; expected {expected}", column="conversation_id", expected=expected
        )


def _dictionary_values(column: Any) -> tuple[str, ...]:
    return tuple(column.dictionary.to_pylist())


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


_FRAGMENT_TYPES: Final = {
    _ID: "string or binary",
    "is_initiator": "boolean",
    "message_sequence_number": "bigint",
    "fragment_number": "int",
    "fragment_count": "int",
    "message_body": "binary",
    "message_signature": "binary",
    "fragment_signature": "binary",
}
_UNSORTABLE_TYPES: Final = {"map", "variant", "geometry", "geography", "interval"}

SORT_KEY: Final = "place"
"""The added column by which rows are sorted: a hash of the direction with the sequence number in its low bits, or a hash of both."""

SEQUENCE_BITS: Final = 32
_SEQUENCE_MAX: Final = (1 << SEQUENCE_BITS) - 1
# The seed is secret: otherwise a sender could choose conversation ids that collide in one partition.
_HASH_SEED: Final = secrets.randbits(63)


@dataclass(frozen=True, kw_only=True)
class FragmentColumns:
    """The columns of a fragments DataFrame.

    Attributes:
        names: The name of each column in a worker, by position: a fragment column, the session key column, or a numbered extra column.
        extra: The extra columns.
        has_text_ids: Whether conversation ids are strings.
    """

    names: tuple[str, ...]
    extra: tuple[StructField, ...]
    has_text_ids: bool

    def repartitioned(self, fragments: DataFrame, *, by_message: bool, is_sorted: bool) -> DataFrame:
        """Repartitions the rows by conversation and direction, or by message, and sorts them message by message within each partition.

        The columns are `names` in the same order, under generated names, then `SORT_KEY`. With `is_sorted`, the rows of a message are
        sorted by all columns too.
        """
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        named = fragments.toDF(*(_worker_name(index) for index in range(len(self.names))))
        column = {name: sf.col(_worker_name(index)) for index, name in enumerate(self.names)}
        number = column["message_sequence_number"].cast("bigint")
        keys = [_id_bytes(column[_ID]) if self.has_text_ids else column[_ID], column["is_initiator"]]
        partition_hash = sf.xxhash64(sf.lit(_HASH_SEED), *keys, *([number] if by_message else []))
        # Sorting by one number is cheap. The rows of a message become adjacent, so only one message is held in memory at a time.
        # A sequence number beyond these bits, or two directions with the same hash, cost memory and nothing else.
        low = sf.coalesce(sf.least(sf.greatest(number, sf.lit(0)), sf.lit(_SEQUENCE_MAX)), sf.lit(0))
        sort_key = partition_hash if by_message else sf.shiftleft(partition_hash, SEQUENCE_BITS).bitwiseOR(low)
        partitioned = named.repartition(partition_hash).withColumn(SORT_KEY, sort_key)
        return partitioned.sortWithinPartitions(SORT_KEY, *(self._sort_columns(column) if is_sorted else []))

    def with_bucket(self, fragments: DataFrame, *, count: int, key: bytes) -> DataFrame:
        """Adds the bucket of each row's conversation in front of the columns, which get generated names."""
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        named = fragments.toDF(*(_worker_name(index) for index in range(len(self.names))))
        column = sf.col(_worker_name(self.names.index(_ID)))
        id_bytes = _id_bytes(column) if self.has_text_ids else column
        return named.select(bucket_column(id_bytes, count=count, key=key), *named.columns)

    def routing_columns(self) -> dict[str, tuple[str, DataType]]:
        """Returns the worker name and type of each extra column that routing reads."""
        names = [field.name for field in self.extra]
        check_unique(CONVERSATIONS.names, names)
        indexes = {name: names.index(name) for name in CONVERSATIONS.names if name in names}
        return {name: (extra_name(index), self.extra[index].dataType) for name, index in indexes.items()}

    def _sort_columns(self, column: Mapping[str, Column]) -> list[Column]:
        """Returns the columns to sort by: the fragment's position, then all others, so that rows at one position have a fixed order, signed rows first."""
        position = ("message_sequence_number", "fragment_number", "fragment_count")
        signatures = ("message_signature", "fragment_signature")
        extra = {extra_name(number): field.dataType for number, field in enumerate(self.extra)}
        rest = [name for name in column if name not in {*position, *signatures, *extra, _ID, "is_initiator"}]
        rest += [name for name, spark_type in extra.items() if _is_sortable(spark_type)]
        return [
            *(column[name] for name in position),
            *(column[name].desc_nulls_last() for name in signatures if name in column),
            *(column[name] for name in (*rest, _ID, "is_initiator")),
        ]


def read_fragment_columns(fragments: DataFrame, session_keys: Any) -> FragmentColumns:
    """Checks the fragment columns before a job starts; raises `SchemaError` or `OptionError` (session keys)."""
    columns = fragments.columns
    own = {_ID if name == _HANDLE and _ID not in columns else name: name for name in columns}
    read_here = {name: own[name] for name in _FRAGMENT_TYPES if name in own}
    keys = {session_keys: session_keys} if isinstance(session_keys, str) and session_keys in own else {}
    if keys.keys() & read_here.keys():
        raise SchemaError(
            f"{session_keys}: a column of the fragment itself cannot hold session keys", column=session_keys
        )
    check_unique([*read_here.values(), *keys], columns)
    reject_misspelled_columns([*columns, *own], expected=_FRAGMENT_TYPES)
    by_own = {name: read_name for read_name, name in {**read_here, **keys}.items()}
    names: list[str] = []
    extra: list[StructField] = []
    kinds: dict[str, pa.DataType] = {}
    for field in fragments.schema:
        name = by_own.get(field.name)
        if name is None:
            names.append(extra_name(len(extra)))
            extra.append(field)
            continue
        names.append(name)
        kinds[name] = arrow_type(field.name, field.dataType, expected=_FRAGMENT_TYPES.get(name, "binary"))
    reassemble(pa.schema(kinds).empty_table(), session_keys=session_keys)
    check_arrow_types(extra)
    has_text_ids = pa.types.is_string(kinds[_ID])
    return FragmentColumns(names=tuple(names), extra=tuple(extra), has_text_ids=has_text_ids)


def bucket_column(column: Column, *, count: int, key: bytes) -> Column:
    """Returns a column `bucket`, from 0 to `count - 1`: a keyed hash of a value."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.pmod(sf.xxhash64(sf.lit(key), column), sf.lit(count)).cast("int").alias("bucket")


def _worker_name(index: int) -> str:
    """Returns a generated column name, which needs no quoting and is unique."""
    return f"c{index}"


def _id_bytes(text: Column) -> Column:
    """Returns the 16 bytes of a text id; malformed text becomes other bytes or null and is reported when it is parsed."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.unhex(sf.translate(text, "{}-", ""))


def _is_sortable(spark_type: DataType) -> bool:
    """Whether Spark can sort by a column of this type."""
    from pyspark.sql.types import ArrayType, StructType  # noqa: PLC0415 - pyspark is an extra

    if isinstance(spark_type, ArrayType):
        return _is_sortable(spark_type.elementType)
    if isinstance(spark_type, StructType):
        return all(_is_sortable(field.dataType) for field in spark_type)
    return spark_type.typeName() not in _UNSORTABLE_TYPES


_GUID_CHARACTERS: Final = 36
_GUID_DIGITS: Final = 32
_DASHES: Final = (9, 14, 19, 24)


def parsed_guid(text: Column) -> Column:
    """Returns the 16 bytes of a GUID of 36 characters, with or without braces; null if it is not one."""
    for step in PARSING_STEPS:
        text = step(text)
    return text


def _without_braces(text: Column) -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    has_braces = (sf.octet_length(text) == _GUID_CHARACTERS + 2) & text.startswith("{") & text.endswith("}")
    return sf.when(has_braces, sf.substring(text, 2, _GUID_CHARACTERS)).otherwise(text)


def _without_dashes(text: Column) -> Column:
    """Returns the text without dashes; null if it does not have 36 bytes, with dashes where a GUID has them."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    has_dashes = sf.octet_length(text) == _GUID_CHARACTERS
    for position in _DASHES:
        # Parts of texts are found by characters, which takes longer.
        has_dashes &= sf.substring(text.cast("binary"), position, 1) == sf.lit(b"-")
    return sf.when(has_dashes, sf.replace(text, sf.lit("-"), sf.lit("")))


def _bytes_of_digits(digits: Column) -> Column:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    return sf.when(sf.octet_length(digits) == _GUID_DIGITS, sf.unhex(digits))


PARSING_STEPS: Final = (_without_braces, _without_dashes, _bytes_of_digits)
"""The steps of `parsed_guid`: each uses its argument several times, which is computed once if it is a column."""
