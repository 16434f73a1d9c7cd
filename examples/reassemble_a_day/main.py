"""Reassembles a day of a web shop's messages with PySpark although fragments are damaged or lost, routes them, and shows what is missing."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

import ssbroker
import ssbroker.spark

HERE: Final = Path(__file__).resolve().parent
SHOP: Final = HERE.parent / "route_a_day"
SEED: Final = 20261121
# Lifetimes of routes count from the morning, so a route with a lifetime of an hour has expired by noon.
MORNING: Final = datetime(2026, 11, 20, 6, 0, tzinfo=UTC)
NOON: Final = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)

FRAGMENT_BYTES: Final = 1024
MESSAGES_A_CONVERSATION: Final = 8
BODY_BYTES: Final = ((100, 400), (400, 1_500), (1_500, 8_000), (8_000, 40_000))
SHARES: Final = (60, 30, 9, 1)
# Numbers per 10,000 fragments. Senders send damaged and lost fragments again, except those of the last hour.
DUPLICATED: Final = 200
DAMAGED: Final = 60
LOST: Final = 30
NOT_RESENT: Final = 1 / 24
# Number per 10,000 messages. These were damaged before they were split: each fragment is valid, but the message is not.
CORRUPT_MESSAGES: Final = 3


def kinds(catalog: ssbroker.Catalog) -> list[dict[bool, dict[str, Any]]]:
    """Returns the kinds of conversations: for each, the routing columns of the initiator's messages (True) and of the replies (False)."""
    own = {row["database"]: row["name"] for row in reversed(catalog.services.to_pylist())}
    ids = {row["name"]: row["service_broker_guid"] for row in catalog.databases.to_pylist()}
    asked = {
        (row["database"], row["remote_service_name"], row["broker_instance"])
        for row in catalog.routes.to_pylist()
        if row["remote_service_name"] and row["database"] in own
    }
    return [
        {
            True: {"database": database, "to_service_name": name, "to_broker_instance": broker_id},
            False: {"database": None, "to_service_name": own[database], "to_broker_instance": ids[database]},
        }
        for database, name, broker_id in sorted(asked, key=repr)
    ]


def messages(catalog: ssbroker.Catalog, rows: int, source: random.Random) -> pa.Table:
    """Returns the messages of both directions of every conversation."""
    pool = b"".join(
        b'{"item":"%05d","quantity":%d},' % (source.randrange(100_000), source.randrange(1, 9)) for _ in range(50_000)
    )
    conversation_kinds = kinds(catalog)
    conversations = [
        (source.randbytes(16), source.choice(conversation_kinds)) for _ in range(rows // MESSAGES_A_CONVERSATION + 1)
    ]
    sent_counts: dict[tuple[bytes, bool], int] = {}
    columns: dict[str, list[Any]] = {
        name: [] for name in (*ssbroker.schemas.MESSAGES.names[:4], *conversation_kinds[0][True])
    }
    for low, high in source.choices(BODY_BYTES, weights=SHARES, k=rows):
        conversation, kind = source.choice(conversations)
        is_initiator = source.random() < 0.7
        number = sent_counts.get((conversation, is_initiator), 0)
        sent_counts[conversation, is_initiator] = number + 1
        start, size = source.randrange(len(pool) - high), source.randrange(low, high)
        body = b'{"message":%d,"lines":[%b]}' % (number, pool[start : start + size])
        for name, value in zip(columns, (conversation, is_initiator, number, body), strict=False):
            columns[name].append(value)
        for name, value in kind[is_initiator].items():
            columns[name].append(value)
    types = {"message_sequence_number": pa.int64(), "database": pa.string(), "to_broker_instance": pa.binary()}
    return pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})


def with_other_values(fragments: pa.Table, name: str, rows: list[int], change: Any) -> pa.Table:
    """Returns some rows with one column changed."""
    taken = fragments.take(pa.array(rows, pa.int64()))
    index = taken.column_names.index(name)
    values = pa.array([change(value) for value in taken[name].to_pylist()], taken.schema.field(name).type)
    return taken.set_column(index, taken.schema.field(name), values)


