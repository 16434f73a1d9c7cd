"""How names, routes and moments are written in an explanation."""

from __future__ import annotations

import unicodedata
from typing import Any, Final

_HARD_SPACE: Final = "\ue000"
"""A blank at which no line breaks: for private use, so that no name that was made printable has it."""


def quoted(name: str) -> str:
    r"""A name in quotation marks, safe for a terminal; its blanks do not break a line until `soften`.

    Examples:
        >>> soften(quoted("//Orders\x1b[2J in"))
        '"//Orders\\x1b[2J in"'
    """
    return f'"{printable(name)}"'


def printable(text: str) -> str:
    r"""The text with what cannot be printed as an escape.

    Examples:
        >>> printable("a\nb")
        'a\\nb'
    """
    if not text.isprintable():
        text = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
    return _hard(text)


def harmless(text: str) -> str:
    r"""The text with what could steer a terminal as an escape; blanks of every kind stay, so that it can be copied.

    Examples:
        >>> harmless("注文\u3000受付\x1b[2J")
        '注文\u3000受付\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or unicodedata.category(sign) == "Zs" else sign.encode("unicode_escape").decode()
        for sign in text
    )


def soften(text: str) -> str:
    """The text with plain blanks where `quoted` put ones that do not break."""
    return text.replace(_HARD_SPACE, " ")


def bracketed(name: str) -> str:
    """A name as T-SQL writes an identifier.

    Examples:
        >>> bracketed("Order]s")
        '[Order]]s]'
    """
    return _hard("[" + harmless(name).replace("]", "]]") + "]")


def literal(text: str) -> str:
    """A text as T-SQL writes it.

    Examples:
        >>> literal("O'Hara")
        "N'O''Hara'"
    """
    return _hard("N'" + harmless(text).replace("'", "''") + "'")


def moment_text(moment: str) -> str:
    """A moment as a person reads it.

    Examples:
        >>> soften(moment_text("2026-11-20T21:00:00Z"))
        '2026-11-20 21:00:00 UTC'
    """
    return moment.removesuffix("Z").replace("T", _HARD_SPACE) + _HARD_SPACE + "UTC"


def route_text(route: dict[str, Any]) -> str:
    """A route by number, name and addresses.

    Examples:
        >>> route = {"route_id": 65537, "name": "Orders", "address": "TCP://a:4022", "mirror_address": None}
        >>> soften(route_text(route))
        'route 65537 "Orders" to TCP://a:4022'
    """
    mirror = f", mirror {printable(route['mirror_address'])}" if route["mirror_address"] is not None else ""
    return f"{route_name(route)} to {printable(route['address'])}{mirror}"


def route_name(route: dict[str, Any]) -> str:
    """A route by number and name; the one that step 6 supposes has neither.

    Examples:
        >>> route_name({"route_id": None, "name": None})
        'the implied route'
    """
    if route["route_id"] is None:
        return "the implied route"
    return f"route {route['route_id']} {quoted(route['name'])}"


def count(number: int, noun: str) -> str:
    """A number with its noun.

    Examples:
        >>> count(1, "route"), count(0, "route")
        ('1 route', 'no routes')
    """
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def host_and_port(host: str, port: int) -> str:
    """Where something listens; an IPv6 address stands in brackets.

    Examples:
        >>> host_and_port("shop.example", 4022), host_and_port("::1", 4022)
        ('shop.example:4022', '[::1]:4022')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _hard(text: str) -> str:
    return text.replace(" ", _HARD_SPACE)
