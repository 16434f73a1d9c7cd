"""Reassembly of a stream: ssbroker and alternatives, from files to files, two cores, interleaved.

Each lane is a streaming query over the same files, with a few files per batch; the first batch warms up and does not count. The lower bound
passes the fragments through Python and writes them, without state. The messages of all lanes are compared with those of the batch function
before times are reported. A wrong result fails; a slow one does not, because the machine may be busy.
"""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pytest_benchmark.fixture import BenchmarkFixture

import ssbroker.spark
from benches.fragments import Shape, traffic
from benches.race import ReplayClock, Times
from benches.settings import SIZE, report
from benches.spark_reassembly_rivals import answer
from benches.spark_rivals import untouched
from benches.spark_session import state_bytes
from benches.spark_stream_rivals import by_batches, by_direction

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

CLOCK: Final = ReplayClock()
pytestmark = [pytest.mark.benchmark(timer=CLOCK), pytest.mark.timeout(3600)]

FLOOR: Final = "identity mapInArrow, no state"
OURS: Final = "ssbroker.spark.reassemble_stream"
BY_BATCHES: Final = "foreachBatch, state in Parquet"
BY_DIRECTION: Final = "transformWithState, one key per direction"
LANES: Final = (FLOOR, OURS, BY_BATCHES, BY_DIRECTION)
PARTS: Final = 4
PART_BYTES: Final = 192
FILES_PER_BATCH: Final = 4
CONVERSATIONS_PER_BUCKET: Final = 1000
"""As the documentation on scaling recommends if every conversation has pending messages."""
MESSAGES: Final = ("conversation_id", "is_initiator", "message_sequence_number", "message_body", "message_signature")
_ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    # Otherwise a query with timers never finishes with `availableNow`.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
    # With any other value Spark measures the size of the batch before each row.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}

Lane = Callable[[DataFrame, Path, Path], "DataStreamWriter"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("streams")


@pytest.mark.parametrize("name", LANES)
@pytest.mark.parametrize("conversations", SIZE.streamed_conversations)
def test_stream(benchmark: BenchmarkFixture, spark: SparkSession, folder: Path, conversations: int, name: str) -> None:
    benchmark.group = f"Spark, streams, {conversations:,} conversations"
    CLOCK.replay(benchmark, _raced(spark, folder, conversations)[name])


@functools.cache
def _raced(spark: SparkSession, folder: Path, conversations: int) -> dict[str, Times]:
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    fragments = SIZE.streamed * SIZE.streamed_batches
    each = max(1, fragments // PARTS // (2 * conversations))
    shape = Shape(
        messages=2 * conversations * each,
        parts=PARTS,
        part_bytes=PART_BYTES,
        conversations=conversations,
        is_shuffled=False,
    )
    source = folder / f"source-{conversations}"
    _written(traffic(shape).fragments, source)
    expected = answer(ssbroker.spark.reassemble(spark.read.parquet(str(source))).messages)
    assert expected[0] == shape.messages
    laps: dict[str, list[float]] = {name: [] for name in LANES}
    state, buckets = 0, max(16, conversations // CONVERSATIONS_PER_BUCKET)
    lanes: dict[str, Lane] = {
        FLOOR: lambda given, _target, _checkpoint: untouched(given).writeStream,
        OURS: lambda given, _target, _checkpoint: (
            ssbroker.spark.reassemble_stream(given, buckets=buckets).messages.select(*MESSAGES).writeStream
        ),
        BY_BATCHES: by_batches,
        BY_DIRECTION: lambda given, _target, _checkpoint: by_direction(given).writeStream,
    }
    for number in range(SIZE.streamed_rounds):
        turn = number % len(LANES)
        for name in LANES[turn:] + LANES[:turn]:
            target, checkpoint = folder / "target", folder / "checkpoint"
            laps[name] += _seconds_for_each(spark, lanes[name], source, target, checkpoint)
            if name != FLOOR:
                assert answer(spark.read.parquet(str(target))) == expected, name
            if name == OURS:
                state = max(state, state_bytes(spark, checkpoint))
            for made in folder.glob("target*"), folder.glob("checkpoint*"):
                for path in made:
                    shutil.rmtree(path)
    return _report_times({name: Times(wall=tuple(times)) for name, times in laps.items()}, shape, state)


def _written(fragments: pa.Table, source: Path) -> None:
    """Writes the files of each batch; their modification times are ascending."""
    fields = [field.with_type(pa.binary()) if field.type == pa.binary(16) else field for field in fragments.schema]
    plain = fragments.cast(pa.schema(fields))
    source.mkdir()
    files = SIZE.streamed_batches * FILES_PER_BATCH
    step = -(-plain.num_rows // files)
    for number in range(files):
        path = source / f"{number:04d}.parquet"
        pq.write_table(plain.slice(number * step, step), path, compression="none")
        os.utime(path, (number, number))


def _seconds_for_each(spark: SparkSession, lane: Lane, source: Path, target: Path, checkpoint: Path) -> list[float]:
    """Runs a query over all files; returns the seconds per fragment for each batch but the first."""
    stream = spark.readStream.schema(spark.read.parquet(str(source)).schema)
    given = stream.option("maxFilesPerTrigger", FILES_PER_BATCH).parquet(str(source))
    writer = lane(given, target, checkpoint).option("checkpointLocation", str(checkpoint))
    if lane is not by_batches:
        writer = writer.format("parquet").option("path", str(target))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [(each.numInputRows, each.durationMs["triggerExecution"]) for each in query.recentProgress]
    counted = [milliseconds / 1000 / rows for rows, milliseconds in batches if rows]
    assert len(counted) == SIZE.streamed_batches
    return counted[1:]


def _report_times(times: dict[str, Times], shape: Shape, state_bytes: int) -> dict[str, Times]:
    heading = (
        f"Spark, streams: {SIZE.streamed:,} fragments of {PART_BYTES} B per batch, {SIZE.streamed_batches} batches, "
        f"{shape.conversations:,} conversations, two cores"
    )
    for name in sorted(times, key=lambda name: times[name].median):
        ratio = times[name].median / times[OURS].median
        report(heading, f"{name:<44} {1 / times[name].median:10,.0f} fragments/s, ssbroker is {ratio:5.2f} x")
    report(
        heading, f"the state of ssbroker has {state_bytes / shape.conversations:,.0f} bytes per conversation at the end"
    )
    return times
