"""The metrics of one process show what other processes do with the same instance."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import ssbroker
from ssbroker import Instance

PUT = """
import sys
from ssbroker import Instance

with Instance.open(sys.argv[1]) as instance:
    for body in (b"one", b"two", b"three"):
        instance.queue("Jobs").put(body)
"""
FAIL = """
import sys
from contextlib import suppress
from ssbroker import Instance

with Instance.open(sys.argv[1]) as instance:
    for _ in range(int(sys.argv[2])):
        with suppress(ZeroDivisionError), instance.queue("Jobs", retry_after=0).take():
            raise ZeroDivisionError
"""
HOLD = """
import sys
from ssbroker import Instance

with Instance.open(sys.argv[1]) as instance, instance.queue("Jobs").take(lease=float(sys.argv[2])):
    print("leased", flush=True)
    sys.stdin.read()
"""


class Collected:
    """The metrics of queue `Jobs`, in the registry of an application."""

    def __init__(self, instance: Instance) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(ssbroker.metrics(instance))

    def value(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(
            f"ssbroker_{name}", {"database": "Queues", "queue": "dbo.Jobs", **labels}
        )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with Instance.open(tmp_path / "instance", create=True, background=False) as instance:
        instance.queue("Jobs")
    return tmp_path / "instance"


def run(program: str, folder: Path, *arguments: object) -> None:
    subprocess.run([sys.executable, "-c", program, folder, *map(str, arguments)], check=True, timeout=120)


@contextmanager
def leased(folder: Path, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Runs a process that holds a lease until it is killed or its standard input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, folder, str(seconds)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "leased\n"
        yield holder


def test_messages_leases_and_failures_of_other_processes_are_collected(folder: Path) -> None:
    with Instance.open(folder, background=False) as instance:
        metrics = Collected(instance)
        assert metrics.value("queue_messages", status="ready") == 0
        run(PUT, folder)
        assert metrics.value("queue_messages", status="ready") == 3
        with Instance.open(folder, background=False, clock=lambda: datetime.now(UTC) + timedelta(minutes=5)) as later:
            assert (Collected(later).value("queue_oldest_seconds") or 0) >= 300
        run(FAIL, folder, 1)
        with leased(folder, 60):
            assert metrics.value("lease_groups", state="LEASED") == 1
            assert metrics.value("lease_attempts", state="LEASED") == 2
            assert metrics.value("lease_failures", state="LEASED") == 1
        assert metrics.value("lease_groups", state="LEASED") is None
        assert metrics.value("queue_messages", status="ready") == 2


def test_a_queue_that_another_process_has_poisoned_is_collected(folder: Path) -> None:
    with Instance.open(folder, background=False) as instance:
        metrics = Collected(instance)
        run(PUT, folder)
        assert (metrics.value("queue_poisoned"), metrics.value("queue_enabled")) == (0, 1)
        run(FAIL, folder, 5)
        assert (metrics.value("queue_poisoned"), metrics.value("queue_enabled")) == (1, 0)
