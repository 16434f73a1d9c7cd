"""Large workloads: a dominant conversation, many conversations, large messages, many routes.

`python -m tests.spark.scale skew --size 1000000` (or `conversations`, `bytes`, `routes`) runs one of them at any size and prints its costs. Tests run
them at small sizes. Every answer is checked.
"""

from __future__ import annotations

import os
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import ssbroker
import ssbroker.spark
from benches import workload
from benches.spark_session import cpu_seconds, state_bytes, write
from tests.guards.repository import ROOT
from tests.spark import query_runs
from tests.spark.frames import frame_in_order

ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STREAMING: Final = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
}
HOT_SHARE: Final = 0.9
_OTHERS: Final = 100
_PARTS: Final = 4
_PART_BYTES: Final = 192
_DIRECTION: Final = ("conversation_id", "is_initiator")

Figures = dict[str, float]


def skew(spark: SparkSession, folder: Path, size: int) -> Figures:
    """Nine tenths of the fragments belong to one conversation; all kinds of reassembly must give the same messages."""
    table = skewed(size)
    _write(table, folder / "skew")
    given = spark.read.parquet(str(folder / "skew"))
    messages = size // _PARTS
    figures: Figures = {}
    with _measured(figures, "by conversation"):
        whole = ssbroker.spark.reassemble(given).messages
        expected = digest(whole)
    assert expected[0] == messages
    with _measured(figures, "by message"):
        assert digest(ssbroker.spark.reassemble(given, shard_by="message").messages) == expected
    with _measured(figures, "files"):
        ssbroker.spark.reassemble_files(spark, folder / "skew", folder / "whole")
    assert digest(spark.read.parquet(str(folder / "whole" / "messages"))) == expected
    with _measured(figures, "stream"):
        emitted = streamed(spark, folder, "skew")
    assert digest(emitted) == expected
    return figures


def conversations(spark: SparkSession, folder: Path, size: int) -> Figures:
    """A stream of many conversations, each with one complete message and the first of two fragments of another."""
    _write(shallow(size), folder / "conversations")
    figures: Figures = {}
    with _measured(figures, "stream"):
        emitted = streamed(spark, folder, "conversations", buckets=max(16, size // 3000))
    assert emitted.count() == size
    figures["state bytes"] = state_bytes(spark, folder / "conversations.state")
    figures["bytes for each conversation"] = figures["state bytes"] / size
    return figures


def large(spark: SparkSession, folder: Path, size: int) -> Figures:
    """One message of this size in fragments of 1 MiB, through files, a DataFrame and a stream; -1 if Spark fails."""
    body = np.random.default_rng(1).bytes(size)
    one = pa.table(
        {
            "conversation_id": pa.array([bytes(16)]),
            "is_initiator": [True],
            "message_sequence_number": pa.array([0], pa.int64()),
            "message_body": pa.array([body], pa.large_binary()),
        }
    )
    _write(ssbroker.fragment(one, max_fragment_bytes=1 << 20), folder / "large")
    limit = max(size, 1)
    given = spark.read.parquet(str(folder / "large"))
    figures: Figures = {}
    with _measured(figures, "files"):
        ssbroker.spark.reassemble_files(spark, folder / "large", folder / "whole", max_message_bytes=limit)
    found = pq.read_table(folder / "whole" / "messages")["message_body"]
    assert [len(each.as_buffer()) for chunk in found.chunks for each in chunk] == [size]
    methods: dict[str, Callable[[], DataFrame]] = {
        "DataFrame": lambda: ssbroker.spark.reassemble(given, max_message_bytes=limit).messages,
        "stream": lambda: streamed(spark, folder, "large", buckets=1, max_message_bytes=limit),
    }
    for name, run in methods.items():
        with _measured(figures, name):
            try:
                lengths = [row[0] for row in run().select(sf.length("message_body")).collect()]
            except Exception as error:  # noqa: BLE001 - any failure of Spark is a result
                print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]:.300}")
                lengths = []
        if lengths != [size]:
            figures[f"{name}, s"] = -1
    return figures


def routes(spark: SparkSession, folder: Path, size: int) -> Figures:
    """Conversations routed by this many routes; the decisions are those of the router."""
    figures: Figures = {}
    with _measured(figures, "catalog and router"):
        catalog = ssbroker.Catalog(workload.routes(size, database="Sales"))
        router = ssbroker.Router(catalog, tie_break="first")
    waiting = workload.conversations(20_000, size, database="Sales")
    given = frame_in_order(spark, waiting.append_column("row", pa.array(range(waiting.num_rows))))
    for name in ("first job, the catalog shipped and compiled", "second job"):
        with _measured(figures, name):
            rows = ssbroker.spark.route(given, catalog, now=workload.NOW, tie_break="first").collect()
    decided = router.route(waiting, now=workload.NOW)
    for name in ("outcome", "route_id", "next_hop_address", "reason"):
        assert [row[name] for row in sorted(rows, key=lambda row: row["row"])] == decided[name].to_pylist()
    return figures


