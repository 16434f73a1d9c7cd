"""Limits the large messages that are sent at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.fragment_cache import CACHED_BYTES_MIN
from ssbroker.protocol.settings import SECOND
from ssbroker.protocol.storage import EndpointKey

LARGE_IN_FLIGHT_MAX: Final = 16 << 20
"""Maximum size of large messages in progress, apart from the first: half of what a peer holds until a message is complete."""
_STALLED_AFTER: Final = 10 * SECOND
"""A message that has not progressed for this long does not delay others: its peer may be down."""
_RECHECK_INTERVAL: Final = SECOND // 4
_OVERDUE_AFTER: Final = 10 * SECOND
"""A message that has waited this long is started before any other."""


class LargeMessageQueue:
    """The dialogs with a large message in progress, and those that wait to start one.

    Args:
        fragment_bytes: Returns the maximum fragment size of a dialog.

    Attributes:
        next_check: When the waiting dialogs are checked again; None if none waits.
    """

    __slots__ = ("_fragment_bytes", "_in_flight", "_waiting", "_waiting_since", "next_check")

    def __init__(self, fragment_bytes: Callable[[Dialog], int]) -> None:
        self._fragment_bytes: Final = fragment_bytes
        self._in_flight: Final[dict[EndpointKey, tuple[Dialog, int, int]]] = {}
        self._waiting: Final[dict[EndpointKey, Dialog]] = {}
        # The times at which each dialog started waiting and last asked, the longest waiting first.
        self._waiting_since: Final[dict[EndpointKey, tuple[int, int]]] = {}
        self.next_check: int | None = None

    def choose(self, dialogs: Sequence[Dialog], now: int) -> int:
        """Returns the index of the dialog that may start a message of unknown size: one that is overdue, else the first."""
        key = self._overdue(now)
        return next((place for place, dialog in enumerate(dialogs) if dialog.key == key), 0)

    def startable_bytes(self, dialog: Dialog, now: int) -> int:
        """Returns the size of the longest message that a dialog may start."""
        if not (self._in_flight or self._waiting_since):
            return 2**63 - 1
        for key, (other, _, used) in list(self._in_flight.items()):
            if not other.transmission.cursor or used + _STALLED_AFTER <= now:
                del self._in_flight[key]
        if self._overdue(now) not in (None, dialog.key):
            return CACHED_BYTES_MIN
        taken = sum(size for _, size, _ in self._in_flight.values())
        return max(LARGE_IN_FLIGHT_MAX - taken, CACHED_BYTES_MIN) if taken else 2**63 - 1

    def _overdue(self, now: int) -> EndpointKey | None:
        """Returns the dialog that has waited longest, if it is overdue and still waits."""
        for key, (since, last) in list(self._waiting_since.items()):
            if last + 4 * _RECHECK_INTERVAL >= now:
                return key if since + _OVERDUE_AFTER <= now else None
            del self._waiting_since[key]
        return None

    def may_continue(self, dialog: Dialog, now: int) -> bool:
        """Returns whether a dialog may send more of its message; if not, the dialog waits."""
        size = self._message_size(dialog)
        if size < CACHED_BYTES_MIN or dialog.key in self._in_flight or size <= self.startable_bytes(dialog, now):
            return True
        self.wait(dialog, now)
        return False

    def mark_sent(self, dialog: Dialog, now: int) -> None:
        """Records that a dialog has sent new fragments."""
        size = self._message_size(dialog)
        self._waiting_since.pop(dialog.key, None)
        if size >= CACHED_BYTES_MIN:
            self._in_flight[dialog.key] = (dialog, size, now)
        elif self._in_flight.pop(dialog.key, None) is not None and self._waiting:
            self.next_check = now  # the next message need not wait

    def remove(self, key: EndpointKey) -> None:
        """Records that a dialog has no message in progress any more."""
        self._in_flight.pop(key, None)
        self._waiting_since.pop(key, None)

    def wait(self, dialog: Dialog, now: int) -> None:
        """Makes a dialog wait."""
        self._waiting[dialog.key] = dialog
        self._waiting_since[dialog.key] = (self._waiting_since.get(dialog.key, (now, now))[0], now)
        self.next_check = now + _RECHECK_INTERVAL if self.next_check is None else self.next_check

    def take_waiting(self, now: int) -> list[Dialog]:
        """Removes and returns the waiting dialogs in order of arrival, if their check is due."""
        if self.next_check is None or now < self.next_check:
            return []
        waited = list(self._waiting.values())
        self._waiting.clear()
        self.next_check = None
        return waited

    def _message_size(self, dialog: Dialog) -> int:
        """Returns the approximate size of the message in progress; 0 if there is none."""
        transmission = dialog.transmission
        return (
            transmission.fragment_counts.get(transmission.head, 0) * self._fragment_bytes(dialog)
            if transmission.cursor
            else 0
        )
