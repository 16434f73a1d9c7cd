"""`route` for DataFrames, and `route_udf` for select and SQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import pyarrow as pa

from ssbroker._arguments import utc_datetime
from ssbroker.catalog.catalog import Catalog
from ssbroker.router import PendingRequest, TieBreak
from ssbroker.schemas import CONVERSATIONS
from ssbroker.spark import columns, worker
from ssbroker.spark.broadcast import ship
from ssbroker.spark.columns import PACKED, PACKED_COLUMN, TOLD, Labels, check_told_apart, quoted
from ssbroker.spark.transfer import TransferredColumns
from ssbroker.spark.worker import RouteTask

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.udf import UserDefinedFunction


Decide: TypeAlias = Callable[..., Any]  # from batches of columns to structs

_IN_PLAN: Final = 2_000
"""How many characters of texts may stand in a plan, which people read."""
_VERDICT: Final = 0x7FF
_PLACE: Final = 11
_LOW: Final = 0x7FFF_FFFF
_NO_ROUTE: Final = 1 << 31
_ROUTE: Final = 32


class DecisionEncoding(Protocol):
    """A way back."""

    @property
    def struct(self) -> str:
        """What Python gives for each row, as a type of Spark."""

    def function(self, task: RouteTask, crossing: TransferredColumns) -> Decide:
        """What runs in Python."""

    def unpacked(self, given: DataFrame, packed: Column) -> dict[str, Column]:
        """The decision columns, in the order of the contract, of the struct beside the columns given."""


def returning(catalog: Catalog, types: Mapping[str, pa.DataType], labels: Labels) -> DecisionEncoding:
    """The way back for the decisions by a catalog.

    Args:
        catalog: The catalog.
        types: The columns that routing reads, and their types in Arrow.
        labels: The labels by number.

    Returns:
        The way.
    """
    places = catalog.native.places()
    if places is None:
        return _AsColumns(labels=labels, fields=columns.settable(catalog))
    addresses, databases = places
    return _AsNumber(
        labels=labels,
        addresses=addresses,
        databases=databases if catalog.has_services else [],
        has_ids=types.get(columns.BROKER) == pa.binary(),
    )


@dataclass(frozen=True, kw_only=True)
class _AsColumns:
    labels: Labels
    fields: Mapping[str, str]

    @property
    def struct(self) -> str:
        return _struct(self.fields)

    def function(self, task: RouteTask, crossing: TransferredColumns) -> Decide:
        labels, fields = self.labels, tuple(self.fields)

        # Spark reads the kind of function from its annotations, and pyarrow's classes take no parameters when they are read.
        def decide(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:  # type: ignore[type-arg]
            return worker.packed_decisions(task, crossing, labels, fields, batches)

        return decide

    def unpacked(self, given: DataFrame, packed: Column) -> dict[str, Column]:  # noqa: ARG002 - as of the other way
        return self.labels.unpacked({name: packed[name] for name in self.fields})


@dataclass(frozen=True, kw_only=True)
class _AsNumber:
    """As `_core.Router.verdicts` has it.

    Attributes:
        labels: The labels by number.
        addresses: The first places.
        databases: Those after them; none where nothing is delivered.
        has_ids: Whether the JVM has the broker ids that conversations name as bytes, so that they need not come back.
    """

    labels: Labels
    addresses: Sequence[str]
    databases: Sequence[str]
    has_ids: bool

    @property
    def struct(self) -> str:
        return _struct({"verdict": "bigint", "broker_instance": PACKED["broker_instance"]})

    def function(self, task: RouteTask, crossing: TransferredColumns) -> Decide:
        tells_named = not self.has_ids

        def decide(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:  # type: ignore[type-arg]
            return worker.verdicts(task, crossing, batches, tells_named=tells_named)

        return decide

    def unpacked(self, given: DataFrame, packed: Column) -> dict[str, Column]:
        from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

        spark, whole = given.sparkSession, packed["verdict"]
        low = whole.bitwiseAND(_LOW).cast("int")
        place = sf.shiftright(low, _PLACE) - 1
        route_id = sf.when(whole.bitwiseAND(_NO_ROUTE) == 0, sf.shiftright(whole, _ROUTE).cast("int"))
        broker = packed["broker_instance"]
        found = {
            "verdict": low.bitwiseAND(_VERDICT),
            "route_id": route_id,
            "next_hop_address": sf.get(_texts(spark, self.addresses), place),
            "broker_instance": sf.coalesce(given[columns.BROKER], broker) if self.has_ids else broker,
        }
        if self.databases:
            found["target_database"] = sf.get(_texts(spark, self.databases), place - len(self.addresses))
        return self.labels.unpacked(found)


def _struct(fields: Mapping[str, str]) -> str:
    return f"struct<{', '.join(f'{name}: {kind}' for name, kind in fields.items())}>"


def _texts(spark: SparkSession, texts: Sequence[str]) -> Column:
    """An array of texts that is not made anew for each row: in the plan, or if it is long as the result of a query."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    written = json.dumps(texts)
    if len(written) <= _IN_PLAN:
        return sf.from_json(sf.lit(written), "array<string>")
    query = spark.sql("SELECT from_json(texts, 'array<string>') FROM VALUES (:texts) AS t(texts)", {"texts": written})
    return query.scalar()


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
    task = worker.RouteTask(
        catalog=ship(conversations_df.sparkSession, catalog, in_stream=conversations_df.isStreaming),
        now=utc_datetime(now),
        tie_break=tie_break,
        pending_request=pending_request,
    )

    crossing = TransferredColumns.of(types, conversations_df, catalog, tie_break)
    way = returning(catalog, types, labels)
    # Spark would run a deterministic function twice where a filter follows on what it returns: below the filter and above it.
    udf = _arrow_udf(way.function(task, crossing), way.struct).asNondeterministic()
    packed = crossing.rows(conversations_df).select("*", udf(*crossing.sent()).alias(PACKED_COLUMN))
    added = way.unpacked(packed, packed[quoted(PACKED_COLUMN)])
    return packed.select("*", *(column.alias(name) for name, column in added.items())).drop(PACKED_COLUMN, *TOLD)


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
    task = worker.RouteTask(
        catalog=ship(spark, catalog), now=utc_datetime(now), tie_break=tie_break, pending_request=pending_request
    )

    def where_to(*given: pa.Array, **named: pa.Array) -> pa.Array:  # type: ignore[type-arg]
        return worker.decisions(task, given, named)

    udf: UserDefinedFunction = _arrow_udf(where_to, columns.DECISION)
    return udf


def _arrow_udf(function: Callable[..., Any], returns: str) -> Any:
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    untyped: Any = sf  # its stubs do not have it
    return untyped.arrow_udf(function, returns)