CASES: Final[dict[str, Callable[[SparkSession, Path, int], Figures]]] = {
    "skew": skew,
    "conversations": conversations,
    "bytes": large,
    "routes": routes,
}


def skewed(fragments: int) -> pa.Table:
    """Returns fragments of which nine tenths belong to one direction of one conversation, in the order in which they were sent."""
    messages = fragments // _PARTS
    rng = np.random.default_rng(2)
    place = np.where(rng.random(messages) < HOT_SHARE, 0, rng.integers(1, _OTHERS, messages))
    number = np.zeros(messages, np.int64)
    for each in range(_OTHERS):
        number[place == each] = np.arange((place == each).sum())
    bodies = rng.bytes(messages * _PARTS * _PART_BYTES)
    return ssbroker.fragment(_table(place, number, bodies, _PARTS * _PART_BYTES), max_fragment_bytes=_PART_BYTES)


def shallow(count: int) -> pa.Table:
    """For each conversation, a complete message of one fragment, and then half of another."""
    rng = np.random.default_rng(3)
    place = np.repeat(np.arange(count), 2)
    messages = _table(place, np.tile([0, 1], count), rng.bytes(2 * count * _PART_BYTES), _PART_BYTES)
    whole = ssbroker.fragment(messages.filter(_is(messages, 0)), max_fragment_bytes=_PART_BYTES)
    halves = ssbroker.fragment(messages.filter(_is(messages, 1)), max_fragment_bytes=_PART_BYTES // 2)
    return pa.concat_tables([whole, halves.filter(pc.equal(halves["fragment_number"], pa.scalar(0, pa.int32())))])


def streamed(spark: SparkSession, folder: Path, name: str, *, buckets: int = 16, **options: Any) -> DataFrame:
    """Returns the messages that a stream emits for a folder of files."""
    source = str(folder / name)
    stream = spark.readStream.schema(spark.read.parquet(source).schema).option("maxFilesPerTrigger", 2)
    made = ssbroker.spark.reassemble_stream(stream.parquet(source), buckets=buckets, **options)
    target, checkpoint = str(folder / f"{name}.landed"), str(folder / f"{name}.state")
    query = made.messages.writeStream.format("parquet").option("path", target)
    query_runs.run_to_end(query.option("checkpointLocation", checkpoint))
    return spark.read.parquet(target)


def digest(messages: DataFrame) -> tuple[int, int]:
    """Returns the number of messages, and a digest that does not depend on their order."""
    total = sf.sum(sf.xxhash64(*_DIRECTION, "message_sequence_number", "message_body").cast("decimal(38,0)"))
    row = messages.agg(sf.count("*"), total).collect()[0]
    return int(row[0]), int(row[1] or 0)


def _table(place: Any, number: Any, bodies: bytes, length: int) -> pa.Table:
    ids = np.zeros((len(place), 2), ">u8")
    ids[:, 0], ids[:, 1] = place * 0x9E3779B1, place
    cells = pa.FixedSizeBinaryArray.from_buffers(pa.binary(length), len(place), [None, pa.py_buffer(bodies)])
    columns = {
        "conversation_id": pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), len(place), [None, pa.py_buffer(ids.tobytes())]
        ),
        "is_initiator": pa.repeat(pa.scalar(value=True), len(place)),
        "message_sequence_number": pa.array(number),
        "message_body": cells.cast(pa.large_binary()),
    }
    return pa.table(columns)


def _is(messages: pa.Table, number: int) -> Any:
    return pc.equal(messages["message_sequence_number"], pa.scalar(number, pa.int64()))


def _write(table: pa.Table, path: Path) -> None:
    write(table.cast(pa.schema([_small(field) for field in table.schema])), path)


def _small(field: pa.Field[Any]) -> pa.Field[Any]:
    return field.with_type(pa.binary()) if field.type == pa.large_binary() else field


@contextmanager
def _measured(figures: Figures, name: str) -> Iterator[None]:
    wall, cpu = time.perf_counter(), cpu_seconds()
    yield
    figures[f"{name}, s"] = time.perf_counter() - wall
    figures[f"{name}, CPU s"] = cpu_seconds() - cpu


def main() -> None:
    """The command."""
    from benches.spark_session import session  # noqa: PLC0415 - its settings are for large sizes

    parser = ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument(
        "--size", type=int, required=True, help="fragments, conversations, bytes of the message, or routes"
    )
    chosen = parser.parse_args()
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    spark = next(session())
    for name, value in STREAMING.items():
        spark.conf.set(name, value)
    with tempfile.TemporaryDirectory() as folder:
        for name, figure in CASES[chosen.case](spark, Path(folder), chosen.size).items():
            print(f"{name:<60} {figure:>16,.2f}")
    spark.stop()


if __name__ == "__main__":
    main()
