"""The data source `ssbroker` in Spark: batch and streaming reads and writes."""

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
from tests.spark.source.instances import TO_ORDERS, bodies, create_instance, dialogs, send, view

FORMAT = "ssbroker"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return create_instance(tmp_path / "shop")


def read(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    return spark.read.format(FORMAT).options(**options).load(str(folder))


def to_dicts(rows: list[Any]) -> list[dict[str, Any]]:
    """Returns Spark rows as dictionaries, with `bytes` in place of `bytearray`."""
    return [
        {name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.asDict().items()}
        for row in rows
    ]


def test_views_and_queues_are_read_as_tables(spark: SparkSession, folder: Path) -> None:
    send(folder, b"one", b"", b"three")
    send(folder, b"for elsewhere", to_service="//Far")
    assert to_dicts(read(spark, folder, queue="dbo.Orders").collect()) == view(folder, "Orders")
    waiting = read(spark, folder, view="sys.transmission_queue").drop("enqueue_time")
    assert to_dicts(waiting.collect()) == [
        {name: value for name, value in row.items() if name != "enqueue_time"}
        for row in view(folder, "sys.transmission_queue")
    ]
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW routes USING ssbroker OPTIONS (path '{folder}', view 'sys.routes')")
    assert spark.sql("SELECT name, address FROM routes WHERE database = 'Sales'").collect() == [
        ("AutoCreatedLocal", "LOCAL")
    ]
    chosen = spark.read.format(FORMAT).schema("message_body binary, priority smallint").options(queue="Orders")
    assert to_dicts(chosen.load(str(folder)).limit(1).collect()) == [{"message_body": b"one", "priority": 5}]


def test_timestamps_do_not_depend_on_the_meaning_of_the_type_in_sql(
    spark: SparkSession, folder: Path, configure: Configure
) -> None:
    send(folder, b"one")
    configure("spark.sql.timestampType", "TIMESTAMP_NTZ")
    found = read(spark, folder, view="sys.conversation_endpoints", columns="lifetime")
    assert found.dtypes == [("lifetime", "timestamp")]
    assert found.where("lifetime IS NOT NULL").count() == 2


def test_filters_are_pushed_down_if_enabled(spark: SparkSession, folder: Path, configure: Configure) -> None:
    send(folder, *(b"%d" % number for number in range(6)))
    configure("spark.sql.python.filterPushdown.enabled", "true")
    filtered = read(spark, folder, queue="Orders", pushdown="true", columns="queuing_order,message_body").where(
        "queuing_order > 2 AND message_body <> X'34' AND queuing_order % 2 = 1"
    )
    assert to_dicts(filtered.collect()) == [{"queuing_order": 3, "message_body": b"2"}]
    plan = filtered._jdf.queryExecution().executedPlan().toString()
    assert "queuing_order" not in "".join(line for line in plan.splitlines() if "Filter" in line and ">" in line)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": "No"}, "no database has the queue 'No'"),
        ({"view": "sys.routes", "queu": "Orders"}, "unknown option queu"),
        ({"queue": "Orders", "path": "/nowhere"}, "/nowhere: is not an instance folder"),
    ],
)
def test_invalid_reads_are_reported(spark: SparkSession, folder: Path, options: dict[str, str], message: str) -> None:
    path = options.pop("path", str(folder))
    with pytest.raises(PySparkException, match=message):
        read(spark, Path(path), **options).collect()


def test_tables_in_sparks_catalog_are_refused_with_an_alternative(spark: SparkSession, folder: Path) -> None:
    """Without columns, Spark turns the path into an option `location`; with columns, it creates a table that has no path when it is read."""
    of_routes = f"USING ssbroker OPTIONS (path '{folder}', view 'sys.routes')"
    message = r"an instance cannot be a table of Spark's catalog.*; use CREATE TEMPORARY VIEW"
    with pytest.raises(PySparkException, match=f"CREATE TABLE: {message}"):
        spark.sql(f"CREATE TABLE instance_routes {of_routes}")
    spark.sql(f"CREATE TABLE instance_routes (name string) {of_routes}")
    try:
        with pytest.raises(PySparkException, match=f"option path is required: .*{message}"):
            spark.sql("SELECT name FROM instance_routes").collect()
    finally:
        spark.sql("DROP TABLE instance_routes")


def test_rows_of_a_dataframe_become_messages(spark: SparkSession, folder: Path) -> None:
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


def test_a_queue_is_copied_as_a_stream_without_receiving(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
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


def test_a_stream_is_sent_once_despite_failures_and_repeated_commits(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    source, checkpoint, repaired = tmp_path / "source", tmp_path / "checkpoint", tmp_path / "mended"
    source.mkdir()

    def fails_until_repaired(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if b"bad" in batch.column(0).to_pylist() and not repaired.exists():
                raise ValueError("the task fails")
            yield batch

    def add(name: str, *sent: bytes) -> None:
        positions = pa.array(range(len(sent)), pa.int64())
        pq.write_table(pa.table({"message_body": pa.array(sent, pa.binary()), "position": positions}), source / name)

    def run() -> None:
        schema = "message_body binary, position bigint"
        rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(source))
        writer = rows.mapInArrow(fails_until_repaired, schema).writeStream.format(FORMAT).options(**TO_ORDERS)
        writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        writer.start(str(folder)).awaitTermination()

    add("1.parquet", b"1", b"2")
    run()
    add("2.parquet", b"3", b"bad", b"5")
    with pytest.raises(StreamingQueryException, match="the task fails"):
        run()
    assert bodies(folder) == [b"1", b"2"]
    repaired.touch()
    run()
    assert dialogs(folder) == [[b"1", b"2", b"3", b"bad", b"5"]]
    # As if the driver had been killed between our commit and Spark's: the batch is repeated.
    for commit in (checkpoint / "commits").glob("*1*"):
        commit.unlink()
    add("3.parquet", b"6")
    run()
    assert dialogs(folder) == [[b"1", b"2", b"3", b"bad", b"5", b"6"]]
    assert not [path for path in (folder / ".spark-staging").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"view": "sys.routes"}, "cannot be read as a stream"), ({"queue": "Orders"}, "option database is required")],
)
def test_invalid_streaming_reads_are_reported(
    spark: SparkSession, folder: Path, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    stream = spark.readStream.format(FORMAT).options(**options).load(str(folder))
    with pytest.raises(StreamingQueryException, match=message) as caught:
        stream.writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "checkpoint")
        ).start().awaitTermination()
    assert "UnboundLocalError" not in str(caught.value)


def test_an_open_instance_can_be_read(spark: SparkSession, folder: Path) -> None:
    with ssbroker.Instance.open(folder) as instance, instance.database("Sales").transaction() as t:
        t.send(t.begin_dialog("//Shop", "//Orders"), b"not committed yet")
        assert read(spark, folder, queue="Orders").count() == 0
    assert read(spark, folder, queue="Orders").count() == 1
