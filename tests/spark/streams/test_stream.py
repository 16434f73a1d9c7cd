"""Streams on Spark: files arrive, queries stop and resume, and the rows are those of the batch functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import ssbroker.spark
from ssbroker import Catalog
from ssbroker._compat import is_older
from ssbroker.exceptions import InputError, OptionError, SchemaError
from ssbroker.schemas import ACKNOWLEDGEMENTS, DECISIONS, MESSAGES, PENDING, REJECTED, ROUTES
from ssbroker.spark.streams.options import PROVIDER, ROCKSDB
from ssbroker.spark.streams.stream_rows import EXPIRED
from tests.oracle.traffic import Fragment
from tests.rules.fragments import first_of_two, second_of_two, single
from tests.spark.frames import Configure
from tests.spark.streams.test_stream_catalog import replace_file, script
from tests.spark.traffic import collect_rows, expected_rows, fragment_table, random_fragments, sorted_rows
from tests.worlds.fragment_tables import fragment_batch

WAIT_S = 600
EMPTY = Catalog(ROUTES.empty_table())


@pytest.fixture(autouse=True)
def _rocksdb(configure: Configure) -> None:
    configure(PROVIDER, ROCKSDB)
    configure("spark.sql.streaming.noDataMicroBatches.enabled", "false")


class ArrivingFiles:
    """A folder in which files of fragments arrive, one per micro-batch, and queries that read it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.files = folder / "in"
        self.files.mkdir()
        self.checkpoint = str(folder / "checkpoint")
        self._count = 0

    def put(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Adds a complete file."""
        table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
        fields = [field.with_type(pa.binary()) if field.type == pa.binary(16) else field for field in table.schema]
        beside = self.folder / "beside.parquet"
        pq.write_table(table.cast(pa.schema(fields)), beside)
        beside.rename(self.files / f"{self._count:04}.parquet")
        self._count += 1

    def stream(self) -> DataFrame:
        schema = self.spark.read.parquet(str(self.files)).schema
        return self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(self.files))

    def run(self, rows: DataFrame, write: Callable[[DataFrame, int], None]) -> StreamingQuery:
        """Runs a query until all files are processed."""
        query = (
            rows.writeStream.foreachBatch(write)
            .option("checkpointLocation", self.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)
        return query


@pytest.fixture
def arriving(spark: SparkSession, tmp_path: Path) -> Iterator[ArrivingFiles]:
    made = ArrivingFiles(spark, tmp_path)
    yield made
    for query in spark.streams.active:
        query.stop()


def test_a_stream_gives_the_rows_of_the_batch_function(arriving: ArrivingFiles, spark: SparkSession) -> None:
    """Three micro-batches in two runs of a query; all kinds in one pass; pending messages are shown."""
    table = fragment_table(random_fragments(21, count=60, theme="honest"))
    expected = expected_rows(table)
    found: dict[str, list[Any]] = {"messages": [], "rejected": []}
    acknowledged: list[Any] = []
    figures: list[Any] = []
    cuts = [0, table.num_rows // 3, table.num_rows // 2, table.num_rows]
    for first, last in pairwise(cuts):
        arriving.put(table.slice(first, last - first))
        if first == 0:
            continue
        landed = ssbroker.spark.reassemble_stream(
            arriving.stream(), buckets=4, acknowledgements=True, observe="figures"
        )
        kinds = landed.kinds

        def write(rows: DataFrame, _: int, kinds: ssbroker.spark.StreamKinds = kinds) -> None:
            rows.persist()
            found["messages"] += collect_rows(kinds.messages(rows))
            found["rejected"] += collect_rows(kinds.rejected(rows))
            acknowledged.extend(collect_rows(kinds.acknowledgements(rows)))
            rows.unpersist()

        query = arriving.run(landed.rows, write)
        figures += [progress.observedMetrics["figures"] for progress in query.recentProgress]
    assert sorted_rows(found["messages"]) == expected["messages"]
    assert sorted_rows(found["rejected"]) == expected["rejected"]
    assert acknowledged
    waiting = ssbroker.spark.stream_state(spark, arriving.checkpoint)
    assert collect_rows(waiting.select(*PENDING.names)) == expected["incomplete"]
    assert {row.waits_for for row in waiting.collect()} <= {"fragment", "message"}
    assert figures[-1]["buckets"] == 4
    assert figures[-1]["state_bytes"] > 0


@pytest.mark.rule("R18", "R62")
def test_delayed_messages_are_released_when_the_catalog_changes(
    arriving: ArrivingFiles, spark: SparkSession, tmp_path: Path
) -> None:
    """By a timer, without new input, in a running query; the messages are emitted once and in order."""
    path = tmp_path / "catalog.sql"
    path.write_text(script("//A"))
    arriving.put(fragments_to("//B", single(0, body=b"zero"), single(1, body=b"one"), first_of_two(2)))
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
    landed = ssbroker.spark.stream(arriving.stream(), path, buckets=2)
    query = (
        landed.messages.writeStream.format("memory")
        .queryName("gone")
        .option("checkpointLocation", arriving.checkpoint)
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    wait_until(query, lambda: bool(query.lastProgress and query.lastProgress.batchId >= 0))
    assert spark.table("gone").count() == 0
    replace_file(path, script("//B"))
    wait_until(query, lambda: spark.table("gone").count() == 2)
    rows = spark.table("gone").collect()
    assert [bytes(row.message_body) for row in rows] == [b"zero", b"one"]
    assert {(row.outcome, row.next_hop_address) for row in rows} == {("REMOTE", "TCP://far:4022")}
    query.stop()


@pytest.mark.rule("R18")
def test_conversations_are_routed_as_they_arrive(arriving: ArrivingFiles, spark: SparkSession) -> None:
    """Those with a route are emitted with the columns of `route`; a run with another catalog releases the others."""
    conversations = pa.table(
        {
            "conversation_id": pa.array([bytes([number]) * 16 for number in range(6)], pa.binary()),
            "to_service_name": ["//A", "//B"] * 3,
            "a dotted.name": list(range(6)),
        }
    )
    arriving.put(conversations)
    routed: list[Any] = []
    run_routing(arriving, script_catalog("//A"), routed)
    batch = ssbroker.spark.route(spark.read.parquet(str(arriving.files)), script_catalog("//A"))
    assert sorted_rows(routed) == collect_rows(batch.where("outcome = 'REMOTE'"))
    waiting = ssbroker.spark.stream_state(spark, arriving.checkpoint).collect()
    assert sorted((row.waits_for, row.to_service_name, row.tries) for row in waiting) == [("route", "//B", 1)] * 3
    arriving.put(conversations.slice(0, 1))
    gone: list[Any] = []
    run_routing(arriving, script_catalog("//A", "//B"), gone)
    assert len(gone) == 4


@pytest.mark.skipif(is_older(pyspark.__version__, "4.1"), reason="needs PySpark 4.1, which has two operators")
@pytest.mark.parametrize(
    ("function", "is_of_spark_4_0", "emitted"),
    [
        (lambda rows, **given: ssbroker.spark.stream(rows, script_catalog("//A"), **given).messages, True, 1),
        (lambda rows, **given: ssbroker.spark.reassemble_stream(rows, **given).messages, True, 1),
        (lambda rows, **given: ssbroker.spark.route_stream(rows, script_catalog("//A"), **given), False, 2),
    ],
    ids=["stream", "reassemble_stream", "route_stream"],
)
def test_a_checkpoint_continues_only_with_its_operator(
    arriving: ArrivingFiles, function: Callable[..., DataFrame], *, is_of_spark_4_0: bool, emitted: int
) -> None:
    """Spark refuses the other operator and changes nothing. `make compat ARGS="--tests streams"` tests checkpoints that Spark 4.0 wrote."""
    found: list[Any] = []

    def run(*, spark_4_0_checkpoint: bool) -> None:
        rows = function(arriving.stream(), buckets=1, spark_4_0_checkpoint=spark_4_0_checkpoint)
        arriving.run(rows, lambda rows, _: found.extend(collect_rows(rows)))

    arriving.put(fragments_to("//A", first_of_two(0)))
    run(spark_4_0_checkpoint=is_of_spark_4_0)
    arriving.put(fragments_to("//A", second_of_two(first_of_two(0))))
    with pytest.raises(StreamingQueryException, match="STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"):
        run(spark_4_0_checkpoint=not is_of_spark_4_0)
    run(spark_4_0_checkpoint=is_of_spark_4_0)
    assert len(found) == emitted


def run_routing(arriving: ArrivingFiles, catalog: Catalog, into: list[Any]) -> None:
    routed = ssbroker.spark.route_stream(arriving.stream(), catalog, buckets=1)
    assert routed.columns[:3] == ["conversation_id", "to_service_name", "a dotted.name"]
    arriving.run(routed, lambda rows, _: into.extend(collect_rows(rows)))


def script_catalog(*services: str) -> Catalog:
    count = len(services)
    return Catalog(
        pa.table(
            {
                "name": pa.array(list(services), pa.string()),
                "remote_service_name": pa.array(list(services), pa.string()),
                "broker_instance": pa.nulls(count, pa.string()),
                "lifetime": pa.nulls(count, pa.timestamp("us", tz="UTC")),
                "address": pa.array(["TCP://far:4022"] * count, pa.string()),
                "mirror_address": pa.nulls(count, pa.string()),
            }
        )
    )


def fragments_to(service: str, *fragments: Fragment) -> pa.RecordBatch:
    batch = fragment_batch(fragments)
    return batch.append_column("to_service_name", pa.array([service] * batch.num_rows))


def wait_until(query: StreamingQuery, is_met: Callable[[], bool]) -> None:
    """Waits for a condition; fails with the query's error."""
    for _ in range(WAIT_S * 5):
        if is_met():
            return
        error = query.exception()
        assert error is None, error
        query.awaitTermination(0.2)  # type: ignore[arg-type]
    raise AssertionError(query.status)


def test_each_kind_has_the_columns_of_its_schema(arriving: ArrivingFiles) -> None:
    """Columns that are never null in a kind are declared so, although they are null in rows of other kinds."""
    arriving.put(fragments_to("//A", first_of_two(0)))
    landed = ssbroker.spark.stream(arriving.stream(), script_catalog("//A"), acknowledgements=True)
    for rows, schema in (
        (landed.rejected, REJECTED),
        (landed.acknowledgements, ACKNOWLEDGEMENTS),
        (landed.expired, EXPIRED),
    ):
        assert [(field.name, field.nullable) for field in rows.schema] == [
            (field.name, field.nullable) for field in schema
        ]
    assert landed.messages.columns == [*MESSAGES.names, "to_service_name", *DECISIONS.names]
    assert [field.name for field in landed.messages.schema if not field.nullable] == [
        field.name for field in MESSAGES if not field.nullable
    ]


def test_batch_dataframes_are_refused_with_the_function_to_use(spark: SparkSession) -> None:
    frame = spark.createDataFrame([], "conversation_id binary")
    for function, names in (
        (
            lambda: ssbroker.spark.stream(frame, EMPTY),
            "spark.stream requires a streaming.* use ssbroker.spark.pipeline",
        ),
        (
            lambda: ssbroker.spark.reassemble_stream(frame),
            "reassemble_stream requires a streaming.* use ssbroker.spark.reassemble",
        ),
        (
            lambda: ssbroker.spark.route_stream(frame, EMPTY),
            "route_stream requires a streaming.* use ssbroker.spark.route",
        ),
    ):
        with pytest.raises(SchemaError, match=names):
            function()


def test_invalid_arguments_are_reported_before_a_query_starts(
    arriving: ArrivingFiles, configure: Configure, tmp_path: Path
) -> None:
    """Columns, options, a path without a catalog, and an unsupported state store."""
    arriving.put(fragments_to("//A", first_of_two(0)))
    stream = arriving.stream()
    with pytest.raises(SchemaError, match="fragment_count"):
        ssbroker.spark.reassemble_stream(stream.drop("fragment_count"))
    with pytest.raises(
        SchemaError, match="outcome: routing adds a column with this name; rename or drop the existing column"
    ):
        ssbroker.spark.stream(stream.withColumnRenamed("to_service_name", "outcome"), EMPTY)
    with pytest.raises(SchemaError, match="to_service_name"):
        ssbroker.spark.stream(stream.drop("to_service_name"), EMPTY)
    round_robin: Any = "round_robin"
    with pytest.raises(OptionError, match="round_robin"):
        ssbroker.spark.stream(stream, EMPTY, tie_break=round_robin)
    with pytest.raises(OptionError, match="max_delayed_bytes"):
        ssbroker.spark.stream(stream, EMPTY, max_delayed_bytes=-1)
    with pytest.raises(OptionError, match="catalog_patience"):
        ssbroker.spark.stream(stream, EMPTY, catalog_patience=timedelta(seconds=-1))
    with pytest.raises(OptionError, match="observe"):
        ssbroker.spark.stream(stream, EMPTY, observe="")
    wrong: Any = 1
    with pytest.raises(OptionError, match="spark_4_0_checkpoint: expected True or False"):
        ssbroker.spark.reassemble_stream(stream, spark_4_0_checkpoint=wrong)
    with pytest.raises(InputError, match="no such file or folder"):
        ssbroker.spark.stream(stream, tmp_path / "missing.sql")
    with pytest.raises(OptionError, match="acknowledgements=True"):
        _ = ssbroker.spark.reassemble_stream(stream).acknowledgements
    configure(PROVIDER, "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider")
    with pytest.raises(OptionError, match="requires the RocksDB state store: set"):
        ssbroker.spark.reassemble_stream(stream)
