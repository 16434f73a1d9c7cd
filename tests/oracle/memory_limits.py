"""P26: memory charges and limits."""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.traffic import Direction, Fragment, Message
from tests.oracle.validation import Validation

DIRECTION_BYTES = 128
MESSAGE_BYTES = 256
FRAGMENT_BYTES = 96


class MemoryLimits(Validation):
    """Counts pending data, and rejects fragments that exceed a limit."""

    @property
    def pending_bytes(self) -> int:
        """P26: the current memory charge."""
        return sum(self.charge_of_direction(direction) for direction in self.directions.values())

    @property
    def pending_messages(self) -> int:
        """P26: the number of incomplete and waiting messages."""
        return sum(len(direction.messages) for direction in self.directions.values())

    def exceeds_a_limit(self, fragment: Fragment) -> bool:
        """P26: any limit would be exceeded; checked before anything is stored."""
        return (
            self.exceeds_length(fragment)
            or self.exceeds_fragments(fragment)
            or self.exceeds_distance(fragment)
            or self.exceeds_memory(fragment)
        )

    def exceeds_length(self, fragment: Fragment) -> bool:
        """P26: the message's fragments would have more bytes."""
        message = self.direction_of(fragment).messages.get(fragment.sequence)
        stored = 0 if message is None else message.size
        return stored + len(fragment.body) > self.limits.max_message_bytes

    def exceeds_fragments(self, fragment: Fragment) -> bool:
        """P26: the count is higher."""
        limit = self.limits.max_fragments_per_message
        return limit is not None and fragment.count > limit

    def exceeds_distance(self, fragment: Fragment) -> bool:
        """P26: the distance to the lowest incomplete message is at least the limit."""
        limit = self.limits.max_sequence_distance
        return limit is not None and fragment.sequence - self.direction_of(fragment).next >= limit

    def exceeds_memory(self, fragment: Fragment) -> bool:
        """P26: with the fragment, the charge of all directions, or of unknown ones, would be higher."""
        if self.limits.max_pending_bytes is None and self.limits.max_pending_messages is None:
            return False
        directions_after = [direction for key, direction in self.directions.items() if key != fragment.direction]
        directions_after.append(self.state_after(fragment))
        unknown = [direction for direction in directions_after if not direction.known]
        return self.exceeds_share(1, directions_after) or self.exceeds_share(2, unknown)

    def exceeds_share(self, share: int, directions: Sequence[Direction]) -> bool:
        """P26: the pending data of these directions exceed their share of the limits."""
        max_bytes, max_messages = self.limits.max_pending_bytes, self.limits.max_pending_messages
        return (max_bytes is not None and sum(map(self.charge_of_direction, directions)) > max_bytes // share) or (
            max_messages is not None
            and sum(len(direction.messages) for direction in directions) > max_messages // share
        )

    def state_after(self, fragment: Fragment) -> Direction:
        """P26: returns the state of the direction with the fragment, after releasing the messages that it completes."""
        direction = self.direction_of(fragment).copy()
        if self.add_fragment(direction, fragment).is_complete:
            direction.known = True
            self.release(direction)
        return direction

    def charge_of_direction(self, direction: Direction) -> int:
        """P26: the charge of a direction, its messages, and the numbers of complete messages."""
        return (
            DIRECTION_BYTES
            + sum(map(self.charge_of_message, direction.messages.values()))
            + MESSAGE_BYTES * len(direction.numbers)
        )

    def charge_of_message(self, message: Message) -> int:
        """P26: the charge of a message, its extra columns (those of fragment 0) and its fragments."""
        first = message.fragments.get(0)
        extra = 0 if first is None else first.extra_bytes
        return MESSAGE_BYTES + extra + sum(map(self.charge_of_fragment, message.fragments.values()))

    def charge_of_fragment(self, fragment: Fragment) -> int:
        """P26: 96 bytes plus the length plus an eighth of it, rounded down."""
        return FRAGMENT_BYTES + len(fragment.body) + len(fragment.body) // 8

    def remove_if_empty(self, key: tuple[bytes, bool]) -> None:
        """P26: forgets a direction without pending messages of which no message was ever complete."""
        direction = self.directions.get(key)
        if direction is not None and not direction.messages and not direction.known:
            del self.directions[key]

    def add_fragment(self, direction: Direction, fragment: Fragment) -> Message:
        """P14: adds the fragment to its message, which is created if missing."""
        message = direction.messages.setdefault(fragment.sequence, Message(fragment))
        message.fragments[fragment.number] = fragment
        return message

    def release(self, direction: Direction) -> list[Message]:
        """P14, P11: releases complete messages by sequence number; with `in_order=False` even after gaps."""
        released = []
        for sequence in sorted(direction.messages):
            if not direction.messages[sequence].is_complete or (self.in_order and sequence != direction.next):
                continue
            released.append(direction.messages.pop(sequence))
            direction.numbers.add(sequence)
            while direction.next in direction.numbers:
                direction.numbers.remove(direction.next)
                direction.next += 1
        return released
