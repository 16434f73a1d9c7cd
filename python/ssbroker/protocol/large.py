"""How many large messages are under way at once: so few that each ends before others go on (N39)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ssbroker.protocol.cuts import WORTH_KEEPING
from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.ledger import Key
from ssbroker.protocol.retry import SECOND

UNDER_WAY_MAX: Final = 128 << 20
"""How many bytes of large messages are under way at most, but for the first: half of what a far side makes whole at once (N38)."""
_REST: Final = 10 * SECOND
"""After so long without anything new of it a message keeps nobody waiting: its far side may not be there."""
_LOOK_AGAIN: Final = SECOND // 4
_PATIENCE: Final = 10 * SECOND
"""After so long a message that waits is begun before any other."""


class Large:
    """The dialogs that have a large message under way, and those that wait until there is room for theirs.

    Args:
        fragment_bytes: How long a fragment of a dialog is.

    Attributes:
        due: When those that wait are looked at again; None where none does.

    Examples:
        >>> from ssbroker.protocol.dialog import dialog_of
        >>> from ssbroker.protocol.ledger import Endpoint
        >>> dialogs = [dialog_of(Endpoint(conversation_id=bytes([number]) * 16, is_initiator=True, service_name="Shop",
        ...                               broker_instance=bytes(16), far_service_name="Bank")) for number in range(3)]
        >>> large = Large(lambda dialog: 32 << 10)
        >>> for dialog in dialogs:
        ...     dialog.transmission.send(0, 0, 2000, 32 << 10)
        ...     print(large.goes_on(dialog, 5))
        ...     large.went(dialog, 5)
        True
        True
        False
        >>> large.due, large.let_go(250_005) == dialogs[2:], large.due, large.goes_on(dialogs[2], 10_000_006)
        (250005, True, None, True)
    """

    __slots__ = ("_fragment_bytes", "_since", "_under_way", "_waiting", "due")

    def __init__(self, fragment_bytes: Callable[[Dialog], int]) -> None:
        self._fragment_bytes: Final = fragment_bytes
        self._under_way: Final[dict[Key, tuple[Dialog, int, int]]] = {}
        self._waiting: Final[dict[Key, Dialog]] = {}
        # Since when they wait, and when they have said so last, those first that have waited longest.
        self._since: Final[dict[Key, tuple[int, int]]] = {}
        self.due: int | None = None

    def chosen(self, dialogs: Sequence[Dialog], now: int) -> int:
        """Which of some dialogs may begin a message: who has waited for too long, else the first; one, for nobody knows how long it is.

        Args:
            dialogs: The dialogs, at least one.
            now: The moment.

        Returns:
            Its place.
        """
        key = self._overdue(now)
        return next((place for place, dialog in enumerate(dialogs) if dialog.key == key), 0)

    def room(self, dialog: Dialog, now: int) -> int:
        """The longest message that a dialog may begin: any where none is under way, and nobody has waited for too long.

        Args:
            dialog: The dialog.
            now: The moment.
        """
        if not (self._under_way or self._since):
            return 2**63 - 1
        for key, (other, _, used) in list(self._under_way.items()):
            if not other.transmission.cursor or used + _REST <= now:
                del self._under_way[key]
        if self._overdue(now) not in (None, dialog.key):
            return WORTH_KEEPING
        taken = sum(size for _, size, _ in self._under_way.values())
        return max(UNDER_WAY_MAX - taken, WORTH_KEEPING) if taken else 2**63 - 1

    def _overdue(self, now: int) -> Key | None:
        """Who has waited longest, and for too long, and still does."""
        for key, (since, last) in list(self._since.items()):
            if last + 4 * _LOOK_AGAIN >= now:
                return key if since + _PATIENCE <= now else None
            del self._since[key]
        return None

    def goes_on(self, dialog: Dialog, now: int) -> bool:
        """Whether a dialog may send more of its message; if not, it waits.

        Args:
            dialog: The dialog.
            now: The moment.
        """
        size = self._size(dialog)
        if size < WORTH_KEEPING or dialog.key in self._under_way or size <= self.room(dialog, now):
            return True
        self.wait(dialog, now)
        return False

    def went(self, dialog: Dialog, now: int) -> None:
        """Notes that a dialog has sent something new.

        Args:
            dialog: The dialog.
            now: The moment.
        """
        size = self._size(dialog)
        self._since.pop(dialog.key, None)
        if size >= WORTH_KEEPING:
            self._under_way[dialog.key] = (dialog, size, now)
        else:
            self._under_way.pop(dialog.key, None)

    def forget(self, key: Key) -> None:
        """Notes that nothing of a dialog is under way any more."""
        self._under_way.pop(key, None)
        self._since.pop(key, None)

    def wait(self, dialog: Dialog, now: int) -> None:
        """Has a dialog wait.

        Args:
            dialog: The dialog.
            now: The moment.
        """
        self._waiting[dialog.key] = dialog
        self._since[dialog.key] = (self._since.get(dialog.key, (now, now))[0], now)
        self.due = now + _LOOK_AGAIN if self.due is None else self.due

    def let_go(self, now: int) -> list[Dialog]:
        """The dialogs that have waited, when it is time to look at them again, in the order in which they came.

        Args:
            now: The moment.
        """
        if self.due is None or now < self.due:
            return []
        waited = list(self._waiting.values())
        self._waiting.clear()
        self.due = None
        return waited

    def _size(self, dialog: Dialog) -> int:
        """How long the message is that is under way, about; 0 where none is."""
        transmission = dialog.transmission
        return (
            transmission.counts.get(transmission.head, 0) * self._fragment_bytes(dialog) if transmission.cursor else 0
        )
