"""The minimum versions of libraries are the same everywhere, and older versions are rejected with a clear error."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib

import pytest

from ssbroker._compat import MINIMUMS
from tests.guards.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SCHEMA = "pyspark.sql.types.StructType()"


def test_what_pip_is_asked_for_is_what_is_demanded() -> None:
    assert PROJECT["dependencies"] == [f"pyarrow>={MINIMUMS['ssbroker'].version}"]


def test_a_plain_install_and_that_for_clusters_have_no_upper_bound_and_bring_nothing_of_spark() -> None:
    extras = PROJECT["optional-dependencies"]
    assert not [
        each for each in [*PROJECT["dependencies"], *extras["cli"], *extras["broker"], *extras["http"]] if "<" in each
    ]
    assert extras["spark"] == []
    assert {re.split(r"[\[>]", each)[0] for each in extras["local-spark"]} == {"pandas", "protobuf", "pyspark"}


def test_the_pages_say_which_pyspark() -> None:
    spark, stream, source = (MINIMUMS[name].version for name in ("ssbroker.spark", "streams", "data source"))
    page = " ".join((ROOT / "docs/how-to/spark.md").read_text(encoding="utf-8").split())
    assert f"has PySpark {spark} or newer" in page
    assert f"Streams and the data source need PySpark {source}" in page
    page = " ".join((ROOT / "docs/how-to/spark-data-source.md").read_text(encoding="utf-8").split())
    assert f"adds a data source `ssbroker` to Spark {source} or newer" in page
    page = " ".join((ROOT / "docs/how-to/streams.md").read_text(encoding="utf-8").split())
    assert f"Streams need PySpark {stream} or newer." in page


def last_line(source: str) -> str:
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    return done.stderr.splitlines()[-1]


def test_pyarrow_that_is_too_old_is_refused_when_the_package_is_imported() -> None:
    assert last_line("import pyarrow; pyarrow.__version__ = '13.0.0'; from ssbroker import Router") == (
        "ssbroker.exceptions.MissingDependencyError: "
        "ssbroker needs pyarrow 14 or newer, and 13.0.0 is installed: pip install 'pyarrow>=14'"
    )


def test_pyspark_that_is_too_old_is_refused_when_the_package_is_imported() -> None:
    assert last_line("import pyspark; pyspark.__version__ = '3.4.4'; import ssbroker.spark") == (
        "ssbroker.spark.compat.MissingSparkError: ssbroker.spark needs PySpark 3.5 or newer, and 3.4.4 is installed: "
        "pip install 'pyspark>=3.5'"
    )


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("stream", "ssbroker.spark.pipeline or reassemble"),
        ("reassemble_stream", "ssbroker.spark.reassemble"),
        ("route_stream", "ssbroker.spark.route"),
    ],
)
def test_a_stream_on_spark_3_says_what_to_use(name: str, instead: str) -> None:
    source = f"""
import pyspark
pyspark.__version__ = "3.5.1"
from ssbroker.spark.streams import options
options.check_stream(None, name="ssbroker.spark.{name}", observe=None)
"""
    assert last_line(source) == (
        f"ssbroker.spark.compat.MissingSparkError: ssbroker.spark.{name} needs PySpark 4.0 or newer, and 3.5.1 is installed: pip install 'pyspark>=4.0'; "
        f"use {instead} in foreachBatch, which does not keep incomplete messages for the next micro-batch"
    )


@pytest.mark.parametrize(
    "method",
    [
        "schema()",
        f"reader({SCHEMA})",
        f"streamReader({SCHEMA})",
        f"writer({SCHEMA}, False)",
        f"streamWriter({SCHEMA}, False)",
    ],
)
def test_the_data_source_states_its_minimum_pyspark_in_every_method(method: str) -> None:
    source = f"""
import pyspark_ssbroker
import pyspark
pyspark.__version__ = "3.5.9"
pyspark_ssbroker.DefaultSource({{}}).{method}
"""
    assert last_line(source) == (
        "ssbroker.spark.compat.MissingSparkError: "
        "the data source ssbroker needs PySpark 4.0 or newer, and 3.5.9 is installed: pip install 'pyspark>=4.0'"
    )
