"""The delay before the messages of a failed job can be received again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ssbroker._arguments import duration_seconds, returns_at_once
from ssbroker.exceptions import OptionError

RetryAfter = float | Callable[[int], float]
"""Seconds, or a function of the number of failures so far that returns seconds."""
_DEFAULT_MAX: Final = 3600.0
_ALTERNATIVES: Final = ", a function that returns one, or None"


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
    if not callable(retry_after):
        return duration_seconds(retry_after, name="retry_after", minimum=0, alternatives=_ALTERNATIVES)
    if returns_at_once(retry_after):
        return retry_after
    raise OptionError(
        f"retry_after: expected a regular function, got {retry_after!r:.80}, which is a coroutine or generator function"
    )


def delay_after(retry_after: RetryAfter, failures: int) -> float:
    """Returns the seconds to wait after a failure; `failures` includes this failure.

    Raises:
        OptionError: The function returned an invalid number.
        Exception: Whatever the function raises.
    """
    if not callable(retry_after):
        return retry_after
    return duration_seconds(retry_after(failures), name=f"result of retry_after({failures})", minimum=0)
