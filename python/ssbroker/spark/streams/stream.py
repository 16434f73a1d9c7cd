"""`stream` and `reassemble_stream`: reassemble the fragments of a stream, and route the messages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker import reassembly as keys
from ssbroker._arguments import boolean, integer_argument, utc_datetime
from ssbroker.catalog.catalog import Catalog
from ssbroker.exceptions import OptionError, SchemaError
from ssbroker.reassembly import SessionKeys
from ssbroker.router import PendingRequest, TieBreak
from ssbroker.spark import input_columns, reassembly_rows
from ssbroker.spark.arguments import check_frame, check_tie_break
from ssbroker.spark.compat import check_stream_support
from ssbroker.spark.fragment_columns import FragmentColumns, read_fragment_columns
from ssbroker.spark.input_columns import check_no_reserved_columns
from ssbroker.spark.shared_values import share_catalog, share_session_keys
from ssbroker.spark.streams import row_cells, stream_rows
from ssbroker.spark.streams.bucket_state import StateParts
from ssbroker.spark.streams.bucket_step import run_step
from ssbroker.spark.streams.catalog_location import CatalogLocation, CatalogPath, FixedCatalog, load_catalog
from ssbroker.spark.streams.extra_columns import without_watermark
from ssbroker.spark.streams.options import DELAYED_BYTES_MAX, BucketCount, StreamLimits, microseconds, parse_catalog
from ssbroker.spark.streams.stream_rows import StreamKinds
from ssbroker.spark.streams.task import AssemblySettings, RoutingSettings, StreamTask
from ssbroker.spark.worker_version import on_workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructField


_MICROSECONDS_PER_MS: Final = 1000


class BucketStore:
    """Runs steps of buckets on Spark's state store and timers; `handle` is Spark's."""

    def __init__(self, task: StreamTask, handle: Any) -> None:
        self._task: Final = task
        self._handle: Final = handle
        self._parts: Final = StateParts(handle)

    def run_step(self, cells: Sequence[bytes], now_ms: int) -> list[tuple[str, bytes]]:
        """Runs a step of the current bucket with the cells that have arrived, at the time of the micro-batch; returns kinds and cells."""
        state_before = self._parts.get()
        batches = [batch for cell in cells for batch in row_cells.from_ipc(cell).to_batches()]
        output = run_step(self._task, state_before, batches, now_us=now_ms * _MICROSECONDS_PER_MS)
        if output.state is None:
            self._parts.clear()
        elif output.state is not state_before:
            self._parts.put(output.state)
        if output.due_us is not None:
            self._set_timer(-(-output.due_us // _MICROSECONDS_PER_MS), now_ms)
        return list(row_cells.to_cells(output.rows))

    def _set_timer(self, due_ms: int, now_ms: int) -> None:
        """Keeps one timer in the future, at the due time or earlier."""
        due_ms = max(due_ms, now_ms + 1)
        timers = [int(timer) for timer in self._handle.listTimers()]
        for timer in timers:
            if timer > due_ms:
                self._handle.deleteTimer(timer)
        if not any(now_ms < timer <= due_ms for timer in timers):
            self._handle.registerTimer(due_ms)


def processor(task: StreamTask, *, in_pandas: bool = False) -> StatefulProcessor:
    """Returns the stateful processor of a query, which can be pickled; Spark passes it rows or, with `in_pandas`, DataFrames of pandas."""
    from pyspark.sql import Row  # noqa: PLC0415 - pyspark is an extra
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor  # noqa: PLC0415 - the same

    def to_rows(rows: list[tuple[str, bytes]]) -> Iterator[Any]:
        if in_pandas:
            import pandas as pd  # noqa: PLC0415 - Spark requires it for this

            return iter([pd.DataFrame(rows, columns=["kind", "cell"])] if rows else [])
        return iter([Row(kind=kind, cell=cell) for kind, cell in rows])

    def from_rows(rows: Iterator[Any]) -> Iterator[Any]:
        return (row for frame in rows for row in frame.itertuples()) if in_pandas else rows

    class Buckets(StatefulProcessor):
        """The state and one timer of each bucket."""

        def init(self, handle: Any) -> None:
            self._store = BucketStore(task, handle)

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002 - Spark's names
            # Restores the order of arrival, so that a task that runs again does the same.
            cells = [bytes(row.cell) for row in sorted(from_rows(rows), key=lambda row: int(row.place))]
            return to_rows(self._store.run_step(cells, timerValues.getCurrentProcessingTimeInMs()))

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002 - the same
            return to_rows(self._store.run_step([], timerValues.getCurrentProcessingTimeInMs()))

        def close(self) -> None:
            """Does nothing."""

    return Buckets()


_PATIENCE_OPTION: Final = "catalog_patience"


@dataclass(frozen=True, kw_only=True)
class StreamRouting:
    """How messages are routed; see `stream` for the attributes. Raises `OptionError` for an invalid value."""

    catalog: Catalog | str | os.PathLike[str]
    tie_break: TieBreak
    pending_request: PendingRequest
    max_delayed_bytes: int
    catalog_patience: timedelta

    def __post_init__(self) -> None:
        parse_catalog(self.catalog)
        check_tie_break(self.tie_break)
        integer_argument(self.max_delayed_bytes, name="max_delayed_bytes", minimum=0, maximum=DELAYED_BYTES_MAX)
        microseconds(self.catalog_patience, name=_PATIENCE_OPTION, minimum=timedelta(0))

    def settings(
        self,
        spark: SparkSession,
        types: Mapping[str, pa.DataType],
        names: Mapping[str, str],
        *,
        direction: tuple[str, ...] | None,
    ) -> RoutingSettings:
        """Checks the columns and the catalog, and returns the settings that are sent to workers.

        `types` and `names` are the types and message columns of the conversation columns; `direction` is that of `RoutingSettings`.
        """
        catalog_or_path = parse_catalog(self.catalog)
        catalog = catalog_or_path if isinstance(catalog_or_path, Catalog) else load_catalog(Path(catalog_or_path))
        labels = input_columns.validate_routing(
            catalog, types, now=utc_datetime(None), tie_break=self.tie_break, pending_request=self.pending_request
        )
        source: CatalogLocation = (
            FixedCatalog(share_catalog(spark, catalog_or_path, in_stream=True))
            if isinstance(catalog_or_path, Catalog)
            else self._catalog_path(catalog_or_path)
        )
        return RoutingSettings(
            source=source,
            tie_break=self.tie_break,
            pending_request=self.pending_request,
            labels=labels,
            names=names,
            direction=direction,
            max_delayed_bytes=self.max_delayed_bytes,
        )

    def _catalog_path(self, path: str) -> CatalogPath:
        return CatalogPath(path, microseconds(self.catalog_patience, name=_PATIENCE_OPTION, minimum=timedelta(0)))


PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The state store that `transformWithState` requires."""

