"""The clock of a running instance."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from ssbroker._arguments import epoch_microseconds


def system_clock() -> datetime:
    """Returns the current time, in UTC."""
    return datetime.now(UTC)


def in_microseconds(clock: Callable[[], datetime]) -> Callable[[], int]:
    """Returns a clock in microseconds since 1970."""
    if clock is system_clock:
        return lambda: time.time_ns() // 1_000
    return lambda: epoch_microseconds(clock())
