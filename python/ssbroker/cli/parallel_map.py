"""A map in worker threads that keeps the order and bounds the memory used."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, Generic, TypeVar

import pyarrow as pa

_READ_THREADS_MAX: Final = 16

Item = TypeVar("Item")
Result = TypeVar("Result")


def configure_threads(requested: int | None) -> int:
    """Returns the number of worker threads, by default one per core, and limits pyarrow's thread pool to this number."""
    threads = requested or _available_cores()
    pa.set_cpu_count(min(threads, _READ_THREADS_MAX))  # pyarrow reads the same amount ahead for each of its threads
    return threads


def ordered_map(
    items: Iterator[Item],
    process: Callable[[Item], Result],
    *,
    threads: int,
    weight_of: Callable[[Item], int],
    weight_max: int,
) -> Generator[Result]:
    """Maps `process` over the items in worker threads; yields the results in the order of the items.

    An additional thread reads the items ahead. An error is raised in place of the result of its item.

    Args:
        items: The input; advanced by one thread only.
        process: Called from several threads; with one thread, in order.
        threads: The number of worker threads.
        weight_of: The weight of an item, such as its size in bytes.
        weight_max: No item is started while the items in progress weigh this much; a single item may weigh more.

    Examples:
        >>> list(ordered_map(iter("abc"), str.upper, threads=2, weight_of=len, weight_max=2))
        ['A', 'B', 'C']
    """
    ordered = _OrderedMap(items, process, threads=threads, weight_of=weight_of, weight_max=weight_max)
    try:
        yield from ordered.results()
    finally:
        ordered.stop()


class _OrderedMap(Generic[Item, Result]):
    def __init__(
        self,
        items: Iterator[Item],
        process: Callable[[Item], Result],
        *,
        threads: int,
        weight_of: Callable[[Item], int],
        weight_max: int,
    ) -> None:
        self._items = items
        self._process = process
        self._weight_of = weight_of
        self._weight_max = weight_max
        self._count_max = 2 * threads
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="worker")
        self._pending_read: Future[tuple[Item] | None] | None = self._reader.submit(self._read_next)
        self._in_progress: deque[tuple[int, Future[Result]]] = deque()
        self._weight = 0
        self._read_error: BaseException | None = None

    def results(self) -> Iterator[Result]:
        while self._pending_read is not None or self._in_progress:
            ready = self._wait_for_any()
            if self._pending_read is not None and self._pending_read in ready:
                self._submit(self._pending_read)
            elif self._in_progress and self._in_progress[0][1] in ready:
                weight, future = self._in_progress.popleft()
                self._weight -= weight
                yield future.result()
        if self._read_error is not None:
            raise self._read_error

    def stop(self) -> None:
        self._reader.shutdown(cancel_futures=True)
        self._workers.shutdown(cancel_futures=True)

    def _read_next(self) -> tuple[Item] | None:
        for item in self._items:
            return (item,)
        return None

    def _wait_for_any(self) -> set[Future[object]]:
        futures: set[Future[object]] = set()
        if self._pending_read is not None and (not self._in_progress or self._can_submit()):
            futures.add(self._pending_read)  # type: ignore[arg-type]  # Future is invariant, but is only waited for here
        if self._in_progress:
            futures.add(self._in_progress[0][1])  # type: ignore[arg-type]
        return wait(futures, return_when=FIRST_COMPLETED).done

    def _can_submit(self) -> bool:
        return len(self._in_progress) < self._count_max and self._weight < self._weight_max

    def _submit(self, pending_read: Future[tuple[Item] | None]) -> None:
        self._pending_read = None
        try:
            read = pending_read.result()
        except Exception as error:  # noqa: BLE001 - raised after the results of the items before it
            self._read_error = error
            return
        if read is None:
            return
        weight = self._weight_of(read[0])
        self._weight += weight
        self._in_progress.append((weight, self._workers.submit(self._process, read[0])))
        self._pending_read = self._reader.submit(self._read_next)


def _available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
