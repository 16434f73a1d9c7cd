"""Counts of what was decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

COUNTED: Final = ("outcome", "reason", "match_step", "next_hop_address", "target_database")
_WAITING_MAX: Final = 200_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Counts:
    """How often each value of a column occurs, the most frequent first; null does not count except in `match_step`."""

    column: str
    """The column."""
    values: tuple[tuple[Any, int], ...]
    """Each value with how often it occurs."""


class Tally:
    """Counts decisions batch by batch, in memory that grows with the different values only."""

    def __init__(self) -> None:
        self.rows = 0
        self._counts: dict[str, list[pa.Table]] = {name: [] for name in COUNTED}

    def add(self, counted: dict[str, pa.Table], *, rows: int) -> None:
        """Adds what `count` gave for a batch."""
        self.rows += rows
        for name, table in counted.items():
            waiting = self._counts[name]
            waiting.append(table)
            if sum(part.num_rows for part in waiting[1:]) > _WAITING_MAX:
                self._counts[name] = [_summed(waiting)]

    def counts(self, column: str, *, top: int | None = None) -> Counts:
        """The counts of a column, at most `top` of them.

        Examples:
            >>> tally = Tally()
            >>> batch = pa.record_batch({name: ["a", "b", "b"] for name in COUNTED})
            >>> tally.add(count(batch), rows=3)
            >>> tally.counts("outcome").values
            (('b', 2), ('a', 1))
        """
        waiting = self._counts[column]
        if not waiting:
            return Counts(column=column, values=())
        table = _summed(waiting).sort_by([("count", "descending"), ("value", "ascending")])
        first = table.slice(0, top).to_pylist()
        return Counts(column=column, values=tuple((row["value"], row["count"]) for row in first))


def count(decisions: pa.RecordBatch) -> dict[str, pa.Table]:
    """How often each value of the counted columns occurs in a batch.

    Examples:
        >>> count(pa.record_batch({name: ["a", "a"] for name in COUNTED}))["reason"].to_pylist()
        [{'value': 'a', 'count': 2}]
    """
    return {name: _counted(decisions.column(name), with_null=name == "match_step") for name in COUNTED}


def _counted(column: Any, *, with_null: bool) -> pa.Table:
    if not with_null:
        column = column.drop_null()
    pairs = pc.value_counts(column)
    values = pairs.field(0)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return pa.table({"value": values, "count": pairs.field(1)})


def _summed(tables: list[pa.Table]) -> pa.Table:
    summed = pa.concat_tables(tables).group_by("value").aggregate([("count", "sum")])
    return pa.table({"value": summed["value"], "count": summed["count_sum"]})
