"""Routes a day of a web shop's conversations with PySpark, counts the decisions and explains one of them."""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import ssbroker
import ssbroker.spark
from ssbroker.diagnose import html_report

HERE: Final = Path(__file__).resolve().parent
SEED: Final = 20261120
# Lifetimes of routes count from the morning, so a route with a lifetime of an hour has expired by noon.
MORNING: Final = datetime(2026, 11, 20, 6, 0, tzinfo=UTC)
NOON: Final = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
UNKNOWN: Final = "//nobody.example/Nothing"
BAR: Final = 24
CARRIER: Final = "TCP://edi.yellow.example:4022/Pickup"


def traffic(catalog: ssbroker.Catalog) -> pa.Table:
    """Returns the kinds of conversations: the initiator's database, the service, and the broker id, if any."""
    routes = catalog.routes.to_pylist()
    names = sorted({(row["database"], row["remote_service_name"]) for row in routes if row["remote_service_name"]})
    copies = sorted(
        {
            (row["database"], row["remote_service_name"], row["broker_instance"])
            for row in routes
            if row["broker_instance"]
        }
    )
    kinds = [(database, name, None) for database, name in names] + copies
    kinds += [(database, UNKNOWN, None) for database in catalog.databases["name"].to_pylist()]
    kinds += [("Shipping", CARRIER, None), ("Warehouse", "//yellow.example/Pickup", None)]
    databases, services, ids = zip(*kinds, strict=True)
    return pa.table(
        {
            "database": pa.array([None if name == "msdb" else name for name in databases], pa.string()),
            "to_service_name": pa.array(services, pa.string()),
            "to_broker_instance": pa.array(ids, pa.binary(16)),
        }
    )


def conversations(catalog: ssbroker.Catalog, rows: int, folder: Path) -> Path:
    """Returns the path of a Parquet file with `rows` conversations, the same on every machine; creates it if it is missing."""
    path = folder / f"conversations-{rows}.parquet"
    if path.exists():
        return path
    kinds = traffic(catalog)
    source = random.Random(SEED)
    order = source.sample(range(kinds.num_rows), kinds.num_rows)
    picked = source.choices(order, weights=[1 / (rank + 3) for rank in range(len(order))], k=rows)
    ids = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), rows, [None, pa.py_buffer(source.randbytes(16 * rows))])
    table = kinds.take(pa.array(picked, pa.int32()))
    table = table.add_column(0, "conversation_id", ids.cast(pa.binary()))
    table = table.set_column(3, "to_broker_instance", table["to_broker_instance"].cast(pa.binary()))
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(table, unfinished, row_group_size=max(1, rows // 8))
    unfinished.replace(path)
    return path


def session() -> SparkSession:
    """Starts Spark on all cores, without its web page and warnings."""
    os.environ.setdefault("SPARK_CONF_DIR", str(HERE / "conf"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[*]").appName("route a day")
    for key, value in {"ui.enabled": "false", "ui.showConsoleProgress": "false", "driver.memory": "2g"}.items():
        builder = builder.config(f"spark.{key}", value)
    return builder.getOrCreate()


def summary(routed: DataFrame) -> list[dict[str, str | int | None]]:
    """Counts the conversations by decision."""
    groups = routed.groupBy("outcome", "reason", "match_step", "next_hop_address", "target_database").count()
    return [row.asDict() for row in groups.collect()]


def show_speed(rows: int, router: str, seconds: float) -> None:
    """Prints how long a router took, and its conversations per second."""
    print(f"{rows:,} conversations routed by {router}, in {seconds:.2f} s ({rows / seconds:,.0f} a second)")


def show(title: str, counts: Counter[tuple[str, ...]], most: int) -> None:
    """Prints the largest counts with bars, then the total and the number of the others."""
    print(f"\n{title}")
    largest = max(counts.values())
    for labels, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]:
        bar = "█" * round(BAR * count / largest)
        print(f"  {count:>11,}  {bar:<{BAR}}  {'  '.join(f'{label:<9}' for label in labels)}".rstrip())
    if len(counts) > most:
        print(f"  {sum(sorted(counts.values())[:-most]):>11,}  {'':<{BAR}}  {len(counts) - most} others")


def report(groups: list[dict[str, str | int | None]]) -> None:
    """Prints the outcomes and the destinations."""
    outcomes: Counter[tuple[str, ...]] = Counter()
    destinations: Counter[tuple[str, ...]] = Counter()
    for group in groups:
        count = int(group["count"] or 0)
        outcomes[str(group["outcome"]), str(group["reason"])] += count
        if group["next_hop_address"]:
            destinations[(str(group["next_hop_address"]),)] += count
        elif group["target_database"]:
            destinations[(f"database {group['target_database']}",)] += count
    show("Outcomes", outcomes, 20)
    show("Destinations", destinations, 10)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="number of conversations (default: 1,000,000)")
    parser.add_argument(
        "--folder", type=Path, default=HERE / ".cache", help="folder where the conversations are kept between runs"
    )
    options = parser.parse_args(arguments)

    catalog = ssbroker.Catalog.load(HERE / "routes.sql", now=MORNING)
    path = conversations(catalog, options.rows, options.folder)
    print(f"routes.sql: {catalog.routes.num_rows} routes in {catalog.databases.num_rows} databases")

    spark = session()
    day = spark.read.parquet(str(path))
    routed = ssbroker.spark.route(day, catalog, now=NOON)
    for run in ("first", "second"):  # the first one starts the workers, and Spark compiles its code
        started = time.perf_counter()
        groups = summary(routed)
        show_speed(options.rows, f"PySpark, {run} run", time.perf_counter() - started)
    router = ssbroker.Router(catalog)
    table = pq.read_table(path)
    router.route(table.slice(0, 1), now=NOON)
    started = time.perf_counter()
    router.route(table, now=NOON)
    show_speed(options.rows, "one thread", time.perf_counter() - started)
    report(groups)

    one = day.filter("to_service_name = '//shop.example/Billing/Invoices'").sort("conversation_id").first()
    if one is not None:
        print("\nOne decision, explained")
        about = {"database": one["database"], "conversation_id": bytes(one["conversation_id"])}
        print(router.explain(one["to_service_name"], **about, now=NOON))

    page = options.folder / "report.html"
    page.write_text(html_report(catalog, traffic=router.with_decisions(table, now=NOON), at=NOON), encoding="utf-8")
    print(f"\nReport of findings, routes and traffic: {page}")


if __name__ == "__main__":
    main()
