"""`stream` reassembles and routes a stream of fragments, `reassemble_stream` only reassembles it; `route_stream` routes conversations."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from ssbroker import reassembly as keys
from ssbroker.catalog.catalog import Catalog
from ssbroker.reassembly import SessionKeys
from ssbroker.router import PendingRequest
from ssbroker.spark import input_columns, reassembly_output
from ssbroker.spark.arguments import SparkTieBreak
from ssbroker.spark.fragment_columns import FragmentColumns, bucket_column, read_fragment_columns
from ssbroker.spark.input_columns import check_no_reserved_columns
from ssbroker.spark.shared_values import share_session_keys
from ssbroker.spark.streams.bucket_operator import process_buckets, with_metrics
from ssbroker.spark.streams.extra_columns import without_watermark
from ssbroker.spark.streams.options import (
    DEFAULT_PATIENCE,
    BucketCount,
    StreamLimits,
    StreamRouting,
    check_stream,
    microseconds,
)
from ssbroker.spark.streams.stream_rows import StreamKinds, decision_columns
from ssbroker.spark.streams.task import AssemblySettings, RoutingSettings, StreamTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_DIRECTION: Final = ("conversation_id", "is_initiator")


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
    extra = {reassembly_output.extra_name(place): field for place, field in enumerate(output_fields)}
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
    types, names = fragment_columns.routing_columns()
    return stream_routing.settings(spark, types, names, direction=_DIRECTION if in_order else None)


@dataclass(frozen=True)
class Stream:
    """The output of a stream of fragments.

    A streaming query has one output. To write several kinds of rows in one query, write `rows` with `foreachBatch`, and
    split each batch with `kinds`. Persist the batch in the function, because Spark recomputes it for each use. Read the
    batch at least once; otherwise, Spark does not commit the state.

    Attributes:
        rows: The rows of all kinds, distinguished by the column `kind`.
        kinds: Selects the rows and columns of one kind. It can be pickled and used in `foreachBatch` functions, even on Spark Connect.
    """

    rows: DataFrame
    kinds: StreamKinds

    def __repr__(self) -> str:
        return "Stream(DataFrames: rows, messages, rejected, acknowledgements, expired)"

    @property
    def messages(self) -> DataFrame:
        """The complete messages, in order (`StreamKinds.messages`)."""
        return self.kinds.messages(self.rows)

    @property
    def rejected(self) -> DataFrame:
        """The rejected fragments, with the reasons (`StreamKinds.rejected`)."""
        return self.kinds.rejected(self.rows)

    @property
    def acknowledgements(self) -> DataFrame:
        """The acknowledgements (`StreamKinds.acknowledgements`). Raises `OptionError` unless the stream was created with `acknowledgements=True`."""
        return self.kinds.acknowledgements(self.rows)

    @property
    def expired(self) -> DataFrame:
        """The messages that were dropped because no fragment was added to them for `max_pending_age` (`StreamKinds.expired`)."""
        return self.kinds.expired(self.rows)


def stream(
    fragments_df: DataFrame,
    catalog: Catalog | str | os.PathLike[str] | None = None,
    *,
    tie_break: SparkTieBreak = "hash",
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

    Incomplete messages, the progress of each direction and messages that wait for a route are kept in Spark's state. Therefore, each
    message is emitted exactly once, even if the query is killed and restarted from its checkpoint. The state store must be RocksDB:
    set `spark.sql.streaming.stateStore.providerClass` to
    `org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider`. Start the query with
    `trigger(processingTime=...)`; with `availableNow`, the query ends only if
    `spark.sql.streaming.noDataMicroBatches.enabled` is false. Each micro-batch runs `spark.sql.shuffle.partitions`
    tasks, of which at most `buckets` have work; set it to the number of cores.

    A message whose conversation is DELAYED waits, together with later messages of its direction, until it has a route.
    It is retried after 4, 8, 16, 32, 64, 64 ... seconds, and when the catalog changes.

    A row with an invalid value, such as a null in a required column or an unknown database, ends the query with an error.
    Spark repeats the batch at each restart, so filter out such rows before you pass the DataFrame.

    Args:
        fragments_df: A stream of fragments (`schemas.FRAGMENTS`, signatures are optional), on classic Spark or Spark Connect. With a
            catalog, the columns of conversations are among its extra columns, as for `pipeline`.
        catalog: The instance's databases, services and routing tables; or a path that `Catalog.load` reads and every worker can access,
            whose changes the stream follows. None for no routing.
        tie_break: How to choose among equal candidates: `hash` or `first`.
        pending_request: How to route a conversation while routing information is requested for its service. `continue` searches
            the routes that name no service; `delay` delays the conversation.
        in_order: Whether a message waits for earlier messages of its direction.
        session_keys: See `reassemble`.
        acknowledgements: Whether acknowledgements are emitted.
        buckets: The number of parts into which the state is divided, fixed for the lifetime of a checkpoint. Each
            micro-batch reads and writes whole buckets; a size of a few hundred KB works well.
        bucket_key: A key for the hash that assigns conversations to buckets, so that senders cannot choose ids that share a bucket. Fixed
            for the lifetime of a checkpoint. Query plans, Spark's UI and event logs show it.
        max_pending_age: The time after which a message that gets no more fragments is dropped and emitted as expired,
            without its body, whether it is incomplete or waits for an earlier message. Its fragments may be sent again.
            With `in_order`, this does not unblock the direction: later messages wait for the same number and expire in
            turn, even complete ones. From 1 second to 36,525 days; None for never.
        max_pending_bytes: The maximum pending bytes of one bucket, counted as by `Reassembler`, at most 2**32. None
            means 1 GiB, or four times `max_message_bytes` if that is more.
        max_delayed_bytes: The maximum total size in bytes of the messages in one bucket that wait for a route; beyond
            it, the oldest messages are emitted as DELAYED.
        max_message_bytes: The maximum message size, at most 2**30.
        max_fragments_per_message: The maximum number of fragments of a message; None for no limit.
        catalog_patience: How long the last catalog stays in use when the path becomes unreadable, before the query
            fails. By default, five minutes.
        observe: The name under which each micro-batch reports metrics (`observedMetrics` in a query's progress); None
            for no metrics.
        spark_4_0_checkpoint: Whether the checkpoint was created on Spark 4.0, fixed for its lifetime. With the wrong
            value, Spark 4.1 and newer end the query with `STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA`; on
            Spark 4.0, the option has no effect.

    Returns:
        The rows of all kinds as a streaming DataFrame, and a selector for the rows of one kind.

    Raises:
        SchemaError: The DataFrame is not a stream, or a column is missing, occurs twice, has an unsupported type or the name of a
            decision column.
        InputError: There is no catalog at the path, or the path is a URI.
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

    The requirements of `stream` for the state store and the trigger apply.

    Args:
        fragments_df: A stream of fragments (`schemas.FRAGMENTS`, signatures are optional), on classic Spark or Spark Connect.
        in_order: Whether a message waits for earlier messages of its direction.
        session_keys: See `reassemble`.
        acknowledgements: Whether acknowledgements are emitted.
        buckets: The number of parts into which the state is divided, fixed for the lifetime of a checkpoint.
        bucket_key: A key for the hash that assigns conversations to buckets, fixed for the lifetime of a checkpoint.
        max_pending_age: See `stream`. From 1 second to 36,525 days; None for never.
        max_pending_bytes: The maximum pending bytes of one bucket, counted as by `Reassembler`, at most 2**32. None
            means 1 GiB, or four times `max_message_bytes` if that is more.
        max_message_bytes: The maximum message size, at most 2**30.
        max_fragments_per_message: The maximum number of fragments of a message; None for no limit.
        observe: The name under which each micro-batch reports metrics; None for no metrics.
        spark_4_0_checkpoint: Whether the checkpoint was created on Spark 4.0, fixed for its lifetime.

    Returns:
        The rows of all kinds as a streaming DataFrame, and a selector for the rows of one kind.

    Raises:
        SchemaError: The DataFrame is not a stream, or a column is missing, occurs twice or has an unsupported type.
        OptionError: An option has an invalid value, or the state store is not RocksDB.

    Examples:
        >>> import tempfile
        >>> from pyspark.sql import SparkSession
        >>> import ssbroker.spark
        >>> rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        >>> settings = {"spark.ui.enabled": "false", "spark.sql.streaming.stateStore.providerClass": rocksdb,
        ...             "spark.sql.streaming.noDataMicroBatches.enabled": "false", "spark.sql.shuffle.partitions": "1"}
        >>> spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
        >>> columns = "conversation_id binary, is_initiator boolean, message_sequence_number bigint, fragment_number int, "
        >>> columns += "fragment_count int, message_body binary"
        >>> parts = [(bytes(16), True, 0, 1, 2, b"two"), (bytes(16), True, 0, 0, 2, b"one ")]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     spark.createDataFrame(parts, columns).coalesce(1).write.parquet(f"{folder}/in")
        ...     arriving = spark.readStream.schema(columns).parquet(f"{folder}/in")
        ...     reassembled = ssbroker.spark.reassemble_stream(arriving, buckets=1)
        ...     query = reassembled.messages.writeStream.option("checkpointLocation", f"{folder}/at").trigger(availableNow=True)
        ...     query.format("memory").queryName("messages").start().awaitTermination(600)
        True
        >>> spark.table("messages").selectExpr("message_sequence_number", "cast(message_body as string)").first()
        Row(message_sequence_number=0, message_body='one two')
        >>> spark.stop()
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


def route_stream(
    conversations_df: DataFrame,
    catalog: Catalog | str | os.PathLike[str],
    *,
    tie_break: SparkTieBreak = "hash",
    pending_request: PendingRequest = "continue",
    buckets: int = 16,
    bucket_key: bytes | None = None,
    max_delayed_bytes: int = 64 << 20,
    catalog_patience: timedelta = DEFAULT_PATIENCE,
    observe: str | None = None,
    spark_4_0_checkpoint: bool = False,
) -> DataFrame:
    """Adds the routing decision to each conversation, as `route` does, at the time of its micro-batch.

    A row whose decision is DELAYED is kept in Spark's state, independently of other rows. It is routed again after 4, 8,
    16, 32, 64, 64 ... seconds and when the catalog changes, and emitted once, with its final decision. The requirements
    of `stream` for the state store and the trigger apply.

    Args:
        conversations_df: A stream of conversations (`schemas.CONVERSATIONS`), on classic Spark or Spark Connect. Extra columns are
            passed through.
        catalog: The instance's databases, services and routing tables; or a path that `Catalog.load` reads and every worker can access,
            whose changes the stream follows.
        tie_break: How to choose among equal candidates: `hash` or `first`.
        pending_request: How to route a conversation while routing information is requested for its service. `continue` searches
            the routes that name no service; `delay` delays the conversation.
        buckets: The number of parts into which the state is divided, fixed for the lifetime of a checkpoint.
        bucket_key: A key for the hash that assigns conversations to buckets, fixed for the lifetime of a checkpoint.
        max_delayed_bytes: The maximum total size in bytes of the rows in one bucket that wait for a route; beyond it,
            the oldest rows are emitted as DELAYED.
        catalog_patience: How long the last catalog stays in use when the path becomes unreadable, before the query
            fails. By default, five minutes.
        observe: The name under which each micro-batch reports metrics; None for no metrics.
        spark_4_0_checkpoint: Whether the checkpoint was created on Spark 4.0, fixed for its lifetime.

    Returns:
        The columns of the input, followed by the decision columns.

    Raises:
        SchemaError: The DataFrame is not a stream, or a column is missing, has an unsupported type or the name of a decision column.
        InputError: There is no catalog at the path, or the path is a URI.
        OptionError: An option has an invalid value, or the state store is not RocksDB.

    Examples:
        >>> import tempfile
        >>> from pyspark.sql import SparkSession
        >>> import ssbroker.spark
        >>> from ssbroker import Catalog
        >>> rocksdb = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        >>> settings = {"spark.ui.enabled": "false", "spark.sql.streaming.stateStore.providerClass": rocksdb,
        ...             "spark.sql.streaming.noDataMicroBatches.enabled": "false", "spark.sql.shuffle.partitions": "1"}
        >>> spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
        >>> columns = "conversation_id binary, to_service_name string"
        >>> catalog = Catalog([{"name": "Orders", "remote_service_name": "//Orders", "address": "TCP://orders"}])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     spark.createDataFrame([(bytes(16), "//Orders")], columns).write.parquet(f"{folder}/in")
        ...     arriving = spark.readStream.schema(columns).parquet(f"{folder}/in")
        ...     routed = ssbroker.spark.route_stream(arriving, catalog, buckets=1)
        ...     query = routed.writeStream.option("checkpointLocation", f"{folder}/at").trigger(availableNow=True)
        ...     query.format("memory").queryName("routed").start().awaitTermination(600)
        True
        >>> spark.table("routed").select("to_service_name", "outcome", "next_hop_address").first()
        Row(to_service_name='//Orders', outcome='REMOTE', next_hop_address='TCP://orders:4022')
        >>> spark.stop()
    """
    stream_routing = StreamRouting(
        catalog=catalog,
        tie_break=tie_break,
        pending_request=pending_request,
        max_delayed_bytes=max_delayed_bytes,
        catalog_patience=catalog_patience,
    )
    bucket_count = BucketCount(count=buckets, key=bucket_key)
    spark = check_stream(conversations_df, name="ssbroker.spark.route_stream", observe=observe)
    from pyspark.sql import functions as sf  # noqa: PLC0415 - pyspark is an extra

    column_names = input_columns.conversation_columns(conversations_df)
    fields = conversations_df.schema
    types = {name: input_columns.conversation_type(name, fields[name].dataType) for name in column_names}
    input_columns.check_arrow_types(fields)
    worker_names = [reassembly_output.extra_name(index) for index in range(len(fields))]
    names = {name: worker_names[fields.names.index(name)] for name in column_names}
    task = StreamTask(
        fixed={**bucket_count.fixed, "in_order": None},
        extra_names=tuple(fields.names),
        assembly=None,
        routing=stream_routing.settings(spark, types, names, direction=None),
        has_metrics=observe is not None,
    )
    named = conversations_df.toDF(*worker_names)
    # Different spellings of a text id may fall into different buckets, which does no harm, because rows are independent
    # here.
    with_buckets = named.select(
        bucket_column(sf.col(names[column_names[0]]), count=bucket_count.count, key=bucket_count.key or b""),
        *worker_names,
    )
    output_fields = without_watermark(fields.fields)
    extra = dict(zip(worker_names, output_fields, strict=True))
    rows = process_buckets(with_buckets, tuple(worker_names), task, extra, spark_4_0_checkpoint=spark_4_0_checkpoint)
    rows = with_metrics(rows, observe)
    extra_columns = reassembly_output.select_extra_columns(output_fields)
    assert task.routing is not None  # noqa: S101 - set above
    return rows.select(*extra_columns, *decision_columns(task.routing.labels))
