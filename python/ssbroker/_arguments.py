"""Checks and conversions of arguments: numbers, flags, texts, GUIDs and timestamps."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Sequence
from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import Final

from ssbroker import _core
from ssbroker.exceptions import InvalidGuidError, OptionError


def whole(value: object, *, name: str, least: int, most: int) -> int:
    """A whole number within limits.

    Args:
        value: What was given.
        name: The option, for messages.
        least: The smallest number allowed.
        most: The largest.

    Returns:
        The number.

    Raises:
        OptionError: It is no whole number, or not within the limits.

    Examples:
        >>> whole(4096, name="max_fragment_bytes", least=1, most=2**31 - 1)
        4096
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise OptionError(f"{name}: expected a whole number from {least} to {most}; got {value!r:.80}")
    return value


def number(value: object, *, name: str, least: float, most: float) -> float:
    """A number within limits.

    Args:
        value: What was given.
        name: The option, for messages.
        least: The smallest number allowed.
        most: The largest.

    Returns:
        The number.

    Raises:
        OptionError: It is no number, or not within the limits.

    Examples:
        >>> number(0.25, name="loss", least=0, most=1)
        0.25
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise OptionError(f"{name}: expected a number from {least:,} to {most:,}; got {value!r:.80}")
    return value


def seconds(value: object, *, name: str) -> float:
    """How long to wait.

    Args:
        value: What was given.
        name: The option, for messages.

    Returns:
        The seconds; infinity where it is more than a float holds.

    Raises:
        OptionError: It is no number, or below 0.

    Examples:
        >>> seconds(0.5, name="timeout"), seconds(10**400, name="timeout")
        (0.5, inf)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise OptionError(f"{name}: expected seconds, 0 or more; got {value!r:.80}")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def flag(value: object, *, name: str) -> bool:
    """True or False, and nothing that only counts as one.

    Args:
        value: What was given.
        name: The option, for messages.

    Returns:
        The same.

    Raises:
        OptionError: It is no boolean.

    Examples:
        >>> flag(True, name="in_order")
        True
    """
    if not isinstance(value, bool):
        raise OptionError(f"{name}: expected True or False; got {value!r:.80}")
    return value


def texts(values: object, *, name: str) -> list[str]:
    """A sequence of texts, which a lone text is not.

    Args:
        values: What was given.
        name: The option, for messages.

    Returns:
        The texts.

    Raises:
        OptionError: It is no sequence, or one of the values is no text that UTF-8 can write.

    Examples:
        >>> texts(("TCP://a", "TCP://b"), name="addresses")
        ['TCP://a', 'TCP://b']
    """
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise OptionError(f"{name}: expected a sequence of texts, got {values!r:.80}")
    wrong = [value for value in values if not is_text(value)]
    if wrong:
        raise OptionError(f"{name}: expected a sequence of texts, one is {wrong[0]!r:.80}")
    return list(values)


def is_text(value: object) -> bool:
    r"""Whether it is text that UTF-8 can write: a lone surrogate, as Python reads bytes of a command line that are no text, is none.

    Examples:
        >>> is_text("//Größe"), is_text("\udcff"), is_text(b"//Orders")
        (True, False, False)
    """
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_BYTES = 16


def as_bytes(value: object, *, name: str) -> bytes:
    """The 16 bytes of a GUID, in the order of `uuid.UUID.bytes`.

    Args:
        value: A `uuid.UUID`, text of 36 characters (braces allowed), or 16 bytes.
        name: What the value is, for messages.

    Returns:
        The bytes.

    Raises:
        InvalidGuidError: It is none of these.

    Examples:
        >>> as_bytes("{00000000-0000-0000-0000-000000000001}", name="conversation_id")[-1]
        1
    """
    if isinstance(value, uuid.UUID):
        return value.bytes
    try:
        if isinstance(value, str):
            return _core.parse_guid(value)
        if isinstance(value, bytes) and len(value) == _BYTES:
            return value
    except (InvalidGuidError, UnicodeEncodeError):  # the latter for half a surrogate pair
        pass
    expected = "a GUID: a uuid.UUID, text of 36 characters (braces allowed), or 16 bytes"
    raise InvalidGuidError(
        f"{name}: {value!r:.80} is not {expected}", column=name, value=repr(value), expected=expected
    )


EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MOMENT: Final = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)(?:[T ](?P<time>\d\d:\d\d(?::\d\d)?)(?:\.(?P<fraction>\d{1,9}))?\s?(?P<zone>Z|[+-]\d\d:\d\d)?)?",
    re.ASCII,
)


def as_utc(now: datetime | None, *, name: str = "now") -> datetime:
    """The moment to route at: `now` in UTC, or the current time where it is None.

    Args:
        now: A datetime; one without a zone is UTC.
        name: What it is called, for messages.

    Returns:
        The moment, with the zone UTC.

    Raises:
        OptionError: `now` is something else, or in UTC no moment of the years 1 to 9999.

    Examples:
        >>> from datetime import datetime
        >>> as_utc(datetime(2026, 11, 20, 21)).isoformat()
        '2026-11-20T21:00:00+00:00'
    """
    if now is None:
        return datetime.now(UTC)
    if not isinstance(now, datetime):
        raise _refused(now, name)
    year: object = now.year
    if not isinstance(year, int):  # pandas' NaT is a datetime whose year is not a number
        raise _refused(now, name)
    try:
        return now.replace(tzinfo=UTC) if now.tzinfo is None else now.astimezone(UTC)
    except OverflowError as error:
        raise OptionError(f"{name}: expected a moment of the years 1 to 9999 in UTC, got {now.isoformat()}") from error


def microseconds(moment: datetime) -> int:
    """The whole microseconds from 1970 to `moment`, which has a zone.

    Examples:
        >>> from datetime import UTC, datetime
        >>> microseconds(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
        1000000
    """
    return (moment - EPOCH) // _MICROSECOND


def parse(text: str) -> datetime:
    """Reads a moment as ISO 8601 or SQL Server write it; without a zone it is UTC.

    What is finer than a microsecond rounds up (K25).

    Args:
        text: Such as `2026-11-20T21:00:00Z`, `2026-11-20 21:00:00.123` or `2026-11-20 21:00:00.1234567 +01:00`.

    Returns:
        The moment, with the zone UTC.

    Raises:
        ValueError: The text is no moment.

    Examples:
        >>> parse("2026-11-20 21:00:00.1234567 +01:00").isoformat()
        '2026-11-20T20:00:00.123457+00:00'
    """
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError(text)
    day, time, fraction, zone = found["day"], found["time"] or "00:00", found["fraction"] or "", found["zone"] or "Z"
    moment = datetime.fromisoformat(f"{day}T{time}{zone}")
    try:
        return moment.astimezone(UTC) + timedelta(microseconds=-(-int(fraction.ljust(9, "0")) // 1000))
    except OverflowError:
        if moment.year != MAXYEAR:
            raise ValueError(text) from None
        return datetime.max.replace(tzinfo=UTC)  # SQL Server's last moment, 9999-12-31 23:59:59.9999999, means never


def _refused(now: object, name: str) -> OptionError:
    return OptionError(f"{name}: expected a datetime or None, got {now!r} ({type(now).__name__})")
