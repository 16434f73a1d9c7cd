"""Reading Parquet files: Spark's timestamps, paths in many forms, and wide rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import ssbroker.spark
from ssbroker import Catalog, schemas
from ssbroker.exceptions import InputError, SchemaError
from ssbroker.spark.files.parquet import TaskFiles, list_files, plan_splits, read_split

MOMENTS = """struct(
    timestamp'2024-05-06 07:08:09.123456' as moment, timestamp'1600-01-01 00:00:00' as early,
    timestamp_ntz'2024-05-06 07:08:09.123456' as without_zone, array(timestamp'3000-01-01 00:00:00', null) as late,
    named_struct('of', id, 'at', timestamp'2024-05-06 07:08:09') as nested, map('at', timestamp'1969-12-31 23:59:59') as named
) as every"""


@pytest.fixture
def catalog() -> Catalog:
    of_one_database = [name for name in schemas.ROUTES.names if name not in ("database", "route_id")]
    return Catalog(schemas.ROUTES.empty_table().select(of_one_database))


@pytest.fixture
def conversations(tmp_path: Path) -> Path:
    path = tmp_path / "day.parquet"
    pq.write_table(pa.table({"conversation_id": [bytes(16)], "to_service_name": ["//a"]}), path)
    return path


def texts(rows: DataFrame) -> list[str]:
    names = ("moment", "early", "without_zone", "late", "nested", "named")
    return [row[0] for row in rows.orderBy("conversation_id").select(sf.to_json(sf.struct(*names))).collect()]


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS"])
def test_timestamps_of_spark_are_passed_through(
    spark: SparkSession, tmp_path: Path, catalog: Catalog, kind: str
) -> None:
    before = spark.conf.get("spark.sql.parquet.outputTimestampType")
    given = spark.range(3).selectExpr(
        "unhex(lpad(hex(id), 32, '0')) as conversation_id", "'//a' as to_service_name", MOMENTS
    )
    given = given.select("conversation_id", "to_service_name", "every.*")
    spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
    try:
        given.write.parquet(str(tmp_path / "conversations"))
        own = ("true as is_initiator", "0L as message_sequence_number", "0 as fragment_number", "1 as fragment_count")
        fragments = given.selectExpr("*", *own, "cast('a body' as binary) as message_body")
        fragments.write.parquet(str(tmp_path / "fragments"))
    finally:
        spark.conf.set("spark.sql.parquet.outputTimestampType", str(before))
    ssbroker.spark.route_files(spark, tmp_path / "conversations", tmp_path / "routed", catalog)
    ssbroker.spark.reassemble_files(spark, tmp_path / "fragments", tmp_path / "whole")
    for found in ("routed", "whole/messages"):
        rows = spark.read.parquet(str(tmp_path / found))
        assert {name: rows.schema[name].dataType for name in ("moment", "without_zone", "late")} == {
            name: given.schema[name].dataType for name in ("moment", "without_zone", "late")
        }
        assert texts(rows) == texts(given)


def test_relative_paths_are_resolved_on_the_driver(
    spark: SparkSession, conversations: Path, tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the JVM and the workers keep their directory
    assert ssbroker.spark.route_files(spark, conversations.name, "routed", catalog).rows == 1
    assert (tmp_path / "routed" / "_SUCCESS").exists()


@pytest.mark.parametrize("uri", ["s3://bucket/day", "file:///data/day", "hdfs://name:8020/day", "dbfs:/day"])
def test_uris_are_refused_and_create_no_folder(
    conversations: Path, tmp_path: Path, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.chdir(tmp_path)
    session: SparkSession = None  # type: ignore[assignment] # not used: the paths are checked first
    with pytest.raises(InputError, match=f"source: '{uri}' is a URI"):
        ssbroker.spark.route_files(session, uri, "routed", catalog)
    with pytest.raises(InputError, match=f"target: '{uri}' is a URI"):
        ssbroker.spark.route_files(session, conversations, uri, catalog)
    with pytest.raises(InputError, match=f"source: '{uri}' is a URI"):
        ssbroker.spark.reassemble_files(session, uri, "whole")
    assert list(tmp_path.iterdir()) == [conversations]


def test_linked_folders_are_searched_once(conversations: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    conversations.rename(elsewhere / "a.parquet")
    source = tmp_path / "source"
    source.mkdir()
    (source / "linked").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(source)
    assert list_files(source) == [source / "linked" / "a.parquet"]


def test_duplicate_columns_are_refused(conversations: Path, tmp_path: Path, catalog: Catalog) -> None:
    table = pq.read_table(conversations)
    pq.write_table(table.append_column("to_service_name", pa.array(["//b"])), conversations)
    session: SparkSession = None  # type: ignore[assignment] # not used: the columns are checked first
    with pytest.raises(SchemaError, match="to_service_name: expected one column with this name, got 2"):
        ssbroker.spark.route_files(session, conversations, tmp_path / "routed", catalog)


def test_files_that_differ_in_nullability_are_refused(conversations: Path, tmp_path: Path) -> None:
    fields: list[Any] = [
        pa.field("conversation_id", pa.binary(), nullable=False),
        pa.field("to_service_name", pa.string()),
    ]
    other = tmp_path / "night.parquet"
    pq.write_table(pq.read_table(conversations).cast(pa.schema(fields)), other)
    with pytest.raises(SchemaError, match="column 'conversation_id' has type binary not null, but binary in "):
        plan_splits([conversations, other], split_bytes=1)


def test_views_are_read_as_large_types(tmp_path: Path) -> None:
    """Arrow cannot select rows of views, which partitions and buckets need."""
    columns: dict[str, Any] = {
        "conversation_id": pa.array([bytes(16), bytes(16), None]).cast(pa.binary_view()),
        "to_service_name": pa.array(["//a", "//b", "//a"]).cast(pa.string_view()),
        "nested": pa.array([["x"], None, ["y", None]]).cast(pa.list_(pa.string_view())),
        "outcome": ["LOCAL", "REMOTE", "LOCAL"],
    }
    table = pa.table(columns)
    try:
        pq.write_table(table, tmp_path / "views.parquet")
    except pa.ArrowNotImplementedError:
        pytest.skip("this version of pyarrow cannot write views to Parquet")
    schema, splits = plan_splits([tmp_path / "views.parquet"], split_bytes=1)
    (batch,) = read_split(splits[0], max_rows=10, dictionary_columns=["to_service_name"])
    task_files = TaskFiles(tmp_path, "part", batch.schema, partition_by="outcome", compression="snappy")
    task_files.write(batch)
    task_files.close()
    assert batch.to_pylist() == table.to_pylist()
    assert pa.types.is_dictionary(batch.schema.field("to_service_name").type)
    for name in ("conversation_id", "nested"):
        assert schema.field(name).type == batch.schema.field(name).type
        assert "view" not in str(schema.field(name).type)


@pytest.mark.parametrize("bodies", [1, 80])
def test_wide_rows_are_read_in_small_batches(tmp_path: Path, bodies: int) -> None:
    """An equal body in every row is stored only once."""
    found = [os.urandom(1 << 20) for _ in range(bodies)]
    body = pa.array([found[place % bodies] for place in range(80)], pa.binary())
    wide = tmp_path / "wide.parquet"
    pq.write_table(pa.table({"message_body": body}), wide, row_group_size=80)
    _, splits = plan_splits([wide], split_bytes=1)
    sizes = [batch.num_rows for split in splits for batch in read_split(split, max_rows=1 << 16)]
    assert sum(sizes) == 80
    assert max(sizes) <= 64


@pytest.mark.parametrize(
    ("mark", "name"),
    [("_delta_log/0.json", "Delta"), ("metadata/v1.metadata.json", "Iceberg")],
    ids=["Delta", "Iceberg"],
)
def test_tables_with_removed_files_are_refused(tmp_path: Path, mark: str, name: str) -> None:
    (tmp_path / mark).parent.mkdir()
    (tmp_path / mark).touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.parquet").touch()
    for source in (tmp_path, tmp_path / "data", tmp_path / "data" / "a.parquet"):
        with pytest.raises(InputError, match=f"this folder is a {name} table, .*; read it with a reader for {name}"):
            list_files(source)


def test_files_in_hive_partitions_are_refused(tmp_path: Path) -> None:
    """The files do not contain the column that the folder name specifies; without this column, rows would be routed wrongly."""
    folder = tmp_path / "in" / "day=2026-11-01" / "database=Sales"
    folder.mkdir(parents=True)
    (folder / "a.parquet").touch()
    for source, column in ((tmp_path / "in", "day"), (folder, "day"), ([folder / "a.parquet"], "day")):
        with pytest.raises(
            InputError, match=rf"a\.parquet: is in a Hive partition, and does not contain the partition column {column}"
        ):
            list_files(source)


def test_folders_above_a_relative_path_are_no_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stage=test").mkdir()
    (tmp_path / "stage=test" / "a.parquet").touch()
    monkeypatch.chdir(tmp_path / "stage=test")
    assert [file.name for file in list_files("a.parquet")] == ["a.parquet"]


def test_a_dataframe_is_not_a_source(spark: SparkSession) -> None:
    frame: Any = spark.range(1)
    with pytest.raises(
        InputError, match=r"source: expected a path, got DataFrame; for DataFrames, use ssbroker\.spark\.route"
    ):
        list_files(frame)
