"""Formats names, routes, timestamps, T-SQL literals and exceptions for messages and explanations, and finds similar names."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

_NO_BREAK_SPACE: Final = "\ue000"
"""Represents a space at which lines must not break; a private-use character, which `printable` escapes in names."""


_LINE_LENGTH_MAX: Final = 600
_SIMILARITY_MIN: Final = 0.75
_COMPARED_MAX: Final = 500
"""Among more names than this, only names that differ by one letter are suggested: comparing 20,000 takes a second for each error in a script."""


def utf16_length(text: str) -> int:
    """Returns the length of a text as SQL Server counts it: characters outside the basic multilingual plane count twice."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def utf16_prefix(text: str, length: int) -> str:
    """Returns the longest beginning of a text that has at most this `utf16_length`."""
    return text.encode("utf-16-le", "surrogatepass")[: 2 * length].decode("utf-16-le", "ignore")


def quoted(name: str) -> str:
    r"""Returns a name in quotation marks, safe for a terminal; its spaces are protected from line breaks until `restore_spaces`.

    Examples:
        >>> restore_spaces(quoted("//Orders\x1b[2J in"))
        '"//Orders\\x1b[2J in"'
    """
    return f'"{printable(name)}"'


def quoted_name(text: str) -> str:
    """Returns a name in quotation marks, safe for a terminal; lines may break at its spaces."""
    return restore_spaces(quoted(text))


def shown(text: str) -> str:
    r"""Returns a text as `repr` does, but with single backslashes, which are frequent in names of users and instances.

    Examples:
        >>> print(shown("CORP\\ann"), shown("O'Hara\x1b"))
        'CORP\ann' "O'Hara\x1b"
    """
    return repr(text).replace("\\\\", "\\")


def printable(text: str) -> str:
    """Escapes unprintable characters and protects spaces from line breaks."""
    if not text.isprintable():
        text = "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
        )
    return _protect_spaces(text)


def terminal_safe(text: str) -> str:
    r"""Escapes characters that could control a terminal; keeps spaces of every kind, so that the text can be copied.

    Examples:
        >>> terminal_safe("注文\u3000受付\x1b[2J")
        '注文\u3000受付\\x1b[2J'
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or unicodedata.category(character) == "Zs"
        else character.encode("unicode_escape").decode()
        for character in text
    )


def one_line(text: str) -> str:
    r"""Returns the text on one line, safe for a terminal; the middle of a very long text is cut out.

    Examples:
        >>> one_line("two\n  lines")
        'two lines'
    """
    line = terminal_safe(" ".join(text.split()))
    return line if len(line) <= _LINE_LENGTH_MAX else f"{line[: _LINE_LENGTH_MAX - 100]} ... {line[-90:]}"


def restore_spaces(text: str) -> str:
    """Replaces the protected spaces that `quoted` and similar functions produce with ordinary spaces."""
    return text.replace(_NO_BREAK_SPACE, " ")


def bracketed(name: str) -> str:
    """Returns a name as a bracketed T-SQL identifier.

    Examples:
        >>> bracketed("Order]s")
        '[Order]]s]'
    """
    return _protect_spaces("[" + terminal_safe(name).replace("]", "]]") + "]")


def enable_queue_command(database: str, schema: str, queue: str) -> str:
    """Returns the statements that enable a queue; the spaces in names are protected until `restore_spaces`.

    Examples:
        >>> enable_queue_command("Sales", "dbo", "Order]s")
        'USE [Sales]; ALTER QUEUE [dbo].[Order]]s] WITH STATUS = ON;'
    """
    return f"USE {bracketed(database)}; ALTER QUEUE {bracketed(schema)}.{bracketed(queue)} WITH STATUS = ON;"


def string_literal(text: str) -> str:
    """Returns a text as a T-SQL string literal.

    Examples:
        >>> string_literal("O'Hara")
        "N'O''Hara'"
    """
    return _protect_spaces("N'" + terminal_safe(text).replace("'", "''") + "'")


def timestamp_text(timestamp: str) -> str:
    """Formats an ISO 8601 timestamp in UTC for display.

    Examples:
        >>> restore_spaces(timestamp_text("2026-11-20T21:00:00Z"))
        '2026-11-20 21:00:00 UTC'
    """
    return timestamp.removesuffix("Z").replace("T", _NO_BREAK_SPACE) + _NO_BREAK_SPACE + "UTC"


def route_text(route: dict[str, Any]) -> str:
    """Describes a route by id, name and addresses.

    Examples:
        >>> route = {"route_id": 65537, "name": "Orders", "address": "TCP://a:4022", "mirror_address": None}
        >>> restore_spaces(route_text(route))
        'route 65537 "Orders" to TCP://a:4022'
    """
    mirror = f", mirror {printable(route['mirror_address'])}" if route["mirror_address"] is not None else ""
    return f"{route_name(route)} to {printable(route['address'])}{mirror}"


def route_name(route: dict[str, Any]) -> str:
    """Describes a route by id and name; the route that step 6 of the search implies has neither."""
    if route["route_id"] is None:
        return "the implied route"
    return f"route {route['route_id']} {quoted(route['name'])}"


def quantity(number: int, noun: str) -> str:
    """Returns a number with its noun, singular or plural.

    Examples:
        >>> quantity(1, "route"), quantity(0, "route")
        ('1 route', 'no routes')
    """
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def count_of(number: int, noun: str) -> str:
    """Formats a number with its noun.

    Examples:
        >>> count_of(1, "message"), count_of(2000, "message")
        ('1 message', '2,000 messages')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shortened_list(items: Iterable[str], length_max: int) -> list[str]:
    """Returns the first items, followed by `...` if there are more.

    Examples:
        >>> shortened_list(["a", "b", "c"], 2), shortened_list(["a", "b"], 2)
        (['a', 'b', '...'], ['a', 'b'])
    """
    first = list(islice(items, length_max + 1))
    return first if len(first) <= length_max else [*first[:length_max], "..."]


