"""`route_files` gives the decisions of the Arrow functions, in a folder that is complete or absent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import ssbroker.spark
from ssbroker import Catalog, Router, schemas
from ssbroker.exceptions import InputError, MalformedDataError, OptionError, OutputError, SchemaError
from ssbroker.spark.files.routing import PartitionBy
from tests.guards.repository import ROOT
from tests.spark.frames import world
from tests.worlds.universe import NOW


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    made.mkdir()
    return made


def write_files(table: pa.Table, folder: Path, *, files: int = 3, group_rows: int = 16) -> None:
    step = -(-table.num_rows // files)
    for number in range(files):
        pq.write_table(table.slice(number * step, step), folder / f"{number}.parquet", row_group_size=group_rows)


def row_texts(table: pa.Table) -> list[str]:
    plain = pa.Table.from_arrays(
        [
            column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
            for column in table.columns
        ],
        names=table.column_names,
    )
    return sorted(repr(row) for row in plain.select(sorted(plain.column_names)).to_pylist())


def routed_by_arrow(catalog: Catalog, table: pa.Table) -> pa.Table:
    decided = Router(catalog).route(table, now=NOW)
    for name in schemas.DECISIONS.names:
        table = table.append_column(name, decided[name])
    return table


@pytest.mark.parametrize("seed", range(3))
def test_decisions_equal_the_arrow_function(spark: SparkSession, source: Path, tmp_path: Path, seed: int) -> None:
    catalog, table = world(seed, conversations=150, text_guids=seed == 1)
    write_files(table, source)
    result = ssbroker.spark.route_files(spark, source, tmp_path / "routed", catalog, now=NOW, split_bytes=1)
    expected = routed_by_arrow(catalog, table)
    found = pq.read_table(tmp_path / "routed")
    assert row_texts(found) == row_texts(expected)
    assert result.rows == expected.num_rows
    assert result.outcomes == Counter(expected["outcome"].to_pylist())
    manifest = json.loads((tmp_path / "routed" / "_manifest.json").read_text())
    assert [each["name"] for each in manifest["files"]] == list(result.files)
    assert sum(each["rows"] for each in manifest["files"]) == result.rows
    assert manifest["catalog"] == catalog.fingerprint
    assert {path.name for path in tmp_path.iterdir()} == {"source", "routed"}, "no temporary folder remains"
    assert spark.read.parquet(str(tmp_path / "routed")).count() == result.rows


@pytest.mark.parametrize("by", ["outcome", "next_hop_address", "target_database"])
def test_files_are_partitioned_by_a_decision_column(
    spark: SparkSession, source: Path, tmp_path: Path, by: PartitionBy
) -> None:
    catalog, table = world(5, conversations=120)
    write_files(table, source)
    ssbroker.spark.route_files(spark, source, tmp_path / "routed", catalog, now=NOW, partition_by=by)
    partitioning = ds.partitioning(pa.schema([pa.field(by, pa.string())]), flavor="hive")
    found = ds.dataset(tmp_path / "routed", partitioning=partitioning, exclude_invalid_files=True).to_table()
    assert row_texts(found) == row_texts(routed_by_arrow(catalog, table))


def test_extra_columns_are_kept_and_empty_files_are_allowed(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    catalog, table = world(6, conversations=20)
    table = table.append_column("size", pa.array(range(table.num_rows), pa.int64()))
    write_files(table, source, files=1)
    pq.write_table(table.slice(0, 0), source / "empty.parquet")
    result = ssbroker.spark.route_files(spark, [source], tmp_path / "routed", catalog, now=NOW)
    assert row_texts(pq.read_table(tmp_path / "routed")) == row_texts(routed_by_arrow(catalog, table))
    (source / "0.parquet").unlink()
    result = ssbroker.spark.route_files(spark, source, tmp_path / "nothing", catalog, now=NOW)
    assert result.rows == 0
    assert pq.read_table(tmp_path / "nothing").column_names == [*table.column_names, *schemas.DECISIONS.names]


def test_only_ordinary_columns_have_statistics(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    """Also for nested columns, which have longer names in Parquet."""
    catalog, table = world(6, conversations=20)
    row_numbers = range(table.num_rows)
    table = table.append_column("size", pa.array(row_numbers, pa.int64()))
    table = table.append_column("sent", pa.array([{"by": str(row)} for row in row_numbers]))
    write_files(table, source, files=1)
    result = ssbroker.spark.route_files(spark, source, tmp_path / "routed", catalog, now=NOW)
    group = pq.ParquetFile(tmp_path / "routed" / result.files[0]).metadata.row_group(0)
    found = [group.column(number) for number in range(group.num_columns)]
    ordered = {column.path_in_schema for column in found if column.is_stats_set}
    assert ordered >= {"size", "sent.by", "route_id", "match_step"}
    assert not ordered & {"conversation_id", "to_service_name", "next_hop_address", "broker_instance", "outcome"}
    plain = {column.path_in_schema for column in found if not column.has_dictionary_page}
    assert "conversation_id" in plain
    assert not plain & {"size", "sent.by", "to_service_name"}


def test_progress_is_reported_to_the_end(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    catalog, table = world(7, conversations=60)
    write_files(table, source)
    calls: list[tuple[int, int]] = []
    ssbroker.spark.route_files(
        spark, source, tmp_path / "routed", catalog, now=NOW, progress=lambda done, total: calls.append((done, total))
    )
    assert calls[-1] == (3, 3)
    assert sorted(calls) == calls


def test_an_existing_target_is_kept(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    catalog, table = world(8, conversations=10)
    write_files(table, source)
    (tmp_path / "routed").mkdir()
    with pytest.raises(OutputError, match="routed: already exists"):
        ssbroker.spark.route_files(spark, source, tmp_path / "routed", catalog, now=NOW)
    assert list((tmp_path / "routed").iterdir()) == []


def test_invalid_values_name_their_file_and_leave_nothing(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    catalog, table = world(9, conversations=40, text_guids=True)
    ids: list[Any] = table["conversation_id"].to_pylist()
    broken = table.set_column(0, "conversation_id", pa.array([*ids[:-1], "no id"], pa.string()))
    write_files(broken, source)
    with pytest.raises(Exception, match=r"conversation_id(.|\n)*2\.parquet"):
        ssbroker.spark.route_files(spark, source, tmp_path / "routed", catalog, now=NOW)
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_damaged_files_are_named(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    """Arrow's own error does not name the file."""
    catalog, table = world(9, conversations=40)
    write_files(table, source)
    damaged = source / "1.parquet"
    content = bytearray(damaged.read_bytes())
    content[4:64] = b"\xff" * 60
    damaged.write_bytes(content)
    with pytest.raises(Exception, match=r"MalformedDataError: .*1\.parquet: cannot be read as Parquet"):
        ssbroker.spark.route_files(spark, source, tmp_path / "routed", catalog, now=NOW)
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_unreadable_sources_are_reported_before_a_job_starts(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    catalog, table = world(10, conversations=10)
    target = tmp_path / "routed"
    with pytest.raises(InputError, match=r"contains no file with the suffix \.parquet"):
        ssbroker.spark.route_files(spark, source, target, catalog)
    with pytest.raises(InputError, match="no such file or folder"):
        ssbroker.spark.route_files(spark, tmp_path / "nowhere", target, catalog)
    (source / "text.parquet").write_text("no Parquet")
    with pytest.raises(MalformedDataError, match=r"text\.parquet"):
        ssbroker.spark.route_files(spark, source, target, catalog)
    (source / "text.parquet").unlink()
    write_files(table, source, files=1)
    pq.write_table(table.drop_columns(["is_initiator"]), source / "other.parquet")
    with pytest.raises(SchemaError, match=r"other\.parquet: column 'is_initiator' is missing, but .*0\.parquet has it"):
        ssbroker.spark.route_files(spark, source, target, catalog)
    (source / "other.parquet").unlink()
    pq.write_table(table.append_column("Outcome", pa.nulls(table.num_rows, pa.string())), source / "0.parquet")
    with pytest.raises(SchemaError, match="Outcome"):
        ssbroker.spark.route_files(spark, source, target, catalog)
    (source / "day=1").mkdir()
    (source / "0.parquet").rename(source / "day=1" / "0.parquet")
    with pytest.raises(InputError, match="day=1"):
        ssbroker.spark.route_files(spark, source, target, catalog)
    wrong: Any = "route_id"
    with pytest.raises(OptionError, match="partition_by"):
        ssbroker.spark.route_files(spark, source, target, catalog, partition_by=wrong)
    wrong = "bz2"
    with pytest.raises(OptionError, match="compression"):
        ssbroker.spark.route_files(spark, source, target, catalog, compression=wrong)
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


DYING_TASK = """
import os, sys
from pathlib import Path
import pyarrow.parquet as pq
from tests.spark.frames import session_builder, world
from tests.worlds.universe import NOW
from ssbroker.spark.files import routing as file_routing, staging
import ssbroker.spark

folder = Path(sys.argv[1])
before = file_routing._route_split

def dies_once(job, number):
    result = before(job, number)  # its files are complete
    mark = folder / f"tried-{number}"
    if not mark.exists():
        mark.touch()
        os._exit(9)
    return result

file_routing._route_split = dies_once
catalog, table = world(11, conversations=90)
spark = session_builder().master("local[2,4]").getOrCreate()
result = ssbroker.spark.route_files(spark, folder / "source", folder / "routed", catalog, now=NOW)
print(result.rows)
spark.stop()
"""


def test_a_task_that_dies_after_writing_counts_once(source: Path, tmp_path: Path) -> None:
    """Spark runs the task again; files of the first attempt do not become part of the result."""
    catalog, table = world(11, conversations=90)
    write_files(table, source)
    found = subprocess.run(
        [sys.executable, "-c", DYING_TASK, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.stdout.strip() == "90", found.stderr
    assert row_texts(pq.read_table(tmp_path / "routed")) == row_texts(routed_by_arrow(catalog, table))
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("tried-")]) == 3


KILLED_DRIVER = """
import os, signal, sys
from pathlib import Path
from tests.spark.frames import session_builder, world
from tests.worlds.universe import NOW
from ssbroker.spark.files import staging
import ssbroker.spark

folder = Path(sys.argv[1])
rename = Path.rename

def killed(self, target):
    if "result" in Path(target).parts:  # when the first file is moved into the result
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(self, target)

Path.rename = killed
catalog, _ = world(12, conversations=90)
spark = session_builder().getOrCreate()
ssbroker.spark.route_files(spark, folder / "source", folder / "routed", catalog, now=NOW)
"""


def test_a_killed_driver_leaves_no_result_and_is_cleaned_up(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    catalog, table = world(12, conversations=90)
    write_files(table, source)
    found = subprocess.run([sys.executable, "-c", KILLED_DRIVER, tmp_path], cwd=ROOT, capture_output=True, check=False)
    assert found.returncode == -signal.SIGKILL
    assert not (tmp_path / "routed").exists()
    assert len(list(tmp_path.iterdir())) == 2, "the source and the temporary folder"
    ssbroker.spark.route_files(spark, source, tmp_path / "routed", catalog, now=NOW)
    assert row_texts(pq.read_table(tmp_path / "routed")) == row_texts(routed_by_arrow(catalog, table))
    assert {path.name for path in tmp_path.iterdir()} == {"source", "routed"}
