"""A worker without ssbroker, or with another version of it, fails with an error that names what to install."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ssbroker
from ssbroker.spark.worker_version_check import on_workers

WITHOUT = "sys.modules['ssbroker'] = None"
OTHER = "sys.modules['ssbroker'] = types.ModuleType('ssbroker'); sys.modules['ssbroker'].__version__ = '0.0.9'"


def in_worker(before: str, pickled: Path) -> str:
    """Returns what a process prints when it loads the pickled function as a worker does."""
    source = f"import sys, types, pathlib; {before}; from pyspark import cloudpickle; "
    source += f"print(cloudpickle.loads(pathlib.Path({str(pickled)!r}).read_bytes())(2))"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().splitlines()[-1]


@pytest.fixture
def pickled(tmp_path: Path) -> Path:
    from pyspark import cloudpickle  # noqa: PLC0415 - it is untyped

    dumps: Any = cloudpickle.dumps

    def double(number: int) -> int:
        return len(ssbroker.__name__) * number

    path = tmp_path / "function"
    path.write_bytes(dumps(on_workers(double)))
    return path


def test_a_worker_with_the_same_version_runs_the_function(pickled: Path) -> None:
    assert in_worker("pass", pickled) == "16"


def test_a_worker_without_the_package_says_what_to_install(pickled: Path) -> None:
    said = in_worker(WITHOUT, pickled)
    assert said.startswith("ImportError: a Spark worker cannot import ssbroker (")
    assert said.endswith(
        f"install ssbroker=={ssbroker.__version__}, the version of the driver, in the worker's Python {sys.executable}"
    )


def test_a_worker_with_another_version_names_both(pickled: Path) -> None:
    assert in_worker(OTHER, pickled) == (
        f"ImportError: a Spark worker has ssbroker 0.0.9, and the driver has {ssbroker.__version__}; "
        f"install ssbroker=={ssbroker.__version__} in the worker's Python {sys.executable}, "
        "and restart the Python processes of the workers"
    )


MODULES_OF_A_WORKER = """
import sys
from pyspark.sql import SparkSession
import ssbroker.spark
from ssbroker import Catalog, schemas
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
waiting = spark.createDataFrame([(bytes(16), "msdb", "//a")], "conversation_id binary, database string, to_service_name string")
ssbroker.spark.route(waiting, Catalog(schemas.ROUTES.empty_table()), engine="arrow").collect()
fragments = "conversation_id binary, is_initiator boolean, message_sequence_number bigint, fragment_number int, fragment_count int, message_body binary"
ssbroker.spark.reassemble(spark.createDataFrame([(bytes(16), True, 0, 0, 1, b"a")], fragments)).messages.collect()
def names(batches):
    import pyarrow
    for batch in batches:
        yield pyarrow.RecordBatch.from_arrays([pyarrow.array(sorted(sys.modules))], names=["name"])
loaded = spark.range(0, 1, 1, 1).mapInArrow(names, "name string").collect()
print("loaded:", *(row["name"] for row in loaded))
spark.stop()
"""


def test_a_worker_imports_only_what_its_function_needs() -> None:
    """Neither the broker nor the command line, nor what reads scripts and files: a worker starts often."""
    done = subprocess.run([sys.executable, "-c", MODULES_OF_A_WORKER], capture_output=True, text=True, check=True)
    loaded = next(line for line in done.stdout.splitlines() if line.startswith("loaded: ")).split()[1:]
    assert {"ssbroker.router", "ssbroker.spark.reassembly_task"} <= set(loaded)
    own = {name.split(".")[1] for name in loaded if name.startswith("ssbroker.")}
    assert own.isdisjoint({"broker", "cli", "ddl", "diagnose", "protocol", "security", "store", "testing"})
    assert not [name for name in loaded if name.startswith(("ssbroker.spark.files", "ssbroker.spark.streams"))]
    files = {"ssbroker.catalog.load", "ssbroker.catalog.table_files", "ssbroker.catalog.save", "pyarrow.parquet"}
    assert (files | {"typer", "rich", "apsw"}).isdisjoint(loaded)


JOB = """
import sys
from pyspark.sql import SparkSession
import ssbroker.spark
from ssbroker import Catalog, schemas
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
waiting = spark.createDataFrame([(bytes(16), "msdb", "//a")], "conversation_id binary, database string, to_service_name string")
jobs = [ssbroker.spark.route(waiting, Catalog(schemas.ROUTES.empty_table()), engine="arrow")]
fragments = "conversation_id binary, is_initiator boolean, message_sequence_number bigint, fragment_number int, fragment_count int, message_body binary"
jobs.append(ssbroker.spark.reassemble(spark.createDataFrame([(bytes(16), True, 0, 0, 1, b"a")], fragments)).messages)
for job in jobs:
    try:
        job.collect()
    except Exception as error:
        print("said:", [line for line in str(error).splitlines() if "ImportError" in line])
spark.stop()
"""


def test_the_job_of_a_worker_without_the_package_fails_with_this_error(tmp_path: Path) -> None:
    """The worker's Python can import everything except ssbroker."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['ssbroker'] = None\n")
    worker = tmp_path / "python"
    worker.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    worker.chmod(0o755)
    source = f"import os; os.environ['PYSPARK_PYTHON'] = {str(worker)!r}; os.environ['PYSPARK_DRIVER_PYTHON'] = sys.executable"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {source}\n{JOB}"], capture_output=True, text=True, check=True
    )
    said = [line for line in done.stdout.splitlines() if line.startswith("said:")]
    assert len(said) == 2, done.stdout + done.stderr
    for line in said:
        assert "a Spark worker cannot import ssbroker (" in line
        assert f"install ssbroker=={ssbroker.__version__}" in line
