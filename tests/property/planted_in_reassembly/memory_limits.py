from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.oracle.reassembly import Fragment, Oracle
from tests.oracle.traffic import Direction, Message


class LongByOne(Oracle):
    """P26: a message may not be as long as the limit."""

    def is_too_long(self, fragment: Fragment) -> bool:
        return super().is_too_long(replace(fragment, body=fragment.body + b"a"))


class PartsMayBeAsLong(Oracle):
    """P26: each fragment may be as long as the message."""

    def is_too_long(self, fragment: Fragment) -> bool:
        return len(fragment.body) > self.limits.max_message_bytes


class FragmentsByOne(Oracle):
    """P26: a message may not have as many fragments as the limit."""

    def has_too_many_fragments(self, fragment: Fragment) -> bool:
        return super().has_too_many_fragments(replace(fragment, count=fragment.count + 1))


class FragmentsThatAreThere(Oracle):
    """P26: the fragments that are there are limited, not the count."""

    def has_too_many_fragments(self, fragment: Fragment) -> bool:
        message = self.direction_of(fragment).messages.get(fragment.sequence)
        there = 0 if message is None else len(message.fragments)
        return super().has_too_many_fragments(replace(fragment, count=there + 1))


class FartherByOne(Oracle):
    """P26: a sequence number may be as far as the limit."""

    def is_too_far(self, fragment: Fragment) -> bool:
        return super().is_too_far(replace(fragment, sequence=fragment.sequence - 1))


class FarFromZero(Oracle):
    """P26: the distance is that from the first message."""

    def is_too_far(self, fragment: Fragment) -> bool:
        limit = self.limits.max_sequence_distance
        return limit is not None and fragment.sequence >= limit


class FarFromTheHighest(Oracle):
    """P26: the distance is that from the highest complete message."""

    def is_too_far(self, fragment: Fragment) -> bool:
        direction = self.direction_of(fragment)
        held = [sequence for sequence, message in direction.messages.items() if message.is_complete]
        limit = self.limits.max_sequence_distance
        lowest = max([direction.next, *(sequence + 1 for sequence in (*held, *direction.numbers))])
        return limit is not None and fragment.sequence - lowest >= limit


class DirectionsAreFree(Oracle):
    """P26: a direction is not charged."""

    def charge_of_direction(self, direction: Direction) -> int:
        return super().charge_of_direction(direction) - 128


class NumbersAreFree(Oracle):
    """P26: with `in_order=False` the numbers of complete messages after a gap are not charged."""

    def charge_of_direction(self, direction: Direction) -> int:
        return super().charge_of_direction(replace(direction, numbers=set()))


class HeldMessagesAreFree(Oracle):
    """P26: a waiting message is not charged."""

    def charge_of_message(self, message: Message) -> int:
        return 0 if message.is_complete else super().charge_of_message(message)


class HeldMessagesAreOneFragment(Oracle):
    """P26: a waiting message is charged as one fragment of its length."""

    def charge_of_message(self, message: Message) -> int:
        if not message.is_complete:
            return super().charge_of_message(message)
        joined = replace(message.first, body=message.body)
        return super().charge_of_message(Message(message.first, {0: joined}))


class ExtraColumnsAreFree(Oracle):
    """P26: the extra columns are not charged."""

    def charge_of_message(self, message: Message) -> int:
        first = message.fragments.get(0)
        return super().charge_of_message(message) - (0 if first is None else first.extra_bytes)


class ExtraColumnsOfAnyFragment(Oracle):
    """P13, P26: the extra columns are charged with whatever fragment came first."""

    def charge_of_message(self, message: Message) -> int:
        first = message.fragments.get(0)
        there = 0 if first is None else first.extra_bytes
        return super().charge_of_message(message) - there + message.first.extra_bytes


class ExtraColumnsOfEachFragment(Oracle):
    """P13, P26: the extra columns of each fragment are charged."""

    def charge_of_fragment(self, fragment: Fragment) -> int:
        return super().charge_of_fragment(fragment) + (fragment.extra_bytes if fragment.number else 0)


class EighthsAreRoundedUp(Oracle):
    """P26: an eighth of a fragment's bytes is rounded up."""

    def charge_of_fragment(self, fragment: Fragment) -> int:
        return super().charge_of_fragment(fragment) + (len(fragment.body) % 8 > 0)


