"""Names and values in tables: they come from scripts, from traffic and from other instances."""

from __future__ import annotations

from rich.text import Text

from ssbroker.wording import harmless


def cell(text: str, style: str = "") -> Text:
    """The text as it stands in a table: what would steer a terminal as an escape, and what looks like rich's markup as it is.

    Examples:
        >>> cell("Sales[/red]").plain
        'Sales[/red]'
    """
    return Text(harmless(text), style=style)
