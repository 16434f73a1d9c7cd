"""A RECEIVE that waits for a message."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Final

from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs.receive import ReceiveRequest, check_enabled
from ssbroker.broker.object_names import existing
from ssbroker.exceptions import StorageError
from ssbroker.protocol.settings import SECOND
from ssbroker.store import leases, queues
from ssbroker.store.sqlite import Connection


class ReceiveWait:
    """One RECEIVE that may have to wait.

    Args:
        database: The database.
        queue: The schema and name of the queue.
        deadline: When the wait ends, by the clock of `time.monotonic`; None means never.
        named: The request, if it names a conversation or group; then only messages of that conversation or group end the wait.

    Attributes:
        empty_queue_id: The id of the queue, if a check has found no message that can be received; otherwise None.
    """

    def __init__(
        self,
        database: DatabaseContext,
        queue: tuple[str, str],
        *,
        deadline: float | None,
        named: ReceiveRequest | None = None,
    ) -> None:
        self._database: Final = database
        self._named: Final = named
        self._key: Final = queue
        self._deadline: Final = math.inf if deadline is None else deadline
        self._queue_id: int | None = None
        self._is_cancelled = False
        self.empty_queue_id: int | None = None

    def cancel(self) -> None:
        """Ends the wait, in another thread."""
        self._is_cancelled = True
        if self._queue_id is not None:
            self._database.commit_signals.notify([self._queue_id])

    def wait(self) -> bool:
        """Waits until a message can be received; returns False after the timeout or `cancel`, or if the instance is being closed.

        Raises:
            StorageError: The database was detached or dropped.
        """
        signals = self._database.commit_signals
        queue_id = self._queue_id = existing(
            self._database.objects().queues, self._key, kind="queue", database=self._database.name
        ).queue_id
        with signals.count_waiter(queue_id):
            while True:
                seen = signals.count(queue_id)
                try:
                    is_ready, changes_in = self._check(queue_id)
                except StorageError:
                    with suppress(StorageError):
                        self._database.instance.databases_list.all()  # another process may have dropped the database
                    self._database.check_listed()
                    if signals.is_closed:
                        return False
                    raise
                left = self._deadline - time.monotonic()
                if signals.is_closed:
                    self._database.check_listed()
                is_over = signals.is_closed or self._is_cancelled
                if not is_ready:
                    self.empty_queue_id = queue_id
                if is_ready or left <= 0 or is_over:
                    return is_ready and not is_over
                signals.wait(queue_id, seen=seen, timeout=min(signals.check_interval, left, changes_in))

    def _check(self, queue_id: int) -> tuple[bool, float]:
        """Returns whether a message can be received, and the number of seconds until the end of a lease may change that."""
        now, file = self._database.instance.microseconds(), self._database.file
        if file.query(lambda connection: self._has_ready_messages(connection, queue_id, now=now)):
            return True, 0.0  # RECEIVE checks whether the queue is enabled
        with file.read() as connection:
            check_enabled(
                connection,
                existing(
                    self._database.objects(connection).queues, self._key, kind="queue", database=self._database.name
                ),
            )
            if self._has_ready_messages(connection, queue_id, now=now):
                return True, 0.0
            ends_at = leases.next_end(connection, queue_id, now=now)
        return False, math.inf if ends_at is None else (ends_at - now) / SECOND

    def _has_ready_messages(self, connection: Connection, queue_id: int, *, now: int) -> bool:
        if self._named is None:
            return queues.has_ready_messages(connection, queue_id, now=now) or leases.has_ended_wait(
                connection, queue_id, now=now
            )
        conversation, group = self._named.conversation, self._named.group
        return queues.has_ready_messages_of(connection, queue_id, now=now, conversation=conversation, group=group)
