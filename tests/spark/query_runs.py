"""Runs streaming queries to their end, also on an overloaded machine."""

from __future__ import annotations

from typing import Any, Final

from pyspark.errors import StreamingQueryException

WORKER_TIMEOUT: Final = "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to start; this is not configurable."""
_ATTEMPTS: Final = 6


def run_to_end(writer: Any) -> None:
    """Runs a query with `availableNow`; if Python started too late, it resumes from its checkpoint.

    Args:
        writer: A `DataFrame.writeStream` with a checkpoint.
    """
    for attempts_left in reversed(range(_ATTEMPTS)):
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        except StreamingQueryException as error:
            if WORKER_TIMEOUT not in str(error) or not attempts_left:
                raise
        else:
            return
