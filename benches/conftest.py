from __future__ import annotations

import gc
import os

# All rivals use one thread; Polars reads this when it is imported.
os.environ["POLARS_MAX_THREADS"] = "1"

import pathlib
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from benches import spark_session
from benches.settings import REPORT
from ssbroker import _core


def pytest_configure() -> None:
    if _core.build_profile != "release":
        raise pytest.UsageError(f"ssbroker is a {_core.build_profile} build; benchmarks need a release build")
    pa.set_cpu_count(1)


def pytest_collection_finish() -> None:
    # `race` collects garbage before each lap, and need not look at the modules again.
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


def pytest_collect_file(file_path: pathlib.Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collects `bench_*.py` in this folder. pytest itself collects files that are named on the command line."""
    if not file_path.match("bench_*.py") or parent.session.isinitpath(file_path):
        return None
    return pytest.Module.from_parent(parent, path=file_path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for heading, lines in REPORT.items():
        terminalreporter.section(heading)
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Returns one session for all Spark benchmarks, because it takes seconds to start."""
    yield from spark_session.session()
