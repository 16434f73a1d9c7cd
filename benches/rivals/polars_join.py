"""Polars: names through an `Enum` of the table's services, ids through a join."""

from __future__ import annotations

import datetime

import numpy as np
import polars as pl
import pyarrow as pa

from benches.columns import fixed
from benches.rivals.winners import DECISIONS, winners


class PolarsJoin:
    """Ids are 128-bit integers and service names an `Enum`, which is faster than joins on binary or text."""

    name = "Polars join"

    def __init__(self, routes: pa.Table, now: datetime.datetime) -> None:
        if pl.thread_pool_size() != 1:
            raise RuntimeError("set POLARS_MAX_THREADS=1 before polars is imported: all rivals use one thread")
        found = winners(routes, now)
        names = _frame(found.names)
        self._services = pl.Enum(names["service"])
        self._with_id, self._without_id = names["with_id"], names["without_id"]
        pairs = _frame(found.pairs).select(
            self._place("service"), _number("broker_instance").alias("broker"), "decision"
        )
        self._pairs = pairs.lazy()
        self._decisions = _frame(found.decisions).with_columns(_number("broker_instance"))

    def _place(self, column: str) -> pl.Expr:
        return pl.col(column).cast(self._services, strict=False).to_physical().alias("place")

    def load(self, conversations: pa.Table) -> pl.DataFrame:
        columns = conversations.select(["to_service_name", "to_broker_instance"]).rename_columns(["service", "broker"])
        return _frame(columns).with_columns(_number("broker"))

    def route(self, conversations: pl.DataFrame) -> pl.DataFrame:
        placed = conversations.lazy().select(self._place("service"), "broker")
        joined = placed.join(self._pairs, on=["place", "broker"], how="left", maintain_order="left")
        with_id = pl.coalesce("decision", pl.lit(self._with_id).gather("place"))
        without_id = pl.lit(self._without_id).gather("place")
        number = pl.when(pl.col("broker").is_null()).then(without_id).otherwise(with_id).fill_null(0)
        found = joined.select("broker", number.alias("number")).collect()
        decided = self._decisions[found["number"]]
        return decided.with_columns(pl.coalesce(found["broker"], "broker_instance").alias("broker_instance"))

    def answer(self, result: pl.DataFrame) -> pa.Table:
        low = pl.col("broker_instance") % 2**64
        high = (pl.col("broker_instance") - low) // 2**64
        ids = result.select(
            low.fill_null(0).cast(pl.UInt64).alias("low"), high.fill_null(0).cast(pl.Int64).alias("high")
        )
        halves = np.stack([ids["low"].to_numpy(), ids["high"].to_numpy().view(np.uint64)], axis=1)
        brokers = fixed(halves, valid=result["broker_instance"].is_not_null().to_numpy())
        labels = pl.col("outcome", "next_hop_address", "reason").cast(pl.String)
        table = result.drop("broker_instance").with_columns(labels).to_arrow()
        at = DECISIONS.get_field_index("broker_instance")
        return table.add_column(at, "broker_instance", brokers).cast(DECISIONS)


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    if not isinstance(frame, pl.DataFrame):
        raise TypeError("a table becomes a frame")
    return frame


def _number(column: str) -> pl.Expr:
    return pl.col(column).bin.reinterpret(dtype=pl.Int128, endianness="little")
