"""`route` for DataFrames, `route_udf` for select and SQL.

Both run as an Arrow UDF over the key columns alone: measured, that is faster than `mapInArrow` for wide rows, whose payloads then
stay in the JVM, and for narrow ones too, whose columns then need not come back from Python (docs/dev/2026-11-20-spark-shape.md).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ssbroker import moment
from ssbroker.catalog import Catalog
from ssbroker.routing import PendingRequest, TieBreak
from ssbroker.schemas import CONVERSATIONS
from ssbroker.spark import columns, worker
from ssbroker.spark.crossing import Crossing
from ssbroker.spark.names import PACKED, TOLD, check_told_apart, quoted
from ssbroker.spark.returning import returning
from ssbroker.spark.shipping import ship

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.udf import UserDefinedFunction


def route(
    conversations_df: DataFrame,
    catalog: Catalog,
    *,
    now: datetime | None = None,
    tie_break: TieBreak = "hash",
    pending_request: PendingRequest = "continue",
) -> DataFrame:
    """Adds to each conversation where it goes; the answers are those of `Router.route`, row for row.

    Columns and options are checked before a job starts. A value that is wrong ends the job with a `PythonException` that carries
    the error's text. Streams are routed too, every batch by the same catalog and the same `now`.

    Args:
        conversations_df: Rows of `sys.transmission_queue`, on classic Spark or Spark Connect. Further columns stay as they are.
        catalog: The instance's databases, services and routing tables.
        now: The moment at which routes expire, None for that of this call. Without a zone it is UTC.
        tie_break: How one of several equals is picked: `hash` or `first`.
        pending_request: What a pending request for routing information does to step 4.

    Returns:
        The columns of the input, then those of the decision: labels as `string`, ids as `binary` of 16 bytes.

    Raises:
        SchemaError: A column is missing, has a type that cannot be read or the name of a column of the decision.
        OptionError: An option is not one of those allowed; `round_robin` is not, since workers have no turn in common.

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
        >>> spark.stop()
    """
    names = columns.keys(conversations_df)
    check_told_apart(names, conversations_df)
    types = {
        name: columns.arrow_type(name, conversations_df.schema[name].dataType, expected=columns.EXPECTED[name])
        for name in names
    }
    columns.check_tie_break(tie_break)
    labels = columns.rehearse(catalog, types, tie_break=tie_break, pending_request=pending_request)
    task = worker.Task(
        catalog=ship(conversations_df.sparkSession, catalog, in_stream=conversations_df.isStreaming),
        now=moment.as_utc(now),
        tie_break=tie_break,
        pending_request=pending_request,
    )

    crossing = Crossing.of(types, conversations_df, catalog, tie_break)
    way = returning(catalog, types, labels)
    # Spark would run a deterministic function twice where a filter follows on what it returns: below the filter and above it.
    udf = _arrow_udf(way.function(task, crossing), way.struct).asNondeterministic()
    packed = crossing.rows(conversations_df).select("*", udf(*crossing.sent()).alias(PACKED))
    added = way.unpacked(packed, packed[quoted(PACKED)])
    return packed.select("*", *(column.alias(name) for name, column in added.items())).drop(PACKED, *TOLD)


def route_udf(
    spark: SparkSession,
    catalog: Catalog,
    *,
    now: datetime | None = None,
    tie_break: TieBreak = "hash",
    pending_request: PendingRequest = "continue",
) -> UserDefinedFunction:
    """A function of columns for `select` and, once registered, for SQL: it returns the decision as a struct.

    It takes `conversation_id`, `database`, `to_service_name`, `to_broker_instance` and `is_initiator`, in this order or by name;
    by name, those that the contract lets out may be left out. A stream on Spark Connect cannot use it: for that there are `route_stream` and
    `route`.

    Args:
        spark: The session, classic or Spark Connect.
        catalog: The instance's databases, services and routing tables.
        now: The moment at which routes expire, None for that of this call. Without a zone it is UTC.
        tie_break: How one of several equals is picked: `hash` or `first`.
        pending_request: What a pending request for routing information does to step 4.

    Returns:
        The function.

    Raises:
        OptionError: An option is not one of those allowed; `round_robin` is not, since workers have no turn in common.

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
    columns.check_tie_break(tie_break)
    types = {field.name: field.type for field in CONVERSATIONS}
    columns.rehearse(catalog, types, tie_break=tie_break, pending_request=pending_request)
    task = worker.Task(
        catalog=ship(spark, catalog), now=moment.as_utc(now), tie_break=tie_break, pending_request=pending_request
    )

    def where_to(*given: pa.Array, **named: pa.Array) -> pa.Array:  # type: ignore[type-arg]
        return worker.decisions(task, given, named)

    udf: UserDefinedFunction = _arrow_udf(where_to, columns.DECISION)
    return udf


def _arrow_udf(function: Callable[..., Any], returns: str) -> Any:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    untyped: Any = sf  # its stubs do not have it
    return untyped.arrow_udf(function, returns)
