"""Checks and conversions of arguments: numbers, flags, strings, GUIDs and timestamps."""

from __future__ import annotations

import inspect
import math
import os
import re
import uuid
from collections.abc import Callable, Sequence
from datetime import MAXYEAR, UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from ssbroker import _core
from ssbroker._well_known import SERVICE_NAME_MAX
from ssbroker.exceptions import InvalidGuidError, OptionError

DURATION_MAX: Final = 366 * 24 * 3600
"""The longest wait or lease, in seconds."""

OnErrors = Literal["raise", "reject"]
"""What to do with rows that contain an invalid value."""


def integer_argument(value: object, *, name: str, minimum: int, maximum: int) -> int:
    """Returns `value` if it is an integer within the limits; `name` is the option, for the error message."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise OptionError(f"{name}: expected an integer from {minimum} to {maximum}, got {value!r:.80}")
    return value


def real_number(value: object, *, name: str, minimum: float, maximum: float) -> float:
    """Returns `value` if it is a number within the limits; `name` is the option, for the error message."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
        raise OptionError(f"{name}: expected a number from {minimum:,} to {maximum:,}, got {value!r:.80}")
    return value


def timeout_seconds(value: object, *, name: str) -> float:
    """Returns a timeout in seconds as a float; an integer that is too large for a float becomes infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise OptionError(f"{name}: expected a non-negative number of seconds, got {value!r:.80}{_seconds_hint(value)}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def duration_seconds(value: object, *, name: str, minimum: float, alternatives: str = "") -> float:
    """Returns a duration in seconds, up to 366 days; `alternatives` describes other valid values, for the error message."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= DURATION_MAX:
        raise OptionError(
            f"{name}: expected a number of seconds from {minimum} to {DURATION_MAX:,} (366 days){alternatives}; "
            f"got {value!r:.80}{_seconds_hint(value)}"
        )
    return float(value)


def _seconds_hint(value: object) -> str:
    return "; pass the total_seconds() of the timedelta" if isinstance(value, timedelta) else ""


def boolean(value: object, *, name: str) -> bool:
    """Returns `value` if it is True or False; truthy values of other types are errors."""
    if not isinstance(value, bool):
        raise OptionError(f"{name}: expected True or False, got {value!r:.80}")
    return value


def returns_at_once(function: Callable[..., object]) -> bool:
    """Returns whether calling a function runs it; a call of a coroutine function or generator function only creates an object."""
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    return not any(kind(each) for kind in kinds for each in (function, type(function).__call__))


