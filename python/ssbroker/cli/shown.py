"""Names and values as a terminal may have them: what would steer it stands as an escape, and markup is only text."""

from __future__ import annotations

from rich.text import Text

from ssbroker.wording import printable, soften


def shown(text: str) -> str:
    r"""The text with what cannot be printed as an escape: names come from tables, scripts and other instances.

    Examples:
        >>> shown("//Orders\x1b[2J")
        '//Orders\\x1b[2J'
    """
    return soften(printable(text))


def cell(text: str, style: str = "") -> Text:
    """The text as it stands in a table: what looks like rich's markup is part of it.

    Examples:
        >>> cell("Sales[/red]").plain
        'Sales[/red]'
    """
    return Text(shown(text), style=style)
