"""Parsing and conversion of timestamps."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from ssbroker._arguments import epoch_microseconds, parse_timestamp, utc_datetime
from ssbroker.exceptions import OptionError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-20T21:00:00Z", datetime(2026, 11, 20, 21, tzinfo=UTC)),
        ("2026-11-20T21:00:00", datetime(2026, 11, 20, 21, tzinfo=UTC)),
        ("2026-11-20 21:00:00.123", datetime(2026, 11, 20, 21, 0, 0, 123_000, tzinfo=UTC)),
        ("2026-11-20 21:00", datetime(2026, 11, 20, 21, tzinfo=UTC)),
        ("2026-11-20", datetime(2026, 11, 20, tzinfo=UTC)),
        ("2026-11-20T21:00:00+02:30", datetime(2026, 11, 20, 18, 30, tzinfo=UTC)),
        ("2026-11-20 21:00:00.0000000 -01:00", datetime(2026, 11, 20, 22, tzinfo=UTC)),
        ("2026-11-20 21:00:00.0000001", datetime(2026, 11, 20, 21, 0, 0, 1, tzinfo=UTC)),
        ("2026-12-31 23:59:59.9999999", datetime(2027, 1, 1, tzinfo=UTC)),
        ("9999-12-31 23:59:59.9999999", datetime.max.replace(tzinfo=UTC)),
    ],
)
def test_timestamps_of_iso_8601_and_sql_server_are_parsed(text: str, expected: datetime) -> None:
    """A timestamp without a zone is UTC; fractions of a microsecond round up."""
    assert parse_timestamp(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "never",
        "20.11.2026",
        "2026-13-01",
        "2026-11-20T25:00:00Z",
        "2026-11-20T21:00:00Zulu",
        "20261120",
        "0001-01-01T00:00+01:00",
    ],
)
def test_invalid_timestamps_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(text)}$|range|must be"):
        parse_timestamp(text)


class ZoneWithoutOffset(tzinfo):
    """A zone that gives no offset, so that the time is naive."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


@pytest.mark.parametrize("zone", [None, ZoneWithoutOffset()])
def test_a_datetime_without_a_time_zone_is_rejected(zone: tzinfo | None) -> None:
    message = (
        "at: expected a datetime with a time zone, got 2026-11-20T21:00:00; "
        "if it is local time, pass at.astimezone(); if it is UTC, pass at.replace(tzinfo=timezone.utc)"
    )
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        utc_datetime(datetime(2026, 11, 20, 21, tzinfo=zone), name="at")


def test_a_datetime_of_another_zone_is_converted_to_utc() -> None:
    local = datetime(2026, 11, 20, 21, tzinfo=timezone(timedelta(hours=5)))
    assert utc_datetime(local).utcoffset() == timedelta(0)
    assert epoch_microseconds(utc_datetime(local)) == epoch_microseconds(datetime(2026, 11, 20, 16, tzinfo=UTC))


def test_the_current_time_has_a_zone() -> None:
    assert utc_datetime(None).utcoffset() == timedelta(0)


@pytest.mark.parametrize("now", ["2026-11-20", 0, 1.5, datetime(2026, 11, 20, tzinfo=UTC).date()])
def test_values_of_other_types_are_rejected(now: Any) -> None:
    with pytest.raises(OptionError, match="now: expected a datetime or None"):
        utc_datetime(now)


@pytest.mark.parametrize("now", ["9999-12-31T23:00:00-02:00", "0001-01-01T01:00:00+02:00"])
def test_a_datetime_outside_the_years_of_utc_is_rejected(now: str) -> None:
    with pytest.raises(
        OptionError, match=f"now: expected a time between the years 1 and 9999 in UTC, got {re.escape(now)}"
    ):
        utc_datetime(datetime.fromisoformat(now))


@pytest.mark.parametrize("year", [1, 1969, 1970, 9999])
def test_microseconds_are_exact(year: int) -> None:
    point = datetime(year, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=epoch_microseconds(point)) == point
