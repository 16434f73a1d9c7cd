"""Text output: columns for CSV and JSON, cells of terminal tables, the progress bar."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute
from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, DownloadColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from ssbroker._arrow import guid_text, null_where
from ssbroker._compat import cast, is_binary_view, is_string_view
from ssbroker._text import terminal_safe

ArrowColumn: TypeAlias = Any
"""An Arrow array of any type."""

pc: Any = pyarrow.compute  # the stubs know neither Python constants nor text with 64-bit offsets
GUID_COLUMNS: Final = ("conversation_id", "conversation_handle", "to_broker_instance")
BYTES_COLUMNS: Final = ("message_body", "message_signature", "fragment_signature", "session_key")


def hex_text(column: ArrowColumn) -> ArrowColumn:
    """Converts bytes to hexadecimal digits."""
    if len(column) == 0:
        return pa.nulls(0, pa.large_string())
    compact = pa.concat_arrays([cast(column, pa.large_binary())])  # a copy starts at offset 0
    _, offsets, data = compact.buffers()
    ends = pa.Array.from_buffers(pa.int64(), len(compact) + 1, [None, offsets])
    start, stop = ends[0].as_py(), ends[-1].as_py()
    digits = memoryview(data)[start:stop].hex().encode() if stop > start else b""
    doubled = pc.multiply(pc.subtract(ends, start), 2)
    text = pa.Array.from_buffers(pa.large_string(), len(compact), [None, doubled.buffers()[1], pa.py_buffer(digits)])
    return null_where(pc.is_null(compact), text)


def readable(column: ArrowColumn, *, name: str) -> ArrowColumn:
    r"""Converts what CSV and JSON cannot show: ids to GUIDs, other bytes to `0x` and hexadecimal digits, dictionaries to their values.

    Examples:
        >>> readable(pa.array([b"\x01\xff"]), name="message_body").to_pylist()
        ['0x01ff']
    """
    data_type = column.type
    if isinstance(data_type, pa.BaseExtensionType):
        is_uuid = data_type.extension_name == "arrow.uuid"
        return guid_text(column.storage) if is_uuid else readable(column.storage, name=name)
    if pa.types.is_dictionary(data_type):
        return readable(column.dictionary_decode(), name=name)
    if is_string_view(data_type):
        return pc.cast(column, pa.large_string())
    if pa.types.is_duration(data_type) or pa.types.is_interval(data_type):
        return pa.array([None if value is None else str(value) for value in column.to_pylist()], pa.large_string())
    if not _is_bytes(data_type):
        return column
    is_guid = name in GUID_COLUMNS and _all_guids(column)
    if is_guid or (data_type == pa.binary(16) and name not in BYTES_COLUMNS):
        return guid_text(column)
    return concat_text(["0x", hex_text(column)])


def csv_cells(column: ArrowColumn, *, name: str) -> ArrowColumn:
    """Converts a column for the CSV writer; nested values become JSON.

    Examples:
        >>> csv_cells(pa.array([[1, 2], None]), name="parts").to_pylist()
        ['[1,2]', None]
    """
    column = readable(column, name=name)
    return _json_dumped(column) if pa.types.is_nested(column.type) else column


def json_values(column: ArrowColumn, *, name: str) -> ArrowColumn:
    r"""Converts a column to the JSON text of each value.

    Examples:
        >>> json_values(pa.array(['say "hi"', None]), name="note").to_pylist()
        ['"say \\"hi\\""', 'null']
    """
    if pa.types.is_dictionary(column.type) and len(column.dictionary) < len(column):
        return pc.fill_null(json_values(column.dictionary, name=name).take(column.indices), "null")
    column = readable(column, name=name)
    data_type = column.type
    if pa.types.is_boolean(data_type) or pa.types.is_integer(data_type) or pa.types.is_decimal(data_type):
        values = pc.cast(column, pa.large_string())
    elif pa.types.is_floating(data_type):
        values = pc.cast(null_where(pc.invert(pc.is_finite(column)), column), pa.large_string())
    elif pa.types.is_string(data_type) or pa.types.is_large_string(data_type) or pa.types.is_temporal(data_type):
        values = _json_quoted(pc.cast(column, pa.large_string()))
    else:
        values = _json_dumped(column)
    return pc.fill_null(values, "null")


def concat_text(parts: list[Any]) -> ArrowColumn:
    """Concatenates columns and constants row by row to one column of text.

    Examples:
        >>> concat_text([pa.array(["1", "2"], pa.large_string()), ";"]).to_pylist()
        ['1;', '2;']
    """
    texts = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*texts, pa.scalar("", pa.large_string()))


def _is_bytes(data_type: pa.DataType) -> bool:
    return (
        pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
        or pa.types.is_fixed_size_binary(data_type)
        or is_binary_view(data_type)
    )


def _all_guids(column: ArrowColumn) -> bool:
    lengths = pc.binary_length(cast(column, pa.large_binary()))
    return bool(pc.all(pc.equal(lengths, 16), min_count=0).as_py())


def _json_quoted(column: ArrowColumn) -> ArrowColumn:
    if pc.any(pc.match_substring_regex(column, '[\\x00-\\x1f"\\\\]')).as_py():  # rarely needed, and slow
        for character in ("\\", '"', *map(chr, range(0x20))):
            column = pc.replace_substring(column, character, json.dumps(character)[1:-1])
    return concat_text(['"', column, '"'])


def _json_dumped(column: ArrowColumn) -> ArrowColumn:
    texts = [
        None if value is None else json.dumps(_json_compatible(value), ensure_ascii=False, separators=(",", ":"))
        for value in column.to_pylist()
    ]
    return pa.array(texts, pa.large_string())


def _json_compatible(value: Any) -> Any:
    """Converts a Python value of any column for `json.dumps`."""
    if isinstance(value, dict):
        return {str(key): _json_compatible(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json_compatible(item) for item in value]
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def cell(text: str, style: str = "") -> Text:
    """Returns a table cell in which control characters are escaped and rich's markup has no effect."""
    return Text(terminal_safe(text), style=style)


