"""`route` for DataFrames, and `route_udf` for `select` and SQL."""

from __future__ import annotations

import os
from datetime import datetime
from typing import TYPE_CHECKING, Literal, get_args, overload

import pyarrow as pa

from ssbroker._arguments import OnErrors, check_option, utc_datetime
from ssbroker.catalog.catalog import Catalog
from ssbroker.router import PendingRequest, Routed, TieBreak
from ssbroker.schemas import CONVERSATIONS
from ssbroker.spark import compat, decision_codes, engine_choice, input_columns
from ssbroker.spark.arguments import SparkTieBreak, check_tie_break, loaded_catalog
from ssbroker.spark.decision_codes import Labels
from ssbroker.spark.decision_encoding import DecisionEncoding, choose_encoding
from ssbroker.spark.decision_join import DecisionJoin
from ssbroker.spark.dry_run import validate_routing
from ssbroker.spark.engine_choice import Engine, RouteEngine
from ssbroker.spark.input_columns import CODE_COLUMNS, DECISION_COLUMN, check_unambiguous, quoted
from ssbroker.spark.invalid_rows import split_invalid
from ssbroker.spark.routing_task import RouteTask, decision_structs
from ssbroker.spark.shared_values import share_catalog
from ssbroker.spark.transferred_columns import TransferredColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.udf import UserDefinedFunction


@overload
def route(
    conversations_df: DataFrame,
    catalog: Catalog | str | os.PathLike[str],
    *,
    now: datetime | None = None,
    tie_break: SparkTieBreak = "hash",
    pending_request: PendingRequest = "continue",
    engine: Engine = "auto",
    errors: Literal["raise"] = "raise",
) -> DataFrame: ...


@overload
def route(
    conversations_df: DataFrame,
    catalog: Catalog | str | os.PathLike[str],
    *,
    now: datetime | None = None,
    tie_break: SparkTieBreak = "hash",
    pending_request: PendingRequest = "continue",
    engine: Engine = "auto",
    errors: Literal["reject"],
) -> Routed[DataFrame]: ...


def route(
    conversations_df: DataFrame,
    catalog: Catalog | str | os.PathLike[str],
    *,
    now: datetime | None = None,
    tie_break: SparkTieBreak = "hash",
    pending_request: PendingRequest = "continue",
    engine: Engine = "auto",
    errors: OnErrors = "raise",
) -> DataFrame | Routed[DataFrame]:
    """Adds the routing decision to each conversation, the same decision as `Router.route`.

    Columns and options are checked before a job starts. An invalid value fails the job with an exception that contains
    the error message, which names the column and the value. With the engine `native`, a job that selects only outcome,
    reason and step checks only the input columns on which these three depend. Streams are also supported: every
    micro-batch is routed with the same catalog and the same `now`.

    Args:
        conversations_df: Conversations (`schemas.CONVERSATIONS`), such as rows of `sys.transmission_queue`, on classic Spark or
            Spark Connect. Extra columns are passed through.
        catalog: The instance's databases, services and routing tables; or a path, which `Catalog.load` reads once, with `now`
            as the time from which LIFETIME counts.
        now: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
        tie_break: How to choose among equal candidates: `hash` or `first`.
        pending_request: How to route a conversation while routing information is requested for its service. `continue` searches
            the routes that name no service; `delay` delays the conversation.
        engine: `native` joins the rows with the decisions for each service name, without Python in the executors.
            `arrow` routes in Python, and its error messages also name the row. `auto` uses the faster engine, which
            `route_engine` returns.
        errors: What to do with a row that has a null service name, direction or (with `hash`) conversation id, an invalid GUID or an
            unknown database: `raise` fails the job; `reject` routes the other rows, and returns these rows separately.

    Returns:
        The columns of the input, followed by the decision columns: labels as `string`, ids as `binary` of 16 bytes.
        With `errors="reject"`, a `Routed` of two DataFrames: the valid rows with their decisions, and the invalid rows.
        The columns `column`, `value` and `reason` of the invalid rows contain the first invalid column, its value and
        the reason (see `schemas.REJECTED_CONVERSATIONS`). Each DataFrame reads the input when it is used; if reading is expensive or
        not repeatable, `persist` the input first.

    Raises:
        SchemaError: A column is missing, or has an unsupported type or the name of a decision column; with
            `errors="reject"`, a column is named `column` or `value`.
        OptionError: An option has an invalid value. `round_robin` is invalid, because workers share no counter; `native` is invalid if a
            route for all services has the address TRANSPORT and a mirror address.

    Examples:
        >>> import pyarrow as pa
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
    catalog = loaded_catalog(catalog, now=moment)
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
    encoded = _with_encoded_decisions(transfer.with_codes(conversations_df), transfer, encoding, task)
    added = encoding.decode(encoded, encoded[quoted(DECISION_COLUMN)])
    return encoded.select("*", *(column.alias(name) for name, column in added.items())).drop(
        DECISION_COLUMN, *CODE_COLUMNS
    )


def route_engine(
    conversations_df: DataFrame,
    catalog: Catalog | str | os.PathLike[str],
    *,
    now: datetime | None = None,
    tie_break: SparkTieBreak = "hash",
    pending_request: PendingRequest = "continue",
    engine: Engine = "auto",
) -> RouteEngine:
    """Returns the engine that `route` uses for a DataFrame and a catalog, and why; no job runs.

    Args:
        conversations_df: See `route`, which also describes the options below.
        catalog: See `route`.
        now: See `route`.
        tie_break: See `route`.
        pending_request: See `route`.
        engine: See `route`.

    Returns:
        The engine and the reason; `str` combines both.

    Raises:
        SchemaError: See `route`.
        OptionError: See `route`.

    Examples:
        >>> import pyarrow as pa
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
    catalog = loaded_catalog(catalog, now=moment)
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
    types = {name: input_columns.conversation_type(name, conversations.schema[name].dataType) for name in names}
    check_tie_break(tie_break)
    labels = validate_routing(
        catalog,
        types,
        now=now,
        tie_break=tie_break,
        pending_request=pending_request,
        all_names=conversations.columns,
    )
    return types, labels


