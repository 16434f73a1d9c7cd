"""The readers and writers that Spark calls; each delegates to `ssbroker.spark.source`.

Before version 4.2, PySpark has no read limits; before 4.1, it has neither filter push-down nor stream writers that get Arrow batches.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark.sql.datasource
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

from ssbroker.exceptions import OptionError
from ssbroker.spark.source.reader import Scan, Tail
from ssbroker.spark.source.writer import Sink, StagedRows

HAS_READ_LIMITS = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether PySpark is 4.2 or newer."""
HAS_FILTERS = hasattr(pyspark.sql.datasource, "Filter")
"""Whether PySpark is 4.1 or newer."""

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter, Filter
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
    from pyspark.sql.types import StructType
else:
    SupportsTriggerAvailableNow = object
    if HAS_READ_LIMITS:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    DataSourceStreamArrowWriter = getattr(
        pyspark.sql.datasource, "DataSourceStreamArrowWriter", pyspark.sql.datasource.DataSourceStreamWriter
    )

_ROWS_PER_BATCH = 4096
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class Reader(DataSourceReader):
    """Reads a view or a queue as it is when Spark plans the query."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan

    def partitions(self) -> Sequence[InputPartition]:
        """Returns what each task reads."""
        return [InputPartition(part) for part in self._scan.parts()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a task."""
        return self._scan.rows(partition.value)


class FilteringReader(Reader):
    """A reader with filter push-down. Spark refuses such a reader unless the configuration of Spark allows push-down."""

    def __init__(self, scan: Scan) -> None:
        super().__init__(scan)
        if not HAS_FILTERS:
            raise OptionError("pushdown: the option needs PySpark 4.1 or newer; remove it, or upgrade PySpark")

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Accepts the supported filters; returns the other filters, which Spark then applies."""
        self._scan, unsupported = self._scan.push_filters(filters)
        return unsupported


class Follower(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the messages that enter a queue, as a stream."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self._rows_max = scan.options.rows_per_batch_max
        if self._rows_max is not None and not HAS_READ_LIMITS:
            raise OptionError(
                "max_rows_per_batch: the option needs PySpark 4.2 or newer; remove it, or upgrade PySpark"
            )

    @cached_property
    def _tail(self) -> Tail:
        """The new messages of the queue; created on first use, because Spark hides an error that is raised while a reader is created."""
        return Tail(self._scan)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Returns the offset at which a new stream starts."""
        return self._tail.initial()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Returns the size limit of a micro-batch."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows  # noqa: PLC0415 - not in every PySpark

        return ReadAllAvailable() if self._rows_max is None else ReadMaxRows(self._rows_max)

    def latestOffset(self, start: dict[str, int] | None = None, limit: ReadLimit | None = None) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Returns the end of the next micro-batch. Spark before 4.2 passes no arguments, and gets the end of the queue."""
        return self._tail.end() if start is None else self._tail.latest(start, getattr(limit, "max_rows", None))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Ends the stream at the current end of the queue."""
        self._tail.stop_at_current_end()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Returns what each task of a micro-batch reads."""
        return [InputPartition(part) for part in self._tail.parts(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a task."""
        return self._tail.rows(partition.value)


class StagedRowsMessage(WriterCommitMessage):
    """The message in which a task reports its staged rows to the driver."""

    def __init__(self, staged: StagedRows) -> None:
        self.staged = staged


class Writer(DataSourceArrowWriter):
    """Writes a batch."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override] # the stub of the base class differs
        """Stages the rows of a task in the instance folder."""
        return StagedRowsMessage(self._sink.stage(iterator, partition=_task().partitionId()))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Sends the staged rows."""
        self._sink.commit(_staged(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Removes the staged rows."""
        self._sink.abort(_staged(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream."""

    def __init__(self, sink: Sink, schema: StructType) -> None:
        self._sink = sink
        self._schema = schema

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Stages the rows of a task, as Arrow batches or single rows, in the instance folder."""
        task = _task()
        query_id, batch_id = task.getLocalProperty(_QUERY_ID), task.getLocalProperty(_BATCH_ID)
        if query_id is None or batch_id is None:
            raise RuntimeError(
                f"the Spark local properties {_QUERY_ID} and {_BATCH_ID} are missing; without them, a repeated micro-batch could be sent twice; use a version of PySpark that ssbroker supports"
            )
        batches = _to_batches(iterator, self._schema)
        staged = self._sink.stage(batches, partition=task.partitionId(), query_id=query_id, batch_id=int(batch_id))
        return StagedRowsMessage(staged)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Sends the staged rows, unless this micro-batch was already sent."""
        self._sink.commit(_staged(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's name
        """Removes the staged rows."""
        self._sink.abort(_staged(messages))


def _to_batches(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yields Arrow batches as they are, and single rows in batches."""
    first = next(rows, None)
    if first is None:
        return
    rows = itertools.chain([first], rows)
    if isinstance(first, pa.RecordBatch):
        yield from rows
        return
    while part := list(itertools.islice(rows, _ROWS_PER_BATCH)):
        yield pa.RecordBatch.from_pylist([row.asDict() for row in part], schema=to_arrow_schema(schema))


def _staged(messages: Sequence[Any]) -> list[StagedRows]:
    return [message.staged for message in messages if message is not None]


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise RuntimeError(
            "rows can be written only in a Spark task, but no task is running; write with df.write or df.writeStream"
        )
    return task
