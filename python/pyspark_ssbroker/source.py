"""What Spark asks of a source that is read and written, each handed on to `ssbroker.spark.source`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from ssbroker.spark.source.reader import Scan, Tail
from ssbroker.spark.source.writer import Sink, StagedRows

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class Reader(DataSourceReader):
    """A view or a queue, as it is when Spark plans the read."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    def partitions(self) -> Sequence[InputPartition]:
        """What each task reads."""
        return [InputPartition(part) for part in self._scan.parts()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return self._scan.rows(partition.value)


class FilteringReader(Reader):
    """The same, with the filters that it can answer: Spark refuses a reader that takes filters where its setting forbids it."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Takes filters over, and gives back the others."""
        self._scan, left = self._scan.push(filters)
        return left


class Follower(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What enters a queue."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._rows_max = scan.reading.rows_per_batch_max

    @cached_property
    def _tail(self) -> Tail:
        """Made when Spark asks for something: of an error while it makes the reader itself, it tells one of its own instead."""
        return Tail(self._scan)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Where a new stream begins."""
        return self._tail.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """How much a batch may be."""
        return ReadAllAvailable() if self._rows_max is None else ReadMaxRows(self._rows_max)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802 - Spark's name
        """How far the next batch goes."""
        return self._tail.latest(start, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Has the stream end with what is there now."""
        self._tail.stop_at_now()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """What each task of a batch reads."""
        return [InputPartition(part) for part in self._tail.parts(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        return self._tail.rows(partition.value)


class Told(WriterCommitMessage):
    """What a task tells the driver."""

    def __init__(self, staged: StagedRows) -> None:
        self.staged = staged


class Writer(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override] # as its base has it
        """Writes the rows of a task beside the instance."""
        return Told(self._sink.stage(iterator, partition=_task().partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Sends what the tasks have written."""
        self._sink.commit(_staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Removes what the tasks have written."""
        self._sink.abort(_staged(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a stream."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override] # as its base has it
        """Writes the rows of a task beside the instance."""
        task = _task()
        query_id, batch_id = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if query_id is None or batch_id is None:
            raise RuntimeError(
                f"expected the local properties {_QUERY_ID} and {_BATCH_ID}, by which a batch is sent once"
            )
        staged = self._sink.stage(iterator, partition=task.partitionId(), query_id=query_id, batch_id=int(batch_id))
        return Told(staged)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Sends what the tasks have written, if it was not sent before."""
        self._sink.commit(_staged(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's name
        """Removes what the tasks have written."""
        self._sink.abort(_staged(messages))


def _staged(messages: Sequence[Any]) -> list[StagedRows]:
    return [message.staged for message in messages if message is not None]


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError("expected a task of Spark's: rows are written by its workers")
    return task
