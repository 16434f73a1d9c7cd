"""Moments in time as the rules count them: microseconds since 1970, UTC."""

from __future__ import annotations

import re
from datetime import MAXYEAR, UTC, datetime, timedelta
from typing import Final

from ssbroker.exceptions import OptionError

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