def host_and_port(host: str, port: int) -> str:
    """Joins host and port; an IPv6 address is put in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def exception_text(error: BaseException) -> str:
    """Returns the type and text of an error."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def differs_by_one_edit(one: str, other: str) -> bool:
    """Returns whether two texts are equal, or differ in one letter (missing, added or changed) or in two adjacent letters (swapped).

    Examples:
        >>> [differs_by_one_edit("Stock", other) for other in ("Stokc", "Stocks", "Stick", "Store")]
        [True, True, True, False]
    """
    if abs(len(one) - len(other)) > 1:
        return False
    same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    edits = (
        (one[same + 1 :], other[same + 1 :]),
        (one[same + 1 :], other[same:]),
        (one[same:], other[same + 1 :]),
        (one[same : same + 2][::-1] + one[same + 2 :], other[same:]),
    )
    return any(mine == theirs for mine, theirs in edits)


def may_be_misspelled(one: str, other: str) -> bool:
    """Returns whether two names differ by one edit, but not only in digits.

    Examples:
        >>> [may_be_misspelled("Shop1", other) for other in ("Shep1", "Shop2", "Store")]
        [True, False, False]
    """
    return differs_by_one_edit(one, other) and without_digits(one) != without_digits(other)


def without_digits(name: str) -> str:
    """Removes digits, because numbered names, such as Shop1 and Shop2, differ on purpose."""
    return "".join(character for character in name if not character.isdigit())


def folded_name(name: str) -> str:
    r"""Returns a name without the differences that are hard to see: case, normalization form, invisible characters.

    Examples:
        >>> folded_name("\u200b//Orders ") == folded_name("//orders")
        True
    """
    return without_invisible_characters(unicodedata.normalize("NFKC", name).casefold())


def without_invisible_characters(text: str) -> str:
    """Removes white space, control and format characters."""
    if text.isprintable():
        return text.replace(" ", "")
    return "".join(
        character
        for character in text
        if not character.isspace() and unicodedata.category(character) not in ("Cc", "Cf")
    )


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Returns `; did you mean ...?` if the word is similar to a known one, else an empty text.

    Examples:
        >>> did_you_mean("ADRESS", ["ADDRESS", "LIFETIME"])
        '; did you mean ADDRESS?'
    """
    similar = most_similar(given, known)
    return "" if similar is None else f"; did you mean {terminal_safe(similar)}?"


def most_similar(given: str, known: Iterable[str]) -> str | None:
    """Returns the known word that is most similar to a word; None if none is similar."""
    names, folded = list(known), given.casefold()
    same = next((name for name in names if name.casefold() == folded), None)
    if same is not None or len(given) <= 1:
        return same
    if len(names) > _COMPARED_MAX:
        return next((name for name in names if differs_by_one_edit(folded, name.casefold())), None)
    similar = difflib.get_close_matches(given, names, 1, cutoff=_SIMILARITY_MIN)
    return similar[0] if similar else None


def _protect_spaces(text: str) -> str:
    return text.replace(" ", _NO_BREAK_SPACE)
