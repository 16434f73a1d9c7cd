"""Writes the `transmission_status` of conversations that the exchange sends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ssbroker.broker import delivery
from ssbroker.broker.context import DatabaseContext, log_failure
from ssbroker.broker.network.conversations_in_transit import ConversationsInTransit, StatusUpdate
from ssbroker.broker.network.database_dialogs import FAILED_DATABASE_RETRY_INTERVAL
from ssbroker.broker.network.dialog_keys import EXCHANGE_LOCK_TIMEOUT
from ssbroker.exceptions import SsbrokerError

UPDATES_MAX: Final = 1000
"""The statuses to write in one transaction; nothing is sent meanwhile."""
PAUSE_FACTOR: Final = 20
"""The pause after writing is at least this many times as long as the writing took, so that an unstable peer costs little."""


class StatusWriter:
    """Writes the changed `transmission_status` of conversations in transit. For one thread.

    Attributes:
        is_due: Whether a status may have changed and `write` is to be called.
    """

    def __init__(self, in_transit: ConversationsInTransit, *, clock: Callable[[], int]) -> None:
        self._in_transit: Final = in_transit
        self._clock: Final = clock
        self._addresses: Final[set[str]] = set()
        self.is_due = False
        self._written_at = self._pause = 0

    def mark_changed(self, addresses: Iterable[str] = ()) -> None:
        """Notes that the statuses of conversations that use some addresses, or are blocked, may have changed."""
        self._addresses.update(addresses)
        self.is_due = True

    def write(self, *, now: int) -> int | None:
        """Writes changed statuses, unless it is too early; returns when to call it again, or None if nothing is left."""
        if not self.is_due:
            return None
        if 0 <= now - self._written_at < self._pause:
            return self._written_at + self._pause
        updates = self._in_transit.updates(self._addresses, max_updates=UPDATES_MAX, now=now)
        is_written = self._write(updates)
        self._written_at = self._clock()
        self._pause = PAUSE_FACTOR * max(self._written_at - now, 0) if is_written else FAILED_DATABASE_RETRY_INTERVAL
        self.is_due = not is_written or len(updates) == UPDATES_MAX
        if not self.is_due:
            self._addresses.clear()
            return None
        return self._written_at + self._pause

    def _write(self, updates: list[StatusUpdate]) -> bool:
        """Writes statuses, database by database; returns whether all were written."""
        by_database: dict[int, tuple[DatabaseContext, list[StatusUpdate]]] = {}
        for update in updates:
            database = update.conversation.outgoing.database
            by_database.setdefault(database.database_id, (database, []))[1].append(update)
        is_written = True
        for database, group in by_database.values():
            senders = {each.sender.endpoint_id: each.sender for each in group}
            status_text = {each.sender.endpoint_id: each.status_text for each in group}
            try:
                delivery.write_statuses(database, senders, status_text, lock_timeout=EXCHANGE_LOCK_TIMEOUT)
            except SsbrokerError as error:
                log_failure(database, "transmission_status could not be written", error)
                is_written = False
            else:
                self._in_transit.mark_written(group)
        return is_written
