"""Queries that run to their end on a machine that has too much to do."""

from __future__ import annotations

from typing import Any, Final

from pyspark.errors import StreamingQueryException

TOO_LATE: Final = "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to start, which no setting changes."""
_TRIES: Final = 6


def run(writer: Any) -> None:
    """Starts a query with `availableNow` and waits for its end; one whose Python came too late goes on from its checkpoint.

    Args:
        writer: As of `DataFrame.writeStream`, with a checkpoint.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        except StreamingQueryException as error:
            if TOO_LATE not in str(error) or not tries_left:
                raise
        else:
            return
