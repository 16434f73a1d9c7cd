"""Puts a day of messages of a web shop together from what the network made of them with PySpark, routes them, and says what is missing."""

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
# The script is loaded as of the morning: what it gives an hour to live is gone by noon.
MORNING: Final = datetime(2026, 11, 20, 6, 0, tzinfo=UTC)
NOON: Final = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)

FRAGMENT_BYTES: Final = 1024
MESSAGES_A_CONVERSATION: Final = 8
BODY_BYTES: Final = ((100, 400), (400, 1_500), (1_500, 8_000), (8_000, 40_000))
SHARES: Final = (60, 30, 9, 1)
# Of 10,000 fragments. What is damaged or lost is sent again, as a sender does that got no acknowledgement, but for the last hour.
TWICE: Final = 200
DAMAGED: Final = 60
LOST: Final = 30
NOT_SENT_AGAIN: Final = 1 / 24
# Of 10,000 messages: the sender's memory was damaged before it cut them, so that each part is right and the whole is not.
WRONG_WHOLE: Final = 3


def kinds(catalog: ssbroker.Catalog) -> list[dict[bool, dict[str, Any]]]:
    """Who asks for what: a database, and a service with or without a broker id; and where the answers go."""
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
    """What both sides of every conversation said, each side numbered from 0."""
    pool = b"".join(
        b'{"item":"%05d","quantity":%d},' % (source.randrange(100_000), source.randrange(1, 9)) for _ in range(50_000)
    )
    ways = kinds(catalog)
    conversations = [(source.randbytes(16), source.choice(ways)) for _ in range(rows // MESSAGES_A_CONVERSATION + 1)]
    said: dict[tuple[bytes, bool], int] = {}
    columns: dict[str, list[Any]] = {name: [] for name in (*ssbroker.schemas.MESSAGES.names[:4], *ways[0][True])}
    for low, high in source.choices(BODY_BYTES, weights=SHARES, k=rows):
        conversation, way = source.choice(conversations)
        is_initiator = source.random() < 0.7
        number = said.get((conversation, is_initiator), 0)
        said[conversation, is_initiator] = number + 1
        start, size = source.randrange(len(pool) - high), source.randrange(low, high)
        body = b'{"message":%d,"lines":[%b]}' % (number, pool[start : start + size])
        for name, value in zip(columns, (conversation, is_initiator, number, body), strict=False):
            columns[name].append(value)
        for name, value in way[is_initiator].items():
            columns[name].append(value)
    types = {"message_sequence_number": pa.int64(), "database": pa.string(), "to_broker_instance": pa.binary()}
    return pa.table({name: pa.array(values, types.get(name)) for name, values in columns.items()})


def with_other_values(fragments: pa.Table, name: str, rows: list[int], change: Any) -> pa.Table:
    """Some rows, with one column changed."""
    taken = fragments.take(pa.array(rows, pa.int64()))
    place = taken.column_names.index(name)
    values = pa.array([change(value) for value in taken[name].to_pylist()], taken.schema.field(name).type)
    return taken.set_column(place, taken.schema.field(name), values)


def arrived(fragments: pa.Table, count: int, source: random.Random) -> pa.Table:
    """What the network makes of the fragments: of the first `count` some twice, some damaged, some lost; all in another order."""
    picked = source.sample(range(count), count * (TWICE + DAMAGED + LOST) // 10_000)
    twice = picked[: count * TWICE // 10_000]
    damaged = picked[len(twice) : len(twice) + count * DAMAGED // 10_000]
    lost = picked[len(twice) + len(damaged) :]
    again = [row for row in (*damaged, *lost) if source.random() > NOT_SENT_AGAIN]
    gone = {*damaged, *lost}
    sent = [row for row in range(fragments.num_rows) if row not in gone] + twice + again
    flipped = with_other_values(fragments, "message_body", damaged, lambda body: bytes([body[0] ^ 1]) + body[1:])
    source.shuffle(sent)
    cut = source.randrange(len(sent))
    # Damaged ones arrive among the others.
    parts = [fragments.take(pa.array(rows, pa.int64())) for rows in (sent[:cut], sent[cut:])]
    return pa.concat_tables([parts[0], flipped, parts[1]])


def fragments_of_the_day(catalog: ssbroker.Catalog, rows: int, folder: Path) -> Path:
    """A Parquet file of the fragments of that many messages as they arrived, the same on every machine; written where it is not there."""
    path = folder / f"fragments-{rows}.parquet"
    if path.exists():
        return path
    source = random.Random(SEED)
    told = messages(catalog, rows, source)
    wrong = {*source.sample(range(rows), rows * WRONG_WHOLE // 10_000)}
    cut = ssbroker.fragment(told, max_fragment_bytes=FRAGMENT_BYTES)
    number = accumulate((part == 0 for part in cut["fragment_number"].to_pylist()), initial=-1)
    rows_of_wrong = [row for row, message in enumerate(number, start=-1) if message in wrong]
    right = sorted({*range(cut.num_rows)}.difference(rows_of_wrong))
    mistaken = with_other_values(cut, "message_signature", rows_of_wrong, lambda _: bytes(16))
    cut = pa.concat_tables([cut.take(pa.array(right, pa.int64())), mistaken])
    given = arrived(cut, len(right), source)
    plain = [field.with_type(pa.binary()) if field.type == pa.binary(16) else field for field in given.schema]
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(given.cast(pa.schema(plain)), unfinished, row_group_size=1 << 16, compression="zstd")
    unfinished.replace(path)
    return path


def session() -> SparkSession:
    """Spark on this machine's cores, without its page in the browser and its remarks about the machine."""
    os.environ.setdefault("SPARK_CONF_DIR", str(SHOP / "conf"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[*]").appName("reassemble a day")
    for key, value in {"ui.enabled": "false", "ui.showConsoleProgress": "false", "driver.memory": "2g"}.items():
        builder = builder.config(f"spark.{key}", value)
    return builder.getOrCreate()


def counted(rows: DataFrame, *labels: Column) -> dict[tuple[str, ...], int]:
    """How often each combination of labels occurs."""
    return {tuple(row[:-1]): row[-1] for row in rows.groupBy(*labels).count().collect()}


def show(title: str, counts: Mapping[tuple[str, ...], int]) -> None:
    """Print counts, the largest first, under a title."""
    print(f"\n{title}")
    for labels, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        print(f"  {count:>11,}  {'  '.join(f'{label:<8}' for label in labels)}".rstrip())


def report(done: ssbroker.spark.Pipeline, *, sent: int, delivered: int) -> None:
    """Print what came of the fragments."""
    show("What became of them", counted(done.messages, sf.col("outcome"), sf.col("reason")))
    show("Fragments rejected", counted(done.rejected, sf.col("reason")))
    is_whole = sf.col("first_missing_fragment").isNull()
    why = sf.when(is_whole, sf.lit("whole, but one before them is not")).otherwise(sf.lit("fragments are missing"))
    late = Counter(counted(done.incomplete, why))
    late["nothing of them arrived undamaged",] = sent - delivered - late.total()
    show("Messages not delivered", late)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000, help="how many messages (default: 300,000)")
    parser.add_argument("--folder", type=Path, default=HERE / ".cache", help="where they are kept between runs")
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
    print(
        f"{count:,} messages ({size:,} bytes) verified, put in order and routed in {seconds:.1f} s ({rate:,.0f} MB/s)"
    )
    report(done, sent=options.rows, delivered=count)


if __name__ == "__main__":
    main()
