"""Annotations: `-- ssbroker: key=value` comments, which contain information that T-SQL cannot express."""

from __future__ import annotations

import re
import uuid
from datetime import datetime
from typing import Final
from urllib.parse import quote, unquote

from ssbroker._arguments import parse_timestamp
from ssbroker.ddl.errors import RefusalError

_PREFIX: Final = "ssbroker:"
_ESCAPED: Final = re.compile(r"[%,\s\x00-\x1f\x7f-\x9f]")
INSTANCE_ANNOTATION_KEYS: Final = frozenset({"addresses", "pending_requests", "sqlcmd", "unused"})
ANNOTATION_KEYS: Final = INSTANCE_ANNOTATION_KEYS | {"route_id", "lifetime", "service_broker_guid", "addresses_only"}
WITHOUT_SQLCMD: Final = "-- ssbroker: sqlcmd=off\n"
"""The first line of a script in which `$(Name)` is ordinary text."""


def parse_annotation(comment: str) -> tuple[tuple[str, str], ...] | None:
    """Parses a comment as an annotation; returns the keys and their texts, or None for an ordinary comment."""
    text = comment.lstrip()
    if not text.startswith(_PREFIX):
        return None
    values = []
    for word in text.removeprefix(_PREFIX).split():
        key, equals, value = word.partition("=")
        if not equals or key not in ANNOTATION_KEYS:
            raise RefusalError(
                f"unknown annotation {word!r}; expected key=value with one of the keys {', '.join(sorted(ANNOTATION_KEYS))}"
            )
        values.append((key, value))
    return tuple(values)


def annotation_comment(**values: str | None) -> str:
    """Returns a comment with these values, preceded by a space; empty if all values are None."""
    pairs = [f"{key}={value}" for key, value in values.items() if value is not None]
    return f" -- {_PREFIX} {' '.join(pairs)}" if pairs else ""


def format_list(values: tuple[str, ...]) -> str:
    """Joins values into one word, percent-encoding commas, percent signs and whitespace."""
    return ",".join(_ESCAPED.sub(lambda match: quote(match[0], safe=""), value) for value in values)


def parse_list(text: str) -> tuple[str, ...]:
    """Parses the output of `format_list`."""
    try:
        return tuple(unquote(part, errors="strict") for part in text.split(","))
    except UnicodeDecodeError:
        raise RefusalError(f"the annotation value {text} contains percent escapes that are not valid UTF-8") from None


def format_lifetime(utc: datetime) -> str:
    """Formats a UTC time as `2026-11-21T00:00:00Z`, with microseconds unless they are 0."""
    return utc.replace(tzinfo=None).isoformat() + "Z"


def parse_lifetime(text: str) -> datetime:
    """Parses the output of `format_lifetime`, or any other ISO 8601 timestamp."""
    try:
        return parse_timestamp(text)
    except (ValueError, OverflowError):
        raise RefusalError(
            f"the annotation lifetime={text} is not a valid timestamp; expected a timestamp such as 2026-11-21T00:00:00Z"
        ) from None


def parse_route_id(text: str) -> int:
    """Parses a route id, a 32-bit integer."""
    try:
        number = int(text) if text.isascii() else None
    except ValueError:
        number = None
    if number is None or not -(2**31) <= number < 2**31:
        raise RefusalError(f"the annotation route_id={text} is not valid; expected a 32-bit integer")
    return number


def parse_broker_id(text: str) -> bytes | None:
    """Parses a broker id; returns None for `unknown`."""
    if text == "unknown":
        return None
    try:
        return uuid.UUID(text).bytes
    except ValueError:
        raise RefusalError(
            f"the annotation service_broker_guid={text} is not valid; expected a GUID, or 'unknown'"
        ) from None
