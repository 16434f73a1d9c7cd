"""The receive state of one direction of a dialog: which fragments have arrived."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from ssbroker.protocol.ack_ranges import ACK_RANGES_MAX, AckRange
from ssbroker.protocol.storage import EndpointKey

Position: TypeAlias = tuple[int, int]
"""The numbers of a message and of a fragment in it."""


class FragmentRanges:
    """A set of fragment positions, stored as ranges of consecutive positions.

    Examples:
        >>> ranges = FragmentRanges()
        >>> ranges.add((3, 2), before=(3, 1), after=(3, 3))
        >>> ranges.add((4, 0), before=(3, 3), after=(4, 1))
        >>> ranges.add((3, 3), before=(3, 2), after=(4, 0))
        >>> ranges.to_ack_ranges(), (3, 3) in ranges, (4, 1) in ranges
        ([(3, 2, 4, 0)], True, False)
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[Position] = []
        self._lasts: list[Position] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def __contains__(self, place: Position) -> bool:
        at = bisect_right(self._firsts, place)
        return at > 0 and place <= self._lasts[at - 1]

    def add(self, place: Position, *, before: Position | None, after: Position) -> None:
        """Adds a position that is not in the set, given the positions before and after it (None if unknown)."""
        firsts, lasts = self._firsts, self._lasts
        at = bisect_right(firsts, place)
        follows = at > 0 and lasts[at - 1] == before
        precedes = at < len(firsts) and firsts[at] == after
        if follows and precedes:
            del firsts[at]
            del lasts[at - 1]
        elif follows:
            lasts[at - 1] = place
        elif precedes:
            firsts[at] = place
        else:
            firsts.insert(at, place)
            lasts.insert(at, place)

    def remove_before(self, number: int) -> None:
        """Removes all messages before a number."""
        first = (number, 0)
        at = bisect_left(self._lasts, first)
        del self._firsts[:at], self._lasts[:at]
        if self._firsts:
            self._firsts[0] = max(self._firsts[0], first)

    def remove_message(self, number: int, *, before: Position | None) -> None:
        """Removes a message, given the position before its first fragment (None if unknown)."""
        begin, end = (number, 0), (number + 1, 0)
        low, high = bisect_left(self._lasts, begin), bisect_left(self._firsts, end)
        firsts, lasts = self._firsts[low:high], self._lasts[low:high]
        rest: list[tuple[Position, Position]] = []
        if before is not None and firsts and firsts[0] < begin:
            rest.append((firsts[0], before))
        if lasts and lasts[-1] >= end:
            rest.append((end, lasts[-1]))
        self._firsts[low:high] = [first for first, _ in rest]
        self._lasts[low:high] = [last for _, last in rest]

    def to_ack_ranges(self) -> list[AckRange]:
        """Returns the ranges in ascending order, at most as many as an acknowledgement can name."""
        return [
            (*first, *last)
            for first, last in zip(self._firsts[:ACK_RANGES_MAX], self._lasts[:ACK_RANGES_MAX], strict=True)
        ]


_FRAGMENT_OVERHEAD: Final = 512
_ENTRY_BYTES: Final = 512


