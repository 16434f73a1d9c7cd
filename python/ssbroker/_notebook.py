"""HTML views of results for notebooks. All text is escaped."""

from __future__ import annotations

import codecs
import uuid
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

import pyarrow as pa

from ssbroker._text import terminal_safe

ROWS_MAX: Final = 20
"""The maximum number of rows of a table that are shown."""
_CELL_MAX: Final = 80
_BODY_MAX: Final = 1000


def table(rows: pa.Table, *, columns: Sequence[str] | None = None) -> str:
    """Returns the first rows of a table as HTML, with the number of rows that are not shown.

    Examples:
        >>> print(table(pa.table({"name": ["<Orders>", None]})))
        <table><thead><tr><th>name</th></tr></thead><tbody><tr><td>&lt;Orders&gt;</td></tr><tr><td></td></tr></tbody></table>
    """
    shown = rows.slice(length=ROWS_MAX)
    if columns is not None:
        shown = shown.select([name for name in columns if name in rows.column_names])
    body = grid(shown.column_names, zip(*(_values(column) for column in shown.columns), strict=True))
    return body + more_entries(rows.num_rows)


def more_entries(number: int) -> str:
    """Returns a note on how many entries are not shown; an empty text if all are shown."""
    return f"<p>and {number - ROWS_MAX:,} more</p>" if number > ROWS_MAX else ""


def escaped(value: object) -> str:
    r"""Escapes text for HTML; characters that are not printed, such as those that change the writing direction, become backslash escapes.

    Examples:
        >>> escaped("<Orders>\u202e")
        '&lt;Orders&gt;\\u202e'
    """
    return escape("\n".join(map(terminal_safe, str(value).split("\n"))))


def grid(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Returns cells as an HTML table."""
    head = "".join(f"<th>{escaped(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def section(title: str, *parts: str) -> str:
    """Returns parts of HTML under a title."""
    return f"<div><strong>{escaped(title)}</strong>{''.join(parts)}</div>"


def collapsible(summary: str, *content: str, is_open: bool = False) -> str:
    """Returns content that a click on its summary shows or hides."""
    return f"<details{' open' if is_open else ''}><summary>{escaped(summary)}</summary>{''.join(content)}</details>"


def preformatted(value: str) -> str:
    """Returns text with its line breaks and spaces."""
    return f"<pre>{escaped(value)}</pre>"


def body(value: bytes | None) -> str:
    """Returns the beginning of a message body if it is text in UTF-8 or UTF-16, else its size.

    Examples:
        >>> body(b"two chairs"), body(bytes([200, 201]))
        ('<pre>two chairs</pre>', '<p>2 bytes</p>')
    """
    if value is None:
        return "<p>(none)</p>"
    size = f"{len(value):,} bytes"
    start = value[:_BODY_MAX]
    # In UTF-16, most characters of European languages have a byte that is 0.
    encoding = "utf-16-le" if len(value) % 2 == 0 and 4 * start[1::2].count(0) > len(start) else "utf-8"
    # The last character may be cut off.
    shown = codecs.getincrementaldecoder(encoding)(errors="replace").decode(start)
    if not shown.translate(_LINE_CHARACTERS).isprintable() or "\ufffd" in shown:
        return f"<p>{size}</p>"
    return f"<pre>{escape(shown)}</pre>" + (f"<p>{size}</p>" if len(value) > _BODY_MAX else "")


_LINE_CHARACTERS: Final = str.maketrans("", "", "\n\r\t")


def counts(column: pa.ChunkedArray[Any]) -> list[tuple[Any, int]]:
    """Returns the values of a column with their frequencies, the most frequent first."""
    counted: pa.StructArray = column.value_counts()
    pairs: list[tuple[Any, Any]] = list(zip(counted.field(0).to_pylist(), counted.field(1).to_pylist(), strict=True))
    return sorted(pairs, key=lambda pair: (-pair[1], str(pair[0])))


def _values(column: pa.ChunkedArray[Any]) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if pa.types.is_fixed_size_binary(column.type):  # the schemas use it for GUIDs only
        return [None if value is None else uuid.UUID(bytes=value) for value in values]
    return values


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        return f"{len(value):,} bytes"
    shown = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return escaped(shown if len(shown) <= _CELL_MAX else f"{shown[: _CELL_MAX - 1]}…")
