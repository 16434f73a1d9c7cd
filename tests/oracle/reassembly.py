"""The rules P11 to P18, P21, P23 and P26 as they are written, with the decisions M4 to M24, one small method each.

Nothing here is fast or clever: one row after the other, and what is kept stands in dictionaries. Whoever doubts a result reads
the rule and then the method of its number. The sections stand in classes built one on the other: `Judging` (M4 to M9), `Room`
(M10, M15 to M20), and here the process that joins them. The tests of the tests override single methods to see that the
random worlds notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from tests.oracle.room import Room
from tests.oracle.traffic import Direction, Fragment, Limits, Message, Row

__all__ = ["Fragment", "Limits", "Oracle", "Pushed", "Row"]


@dataclass
class Pushed:
    """What one push tells."""

    messages: list[Row] = field(default_factory=list)
    rejected: list[Row] = field(default_factory=list)
    acknowledgements: list[Row] = field(default_factory=list)


class Seen(NamedTuple):
    """What an acknowledgement is sent for (M21)."""

    direction: tuple[bytes, bool]
    sequence: int
    is_duplicate: bool


class Oracle(Room):
    """Reassembles fragments; the arguments are those of `Judging`."""

    def push(self, fragments: Sequence[Fragment]) -> Pushed:
        """One row after the other, then what is acknowledged."""
        self.pushed = Pushed()
        self.seen: list[Seen] = []
        for fragment in fragments:
            self.take(fragment)
        self.pushed.acknowledgements = self.m21_acknowledgements()
        return self.pushed

    def take(self, fragment: Fragment) -> None:
        """M4 to M11: rejected for the first reason that holds, else accepted."""
        reason = self.reason_against(fragment)
        if reason is None:
            self.accept(fragment)
            return
        self.reject(fragment, reason)
        if reason == "duplicate":
            self.m21_see(fragment, is_duplicate=True)

    def reason_against(self, fragment: Fragment) -> str | None:
        """M4 to M10: in this order, but that what a limit refuses is not looked at."""
        if self.m4_out_of_range(fragment):
            return "out_of_range"
        reason = self.reason_beside_its_own(fragment)
        return "corrupt_fragment" if reason != "limit_exceeded" and self.m5_corrupt(fragment) else reason

    def reason_beside_its_own(self, fragment: Fragment) -> str | None:
        """M8 to M10: what is there, and what there is room for."""
        if self.m8_whole_before(fragment):
            return "duplicate" if self.m8_is_authentic(fragment) else "corrupt_message"
        if reason := self.m9_against_what_is_here(fragment):
            return reason
        return "limit_exceeded" if self.m10_limit_exceeded(fragment) else None

    def accept(self, fragment: Fragment) -> None:
        """M11 to M14: kept, and its message released when it is whole and its turn has come."""
        direction = self.directions.setdefault(fragment.direction, Direction())
        message = self.m11_add(direction, fragment)
        self.m21_see(fragment, is_duplicate=False)
        if not message.is_whole:
            return
        if not self.m12_matches(message):
            self.m12_forget(direction, message)
            return
        direction.known = True
        self.pushed.messages.extend(map(self.m3_row, self.m13_release(direction)))

    def m12_matches(self, message: Message) -> bool:
        """P21, M12: without a signature, and without a session key, nothing is compared."""
        first = message.first
        if first.message_signature is None and first.key is None:
            return True
        return first.message_signature == self.m7_message_signature(message)

    def m12_forget(self, direction: Direction, message: Message) -> None:
        """P21, M12: every fragment is rejected, by number, and may come again."""
        del direction.messages[message.first.sequence]
        for fragment in message.by_number:
            self.reject(fragment, "corrupt_message")
        self.m21_unsee(message.first)
        self.m20_forget_if_nothing(message.first.direction)

    def reject(self, fragment: Fragment, reason: str) -> None:
        """M14: rejected rows come in the order of the rows that caused them."""
        self.pushed.rejected.append(
            {
                "conversation_id": fragment.conversation_id.bytes,
                "is_initiator": fragment.is_initiator,
                "message_sequence_number": fragment.sequence,
                "fragment_number": fragment.number,
                "fragment_count": fragment.count,
                "reason": reason,
            }
        )

    def m3_row(self, message: Message) -> Row:
        """M3: the columns of a message, the further ones those of its fragment number 0."""
        first = message.first
        return {
            "conversation_id": first.conversation_id.bytes,
            "is_initiator": first.is_initiator,
            "message_sequence_number": first.sequence,
            "message_body": message.body,
            "message_signature": first.message_signature,
            **message.fragments[0].further,
        }

    def m21_see(self, fragment: Fragment, *, is_duplicate: bool) -> None:
        """P15, P18, M21: an accepted fragment is acknowledged, and so is a duplicate."""
        self.seen.append(Seen(fragment.direction, fragment.sequence, is_duplicate))

    def m21_unsee(self, rejected: Fragment) -> None:
        """P21, M21: accepted fragments that were rejected as `corrupt_message` in the same push do not count."""
        accepted = Seen(rejected.direction, rejected.sequence, is_duplicate=False)
        self.seen = [seen for seen in self.seen if seen != accepted]

    def m21_acknowledgements(self) -> list[Row]:
        """P15, M21: a row for each direction, in the order in which they first counted."""
        return [self.m21_row(*key) for key in dict.fromkeys(seen.direction for seen in self.seen)]

    def m21_row(self, conversation_id: bytes, is_initiator: bool) -> Row:  # noqa: FBT001
        """P15, M21: all that is whole up to a number, and what is there of the lowest that is incomplete."""
        direction = self.directions.get((conversation_id, is_initiator), Direction())
        incomplete = [sequence for sequence, message in direction.messages.items() if not message.is_whole]
        partial = self.m21_partial(incomplete)
        return {
            "conversation_id": conversation_id,
            "is_initiator": is_initiator,
            "acked_sequence_number": direction.next - 1 if direction.next else None,
            "partial_sequence_number": partial,
            "partial_fragments": None if partial is None else sorted(direction.messages[partial].fragments),
        }

    def m21_partial(self, incomplete: Sequence[int]) -> int | None:
        """M21: the lowest sequence number of which some but not all fragments are there."""
        return min(incomplete, default=None)

    def pending(self) -> list[Row]:
        """P14, M22: what is incomplete or held, by conversation id, direction (target before initiator) and number."""
        return [
            self.m22_row(self.directions[key], sequence, message)
            for key in sorted(self.directions)
            for sequence, message in sorted(self.directions[key].messages.items())
        ]

    def m22_row(self, direction: Direction, sequence: int, message: Message) -> Row:
        """M22: how far a message has come, and for what it waits."""
        missing = next(number for number in count() if number not in message.fragments)
        return {
            "conversation_id": message.first.conversation_id.bytes,
            "is_initiator": message.first.is_initiator,
            "message_sequence_number": sequence,
            "fragment_count": message.first.count,
            "received_fragments": len(message.fragments),
            "received_bytes": message.size,
            "first_missing_fragment": None if message.is_whole else missing,
            "waits_for_sequence_number": self.m22_waits_for(direction, sequence),
        }

    def m22_waits_for(self, direction: Direction, sequence: int) -> int | None:
        """M22: the lowest message that is not whole, if it must come before this one."""
        return direction.next if self.in_order and sequence > direction.next else None

    def forget(self, conversation_id: bytes, *, is_initiator: bool, sequence: int) -> bool:
        """M24: drops an incomplete or held message, so that its fragments may come again."""
        direction = self.directions.get((conversation_id, is_initiator), Direction())
        dropped = direction.messages.pop(sequence, None)
        self.m20_forget_if_nothing((conversation_id, is_initiator))
        return dropped is not None
