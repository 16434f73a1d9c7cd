"""`route` for DataFrames, and `route_udf` for select and SQL."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, get_args, overload

import pyarrow as pa

from ssbroker._arguments import epoch_microseconds, utc_datetime
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import InputError
from ssbroker.router import OnErrors, PendingRequest, Routed, Router, TieBreak, check_option, with_similar_database
from ssbroker.schemas import CONVERSATIONS, DECISIONS
from ssbroker.spark import compat, engine_choice, input_columns, packed_decisions
from ssbroker.spark.arguments import check_tie_break
from ssbroker.spark.arrow_columns import ArrowColumn
from ssbroker.spark.decision_join import DecisionJoin
from ssbroker.spark.engine_choice import Engine, RouteEngine
from ssbroker.spark.input_columns import CODE_COLUMNS, PACKED_COLUMN, check_unambiguous, quoted
from ssbroker.spark.invalid_rows import split_invalid
from ssbroker.spark.packed_decisions import PACKED_FIELDS, Labels
from ssbroker.spark.shared_values import SharedValue, share_catalog
from ssbroker.spark.transferred_columns import TransferredColumns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.udf import UserDefinedFunction


_ROUTERS_MAX: Final = 4
_SPARK_TYPES: Final = {
    name: pa.binary() if DECISIONS.field(name).type == pa.binary(16) else pa.string()
    for name in DECISIONS.names
    if not pa.types.is_integer(DECISIONS.field(name).type)
}


@dataclass(frozen=True, kw_only=True)
class RouteTask:
    """How to route: small enough to be sent with every task."""

    catalog: SharedValue[Catalog]
    now: datetime
    tie_break: TieBreak
    pending_request: PendingRequest


@functools.lru_cache(maxsize=_ROUTERS_MAX)
def cached_router(catalog: SharedValue[Catalog], tie_break: TieBreak, pending_request: PendingRequest) -> Router:
    """Returns the router of a shared catalog; it is compiled once per worker process."""
    return Router(catalog.value(), tie_break=tie_break, pending_request=pending_request)


def packed_decisions_of_partition(
    task: RouteTask, transfer: TransferredColumns, labels: Labels, fields: Sequence[str], batches: Iterator[Any]
) -> Iterator[pa.StructArray]:
    """Yields the decisions of a partition as structs with some of the fields `packed_decisions.PACKED_FIELDS`."""
    for batch, first_row in _decoded_batches(transfer, batches):
        yield pack_decisions(_route_batch(task, batch, first_row=first_row), labels, fields)


def decision_numbers_of_partition(
    task: RouteTask, transfer: TransferredColumns, batches: Iterator[Any], *, return_named_ids: bool
) -> Iterator[pa.StructArray]:
    """Yields the decisions of a partition as structs of a decision number and a broker id.

    With `return_named_ids`, broker ids that conversations name are returned too.
    """
    router = cached_router(task.catalog, task.tie_break, task.pending_request).native
    now_us = epoch_microseconds(task.now)
    for batch, first_row in _decoded_batches(transfer, batches):
        with _batch_located(batch, first_row):
            decided = _route_packed(router, task.catalog, batch, now_us, return_named_ids=return_named_ids)
        yield decided.to_struct_array()


def _route_packed(
    router: Any, catalog: SharedValue[Catalog], batch: pa.RecordBatch, now_us: int, *, return_named_ids: bool
) -> pa.RecordBatch:
    try:
        decided: pa.RecordBatch = router.route_packed(batch, now_us, return_named_ids)
    except InputError as error:
        raise with_similar_database(error, catalog.value()) from None
    return decided


def pack_batch(task: RouteTask, conversations: pa.RecordBatch, labels: Labels) -> pa.StructArray:
    """Returns the decisions of one batch as structs `packed_decisions.PACKED_FIELDS`."""
    return pack_decisions(_route_batch(task, conversations, first_row=0), labels)


def pack_decisions(
    decided: pa.RecordBatch, labels: Labels, fields: Sequence[str] = tuple(packed_decisions.PACKED_FIELDS)
) -> pa.StructArray:
    """Packs decisions into structs with some of the fields `packed_decisions.PACKED_FIELDS`, of which the decision code is the first."""
    others = [_to_spark_type(decided, name) for name in fields[1:]]
    return pa.StructArray.from_arrays([labels.pack(decided), *others], list(fields))


def decision_structs(
    task: RouteTask, positional: Sequence[ArrowColumn], keyword: dict[str, ArrowColumn]
) -> pa.StructArray:
    """Returns the decisions of one batch as structs `packed_decisions.DECISION_STRUCT`.

    `positional` are columns in contract order; `keyword` are columns by name.
    """
    by_name = {**dict(zip(CONVERSATIONS.names, positional, strict=False)), **keyword}
    decided = _route_batch(task, pa.RecordBatch.from_arrays(list(by_name.values()), names=list(by_name)), first_row=0)
    return pa.StructArray.from_arrays([_to_spark_type(decided, name) for name in DECISIONS.names], DECISIONS.names)


def _decoded_batches(transfer: TransferredColumns, batches: Iterator[Any]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yields the conversations of each batch, and the index of its first row in the partition."""
    first_row = 0
    for arrays in batches:
        batch = transfer.decode(list(arrays) if isinstance(arrays, tuple) else [arrays])
        yield batch, first_row
        first_row += batch.num_rows