_DIRECTION: Final = ("conversation_id", "is_initiator")
_BATCH_FUNCTIONS: Final = {
    "ssbroker.spark.stream": "ssbroker.spark.pipeline or reassemble",
    "ssbroker.spark.reassemble_stream": "ssbroker.spark.reassemble",
    "ssbroker.spark.route_stream": "ssbroker.spark.route",
}


def build_stream(
    fragments: DataFrame,
    limits: StreamLimits,
    buckets: BucketCount,
    stream_routing: StreamRouting | None,
    *,
    observe: str | None,
    spark_4_0_checkpoint: bool,
    name: str,
) -> tuple[DataFrame, StreamKinds]:
    """Returns the rows of all kinds and their selector; `name` is the function that was called, for error messages."""
    spark = check_stream(fragments, name=name, observe=observe)
    fragment_columns = read_fragment_columns(fragments, limits.session_keys)
    output_fields = without_watermark(fragment_columns.extra)
    extra = {reassembly_rows.extra_name(place): field for place, field in enumerate(output_fields)}
    routing = None
    if stream_routing is not None:
        check_no_reserved_columns(fragments, [field.name for field in fragment_columns.extra])
        routing = _routing(spark, fragment_columns, stream_routing, in_order=limits.in_order)
    task = StreamTask(
        fixed={**buckets.fixed, **limits.fixed},
        extra_names=tuple(field.name for field in fragment_columns.extra),
        assembly=_assembly(spark, limits),
        routing=routing,
        has_metrics=observe is not None,
    )
    with_buckets = fragment_columns.with_bucket(fragments, count=buckets.count, key=buckets.key or b"")
    labels = None if routing is None else routing.labels
    rows = process_buckets(with_buckets, fragment_columns.names, task, extra, spark_4_0_checkpoint=spark_4_0_checkpoint)
    return with_metrics(rows, observe), StreamKinds(output_fields, labels, limits.acknowledgements)


