"""Many pieces at a time: in order, bounded, the first error where it belongs."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from ssbroker.cli.pipeline import in_order


def run(items: Iterator[int], work: object = str, *, threads: int = 4, weight_max: int = 100) -> Iterator[str]:
    return in_order(items, work, threads=threads, weigh=lambda _: 1, weight_max=weight_max)  # type: ignore[arg-type]


def test_results_come_in_the_order_of_the_items_whoever_is_first() -> None:
    """The first piece is done only when the second is."""
    second_done = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert second_done.wait(60)
        if item == 1:
            second_done.set()
        return item

    assert list(in_order(iter(range(100)), work, threads=2, weigh=lambda _: 1, weight_max=100)) == list(range(100))


@pytest.mark.parametrize(("threads", "weight_max", "most"), [(4, 100, 8), (1, 100, 2), (4, 3, 3), (4, 0, 1)])
def test_no_more_than_allowed_is_under_way(threads: int, weight_max: int, most: int) -> None:
    """Beside them one is read ahead, and one is in the hands of the caller."""
    read = 0

    def items() -> Iterator[int]:
        nonlocal read
        for number in range(50):
            read += 1
            yield number

    for number, result in enumerate(run(items(), threads=threads, weight_max=weight_max)):
        assert result == str(number)
        assert read <= number + 1 + most + 1


@pytest.mark.parametrize("threads", [1, 4])
def test_an_error_comes_after_the_results_before_it(threads: int) -> None:
    def work(item: int) -> str:
        if item in (7, 9):
            raise ValueError(item)
        return str(item)

    found: list[str] = []
    with pytest.raises(ValueError, match="7"):
        found.extend(run(iter(range(20)), work, threads=threads))
    assert found == [str(number) for number in range(7)]


def test_an_error_of_reading_comes_after_the_results_of_what_was_read() -> None:
    def items() -> Iterator[int]:
        yield from range(5)
        raise OSError("torn")

    found: list[str] = []
    with pytest.raises(OSError, match="torn"):
        found.extend(run(items()))
    assert found == [str(number) for number in range(5)]


def test_leaving_early_ends_the_threads() -> None:
    before = threading.active_count()
    results = run(iter(range(1000)))
    assert next(results) == "0"
    results.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_nothing_gives_nothing() -> None:
    assert list(run(iter(()))) == []
