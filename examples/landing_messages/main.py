"""Reassembles fragments that arrive as files, writes the messages to one folder for each queue, and shows what was written and what waits."""

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
SPARK_CONF: Final = HERE.parent / "route_a_day" / "conf"
SEED: Final = 20261122
HOURS: Final = 3
SHOPS: Final = 150
MESSAGES_AN_HOUR: Final = 1000
FRAGMENT_BYTES: Final = 400
# Each shop has one conversation with each of these services.
# Service name, database of the initiator (None: the conversation started in another instance), share of ten messages.
SERVICES: Final = (
    ("//chain.example/Orders", None, 5),
    ("//chain.example/Stock", None, 2),
    ("//chain.example/Returns", None, 1),
    ("//cards.example/Authorise", "Sales", 1),
    ("//press.example/Leaflets", "Sales", 1),
)
# Numbers per 1,000 fragments. Late fragments arrive an hour later; damaged fragments are sent again, lost ones are not.
LATE, TWICE, DAMAGED, LOST = 50, 10, 5, 1

ARRIVED, LANDED, CHECKPOINT, CATALOG = "fragments", "landed", "checkpoint", "routes.sql"
BUCKETS: Final = 2
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS: Final[dict[str, bool | float | int | str | None]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    # If true, a query with timers would not end after reading all files.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
COLUMNS: Final = (
    "conversation_id binary, is_initiator boolean, message_sequence_number bigint, fragment_number int, fragment_count int, "
    "message_body binary, message_signature binary, fragment_signature binary, database string, to_service_name string"
)
DASHBOARD: Final = {
    "Messages written, by queue": """
        SELECT count(*) AS messages, queue, outcome, coalesce(next_hop_address, target_database) AS goes_to
        FROM messages GROUP BY queue, outcome, goes_to ORDER BY messages DESC
    """,
    "Rejected fragments": "SELECT count(*) AS fragments, reason FROM rejected GROUP BY reason ORDER BY reason",
    "Waiting messages, by what they wait for": "SELECT count(*) AS messages, waits_for FROM state GROUP BY waits_for ORDER BY waits_for",
}


def messages(source: random.Random) -> pa.Table:
    """Returns the messages of the day, in the order in which the shops send them."""
    sent: Counter[uuid.UUID] = Counter()
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
                "message_sequence_number": sent[conversation],
                "message_body": b'{"shop":%d,"lines":[%b]}' % (shop, lines),
                "database": database,
                "to_service_name": service,
            }
        )
        sent[conversation] += 1
    return pa.Table.from_pylist(rows)


def arrivals() -> list[pa.Table]:
    """Returns the fragments that arrive in each hour; some are late, duplicated, damaged or lost."""
    source = random.Random(SEED)
    fragments = ssbroker.fragment(messages(source), max_fragment_bytes=FRAGMENT_BYTES)
    rows: list[list[dict[str, Any]]] = [[] for _ in range(HOURS + 1)]
    for number, row in enumerate(fragments.to_pylist()):
        hour, chance = number * HOURS // fragments.num_rows, source.randrange(1000)
        if chance < LOST:
            continue
        if chance < LOST + DAMAGED:
            rows[hour].append({**row, "message_body": b"?" + row["message_body"][1:]})
        is_late = chance < LOST + DAMAGED + LATE
        rows[hour + is_late].append(row)
        if chance >= 1000 - TWICE:
            rows[hour + 1].append(row)
    for fragments_of_hour in rows:
        source.shuffle(fragments_of_hour)
    schema = pa.schema(
        [field.with_type(pa.binary()) if field.type == pa.binary(16) else field for field in fragments.schema]
    )
    return [pa.Table.from_pylist(fragments_of_hour, schema=schema) for fragments_of_hour in rows[:HOURS]]


def arrive(folder: Path, hours: int) -> None:
    """Writes the missing files of the first hours. A stream reads each file once, so each file is renamed into place when it is complete."""
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
    """Processes new files. A repeated batch overwrites its own folder, so no message is written twice."""
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
    """Adds the queue of each message; messages for other instances have none."""
    is_queue_of_service = (routed["target_database"] == queues["queue_database"]) & (
        routed["to_service_name"] == queues["service"]
    )
    joined = routed.join(sf.broadcast(queues), is_queue_of_service, "left").drop("queue_database", "service")
    return joined.withColumn("queue", sf.coalesce("queue", sf.lit("none")))


def dashboard(spark: SparkSession, folder: Path) -> None:
    """Prints the messages that were written, the rejected fragments, and the messages that wait in the state of the stream."""
    for name in ("messages", "rejected"):
        spark.read.parquet(str(folder / LANDED / name)).createOrReplaceTempView(name)
    ssbroker.spark.stream_state(spark, str(folder / CHECKPOINT)).createOrReplaceTempView("state")
    for title, query in DASHBOARD.items():
        rows = spark.sql(query).collect()
        print(f"\n{title}")
        for row in rows:
            print(f"  {row[0]:>9,}  {'  '.join(f'{text:<11}' for text in row[1:])}".rstrip())


def session() -> SparkSession:
    """Starts Spark on all cores, with the settings for streams and without warnings."""
    os.environ.setdefault("SPARK_CONF_DIR", str(SPARK_CONF))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return SparkSession.builder.master("local[*]").appName("landing messages").config(map=SETTINGS).getOrCreate()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["arrive", "land", "dashboard"], help="`land` also shows the dashboard")
    parser.add_argument("--hours", type=int, default=HOURS, help="number of hours to write (default: all)")
    parser.add_argument("--folder", type=Path, default=HERE / ".cache", help="folder for all files")
    options = parser.parse_args(arguments)
    if options.command == "arrive":
        arrive(options.folder, options.hours)
        return
    spark = session()
    if options.command == "land":
        land(spark, options.folder)
    dashboard(spark, options.folder)


if __name__ == "__main__":
    main()