def check_stream(frame: DataFrame, *, name: str, observe: str | None) -> SparkSession:
    """Checks the input and the state store, and returns the session; raises `SchemaError` or `OptionError`."""
    check_stream_support(name, instead=_BATCH_FUNCTIONS[name])
    check_frame(frame, name=name)
    if not frame.isStreaming:
        raise SchemaError(
            f"{name} requires a streaming DataFrame (spark.readStream); for a batch DataFrame use {_BATCH_FUNCTIONS[name]}",
            expected="a streaming DataFrame",
            actual="a batch DataFrame",
        )
    metrics_name: object = observe
    if metrics_name is not None and not (isinstance(metrics_name, str) and metrics_name):
        raise OptionError(f"observe: expected a name or None, got {observe!r:.80}")
    spark = frame.sparkSession
    provider = spark.conf.get(PROVIDER)
    if provider != ROCKSDB:
        raise OptionError(f"{name} requires the RocksDB state store: set {PROVIDER} to {ROCKSDB}; it is {provider}")
    return spark


def process_buckets(
    with_buckets: DataFrame,
    names: tuple[str, ...],
    task: StreamTask,
    extra: Mapping[str, StructField],
    *,
    spark_4_0_checkpoint: bool,
) -> DataFrame:
    """Packs rows by bucket, runs a step of each bucket, and unpacks the output: rows of all kinds, with metrics.

    `with_buckets` has the bucket number, then a column for each of `names`, which are the columns in workers; `extra` are the extra
    columns by worker name. With `spark_4_0_checkpoint`, the state is kept by the operator that Spark 4.0 has.
    """
    boolean(spark_4_0_checkpoint, name="spark_4_0_checkpoint")
    own = stream_rows.own_columns(reassembled=task.assembly is not None, routed=task.routing is not None)
    worker_names = tuple(extra)

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - pyspark is an extra

        context: Any = TaskContext.get()
        return row_cells.pack_rows(names, batches, partition=context.partitionId())

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return row_cells.unpack_rows(own, worker_names, batches)

    schema = stream_rows.schema(extra, reassembled=task.assembly is not None, routed=task.routing is not None)
    grouped: Any = with_buckets.mapInArrow(on_workers(pack), row_cells.PACKED_SCHEMA).groupBy("bucket")
    # PySpark 4.0 has the operator only for pandas, and Spark continues a checkpoint only with the operator that created it.
    in_pandas = spark_4_0_checkpoint or not hasattr(grouped, "transformWithState")
    transform = grouped.transformWithStateInPandas if in_pandas else grouped.transformWithState
    stateful: DataFrame = transform(
        statefulProcessor=processor(task, in_pandas=in_pandas),
        outputStructType=row_cells.OUTPUT_SCHEMA,
        outputMode="Append",
        timeMode="ProcessingTime",
    )
    return stateful.mapInArrow(on_workers(unpack), schema)


def with_metrics(rows: DataFrame, name: str | None) -> DataFrame:
    """Removes the metrics from the rows; with a name, they are observed first."""
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    if name is None:
        return rows
    kind = sf.col(stream_rows.KIND)
    kinds = [stream_rows.MESSAGE, stream_rows.REJECTION, stream_rows.ACKNOWLEDGEMENT, stream_rows.EXPIRY]
    counts = [sf.count(sf.when(kind == each, True)).alias(f"{each}_rows") for each in kinds]
    sums = [sf.sum(figure).alias(figure) for figure in stream_rows.METRIC_COLUMNS]
    if "message_body" in rows.columns:
        sums.append(sf.sum(sf.length("message_body")).alias("message_bytes"))
    buckets = sf.count(sf.when(kind == stream_rows.METRICS, True)).alias("buckets")
    return rows.observe(name, *counts, *sums, buckets).where(kind != stream_rows.METRICS)


