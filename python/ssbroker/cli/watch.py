"""`ssbroker watch`: shows the state of an instance as it changes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.cells import chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ssbroker.cli.app import is_output_closed
from ssbroker.cli.options import FolderArgument
from ssbroker.cli.serve import stop_signals
from ssbroker.cli.state_tables import (
    age_text,
    connection_row,
    database_problems,
    other_counts,
    print_parts,
    queue_problems,
    queue_state,
    serving_line,
    state_table,
    style_of,
    transmission_row,
    waiting_reasons,
)
from ssbroker.cli.terminal import cell, fitted

if TYPE_CHECKING:
    from ssbroker.broker.overview import DatabaseQueue
    from ssbroker.web.observer import Point, State

EXAMPLES = """Examples:

Show queues and undelivered messages as they change:

  ssbroker watch shop/

Write the state as a line of JSON every 10 seconds:

  ssbroker watch shop/ --interval 10 --json >> states.jsonl
"""
_BARS: Final = "▁▂▃▄▅▆▇█"
_ASCII_BARS: Final = "_.-=+*#@"
_BARS_SHOWN: Final = 16


def watch(
    *,
    folder: FolderArgument,
    interval: Annotated[
        float, typer.Option(help="Seconds between updates.", min=0.01, max=86_400, metavar="SECONDS")
    ] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print each state as a line of JSON.")] = False,
) -> None:
    """Show the state of an instance as it changes, until Ctrl-C.

    Shows undelivered messages and their causes, the depth of each queue over time and the age of its oldest message, conversations by state, and connections.
    No process needs to serve the instance. On a terminal, the display is updated in place.
    """
    from ssbroker.broker.instance import Instance  # noqa: PLC0415 - keeps --help fast
    from ssbroker.web.observer import Observer  # noqa: PLC0415 - the same

    console = Console()
    # On a terminal without control sequences, such as that of Emacs, Live would show nothing.
    in_place = console.is_terminal and not console.is_dumb_terminal and not as_json
    live = Live(console=console, screen=True, auto_refresh=False) if in_place else None
    before: State | None = None
    with (
        Instance.open(folder, background=False) as instance,
        stop_signals() as stop_requested,
        live or nullcontext(),
    ):
        observer = Observer(instance, interval=interval)
        while not stop_requested.wait(observer.seconds_until_due()):
            state = observer.state()
            if as_json:
                typer.echo(json.dumps(state, ensure_ascii=False))
            else:
                parts = state_parts(
                    state,
                    observer.history(),
                    folder,
                    before=before,
                    is_ascii=not _writes_bars(console),
                    table=state_table if live is None else _FittingTable,
                )
                if live is None:
                    print_parts(console, parts)
                else:
                    live.update(_Screen(list(parts)), refresh=True)
            sys.stdout.flush()
            if is_output_closed():
                break
            before = state


def state_parts(
    state: State,
    history: dict[DatabaseQueue, list[Point]],
    folder: Path,
    *,
    before: State | None = None,
    is_ascii: bool = False,
    table: Callable[[str, list[dict[str, str]]], Any] = state_table,
) -> Iterator[Any]:
    """Yields the lines and tables that show a state: undelivered messages first, connections last."""
    yield cell(f"Instance {state['instance']} at {state['at']}", "bold")
    yield serving_line(state["serving"])
    yield from database_problems(state)
    yield Text()
    waiting = [transmission_row(row) for row in state["transmission_queue"]]
    yield table("Undelivered messages", waiting) if waiting else Text("There are no undelivered messages.")
    yield from _omitted(state, "transmission_queue")
    for row, reason in zip(state["transmission_queue"], waiting_reasons(state, folder), strict=True):
        yield reason
        if row["cause"] is not None:
            yield cell(f"  likely cause: {row['cause']}", "dim")
    yield Text()
    depths = {} if before is None else {(row["database"], row["queue"]): row["ready"] for row in before["queues"]}
    rows = state["queues"]
    queues = [_queue_row(row, history, depths, rows=rows, is_ascii=is_ascii) for row in rows]
    yield table("Queues", queues) if queues else Text("There are no queues.")
    yield from _omitted(state, "queues")
    yield from queue_problems(state, folder)
    yield Text()
    counts = (
        {} if before is None else {(row["database"], row["state"]): row["count"] for row in before["conversations"]}
    )
    conversations = [_conversation_row(row, counts) for row in state["conversations"]]
    yield table("Conversations", conversations) if conversations else Text("There are no conversations.")
    yield from _omitted(state, "conversations")
    if state["serving"] is not None and state["serving"]["connections"]:
        yield Text()
        yield table("Connections", [connection_row(row) for row in state["serving"]["connections"]])
        yield from _omitted(state, "connections")


def _omitted(state: State, name: str) -> Iterator[Text]:
    """Yields a line with the number of rows of a table that the state omits, if it omits any."""
    if state["omitted"][name]:
        yield Text(f"{state['omitted'][name]:,} more rows not shown; ssbroker status shows all.", "dim")


_NAMES: Final = ("database", "to", "queue", "instance", "principal")
"""The columns that are truncated if a table is too wide."""
_NAME_WIDTH_MIN: Final = 8


class _FittingTable:
    """A table that fits the terminal: long names are truncated; `ssbroker status` shows them in full."""

    def __init__(self, title: str, rows: list[dict[str, str]]) -> None:
        self._title: Final = title
        self._columns: Final = list(rows[0])
        self._cells: Final = [[cell(value, style_of(value)) for value in row.values()] for row in rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields the table."""
        lengths = [
            [len(name), *(row[place].cell_len for row in self._cells)] for place, name in enumerate(self._columns)
        ]
        widths = dict(zip(self._columns, map(max, lengths), strict=True))
        while sum(widths.values()) + 2 * (len(widths) - 1) > options.max_width:
            widest = max((name for name in _NAMES if name in widths), key=lambda name: widths[name])
            if widths[widest] <= _NAME_WIDTH_MIN:
                break
            widths[widest] -= 1
        table = Table(
            title=self._title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim"
        )
        for place, (name, width) in enumerate(widths.items()):
            is_number = all(row[place].plain.lstrip("+-").isdigit() for row in self._cells if row[place].plain)
            table.add_column(
                name, width=width, justify="right" if is_number else "left", no_wrap=True, overflow="ellipsis"
            )
        for row in self._cells:
            table.add_row(*row)
        yield table


