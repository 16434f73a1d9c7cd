"""The endpoints that are in memory: read in when something happens to them, put aside when nothing does (P31, P32)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ssbroker.protocol.dialog import Dialog, dialog_of
from ssbroker.protocol.flight import Flight
from ssbroker.protocol.ledger import Key, Ledger
from ssbroker.protocol.packing import packed, unpacked

IDLE: Final = 10_000_000
"""After how many microseconds without a change an endpoint is put aside."""
_USUAL_PRIORITY: Final = 5


class Residents:
    """The endpoints that are in memory, whose turn it is, and when something is due.

    Args:
        ledger: Where their rows and the work table are.
        honor_priority: Whether those with a higher priority come first (B19).
    """

    __slots__ = (
        "_held",
        "_honor_priority",
        "_ledger",
        "_marked",
        "_outdated",
        "_ready",
        "_timers",
        "_unmarked",
        "_unread",
        "known",
    )

    def __init__(self, ledger: Ledger, *, honor_priority: bool) -> None:
        self._ledger = ledger
        self._honor_priority = honor_priority
        self._ready: dict[int, dict[Key, None]] = {}
        self._timers: list[tuple[int, bytes, bool]] = []
        # Those that were told of and are to be read in.
        self._unread: dict[Key, None] = {}
        # Whether they became ready since they are held.
        self._held: dict[Key, bool] = {}
        # Those that were forgotten: what the work table has of them is of a time before.
        self._outdated: set[Key] = set()
        # Those whose transmission objects nobody has seen dirty since they came into memory, and how many were seen that nobody has taken.
        self._unmarked: set[Key] = set()
        self._marked = 0
        self.known: dict[Key, Dialog] = {}

    def load(self, keys: Iterable[Key]) -> dict[Key, Dialog]:
        """Endpoints by key, read in where they are not in memory; what the ledger does not have is left out."""
        keys = list(keys)
        missing = [key for key in keys if key not in self.known]
        if missing:
            aside = self._ledger.read_back(missing)
            for key, endpoint in zip(missing, self._ledger.endpoints(missing), strict=True):
                if endpoint is None:
                    self._outdated.discard(key)
                else:
                    data = None if key in self._outdated else aside.get(key)
                    self.take_in(dialog_of(endpoint, None if data is None else unpacked(data)))
        known = self.known
        return {key: known[key] for key in keys if key in known}

    def take_in(self, dialog: Dialog) -> None:
        """Has an endpoint in memory from now on."""
        self.known[dialog.key] = dialog
        self._unmarked.add(dialog.key)

    def take_marked(self) -> int:
        """How many transmission objects became dirty since the last call (fact 170): changed for the first time since they came into memory."""
        self._count([self.known[key] for key in self._unmarked])
        marked, self._marked = self._marked, 0
        return marked

    def is_ready(self, dialog: Dialog) -> None:
        """Notes that a dialog may have something to send."""
        if dialog.key in self._held:
            self._held[dialog.key] = True
            return
        priority = dialog.endpoint.priority if self._honor_priority else _USUAL_PRIORITY
        self._ready.setdefault(priority, {})[dialog.key] = None

    def are_ready(self, dialogs: Iterable[Dialog]) -> None:
        """Notes that dialogs may have something to send."""
        for dialog in dialogs:
            self.is_ready(dialog)

    def are_told(self, keys: Iterable[Key]) -> None:
        """Notes that endpoints may have something to send, in memory or not: those that are not are read in when turns are given."""
        for key in keys:
            if key in self.known:
                self.is_ready(self.known[key])
            else:
                self._unread[key] = None

    def take_ready(self) -> Iterator[Dialog]:
        """Dialogs in turn, the highest priority first; each is taken off."""
        if self._unread:
            self.are_ready(self.load(self._unread).values())  # where that fails, they are read in the next time
            self._unread.clear()
        for priority in sorted(self._ready, reverse=True):
            waiting = self._ready[priority]
            while waiting:
                key = next(iter(waiting))
                dialog = self.known.get(key) or self.load([key]).get(key)  # where that fails, it is still its turn
                del waiting[key]
                if dialog is not None:
                    yield dialog

    def put_back(self, turns: Iterable[tuple[Dialog, list[Flight]]], owing: Iterable[Dialog], moment: int) -> None:
        """Has those whose turn failed, since something could not be read, have it again.

        Args:
            turns: The dialogs, and what each was to send again.
            owing: Those that were to acknowledge.
            moment: When that was.
        """
        for dialog, lost in turns:
            dialog.transmission.flights += lost
            self.is_ready(dialog)
        for dialog in owing:
            self.wake(dialog.key, moment)

    def hold(self, keys: Iterable[Key]) -> None:
        """Has endpoints send nothing."""
        for key in keys:
            if key not in self._held:
                found = [waiting for waiting in self._ready.values() if key in waiting]
                for waiting in found:
                    del waiting[key]
                self._held[key] = bool(found)

    def is_held(self, dialog: Dialog) -> bool:
        """Whether a dialog sends nothing."""
        return dialog.key in self._held

    def release(self, keys: Iterable[Key]) -> list[Dialog]:
        """Has endpoints send again; those of them that are in memory."""
        was_ready = {key: self._held.pop(key) for key in keys if key in self._held}
        self.are_told([key for key, ready in was_ready.items() if ready])
        return [self.known[key] for key in was_ready if key in self.known]

    @property
    def has_ready(self) -> bool:
        """Whether a dialog may have something to send."""
        return bool(self._unread) or any(self._ready.values())

    def wake(self, key: Key, due: int) -> None:
        """Has an endpoint looked at when the moment has come."""
        heapq.heappush(self._timers, (due, *key))

    @property
    def next_due(self) -> int | None:
        """When the next one is looked at; what has been settled since is forgotten."""
        while self._timers:
            due, conversation_id, is_initiator = self._timers[0]
            dialog = self.known.get((conversation_id, is_initiator))
            if dialog is None or dialog.is_due(due):
                return due
            heapq.heappop(self._timers)
        return None

    def due(self, moment: int) -> list[Dialog]:
        """The dialogs whose moment has come."""
        keys: dict[Key, None] = {}
        while self._timers and self._timers[0][0] <= moment:
            _, conversation_id, is_initiator = heapq.heappop(self._timers)
            keys[conversation_id, is_initiator] = None
        try:
            return list(self.load(keys).values())
        except BaseException:
            for key in keys:
                self.wake(key, moment)
            raise

    def idle(self, moment: int) -> list[Dialog]:
        """The dialogs that nothing has happened to lately, and that owe nothing."""
        ready = {key for waiting in self._ready.values() for key in waiting}
        return [
            dialog
            for key, dialog in self.known.items()
            if dialog.transmission.used + IDLE <= moment
            and dialog.ack_due is None
            and key not in ready
            and not self._held.get(key)
        ]

    def put_aside(self, dialogs: Sequence[Dialog]) -> None:
        """Writes what has changed of dialogs to the work table, all at once, and frees their memory."""
        changed = {
            dialog.key: packed(dialog.transmission)
            for dialog in dialogs
            if dialog.transmission.is_dirty and dialog.is_known
        }
        if changed:
            self._ledger.put_aside(changed)
            self._outdated.difference_update(changed)
        self._count(dialogs)
        for dialog in dialogs:
            del self.known[dialog.key]
            self._unmarked.discard(dialog.key)

    def forget(self, keys: Iterable[Key]) -> list[Dialog]:
        """Drops endpoints that are no more."""
        gone = [self.known.pop(key) for key in keys if key in self.known]
        self._count(gone)
        for dialog in gone:
            self._unmarked.discard(dialog.key)
            for waiting in self._ready.values():
                waiting.pop(dialog.key, None)
            if dialog.key in self._held:
                self._held[dialog.key] = False
            self._outdated.add(dialog.key)
        return gone

    def _count(self, dialogs: Iterable[Dialog]) -> None:
        for dialog in dialogs:
            if dialog.transmission.is_dirty and dialog.key in self._unmarked:
                self._unmarked.remove(dialog.key)
                self._marked += 1
