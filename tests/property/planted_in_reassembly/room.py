from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.oracle.reassembly import Fragment, Oracle
from tests.oracle.traffic import Direction, Message


class LongByOne(Oracle):
    """M15: a message may not be as long as the limit."""

    def m15_too_long(self, fragment: Fragment) -> bool:
        return super().m15_too_long(replace(fragment, body=fragment.body + b"a"))


class PartsMayBeAsLong(Oracle):
    """M15: each fragment may be as long as the message."""

    def m15_too_long(self, fragment: Fragment) -> bool:
        return len(fragment.body) > self.limits.max_message_bytes


class FragmentsByOne(Oracle):
    """M16: a message may not have as many fragments as the limit."""

    def m16_too_many_fragments(self, fragment: Fragment) -> bool:
        return super().m16_too_many_fragments(replace(fragment, count=fragment.count + 1))


class FragmentsThatAreThere(Oracle):
    """M16, P26: the fragments that are there are limited, not the count."""

    def m16_too_many_fragments(self, fragment: Fragment) -> bool:
        message = self.direction_of(fragment).messages.get(fragment.sequence)
        there = 0 if message is None else len(message.fragments)
        return super().m16_too_many_fragments(replace(fragment, count=there + 1))


class FartherByOne(Oracle):
    """M17: a sequence number may be as far as the limit."""

    def m17_too_far(self, fragment: Fragment) -> bool:
        return super().m17_too_far(replace(fragment, sequence=fragment.sequence - 1))


class FarFromZero(Oracle):
    """M17: the distance is that from the first message."""

    def m17_too_far(self, fragment: Fragment) -> bool:
        most = self.limits.max_sequence_distance
        return most is not None and fragment.sequence >= most


class FarFromTheHighest(Oracle):
    """M17: the distance is that from the highest message that is whole."""

    def m17_too_far(self, fragment: Fragment) -> bool:
        direction = self.direction_of(fragment)
        held = [sequence for sequence, message in direction.messages.items() if message.is_whole]
        most = self.limits.max_sequence_distance
        lowest = max([direction.next, *(sequence + 1 for sequence in (*held, *direction.numbers))])
        return most is not None and fragment.sequence - lowest >= most


class DirectionsAreFree(Oracle):
    """M18: a direction is not charged."""

    def m18_charge(self, direction: Direction) -> int:
        return super().m18_charge(direction) - 128


class NumbersAreFree(Oracle):
    """M18: with `in_order=False` the numbers of whole messages after a gap are not charged."""

    def m18_charge(self, direction: Direction) -> int:
        return super().m18_charge(replace(direction, numbers=set()))


class HeldMessagesAreFree(Oracle):
    """M18: a message that is held is not charged."""

    def m18_charge_of_message(self, message: Message) -> int:
        return 0 if message.is_whole else super().m18_charge_of_message(message)


class HeldMessagesAreOneFragment(Oracle):
    """M18: a message that is held is charged as one fragment of its length."""

    def m18_charge_of_message(self, message: Message) -> int:
        if not message.is_whole:
            return super().m18_charge_of_message(message)
        joined = replace(message.first, body=message.body)
        return super().m18_charge_of_message(Message(message.first, {0: joined}))


class FurtherColumnsAreFree(Oracle):
    """M18: the further columns are not charged."""

    def m18_charge_of_message(self, message: Message) -> int:
        first = message.fragments.get(0)
        return super().m18_charge_of_message(message) - (0 if first is None else first.further_bytes)


class FurtherColumnsOfAnyFragment(Oracle):
    """M3, M18: the further columns are charged with whatever fragment came first."""

    def m18_charge_of_message(self, message: Message) -> int:
        first = message.fragments.get(0)
        there = 0 if first is None else first.further_bytes
        return super().m18_charge_of_message(message) - there + message.first.further_bytes


class FurtherColumnsOfEachFragment(Oracle):
    """M3, M18: the further columns of each fragment are charged."""

    def m18_charge_of_fragment(self, fragment: Fragment) -> int:
        return super().m18_charge_of_fragment(fragment) + (fragment.further_bytes if fragment.number else 0)


class EighthsAreRoundedUp(Oracle):
    """M18: an eighth of a fragment's bytes is rounded up."""

    def m18_charge_of_fragment(self, fragment: Fragment) -> int:
        return super().m18_charge_of_fragment(fragment) + (len(fragment.body) % 8 > 0)


