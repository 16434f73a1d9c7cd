"""What all events have."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from ssbroker.moment import EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What all events have.

    Attributes:
        at: The moment, in microseconds since 1970, UTC.
        database: The database in which it happened; None where it was none of them.
    """

    at: int
    database: str | None = None

    NAME: ClassVar[str] = ""
    TRACE_ID: ClassVar[int] = 0
    LEVEL: ClassVar[int] = logging.DEBUG

    @property
    def level(self) -> int:
        """At which level it is logged."""
        return self.LEVEL

    @property
    def source(self) -> str | None:
        """Whose doing it is, as far as neighbours can have as many as they like of it: these are logged for a while only (N35)."""
        return None

    @property
    def when(self) -> datetime:
        """The moment as a datetime in UTC."""
        return EPOCH + timedelta(microseconds=self.at)
