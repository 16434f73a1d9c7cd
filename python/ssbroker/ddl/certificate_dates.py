"""Parses the dates of certificates."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from ssbroker._arguments import parse_timestamp
from ssbroker.ddl.errors import RefusalError

# SQL Server's date formats other than ISO 8601: 20261121 and 11/21/2026.
_FORMATS: Final = (
    re.compile(r"(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)(?=\Z|[T ])", re.ASCII),
    re.compile(r"(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4})(?=\Z|[T ])", re.ASCII),
)


def parse_date(text: str | None) -> datetime | None:
    """Parses a date in one of SQL Server's formats, with or without a time; returns None for None."""
    if text is None:
        return None
    found = next(filter(None, (date_format.match(text) for date_format in _FORMATS)), None)
    day = "" if found is None else f"{found['year']}-{found['month']:0>2}-{found['day']:0>2}"
    try:
        return parse_timestamp(text if found is None else day + text[found.end() :])
    except ValueError:
        raise RefusalError(
            f"{text!r:.80} is not a valid timestamp; expected a timestamp such as '2026-11-21', '20261121' or '2026-11-21 08:00:00'",
            241,
        ) from None
