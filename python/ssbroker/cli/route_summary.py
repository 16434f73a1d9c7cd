"""What went where, as tables for people and as one object for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from ssbroker.cli.route_tally import Counts
from ssbroker.cli.shown import cell

TOP: Final = 10
_STEPS: Final = {
    0: "reply, delivered here",
    1: "service and broker id",
    2: "service, route without broker id",
    3: "service, one broker id picked",
    4: "dynamic routing",
    5: "route for any service",
    6: "service of this instance",
    7: "no route",
    None: "not looked for",
}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run did."""

    catalog: str
    """What was routed by."""
    conversations: Sequence[str]
    """The files that were routed."""
    output: str
    """The file or folder that was written."""
    now: datetime
    """The moment that was routed for."""
    tie_break: str
    """How one of several equals was picked."""
    rows: int
    """How many conversations."""
    seconds: float
    """How long it took."""
    outcomes: Counts
    """How many conversations had each outcome."""
    reasons: Counts
    """The same by reason."""
    match_steps: Counts
    """The same by step."""
    next_hops: Counts
    """The busiest next hops."""
    target_databases: Counts
    """The busiest databases of this instance."""

    @property
    def rows_per_second(self) -> int:
        """How many conversations a second."""
        return round(self.rows / self.seconds) if self.seconds else 0

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values that JSON can hold."""
        return {
            "catalog": self.catalog,
            "conversations": list(self.conversations),
            "output": self.output,
            "now": self.now.isoformat().replace("+00:00", "Z"),
            "tie_break": self.tie_break,
            "rows": self.rows,
            "seconds": round(self.seconds, 3),
            "rows_per_second": self.rows_per_second,
            "outcomes": dict(self.outcomes.values),
            "reasons": dict(self.reasons.values),
            "match_steps": {"none" if step is None else str(step): rows for step, rows in self.match_steps.values},
            "next_hops": [{"address": address, "rows": rows} for address, rows in self.next_hops.values],
            "target_databases": [{"database": name, "rows": rows} for name, rows in self.target_databases.values],
        }

    def print(self, console: Console) -> None:
        """Prints it as tables."""
        for title, counts in (
            ("Outcome", self.outcomes),
            ("Reason", self.reasons),
            ("Match step", self.match_steps),
            ("Busiest next hops", self.next_hops),
            ("Target databases", self.target_databases),
        ):
            if counts.values:
                console.print(self._table(title, counts))
        rows, speed = f"{self.rows:,}", f"{self.rows_per_second:,}"
        console.print(
            f"{rows} conversations routed in {self.seconds:,.1f} s ({speed} rows/s) to {self.output}",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )

    def _table(self, title: str, counts: Counts) -> Table:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, title_justify="left")
        table.add_column(title, min_width=36, overflow="fold")
        table.add_column("Conversations", justify="right", min_width=14)
        table.add_column("Share", justify="right", min_width=7)
        for value, rows in counts.values:
            label = (
                f"{'-' if value is None else value} {_STEPS[value]}" if counts.column == "match_step" else str(value)
            )
            table.add_row(cell(label), f"{rows:,}", f"{rows / self.rows:.1%}")
        table.add_row()
        return table
