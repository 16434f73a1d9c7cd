"""What time it is, for a running instance."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from ssbroker._arguments import epoch_microseconds


def system_clock() -> datetime:
    """The current moment, in UTC."""
    return datetime.now(UTC)


def in_microseconds(clock: Callable[[], datetime]) -> Callable[[], int]:
    """A clock that tells microseconds since 1970.

    Args:
        clock: A clock; of the system's own the system is asked, which takes a tenth of the time.

    Returns:
        The clock.

    Examples:
        >>> in_microseconds(lambda: datetime(1970, 1, 2, tzinfo=UTC))()
        86400000000
    """
    if clock is system_clock:
        return lambda: time.time_ns() // 1_000
    return lambda: epoch_microseconds(clock())
