"""Large messages: a cache of the fragments of messages that take several turns to send, and a queue of the dialogs that send them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa

from ssbroker import schemas
from ssbroker.protocol.arrow_columns import sliced_column
from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.settings import SECOND
from ssbroker.protocol.storage import EndpointKey

CACHED_BYTES_MIN: Final = 1 << 20
"""The fragments of messages of at least this many bytes are always cached; those of a smaller message only while it is in progress."""
CACHED_FRAGMENTS_MAX: Final = 1 << 16
"""The maximum number of cached fragments; a message with more fragments is cached alone."""
COUNTED_FRAGMENTS_MIN: Final = 32
"""A cached message counts as at least this many fragments, because of its fixed overhead."""
_BODY: Final = schemas.FRAGMENTS.get_field_index("message_body")


class FragmentCache:
    """The fragments of recently used messages, without their bodies: a least-recently-used cache.

    Examples:
        >>> from ssbroker.reassembly import fragment
        >>> messages = pa.table({"conversation_id": [bytes(16)], "is_initiator": [True], "message_sequence_number": [3], "message_body": [b"onetwo"]})
        >>> cache = FragmentCache()
        >>> cache.put((bytes(16), True), 3, fragment(messages, max_fragment_bytes=3))
        >>> cache.has((bytes(16), True), 3), cache.has((bytes(16), True), 4)
        (True, False)
        >>> part = cache.fragments_of((bytes(16), True), 3, 1, b"two", size=3)
        >>> part.equals(fragment(messages, max_fragment_bytes=3).slice(1))
        True
    """

    __slots__ = ("_fragments", "_messages")

    def __init__(self) -> None:
        self._messages: OrderedDict[tuple[EndpointKey, int], pa.Table] = OrderedDict()
        self._fragments = 0

    def put(self, key: EndpointKey, sequence: int, fragments: pa.Table) -> None:
        """Caches all fragments of a message, and evicts the least recently used messages if necessary."""
        self.drop(key, sequence)
        while self._messages and self._fragments + _counted_fragments(fragments) > CACHED_FRAGMENTS_MAX:
            _, evicted = self._messages.popitem(last=False)
            self._fragments -= _counted_fragments(evicted)
        # `take` copies: a slice would keep the whole batch alive, including the bodies.
        self._messages[key, sequence] = fragments.remove_column(_BODY).take(pa.array(range(fragments.num_rows)))
        self._fragments += _counted_fragments(fragments)

    def has(self, key: EndpointKey, sequence: int) -> bool:
        """Returns whether a message is cached, and marks it as recently used."""
        if (key, sequence) not in self._messages:
            return False
        self._messages.move_to_end((key, sequence))
        return True

    def fragments_of(self, key: EndpointKey, sequence: int, first: int, body: bytes, *, size: int) -> pa.Table:
        """Returns consecutive fragments of a cached message.

        Args:
            key: The endpoint.
            sequence: The message.
            first: The number of the first fragment.
            body: The content of these fragments.
            size: The size of a fragment in bytes; the last fragment may be shorter.
        """
        column = sliced_column(body, size)
        rows = self._messages[key, sequence].slice(first, len(column))
        return rows.add_column(_BODY, schemas.FRAGMENTS.field(_BODY), column)

    def drop(self, key: EndpointKey, sequence: int) -> None:
        """Removes the cached fragments of a message."""
        dropped = self._messages.pop((key, sequence), None)
        self._fragments -= 0 if dropped is None else _counted_fragments(dropped)

    def drop_dialog(self, key: EndpointKey) -> None:
        """Removes the cached fragments of all messages of an endpoint."""
        for place in [place for place in self._messages if place[0] == key]:
            self.drop(*place)


def _counted_fragments(fragments: pa.Table) -> int:
    return max(fragments.num_rows, COUNTED_FRAGMENTS_MIN)


LARGE_IN_FLIGHT_MAX: Final = 16 << 20
"""The maximum total size of large messages in progress, though one may be larger: half of what a peer holds until messages are complete."""


_STALLED_AFTER: Final = 10 * SECOND
"""A message of which nothing new was sent for this long does not delay other messages: the peer may be down."""


_RECHECK_INTERVAL: Final = SECOND // 4


_OVERDUE_AFTER: Final = 10 * SECOND
"""A message that has waited this long is started before any other large message."""


class LargeMessageQueue:
    """The dialogs with a large message in progress, and those that wait to start one.

    Args:
        fragment_bytes: Returns the maximum fragment size of a dialog.

    Attributes:
        next_check: When the waiting dialogs are checked again; None if no dialog waits.
    """

    __slots__ = ("_fragment_bytes", "_in_flight", "_waiting", "_waiting_since", "next_check")

    def __init__(self, fragment_bytes: Callable[[Dialog], int]) -> None:
        self._fragment_bytes: Final = fragment_bytes
        self._in_flight: Final[dict[EndpointKey, tuple[Dialog, int, int]]] = {}
        self._waiting: Final[dict[EndpointKey, Dialog]] = {}
        # For each dialog, when it started to wait and when it last asked to send; the longest-waiting dialog first.
        self._waiting_since: Final[dict[EndpointKey, tuple[int, int]]] = {}
        self.next_check: int | None = None

    def choose(self, dialogs: Sequence[Dialog], now: int) -> int:
        """Returns the index of the dialog that may start a message of unknown size: an overdue dialog, else the first."""
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
        """Returns the dialog that has waited longest, if it is overdue and still waits; otherwise None."""
        for key, (since, last) in list(self._waiting_since.items()):
            if last + 4 * _RECHECK_INTERVAL >= now:
                return key if since + _OVERDUE_AFTER <= now else None
            del self._waiting_since[key]
        return None

    def may_continue(self, dialog: Dialog, now: int) -> bool:
        """Returns whether a dialog may continue its message in progress; if not, the dialog waits."""
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
        """Records that a dialog no longer has a message in progress."""
        self._in_flight.pop(key, None)
        self._waiting_since.pop(key, None)

    def wait(self, dialog: Dialog, now: int) -> None:
        """Makes a dialog wait until it may send its large message."""
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
        """Returns the approximate size in bytes of a dialog's message in progress; 0 if there is none."""
        transmission = dialog.transmission
        return (
            transmission.fragment_counts.get(transmission.head, 0) * self._fragment_bytes(dialog)
            if transmission.cursor
            else 0
        )
