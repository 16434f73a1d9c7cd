"""For all tests: Hypothesis profiles, `fast` for every run, `slow` (SSBROKER_HYPOTHESIS=slow) for a long look; which come first; Java that starts quickly; signals; a folder."""

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

from tests import java

# No deadline: how long an example takes depends on the machine. Derandomized: a run that was green stays green.
settings.register_profile(
    "fast", max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("slow", max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("SSBROKER_HYPOTHESIS", "fast"))

LONGEST_FIRST: Final = ("tests/docs/test_documents.py", "tests/docs/test_docstrings.py", "tests/spark", "tests/cli")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest comes first, so that no process is left with it when all others are done."""
    items.sort(
        key=lambda item: next(
            (rank for rank, name in enumerate(LONGEST_FIRST) if item.nodeid.startswith(name)), len(LONGEST_FIRST)
        )
    )


def pytest_collection_finish() -> None:
    """Excludes modules and tests from later garbage collections, which would look at millions of objects each time."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


os.environ.setdefault("SPARK_SUBMIT_OPTS", java.options())

# What a shell has put into the background ignores SIGINT, and so would all that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that everybody can get at; that of pytest only its owner can."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)
