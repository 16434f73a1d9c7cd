"""A comparison as people and programs read it."""

from __future__ import annotations

from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from ssbroker.cli.shown import cell
from ssbroker.diagnose import Comparison, Expiry
from ssbroker.wording import harmless

_SHOWN: Final = 15


def as_plain(found: Comparison, following: tuple[Expiry, ...]) -> dict[str, Any]:
    """All of it as plain values that JSON can hold."""
    told = [
        {"moment": expiry.moment.isoformat().replace("+00:00", "Z"), "routes": list(expiry.routes)}
        for expiry in following
    ]
    return {**found.to_dict(), "next_expiries": told}


def print_comparison(found: Comparison, following: tuple[Expiry, ...], console: Console) -> None:
    """Prints the causes, the greatest changes, the load of copies and the next expiries."""

    def line(text: str) -> None:
        console.print(harmless(text), markup=False, highlight=False, soft_wrap=True)

    counted = found.conversations is not None
    if found:
        causes = found.causes.to_pylist()
        console.print(_causes(causes, counted=counted))
        for change in found.changes[:_SHOWN]:
            service = "every other service" if change.service is None else change.service
            number = f"{change.conversations:,} x " if change.conversations is not None else ""
            start = f"{change.instance}/{change.database or 'from outside'}"
            line(f"  {number}{start} for {service}: {change.before} -> {change.after}")
        if len(found.changes) > _SHOWN:
            line(f"  and {len(found.changes) - _SHOWN:,} more; --json has them all")
        line("")
    skewed = found.load.to_pylist()
    if skewed and found:
        console.print(_load(skewed[:_SHOWN]))
    for expiry in following:
        line(f"Next expiry: {expiry.moment:%Y-%m-%d %H:%M:%S} UTC, {', '.join(expiry.routes)}")
    if counted:
        line(f"{found.changed_conversations:,} of {found.conversations:,} conversations change.")
    else:
        plural = "" if len(found.changes) == 1 else "s"
        line(f"{len(found.changes):,} change{plural}." if found else "Nothing changes, whatever the conversation.")


def _causes(rows: list[dict[str, Any]], *, counted: bool) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("Cause", "Changes what"):
        table.add_column(heading, overflow="fold")
    table.add_column("Conversations" if counted else "Classes", justify="right")
    for row in rows[:_SHOWN]:
        number = row["conversations"] if counted else row["changes"]
        table.add_row(cell(f"{row['cause']}: {row['instance']}/{row['object']}"), row["kind"], f"{number:,}")
    table.add_row()
    return table


def _load(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("Service", "Copy"):
        table.add_column(heading, overflow="fold")
    for heading in ("Before", "After", "Skew before", "after"):
        table.add_column(heading, justify="right")
    for row in rows:
        skews = ("-" if row[side] is None else f"{row[side]:.2f}" for side in ("skew_before", "skew_after"))
        table.add_row(cell(row["service"]), cell(row["copy"]), f"{row['before']:,}", f"{row['after']:,}", *skews)
    table.add_row()
    return table
