"""Tells the log of what failed for a database and is tried again: as often as that is tried, it would fill the disk with the same line (N35)."""

from __future__ import annotations

import logging
from typing import Final

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.context import DatabaseContext
from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.events import print_logging_errors

LOGGER: Final = logging.getLogger("ssbroker.broker")


def log_failure(database: DatabaseContext, what: str, error: Exception) -> str:
    """Logs that something failed: for 20 lines a minute of each kind and database, and then as one that counts the others.

    Args:
        database: The database.
        what: What could not be done, and what happens next.
        error: Why. One that nobody foresaw is logged with the way that it came.

    Returns:
        The same in a line.
    """
    is_foreseen = isinstance(error, SsbrokerError)
    why = str(error) if is_foreseen else f"{type(error).__name__}: {error}"
    now = epoch_microseconds(database.now())
    if database.instance.events.allows_line(what, level=logging.WARNING, source=database.name, now=now):
        with print_logging_errors():
            LOGGER.warning("%s: %s: %s", database.name, what, why, exc_info=None if is_foreseen else error)
    return why
