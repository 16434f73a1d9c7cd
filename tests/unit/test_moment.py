from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from ssbroker import _arguments
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
def test_a_moment_is_read_as_iso_8601_and_as_sql_server_write_it(text: str, expected: datetime) -> None:
    """Without a zone it is UTC, and what is finer than a microsecond rounds up."""
    assert _arguments.parse(text) == expected


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
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(text)}$|range|must be"):
        _arguments.parse(text)


def test_a_naive_datetime_is_utc() -> None:
    assert _arguments.as_utc(datetime(2026, 11, 20, 21)) == datetime(2026, 11, 20, 21, tzinfo=UTC)  # noqa: DTZ001


def test_a_datetime_elsewhere_is_the_same_moment() -> None:
    there = datetime(2026, 11, 20, 21, tzinfo=timezone(timedelta(hours=5)))
    assert _arguments.as_utc(there).utcoffset() == timedelta(0)
    assert _arguments.microseconds(_arguments.as_utc(there)) == _arguments.microseconds(
        datetime(2026, 11, 20, 16, tzinfo=UTC)
    )


def test_the_current_time_has_a_zone() -> None:
    assert _arguments.as_utc(None).utcoffset() == timedelta(0)


@pytest.mark.parametrize("now", ["2026-11-20", 0, 1.5, datetime(2026, 11, 20, tzinfo=UTC).date()])
def test_anything_else_is_no_moment(now: Any) -> None:
    with pytest.raises(OptionError, match="now: expected a datetime or None"):
        _arguments.as_utc(now)


@pytest.mark.parametrize("now", ["9999-12-31T23:00:00-02:00", "0001-01-01T01:00:00+02:00"])
def test_a_moment_that_has_no_year_in_utc_is_refused(now: str) -> None:
    with pytest.raises(
        OptionError, match=f"now: expected a moment of the years 1 to 9999 in UTC, got {re.escape(now)}"
    ):
        _arguments.as_utc(datetime.fromisoformat(now))


@pytest.mark.parametrize("year", [1, 1969, 1970, 9999])
def test_microseconds_are_exact(year: int) -> None:
    point = datetime(year, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=_arguments.microseconds(point)) == point
