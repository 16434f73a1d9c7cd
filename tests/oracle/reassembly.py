"""Literal implementation of the rules P11 to P18, P21, P23 and P26, with one small method for each.

It is deliberately slow and simple: one row at a time, with the state in dictionaries. To check a result, read the rule
and then its method. The classes build on each other: `Validation` (signatures and contradictions), `MemoryLimits`, and
here the complete process. Planted bugs override single methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from tests.oracle.memory_limits import MemoryLimits
from tests.oracle.traffic import Direction, Fragment, Limits, Message, Row

__all__ = ["Fragment", "Limits", "Oracle", "Pushed", "Row"]


@dataclass
class Pushed:
    """Results of one push."""

    messages: list[Row] = field(default_factory=list)
    rejected: list[Row] = field(default_factory=list)
    acknowledgements: list[Row] = field(default_factory=list)


class AcknowledgedFragment(NamedTuple):
    """An acknowledged fragment."""

    direction: tuple[bytes, bool]
    sequence: int
    is_duplicate: bool


class Oracle(MemoryLimits):
    """Reassembles fragments; the arguments are those of `Validation`."""

    def push(self, fragments: Sequence[Fragment]) -> Pushed:
        """Pushes row by row, then adds the acknowledgements."""
        self.pushed = Pushed()
        self.acknowledged_fragments: list[AcknowledgedFragment] = []
        for fragment in fragments:
            self.push_row(fragment)
        self.pushed.acknowledgements = self.acknowledgements()
        return self.pushed

    def push_row(self, fragment: Fragment) -> None:
        """P12, P14: rejects the fragment for the first reason that applies, or accepts it."""
        reason = self.reason_against(fragment)
        if reason is None:
            self.accept(fragment)
            return
        self.reject(fragment, reason)
        if reason == "duplicate":
            self.record_acknowledged(fragment, is_duplicate=True)

    def reason_against(self, fragment: Fragment) -> str | None:
        """P12, P26: returns the first reason for rejection; corruption is not checked if a limit is exceeded."""
        if self.is_out_of_range(fragment):
            return "out_of_range"
        reason = self.stored_reason(fragment)
        return "corrupt_fragment" if reason != "limit_exceeded" and self.is_corrupt(fragment) else reason

    def stored_reason(self, fragment: Fragment) -> str | None:
        """P18, P26: returns a reason that depends on stored fragments and limits."""
        if self.was_complete(fragment):
            return "duplicate" if self.is_authentic(fragment) else "corrupt_message"
        if reason := self.compare_with_stored(fragment):
            return reason
        return "limit_exceeded" if self.exceeds_a_limit(fragment) else None

    def accept(self, fragment: Fragment) -> None:
        """P14, P11: stores the fragment, and releases its message if it is complete and next in order."""
        direction = self.directions.setdefault(fragment.direction, Direction())
        message = self.add_fragment(direction, fragment)
        self.record_acknowledged(fragment, is_duplicate=False)
        if not message.is_complete:
            return
        if not self.message_matches(message):
            self.discard_message(direction, message)
            return
        direction.known = True
        self.pushed.messages.extend(map(self.message_row, self.release(direction)))

    def message_matches(self, message: Message) -> bool:
        """P21: without signature and session key, nothing is compared."""
        first = message.first
        if first.message_signature is None and first.key is None:
            return True
        return first.message_signature == self.expected_message_signature(message)

    def discard_message(self, direction: Direction, message: Message) -> None:
        """P21: rejects every fragment, by number; all may be sent again."""
        del direction.messages[message.first.sequence]
        for fragment in message.by_number:
            self.reject(fragment, "corrupt_message")
        self.revoke_acknowledged(message.first)
        self.remove_if_empty(message.first.direction)

    def reject(self, fragment: Fragment, reason: str) -> None:
        """P11: rejected rows are in the order of the rows that caused them."""
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

    def message_row(self, message: Message) -> Row:
        """P13: returns the columns of a message; extra columns are those of fragment 0."""
        first = message.first
        return {
            "conversation_id": first.conversation_id.bytes,
            "is_initiator": first.is_initiator,
            "message_sequence_number": first.sequence,
            "message_body": message.body,
            "message_signature": first.message_signature,
            **message.fragments[0].extra,
        }

    def record_acknowledged(self, fragment: Fragment, *, is_duplicate: bool) -> None:
        """P15, P18: accepted fragments and duplicates are acknowledged."""
        self.acknowledged_fragments.append(AcknowledgedFragment(fragment.direction, fragment.sequence, is_duplicate))

    def revoke_acknowledged(self, rejected: Fragment) -> None:
        """P21: accepted fragments rejected as `corrupt_message` in the same push are not acknowledged."""
        accepted = AcknowledgedFragment(rejected.direction, rejected.sequence, is_duplicate=False)
        self.acknowledged_fragments = [
            acknowledged_fragments
            for acknowledged_fragments in self.acknowledged_fragments
            if acknowledged_fragments != accepted
        ]

    def acknowledgements(self) -> list[Row]:
        """P15: returns a row for each direction, in the order of their first acknowledged fragments."""
        return [
            self.acknowledgement_row(*key)
            for key in dict.fromkeys(
                acknowledged_fragments.direction for acknowledged_fragments in self.acknowledged_fragments
            )
        ]

    def acknowledgement_row(self, conversation_id: bytes, is_initiator: bool) -> Row:  # noqa: FBT001
        """P15:

        returns the last number up to which all is complete, and the stored fragments of the lowest incomplete message.
        """
        direction = self.directions.get((conversation_id, is_initiator), Direction())
        incomplete = [sequence for sequence, message in direction.messages.items() if not message.is_complete]
        partial = self.first_partial(incomplete)
        return {
            "conversation_id": conversation_id,
            "is_initiator": is_initiator,
            "acked_sequence_number": direction.next - 1 if direction.next else None,
            "partial_sequence_number": partial,
            "partial_fragments": None if partial is None else sorted(direction.messages[partial].fragments),
        }

    def first_partial(self, incomplete: Sequence[int]) -> int | None:
        """P15: returns the lowest sequence number with some but not all fragments."""
        return min(incomplete, default=None)

    def pending(self) -> list[Row]:
        """P14: incomplete and waiting messages, by conversation id, direction (target before initiator) and number."""
        return [
            self.pending_row(self.directions[key], sequence, message)
            for key in sorted(self.directions)
            for sequence, message in sorted(self.directions[key].messages.items())
        ]

    def pending_row(self, direction: Direction, sequence: int, message: Message) -> Row:
        """P14: returns the stored fragments of a message, and the message that it waits for."""
        missing = next(number for number in count() if number not in message.fragments)
        return {
            "conversation_id": message.first.conversation_id.bytes,
            "is_initiator": message.first.is_initiator,
            "message_sequence_number": sequence,
            "fragment_count": message.first.count,
            "received_fragments": len(message.fragments),
            "received_bytes": message.size,
            "first_missing_fragment": None if message.is_complete else missing,
            "waits_for_sequence_number": self.blocking_sequence(direction, sequence),
        }

    def blocking_sequence(self, direction: Direction, sequence: int) -> int | None:
        """P14: returns the lowest incomplete message that must precede this one."""
        return direction.next if self.in_order and sequence > direction.next else None

    def forget(self, conversation_id: bytes, *, is_initiator: bool, sequence: int) -> bool:
        """P14: drops an incomplete or waiting message, so that its fragments may be sent again."""
        direction = self.directions.get((conversation_id, is_initiator), Direction())
        dropped = direction.messages.pop(sequence, None)
        self.remove_if_empty((conversation_id, is_initiator))
        return dropped is not None
