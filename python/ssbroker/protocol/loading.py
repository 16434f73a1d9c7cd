"""Directions are read in when something comes for them, and leave memory where all together take too much of it (P26, N38)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.incoming import Incoming
from ssbroker.protocol.ledger import Key, Ledger


class Loading:
    """Knows of directions what is there, as long as there is room for that.

    Args:
        ledger: Where the fragments are.
        most: What it may take in memory to know what is there of all directions, about, in bytes; those that a batch is for stay in any case.
    """

    __slots__ = ("_ledger", "_most", "_weighed", "_weight")

    def __init__(self, ledger: Ledger, *, most: int) -> None:
        self._ledger: Final = ledger
        self._most: Final = most
        # Those of which anything waits, those first that nothing has come for the longest.
        self._weighed: Final[dict[Key, tuple[Dialog, int]]] = {}
        self._weight = 0

    def load(self, dialogs: Mapping[Key, Dialog], *, begun: Mapping[Key, Dialog]) -> None:
        """Has the directions of dialogs in memory.

        Args:
            dialogs: The dialogs.
            begun: Those that begin with this batch.
        """
        missing = {key: dialog for key, dialog in dialogs.items() if dialog.incoming is None}
        known = [key for key in missing if key not in begun]
        found = {key: Incoming(key, 0) for key in missing}
        if known:
            for key, row in zip(known, self._ledger.endpoints(known), strict=True):
                found[key].next = 0 if row is None else row.receive_sequence
            for key, place, count, digest, size in self._ledger.kept(known):
                if place[0] >= found[key].next:
                    found[key].note(place, count=count, digest=digest, size=size)
        for key, dialog in missing.items():
            dialog.incoming = found[key]

    def weigh(self, dialogs: Mapping[Key, Dialog]) -> None:
        """Notes what directions take by now. Where all take too much, those leave that nothing has come for the longest.

        Args:
            dialogs: The dialogs that something has come for.
        """
        for key, dialog in dialogs.items():
            self._lift(key)
            if dialog.incoming is not None and (weight := dialog.incoming.weight):
                self._weighed[key] = (dialog, weight)
                self._weight += weight
        while self._weight > self._most and (first := next(iter(self._weighed))) not in dialogs:
            self.unload([self._weighed[first][0]])

    def unload(self, dialogs: Iterable[Dialog]) -> None:
        """Forgets the directions of dialogs."""
        for dialog in dialogs:
            self._lift(dialog.key)
            dialog.incoming = None

    def _lift(self, key: Key) -> None:
        _, weight = self._weighed.pop(key, (None, 0))
        self._weight -= weight
