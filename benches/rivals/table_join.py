"""Polars joins with our decision table: what an engine can do that is given the precomputed decisions."""

from __future__ import annotations

from typing import Any, Final

import polars as pl
import pyarrow as pa

_LOOKUPS: Final = (
    (True, True, True),
    (True, False, True),
    (False, True, True),
    (False, True, False),
    (False, False, False),
)


class TableJoin:
    """One join for each kind of row, the most specific first; for a table without ties."""

    name = "polars, decision table"

    def __init__(self, decisions: pa.RecordBatch, conversations: pa.Table) -> None:
        rows: Any = pl.from_arrow(pa.Table.from_batches([decisions]))
        ids = pl.col("to_broker_instance")
        asked: Any = pl.from_arrow(conversations)
        asked = asked.with_columns(
            ids.str.replace_all("-", "").str.decode("hex").alias("to_broker_instance"),
            ids.is_not_null().alias("has_broker_instance"),
            pl.int_range(pl.len()).alias("row"),
        ).drop("conversation_id")
        self._asked = asked
        self._tables = []
        for is_reply, by_name, by_id in _LOOKUPS:
            keys = ["database", "has_broker_instance", *["to_service_name"] * by_name, *["to_broker_instance"] * by_id]
            these = rows.filter(
                pl.col("is_reply") == is_reply,
                pl.col("to_service_name").is_not_null() == by_name,
                ids.is_not_null() == by_id,
            )
            self._tables.append((is_reply, keys, these.select(keys + decisions.schema.names[9:])))

    def route(self) -> Any:
        asked, parts = self._asked, []
        for is_reply, keys, these in self._tables:
            asking = asked.filter(~pl.col("is_initiator")) if is_reply else asked
            found = asking.join(these, on=keys, how="inner", nulls_equal=True)
            parts.append(found)
            asked = asked.join(found.select("row"), on="row", how="anti")
        return pl.concat(parts, how="diagonal").sort("row")

    def agrees(self, routed: Any, decisions: pa.Table) -> bool:
        """Returns whether the rows that the table decides have the same outcome, route and destination."""
        expected: Any = pl.from_arrow(decisions)
        for name in ("outcome", "route_id", "next_hop_address", "mirror_address", "target_database", "reason"):
            kind = pl.Int32 if name == "route_id" else pl.String
            same = routed[name].cast(kind).eq_missing(expected[name].cast(kind)) | routed["outcome"].is_null()
            if not same.all():
                return False
        return len(routed) == len(expected)