def _assembly(spark: SparkSession, limits: StreamLimits) -> AssemblySettings:
    normalized_keys = keys.normalize_session_keys(limits.session_keys)
    column = normalized_keys if isinstance(normalized_keys, str) else None
    age = limits.max_pending_age
    return AssemblySettings(
        in_order=limits.in_order,
        max_message_bytes=limits.max_message_bytes,
        max_fragments_per_message=limits.max_fragments_per_message,
        max_pending_bytes=limits.pending_bytes_limit,
        max_pending_age_us=None if age is None else microseconds(age, name="max_pending_age", minimum=age),
        session_keys=share_session_keys(spark, normalized_keys, in_stream=True)
        if isinstance(normalized_keys, dict)
        else column,
        acknowledgements=limits.acknowledgements,
    )


def _routing(
    spark: SparkSession, fragment_columns: FragmentColumns, stream_routing: StreamRouting, *, in_order: bool
) -> RoutingSettings:
    read = fragment_columns.routing_columns()
    types: dict[str, pa.DataType] = {"conversation_id": pa.binary(), "is_initiator": pa.bool_()}
    for name, (_, kind) in read.items():
        types[name] = input_columns.arrow_type(name, kind, expected=input_columns.EXPECTED_TYPES[name])
    names = {**dict(zip(_DIRECTION, _DIRECTION, strict=True)), **{name: at for name, (at, _) in read.items()}}
    return stream_routing.settings(spark, types, names, direction=_DIRECTION if in_order else None)


DEFAULT_PATIENCE: Final = timedelta(minutes=5)
"""How long an unreadable catalog stays in use by default."""


@dataclass(frozen=True)
class Stream:
    """The output of a stream of fragments.

    A query writes one DataFrame. A query that needs rows of several kinds writes `rows` with `foreachBatch` and splits each batch with
    `kinds`. The function should persist the batch first, because Spark computes it again for each use, and must use it in any case.

    Attributes:
        rows: The rows of all kinds, distinguished by the column `kind`; `kinds` selects their other columns.
        kinds: Selects the rows of one kind. It can be pickled and used in `foreachBatch` functions, also on Spark Connect.
    """

    rows: DataFrame
    kinds: StreamKinds

    @property
    def messages(self) -> DataFrame:
        """The complete messages, see `StreamKinds.messages`."""
        return self.kinds.messages(self.rows)

    @property
    def rejected(self) -> DataFrame:
        """The rejected fragments, see `StreamKinds.rejected`."""
        return self.kinds.rejected(self.rows)

    @property
    def acknowledgements(self) -> DataFrame:
        """The acknowledgements, see `StreamKinds.acknowledgements`."""
        return self.kinds.acknowledgements(self.rows)

    @property
    def expired(self) -> DataFrame:
        """The expired messages, see `StreamKinds.expired`."""
        return self.kinds.expired(self.rows)


