"""`ssbroker compare`: shows the effects of a change to routing tables."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.cells import cell_len
from rich.console import Console

from ssbroker._text import count_of, shortened_list, terminal_safe
from ssbroker.cli.diagnose_options import (
    SHOWN_NAMES_MAX,
    AddressOption,
    FleetOption,
    HtmlOption,
    check_instances,
    database_names,
    instance_paths,
    load_fleet,
    parse_instance_addresses,
    write_text,
)
from ssbroker.cli.errors import error_in_file
from ssbroker.cli.options import (
    AtOption,
    EncodingOption,
    LenientCatalogOption,
    PendingRequestOption,
    ProgressOption,
    VariableOption,
    as_options,
    parse_script_options,
    parse_time,
)
from ssbroker.cli.output_paths import check_writable, refuse_overwriting
from ssbroker.cli.terminal import FittedTable, cell, print_prose, ruled_table
from ssbroker.exceptions import InputError, SchemaError
from ssbroker.router import TieBreak

if TYPE_CHECKING:
    import pyarrow as pa

    from ssbroker.diagnose import Comparer, Comparison, Expiry, Fleet
    from ssbroker.diagnose.compare import Change


EXAMPLES = """Examples:

Show the effects of a pull request:

  ssbroker compare main/net.sql branch/net.sql