class _Screen:
    """As many lines of the parts as fit the terminal; the last line says how many are missing."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts: Final = parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height
        fitting = [_fitted(part, options.max_width) if isinstance(part, Text) else part for part in self._parts]
        lines = [
            line for part in fitting for line in console.render_lines(part, options.update(height=None), pad=False)
        ]
        shown = lines if len(lines) <= height else lines[: height - 1]
        for line in shown:
            yield from line
            yield Segment.line()
        if len(shown) < len(lines):
            missing = len(lines) - len(shown)
            yield Text(f"{missing} more lines: enlarge the terminal, or run ssbroker status", style="dim", end="")


def _fitted(prose: Text, width: int) -> Text:
    """Breaks prose at words, and statements where the terminal ends."""
    lines = fitted(prose.plain, width).split("\n")
    return Text("\n".join(part for line in lines for part in (chop_cells(line, width) or [""])), prose.style)


def _writes_bars(console: Console) -> bool:
    try:
        _BARS.encode(console.encoding)
    except UnicodeEncodeError:
        return False
    return True


def depth_bars(points: Sequence[Point], *, is_ascii: bool = False) -> str:
    """Returns the last depths as bars, relative to the greatest depth; a space is a gap.

    Examples:
        >>> depth_bars([(0.0, 0, None), (1.0, 4, 0), (2.0, None, None), (3.0, 8, 1)])
        '▁▅ █'
    """
    bars = _ASCII_BARS if is_ascii else _BARS
    depths = [depth for _, depth, _ in points[-_BARS_SHOWN:]]
    greatest = max((depth for depth in depths if depth is not None), default=0)
    return "".join(
        " " if depth is None else bars[-(-depth * (len(bars) - 1) // greatest)] if greatest else bars[0]
        for depth in depths
    )


def _queue_row(
    row: dict[str, Any],
    history: dict[DatabaseQueue, list[Point]],
    depths: dict[DatabaseQueue, int],
    *,
    rows: list[dict[str, Any]],
    is_ascii: bool,
) -> dict[str, str]:
    key = (row["database"], row["queue"])
    return {
        "database": row["database"],
        "queue": row["queue"],
        "state": queue_state(row),
        "ready": str(row["ready"]),
        "change": _change(row["ready"], depths.get(key)),
        "history": depth_bars(history.get(key, []), is_ascii=is_ascii),
        "oldest": age_text(row["oldest_seconds"]),
        **other_counts(row, rows),
    }


def _conversation_row(row: dict[str, Any], counts: dict[tuple[str, str], int]) -> dict[str, str]:
    return {
        "database": row["database"],
        "state": f"{row['state']} {row['state_desc']}",
        "count": str(row["count"]),
        "change": _change(row["count"], counts.get((row["database"], row["state"]))),
        "oldest": age_text(row["oldest_seconds"]),
    }


def _change(now: int, before: int | None) -> str:
    return "" if before is None or now == before else f"{now - before:+}"
