"""Alternative routers in Spark, and the lower bound for routing in Python.

Like the other rivals, they look up the decisions of `tie_break="first"` for a single table.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from benches.rivals.dict_router import DictRouter
from benches.rivals.winners import DECISIONS, winners

if TYPE_CHECKING:
    import pandas as pd

_TYPES: Final = {
    "outcome": "string",
    "match_step": "tinyint",
    "route_id": "int",
    "next_hop_address": "string",
    "broker_instance": "binary",
    "reason": "string",
}


def untouched(conversations: DataFrame) -> DataFrame:
    """Passes all columns through Python."""

    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    return conversations.mapInArrow(same, conversations.schema)


def by_pandas(conversations: DataFrame, routes: pa.Table, now: datetime.datetime) -> DataFrame:
    """Routes with `mapInPandas` and the router of Python dicts, which is broadcast to the workers."""
    shipped = conversations.sparkSession.sparkContext.broadcast(DictRouter(routes, now))
    declared = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())
    kept = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in conversations.schema)

    fields: list[Any] = [("to_service_name", pa.string()), ("to_broker_instance", pa.binary(16))]
    keys_schema = pa.schema(fields)

    def decide(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            keys = pa.RecordBatch.from_pandas(frame[keys_schema.names], schema=keys_schema)
            decided: Any = shipped.value.route([keys])
            yield frame.assign(**{name: decided[name].to_pandas().astype(object) for name in _TYPES})

    return conversations.mapInPandas(decide, f"{kept}, {declared}")


def by_joins(conversations: DataFrame, routes: pa.Table, now: datetime.datetime, *, folder: Path) -> DataFrame:
    """Routes with broadcast joins by pair and by name, and a coalesce in the order of the steps."""
    found = winners(routes, now)
    spark = conversations.sparkSession
    decisions = found.decisions
    pairs = _with(found.pairs.drop_columns("decision"), decisions.take(found.pairs["decision"]), prefix="pair_")
    names = found.names.select(["service"])
    for prefix in ("with_id", "without_id"):
        names = _with(names, decisions.take(found.names[prefix]), prefix=f"{prefix}_")
    pair_table = sf.broadcast(_read(spark, pairs, folder / "pairs.parquet")).withColumnRenamed(
        "service", "pair_service"
    )
    name_table = sf.broadcast(_read(spark, names, folder / "names.parquet")).withColumnRenamed(
        "service", "name_service"
    )
    own = conversations["to_broker_instance"]
    is_pair = (conversations["to_service_name"] == pair_table["pair_service"]) & (own == pair_table["broker_instance"])
    joined = conversations.join(pair_table, is_pair, "left").join(
        name_table, conversations["to_service_name"] == name_table["name_service"], "left"
    )
    rest = decisions.slice(0, 1).to_pylist()[0]

    def pick(name: str) -> Column:
        by_name = sf.when(own.isNull(), sf.col(f"without_id_{name}")).otherwise(sf.col(f"with_id_{name}"))
        picked = sf.coalesce(sf.col(f"pair_{name}"), by_name, sf.lit(rest[name]).cast(_TYPES[name]))
        return sf.coalesce(own, picked) if name == "broker_instance" else picked

    return joined.select(
        *(conversations[name] for name in conversations.columns), *(pick(name).alias(name) for name in DECISIONS.names)
    )


def answer(routed: DataFrame) -> tuple[int, int]:
    """Returns the number of rows and a digest that is independent of their order."""
    columns = [sf.col("conversation_id"), *(sf.col(name) for name in DECISIONS.names)]
    nulls = [column.isNull() for column in columns]
    total = sf.sum(sf.xxhash64(*columns, *nulls).cast("decimal(38,0)"))
    row = routed.agg(sf.count("*"), total).collect()[0]
    return int(row[0]), int(row[1])


def _with(table: pa.Table, decisions: pa.Table, *, prefix: str) -> pa.Table:
    for name in DECISIONS.names:
        table = table.append_column(prefix + name, decisions[name])
    return table


def _read(spark: SparkSession, table: pa.Table, path: Path) -> DataFrame:
    """Writes the table to a file for Spark, because it is too large to be part of a plan."""
    kinds = {pa.binary(16): pa.binary()}
    plain = [
        field.with_type(kinds.get(field.type, getattr(field.type, "value_type", field.type))) for field in table.schema
    ]
    pq.write_table(table.cast(pa.schema(plain)), path)
    return spark.read.parquet(str(path))