def _route_batch(task: RouteTask, batch: pa.RecordBatch, *, first_row: int) -> pa.RecordBatch:
    router = cached_router(task.catalog, task.tie_break, task.pending_request)
    with _batch_located(batch, first_row):
        return router.route(batch, now=task.now)


@contextmanager
def _batch_located(batch: pa.RecordBatch, first_row: int) -> Iterator[None]:
    """Adds to an error where in the job the batch is."""
    try:
        yield
    except InputError as error:
        from pyspark import TaskContext  # noqa: PLC0415 - pyspark is an extra

        context = TaskContext.get()
        where = "" if context is None else f" of partition {context.partitionId()}"
        error.add_note(f"Row 0 of this batch of {batch.num_rows} rows is row {first_row}{where} of the Spark job.")
        raise


def _to_spark_type(decided: pa.RecordBatch, name: str) -> ArrowColumn:
    """Returns a column in a type that Spark accepts: no dictionary and no fixed-size binary."""
    column = decided[name]
    return column.cast(_SPARK_TYPES[name]) if name in _SPARK_TYPES else column


DecisionFunction: TypeAlias = Callable[..., Any]  # from batches of columns to structs

_PLAN_CHARACTERS_MAX: Final = 2_000
"""The maximum length of strings in a query plan, which people read."""
_NUMBER_FIELD: Final = "decision_number"
_CODE_MASK: Final = 0x7FF
_TARGET_SHIFT: Final = 11
_LOW_MASK: Final = 0x7FFF_FFFF
_NO_ROUTE_BIT: Final = 1 << 31
_ROUTE_SHIFT: Final = 32


class DecisionEncoding(Protocol):
    """How decisions are returned from Python to the JVM."""

    @property
    def struct(self) -> str:
        """The Spark type that Python returns for each row."""

    def function(self, task: RouteTask, transfer: TransferredColumns) -> DecisionFunction:
        """Returns the function that runs in Python."""

    def unpack(self, frame: DataFrame, packed: Column) -> dict[str, Column]:
        """Returns the decision columns, in contract order, from the returned struct and the columns of the input."""


def choose_encoding(catalog: Catalog, types: Mapping[str, pa.DataType], labels: Labels) -> DecisionEncoding:
    """Returns the encoding for decisions by a catalog: numbers if the catalog numbers its addresses and databases, else columns."""
    targets = catalog.native.destinations()
    if targets is None or not all(map(_has_string_array, targets)):
        return _ColumnEncoding(labels=labels, fields=packed_decisions.possible_fields(catalog))
    addresses, databases = targets
    return _NumberEncoding(
        labels=labels,
        addresses=addresses,
        databases=databases if catalog.has_services else [],
        has_ids=types.get(input_columns.BROKER_COLUMN) == pa.binary(),
    )


