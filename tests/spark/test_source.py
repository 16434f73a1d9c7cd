"""The format `ssbroker` in Spark: found by its name, read, followed and written to (U21 to U25)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import ssbroker
from tests.spark.frames import Configure
from tests.spark.instances import TO_ORDERS, bodies, dialogs, made, send, view

FORMAT = "ssbroker"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path / "shop")


def read(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    return spark.read.format(FORMAT).options(**options).load(str(folder))


def plain(rows: list[Any]) -> list[dict[str, Any]]:
    """Rows of Spark as dictionaries, with `bytes` for what it has as `bytearray`."""
    return [
        {name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.asDict().items()}
        for row in rows
    ]


def test_views_and_queues_are_tables_of_spark_by_name_in_sql_too(spark: SparkSession, folder: Path) -> None:
    send(folder, b"one", b"", b"three")
    send(folder, b"for elsewhere", to_service="//Far")
    assert plain(read(spark, folder, queue="dbo.Orders").collect()) == view(folder, "Orders")
    waiting = read(spark, folder, view="sys.transmission_queue").drop("enqueue_time")
    assert plain(waiting.collect()) == [
        {name: value for name, value in row.items() if name != "enqueue_time"}
        for row in view(folder, "sys.transmission_queue")
    ]
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW routes USING ssbroker OPTIONS (path '{folder}', view 'sys.routes')")
    assert spark.sql("SELECT name, address FROM routes WHERE database = 'Sales'").collect() == [
        ("AutoCreatedLocal", "LOCAL")
    ]
    chosen = spark.read.format(FORMAT).schema("message_body binary, priority smallint").options(queue="Orders")
    assert plain(chosen.load(str(folder)).limit(1).collect()) == [{"message_body": b"one", "priority": 5}]


def test_a_filter_is_answered_by_the_source_where_that_is_asked_for(
    spark: SparkSession, folder: Path, configure: Configure
) -> None:
    """U25."""
    send(folder, *(b"%d" % number for number in range(6)))
    configure("spark.sql.python.filterPushdown.enabled", "true")
    filtered = read(spark, folder, queue="Orders", pushdown="true", columns="queuing_order,message_body").where(
        "queuing_order > 2 AND message_body <> X'34' AND queuing_order % 2 = 1"
    )
    assert plain(filtered.collect()) == [{"queuing_order": 3, "message_body": b"2"}]
    plan = filtered._jdf.queryExecution().executedPlan().toString()
    assert "queuing_order" not in "".join(line for line in plan.splitlines() if "Filter" in line and ">" in line)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": "No"}, "no database has a queue 'No'"),
        ({"view": "sys.routes", "queu": "Orders"}, "unknown option queu"),
        ({"queue": "Orders", "path": "/nowhere"}, "/nowhere: is not the folder of an instance"),
    ],
)
def test_what_cannot_be_read_is_told(spark: SparkSession, folder: Path, options: dict[str, str], message: str) -> None:
    path = options.pop("path", str(folder))
    with pytest.raises(PySparkException, match=message):
        read(spark, Path(path), **options).collect()


def test_a_table_of_sparks_catalog_is_refused_with_what_there_is_for_it(spark: SparkSession, folder: Path) -> None:
    """It ended in an option location that nobody had given; with columns it was made, and had no path when it was read."""
    of_routes = f"USING ssbroker OPTIONS (path '{folder}', view 'sys.routes')"
    told = r"an instance cannot be a table of Spark's catalog.*; use CREATE TEMPORARY VIEW"
    with pytest.raises(PySparkException, match=f"CREATE TABLE: {told}"):
        spark.sql(f"CREATE TABLE instance_routes {of_routes}")
    spark.sql(f"CREATE TABLE instance_routes (name string) {of_routes}")
    try:
        with pytest.raises(PySparkException, match=f"missing option path: .*{told}"):
            spark.sql("SELECT name FROM instance_routes").collect()
    finally:
        spark.sql("DROP TABLE instance_routes")


def test_rows_of_a_dataframe_become_messages(spark: SparkSession, folder: Path) -> None:
    """U23."""
    rows = [(b"%d" % number, str(number % 3), number) for number in range(30)]
    frame = spark.createDataFrame(rows, "message_body binary, dialog string, position int").repartition(3)
    writer = frame.write.format(FORMAT).options(**TO_ORDERS)
    writer.mode("append").save(str(folder))
    expected = [[b"%d" % number for number in range(rest, 30, 3)] for rest in range(3)]
    assert dialogs(folder) == sorted(expected)
    with pytest.raises(PySparkException, match=r"use mode\('append'\)"):
        writer.mode("overwrite").save(str(folder))
    with pytest.raises(PySparkException, match="//No"):
        writer.option("to_service", "//Shop").option("contract", "//No").mode("append").save(str(folder))
    assert len(bodies(folder)) == 30


def test_a_queue_streams_into_dialogs_and_nothing_is_taken(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    """U22."""
    send(folder, *(b"%d" % number for number in range(5)))
    stream = spark.readStream.format(FORMAT).options(queue="Orders", database="Sales", max_rows_per_batch="2")
    copies = stream.load(str(folder)).selectExpr("message_body", "queuing_order AS position").writeStream.format(FORMAT)
    copies = copies.options(database="Sales", from_service="//Orders", to_service="//Shop")
    copies = copies.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    for count in (5, 6):
        query = copies.start(str(folder))
        query.awaitTermination()
        assert [row["message_body"] for row in view(folder, "Replies")] == [b"%d" % number for number in range(count)]
        assert len(bodies(folder)) == count
        assert all(progress["numInputRows"] <= 2 for progress in query.recentProgress)
        send(folder, b"5")


def test_a_stream_is_sent_once_where_tasks_fail_and_commits_come_again(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    """U24."""
    source, checkpoint, mended = tmp_path / "source", tmp_path / "checkpoint", tmp_path / "mended"
    source.mkdir()

    def fails_until_mended(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if b"bad" in batch.column(0).to_pylist() and not mended.exists():
                raise ValueError("the task fails")
            yield batch

    def add(name: str, *sent: bytes) -> None:
        positions = pa.array(range(len(sent)), pa.int64())
        pq.write_table(pa.table({"message_body": pa.array(sent, pa.binary()), "position": positions}), source / name)

    def run() -> None:
        schema = "message_body binary, position bigint"
        rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
        writer = rows.mapInArrow(fails_until_mended, schema).writeStream.format(FORMAT).options(**TO_ORDERS)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        writer.start(str(folder)).awaitTermination()

    add("1.parquet", b"1", b"2")
    run()
    add("2.parquet", b"3", b"bad", b"5")
    with pytest.raises(StreamingQueryException, match="the task fails"):
        run()
    assert bodies(folder) == [b"1", b"2"]
    mended.touch()
    run()
    assert dialogs(folder) == [[b"1", b"2", b"3", b"bad", b"5"]]
    # As a driver leaves it that is killed between our commit and Spark's note of it: the batch comes again.
    for note in (checkpoint / "commits").glob("*1*"):
        note.unlink()
    add("3.parquet", b"6")
    run()
    assert dialogs(folder) == [[b"1", b"2", b"3", b"bad", b"5", b"6"]]
    assert not [path for path in (folder / ".spark-staging").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"view": "sys.routes"}, "cannot be read as a stream"), ({"queue": "Orders"}, "missing option database")],
)
def test_what_is_not_followed_is_told_at_the_end_of_what_spark_says(
    spark: SparkSession, folder: Path, tmp_path: Path, options: dict[str, str], said: str
) -> None:
    stream = spark.readStream.format(FORMAT).options(**options).load(str(folder))
    with pytest.raises(StreamingQueryException, match=said) as told:
        stream.writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        ).start().awaitTermination()
    assert "UnboundLocalError" not in str(told.value)


def test_an_instance_that_is_open_elsewhere_goes_on(spark: SparkSession, folder: Path) -> None:
    with ssbroker.Instance.open(folder) as instance, instance.database("Sales").transaction() as t:
        t.send(t.begin_dialog("//Shop", "//Orders"), b"not committed yet")
        assert read(spark, folder, queue="Orders").count() == 0
    assert read(spark, folder, queue="Orders").count() == 1
