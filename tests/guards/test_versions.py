"""The minimum versions of libraries are the same everywhere, and older versions are rejected with a clear error."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from ssbroker._dependencies import PYARROW_MINIMUM, PYSPARK_FOR_DATA_SOURCE, PYSPARK_MINIMUM
from tests.guards.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SCHEMA = "pyspark.sql.types.StructType()"


def test_dependencies_require_the_minimum_versions() -> None:
    assert f"pyarrow>={PYARROW_MINIMUM}" in PROJECT["dependencies"]
    assert f"pyspark[connect,sql]>={PYSPARK_MINIMUM},<5" in PROJECT["optional-dependencies"]["spark"]


def test_the_pages_state_the_minimum_pyspark() -> None:
    page = " ".join((ROOT / "docs/how-to/spark.md").read_text(encoding="utf-8").split())
    assert f"PySpark {PYSPARK_MINIMUM} or newer (the data source `ssbroker` needs {PYSPARK_FOR_DATA_SOURCE})" in page
    page = " ".join((ROOT / "docs/how-to/spark-data-source.md").read_text(encoding="utf-8").split())
    assert f"adds a data source `ssbroker` to Spark {PYSPARK_FOR_DATA_SOURCE} or newer" in page


def last_line(source: str) -> str:
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    return done.stderr.splitlines()[-1]


def test_an_old_pyarrow_is_rejected_on_import() -> None:
    assert last_line("import pyarrow; pyarrow.__version__ = '24.0.0'; import ssbroker") == (
        "ssbroker.exceptions.MissingDependencyError: "
        "ssbroker needs pyarrow 25 or newer, and 24.0.0 is installed: pip install 'pyarrow>=25'"
    )


def test_an_old_pyspark_is_rejected_on_import() -> None:
    assert last_line("import pyspark; pyspark.__version__ = '4.0.1'; import ssbroker.spark") == (
        "ssbroker.spark.MissingSparkError: "
        "ssbroker.spark needs PySpark 4.1 or newer, and 4.0.1 is installed: pip install 'pyspark>=4.1,<5'"
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
def test_the_data_source_states_which_pyspark_it_needs(method: str) -> None:
    """The module of a newer PySpark cannot be imported."""
    source = f"""
import sys
import pyspark.sql.streaming
import pyspark_ssbroker
pyspark.__version__ = "4.1.0"
sys.modules["pyspark.sql.streaming.datasource"] = None
pyspark_ssbroker.DefaultSource({{}}).{method}
"""
    assert last_line(source) == (
        "ssbroker.spark.MissingSparkError: "
        "the data source ssbroker needs PySpark 4.2 or newer, and 4.1.0 is installed: pip install 'pyspark>=4.2,<5'"
    )
