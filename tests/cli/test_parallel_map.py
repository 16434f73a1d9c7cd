"""Parallel map: order, bounds and errors."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ssbroker.cli.parallel_map import ordered_map


def mapped(items: Iterator[int], work: object = str, *, threads: int = 4, weight_max: int = 100) -> Iterator[str]:
    return ordered_map(items, work, threads=threads, weight_of=lambda _: 1, weight_max=weight_max)  # type: ignore[arg-type]


def test_results_are_in_the_order_of_the_items() -> None:
    """The first item finishes after the second."""
    second_done = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second_done.wait(60)
        if item == 1:
            second_done.set()
        return item

    assert list(ordered_map(iter(range(100)), work, threads=2, weight_of=lambda _: 1, weight_max=100)) == list(
        range(100)
    )


@pytest.mark.parametrize(("threads", "weight_max", "most"), [(4, 100, 8), (1, 100, 2), (4, 3, 3), (4, 0, 1)])
def test_work_in_progress_is_bounded(threads: int, weight_max: int, most: int) -> None:
    """In addition, one item is read ahead, and the caller holds one result."""
    read = 0

    def items() -> Iterator[int]:
        nonlocal read
        for number in range(50):
            read += 1
            yield number

    for number, result in enumerate(mapped(items(), threads=threads, weight_max=weight_max)):
        assert result == str(number)
        assert read <= number + 1 + most + 1


@pytest.mark.parametrize("threads", [1, 4])
def test_error_is_raised_after_earlier_results(threads: int) -> None:
    def work(item: int) -> str:
        if item in (7, 9):
            raise ValueError(item)
        return str(item)

    found: list[str] = []
    with pytest.raises(ValueError, match="7"):
        found.extend(mapped(iter(range(20)), work, threads=threads))
    assert found == [str(number) for number in range(7)]


def test_read_error_is_raised_after_earlier_results() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise OSError("broken")

    found: list[str] = []
    with pytest.raises(OSError, match="broken"):
        found.extend(mapped(items()))
    assert found == [str(number) for number in range(5)]


def test_closing_the_generator_ends_the_threads() -> None:
    before = threading.active_count()
    results = mapped(iter(range(1000)))
    assert next(results) == "0"
    results.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_no_items() -> None:
    assert list(mapped(iter(()))) == []
