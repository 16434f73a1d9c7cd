"""Work that Spark hands out by number, and that tells what came of it in a few words."""

from __future__ import annotations

import functools
import gc
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOOK_EVERY: Final = 0.5


def run(spark: SparkSession, count: int, work: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Has each number worked on by a task of its own.

    Args:
        spark: The session, classic or Spark Connect.
        count: How many tasks there are.
        work: What a worker does with a number; what it returns can be written as JSON.

    Returns:
        What each came to, in the order of the numbers. Where Spark ran a task several times, it is what one of the runs came to.
    """
    if not count:
        return []

    def worked(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _keep_imports()
        for batch in batches:
            numbers: list[Any] = batch.column(0).to_pylist()
            told = pa.array([json.dumps(work(number)) for number in numbers], pa.string())
            yield pa.RecordBatch.from_arrays([batch.column(0), told], names=["number", "told"])

    table = spark.range(0, count, 1, count).mapInArrow(worked, "number bigint, told string").toArrow()
    told = dict(zip(table["number"].to_pylist(), table["told"].to_pylist(), strict=True))
    return [json.loads(str(told[number])) for number in range(count)]


@functools.cache
def _keep_imports() -> None:
    """Has the garbage collection of a worker, which Spark calls for after each task, pass over what is imported: it took as long as a small task."""
    gc.freeze()


class Watch:
    """Tells how far a job is, for as long as the block runs: each task leaves a file when it is done.

    Args:
        done: The folder of these files.
        count: How many there will be.
        progress: Called with both numbers about twice a second, in a thread of its own, and at the end; None is not called.
    """

    def __init__(self, done: Path, count: int, progress: Callable[[int, int], None] | None) -> None:
        self._done: Final = done
        self._count: Final = count
        self._progress: Final = progress
        self._is_over: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._progress is not None:
            self._thread.join()

    def _watch(self) -> None:
        is_over = False
        while not is_over and self._progress is not None:
            is_over = self._is_over.wait(_LOOK_EVERY)
            self._progress(sum(1 for _ in self._done.iterdir()), self._count)
