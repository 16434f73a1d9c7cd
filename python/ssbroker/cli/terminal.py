"""Terminal output: tables, prose and the progress bar."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final, Self

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from ssbroker._text import terminal_safe


def cell(text: str, style: str = "") -> Text:
    """Returns a table cell in which control characters are escaped and rich's markup has no effect."""
    return Text(terminal_safe(text), style=style)


class FittedTable:
    """A table to print with `crop=False`: unchanged, or, if it is wider than the terminal, as records with one value per line.

    A file or pipe has no width, unless the environment variable COLUMNS sets one.

    Args:
        table: The table; its title is also used for the records.
        as_records: Whether to print records regardless of the width.
    """

    def __init__(self, table: Table, *, as_records: bool = False) -> None:
        self._table = table
        self._as_records = as_records

    def with_records(self) -> FittedTable:
        """Returns a table with the same rows that is printed as records."""
        return FittedTable(self._table, as_records=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields the table or the records."""
        width = console.measure(self._table, options=options.update(width=_UNLIMITED_WIDTH)).maximum
        is_unlimited = not console.is_terminal and "COLUMNS" not in os.environ
        if not self._table.row_count or ((is_unlimited or width <= options.max_width) and not self._as_records):
            yield from console.render(self._table, options.update(width=max(width, options.max_width)))
        else:
            yield from self._records()

    def _records(self) -> Iterator[Text]:
        if self._table.title is not None:
            yield _whole(cell(str(self._table.title), "bold"))
        names = [str(column.header) for column in self._table.columns]
        width = max(map(cell_len, names))
        rows = zip(*(column.cells for column in self._table.columns), strict=True)
        for number, row in enumerate(rows, start=1):
            yield cell(f"-- {number} --", "dim")
            for name, value in zip(names, row, strict=True):
                first, *others = list(_as_text(value).split("\n")) or [Text()]
                yield _whole(Text(set_cell_size(name, width) + "  ", "dim") + first)
                yield from (_whole(Text(" " * (width + 2)) + line) for line in others)


_UNLIMITED_WIDTH: Final = 10_000


def rows_table(names: Sequence[str], rows: Sequence[Sequence[Text]], *, title: str | None = None) -> FittedTable:
    """Returns a table without ruled lines; columns of integers are aligned to the right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for number, name in enumerate(names):
        is_number = all(row[number].plain.isdigit() for row in rows) and bool(rows)
        table.add_column(cell(name), justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return FittedTable(table)


def ruled_table(*names: str, numbers: int) -> Table:
    """Returns an empty table with a line below its header; the last `numbers` columns are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number >= len(names) - numbers else "left", overflow="fold")
    return table


def share_table(title: str, unit: str) -> Table:
    """Returns an empty table of values, each with its number and its share."""
    table = ruled_table(title, unit, "Share", numbers=2)
    for column, width in zip(table.columns, (36, 14, 7), strict=True):
        column.min_width = width
    return table


def _as_text(value: RenderableType) -> Text:
    return value if isinstance(value, Text) else Text(str(value))


def _whole(line: Text) -> Text:
    """Returns a line that only the terminal wraps, so that it can be copied as one line."""
    line.no_wrap, line.overflow = True, "ignore"
    return line


_MARKER: Final = re.compile(r"\s*(?:[-+] |[0-9]+\. |=> )?")
_STATEMENT: Final = (
    r"(?:USE|(?:CREATE|ALTER|DROP|GRANT|DENY|REVOKE|BACKUP|OPEN)(?: [A-Z_:]+)+) "
    r"(?=[\[<\w])(?:[^;:'\[\"]|::|'[^']*'|\[[^\]]*\]|\"[^\"]*\")*(?:;|\Z)"
)
_STATEMENTS: Final = re.compile(rf"\b{_STATEMENT}(?: {_STATEMENT})*")


def fitted(text: str, width: int) -> str:
    """Breaks long lines of prose at words; T-SQL statements are not broken, so that they can be copied.

    Examples:
        >>> print(fitted("- Create a route to it: USE [Sales]; CREATE ROUTE <name> WITH ADDRESS = N'LOCAL'; then try again.", 30))
        - Create a route to it:
            USE [Sales]; CREATE ROUTE <name> WITH ADDRESS = N'LOCAL';
          then try again.
    """
    return "\n".join(part for line in text.split("\n") for part in _fitted_line(line, width))


def _fitted_line(line: str, width: int) -> Iterator[str]:
    if cell_len(line) <= width:
        yield line
        return
    first = _MARKER.match(line)
    start = first[0] if first else ""
    indent, position = " " * len(start), len(start)
    for found in _STATEMENTS.finditer(line, position):
        if found.start() == position and not start.strip():  # no text before the statement
            yield start + found[0]
        else:
            yield from _wrapped(line[position : found.start()], width, start, indent)
            yield f"{indent}  {found[0]}"
        start, position = indent, found.end()
    yield from _wrapped(line[position:], width, start, indent)


def _wrapped(text: str, width: int, start: str, indent: str) -> Iterator[str]:
    line, is_empty = start, True
    for word in text.strip(" ").split(" "):
        if not is_empty and cell_len(line) + 1 + cell_len(word) > width:
            yield line
            line, is_empty = indent, True
        line = line + word if is_empty else f"{line} {word}"
        is_empty = False
    if line.strip():
        yield line


def print_prose(console: Console, text: str, style: str = "") -> None:
    """Prints lines wrapped to fit the terminal; does not wrap if the output is not a terminal."""
    text = "\n".join(terminal_safe(line) for line in text.split("\n"))
    shown = fitted(text, console.width) if console.is_terminal else text
    console.print(Text(shown, style), soft_wrap=True)


class ProgressBar:
    """Shows rows, rows per second, bytes of the input and the remaining time.

    Args:
        title: The name of the work.
        total_bytes: The size of the input.
        shown: Whether to show the bar; None shows it if standard error is a terminal.
    """

    def __init__(self, title: str, *, total_bytes: int, shown: bool | None) -> None:
        console = Console(stderr=True, force_terminal=shown or None)
        self._progress = Progress(
            TextColumn(title, table_column=_no_wrap_column()),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TaskProgressColumn(table_column=_no_wrap_column()),
            DownloadColumn(binary_units=True, table_column=_no_wrap_column()),
            TextColumn("{task.fields[rows]:,} rows", table_column=_no_wrap_column()),
            TextColumn("{task.fields[speed]:,.0f} rows/s", table_column=_no_wrap_column()),
            TimeRemainingColumn(compact=True, table_column=_no_wrap_column()),
            console=console,
            disable=not (console.is_terminal if shown is None else shown),
            expand=True,
        )
        self._task = self._progress.add_task("", total=max(1, total_bytes), rows=0, speed=0.0)

    def update(self, *, rows: int, position: int) -> None:
        """Sets the total number of rows processed and the number of bytes of the input read."""
        seconds = self._progress.tasks[0].elapsed or 0.0
        self._progress.update(self._task, completed=position, rows=rows, speed=rows / seconds if seconds else 0.0)

    def __enter__(self) -> Self:
        if not self._progress.disable:
            self._progress.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._progress.disable:  # rich before 15 prints an empty line even for a disabled bar
            self._progress.stop()


def _no_wrap_column() -> Column:
    return Column(no_wrap=True)
