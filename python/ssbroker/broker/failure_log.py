"""Rate-limited logging of failures that are retried."""

from __future__ import annotations

import logging
from typing import Final

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.context import DatabaseContext
from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.events import print_logging_errors

LOGGER: Final = logging.getLogger("ssbroker.broker")


def log_failure(database: DatabaseContext, message: str, error: Exception) -> str:
    """Logs a failure, at most 20 lines a minute for each message and database; returns the reason."""
    is_expected = isinstance(error, SsbrokerError)
    reason = str(error) if is_expected else f"{type(error).__name__}: {error}"
    now = epoch_microseconds(database.now())
    if database.instance.events.allows_line(message, level=logging.WARNING, source=database.name, now=now):
        with print_logging_errors():
            LOGGER.warning("%s: %s: %s", database.name, message, reason, exc_info=None if is_expected else error)
    return reason
