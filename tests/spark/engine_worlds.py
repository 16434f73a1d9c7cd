"""Random worlds whose conversations both engines of `route` must route as `Router.route` and the oracle do.

`python -m tests.spark.engine_worlds --worlds 1000` checks many of them and prints how often each outcome occurred. With `--interpreted`,
Spark compiles no code for the plans, which takes most of the time; with `--engines native`, only that engine is checked.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import ssbroker
import ssbroker.spark
from ssbroker.router import PendingRequest, TieBreak
from ssbroker.schemas import DECISIONS
from ssbroker.spark.engines import Engine
from tests.oracle.routing import Conversation, Oracle, Route, World
from tests.spark.frames import frame, session_builder
from tests.worlds.arrow import batch_of, catalog_of
from tests.worlds.seeded import seeded_world
from tests.worlds.universe import NOW, TICK

CONVERSATIONS = 60
WORLDS_PER_JOB = 6


@dataclass(frozen=True, kw_only=True)
class Case:
    """A world, its conversations and how they are given."""

    seed: int
    world: World
    conversations: tuple[Conversation, ...]
    tie_break: TieBreak
    pending_request: PendingRequest
    now: datetime
    text_ids: bool
    missing: tuple[str, ...]

    @property
    def catalog(self) -> ssbroker.Catalog:
        return catalog_of(self.world)

    def table(self) -> pa.Table:
        """The conversations with the number of each row."""
        batch = batch_of(self.conversations, text_guids=self.text_ids)
        table = pa.Table.from_batches([batch]).drop_columns(list(self.missing))
        return table.append_column("row", pa.array(range(len(self.conversations)), pa.int32()))

    def routed(self, spark: SparkSession, engine: Engine) -> DataFrame:
        given = frame(spark, self.table(), partitions=1)
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

    def expected(self) -> list[dict[str, Any]]:
        """The decisions of the router, which are those of the oracle."""
        options: dict[str, Any] = {"tie_break": self.tie_break, "pending_request": self.pending_request}
        decided = ssbroker.Router(self.catalog, **options).route(self.table(), now=self.now).to_pylist()
        oracle = Oracle(self.world, now=self.now, **options)
        read = [asdict(oracle.decide(conversation)) for conversation in self.conversations]
        for row in read:
            row["broker_instance"] = row["broker_instance"] and row["broker_instance"].bytes
        assert decided == read, f"seed {self.seed}"
        return decided


def case(seed: int) -> Case:
    """Returns the case of a seed: every option, and columns that are missing, now and then."""
    world, conversations = seeded_world(seed, conversations=CONVERSATIONS)
    world = replace(world, routes=tuple(map(_without_mirrored_next_hop_in_name, world.routes)))
    tie_break: TieBreak = "first" if seed % 3 == 0 else "hash"
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
    """Routes the worlds of the seeds, several in one job; returns how often each outcome occurred."""
    seen: Counter[str] = Counter()
    waiting = list(seeds)
    while waiting:
        cases, waiting = [case(seed) for seed in waiting[:WORLDS_PER_JOB]], waiting[WORLDS_PER_JOB:]
        expected = {each.seed: each.expected() for each in cases}
        for seed, engine, found in _decided(spark, cases, engines):
            for row, (one, other) in enumerate(zip(found, expected[seed], strict=True)):
                assert one == other, f"{engine}, seed {seed}, row {row}: {one}\nexpected {other}\n{case(seed)}"
        seen.update(row["outcome"] for rows in expected.values() for row in rows)
    return seen


def _decided(
    spark: SparkSession, cases: Sequence[Case], engines: Sequence[Engine]
) -> list[tuple[int, str, list[dict[str, Any]]]]:
    frames = []
    for each in cases:
        for engine in engines:
            labels = (sf.lit(each.seed).alias("seed"), sf.lit(engine).alias("engine"))
            frames.append(each.routed(spark, engine).select("row", *DECISIONS.names, *labels))
    rows = reduce(DataFrame.unionByName, frames).toArrow().to_pylist()
    found: list[tuple[int, str, list[dict[str, Any]]]] = []
    for each in cases:
        for engine in engines:
            own = [row for row in rows if (row["seed"], row["engine"]) == (each.seed, engine)]
            own.sort(key=lambda row: int(row["row"]))
            found.append((each.seed, engine, [{name: row[name] for name in DECISIONS.names} for row in own]))
    return found


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--engines", nargs="+", choices=["native", "arrow"], default=["native", "arrow"])
    parser.add_argument("--interpreted", action="store_true")
    options = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = session_builder()
    if options.interpreted:
        builder = builder.config("spark.sql.codegen.wholeStage", "false")
        builder = builder.config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    spark = builder.getOrCreate()
    seen: Counter[str] = Counter()
    for start in range(options.first, options.first + options.worlds, 10 * WORLDS_PER_JOB):
        seeds = range(start, min(start + 10 * WORLDS_PER_JOB, options.first + options.worlds))
        seen += check(spark, seeds, options.engines)
        print(f"{start}: {dict(seen)}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
