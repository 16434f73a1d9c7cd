"""The stateful operator of a stream: runs the steps of buckets on Spark's state store, and observes metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker._arguments import boolean
from ssbroker._arrow import from_ipc
from ssbroker.spark.streams import packed_rows, stream_rows
from ssbroker.spark.streams.bucket_state import StateParts
from ssbroker.spark.streams.bucket_step import run_step
from ssbroker.spark.streams.task import StreamTask
from ssbroker.spark.worker_version_check import on_workers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructField


_MICROSECONDS_PER_MS: Final = 1000


class BucketStore:
    """Runs the steps of buckets on Spark's state store and timers; `handle` is Spark's `StatefulProcessorHandle`."""

    def __init__(self, task: StreamTask, handle: Any) -> None:
        self._task: Final = task
        self._handle: Final = handle
        self._parts: Final = StateParts(handle)

    def run_step(self, cells: Sequence[bytes], now_ms: int) -> list[tuple[str, bytes]]:
        """Runs a step of the current bucket at the time of the micro-batch; returns pairs of kind and cell.

        `cells` are the cells that have arrived; empty for a timer that has expired, which Spark deletes itself.
        """
        state_before = self._parts.get()
        batches = [batch for cell in cells for batch in from_ipc(cell).to_batches()]
        output = run_step(self._task, state_before, batches, now_us=now_ms * _MICROSECONDS_PER_MS)
        if output.state is None:
            self._parts.clear()
        elif output.state is not state_before:
            self._parts.put(output.state)
        due_ms = None if output.due_us is None else max(-(-output.due_us // _MICROSECONDS_PER_MS), now_ms + 1)
        if cells or due_ms is not None:
            self._set_timer(due_ms, now_ms, deletes_due=bool(cells))
        return list(packed_rows.to_cells(output.rows))

    def _set_timer(self, due_ms: int | None, now_ms: int, *, deletes_due: bool) -> None:
        """Keeps one timer in the future, at the due time or earlier; none if `due_ms` is None.

        With `deletes_due`, deletes the timers that are due, for which Spark would run a second step in the same micro-batch.
        """
        timers = [int(timer) for timer in self._handle.listTimers()]
        for timer in timers:
            if (deletes_due and timer <= now_ms) or (due_ms is not None and timer > due_ms):
                self._handle.deleteTimer(timer)
        if due_ms is not None and not any(now_ms < timer <= due_ms for timer in timers):
            self._handle.registerTimer(due_ms)


def processor(task: StreamTask, *, in_pandas: bool = False) -> StatefulProcessor:
    """Returns the stateful processor of a query, which can be pickled. Spark passes it rows or, with `in_pandas`, pandas DataFrames."""
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
            # Restores the order of arrival, so that a repeated task has the same output.
            cells = [bytes(row.cell) for row in sorted(from_rows(rows), key=lambda row: int(row.place))]
            return to_rows(self._store.run_step(cells, timerValues.getCurrentProcessingTimeInMs()))

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002 - the same
            return to_rows(self._store.run_step([], timerValues.getCurrentProcessingTimeInMs()))

        def close(self) -> None:
            """Does nothing."""

    return Buckets()


def process_buckets(
    with_buckets: DataFrame,
    names: tuple[str, ...],
    task: StreamTask,
    extra: Mapping[str, StructField],
    *,
    spark_4_0_checkpoint: bool,
) -> DataFrame:
    """Packs rows by bucket, runs a step of each bucket, and unpacks the output: rows of all kinds, with metrics.

    `with_buckets` contains the bucket number, followed by a column for each of `names`, which are the columns in
    workers; `extra` are the extra columns by worker name. With `spark_4_0_checkpoint`, the operator of Spark 4.0 keeps
    the state.
    """
    boolean(spark_4_0_checkpoint, name="spark_4_0_checkpoint")
    own = stream_rows.own_columns(reassembled=task.assembly is not None, routed=task.routing is not None)
    worker_names = tuple(extra)

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - pyspark is an extra

        context: Any = TaskContext.get()
        return packed_rows.pack_rows(names, batches, partition=context.partitionId())

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return packed_rows.unpack_rows(own, worker_names, batches)

    schema = stream_rows.schema(extra, reassembled=task.assembly is not None, routed=task.routing is not None)
    grouped: Any = with_buckets.mapInArrow(on_workers(pack), packed_rows.PACKED_SCHEMA).groupBy("bucket")
    # In PySpark 4.0, the operator exists only for pandas, and Spark continues a checkpoint only with the operator that
    # created it.
    in_pandas = spark_4_0_checkpoint or not hasattr(grouped, "transformWithState")
    transform = grouped.transformWithStateInPandas if in_pandas else grouped.transformWithState
    stateful: DataFrame = transform(
        statefulProcessor=processor(task, in_pandas=in_pandas),
        outputStructType=packed_rows.OUTPUT_SCHEMA,
        outputMode="Append",
        timeMode="ProcessingTime",
    )
    return stateful.mapInArrow(on_workers(unpack), schema)


def with_metrics(rows: DataFrame, name: str | None) -> DataFrame:
    """Observes metrics under `name`, and removes the rows of the kind `METRICS`; without a name, there are no such rows."""
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
