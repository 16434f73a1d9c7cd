"""Workers: they run a function for each job of a work queue."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Awaitable, Callable
from typing import Final

from ssbroker._arguments import returns_at_once
from ssbroker.broker import async_calls
from ssbroker.broker.context import DatabaseContext, log_failure
from ssbroker.broker.job import Job
from ssbroker.exceptions import BrokerError, FileReplacedError, LeaseLostError, OptionError, StorageError
from ssbroker.protocol.broker_errors import RECEIVE_DISABLED

_LONGEST_PAUSE: Final = 5.0
"""The longest pause after a failure to take a job, in seconds; `Instance.stop_workers` does not end a pause."""


def run(
    database: DatabaseContext, take: Callable[[], Job], function: Callable[[Job], object], *, timeout: float | None
) -> None:
    """Implements `WorkQueue.run_worker`; `take` returns the next job, and waits for it up to `timeout` seconds."""
    given: object = function
    if not callable(given) or not returns_at_once(function):
        raise OptionError(
            f"function: expected a regular function that takes a job, got {function!r:.80}; "
            "for a coroutine function, use `await queue.arun_worker(function)`"
        )
    failures = _Failures(database, timeout)
    while True:
        job = take()
        try:
            with job:
                if not job:
                    return
                failures.reset()
                function(job)
        except Exception as error:  # noqa: BLE001  # a job that fails must not end the worker
            pause = failures.pause_after(error, job)
            if pause is None:
                return
            time.sleep(pause)


async def arun(
    database: DatabaseContext,
    take: Callable[[], Job],
    function: Callable[[Job], Awaitable[object]],
    *,
    timeout: float | None,  # noqa: ASYNC109  # as `WorkQueue.arun_worker`
) -> None:
    """Implements `WorkQueue.arun_worker`; `take` returns the next job, and waits for it up to `timeout` seconds."""
    if not any(map(inspect.iscoroutinefunction, (function, type(function).__call__))):
        raise OptionError(
            f"function: expected a coroutine function (`async def`) that takes a job, got {function!r:.80}; "
            "for a regular function, use `queue.run_worker(function)`"
        )
    failures = _Failures(database, timeout)
    while True:
        job = take()
        try:
            async with job:
                if not job:
                    return
                failures.reset()
                await function(job)
        except Exception as error:  # noqa: BLE001  # a job that fails must not end the worker
            pause = failures.pause_after(error, job)
            if pause is None:
                return
            await async_calls.sleep(pause)


class _Failures:
    """Decides how a worker continues after an exception."""

    def __init__(self, database: DatabaseContext, timeout: float | None) -> None:
        self._database: Final = database
        self._timeout: Final = math.inf if timeout is None else timeout
        self.reset()

    def reset(self) -> None:
        self._pause = 1.0
        self._give_up_at: float | None = None

    def pause_after(self, error: Exception, job: Job) -> float | None:
        """Returns the seconds until the worker takes the next job; None if the worker ends, because the instance is closed.

        The failure of a job has already been logged as the event `JobFailed`. If `job` has no messages, taking it has failed: the worker
        tries again until the database can be used and the queue is enabled again, or the timeout has passed.

        Raises:
            Exception: The error, if no later attempt can succeed, for example because the queue was dropped, or if attempts have failed
                until the timeout has passed.
        """
        if job:
            if isinstance(error, LeaseLostError):
                log_failure(self._database, "a job could not be completed", error)
            return 0.0
        if self._database.commit_signals.is_closed:
            return None
        if self._is_permanent(error):
            raise error
        now = time.monotonic()
        if self._give_up_at is None:
            self._give_up_at = now + self._timeout
        remaining = self._give_up_at - now
        if remaining <= 0:
            raise error
        pause, self._pause = min(self._pause, remaining), min(2 * self._pause, _LONGEST_PAUSE)
        log_failure(self._database, f"a worker cannot take jobs; trying again in {pause:.2g} s", error)
        return pause

    def _is_permanent(self, error: Exception) -> bool:
        """Returns whether the error is permanent: as long as the worker uses this `Instance` object, it can never take a job again."""
        if isinstance(error, StorageError):
            return isinstance(error, FileReplacedError) or self._database.file.is_inherited
        return not (isinstance(error, BrokerError) and error.number == RECEIVE_DISABLED)