def arrived(fragments: pa.Table, count: int, source: random.Random) -> pa.Table:
    """Returns the fragments as they arrive: in a different order, with some of the first `count` duplicated, damaged or lost."""
    picked = source.sample(range(count), count * (DUPLICATED + DAMAGED + LOST) // 10_000)
    duplicated = picked[: count * DUPLICATED // 10_000]
    damaged = picked[len(duplicated) : len(duplicated) + count * DAMAGED // 10_000]
    lost = picked[len(duplicated) + len(damaged) :]
    resent = [row for row in (*damaged, *lost) if source.random() > NOT_RESENT]
    missing = {*damaged, *lost}
    sent = [row for row in range(fragments.num_rows) if row not in missing] + duplicated + resent
    flipped = with_other_values(fragments, "message_body", damaged, lambda body: bytes([body[0] ^ 1]) + body[1:])
    source.shuffle(sent)
    cut = source.randrange(len(sent))
    # Damaged fragments arrive among the others.
    parts = [fragments.take(pa.array(rows, pa.int64())) for rows in (sent[:cut], sent[cut:])]
    return pa.concat_tables([parts[0], flipped, parts[1]])


def fragments_of_the_day(catalog: ssbroker.Catalog, rows: int, folder: Path) -> Path:
    """Returns the path of a Parquet file with the fragments of `rows` messages as they arrive, the same on every machine; creates it if it is missing."""
    path = folder / f"fragments-{rows}.parquet"
    if path.exists():
        return path
    source = random.Random(SEED)
    all_messages = messages(catalog, rows, source)
    corrupt = {*source.sample(range(rows), rows * CORRUPT_MESSAGES // 10_000)}
    cut = ssbroker.fragment(all_messages, max_fragment_bytes=FRAGMENT_BYTES)
    number = accumulate((part == 0 for part in cut["fragment_number"].to_pylist()), initial=-1)
    corrupt_rows = [row for row, message in enumerate(number, start=-1) if message in corrupt]
    valid_rows = sorted({*range(cut.num_rows)}.difference(corrupt_rows))
    corrupt_fragments = with_other_values(cut, "message_signature", corrupt_rows, lambda _: bytes(16))
    cut = pa.concat_tables([cut.take(pa.array(valid_rows, pa.int64())), corrupt_fragments])
    fragments = arrived(cut, len(valid_rows), source)
    fields = [field.with_type(pa.binary()) if field.type == pa.binary(16) else field for field in fragments.schema]
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(fragments.cast(pa.schema(fields)), unfinished, row_group_size=1 << 16, compression="zstd")
    unfinished.replace(path)
    return path


def session() -> SparkSession:
    """Starts Spark on all cores, without its web page and warnings."""
    os.environ.setdefault("SPARK_CONF_DIR", str(SHOP / "conf"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[*]").appName("reassemble a day")
    for key, value in {"ui.enabled": "false", "ui.showConsoleProgress": "false", "driver.memory": "2g"}.items():
        builder = builder.config(f"spark.{key}", value)
    return builder.getOrCreate()


def counted(rows: DataFrame, *labels: Column) -> dict[tuple[str, ...], int]:
    """Counts the rows by labels."""
    return {tuple(row[:-1]): row[-1] for row in rows.groupBy(*labels).count().collect()}


def show(title: str, counts: Mapping[tuple[str, ...], int]) -> None:
    """Prints counts, the largest first."""
    print(f"\n{title}")
    for labels, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        print(f"  {count:>11,}  {'  '.join(f'{label:<8}' for label in labels)}".rstrip())


def report(done: ssbroker.spark.Pipeline, *, sent: int, delivered: int) -> None:
    """Prints the outcomes, the rejected fragments and the incomplete messages."""
    show("Outcomes", counted(done.messages, sf.col("outcome"), sf.col("reason")))
    show("Rejected fragments", counted(done.rejected, sf.col("reason")))
    is_complete = sf.col("first_missing_fragment").isNull()
    why = sf.when(is_complete, sf.lit("complete, but an earlier message is not")).otherwise(
        sf.lit("fragments are missing")
    )
    undelivered = Counter(counted(done.incomplete, why))
    undelivered["no valid fragment arrived",] = sent - delivered - undelivered.total()
    show("Undelivered messages", undelivered)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000, help="number of messages (default: 300,000)")
    parser.add_argument(
        "--folder", type=Path, default=HERE / ".cache", help="folder where the fragments are kept between runs"
    )
    options = parser.parse_args(arguments)

    catalog = ssbroker.Catalog.load(SHOP / "routes.sql", now=MORNING)
    path = fragments_of_the_day(catalog, options.rows, options.folder)
    print(f"{options.rows:,} messages were sent; {pq.read_metadata(path).num_rows:,} fragments arrived")

    fragments = session().read.parquet(str(path))
    started = time.perf_counter()
    done = ssbroker.spark.pipeline(fragments, catalog, now=NOON).persist()
    count, size = done.messages.agg(sf.count("*"), sf.sum(sf.length("message_body"))).collect()[0]
    seconds = time.perf_counter() - started
    rate = size / seconds / 1e6
    print(f"{count:,} messages ({size:,} bytes) verified, ordered and routed in {seconds:.1f} s ({rate:,.0f} MB/s)")
    report(done, sent=options.rows, delivered=count)


if __name__ == "__main__":
    main()
