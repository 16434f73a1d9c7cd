"""Work on many pieces at a time, with results in order and never more than a bounded amount under way."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, Generic, TypeVar

import pyarrow as pa

UNDER_WAY_BYTES: Final = 64 << 20
"""How much of the files may be under way, about."""
_READ_THREADS_MAX: Final = 16

Item = TypeVar("Item")
Result = TypeVar("Result")


def use_threads(wanted: int | None) -> int:
    """How many threads work, one for each core where it is not said; pyarrow is told.

    Examples:
        >>> use_threads(2)
        2
    """
    threads = wanted or _cores()
    pa.set_cpu_count(min(threads, _READ_THREADS_MAX))  # pyarrow reads ahead as much for each of its threads
    return threads


def in_order(
    items: Iterator[Item],
    work: Callable[[Item], Result],
    *,
    threads: int,
    weigh: Callable[[Item], int],
    weight_max: int,
) -> Generator[Result]:
    """Works on items in several threads and yields the results in the order of the items.

    One more thread reads the items ahead. An error comes where the result of its item would have come.

    Args:
        items: What is to be worked on; only ever advanced by one thread.
        work: What to do with each; runs in many threads at once, with one thread in order.
        threads: How many threads work.
        weigh: How much an item weighs, such as its bytes.
        weight_max: No further item is begun while those under way weigh more; a single item may weigh more.

    Yields:
        The result of each item.

    Examples:
        >>> list(in_order(iter("abc"), str.upper, threads=2, weigh=len, weight_max=2))
        ['A', 'B', 'C']
    """
    run = _Run(items, work, threads=threads, weigh=weigh, weight_max=weight_max)
    try:
        yield from run.results()
    finally:
        run.stop()


class _Run(Generic[Item, Result]):
    def __init__(
        self,
        items: Iterator[Item],
        work: Callable[[Item], Result],
        *,
        threads: int,
        weigh: Callable[[Item], int],
        weight_max: int,
    ) -> None:
        self._items = items
        self._work = work
        self._weigh = weigh
        self._weight_max = weight_max
        self._count_max = 2 * threads
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="read")
        self._workers = ThreadPoolExecutor(threads, thread_name_prefix="work")
        self._ahead: Future[tuple[Item] | None] | None = self._reader.submit(self._next)
        self._under_way: deque[tuple[int, Future[Result]]] = deque()
        self._weight = 0
        self._failure: BaseException | None = None

    def results(self) -> Iterator[Result]:
        while self._ahead is not None or self._under_way:
            ready = self._wait()
            if self._ahead is not None and self._ahead in ready:
                self._begin(self._ahead)
            elif self._under_way and self._under_way[0][1] in ready:
                weight, future = self._under_way.popleft()
                self._weight -= weight
                yield future.result()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self._reader.shutdown(cancel_futures=True)
        self._workers.shutdown(cancel_futures=True)

    def _next(self) -> tuple[Item] | None:
        for item in self._items:
            return (item,)
        return None

    def _wait(self) -> set[Future[object]]:
        awaited: set[Future[object]] = set()
        if self._ahead is not None and (not self._under_way or self._has_room()):
            awaited.add(self._ahead)  # type: ignore[arg-type]  # Future is invariant, but only waited for here
        if self._under_way:
            awaited.add(self._under_way[0][1])  # type: ignore[arg-type]
        return wait(awaited, return_when=FIRST_COMPLETED).done

    def _has_room(self) -> bool:
        return len(self._under_way) < self._count_max and self._weight < self._weight_max

    def _begin(self, ahead: Future[tuple[Item] | None]) -> None:
        self._ahead = None
        try:
            found = ahead.result()
        except Exception as error:  # noqa: BLE001 - told after the results of what was read before it
            self._failure = error
            return
        if found is None:
            return
        weight = self._weigh(found[0])
        self._weight += weight
        self._under_way.append((weight, self._workers.submit(self._work, found[0])))
        self._ahead = self._reader.submit(self._next)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
