"""Which dialogs may send: those that were told of, unless where they send to takes no more for now."""

from __future__ import annotations

from collections.abc import Iterable

from ssbroker.protocol.ledger import Key
from ssbroker.protocol.residents import Residents


class Steering:
    """The methods of the machine by which its owner says whose turn may come, and looks at what is in memory."""

    _residents: Residents

    def queued(self, keys: Iterable[Key]) -> None:
        """Tells that endpoints have messages in their transmission queues, committed.

        Args:
            keys: The endpoints; after a restart, all that have any.
        """
        keys = list(keys)
        for dialog in [self._residents.known[key] for key in keys if key in self._residents.known]:
            dialog.is_drained, dialog.is_told = False, True
        self._residents.are_told(keys)

    def hold(self, keys: Iterable[Key]) -> None:
        """Has endpoints send nothing until `release`: where they send to takes no more for now (N12).

        Args:
            keys: The endpoints, in memory or not.
        """
        self._residents.hold(keys)

    def release(self, keys: Iterable[Key]) -> None:
        """Has endpoints send again.

        Args:
            keys: The endpoints; those that were not held stay as they are.
        """
        for dialog in self._residents.release(keys):
            due = [dialog.ack_due, dialog.transmission.next_due()]
            for moment in due:
                if moment is not None:
                    self._residents.wake(dialog.key, moment)

    def lost(self, keys: Iterable[Key]) -> None:
        """Tells that what endpoints have under way did not arrive: it goes again at once, not after its wait (P17).

        Args:
            keys: The endpoints.
        """
        for key in keys:
            dialog = self._residents.known.get(key)
            if dialog is not None and dialog.transmission.flights:
                dialog.transmission.hasten()
                self._residents.is_ready(dialog)

    def knows(self, key: Key) -> bool:
        """Whether an endpoint is in memory.

        Args:
            key: The endpoint.

        Returns:
            Whether it is.
        """
        return key in self._residents.known

    def take_marked_dirty(self) -> int:
        """How many transmission objects became dirty since the last call: changed for the first time since they were made or read back (P32).

        Returns:
            The number.
        """
        return self._residents.take_marked()