@dataclass(slots=True)
class PendingMessage:
    """A message that is incomplete or waits for earlier messages.

    Attributes:
        count: The number of fragments of the message.
        digest: The MD5 digest of the whole message, if known.
        fragments: The number of fragments that have arrived.
        body_bytes: The number of bytes in the fragments that have arrived.
    """

    count: int
    digest: bytes | None
    fragments: int = 0
    body_bytes: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether all fragments have arrived."""
        return self.fragments == self.count


@dataclass(slots=True, eq=False)
class InboundDirection:
    """The receive state of one direction of a dialog.

    Attributes:
        key: The receiving endpoint.
        next: The number of the next expected message.
        pending: The messages that are incomplete or out of order, by number.
        ranges: The positions of the arrived fragments of pending messages.
        pending_fragments: The number of arrived fragments of pending messages.
        pending_bytes: The number of bytes in the arrived fragments of pending messages.
    """

    key: EndpointKey
    next: int
    pending: dict[int, PendingMessage] = field(default_factory=dict)
    ranges: FragmentRanges = field(default_factory=FragmentRanges)
    pending_fragments: int = 0
    pending_bytes: int = 0

    def add(self, place: Position, *, count: int, digest: bytes | None, size: int) -> None:
        """Records a fragment that has arrived for the first time and must wait for other fragments."""
        number, fragment = place
        message = self.pending.get(number)
        if message is None:
            message = self.pending[number] = PendingMessage(count, digest)
        message.fragments += 1
        message.body_bytes += size
        self.pending_fragments += 1
        self.pending_bytes += size
        before = (number, fragment - 1) if fragment else self._last_fragment_before(number)
        self.ranges.add(place, before=before, after=(number, fragment + 1) if fragment + 1 < count else (number + 1, 0))

    def advance_to(self, number: int) -> None:
        """Records that all messages before a number are complete and released."""
        if self.pending:
            for each in range(self.next, number):
                self._remove(each)
            self.ranges.remove_before(number)
        self.next = number

    def drop_message(self, number: int) -> None:
        """Records that the fragments of a message were discarded."""
        if number in self.pending:
            self._remove(number)
            self.ranges.remove_message(number, before=self._last_fragment_before(number))

    def skip_to(self, number: int) -> None:
        """Continues at a message number, and forgets all pending messages."""
        self.next = number
        self.pending, self.ranges = {}, FragmentRanges()
        self.pending_fragments = self.pending_bytes = 0

    def conflicts_with(self, part: OpenedFragment) -> bool:
        """Returns whether a fragment contradicts the earlier fragments of its message."""
        message = self.pending.get(part.sequence)
        return message is not None and (message.count, message.digest) != (part.count, part.message_digest)

    def has_room(self, part: OpenedFragment, *, max_bytes: int, max_message_bytes: int) -> bool:
        """Returns whether a fragment may be kept (P26). For the next expected message, only a fixed charge for each fragment counts."""
        message = self.pending.get(part.sequence) or PendingMessage(part.count, None)
        if message.body_bytes + len(part.body) > max_message_bytes:
            return False
        if part.sequence == self.next and (message.fragments + 1) * _FRAGMENT_OVERHEAD <= max_bytes:
            return True
        return self.charged_bytes + part.charged_bytes <= max_bytes

    @property
    def complete_until(self) -> int:
        """The number of the first message, from `next` on, that is not complete."""
        number = self.next
        while (message := self.pending.get(number)) is not None and message.is_complete:
            number += 1
        return number

    @property
    def charged_bytes(self) -> int:
        """The number of bytes charged for the pending fragments."""
        return self.pending_fragments * _FRAGMENT_OVERHEAD + self.pending_bytes

    @property
    def memory_bytes(self) -> int:
        """The approximate memory use of this state in bytes."""
        return (len(self.pending) + len(self.ranges)) * _ENTRY_BYTES

    def _last_fragment_before(self, number: int) -> Position | None:
        """Returns the position of the last fragment of the preceding message; None if it is not known."""
        message = self.pending.get(number - 1)
        return None if message is None else (number - 1, message.count - 1)

    def _remove(self, number: int) -> None:
        message = self.pending.pop(number, None)
        if message is not None:
            self.pending_fragments -= message.fragments
            self.pending_bytes -= message.body_bytes


@dataclass(slots=True)
class OpenedFragment:
    """A verified and decrypted fragment.

    Attributes:
        incoming: The receive state of the direction.
        sequence: The number of the message.
        fragment: The number of the fragment.
        count: The number of fragments of the message.
        body: The content of the fragment.
        message_digest: The MD5 digest of the whole message, if known.
        fragment_digest: The MD5 digest of the fragment, if it must be checked.
        kind: The message type, the message id, whether the message ends the dialog, and whether it is an error.
    """

    incoming: InboundDirection
    sequence: int
    fragment: int
    count: int
    body: bytes
    message_digest: bytes | None
    fragment_digest: bytes | None
    kind: tuple[str, bytes | None, bool, bool]

    @property
    def sender(self) -> EndpointKey:
        """The key of the sending endpoint."""
        conversation_id, is_initiator = self.incoming.key
        return (conversation_id, not is_initiator)

    @property
    def is_error(self) -> bool:
        """Whether the fragment belongs to an error with which the application ended the dialog."""
        return self.kind[-1]

    @property
    def charged_bytes(self) -> int:
        """The number of bytes charged for the fragment while it waits."""
        return _FRAGMENT_OVERHEAD + len(self.body)
