"""`ssbroker compare`: shows what a change of routing tables changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from ssbroker._text import terminal_safe
from ssbroker.catalog.catalog import Catalog
from ssbroker.cli.errors import located
from ssbroker.cli.fleets import AtOption, FleetOption, HtmlOption, places, write_text
from ssbroker.cli.options import PendingRequestOption, ProgressOption, TieBreakOption, parse_now
from ssbroker.cli.text import cell
from ssbroker.cli.writers import refuse_overwriting
from ssbroker.exceptions import InputError, SchemaError

if TYPE_CHECKING:
    from ssbroker.diagnose import Comparer, Comparison, Expiry


EXAMPLES = """[bold]Examples[/bold]

What does a pull request change? Nothing else does:

  ssbroker compare main/net.sql branch/net.sql

For how much of a day's traffic, and by which route:

  ssbroker compare main/net.sql branch/net.sql --conversations day/*.parquet

What will expire change until a moment, and when next?

  ssbroker compare net.sql net.sql --before-at 2026-11-20 --at 2027-01-01
"""


def compare(
    *,
    before: Annotated[Path, typer.Argument(help="The catalog that stands now.")],
    after: Annotated[Path, typer.Argument(help="The catalog that is to stand.")],
    conversations: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE...",
            help="Traffic to count over: files, folders and patterns, as route takes them; of a fleet with a column instance.",
        ),
    ] = None,
    fleet: FleetOption = False,
    at: AtOption = None,
    before_at: Annotated[str | None, typer.Option(metavar="TIME", help="The moment for BEFORE, if another.")] = None,
    tie_break: TieBreakOption = "hash",
    pending_request: PendingRequestOption = "continue",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    html: HtmlOption = None,
    progress: ProgressOption = None,
) -> None:
    """Tell which conversations change outcome, database, next hop or explanation, and by which difference of the two.

    Without traffic, every class of conversations is looked at. Exit status 1 if anything changes, 0 if nothing does.
    """
    from ssbroker.cli.readers import expand  # noqa: PLC0415 - the same
    from ssbroker.diagnose import Comparer, Fleet, expiries, html_report  # noqa: PLC0415 - the same
    from ssbroker.diagnose import compare as compare_all  # noqa: PLC0415 - the same

    now = parse_now(at, option="--at")
    before_now = now if before_at is None else parse_now(before_at, option="--before-at")
    if html is not None:
        standing = [place for side in (before, after) for place in places([side], is_fleet=fleet).values()]
        refuse_overwriting([html], inputs=expand(conversations or ()), catalogs=standing)
    load = Fleet.load if fleet else Catalog.load
    # A script's LIFETIME counts from one moment for both, else each second of loading would be a difference.
    sides = load(before, now=min(now, before_now)), load(after, now=min(now, before_now))
    if conversations:
        comparer = Comparer(*sides, at=now, before_at=before_now, tie_break=tie_break, pending_request=pending_request)
        _count(comparer, conversations, progress=progress)
        found = comparer.result()
    else:
        found = compare_all(*sides, at=now, before_at=before_now, pending_request=pending_request)
    following = expiries(sides[1], at=now, pending_request=pending_request)
    if html is not None:
        write_text(html, html_report(sides[1], comparison=found, at=now))
    if as_json:
        typer.echo(json.dumps(as_plain(found, following), indent=2, ensure_ascii=False))
    else:
        print_comparison(found, following, Console())
    if found:
        raise typer.Exit(1)


def _count(comparer: Comparer, conversations: list[str], *, progress: bool | None) -> None:
    import pyarrow as pa  # noqa: PLC0415 - the help comes quicker without what reads files

    from ssbroker.cli.chunks import CONVERSATIONS, all_pieces  # noqa: PLC0415 - the same
    from ssbroker.cli.progress import ProgressBar  # noqa: PLC0415 - the same
    from ssbroker.cli.readers import expand, open_sources  # noqa: PLC0415 - the same

    sources = open_sources(expand(conversations), CONVERSATIONS, lines=False, threads=1, progress=progress)
    total = sum(source.file.stat().st_size for source in sources)
    rows = 0
    with ProgressBar("Comparing", total_bytes=total, shown=progress) as bar:
        for piece, position in all_pieces(sources):
            columns = piece.load().columns
            try:
                comparer.add(pa.Table.from_batches([columns]))
            except (InputError, SchemaError) as error:
                raise located(error, file=piece.file, row_of=piece.row_of) from error
            rows += columns.num_rows
            bar.update(rows=rows, position=position)


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
        console.print(terminal_safe(text), markup=False, highlight=False, soft_wrap=True)

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
