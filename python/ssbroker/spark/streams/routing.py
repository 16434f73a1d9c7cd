"""`route_stream`: routes the conversations of a stream; DELAYED ones wait in the state and are retried."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from ssbroker.catalog.catalog import Catalog
from ssbroker.router import PendingRequest
from ssbroker.spark import input_columns, reassembly_rows
from ssbroker.spark.arguments import SparkTieBreak
from ssbroker.spark.fragment_columns import bucket_column
from ssbroker.spark.streams import stream_rows
from ssbroker.spark.streams.bucket_operator import process_buckets, with_metrics
from ssbroker.spark.streams.extra_columns import without_watermark
from ssbroker.spark.streams.options import DEFAULT_PATIENCE, BucketCount, StreamRouting, check_stream
from ssbroker.spark.streams.task import StreamTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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

    A row whose decision is DELAYED is kept in Spark's state instead, independently of other rows, and retried after 4, 8, 16, 32, 64, 64 ...
    seconds and when the catalog changes; it is emitted once, with its final decision. See `stream` for the state store.

    Args:
        conversations_df: A stream of rows of `sys.transmission_queue`, on classic Spark or Spark Connect. Extra columns are passed through.
        catalog: The instance's databases, services and routing tables; or a path that `Catalog.load` reads and every worker can access,
            whose changes the stream follows.
        tie_break: How to choose among equal candidates: `hash` or `first`.
        pending_request: How to route a conversation while routing information is requested for its service. `continue` searches
            the routes that name no service; `delay` delays the conversation.
        buckets: The number of parts into which the state is divided, fixed for the lifetime of a checkpoint.
        bucket_key: A key for the hash that assigns conversations to buckets, fixed for the lifetime of a checkpoint.
        max_delayed_bytes: The maximum size in bytes of the rows of one bucket that wait for a route; beyond it, the oldest ones are
            emitted as DELAYED.
        catalog_patience: How long the last catalog stays in use when the path becomes unreadable; by default five minutes.
        observe: The name under which each micro-batch reports metrics, None for no metrics.
        spark_4_0_checkpoint: Whether the checkpoint was created on Spark 4.0, fixed for its lifetime.

    Returns:
        The columns of the input, then the decision columns.

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
    types = {
        name: input_columns.arrow_type(name, fields[name].dataType, expected=input_columns.EXPECTED_TYPES[name])
        for name in column_names
    }
    input_columns.check_arrow_types(fields)
    worker_names = [reassembly_rows.extra_name(index) for index in range(len(fields))]
    names = {name: worker_names[fields.names.index(name)] for name in column_names}
    task = StreamTask(
        fixed={**bucket_count.fixed, "in_order": None},
        extra_names=tuple(fields.names),
        assembly=None,
        routing=stream_routing.settings(spark, types, names, direction=None),
        has_metrics=observe is not None,
    )
    named = conversations_df.toDF(*worker_names)
    # A text id may be written in several ways and thus fall into several buckets, which is fine: rows are independent here.
    with_buckets = named.select(
        bucket_column(sf.col(names[column_names[0]]), count=bucket_count.count, key=bucket_count.key or b""),
        *worker_names,
    )
    output_fields = without_watermark(fields.fields)
    extra = dict(zip(worker_names, output_fields, strict=True))
    rows = process_buckets(with_buckets, tuple(worker_names), task, extra, spark_4_0_checkpoint=spark_4_0_checkpoint)
    rows = with_metrics(rows, observe)
    extra_columns = reassembly_rows.select_extra_columns(output_fields)
    assert task.routing is not None  # noqa: S101 - it was set above
    return rows.select(*extra_columns, *stream_rows.decision_columns(task.routing.labels))
