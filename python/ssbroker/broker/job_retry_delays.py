"""The delay before the messages of a failed job can be received again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ssbroker.exceptions import OptionError

RetryAfter = float | Callable[[int], float]
"""Seconds, or a function of the number of failures so far that returns seconds."""
DELAY_MAX: Final = 366 * 24 * 3600
"""The longest wait or lease, in seconds."""
_DEFAULT_MAX: Final = 3600.0


def default_delay(failures: int) -> float:
    """Returns 1, 4, 16 and 64 seconds after the first four failures; with poison message handling, the fifth failure is the last."""
    return min(4.0 ** min(failures - 1, 10), _DEFAULT_MAX)


def check_retry_after(retry_after: object) -> RetryAfter:
    """Returns the option `retry_after` of a work queue, or the default for None.

    Raises:
        OptionError: `retry_after` is neither a function nor a valid number of seconds.
    """
    if retry_after is None:
        return default_delay
    if callable(retry_after):
        return retry_after
    return _checked(retry_after, "seconds, a function that returns them, or None")


def delay_after(retry_after: RetryAfter, failures: int) -> float:
    """Returns the seconds to wait after a failure; `failures` includes this failure.

    Raises:
        OptionError: The function returned an invalid number.
        Exception: Whatever the function raises.
    """
    if callable(retry_after):
        return _checked(retry_after(failures), f"its function to return seconds for {failures}")
    return retry_after


def _checked(seconds: object, expected: str) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= DELAY_MAX:
        raise OptionError(f"retry_after: expected {expected}, from 0 to {DELAY_MAX}; got {seconds!r:.80}")
    return float(seconds)