def stream(
    fragments_df: DataFrame,
    catalog: Catalog | str | os.PathLike[str] | None = None,
    *,
    tie_break: TieBreak = "hash",
    pending_request: PendingRequest = "continue",
    in_order: bool = True,
    session_keys: SessionKeys | None = None,
    acknowledgements: bool = False,
    buckets: int = 16,
    bucket_key: bytes | None = None,
    max_pending_age: timedelta | None = None,
    max_pending_bytes: int | None = None,
    max_delayed_bytes: int = 64 << 20,
    max_message_bytes: int = 256 << 20,
    max_fragments_per_message: int | None = 1 << 20,
    catalog_patience: timedelta = DEFAULT_PATIENCE,
    observe: str | None = None,
    spark_4_0_checkpoint: bool = False,
) -> Stream:
    """Reassembles the fragments of a stream as `reassemble` does and, with a catalog, routes each message as `route` does.

    Incomplete messages, the progress of each direction and messages that wait for a route are kept in Spark's state, so that each message
    is emitted exactly once, even if the query is killed and restarted from its checkpoint. This requires the RocksDB state store:
    set `spark.sql.streaming.stateStore.providerClass` to
    `org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider`. Start the query with `trigger(processingTime=...)`;
    with `availableNow`, it only ends if `spark.sql.streaming.noDataMicroBatches.enabled` is false. Each micro-batch runs a task for each of
    the `spark.sql.shuffle.partitions`, of which at most `buckets` have work: set it to the number of cores.

    A message whose conversation is DELAYED waits, together with the later ones of its direction, until it has a route. It is retried after
    4, 8, 16, 32, 64, 64 ... seconds, and when the catalog changes.

    Args:
        fragments_df: A stream of fragments (`schemas.FRAGMENTS`, signatures are optional), on classic Spark or Spark Connect. With a
            catalog, the columns of conversations are among its extra columns, as for `pipeline`.
        catalog: The instance's databases, services and routing tables; or a path that `Catalog.load` reads and every worker can access,
            whose changes the stream follows. None for no routing.
        tie_break: How one of several equal routes is picked: `hash` or `first`.
        pending_request: What step 4 does while a request for routing information is pending: `continue` or `delay`.
        in_order: Whether a message waits for earlier ones of its direction.
        session_keys: See `reassemble`.
        acknowledgements: Whether acknowledgements are emitted.
        buckets: The number of parts into which the state is divided, fixed for the lifetime of a checkpoint. Each micro-batch reads and
            writes the buckets it touches as a whole: a few hundred KB each work well.
        bucket_key: A key for the hash that assigns conversations to buckets, so that senders cannot choose ids that share a bucket. Fixed
            for the lifetime of a checkpoint.
        max_pending_age: After how long a message that does not grow is dropped and emitted as expired, whether incomplete or behind a gap;
            its fragments may be sent again. From 1 second to 36,525 days; None for never.
        max_pending_bytes: The maximum pending bytes of one bucket, charged as by `Reassembler`, at most 2**32. None for 1 GiB, or four of
            the largest messages if that is more.
        max_delayed_bytes: The maximum size of the messages of one bucket that wait for a route; beyond it, the oldest ones are emitted as
            DELAYED.
        max_message_bytes: The maximum message size, at most 2**30.
        max_fragments_per_message: The maximum number of fragments of a message, None for no limit.
        catalog_patience: How long the last catalog stays in use when the path becomes unreadable.
        observe: The name under which each micro-batch reports metrics (`observedMetrics` in a query's progress), None for no metrics.
        spark_4_0_checkpoint: Whether the checkpoint was created on Spark 4.0, fixed for its lifetime. With another value, Spark 4.1 and
            newer end the query with `STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA`; on Spark 4.0 it has no effect.

    Returns:
        The rows as a streaming DataFrame, and a selector for the rows of one kind.

    Raises:
        SchemaError: The DataFrame is not a stream, or a column is missing, occurs twice, has an unsupported type or the name of a
            decision column.
        InputError: There is no catalog at the path.
        OptionError: An option has an invalid value, or the state store is not RocksDB.

    Examples:
        >>> import tempfile
        >>> import pyarrow as pa
        >>> from pyspark.sql import SparkSession
        >>> import ssbroker.spark
        >>> from ssbroker import Catalog, schemas
        >>> rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        >>> settings = {"spark.ui.enabled": "false", "spark.sql.streaming.stateStore.providerClass": rocksdb,
        ...             "spark.sql.streaming.noDataMicroBatches.enabled": "false", "spark.sql.shuffle.partitions": "1"}
        >>> spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
        >>> columns = "conversation_id binary, is_initiator boolean, message_sequence_number bigint, fragment_number int, "
        >>> columns += "fragment_count int, message_body binary, to_service_name string"
        >>> parts = [(bytes(16), True, 0, 1, 2, b"two", "//Orders"), (bytes(16), True, 0, 0, 2, b"one ", "//Orders")]
        >>> routes = {"name": ["Orders"], "remote_service_name": ["//Orders"], "broker_instance": [None],
        ...           "lifetime": [None], "address": ["TCP://orders"], "mirror_address": [None]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     spark.createDataFrame(parts, columns).coalesce(1).write.parquet(f"{folder}/in")
        ...     arriving = spark.readStream.schema(columns).parquet(f"{folder}/in")
        ...     landed = ssbroker.spark.stream(arriving, Catalog(pa.table(routes)), buckets=1)
        ...     query = landed.messages.writeStream.option("checkpointLocation", f"{folder}/at").trigger(availableNow=True)
        ...     query.format("memory").queryName("landed").start().awaitTermination(600)
        True
        >>> spark.table("landed").selectExpr("cast(message_body as string)", "outcome", "next_hop_address").first()
        Row(message_body='one two', outcome='REMOTE', next_hop_address='TCP://orders:4022')
        >>> spark.stop()
    """
    stream_routing = None
    if catalog is not None:
        stream_routing = StreamRouting(
            catalog=catalog,
            tie_break=tie_break,
            pending_request=pending_request,
            max_delayed_bytes=max_delayed_bytes,
            catalog_patience=catalog_patience,
        )
    limits = StreamLimits(
        in_order=in_order,
        session_keys=session_keys,
        acknowledgements=acknowledgements,
        max_message_bytes=max_message_bytes,
        max_fragments_per_message=max_fragments_per_message,
        max_pending_bytes=max_pending_bytes,
        max_pending_age=max_pending_age,
    )
    bucket_count = BucketCount(count=buckets, key=bucket_key)
    name = "ssbroker.spark.stream"
    return Stream(
        *build_stream(
            fragments_df,
            limits,
            bucket_count,
            stream_routing,
            observe=observe,
            spark_4_0_checkpoint=spark_4_0_checkpoint,
            name=name,
        )
    )


