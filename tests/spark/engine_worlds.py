"""Random worlds whose conversations both engines of `route` must route as `Router.route`, the decision table in DuckDB and the oracle do.

`python -m tests.spark.engine_worlds --worlds 2000 --interpreted` checks many of them and prints how often each outcome occurred. With
`--interpreted`, Spark compiles no code for the plans, which takes most of the time; with `--engines native`, only that engine is checked.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

import duckdb
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import ssbroker
import ssbroker.spark
from ssbroker.router import PendingRequest
from ssbroker.schemas import DECISIONS
from ssbroker.spark.arguments import SparkTieBreak
from ssbroker.spark.engine_choice import Engine
from tests.oracle.routing import Conversation, Oracle, Route, World
from tests.spark.frames import frame_in_order, session_builder
from tests.worlds.arrow import batch_of, catalog_of
from tests.worlds.seeded import seeded_world
from tests.worlds.table_join import routed_by_table
from tests.worlds.universe import NOW, TICK

CONVERSATIONS = 60
PRINTED_WORLDS = 50


@dataclass(frozen=True, kw_only=True)
class Case:
    """A world, its conversations and how they are given."""

    seed: int
    world: World
    conversations: tuple[Conversation, ...]
    tie_break: SparkTieBreak
    pending_request: PendingRequest
    now: datetime
    text_ids: bool
    missing: tuple[str, ...]

    @property
    def catalog(self) -> ssbroker.Catalog:
        return catalog_of(self.world)

    def table(self) -> pa.Table:
        """Returns the conversations with the number of each row."""
        batch = batch_of(self.conversations, text_guids=self.text_ids)
        table = pa.Table.from_batches([batch]).drop_columns(list(self.missing))
        return table.append_column("row", pa.array(range(len(self.conversations)), pa.int32()))

    def routed(self, spark: SparkSession, engine: Engine) -> DataFrame:
        given = frame_in_order(spark, self.table())
        if self.seed % 5 == 0 and "conversation_id" in given.columns:
            given = given.withColumnRenamed("conversation_id", "conversation_handle")
        return ssbroker.spark.route(
            given,
            self.catalog,
            now=self.now,
            tie_break=self.tie_break,
            pending_request=self.pending_request,
            engine=engine,
        )

    def expected(self, connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
        """Returns the decisions of the router, which are those of the oracle and of the decision table."""
        options: dict[str, Any] = {"tie_break": self.tie_break, "pending_request": self.pending_request}
        router = ssbroker.Router(self.catalog, **options)
        decided = router.route(self.table(), now=self.now).to_pylist()
        oracle = Oracle(self.world, now=self.now, **options)
        read = [asdict(oracle.decide(conversation)) for conversation in self.conversations]
        for row in read:
            row["broker_instance"] = row["broker_instance"] and row["broker_instance"].bytes
        assert decided == read, f"seed {self.seed}"
        by_table = routed_by_table(connection, router, batch_of(self.conversations), now=self.now)
        for own, other in zip(decided, by_table, strict=True):
            assert other == own or isinstance(other, str), f"seed {self.seed}: {other}\nexpected {own}"
        return decided


def case(seed: int) -> Case:
    """Returns the case of a seed: every option, and columns that are missing, now and then."""
    world, conversations = seeded_world(seed, conversations=CONVERSATIONS)
    world = replace(world, routes=tuple(map(_without_mirrored_next_hop_in_name, world.routes)))
    tie_break: SparkTieBreak = "first" if seed % 3 == 0 else "hash"
    missing = []
    if seed % 4 == 1:
        missing.append("is_initiator")
        conversations = [replace(each, is_initiator=True) for each in conversations]
    if seed % 7 == 2:
        missing.append("to_broker_instance")
        conversations = [replace(each, to_broker_instance=None) for each in conversations]
    only = catalog_of(world).user_database
    if only is not None and seed % 2:
        missing.append("database")
        conversations = [replace(each, database=only) for each in conversations]
    if tie_break == "first" and seed % 2:
        missing.append("conversation_id")
    return Case(
        seed=seed,
        world=world,
        conversations=tuple(conversations),
        tie_break=tie_break,
        pending_request="delay" if seed % 8 > 3 else "continue",
        now=NOW - TICK if seed % 2 else NOW,
        text_ids=seed % 4 > 1,
        missing=tuple(missing),
    )


def _without_mirrored_next_hop_in_name(route: Route) -> Route:
    """`native` refuses such a route."""
    if route.remote_service_name is None and route.address.upper() == "TRANSPORT":
        return replace(route, mirror_address=None)
    return route


def check(spark: SparkSession, seeds: Iterable[int], engines: Sequence[Engine] = ("native", "arrow")) -> Counter[str]:
    """Routes the worlds of the seeds; returns how often each outcome occurred."""
    seen: Counter[str] = Counter()
    connection = duckdb.connect()
    for each in map(case, seeds):
        expected = each.expected(connection)
        for engine in engines:
            # One job for each engine and world: Spark takes longer to plan the union of several.
            rows: list[dict[str, Any]] = (
                each.routed(spark, engine).select("row", *DECISIONS.names).toArrow().to_pylist()
            )
            found = {row.pop("row"): row for row in rows}
            for row, decision in enumerate(expected):
                assert found[row] == decision, (
                    f"{engine}, seed {each.seed}, row {row}: {found[row]}\nexpected {decision}\n{each}"
                )
            assert len(rows) == len(expected), f"{engine}, seed {each.seed}"
        seen.update(row["outcome"] for row in expected)
    return seen


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--engines", nargs="+", choices=["native", "arrow"], default=["native", "arrow"])
    parser.add_argument("--interpreted", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = session_builder().config("spark.sql.adaptive.enabled", "false")
    # Most of the code runs only a few times, so that compiling it well is not worth the time.
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    if options.interpreted:
        builder = builder.config("spark.sql.codegen.wholeStage", "false")
        builder = builder.config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    spark = builder.getOrCreate()
    seen: Counter[str] = Counter()
    end = options.first + options.worlds
    for start in range(options.first, end, PRINTED_WORLDS):
        seen += check(spark, range(start, min(start + PRINTED_WORLDS, end)), options.engines)
        print(f"{start}: {dict(seen)}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
