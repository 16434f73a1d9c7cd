"""The counts and the summary of `ssbroker route`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from ssbroker._text import count_of
from ssbroker.cli.chunks import UNMERGED_ROWS_MAX
from ssbroker.cli.invalid_rows import CauseCounts, InvalidRows
from ssbroker.cli.terminal import FittedTable, cell, print_prose, share_table

COUNTED_COLUMNS: Final = ("outcome", "reason", "match_step", "next_hop_address", "target_database")


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueCounts:
    """The number of rows with each value of a column, the most frequent first; null is counted only in `match_step`."""

    column: str
    values: tuple[tuple[Any, int], ...]
    """Each value with its number of rows."""


class RouteCounts:
    """Counts decisions batch by batch; memory grows only with the number of distinct values."""

    def __init__(self) -> None:
        self.rows = 0
        self.rejected = CauseCounts()
        """The invalid rows, if they are set aside."""
        self._counts: dict[str, list[pa.Table]] = {name: [] for name in COUNTED_COLUMNS}
        self.traffic: list[pa.Table] = []
        """The distinct decisions, with their services and frequencies; empty if they are not counted."""

    def add(self, value_counts: dict[str, pa.Table], *, rows: int, traffic: pa.Table | None = None) -> None:
        """Adds the result of `count_values` for a batch, and the traffic of the batch."""
        self.rows += rows
        if traffic is not None:
            self.traffic.append(traffic)
            if sum(part.num_rows for part in self.traffic[1:]) > UNMERGED_ROWS_MAX:
                self.traffic = [self.all_traffic()]
        for name, table in value_counts.items():
            tables = self._counts[name]
            tables.append(table)
            if sum(part.num_rows for part in tables[1:]) > UNMERGED_ROWS_MAX:
                self._counts[name] = [_merge(tables)]

    def all_traffic(self) -> pa.Table:
        """Returns the traffic that was counted."""
        from ssbroker.diagnose.html_traffic import NO_TRAFFIC, count_traffic  # noqa: PLC0415 - keeps --help fast

        return count_traffic(pa.concat_tables(self.traffic or [NO_TRAFFIC]))

    def of_column(self, column: str, *, top: int | None = None) -> ValueCounts:
        """Returns the counts of a column, at most `top` of them.

        Examples:
            >>> counts = RouteCounts()
            >>> batch = pa.record_batch({name: ["a", "b", "b"] for name in COUNTED_COLUMNS})
            >>> counts.add(count_values(batch), rows=3)
            >>> counts.of_column("outcome").values
            (('b', 2), ('a', 1))
        """
        tables = self._counts[column]
        if not tables:
            return ValueCounts(column=column, values=())
        table = _merge(tables).sort_by([("count", "descending"), ("value", "ascending")])
        first = table.slice(0, top).to_pylist()
        return ValueCounts(column=column, values=tuple((row["value"], row["count"]) for row in first))


def count_values(decisions: pa.RecordBatch) -> dict[str, pa.Table]:
    """Counts the values of each counted column in a batch."""
    return {name: _count_column(decisions.column(name), includes_null=name == "match_step") for name in COUNTED_COLUMNS}


def _count_column(column: Any, *, includes_null: bool) -> pa.Table:
    if not includes_null:
        column = column.drop_null()
    pairs = pc.value_counts(column)
    values = pairs.field(0)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return pa.table({"value": values, "count": pairs.field(1)})


def _merge(tables: list[pa.Table]) -> pa.Table:
    summed = pa.concat_tables(tables).group_by("value").aggregate([("count", "sum")])
    return pa.table({"value": summed["value"], "count": summed["count_sum"]})


TOP_ROWS: Final = 10
_STEP_LABELS: Final = {
    0: "reply to this instance",
    1: "service and broker id",
    2: "service, route without broker id",
    3: "service, one broker id picked",
    4: "dynamic routing",
    5: "route for any service",
    6: "service of this instance",
    7: "no route",
    None: "no search",
}


@dataclass(frozen=True, kw_only=True)
class RouteSummary:
    """The summary of a run."""

    catalog: str
    conversations: Sequence[str]
    """The input files."""
    output: str
    now: datetime
    """The time at which routes were checked for expiry."""
    tie_break: str
    rows: int
    """The number of conversations routed."""
    rejected: InvalidRows | None
    """The invalid rows, if they were written to a file."""
    seconds: float
    """The duration of the run."""
    outcomes: ValueCounts
    reasons: ValueCounts
    match_steps: ValueCounts
    next_hops: ValueCounts
    """The busiest next hops."""
    target_databases: ValueCounts
    """The busiest target databases of this instance."""

    @property
    def rows_per_second(self) -> int:
        """The conversations routed per second."""
        return round(self.rows / self.seconds) if self.seconds else 0

    def to_dict(self) -> dict[str, Any]:
        """Returns the summary as values for JSON."""
        return {
            "catalog": self.catalog,
            "conversations": list(self.conversations),
            "output": self.output,
            "now": self.now.isoformat().replace("+00:00", "Z"),
            "tie_break": self.tie_break,
            "rows": self.rows,
            "rejected": None if self.rejected is None else self.rejected.to_dict(),
            "seconds": round(self.seconds, 3),
            "rows_per_second": self.rows_per_second,
            "outcomes": dict(self.outcomes.values),
            "reasons": dict(self.reasons.values),
            "match_steps": {"none" if step is None else str(step): rows for step, rows in self.match_steps.values},
            "next_hops": [{"address": address, "rows": rows} for address, rows in self.next_hops.values],
            "target_databases": [{"database": name, "rows": rows} for name, rows in self.target_databases.values],
        }

    def print(self, console: Console) -> None:
        """Prints the summary as tables."""
        for title, counts in (
            ("Outcome", self.outcomes),
            ("Reason", self.reasons),
            ("Match step", self.match_steps),
            ("Busiest next hops", self.next_hops),
            ("Target databases", self.target_databases),
        ):
            if counts.values:
                console.print(self._table(title, counts), crop=False)
                console.print()
        speed = f"{self.rows_per_second:,}"
        lines = [
            f"{count_of(self.rows, 'conversation')} routed in {self.seconds:,.1f} s ({speed} rows/s) to {self.output}"
        ]
        if self.rejected is not None:
            lines += self.rejected.lines()
        print_prose(console, "\n".join(lines))

    def _table(self, title: str, counts: ValueCounts) -> FittedTable:
        table = share_table(title, "Conversations")
        for value, rows in counts.values:
            label = (
                f"{'-' if value is None else value} {_STEP_LABELS[value]}"
                if counts.column == "match_step"
                else str(value)
            )
            table.add_row(cell(label), f"{rows:,}", f"{rows / self.rows:.1%}")
        return FittedTable(table)
