"""Files routed by Spark's workers themselves: the answers of the Arrow functions, and a folder that is whole or not there."""

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


def written(table: pa.Table, folder: Path, *, files: int = 3, group_rows: int = 16) -> None:
    step = -(-table.num_rows // files)
    for number in range(files):
        pq.write_table(table.slice(number * step, step), folder / f"{number}.parquet", row_group_size=group_rows)


def rows(table: pa.Table) -> list[str]:
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
def test_files_are_routed_as_the_arrow_functions_do(
    spark: SparkSession, source: Path, tmp_path: Path, seed: int
) -> None:
    catalog, table = world(seed, conversations=150, text_guids=seed == 1)
    written(table, source)
    told = ssbroker.spark.route_files(spark, source, tmp_path / "routed", catalog, now=NOW, split_bytes=1)
    expected = routed_by_arrow(catalog, table)
    found = pq.read_table(tmp_path / "routed")
    assert rows(found) == rows(expected)
    assert told.rows == expected.num_rows
    assert told.outcomes == Counter(expected["outcome"].to_pylist())
    manifest = json.loads((tmp_path / "routed" / "_manifest.json").read_text())
    assert [each["name"] for each in manifest["files"]] == list(told.files)
    assert sum(each["rows"] for each in manifest["files"]) == told.rows
    assert manifest["catalog"] == catalog.fingerprint
    assert {path.name for path in tmp_path.iterdir()} == {"source", "routed"}, "nothing is left beside it"
    assert spark.read.parquet(str(tmp_path / "routed")).count() == told.rows


@pytest.mark.parametrize("by", ["outcome", "next_hop_address", "target_database"])
def test_files_are_parted_by_a_column_of_the_decision(
    spark: SparkSession, source: Path, tmp_path: Path, by: PartitionBy
) -> None:
    catalog, table = world(5, conversations=120)
    written(table, source)
    ssbroker.spark.route_files(spark, source, tmp_path / "routed", catalog, now=NOW, partition_by=by)
    partitioning = ds.partitioning(pa.schema([pa.field(by, pa.string())]), flavor="hive")
    found = ds.dataset(tmp_path / "routed", partitioning=partitioning, exclude_invalid_files=True).to_table()
    assert rows(found) == rows(routed_by_arrow(catalog, table))


def test_further_columns_stay_and_files_without_rows_are_well(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    catalog, table = world(6, conversations=20)
    table = table.append_column("size", pa.array(range(table.num_rows), pa.int64()))
    written(table, source, files=1)
    pq.write_table(table.slice(0, 0), source / "empty.parquet")
    told = ssbroker.spark.route_files(spark, [source], tmp_path / "routed", catalog, now=NOW)
    assert rows(pq.read_table(tmp_path / "routed")) == rows(routed_by_arrow(catalog, table))
    (source / "0.parquet").unlink()
    told = ssbroker.spark.route_files(spark, source, tmp_path / "nothing", catalog, now=NOW)
    assert told.rows == 0
    assert pq.read_table(tmp_path / "nothing").column_names == [*table.column_names, *schemas.DECISIONS.names]


def test_ids_and_names_are_written_without_least_and_greatest_and_further_columns_with_them(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    """Of nested columns too, which Parquet calls by longer names."""
    catalog, table = world(6, conversations=20)
    rows_ = range(table.num_rows)
    table = table.append_column("size", pa.array(rows_, pa.int64()))
    table = table.append_column("sent", pa.array([{"by": str(row)} for row in rows_]))
    written(table, source, files=1)
    told = ssbroker.spark.route_files(spark, source, tmp_path / "routed", catalog, now=NOW)
    group = pq.ParquetFile(tmp_path / "routed" / told.files[0]).metadata.row_group(0)
    found = [group.column(number) for number in range(group.num_columns)]
    ordered = {column.path_in_schema for column in found if column.is_stats_set}
    assert ordered >= {"size", "sent.by", "route_id", "match_step"}
    assert not ordered & {"conversation_id", "to_service_name", "next_hop_address", "broker_instance", "outcome"}
    plain = {column.path_in_schema for column in found if not column.has_dictionary_page}
    assert "conversation_id" in plain
    assert not plain & {"size", "sent.by", "to_service_name"}


def test_progress_is_told_to_the_end(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    catalog, table = world(7, conversations=60)
    written(table, source)
    told: list[tuple[int, int]] = []
    ssbroker.spark.route_files(
        spark, source, tmp_path / "routed", catalog, now=NOW, progress=lambda done, all_: told.append((done, all_))
    )
    assert told[-1] == (3, 3)
    assert sorted(told) == told


def test_what_stands_at_the_target_is_kept(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    catalog, table = world(8, conversations=10)
    written(table, source)
    (tmp_path / "routed").mkdir()
    with pytest.raises(OutputError, match="routed: already exists"):
        ssbroker.spark.route_files(spark, source, tmp_path / "routed", catalog, now=NOW)
    assert list((tmp_path / "routed").iterdir()) == []


def test_a_value_that_is_wrong_names_its_file_and_leaves_nothing(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    catalog, table = world(9, conversations=40, text_guids=True)
    ids: list[Any] = table["conversation_id"].to_pylist()
    broken = table.set_column(0, "conversation_id", pa.array([*ids[:-1], "no id"], pa.string()))
    written(broken, source)
    with pytest.raises(Exception, match=r"conversation_id(.|\n)*2\.parquet"):
        ssbroker.spark.route_files(spark, source, tmp_path / "routed", catalog, now=NOW)
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_a_file_whose_pages_are_damaged_is_named(spark: SparkSession, source: Path, tmp_path: Path) -> None:
    """Arrow's own error names none: of thousands of files nobody knew which one to copy anew."""
    catalog, table = world(9, conversations=40)
    written(table, source)
    damaged = source / "1.parquet"
    content = bytearray(damaged.read_bytes())
    content[4:64] = b"\xff" * 60
    damaged.write_bytes(content)
    with pytest.raises(Exception, match=r"MalformedDataError: .*1\.parquet: cannot be read as Parquet"):
        ssbroker.spark.route_files(spark, source, tmp_path / "routed", catalog, now=NOW)
    assert {path.name for path in tmp_path.iterdir()} == {"source"}


def test_sources_that_cannot_be_read_are_told_of_before_a_job_starts(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    catalog, table = world(10, conversations=10)
    target = tmp_path / "routed"
    with pytest.raises(InputError, match="contains no Parquet file"):
        ssbroker.spark.route_files(spark, source, target, catalog)
    with pytest.raises(InputError, match="no such file or folder"):
        ssbroker.spark.route_files(spark, tmp_path / "nowhere", target, catalog)
    (source / "text.parquet").write_text("no Parquet")
    with pytest.raises(MalformedDataError, match=r"text\.parquet"):
        ssbroker.spark.route_files(spark, source, target, catalog)
    (source / "text.parquet").unlink()
    written(table, source, files=1)
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


TRIES = """
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
    told = before(job, number)  # its files are complete
    mark = folder / f"tried-{number}"
    if not mark.exists():
        mark.touch()
        os._exit(9)
    return told

file_routing._route_split = dies_once
catalog, table = world(11, conversations=90)
spark = session_builder().master("local[2,4]").getOrCreate()
told = ssbroker.spark.route_files(spark, folder / "source", folder / "routed", catalog, now=NOW)
print(told.rows)
spark.stop()
"""


def test_a_task_that_dies_after_it_wrote_is_tried_again_and_counts_once(source: Path, tmp_path: Path) -> None:
    """Spark runs it anew; what the first try wrote never gets into the result."""
    catalog, table = world(11, conversations=90)
    written(table, source)
    found = subprocess.run(
        [sys.executable, "-c", TRIES, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.stdout.strip() == "90", found.stderr
    assert rows(pq.read_table(tmp_path / "routed")) == rows(routed_by_arrow(catalog, table))
    assert len([path for path in tmp_path.iterdir() if path.name.startswith("tried-")]) == 3


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.spark.frames import session_builder, world
from tests.worlds.universe import NOW
from ssbroker.spark.files import staging
import ssbroker.spark

folder = Path(sys.argv[1])
place = Path.rename

def dies(self, target):
    if "result" in Path(target).parts:  # the first file on its way into the result
        os.kill(os.getpid(), signal.SIGKILL)
    return place(self, target)

Path.rename = dies
catalog, _ = world(12, conversations=90)
spark = session_builder().getOrCreate()
ssbroker.spark.route_files(spark, folder / "source", folder / "routed", catalog, now=NOW)
"""


def test_a_driver_that_is_killed_leaves_no_result_and_the_next_job_sweeps(
    spark: SparkSession, source: Path, tmp_path: Path
) -> None:
    catalog, table = world(12, conversations=90)
    written(table, source)
    found = subprocess.run([sys.executable, "-c", KILLED, tmp_path], cwd=ROOT, capture_output=True, check=False)
    assert found.returncode == -signal.SIGKILL
    assert not (tmp_path / "routed").exists()
    assert len(list(tmp_path.iterdir())) == 2, "the source, and what was not finished"
    ssbroker.spark.route_files(spark, source, tmp_path / "routed", catalog, now=NOW)
    assert rows(pq.read_table(tmp_path / "routed")) == rows(routed_by_arrow(catalog, table))
    assert {path.name for path in tmp_path.iterdir()} == {"source", "routed"}
