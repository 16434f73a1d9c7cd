"""P26: what takes memory, how much, and what there is memory for."""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.judging import Judging
from tests.oracle.traffic import Direction, Fragment, Message

DIRECTION_BYTES = 128
MESSAGE_BYTES = 256
FRAGMENT_BYTES = 96


class Room(Judging):
    """Counts what is pending, and refuses what there is no room for."""

    @property
    def pending_bytes(self) -> int:
        """P26: what is charged now."""
        return sum(self.charge_of_direction(direction) for direction in self.directions.values())

    @property
    def pending_messages(self) -> int:
        """P26: the incomplete and waiting messages."""
        return sum(len(direction.messages) for direction in self.directions.values())

    def exceeds_a_limit(self, fragment: Fragment) -> bool:
        """P26: whether any limit is exceeded, before anything is stored."""
        return (
            self.is_too_long(fragment)
            or self.has_too_many_fragments(fragment)
            or self.is_too_far(fragment)
            or self.lacks_memory(fragment)
        )

    def is_too_long(self, fragment: Fragment) -> bool:
        """P26: the bytes of the message's fragments with this one are more."""
        message = self.direction_of(fragment).messages.get(fragment.sequence)
        there = 0 if message is None else message.size
        return there + len(fragment.body) > self.limits.max_message_bytes

    def has_too_many_fragments(self, fragment: Fragment) -> bool:
        """P26: the count is more."""
        most = self.limits.max_fragments_per_message
        return most is not None and fragment.count > most

    def is_too_far(self, fragment: Fragment) -> bool:
        """P26: the sequence number is that far, or farther, from the lowest one that is not complete."""
        most = self.limits.max_sequence_distance
        return most is not None and fragment.sequence - self.direction_of(fragment).next >= most

    def lacks_memory(self, fragment: Fragment) -> bool:
        """P26: what would be charged after the fragment was accepted is more, of all or of those not known."""
        if self.limits.max_pending_bytes is None and self.limits.max_pending_messages is None:
            return False
        would_be = [direction for key, direction in self.directions.items() if key != fragment.direction]
        would_be.append(self.state_after(fragment))
        unknown = [direction for direction in would_be if not direction.known]
        return self.exceeds_share(1, would_be) or self.exceeds_share(2, unknown)

    def exceeds_share(self, share: int, directions: Sequence[Direction]) -> bool:
        """P26: whether what is pending of the directions is more than this share of the limits."""
        most_bytes, most_messages = self.limits.max_pending_bytes, self.limits.max_pending_messages
        return (most_bytes is not None and sum(map(self.charge_of_direction, directions)) > most_bytes // share) or (
            most_messages is not None
            and sum(len(direction.messages) for direction in directions) > most_messages // share
        )

    def state_after(self, fragment: Fragment) -> Direction:
        """P26: the direction after the fragment, and after what it releases if it makes its message whole."""
        direction = self.direction_of(fragment).copy()
        if self.add_fragment(direction, fragment).is_whole:
            direction.known = True
            self.release(direction)
        return direction

    def charge_of_direction(self, direction: Direction) -> int:
        """P26: a direction, its messages, and the mere numbers."""
        return (
            DIRECTION_BYTES
            + sum(map(self.charge_of_message, direction.messages.values()))
            + MESSAGE_BYTES * len(direction.numbers)
        )

    def charge_of_message(self, message: Message) -> int:
        """P26: a message and its extra columns, which came with fragment 0, and its fragments."""
        first = message.fragments.get(0)
        extra = 0 if first is None else first.extra_bytes
        return MESSAGE_BYTES + extra + sum(map(self.charge_of_fragment, message.fragments.values()))

    def charge_of_fragment(self, fragment: Fragment) -> int:
        """P26: 96, its bytes and an eighth of them, rounded down."""
        return FRAGMENT_BYTES + len(fragment.body) + len(fragment.body) // 8

    def remove_if_empty(self, key: tuple[bytes, bool]) -> None:
        """P26: a direction of which nothing is pending and no message has been complete is forgotten."""
        direction = self.directions.get(key)
        if direction is not None and not direction.messages and not direction.known:
            del self.directions[key]

    def add_fragment(self, direction: Direction, fragment: Fragment) -> Message:
        """P14: the fragment is accepted; its message, with it."""
        message = direction.messages.setdefault(fragment.sequence, Message(fragment))
        message.fragments[fragment.number] = fragment
        return message

    def release(self, direction: Direction) -> list[Message]:
        """P14, P11: what can be released now, by sequence number; with `in_order=False` whatever is whole."""
        released = []
        for sequence in sorted(direction.messages):
            if not direction.messages[sequence].is_whole or (self.in_order and sequence != direction.next):
                continue
            released.append(direction.messages.pop(sequence))
            direction.numbers.add(sequence)
            while direction.next in direction.numbers:
                direction.numbers.remove(direction.next)
                direction.next += 1
        return released