def reassemble_stream(
    fragments_df: DataFrame,
    *,
    in_order: bool = True,
    session_keys: SessionKeys | None = None,
    acknowledgements: bool = False,
    buckets: int = 16,
    bucket_key: bytes | None = None,
    max_pending_age: timedelta | None = None,
    max_pending_bytes: int | None = None,
    max_message_bytes: int = 256 << 20,
    max_fragments_per_message: int | None = 1 << 20,
    observe: str | None = None,
    spark_4_0_checkpoint: bool = False,
) -> Stream:
    """Reassembles the fragments of a stream, like `stream`, but does not route the messages.

    The same requirements apply to the state store and the trigger.

    Args:
        fragments_df: A stream of fragments (`schemas.FRAGMENTS`, signatures are optional), on classic Spark or Spark Connect.
        in_order: Whether a message waits for earlier ones of its direction.
        session_keys: See `reassemble`.
        acknowledgements: Whether acknowledgements are emitted.
        buckets: The number of parts into which the state is divided, fixed for the lifetime of a checkpoint.
        bucket_key: A key for the hash that assigns conversations to buckets, fixed for the lifetime of a checkpoint.
        max_pending_age: After how long a message that does not grow is dropped and emitted as expired. From 1 second to 36,525 days; None
            for never.
        max_pending_bytes: The maximum pending bytes of one bucket, charged as by `Reassembler`, at most 2**32. None for 1 GiB, or four of
            the largest messages if that is more.
        max_message_bytes: The maximum message size, at most 2**30.
        max_fragments_per_message: The maximum number of fragments of a message, None for no limit.
        observe: The name under which each micro-batch reports metrics, None for no metrics.
        spark_4_0_checkpoint: Whether the checkpoint was created on Spark 4.0, fixed for its lifetime.

    Returns:
        The rows as a streaming DataFrame, and a selector for the rows of one kind.

    Raises:
        SchemaError: The DataFrame is not a stream, or a column is missing, occurs twice or has an unsupported type.
        OptionError: An option has an invalid value, or the state store is not RocksDB.

    Examples:
        >>> import ssbroker.spark
        >>> ssbroker.spark.reassemble_stream(None, buckets=0)
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: buckets: expected an integer from 1 to 65536, got 0
    """
    limits = StreamLimits(
        in_order=in_order,
        session_keys=session_keys,
        acknowledgements=acknowledgements,
        max_message_bytes=max_message_bytes,
        max_fragments_per_message=max_fragments_per_message,
        max_pending_bytes=max_pending_bytes,
        max_pending_age=max_pending_age,
    )
    bucket_count = BucketCount(count=buckets, key=bucket_key)
    name = "ssbroker.spark.reassemble_stream"
    return Stream(
        *build_stream(
            fragments_df,
            limits,
            bucket_count,
            None,
            observe=observe,
            spark_4_0_checkpoint=spark_4_0_checkpoint,
            name=name,
        )
    )