class EighthsOfTheWhole(Oracle):
    """P26: the eighth is that of the message, not of each fragment."""

    def charge_of_message(self, message: Message) -> int:
        own = sum(len(fragment.body) // 8 for fragment in message.fragments.values())
        return super().charge_of_message(message) - own + len(message.body) // 8


class WholesTakeTheirRoomFirst(Oracle):
    """P26: a fragment that completes its message needs memory for it as if it stayed."""

    def state_after(self, fragment: Fragment) -> Direction:
        direction = self.direction_of(fragment).copy()
        direction.known = self.add_fragment(direction, fragment).is_complete or direction.known
        return direction


class WholesAreNeverRefused(Oracle):
    """P26: a fragment that completes its message is not rejected."""

    def exceeds_memory(self, fragment: Fragment) -> bool:
        return not self.add_fragment(
            self.direction_of(fragment).copy(), fragment
        ).is_complete and super().exceeds_memory(fragment)


class WhatIsReleasedIsNotCounted(Oracle):
    """P26: a fragment that releases others does not free memory with them."""

    def state_after(self, fragment: Fragment) -> Direction:
        direction = self.direction_of(fragment).copy()
        if self.add_fragment(direction, fragment).is_complete:
            direction.known = True
            if direction.next == fragment.sequence or not self.in_order:
                del direction.messages[fragment.sequence]
        return direction


class WholesDoNotMakeKnown(Oracle):
    """P26: a direction is known only after the fragment that makes its first message complete."""

    def state_after(self, fragment: Fragment) -> Direction:
        direction = super().state_after(fragment)
        direction.known = self.direction_of(fragment).known
        return direction


class EverybodyIsKnown(Oracle):
    """P26: who sends only beginnings may use all memory."""

    def exceeds_share(self, share: int, directions: Sequence[Direction]) -> bool:
        return share == 1 and super().exceeds_share(share, directions)


class NobodyIsKnown(Oracle):
    """P26: known directions may take no more than half."""

    def state_after(self, fragment: Fragment) -> Direction:
        direction = super().state_after(fragment)
        direction.known = False
        return direction


class HalvesAreRoundedUp(Oracle):
    """P26: half of the limits is rounded up."""

    def exceeds_share(self, share: int, directions: Sequence[Direction]) -> bool:
        limits = self.limits
        self.limits = replace(
            limits,
            max_pending_bytes=None if limits.max_pending_bytes is None else limits.max_pending_bytes + share - 1,
            max_pending_messages=None
            if limits.max_pending_messages is None
            else limits.max_pending_messages + share - 1,
        )
        more = super().exceeds_share(share, directions)
        self.limits = limits
        return more


class OnlyBytesAreHalved(Oracle):
    """P26: half of the limit holds for bytes, not for messages."""

    def exceeds_share(self, share: int, directions: Sequence[Direction]) -> bool:
        limits = self.limits
        self.limits = limits if share == 1 else replace(limits, max_pending_messages=None)
        more = super().exceeds_share(share, directions)
        self.limits = limits
        return more


class OnlyMessagesAreHalved(Oracle):
    """P26: half of the limit holds for messages, not for bytes."""

    def exceeds_share(self, share: int, directions: Sequence[Direction]) -> bool:
        limits = self.limits
        self.limits = limits if share == 1 else replace(limits, max_pending_bytes=None)
        more = super().exceeds_share(share, directions)
        self.limits = limits
        return more


class NumbersAreMessages(Oracle):
    """P26: with `in_order=False` the numbers of complete messages count as pending messages."""

    def exceeds_share(self, share: int, directions: Sequence[Direction]) -> bool:
        limit = self.limits.max_pending_messages
        counted = sum(len(direction.messages) + len(direction.numbers) for direction in directions)
        return super().exceeds_share(share, directions) or (limit is not None and counted > limit // share)


class DirectionsAreKept(Oracle):
    """P26: a direction of which nothing is left stays, and is charged."""

    def remove_if_empty(self, key: tuple[bytes, bool]) -> None:
        pass


class DirectionsAreForgotten(Oracle):
    """P26: a direction of which nothing is pending is forgotten, although a message has been complete."""

    def remove_if_empty(self, key: tuple[bytes, bool]) -> None:
        direction = self.directions.get(key)
        if direction is not None and not direction.messages and not direction.next:
            del self.directions[key]
