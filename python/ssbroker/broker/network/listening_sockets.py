"""Settings of listening sockets, which accept one connection at a time, and the log lines about failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from ssbroker.protocol.events import EventLog

BACKLOG: Final = 1024
"""The number of connections that the system holds until they are accepted."""
ACCEPT_BATCH: Final = 1
"""Pass this as `backlog` to asyncio, which accepts as many connections at once, and then call `listen(BACKLOG)`. With a larger value, asyncio
would accept more sockets before their limits are checked, and retry more often when no file descriptor is left."""
_LOGGER: Final = logging.getLogger("ssbroker.broker")


def log_loop_errors(loop: asyncio.AbstractEventLoop, *, name: str, events: EventLog, clock: Callable[[], int]) -> None:
    """Logs errors of an event loop that belong to no connection, such as too many open files on accept.

    Args:
        loop: The event loop.
        name: The name of the instance.
        events: Limits the lines.
        clock: Returns the time in microseconds since 1970.
    """

    def log(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        message = str(context["message"])
        if events.allows_line(message, level=logging.ERROR, source=name, now=clock()):
            error = context.get("exception")
            _LOGGER.error("%s: %s: %s", name, message, error, exc_info=None if isinstance(error, OSError) else error)

    loop.set_exception_handler(log)