@dataclass(frozen=True, kw_only=True)
class _ColumnEncoding:
    labels: Labels
    fields: Mapping[str, str]

    @property
    def struct(self) -> str:
        return _struct_type(self.fields)

    def function(self, task: RouteTask, transfer: TransferredColumns) -> DecisionFunction:
        labels, fields = self.labels, tuple(self.fields)

        # Spark evaluates the annotations to learn the kind of function, and pyarrow's classes take no type parameters at run time.
        def decide(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:  # type: ignore[type-arg]
            return packed_decisions_of_partition(task, transfer, labels, fields, batches)

        return decide

    def unpack(self, frame: DataFrame, packed: Column) -> dict[str, Column]:  # noqa: ARG002 - the protocol has it
        return self.labels.unpack({name: packed[name] for name in self.fields})


@dataclass(frozen=True, kw_only=True)
class _NumberEncoding:
    """The encoding of `_core.Router.route_packed`.

    Attributes:
        labels: The labels by number.
        addresses: The addresses, in the order of their numbers.
        databases: The databases, whose numbers follow those of the addresses; empty if no message is delivered locally.
        has_ids: Whether the input has the broker ids as bytes, so that they need not be returned.
    """

    labels: Labels
    addresses: Sequence[str]
    databases: Sequence[str]
    has_ids: bool

    @property
    def struct(self) -> str:
        return _struct_type({_NUMBER_FIELD: "bigint", "broker_instance": PACKED_FIELDS["broker_instance"]})

    def function(self, task: RouteTask, transfer: TransferredColumns) -> DecisionFunction:
        return_named_ids = not self.has_ids

        def decide(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:  # type: ignore[type-arg]
            return decision_numbers_of_partition(task, transfer, batches, return_named_ids=return_named_ids)

        return decide

    def unpack(self, frame: DataFrame, packed: Column) -> dict[str, Column]:
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        spark, number = frame.sparkSession, packed[_NUMBER_FIELD]
        low = number.bitwiseAND(_LOW_MASK).cast("int")
        target = sf.shiftright(low, _TARGET_SHIFT) - 1
        route_id = sf.when(number.bitwiseAND(_NO_ROUTE_BIT) == 0, sf.shiftright(number, _ROUTE_SHIFT).cast("int"))
        broker = packed["broker_instance"]
        decision = {
            packed_decisions.DECISION_CODE: low.bitwiseAND(_CODE_MASK),
            "route_id": route_id,
            "next_hop_address": sf.get(_string_array(spark, self.addresses), target),
            "broker_instance": sf.coalesce(frame[input_columns.BROKER_COLUMN], broker) if self.has_ids else broker,
        }
        if self.databases:
            decision["target_database"] = sf.get(_string_array(spark, self.databases), target - len(self.addresses))
        return self.labels.unpack(decision)


def _struct_type(fields: Mapping[str, str]) -> str:
    return f"struct<{', '.join(f'{name}: {kind}' for name, kind in fields.items())}>"


def _has_string_array(strings: Sequence[str]) -> bool:
    """Whether `_string_array` can be used; the result of a query is a column since PySpark 4.0."""
    from pyspark.sql import DataFrame  # noqa: PLC0415 - pyspark is an extra

    return hasattr(DataFrame, "scalar") or len(json.dumps(strings)) <= _PLAN_CHARACTERS_MAX


def _string_array(spark: SparkSession, strings: Sequence[str]) -> Column:
    """Returns an array of strings that is not built again for each row: a literal in the plan or, if it is long, the result of a query."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    literal = json.dumps(strings)
    if len(literal) <= _PLAN_CHARACTERS_MAX:
        return sf.from_json(sf.lit(literal), "array<string>")
    query = spark.sql("SELECT from_json(texts, 'array<string>') FROM VALUES (:texts) AS t(texts)", {"texts": literal})
    return query.scalar()


@overload
def route(
    conversations_df: DataFrame,
    catalog: Catalog,
    *,
    now: datetime | None = None,
    tie_break: TieBreak = "hash",
    pending_request: PendingRequest = "continue",
    engine: Engine = "auto",
    errors: Literal["raise"] = "raise",
) -> DataFrame: ...


@overload
def route(
    conversations_df: DataFrame,
    catalog: Catalog,
    *,
    now: datetime | None = None,
    tie_break: TieBreak = "hash",
    pending_request: PendingRequest = "continue",
    engine: Engine = "auto",
    errors: Literal["reject"],
) -> Routed[DataFrame]: ...


def route(
    conversations_df: DataFrame,
    catalog: Catalog,
    *,
    now: datetime | None = None,
    tie_break: TieBreak = "hash",
    pending_request: PendingRequest = "continue",
    engine: Engine = "auto",
    errors: OnErrors = "raise",
) -> DataFrame | Routed[DataFrame]:
    """Adds the routing decision to each conversation; the decisions are those of `Router.route`, row for row.

    Columns and options are checked before a job starts. An invalid value fails the job with an exception that contains the error
    message, which names the column and the value; with `native`, if only outcome, reason and step are selected, just the columns that
    these depend on are checked. Streams are supported too: every micro-batch is routed by the same catalog and the
    same `now`.

    Args:
        conversations_df: Rows of `sys.transmission_queue`, on classic Spark or Spark Connect. Extra columns are passed through.
        catalog: The instance's databases, services and routing tables.
        now: The time at which routes expire; None for the time of this call. Without a time zone it is UTC.
        tie_break: How one of several equal routes is picked: `hash` or `first`.
        pending_request: What step 4 does while a request for routing information is pending: `continue` or `delay`.
        engine: `native` joins the rows with the decisions for each service name, without Python in the executors. `arrow` routes in
            Python, and its error messages name the row too. `auto` uses the faster one, which `route_engine` returns.
        errors: What to do with a row that has a null service name or direction, an invalid GUID or an unknown database: `raise` fails the
            job, `reject` routes the other rows.

    Returns:
        The columns of the input, then the decision columns: labels as `string`, ids as `binary` of 16 bytes. With `errors="reject"`, a
        `Routed` of this DataFrame without the invalid rows, and of the invalid rows, with the first invalid column, its value and the
        reason in `column`, `value` and `reason` (see `schemas.REJECTED_CONVERSATIONS`). Each reads the input when it is used; if that
        is expensive or not repeatable, `persist` the input first. The rejected rows need no decisions and no Python.

    Raises:
        SchemaError: A column is missing, has an unsupported type or the name of a decision column; with `errors="reject"`, also the name
            `column` or `value`.
        OptionError: An option has an invalid value. `round_robin` is invalid, because workers share no counter; `native` is invalid if a
            route for all services has the address TRANSPORT and a mirror address.

    Examples:
        >>> from pyspark.sql import SparkSession
        >>> import ssbroker.spark
        >>> from ssbroker import Catalog, schemas
        >>> spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        >>> conversations = spark.createDataFrame([(bytes(16), "//Orders")], "conversation_id binary, to_service_name string")
        >>> routes = {"name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [None], "address": ["TCP://orders"], "mirror_address": [None]}
        >>> routed = ssbroker.spark.route(conversations, Catalog(pa.table(routes)))
        >>> routed.select("to_service_name", "outcome", "next_hop_address").first()
        Row(to_service_name='//Orders', outcome='REMOTE', next_hop_address='TCP://orders:4022')
        >>> wrong = spark.createDataFrame([(bytes(16), "//Orders"), (bytes(16), None)], "conversation_id binary, to_service_name string")
        >>> routed, rejected = ssbroker.spark.route(wrong, Catalog(pa.table(routes)), errors="reject")
        >>> routed.count(), rejected.select("column", "value", "reason").collect()
        (1, [Row(column='to_service_name', value=None, reason='null')])
        >>> spark.stop()
    """
    moment = utc_datetime(now)
    types, labels = _checked_columns(conversations_df, catalog, moment, tie_break, pending_request)
    check_option("errors", errors, get_args(OnErrors))
    rejected = None
    if errors == "reject":
        conversations_df, rejected = split_invalid(conversations_df, types, catalog, tie_break)
    decided = _decided(
        conversations_df,
        catalog,
        types,
        labels,
        now=moment,
        tie_break=tie_break,
        pending_request=pending_request,
        engine=engine,
    )
    return decided if rejected is None else Routed(decided, rejected)


def _decided(
    conversations_df: DataFrame,
    catalog: Catalog,
    types: dict[str, pa.DataType],
    labels: Labels,
    *,
    now: datetime,
    tie_break: TieBreak,
    pending_request: PendingRequest,
    engine: Engine,
) -> DataFrame:
    _, join_table = engine_choice.choose_engine(
        conversations_df,
        types,
        catalog,
        labels,
        engine,
        now=now,
        tie_break=tie_break,
        pending_request=pending_request,
    )
    if join_table is not None:
        default = catalog.user_database
        join = DecisionJoin(conversations_df, types, join_table, labels, default_database=default, tie_break=tie_break)
        return join.routed()
    task = RouteTask(
        catalog=share_catalog(conversations_df.sparkSession, catalog, in_stream=conversations_df.isStreaming),
        now=now,
        tie_break=tie_break,
        pending_request=pending_request,
    )
    transfer = TransferredColumns.of(types, conversations_df, catalog, tie_break)
    encoding = choose_encoding(catalog, types, labels)
    packed = _with_packed_decisions(transfer.with_codes(conversations_df), transfer, encoding, task)
    added = encoding.unpack(packed, packed[quoted(PACKED_COLUMN)])
    return packed.select("*", *(column.alias(name) for name, column in added.items())).drop(
        PACKED_COLUMN, *CODE_COLUMNS
    )


def route_engine(
    conversations_df: DataFrame,
    catalog: Catalog,
    *,
    now: datetime | None = None,
    tie_break: TieBreak = "hash",
    pending_request: PendingRequest = "continue",
    engine: Engine = "auto",
) -> RouteEngine:
    """Returns the engine that `route` uses for a DataFrame and a catalog, and why; no job runs.

    Args:
        conversations_df: See `route`, also for the options below.
        catalog: See `route`.
        now: See `route`.
        tie_break: See `route`.
        pending_request: See `route`.
        engine: See `route`.

    Returns:
        The engine. Its text is its name and the reason.

    Raises:
        SchemaError: See `route`.
        OptionError: See `route`.

    Examples:
        >>> from pyspark.sql import SparkSession
        >>> import ssbroker.spark
        >>> from ssbroker import Catalog
        >>> spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        >>> conversations = spark.createDataFrame([(bytes(16), "//Orders")], "conversation_id binary, to_service_name string")
        >>> routes = {"name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [None], "address": ["TCP://orders"], "mirror_address": [None]}
        >>> print(ssbroker.spark.route_engine(conversations, Catalog(pa.table(routes))))
        native: a broadcast join with the decisions for each service name
        >>> spark.stop()
    """
    moment = utc_datetime(now)
    types, labels = _checked_columns(conversations_df, catalog, moment, tie_break, pending_request)
    chosen, _ = engine_choice.choose_engine(
        conversations_df,
        types,
        catalog,
        labels,
        engine,
        now=moment,
        tie_break=tie_break,
        pending_request=pending_request,
    )
    return chosen


def _checked_columns(
    conversations: DataFrame, catalog: Catalog, now: datetime, tie_break: TieBreak, pending_request: PendingRequest
) -> tuple[dict[str, pa.DataType], Labels]:
    """Checks columns and options; returns the Arrow types of the columns that routing reads, and the decision labels."""
    names = input_columns.conversation_columns(conversations)
    check_unambiguous(names, conversations)
    types = {
        name: input_columns.arrow_type(
            name, conversations.schema[name].dataType, expected=input_columns.EXPECTED_TYPES[name]
        )
        for name in names
    }
    check_tie_break(tie_break)
    labels = input_columns.validate_routing(
        catalog, types, now=now, tie_break=tie_break, pending_request=pending_request
    )
    return types, labels


def route_udf(
    spark: SparkSession,
    catalog: Catalog,
    *,
    now: datetime | None = None,
    tie_break: TieBreak = "hash",
    pending_request: PendingRequest = "continue",
) -> UserDefinedFunction:
    """Returns a column function for `select` and, once registered, for SQL.

    It returns the decision as a struct with the fields `outcome`, `match_step`, `route_id`, `next_hop_address`, `mirror_address`,
    `target_database`, `broker_instance` and `reason`.

    The function takes `conversation_id`, `database`, `to_service_name`, `to_broker_instance` and `is_initiator`, in this order or by
    name; optional columns may be omitted when they are passed by name. A streaming query on Spark Connect cannot use it: use
    `route_stream` or `route` there.

    Args:
        spark: The session, classic or Spark Connect.
        catalog: The instance's databases, services and routing tables.
        now: The time at which routes expire; None for the time of this call. Without a time zone it is UTC.
        tie_break: How one of several equal routes is picked: `hash` or `first`.
        pending_request: What step 4 does while a request for routing information is pending: `continue` or `delay`.

    Returns:
        The function, for `Column` arguments or `spark.udf.register`.

    Raises:
        OptionError: An option has an invalid value. `round_robin` is invalid, because workers share no counter.

    Examples:
        >>> from pyspark.sql import SparkSession
        >>> import ssbroker.spark
        >>> from ssbroker import Catalog, schemas
        >>> spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        >>> where_to = ssbroker.spark.route_udf(spark, Catalog(schemas.ROUTES.empty_table()), tie_break="first")
        >>> _ = spark.udf.register("where_to", where_to)
        >>> spark.sql("select where_to(to_service_name => '//Orders', database => 'msdb').reason").first()[0]
        'no_route'
        >>> spark.stop()
    """
    check_tie_break(tie_break)
    types = {field.name: field.type for field in CONVERSATIONS}
    moment = utc_datetime(now)
    input_columns.validate_routing(catalog, types, now=moment, tie_break=tie_break, pending_request=pending_request)
    task = RouteTask(
        catalog=share_catalog(spark, catalog),
        now=moment,
        tie_break=tie_break,
        pending_request=pending_request,
    )

    def where_to(*positional: pa.Array, **by_name: pa.Array) -> pa.Array:  # type: ignore[type-arg]
        return decision_structs(task, positional, by_name)

    udf: UserDefinedFunction = compat.column_function(where_to, packed_decisions.DECISION_STRUCT)
    return udf


def _with_packed_decisions(
    coded: DataFrame, transfer: TransferredColumns, encoding: DecisionEncoding, task: RouteTask
) -> DataFrame:
    """Adds the column with the packed decisions."""
    function, names = encoding.function(task, transfer), transfer.transferred_names()
    # Without Arrow UDFs, mapInArrow takes all columns; those that Arrow does not have must stay in the JVM.
    if compat.has_arrow_udf() or not input_columns.are_arrow_types(coded.schema):
        # If a filter uses the result, Spark runs a deterministic function twice: below the filter and above it.
        udf = compat.iterator_function(function, encoding.struct).asNondeterministic()
        return coded.select("*", udf(*names).alias(PACKED_COLUMN))
    read = [*transfer.direct, *(CODE_COLUMNS if transfer.encoded else ())]
    return compat.map_in_arrow(coded, function, read, name=PACKED_COLUMN, returns=encoding.struct)
