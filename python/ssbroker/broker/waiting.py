"""Waits for a message without holding the write lock (B2)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from ssbroker.broker.dialogs.receiving import check_on
from ssbroker.broker.objects.refusals import existing
from ssbroker.store import queues

if TYPE_CHECKING:
    from ssbroker.broker.database import Database

LOOK_EVERY: Final = 0.05
"""The seconds between two looks at what other processes have committed."""


class Patience:
    """One RECEIVE that waits. It begins to count before its first look, so that nothing that comes after it is missed.

    Args:
        database: The database.
        queue: The queue's schema and name.
        until: When it gives up, by `time.monotonic`.
    """

    def __init__(self, database: Database, queue: tuple[str, str], *, until: float) -> None:
        self._database: Final = database
        self._key: Final = queue
        self._until: Final = until
        self._queue_id: Final = existing(database.objects().queues, queue, kind="queue").queue_id
        self._seen = database.arrivals.count(self._queue_id)

    def wait(self) -> bool:
        """Waits until a message may be there.

        Returns:
            Whether to look; False where the time is over, or the instance is being closed.

        Raises:
            BrokerError: The queue was turned off (9617) or dropped (15151).
            StorageError: The database was closed.
        """
        arrivals, queue_id = self._database.arrivals, self._queue_id
        with arrivals.waits(queue_id):
            while not arrivals.is_closed and (left := self._until - time.monotonic()) > 0:
                arrivals.wait(queue_id, seen=self._seen, timeout=min(LOOK_EVERY, left))
                self._seen = arrivals.count(queue_id)
                with self._database.file.read() as connection:
                    check_on(existing(self._database.objects(connection).queues, self._key, kind="queue"))
                    if queues.has_ready(connection, queue_id):
                        return True
        return False