def route_udf(
    spark: SparkSession,
    catalog: Catalog | str | os.PathLike[str],
    *,
    now: datetime | None = None,
    tie_break: SparkTieBreak = "hash",
    pending_request: PendingRequest = "continue",
) -> UserDefinedFunction:
    """Returns a user-defined function (UDF) that routes conversations in `select` and, once registered, in SQL.

    The function returns the decision as a struct with the fields `outcome`, `match_step`, `route_id`,
    `next_hop_address`, `mirror_address`, `target_database`, `broker_instance` and `reason`.

    The arguments of the function are `conversation_id`, `database`, `to_service_name`, `to_broker_instance` and
    `is_initiator`, in this order or by name. If arguments are passed by name, those whose columns are optional in
    `schemas.CONVERSATIONS` may be omitted. A streaming query on Spark Connect cannot use the function; use
    `route_stream` or `route` there.

    Args:
        spark: The session, classic or Spark Connect.
        catalog: The instance's databases, services and routing tables; or a path, which `Catalog.load` reads once, with `now`
            as the time from which LIFETIME counts.
        now: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
        tie_break: How to choose among equal candidates: `hash` or `first`.
        pending_request: How to route a conversation while routing information is requested for its service. `continue` searches
            the routes that name no service; `delay` delays the conversation.

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
    catalog = loaded_catalog(catalog, now=moment)
    validate_routing(catalog, types, now=moment, tie_break=tie_break, pending_request=pending_request)
    task = RouteTask(
        catalog=share_catalog(spark, catalog),
        now=moment,
        tie_break=tie_break,
        pending_request=pending_request,
    )

    def where_to(*positional: pa.Array, **by_name: pa.Array) -> pa.Array:  # type: ignore[type-arg]
        return decision_structs(task, positional, by_name)

    udf: UserDefinedFunction = compat.column_function(where_to, decision_codes.DECISION_STRUCT)
    return udf


def _with_encoded_decisions(
    coded: DataFrame, transfer: TransferredColumns, encoding: DecisionEncoding, task: RouteTask
) -> DataFrame:
    """Adds the column with the encoded decisions."""
    function, names = encoding.function(task, transfer), transfer.transferred_names()
    # Without Arrow UDFs, mapInArrow is used. It transfers all columns, but columns whose types Arrow does not support
    # must stay in the JVM.
    if compat.has_arrow_udf() or not input_columns.are_arrow_types(coded.schema):
        # If a filter uses the result, Spark runs a deterministic function twice: before the filter and after it.
        udf = compat.iterator_function(function, encoding.struct).asNondeterministic()
        return coded.select("*", udf(*names).alias(DECISION_COLUMN))
    read = [*transfer.direct, *(CODE_COLUMNS if transfer.encoded else ())]
    return compat.map_in_arrow(coded, function, read, name=DECISION_COLUMN, returns=encoding.struct)
