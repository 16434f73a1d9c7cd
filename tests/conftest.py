"""Settings of all tests: the profiles of Hypothesis, the number of processes, the order, Java, signals, and a shared folder."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from tests import java
from tests.scheduling import GroupScheduling, rank

# `fast` is the default; SSBROKER_HYPOTHESIS=slow searches longer. No deadline: how long an example takes depends on the machine. Derandomized:
# a run that was green stays green.
settings.register_profile(
    "fast", max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("slow", max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("SSBROKER_HYPOTHESIS", "fast"))

PROCESS_BYTES: Final = 3 << 30
"""The memory that a process of tests and its Spark need at most."""


def pytest_xdist_auto_num_workers() -> int:
    """Returns the number of processes: more than there are cores, because tests often wait for disks, timers and Spark."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(2 * (os.cpu_count() or 1), memory // PROCESS_BYTES, 6))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupScheduling:
    config.option.loadscopereorder = False  # otherwise, xdist starts the groups with the most tests first
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.nodeid))


def pytest_collection_finish() -> None:
    """Excludes modules and tests from later garbage collections, which would look at millions of objects each time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


os.environ.setdefault("SPARK_SUBMIT_OPTS", java.options())

# A process that a shell runs in the background ignores SIGINT, and so would the processes that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that all users can read; only the owner can read pytest's."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)
