from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.oracle.reassembly import Fragment, Oracle
from tests.oracle.traffic import Direction, Message


class MaximumLengthIsRejected(Oracle):
    """P26: a message of exactly the maximum length is rejected."""

    def exceeds_length(self, fragment: Fragment) -> bool:
        return super().exceeds_length(replace(fragment, body=fragment.body + b"a"))


class LengthLimitAppliesToFragments(Oracle):
    """P26: the maximum length applies to each fragment instead of the message."""

    def exceeds_length(self, fragment: Fragment) -> bool:
        return len(fragment.body) > self.limits.max_message_bytes


class MaximumCountIsRejected(Oracle):
    """P26: a message with exactly the maximum number of fragments is rejected."""

    def exceeds_fragments(self, fragment: Fragment) -> bool:
        return super().exceeds_fragments(replace(fragment, count=fragment.count + 1))


class StoredFragmentsAreLimited(Oracle):
    """P26: the number of stored fragments is limited instead of the count."""

    def exceeds_fragments(self, fragment: Fragment) -> bool:
        message = self.direction_of(fragment).messages.get(fragment.sequence)
        stored = 0 if message is None else len(message.fragments)
        return super().exceeds_fragments(replace(fragment, count=stored + 1))


class MaximumDistanceIsAccepted(Oracle):
    """P26: a sequence number at exactly the maximum distance is accepted."""

    def exceeds_distance(self, fragment: Fragment) -> bool:
        return super().exceeds_distance(replace(fragment, sequence=fragment.sequence - 1))


class DistanceFromTheFirst(Oracle):
    """P26: the distance is measured from the first message."""

    def exceeds_distance(self, fragment: Fragment) -> bool:
        limit = self.limits.max_sequence_distance
        return limit is not None and fragment.sequence >= limit


class DistanceFromTheHighest(Oracle):
    """P26: the distance is measured from the highest complete message."""

    def exceeds_distance(self, fragment: Fragment) -> bool:
        direction = self.direction_of(fragment)
        waiting = [sequence for sequence, message in direction.messages.items() if message.is_complete]
        limit = self.limits.max_sequence_distance
        lowest = max([direction.next, *(sequence + 1 for sequence in (*waiting, *direction.numbers))])
        return limit is not None and fragment.sequence - lowest >= limit


class DirectionsAreFree(Oracle):
    """P26: a direction is not charged."""

    def charge_of_direction(self, direction: Direction) -> int:
        return super().charge_of_direction(direction) - 128


class NumbersAreFree(Oracle):
    """P26: with `in_order=False` the numbers of complete messages after a gap are not charged."""

    def charge_of_direction(self, direction: Direction) -> int:
        return super().charge_of_direction(replace(direction, numbers=set()))


class WaitingMessagesAreFree(Oracle):
    """P26: a waiting message is not charged."""

    def charge_of_message(self, message: Message) -> int:
        return 0 if message.is_complete else super().charge_of_message(message)


class WaitingMessagesAreOneFragment(Oracle):
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


class ExtraColumnsOfTheFirstFragment(Oracle):
    """P13, P26: the extra columns of the fragment that arrived first are charged."""

    def charge_of_message(self, message: Message) -> int:
        first = message.fragments.get(0)
        stored = 0 if first is None else first.extra_bytes
        return super().charge_of_message(message) - stored + message.first.extra_bytes


class ExtraColumnsOfEachFragment(Oracle):
    """P13, P26: the extra columns of each fragment are charged."""

    def charge_of_fragment(self, fragment: Fragment) -> int:
        return super().charge_of_fragment(fragment) + (fragment.extra_bytes if fragment.number else 0)


class EighthsAreRoundedUp(Oracle):
    """P26: an eighth of a fragment's bytes is rounded up."""

    def charge_of_fragment(self, fragment: Fragment) -> int:
        return super().charge_of_fragment(fragment) + (len(fragment.body) % 8 > 0)


class EighthOfTheMessage(Oracle):
    """P26: the eighth is computed for the message, not for each fragment."""

    def charge_of_message(self, message: Message) -> int:
        own = sum(len(fragment.body) // 8 for fragment in message.fragments.values())
        return super().charge_of_message(message) - own + len(message.body) // 8


class CompleteMessagesNeedMemory(Oracle):
    """P26: a fragment that completes its message needs memory as if the message stayed."""

    def state_after(self, fragment: Fragment) -> Direction:
        direction = self.direction_of(fragment).copy()
        direction.known = self.add_fragment(direction, fragment).is_complete or direction.known
        return direction


class CompletingFragmentsAreNeverRejected(Oracle):
    """P26: a fragment that completes its message is never rejected."""

    def exceeds_memory(self, fragment: Fragment) -> bool:
        return not self.add_fragment(
            self.direction_of(fragment).copy(), fragment
        ).is_complete and super().exceeds_memory(fragment)


class ReleasesFreeNoMemory(Oracle):
    """P26: the messages released by a fragment do not free memory for it."""

    def state_after(self, fragment: Fragment) -> Direction:
        direction = self.direction_of(fragment).copy()
        if self.add_fragment(direction, fragment).is_complete:
            direction.known = True
            if direction.next == fragment.sequence or not self.in_order:
                del direction.messages[fragment.sequence]
        return direction


class CompletingFragmentsDoNotMakeKnown(Oracle):
    """P26: a direction is known only after the fragment that completes its first message."""

    def state_after(self, fragment: Fragment) -> Direction:
        direction = super().state_after(fragment)
        direction.known = self.direction_of(fragment).known
        return direction


class AllDirectionsAreKnown(Oracle):
    """P26: unknown directions may use all memory."""

    def exceeds_share(self, share: int, directions: Sequence[Direction]) -> bool:
        return share == 1 and super().exceeds_share(share, directions)


class NoDirectionIsKnown(Oracle):
    """P26: known directions may not use more than half of the memory."""

    def state_after(self, fragment: Fragment) -> Direction:
        direction = super().state_after(fragment)
        direction.known = False
        return direction


class HalfIsRoundedUp(Oracle):
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
    """P26: half of the limit applies to bytes, not to messages."""

    def exceeds_share(self, share: int, directions: Sequence[Direction]) -> bool:
        limits = self.limits
        self.limits = limits if share == 1 else replace(limits, max_pending_messages=None)
        more = super().exceeds_share(share, directions)
        self.limits = limits
        return more


class OnlyMessagesAreHalved(Oracle):
    """P26: half of the limit applies to messages, not to bytes."""

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
    """P26: a direction without any data remains, and is charged."""

    def remove_if_empty(self, key: tuple[bytes, bool]) -> None:
        pass


class DirectionsAreForgotten(Oracle):
    """P26: a direction without pending messages is forgotten, although one of its messages was complete."""

    def remove_if_empty(self, key: tuple[bytes, bool]) -> None:
        direction = self.directions.get(key)
        if direction is not None and not direction.messages and not direction.next:
            del self.directions[key]
