"""The process driver reads all output, kills processes reliably, and detects processes that do not start."""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.system.node_process import DEADLINE_SECONDS, Node

COUNTING = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("ready", 4711, flush=True)
number = 0
while True:
    print("did", number, flush=True)
    number += 1
"""
NO_COMPLETE_LINE = (
    "import sys\nprint('ready 1', flush=True); sys.stdout.write('torn'); sys.stdout.flush()\nwhile True: pass"
)
BROKEN = "raise SystemExit('no such folder')"

Make = Callable[..., Node]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    nodes: list[Node] = []

    def create_node(program: str, **options: object) -> Node:
        node = Node("a", [sys.executable, "-c", program], errors=tmp_path / "errors", **options)  # type: ignore[arg-type]
        nodes.append(node)
        return node

    yield create_node
    for node in nodes:
        if node.is_alive:
            node.kill()


def test_output_is_read_until_a_kill_and_after_a_restart(make: Make) -> None:
    output: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    ports: list[int] = []
    node = make(COUNTING, on_report=output.put, on_ready=ports.append)
    for start in range(1, 4):
        node.start()
        assert (ports, node.starts) == ([4711] * start, start)
        for number in range(100):
            assert output.get(timeout=DEADLINE_SECONDS) == ["did", str(number)]
        assert node.kill()
        assert not node.is_alive
        while not output.empty():
            output.get()


def test_an_incomplete_line_is_ignored(make: Make) -> None:
    output: list[list[str]] = []
    node = make(NO_COMPLETE_LINE, on_report=output.append)
    node.start()
    assert node.kill()
    assert output == []


def test_it_ends_on_sigterm(make: Make) -> None:
    node = make(COUNTING)
    node.start()
    assert node.stop() == 0


def test_a_process_that_ended_by_itself_was_not_killed(make: Make) -> None:
    node = make("print('ready 1', flush=True)")
    node.start()
    assert node._process is not None
    node._process.wait(DEADLINE_SECONDS)
    assert not node.kill()


def test_a_process_that_does_not_start_gives_the_reason(make: Make) -> None:
    with pytest.raises(TimeoutError, match="a is not ready: no such folder"):
        make(BROKEN).start()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_the_peak_memory_covers_all_restarts(make: Make) -> None:
    node = make("room = bytearray(64 << 20)\n" + COUNTING)
    node.start()
    node.kill()
    assert node.peak_kib > 64 << 10
