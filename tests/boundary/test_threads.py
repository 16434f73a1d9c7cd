"""One router used by many threads, with the GIL released while it works, and no threads of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Router, _core
from tests.boundary.attempts import ROOT
from tests.boundary.routed import ROWS, WORLDS
from tests.routing.conversations import CATALOG, conversations
from tests.worlds.universe import NOW

THREADS = 12
ROUNDS = 30
COUNTED = 10
COPIES = 3
"""Of the service `//Orders` in the catalog."""


def in_all_threads(work: Callable[[int], Any]) -> list[Any]:
    """Returns the result of the work in each thread; they start together."""
    together = threading.Barrier(THREADS)

    def begin(number: int) -> Any:
        together.wait(timeout=60)
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))


@pytest.mark.parametrize("tie_break", ["hash", "first"])
def test_all_threads_get_the_same_answers(tie_break: Any) -> None:
    routers = [Router(world.catalog, tie_break=tie_break) for world in WORLDS]
    batches: list[list[Any]] = [[world.conversations.slice(start) for start in range(ROWS)] for world in WORLDS]
    expected = [
        [router.route(batch, now=NOW) for batch in slices] for router, slices in zip(routers, batches, strict=True)
    ]

    def work(number: int) -> bool:
        places = [((number + turn) % len(WORLDS), (number * 11 + turn) % ROWS) for turn in range(ROUNDS)]
        return all(routers[a].route(batches[a][b], now=NOW).equals(expected[a][b]) for a, b in places)

    assert in_all_threads(work) == [True] * THREADS


@pytest.mark.rule("R24")
def test_no_turn_is_lost_or_taken_twice() -> None:
    """Threads share the turns, so that all copies get equally many conversations."""
    router = Router(CATALOG, tie_break="round_robin")
    batch = conversations(["//Orders"] * 50)

    def work(_number: int) -> Counter[int]:
        taken: Counter[int] = Counter()
        for _ in range(ROUNDS):
            ids: Any = router.route(batch, now=NOW)["route_id"]
            taken.update(ids.to_pylist())
        return taken

    total: Counter[int] = sum(in_all_threads(work), Counter())
    assert list(total.values()) == [THREADS * ROUNDS * 50 // COPIES] * COPIES


def test_routers_are_created_and_used_in_many_threads() -> None:
    world = WORLDS[0]
    expected = str(world.router.explain("Orders", now=NOW))
    invalid = conversations(["//Orders"], "Nowhere")

    def work(_number: int) -> bool:
        made = Router(world.catalog)
        with pytest.raises(ssbroker.UnknownDatabaseError):
            made.route(invalid, now=NOW)
        return str(made.explain("Orders", now=NOW)) == expected

    assert in_all_threads(work) == [True] * THREADS


needs_gil = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this Python has no GIL to release"
)


@contextmanager
def no_switches() -> Iterator[None]:
    """Prevents threads from being switched except when they release the GIL themselves."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def progress_during(call: Callable[[], object]) -> int:
    """Returns how far another thread gets while a call is running."""
    progress: list[int] = []
    go = threading.Event()

    def count() -> None:
        assert go.wait(60)
        progress.extend(range(COUNTED))

    with no_switches():
        other = threading.Thread(target=count)
        other.start()
        go.set()  # from here on the thread waits for the GIL, which only the call can release
        assert progress == []
        call()
        made = len(progress)
    other.join()
    return made


class Exported:
    """A batch that was exported beforehand, so that requesting it runs no code that might release the GIL."""

    def __init__(self, batch: Any) -> None:
        self._capsules = batch.__arrow_c_array__()

    def __arrow_c_array__(self, requested_schema: object | None = None) -> Any:
        return self._capsules


@needs_gil
def test_the_gil_is_released_while_a_batch_is_routed() -> None:
    """The last row is invalid, so that the call ends without an export, and only routing can release the GIL."""
    rows = 300_000
    names = ["//Orders"] * (rows - 1) + [None]
    batch = pa.record_batch(
        {
            "conversation_id": pa.array([bytes(16)] * rows, pa.binary(16)),
            "database": pa.array(["Sales"] * rows),
            "to_service_name": pa.array(names),
        }
    )
    router = _core.Router(CATALOG.native, tie_break="hash", pending_request="continue")
    attempts = [Exported(batch) for _ in range(50)]

    def call() -> None:
        with pytest.raises(ssbroker.NullError):
            router.route(attempts.pop(), 0, 0)

    assert progress_during(lambda: sum(range(300_000))) == 0
    # The system may be slow to wake the other thread, so it gets several chances; without a release it never progresses.
    assert any(progress_during(call) == COUNTED for _ in range(len(attempts)))


@pytest.mark.threat("T20")
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux tells the threads of a process")
def test_no_threads_are_started() -> None:
    """So that forked processes lack none, and none outlives the interpreter with Python objects."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.boundary.thread_counts"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    before, *after = json.loads(process.stdout)
    assert before[0] == 1
    assert after == [before] * 10
