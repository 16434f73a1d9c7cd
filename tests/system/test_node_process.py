"""The driver of processes hears all that they say, kills them for good, and tells a process that does not come up from one that does."""

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
SILENT = "import sys\nprint('ready 1', flush=True); sys.stdout.write('torn'); sys.stdout.flush()\nwhile True: pass"
BROKEN = "raise SystemExit('no such folder')"

Make = Callable[..., Node]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    nodes: list[Node] = []

    def made(program: str, **options: object) -> Node:
        node = Node("a", [sys.executable, "-c", program], errors=tmp_path / "errors", **options)  # type: ignore[arg-type]
        nodes.append(node)
        return node

    yield made
    for node in nodes:
        if node.is_alive:
            node.kill()


def test_it_is_heard_until_it_is_killed_and_lives_again(make: Make) -> None:
    said: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    ports: list[int] = []
    node = make(COUNTING, heard=said.put, ready=ports.append)
    for life in range(1, 4):
        node.start()
        assert (ports, node.lives) == ([4711] * life, life)
        for number in range(100):
            assert said.get(timeout=DEADLINE_SECONDS) == ["did", str(number)]
        assert node.kill()
        assert not node.is_alive
        while not said.empty():
            said.get()


def test_a_torn_line_is_not_heard(make: Make) -> None:
    said: list[list[str]] = []
    node = make(SILENT, heard=said.append)
    node.start()
    assert node.kill()
    assert said == []


def test_it_ends_when_it_is_asked(make: Make) -> None:
    node = make(COUNTING)
    node.start()
    assert node.stop() == 0


def test_one_that_ends_by_itself_was_not_killed(make: Make) -> None:
    node = make("print('ready 1', flush=True)")
    node.start()
    assert node._process is not None
    node._process.wait(DEADLINE_SECONDS)
    assert not node.kill()


def test_one_that_does_not_come_up_says_why(make: Make) -> None:
    with pytest.raises(TimeoutError, match="a is not ready: no such folder"):
        make(BROKEN).start()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_the_most_memory_of_all_lives_is_kept(make: Make) -> None:
    node = make("room = bytearray(64 << 20)\n" + COUNTING)
    node.start()
    node.kill()
    assert node.peak_kib > 64 << 10
