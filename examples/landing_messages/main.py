"""Fragments arrive as files; a stream lands their messages by queue, with where each goes; a dashboard asks what has landed and what waits."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import uuid
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import ssbroker
import ssbroker.spark

HERE: Final = Path(__file__).resolve().parent
QUIET: Final = HERE.parent / "route_a_day" / "conf"
SEED: Final = 20261122
HOURS: Final = 3
SHOPS: Final = 150
MESSAGES_AN_HOUR: Final = 1000
FRAGMENT_BYTES: Final = 400
# Each shop has a conversation with each service: to whom, begun in which database (none: it came from outside), and of ten messages how many.
SERVICES: Final = (
    ("//chain.example/Orders", None, 5),
    ("//chain.example/Stock", None, 2),
    ("//chain.example/Returns", None, 1),
    ("//cards.example/Authorise", "Sales", 1),
    ("//press.example/Leaflets", "Sales", 1),
)
# Of 1,000 fragments: late ones come with the next hour, damaged ones are sent again, lost ones are not.
LATE, TWICE, DAMAGED, LOST = 50, 10, 5, 1

ARRIVED, LANDED, CHECKPOINT, CATALOG = "fragments", "landed", "checkpoint", "routes.sql"
BUCKETS: Final = 2
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS: Final[dict[str, bool | float | int | str | None]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    # With it, a query that has timers would go on when all is read.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
COLUMNS: Final = (
    "conversation_id binary, is_initiator boolean, message_sequence_number bigint, fragment_number int, fragment_count int, "
    "message_body binary, message_signature binary, fragment_signature binary, database string, to_service_name string"
)
DASHBOARD: Final = {
    "Messages landed, by queue": """
        SELECT count(*) AS messages, queue, outcome, coalesce(next_hop_address, target_database) AS goes_to
        FROM messages GROUP BY queue, outcome, goes_to ORDER BY messages DESC
    """,
    "Fragments refused": "SELECT count(*) AS fragments, reason FROM rejected GROUP BY reason ORDER BY reason",
    "Messages waiting, for what": "SELECT count(*) AS messages, waits_for FROM state GROUP BY waits_for ORDER BY waits_for",
}


def messages(source: random.Random) -> pa.Table:
    """What all shops said on the day, in the order in which they said it."""
    said: Counter[uuid.UUID] = Counter()
    rows = []
    weights = [share for *_, share in SERVICES]
    for _ in range(HOURS * MESSAGES_AN_HOUR):
        shop, (service, database, _) = source.randrange(SHOPS), source.choices(SERVICES, weights)[0]
        conversation = uuid.uuid5(uuid.NAMESPACE_URL, f"{service}/{shop}")
        lines = b'{"item":12345,"quantity":1},' * source.choice((1, 5, 20, 80))
        rows.append(
            {
                "conversation_id": conversation.bytes,
                "is_initiator": True,
                "message_sequence_number": said[conversation],
                "message_body": b'{"shop":%d,"lines":[%b]}' % (shop, lines),
                "database": database,
                "to_service_name": service,
            }
        )
        said[conversation] += 1
    return pa.Table.from_pylist(rows)


def arrivals() -> list[pa.Table]:
    """The fragments of the day as they arrive, hour by hour: some late, some twice, some damaged and sent again, some never."""
    source = random.Random(SEED)
    cut = ssbroker.fragment(messages(source), max_fragment_bytes=FRAGMENT_BYTES)
    rows: list[list[dict[str, Any]]] = [[] for _ in range(HOURS + 1)]
    for number, row in enumerate(cut.to_pylist()):
        hour, chance = number * HOURS // cut.num_rows, source.randrange(1000)
        if chance < LOST:
            continue
        if chance < LOST + DAMAGED:
            rows[hour].append({**row, "message_body": b"?" + row["message_body"][1:]})
        is_late = chance < LOST + DAMAGED + LATE
        rows[hour + is_late].append(row)
        if chance >= 1000 - TWICE:
            rows[hour + 1].append(row)
    for of_hour in rows:
        source.shuffle(of_hour)
    schema = pa.schema([field.with_type(pa.binary()) if field.type == pa.binary(16) else field for field in cut.schema])
    return [pa.Table.from_pylist(of_hour, schema=schema) for of_hour in rows[:HOURS]]


def arrive(folder: Path, hours: int) -> None:
    """Writes the files of the first hours that are not there yet. A stream reads a file once, so each appears whole, by its last name."""
    arrived = folder / ARRIVED
    arrived.mkdir(parents=True, exist_ok=True)
    if not (folder / CATALOG).exists():
        shutil.copy(HERE / CATALOG, folder / CATALOG)
    for hour, fragments in enumerate(arrivals()[:hours]):
        path = arrived / f"hour-{hour}.parquet"
        if not path.exists():
            unfinished = path.with_name(f".{path.name}")
            pq.write_table(fragments, unfinished)
            unfinished.rename(path)
            print(f"{path.name}: {fragments.num_rows:,} fragments")


def land(spark: SparkSession, folder: Path) -> None:
    """Lands what has arrived and was not read yet. A batch that is tried again writes its own folder anew, so that nothing lands twice."""
    fragments = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).parquet(str(folder / ARRIVED))
    stream = ssbroker.spark.stream(fragments, folder / CATALOG, buckets=BUCKETS)
    queues = spark.read.csv(str(HERE / "queues.csv"), header=True)

    def write(rows: DataFrame, batch: int) -> None:
        rows.persist()
        parts = {
            "messages": by_queue(stream.kinds.messages(rows), queues),
            "rejected": stream.kinds.rejected(rows),
        }
        for name, part in parts.items():
            writer = part.write.mode("overwrite")
            writer = writer.partitionBy("queue") if name == "messages" else writer
            writer.parquet(str(folder / LANDED / name / f"batch={batch}"))
        rows.unpersist()

    query = stream.rows.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / CHECKPOINT))
    query.trigger(availableNow=True).start().awaitTermination()


def by_queue(routed: DataFrame, queues: DataFrame) -> DataFrame:
    """The messages with the queue that each is for; what goes to another instance is for none of ours."""
    is_its = (routed["target_database"] == queues["queue_database"]) & (routed["to_service_name"] == queues["service"])
    joined = routed.join(sf.broadcast(queues), is_its, "left").drop("queue_database", "service")
    return joined.withColumn("queue", sf.coalesce("queue", sf.lit("none")))


def dashboard(spark: SparkSession, folder: Path) -> None:
    """Asks what has landed, what was refused, and what waits in the stream's state."""
    for name in ("messages", "rejected"):
        spark.read.parquet(str(folder / LANDED / name)).createOrReplaceTempView(name)
    ssbroker.spark.stream_state(spark, str(folder / CHECKPOINT)).createOrReplaceTempView("state")
    for title, query in DASHBOARD.items():
        rows = spark.sql(query).collect()
        print(f"\n{title}")
        for row in rows:
            print(f"  {row[0]:>9,}  {'  '.join(f'{text:<11}' for text in row[1:])}".rstrip())


def session() -> SparkSession:
    """Spark on this machine's cores, with what streams need, and without its remarks."""
    os.environ.setdefault("SPARK_CONF_DIR", str(QUIET))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.master("local[*]").appName("landing messages").config(map=SETTINGS).getOrCreate()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "what", choices=["arrive", "land", "dashboard"], help="what to do; `land` ends with the dashboard"
    )
    parser.add_argument(
        "--hours", type=int, default=HOURS, help="how many hours of the day have arrived (default: all)"
    )
    parser.add_argument("--folder", type=Path, default=HERE / ".cache", help="where everything is")
    options = parser.parse_args(arguments)
    if options.what == "arrive":
        arrive(options.folder, options.hours)
        return
    spark = session()
    if options.what == "land":
        land(spark, options.folder)
    dashboard(spark, options.folder)


if __name__ == "__main__":
    main()
