from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator

import pyspark
import pytest
from pyspark.sql import SparkSession

from ssbroker._compat import is_older
from tests.spark.frames import session_builder

# By default, Spark starts `python3` for its workers.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def pytest_configure(config: pytest.Config) -> None:
    """PySpark 4.0 and older leave the sockets of `collect` to be closed by the garbage collector, which warns about each."""
    if is_older(pyspark.__version__, "4.1"):
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One quiet session on two cores for all tests of this folder."""
    session = session_builder().getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def configure(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """Changes a setting of the session for one test."""
    before: dict[str, str] = {}

    def change(name: str, value: str) -> None:
        before.setdefault(name, str(spark.conf.get(name)))
        spark.conf.set(name, value)

    yield change
    for name, value in before.items():
        spark.conf.set(name, value)
