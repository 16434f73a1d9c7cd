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
_NOTHING: Final = -1
"""What `Arrivals.count` never says: whoever has seen no more looks at once."""


class Patience:
    """One RECEIVE that may have to wait. It notes what was told before its first look, so that nothing that comes after it is missed.

    Args:
        database: The database.
        queue: The queue's schema and name.
        until: When it gives up, by `time.monotonic`.
    """

    def __init__(self, database: Database, queue: tuple[str, str], *, until: float) -> None:
        self._database: Final = database
        self._key: Final = queue
        self._until: Final = until
        self._told: Final = database.arrivals.told
        self._queue_id: int | None = None
        self._seen = _NOTHING

    def wait(self) -> bool:
        """Waits until a message may be there.

        Returns:
            Whether to look; False where the time is over, or the instance is being closed.

        Raises:
            BrokerError: The queue was turned off (9617) or dropped (15151).
            StorageError: The database was closed.
        """
        arrivals = self._database.arrivals
        queue_id = self._queue_id
        if queue_id is None:
            queue_id = self._queue_id = existing(self._database.objects().queues, self._key, kind="queue").queue_id
            seen = arrivals.count(queue_id)
            self._seen = seen if arrivals.told == self._told else _NOTHING
        with arrivals.waits(queue_id):
            while not arrivals.is_closed and (left := self._until - time.monotonic()) > 0:
                arrivals.wait(queue_id, seen=self._seen, timeout=min(LOOK_EVERY, left))
                self._seen = arrivals.count(queue_id)
                with self._database.file.read() as connection:
                    check_on(existing(self._database.objects(connection).queues, self._key, kind="queue"))
                    if queues.has_ready(connection, queue_id):
                        return True
        return False
