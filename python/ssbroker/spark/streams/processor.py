"""The part that Spark sees of a bucket: its state, its timer and its cells; what is done with them is `step`'s."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from ssbroker.spark.streams import cells, packing
from ssbroker.spark.streams.parts import Parts
from ssbroker.spark.streams.step import step
from ssbroker.spark.streams.task import Task

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

_US: Final = 1000


class Keeper:
    """What is kept and told of buckets, by the handle that Spark gives.

    Args:
        task: What is done with each bucket.
        handle: Spark's.
    """

    def __init__(self, task: Task, handle: Any) -> None:
        self._task: Final = task
        self._handle: Final = handle
        self._kept: Final = Parts(handle)

    def step(self, given: Sequence[bytes], now_ms: int) -> list[tuple[str, bytes]]:
        """Does the step of the bucket whose turn it is.

        Args:
            given: The cells that have come for it.
            now_ms: The moment of the micro-batch, in milliseconds since 1970.

        Returns:
            What it tells: kinds and cells.
        """
        kept = self._kept.get()
        batches = [batch for cell in given for batch in cells.of_ipc(cell).to_batches()]
        done = step(self._task, kept, batches, now_us=now_ms * _US)
        if done.state is None:
            self._kept.clear()
        elif done.state is not kept:
            self._kept.put(done.state)
        if done.due_us is not None:
            self._come_again(-(-done.due_us // _US), now_ms)
        return list(packing.cells_of(done.rows))

    def _come_again(self, due_ms: int, now_ms: int) -> None:
        """One timer in the future, and none later than what is due."""
        due_ms = max(due_ms, now_ms + 1)
        timers = [int(timer) for timer in self._handle.listTimers()]
        for timer in timers:
            if timer > due_ms:
                self._handle.deleteTimer(timer)
        if not any(now_ms < timer <= due_ms for timer in timers):
            self._handle.registerTimer(due_ms)


def processor(task: Task) -> StatefulProcessor:
    """Keeps the buckets of a query.

    Args:
        task: What is done with each.

    Returns:
        The processor, which pickles.
    """
    from pyspark.sql import Row  # noqa: PLC0415 - pyspark is an extra
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor  # noqa: PLC0415 - the same

    def told(rows: list[tuple[str, bytes]]) -> Iterator[Any]:
        return iter([Row(kind=kind, cell=cell) for kind, cell in rows])

    class Buckets(StatefulProcessor):
        """The state and one timer of each bucket."""

        def init(self, handle: Any) -> None:
            self._keeper = Keeper(task, handle)

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002 - Spark's names
            # In the order in which the rows came, as far as there is one: a task that is run again does the same.
            given = [bytes(row.cell) for row in sorted(rows, key=lambda row: int(row.place))]
            return told(self._keeper.step(given, timerValues.getCurrentProcessingTimeInMs()))

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002 - the same
            return told(self._keeper.step([], timerValues.getCurrentProcessingTimeInMs()))

        def close(self) -> None:
            """Nothing is open."""

    return Buckets()
