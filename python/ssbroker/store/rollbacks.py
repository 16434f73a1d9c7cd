"""How often in a row transactions that received from a queue were rolled back (B24)."""

from __future__ import annotations

from collections.abc import Iterable

from ssbroker.store.sqlite import Connection


def count(connection: Connection, queue_id: int) -> int:
    """Counts one more.

    Args:
        connection: The database, with its write lock.
        queue_id: The queue.

    Returns:
        How often it was now; 0 where the queue is gone.
    """
    connection.execute("UPDATE ssb_queues SET rollbacks = rollbacks + 1 WHERE queue_id = ?", (queue_id,))
    row = connection.execute("SELECT rollbacks FROM ssb_queues WHERE queue_id = ?", (queue_id,)).fetchone()
    return 0 if row is None else row[0]


def forget(connection: Connection, queue_ids: Iterable[int]) -> None:
    """Begins to count anew; writes nothing where nothing was counted.

    Args:
        connection: The database, with its write lock.
        queue_ids: The queues.
    """
    for queue_id in queue_ids:
        connection.statements.forget_rollbacks(queue_id)
