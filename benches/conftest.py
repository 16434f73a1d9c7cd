from __future__ import annotations

import os

# One thread is compared with one thread; Polars reads this when it is imported.
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
        raise pytest.UsageError(f"this is a {_core.build_profile} build of ssbroker: measure a release build")
    pa.set_cpu_count(1)


def pytest_collect_file(file_path: pathlib.Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect `bench_*.py` in this folder; a file that is named on the command line pytest collects itself."""
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
    """One for all benches of Spark: it takes seconds to start."""
    yield from spark_session.session()
