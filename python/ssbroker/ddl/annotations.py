"""What DDL cannot say, in comments: `-- ssbroker: route_id=65537 lifetime=2026-11-21T00:00:00Z`.

| key | stands at the end of | meaning |
|---|---|---|
| `route_id` | CREATE ROUTE, ALTER ROUTE | the id of the route |
| `lifetime` | CREATE ROUTE, ALTER ROUTE | the moment of expiry in UTC, instead of LIFETIME seconds from the time of loading |
| `service_broker_guid` | USE, CREATE DATABASE, ALTER DATABASE | the broker id, or `unknown` |
| `addresses_only` | CREATE ENDPOINT, ALTER ENDPOINT | the endpoint's addresses, instead of those that its listener says |
| `addresses` | any statement, or alone | further own addresses of the instance |
| `pending_requests` | any statement, or alone | services for which a request for a route is pending |

Lists are separated by commas; a comma, a percent sign or white space within a value is written as in a URL (`%2C`).
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from ssbroker import moment
from ssbroker.ddl.source import RefusalError, Source

_INTRODUCTION: Final = "ssbroker:"
_ESCAPED: Final = re.compile(r"[%,\s\x00-\x1f\x7f-\x9f]")
KEYS: Final = frozenset(
    {"route_id", "lifetime", "service_broker_guid", "addresses_only", "addresses", "pending_requests"}
)
INSTANCE_KEYS: Final = frozenset({"addresses", "pending_requests"})


class Annotation(NamedTuple):
    """One `-- ssbroker:` comment; `values` holds the text of each key."""

    start: int
    values: tuple[tuple[str, str], ...]


def annotation(source: Source, comment: str, start: int) -> Annotation | None:
    """The annotation that a comment is, None where it is an ordinary comment."""
    text = comment.lstrip()
    if not text.startswith(_INTRODUCTION):
        return None
    values = []
    for word in text.removeprefix(_INTRODUCTION).split():
        key, equals, value = word.partition("=")
        if not equals or key not in KEYS:
            raise source.error(start, f"the annotation {word!r} is none of {', '.join(sorted(KEYS))}, each with =")
        values.append((key, value))
    return Annotation(start, tuple(values))


def comment(**values: str | None) -> str:
    """The comment that says these values, with a space before it; empty where there are none."""
    said = [f"{key}={value}" for key, value in values.items() if value is not None]
    return f" -- {_INTRODUCTION} {' '.join(said)}" if said else ""


def format_list(values: tuple[str, ...]) -> str:
    """The values as one word."""
    return ",".join(_ESCAPED.sub(lambda match: quote(match[0], safe=""), value) for value in values)


def parse_list(text: str) -> tuple[str, ...]:
    """The values of `format_list`."""
    try:
        return tuple(unquote(part, errors="strict") for part in text.split(","))
    except UnicodeDecodeError:
        raise RefusalError(f"the annotation {text} holds a % that stands for no character") from None


def format_moment(utc: datetime) -> str:
    """A UTC moment as `2026-11-21T00:00:00Z`, with microseconds where there are any."""
    return utc.replace(tzinfo=None).isoformat() + "Z"


def parse_moment(text: str) -> datetime:
    """The moment of `format_moment`, or any other ISO 8601 moment."""
    try:
        return moment.parse(text)
    except (ValueError, OverflowError):
        raise RefusalError(f"the annotation lifetime={text} is no moment such as 2026-11-21T00:00:00Z") from None


def parse_route_id(text: str) -> int:
    """A route id: a number of 32 bits."""
    try:
        number = int(text) if text.isascii() else None
    except ValueError:
        number = None
    if number is None or not -(2**31) <= number < 2**31:
        raise RefusalError(f"the annotation route_id={text} is no number of 32 bits")
    return number