class FittedTable:
    """A table to print with `crop=False`: as it is, or as records with a value on each line if it is wider than the terminal.

    A file or pipe has no width, unless the variable COLUMNS gives one.

    Args:
        table: The table; its title is that of the records too.
        as_records: Whether to print records, whatever the width.
    """

    def __init__(self, table: Table, *, as_records: bool = False) -> None:
        self._table = table
        self._as_records = as_records

    def with_records(self) -> FittedTable:
        """Returns the same rows as records."""
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
    """Returns a table without lines; columns of integers are aligned to the right."""
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
    """Returns a line that the terminal wraps, so that it can be copied."""
    line.no_wrap, line.overflow = True, "ignore"
    return line


_MARKER: Final = re.compile(r"\s*(?:[-+] |[0-9]+\. |=> )?")
_STATEMENT: Final = (
    r"(?:USE|(?:CREATE|ALTER|DROP|GRANT|DENY|REVOKE|BACKUP|OPEN)(?: [A-Z_:]+)+) "
    r"(?=[\[<\w])(?:[^;:'\[\"]|::|'[^']*'|\[[^\]]*\]|\"[^\"]*\")*(?:;|\Z)"
)
_STATEMENTS: Final = re.compile(rf"\b{_STATEMENT}(?: {_STATEMENT})*")


def fitted(text: str, width: int) -> str:
    """Breaks long lines of prose at words; statements of T-SQL stay whole, so that they can be copied.

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
        if found.start() == position and not start.strip():  # nothing before it
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
    """Prints lines that fit the terminal; whole lines where the output is no terminal."""
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
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._progress.disable:  # rich before 15 prints an empty line even for a disabled bar
            self._progress.stop()


def _no_wrap_column() -> Column:
    return Column(no_wrap=True)