class EighthsOfTheWhole(Oracle):
    """M18: the eighth is that of the message, not of each fragment."""

    def m18_charge_of_message(self, message: Message) -> int:
        own = sum(len(fragment.body) // 8 for fragment in message.fragments.values())
        return super().m18_charge_of_message(message) - own + len(message.body) // 8


class WholesTakeTheirRoomFirst(Oracle):
    """M18: a fragment that makes its message whole needs room for it as if it stayed."""

    def m18_supposed(self, fragment: Fragment) -> Direction:
        direction = self.direction_of(fragment).copy()
        direction.known = self.m11_add(direction, fragment).is_whole or direction.known
        return direction


class WholesAreNeverRefused(Oracle):
    """M18: a fragment that makes its message whole is not refused."""

    def m18_no_room(self, fragment: Fragment) -> bool:
        return not self.m11_add(self.direction_of(fragment).copy(), fragment).is_whole and super().m18_no_room(fragment)


class WhatIsReleasedIsNotCounted(Oracle):
    """M18: a fragment that releases others does not make room with them."""

    def m18_supposed(self, fragment: Fragment) -> Direction:
        direction = self.direction_of(fragment).copy()
        if self.m11_add(direction, fragment).is_whole:
            direction.known = True
            if direction.next == fragment.sequence or not self.in_order:
                del direction.messages[fragment.sequence]
        return direction


class WholesDoNotMakeKnown(Oracle):
    """M19: a direction is known only after the fragment that makes its first message whole."""

    def m18_supposed(self, fragment: Fragment) -> Direction:
        direction = super().m18_supposed(fragment)
        direction.known = self.direction_of(fragment).known
        return direction


class EverybodyIsKnown(Oracle):
    """M19: who sends only beginnings may take all room."""

    def m18_more_than(self, share: int, directions: Sequence[Direction]) -> bool:
        return share == 1 and super().m18_more_than(share, directions)


class NobodyIsKnown(Oracle):
    """M19: who is known may take no more than half."""

    def m18_supposed(self, fragment: Fragment) -> Direction:
        direction = super().m18_supposed(fragment)
        direction.known = False
        return direction


class HalvesAreRoundedUp(Oracle):
    """M19: half of the limits is rounded up."""

    def m18_more_than(self, share: int, directions: Sequence[Direction]) -> bool:
        limits = self.limits
        self.limits = replace(
            limits,
            max_pending_bytes=None if limits.max_pending_bytes is None else limits.max_pending_bytes + share - 1,
            max_pending_messages=None
            if limits.max_pending_messages is None
            else limits.max_pending_messages + share - 1,
        )
        more = super().m18_more_than(share, directions)
        self.limits = limits
        return more


class OnlyBytesAreHalved(Oracle):
    """M19: half of the limit holds for bytes, not for messages."""

    def m18_more_than(self, share: int, directions: Sequence[Direction]) -> bool:
        limits = self.limits
        self.limits = limits if share == 1 else replace(limits, max_pending_messages=None)
        more = super().m18_more_than(share, directions)
        self.limits = limits
        return more


class OnlyMessagesAreHalved(Oracle):
    """M19: half of the limit holds for messages, not for bytes."""

    def m18_more_than(self, share: int, directions: Sequence[Direction]) -> bool:
        limits = self.limits
        self.limits = limits if share == 1 else replace(limits, max_pending_bytes=None)
        more = super().m18_more_than(share, directions)
        self.limits = limits
        return more


class NumbersAreMessages(Oracle):
    """M18: with `in_order=False` the numbers of whole messages count as pending messages."""

    def m18_more_than(self, share: int, directions: Sequence[Direction]) -> bool:
        most = self.limits.max_pending_messages
        counted = sum(len(direction.messages) + len(direction.numbers) for direction in directions)
        return super().m18_more_than(share, directions) or (most is not None and counted > most // share)


class DirectionsAreKept(Oracle):
    """M20: a direction of which nothing is left stays, and is charged."""

    def m20_forget_if_nothing(self, key: tuple[bytes, bool]) -> None:
        pass


class DirectionsAreForgotten(Oracle):
    """M20: a direction of which nothing is pending is forgotten, although a message has been whole."""

    def m20_forget_if_nothing(self, key: tuple[bytes, bool]) -> None:
        direction = self.directions.get(key)
        if direction is not None and not direction.messages and not direction.next:
            del self.directions[key]
