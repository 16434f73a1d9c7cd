"""Writes what `transmission_status` says of conversations with other instances, as often as that takes little of the time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from ssbroker.broker.delivery import delivery
from ssbroker.broker.failing import told_failure
from ssbroker.broker.network.exchange.carrying import Carrying, Note
from ssbroker.broker.network.exchange.machine import PATIENCE
from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.retry import SECOND

if TYPE_CHECKING:
    from ssbroker.broker.database import Database

NOTES_MOST: Final = 1000
"""How many conversations are written of at once; meanwhile nobody's messages go."""
SHARE: Final = 20
"""How many times longer than the writing the wait for the next time is, at least: a neighbour that comes and goes has it done again and again."""
FAILED_WAIT: Final = SECOND


class Noting:
    """What is to be written. For one thread.

    Args:
        carrying: The conversations, and what is in their way.
        clock: The moment, in microseconds since 1970.
    """

    def __init__(self, carrying: Carrying, *, clock: Callable[[], int]) -> None:
        self._carrying: Final = carrying
        self._clock: Final = clock
        self._addresses: Final[set[str]] = set()
        self._is_due = False
        self._wrote = self._wait = 0

    def changed(self, addresses: Iterable[str] = ()) -> None:
        """Something else may be in the way of conversations, or nothing.

        Args:
            addresses: Where they go; those whose messages may not leave yet count in any case.
        """
        self._addresses.update(addresses)
        self._is_due = True

    def write(self, *, now: int) -> int | None:
        """Writes what is to be said of them by now, unless the last time was too short ago.

        Args:
            now: The moment.

        Returns:
            When to call again; None where nothing is left.
        """
        if not self._is_due:
            return None
        if 0 <= now - self._wrote < self._wait:
            return self._wrote + self._wait
        notes = self._carrying.notes(self._addresses, most=NOTES_MOST, now=now)
        is_written = self._write(notes)
        self._wrote = self._clock()
        self._wait = SHARE * max(self._wrote - now, 0) if is_written else FAILED_WAIT
        self._is_due = not is_written or len(notes) == NOTES_MOST
        if not self._is_due:
            self._addresses.clear()
            return None
        return self._wrote + self._wait

    def _write(self, notes: list[Note]) -> bool:
        """Writes notes, database by database; whether all could be."""
        by_database: dict[int, tuple[Database, list[Note]]] = {}
        for note in notes:
            database = note.carried.outgoing.database
            by_database.setdefault(database.database_id, (database, []))[1].append(note)
        is_written = True
        for database, its in by_database.values():
            senders = {each.sender.endpoint_id: each.sender for each in its}
            says = {each.sender.endpoint_id: each.says for each in its}
            try:
                delivery.note(database, senders, says, lock_timeout=PATIENCE)
            except SsbrokerError as error:
                told_failure(database, "why messages wait could not be written", error)
                is_written = False
            else:
                self._carrying.noted(its)
        return is_written