Also count the conversations of a day that change:

  ssbroker compare main/net.sql branch/net.sql --conversations day/*.parquet

Show the effects of routes that expire between two times:

  ssbroker compare net.sql net.sql --before-at 2026-11-20 --at 2027-01-01
"""


def compare(
    *,
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="The current catalog.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The proposed catalog.")],
    conversations: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE...",
            help="Conversations to count: files, folders or patterns, as for the command route. --fleet requires the column instance.",
        ),
    ] = None,
    fleet: FleetOption = False,
    address: AddressOption = None,
    at: AtOption = None,
    before_at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Time at which the routes of BEFORE are checked for expiry. Default: the time of --at."
        ),
    ] = None,
    tie_break: Annotated[
        TieBreak,
        typer.Option(
            metavar="HOW",
            help="How to choose among equal candidates for --conversations: by a hash of the conversation id (hash), or by route id (first).",
        ),
    ] = "hash",
    pending_request: PendingRequestOption = "continue",
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as a JSON object.")] = False,
    html: HtmlOption = None,
    progress: ProgressOption = None,
    variable: VariableOption = None,
    encoding: EncodingOption = None,
    lenient: LenientCatalogOption = False,
) -> None:
    """Show which conversations change between two catalogs, and why.

    A conversation changes if its outcome, database or next hop differs, or if only the route, step or reason does
    ("explanation"). Without --conversations, all classes of conversations are compared.

    With --fleet, the output also lists the conversations that end elsewhere after all hops, or that are no longer acknowledged; those that are
    lost come first.

    Only this list takes the states of endpoints and queues, and the contracts of services, into account. If they differ, the output names the differences.

    Exit status: 0 if nothing changes, 1 if anything changes or a route expires earlier, 2 after an error.
    """
    from ssbroker.cli.input_files import expand_patterns  # noqa: PLC0415 - keeps --help fast
    from ssbroker.diagnose import (  # noqa: PLC0415 - the same
        Comparer,
        Fleet,
        expiries,
        html_report,
        reachability_changes,
    )
    from ssbroker.diagnose import compare as compare_all  # noqa: PLC0415 - the same

    current_time = datetime.now(UTC)
    now = parse_time(at, option="--at", default=current_time)
    before_now = parse_time(before_at, option="--before-at", default=now)
    if html is not None:
        catalogs = [path for side in (before, after) for path in instance_paths([side], is_fleet=fleet).values()]
        refuse_overwriting([html], inputs=expand_patterns(conversations or ()), catalogs=catalogs)
        check_writable([html])
    options = parse_script_options(variable, encoding, lenient=lenient)
    addresses = parse_instance_addresses(address)
    old, new = (
        load_fleet([side], is_fleet=fleet, now=current_time, options=options, addresses=addresses)
        for side in (before, after)
    )
    check_instances(addresses, old, new)
    # If each side is a single instance, both get the name of the first file, so that they are compared with each other.
    is_single = not fleet and len(old) == len(new) == 1
    sides = (old, Fleet(dict(zip(old, new.values(), strict=True))) if is_single else new)
    if conversations:
        with as_options(tie_break="--tie-break"):
            comparer = Comparer(
                *sides, at=now, before_at=before_now, tie_break=tie_break, pending_request=pending_request
            )
        _add_traffic(comparer, conversations, sides, progress=progress)
        comparison = comparer.result()
    else:
        comparison = compare_all(*sides, at=now, before_at=before_now, pending_request=pending_request)
    ends = None
    if fleet:
        ends = reachability_changes(*sides, at=now, before_at=before_now, pending_request=pending_request)
    next_expiries = expiries(sides[1], at=now, pending_request=pending_request)
    if html is not None:
        write_text(html, html_report(sides[1], comparison=comparison, reachability_changes=ends, at=now))
    if as_json:
        typer.echo(json.dumps(to_json(comparison, next_expiries, ends), indent=2, ensure_ascii=False))
    else:
        print_comparison(comparison, next_expiries, Console(), ends)
    if comparison or (ends is not None and ends.num_rows):
        raise typer.Exit(1)


def _add_traffic(
    comparer: Comparer, conversations: list[str], sides: tuple[Fleet, Fleet], *, progress: bool | None
) -> None:
    import pyarrow as pa  # noqa: PLC0415 - keeps --help fast

    from ssbroker.cli.chunks import all_chunks, total_bytes  # noqa: PLC0415 - the same
    from ssbroker.cli.input_columns import CONVERSATION_COLUMNS  # noqa: PLC0415 - the same
    from ssbroker.cli.input_files import expand_patterns, open_inputs, with_known_names  # noqa: PLC0415 - the same
    from ssbroker.cli.terminal import ProgressBar  # noqa: PLC0415 - the same

    files = expand_patterns(conversations)
    inputs = open_inputs(files, CONVERSATION_COLUMNS, keep_json_lines=False, threads=1, progress=progress)
    total = total_bytes(inputs)
    databases, instances = database_names(*sides), {*sides[0], *sides[1]}
    rows = 0
    with ProgressBar("Comparing", total_bytes=total, shown=progress) as bar:
        for chunk, position in all_chunks(inputs):
            batch = chunk.load().batch
            table = with_known_names(pa.Table.from_batches([batch]), "database", databases)
            table = with_known_names(table, "instance", instances)
            try:
                _check_instances(table, sorted(instances))
                comparer.add(table)
            except (InputError, SchemaError) as error:
                error.args = (str(error).removeprefix("conversations."),)
                raise error_in_file(error, file=chunk.file, row_in_file=chunk.row_in_file) from error
            rows += batch.num_rows
            bar.update(rows=rows, position=position)


def _check_instances(rows: pa.Table, instances: list[str]) -> None:
    """Refuses a row whose instance is not compared; if only one instance is, the column is not read."""
    if len(instances) == 1 or "instance" not in rows.schema.names:
        return
    import pyarrow as pa  # noqa: PLC0415 - keeps --help fast

    from ssbroker._compat import cast  # noqa: PLC0415 - the same
    from ssbroker.cli.input_files import logical_type  # noqa: PLC0415 - the same

    column: Any = rows["instance"]
    if logical_type(column.type) == pa.string() and set(cast(column, pa.string()).unique().to_pylist()) <= {*instances}:
        return
    given = column.to_pylist()
    row = next((number for number, name in enumerate(given) if name not in instances), None)
    if row is not None:
        problem = "null is not allowed here" if given[row] is None else f"{given[row]!r:.80} is not an instance"
        expected = f"one of {', '.join(shortened_list(instances, SHOWN_NAMES_MAX))}"
        raise InputError(
            f"instance, row {row}: {problem}; expected {expected}",
            column="instance",
            row=row,
            value=given[row],
            expected=expected,
        )


_SHOWN_ROWS_MAX: Final = 15


def to_json(comparison: Comparison, next_expiries: tuple[Expiry, ...], ends: pa.Table | None = None) -> dict[str, Any]:
    """Returns the comparison as values for JSON; `ends` is the result of `reachability_changes`."""
    expiries = [
        {"moment": expiry.moment.isoformat().replace("+00:00", "Z"), "routes": list(expiry.routes)}
        for expiry in next_expiries
    ]
    reachability = {} if ends is None else {"reachability_changes": ends.to_pylist()}
    return {**comparison.to_dict(), **reachability, "next_expiries": expiries}


def print_comparison(
    comparison: Comparison, next_expiries: tuple[Expiry, ...], console: Console, ends: pa.Table | None = None
) -> None:
    """Prints the causes, the largest changes, the conversations that end elsewhere, the load of services, and the next expiries."""

    def line(text: str) -> None:
        print_prose(console, text)

    from ssbroker.diagnose.compare import not_compared_text, traffic_text  # noqa: PLC0415 - keeps --help fast

    has_traffic = comparison.conversations is not None
    if comparison.changes:
        causes = comparison.causes.to_pylist()
        console.print(_causes_table(causes[:_SHOWN_ROWS_MAX], has_traffic=has_traffic), crop=False)
        _print_omitted(len(causes), console)
        line("")
        for change in comparison.changes[:_SHOWN_ROWS_MAX]:
            _print_change(change, console)
        _print_omitted(len(comparison.changes), console)
        line("")
    if ends is not None and (ends.num_rows or comparison.changes):
        _print_ends(ends.to_pylist(), console)
        line("")
    load = comparison.load.to_pylist()
    if load and comparison.changes:
        console.print(_load_table(load[:_SHOWN_ROWS_MAX]), crop=False)
        _print_omitted(len(load), console)
        line("")
    for each in comparison.earlier_expiries:
        line(f"Expires earlier: {each}")
    for expiry in next_expiries:
        line(f"Next expiry: {expiry.moment:%Y-%m-%d %H:%M:%S} UTC, {', '.join(expiry.routes)}")
    if has_traffic:
        line(f"{traffic_text(comparison, is_fleet=ends is not None)}.")
    else:
        has_ends = ends is not None and ends.num_rows
        nothing = "No routing decision changes." if has_ends else "No conversation changes."
        line(f"{count_of(len(comparison.changes), 'change')}." if comparison.changes else nothing)
    if comparison.not_compared:
        line(not_compared_text(comparison))


def _print_omitted(count: int, console: Console) -> None:
    """Prints how many rows are not shown, if any."""
    if count > _SHOWN_ROWS_MAX:
        print_prose(console, f"  and {count - _SHOWN_ROWS_MAX:,} more; --json lists all")


def _print_change(change: Change, console: Console) -> None:
    service = "every other service" if change.service is None else change.service
    if change.broker_ids is not None:
        service += f" with {change.broker_ids}"
    number = f"{change.conversations:,} x " if change.conversations is not None else ""
    start = f"  {number}{change.instance}/{change.database or 'from outside'} for {service}:"
    if change.before == change.after:
        print_prose(console, f"{start} {change.before}, {_another_way(change)}")
        return
    line = f"{start} {change.before} -> {change.after}"
    if console.is_terminal and cell_len(terminal_safe(line)) > console.width:
        before, after = (side.replace(" | ", "\n         or ") for side in (change.before, change.after))
        line = f"{start}\n     before {before}\n      after {after}"
    print_prose(console, line)


_ENDS: Final = {
    "lost": "Conversations that are no longer delivered:",
    "unacknowledged": "Conversations that are no longer acknowledged or answered:",
    "arrives": "Conversations that are now delivered:",
    "acknowledged": "Conversations that are now acknowledged and answered:",
    "other": "Other conversations that end elsewhere:",
}


def _print_ends(rows: list[dict[str, Any]], console: Console) -> None:
    if not rows:
        print_prose(console, "After all hops, every conversation ends where it did before.")
    for effect, heading in _ENDS.items():
        found = [row for row in rows if row["effect"] == effect]
        if not found:
            continue
        print_prose(console, heading)
        for row in found[:_SHOWN_ROWS_MAX]:
            broker_id = "" if row["broker_id"] is None else f" with broker id {row['broker_id']}"
            start = f"  {row['instance']}/{row['database']} for {row['service']}{broker_id}"
            print_prose(console, f"{start}: {row['before']} -> {row['after']}")
        _print_omitted(len(found), console)


def _another_way(change: Change) -> str:
    if change.route_before == change.route_after:
        return "in another step"
    return f"by {change.route_after or 'no route'} instead of {change.route_before or 'no route'}"


def _cause_text(row: dict[str, Any]) -> str:
    if row["cause"] == "other":
        return f"another difference: {row['instance']}"
    return f"{row['cause']}: {row['instance']}{'/' if row['object'] else ''}{row['object']}"


def _causes_table(rows: list[dict[str, Any]], *, has_traffic: bool) -> FittedTable:
    table = ruled_table("Cause", "Effect", "Conversations" if has_traffic else "Classes", numbers=1)
    for row in rows:
        number = row["conversations"] if has_traffic else row["changes"]
        table.add_row(cell(_cause_text(row)), row["kind"], f"{number:,}")
    return FittedTable(table)


def _load_table(rows: list[dict[str, Any]]) -> FittedTable:
    """Returns the table of the conversations of each copy; without the skews if no copy has more than its share."""
    skews = [
        ["-" if row[side] is None else f"{row[side]:.2f}" for side in ("skew_before", "skew_after")] for row in rows
    ]
    names = ("Skew before", "Skew after") if any(each not in ("1.00", "-") for skew in skews for each in skew) else ()
    table = ruled_table("Service", "Copy", "Before", "After", *names, numbers=2 + len(names))
    for row, skew in zip(rows, skews, strict=True):
        shown = skew if names else ()
        table.add_row(cell(row["service"]), cell(row["copy"]), f"{row['before']:,}", f"{row['after']:,}", *shown)
    return FittedTable(table)