def string_list(values: object, *, name: str) -> list[str]:
    """Returns a sequence of strings as a list; a single string is an error, not a sequence of characters."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise OptionError(f"{name}: expected a sequence of strings, got {values!r:.80}")
    for position, value in enumerate(values):
        if not is_utf8_text(value):
            raise OptionError(
                f"{name}: expected a sequence of strings that UTF-8 can encode; item {position} is {value!r:.80}"
            )
    return list(values)


def path_argument(value: object, *, name: str) -> Path:
    """Returns a path; raises `OptionError` for anything but a string or `os.PathLike` of one, and for an empty string."""
    if isinstance(value, str | os.PathLike) and isinstance(os.fspath(value), str) and os.fspath(value):
        return Path(value)
    raise OptionError(f"{name}: expected a path (str or os.PathLike), got {value!r:.80} ({type(value).__name__})")


def is_utf8_text(value: object) -> bool:
    r"""Returns whether `value` is a string that UTF-8 can encode.

    Lone surrogates, which Python produces for undecodable bytes on the command line, cannot be encoded.

    Examples:
        >>> is_utf8_text("//Größe"), is_utf8_text("\udcff"), is_utf8_text(b"//Orders")
        (True, False, False)
    """
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_service_name(name: str) -> bool:
    """Returns whether a conversation or a remote service binding can name a service with this name."""
    return 0 < len(name) <= SERVICE_NAME_MAX and "\0" not in name and is_utf8_text(name)


def check_booleans(**given: object) -> None:
    """Raises `OptionError` if a value is neither a boolean nor None."""
    for name, value in given.items():
        if value is not None:
            boolean(value, name=name)


def check_numbers(expected: str = "an integer", /, **given: object) -> None:
    """Raises `OptionError` if a value is neither an integer nor None; does not check ranges. `expected` describes valid values, for the message."""
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise OptionError(f"{name}: expected {expected}, got {value!r:.80}")


def check_texts(**given: object) -> None:
    """Raises `OptionError` if a value is neither a string that UTF-8 can encode nor None."""
    for name, value in given.items():
        if value is not None and not is_utf8_text(value):
            raise OptionError(f"{name}: expected a string that can be encoded as UTF-8, got {value!r:.80}")


def check_bytes(**given: object) -> None:
    """Raises `OptionError` if a value is neither bytes nor None."""
    for name, value in given.items():
        if value is not None and not isinstance(value, bytes):
            raise OptionError(
                f"{name}: expected bytes, such as the content of a binary file, got {type(value).__name__}"
            )


_GUID_BYTES = 16


def guid_bytes(value: object, *, name: str) -> bytes:
    """Returns the 16 bytes of a GUID (`uuid.UUID`, text or bytes), in the order of `uuid.UUID.bytes`."""
    if isinstance(value, uuid.UUID):
        return value.bytes
    try:
        if isinstance(value, str):
            return _core.parse_guid(value)
        if isinstance(value, bytes) and len(value) == _GUID_BYTES:
            return value
    except (InvalidGuidError, UnicodeEncodeError):  # the latter for a lone surrogate
        pass
    expected = "a uuid.UUID, 36 characters (braces allowed) or 16 bytes"
    raise InvalidGuidError(
        f"{name}: {value!r:.80} is not a valid GUID; expected {expected}",
        column=name,
        value=repr(value),
        expected=expected,
    )


def optional_guid_bytes(value: object, *, name: str) -> bytes | None:
    """Returns the bytes of a GUID as `guid_bytes` does; None for None."""
    return None if value is None else guid_bytes(value, name=name)


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_TIMESTAMP: Final = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)(?:[T ](?P<time>\d\d:\d\d(?::\d\d)?)(?:\.(?P<fraction>\d{1,9}))?\s?(?P<zone>Z|[+-]\d\d:\d\d)?)?",
    re.ASCII,
)


def utc_datetime(now: datetime | None, *, name: str = "now") -> datetime:
    """Returns `now` in UTC, or the current time if it is None. A datetime without a time zone is an error: some callers mean UTC, others local time."""
    if now is None:
        return datetime.now(UTC)
    if not isinstance(now, datetime):
        raise _not_a_datetime(now, name)
    year: object = now.year
    if not isinstance(year, int):  # pandas' NaT is a datetime whose year is not a number
        raise _not_a_datetime(now, name)
    if now.utcoffset() is None:
        raise OptionError(
            f"{name}: expected a datetime with a time zone, got {now.isoformat()}; "
            f"if it is local time, pass {name}.astimezone(); if it is UTC, pass {name}.replace(tzinfo=timezone.utc)"
        )
    try:
        return now.astimezone(UTC)
    except OverflowError as error:
        raise OptionError(
            f"{name}: expected a time between the years 1 and 9999 in UTC, got {now.isoformat()}"
        ) from error


def check_option(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raises OptionError if the value of an option is not allowed."""
    if value not in allowed:
        raise OptionError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")


def compared_times(*, at: datetime | None, before_at: datetime | None) -> tuple[datetime, datetime]:
    """Returns the times for `before` and `after` of a comparison; if `before_at` is None, both are `at`."""
    after_at = utc_datetime(at, name="at")
    return after_at if before_at is None else utc_datetime(before_at, name="before_at"), after_at


def epoch_microseconds(timestamp: datetime) -> int:
    """Returns the microseconds since 1970-01-01 UTC, rounded down; `timestamp` must have a time zone."""
    return (timestamp - EPOCH) // _MICROSECOND


def parse_timestamp(text: str) -> datetime:
    """Parses a timestamp as ISO 8601 or SQL Server writes it, UTC if it has no zone, and rounds up to microseconds.

    Raises:
        ValueError: The text is not a timestamp.

    Examples:
        >>> parse_timestamp("2026-11-20 21:00:00.1234567 +01:00").isoformat()
        '2026-11-20T20:00:00.123457+00:00'
    """
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError(text)
    day, time, fraction, zone = match["day"], match["time"] or "00:00", match["fraction"] or "", match["zone"] or "Z"
    timestamp = datetime.fromisoformat(f"{day}T{time}{zone}")
    try:
        return timestamp.astimezone(UTC) + timedelta(microseconds=-(-int(fraction.ljust(9, "0")) // 1000))
    except OverflowError:
        if timestamp.year != MAXYEAR:
            raise ValueError(text) from None
        return datetime.max.replace(tzinfo=UTC)  # SQL Server's maximum, 9999-12-31 23:59:59.9999999, means never


def _not_a_datetime(now: object, name: str) -> OptionError:
    return OptionError(f"{name}: expected a datetime or None, got {now!r} ({type(now).__name__})")
