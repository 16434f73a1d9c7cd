from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.reassembly import Fragment, Oracle, Row
from tests.oracle.traffic import Direction, Message


class CorruptMessagesAreKept(Oracle):
    """P21: a corrupt message remains incomplete, without its last fragment."""

    def discard_message(self, direction: Direction, message: Message) -> None:
        super().discard_message(direction, message)
        last = list(message.fragments)[-1]
        del message.fragments[last]
        if message.fragments:
            self.directions.setdefault(message.first.direction, direction).messages[message.first.sequence] = message


class OnlyTheLastFragmentIsRejected(Oracle):
    """P21: of a corrupt message, only the last fragment is rejected."""

    def discard_message(self, direction: Direction, message: Message) -> None:
        before = len(self.pushed.rejected)
        super().discard_message(direction, message)
        del self.pushed.rejected[before:-1]


class RejectedInOrderOfArrival(Oracle):
    """P21: the fragments of a corrupt message are rejected in order of arrival, not by number."""

    def discard_message(self, direction: Direction, message: Message) -> None:
        before = len(self.pushed.rejected)
        super().discard_message(direction, message)
        order = list(message.fragments)
        self.pushed.rejected[before:] = sorted(
            self.pushed.rejected[before:], key=lambda row: order.index(row["fragment_number"])
        )


class CorruptMessagesMakeKnown(Oracle):
    """P21: a corrupt message makes its direction known."""

    def discard_message(self, direction: Direction, message: Message) -> None:
        direction.known = True
        super().discard_message(direction, message)


class CorruptMessagesUseTheirNumber(Oracle):
    """P21: the number of a corrupt message is skipped."""

    def discard_message(self, direction: Direction, message: Message) -> None:
        super().discard_message(direction, message)
        if direction.next == message.first.sequence:
            direction.next += 1


class GapsAreIgnored(Oracle):
    """P14: a message is released although an earlier one is missing."""

    def release(self, direction: Direction) -> list[Message]:
        in_order, self.in_order = self.in_order, False
        released = super().release(direction)
        self.in_order = in_order
        return released


class OrderIsAlwaysKept(Oracle):
    """P14: `in_order=False` changes nothing."""

    def release(self, direction: Direction) -> list[Message]:
        in_order, self.in_order = self.in_order, True
        released = super().release(direction)
        self.in_order = in_order
        return released


class OnlyOneMessageIsReleased(Oracle):
    """P14: a fragment releases only its own message; those behind it wait for the next fragment."""

    def release(self, direction: Direction) -> list[Message]:
        behind = {
            sequence: direction.messages.pop(sequence)
            for sequence in sorted(sequence for sequence, each in direction.messages.items() if each.is_complete)[1:]
        }
        released = super().release(direction)
        direction.messages.update(behind)
        return released


class ReleasedInOrderOfCompletion(Oracle):
    """P11: messages released by one row are in the order of completion."""

    def release(self, direction: Direction) -> list[Message]:
        order = list(direction.messages)
        return sorted(super().release(direction), key=lambda message: order.index(message.first.sequence))


class NumbersStartAtOne(Oracle):
    """P12: the first message has number 1."""

    def release(self, direction: Direction) -> list[Message]:
        direction.next = max(direction.next, 1)
        return super().release(direction)


class ExtraColumnsOfTheFirstArrival(Oracle):
    """P13: the extra columns are those of the fragment that arrived first."""

    def message_row(self, message: Message) -> Row:
        return {**super().message_row(message), **message.first.extra}


class ExtraColumnsOfTheHighestFragment(Oracle):
    """P13: the extra columns are those of the fragment with the highest number."""

    def message_row(self, message: Message) -> Row:
        return {**super().message_row(message), **message.by_number[-1].extra}


class BodiesInOrderOfArrival(Oracle):
    """P13: the parts are joined in order of arrival."""

    def message_row(self, message: Message) -> Row:
        return {
            **super().message_row(message),
            "message_body": b"".join(each.body for each in message.fragments.values()),
        }


class DuplicatesAreDelivered(Oracle):
    """P12, P18: a duplicate of a released message is delivered again."""

    def reject(self, fragment: Fragment, reason: str) -> None:
        super().reject(fragment, reason)
        if reason == "duplicate" and fragment.count == 1:
            self.pushed.messages.append(self.message_row(Message(fragment, {0: fragment})))


class DuplicatesAreNotAcknowledged(Oracle):
    """P18: a duplicate is not acknowledged again."""

    def record_acknowledged(self, fragment: Fragment, *, is_duplicate: bool) -> None:
        if not is_duplicate:
            super().record_acknowledged(fragment, is_duplicate=is_duplicate)


class EverythingIsAcknowledged(Oracle):
    """P21: rejected fragments are acknowledged too."""

    def push_row(self, fragment: Fragment) -> None:
        super().push_row(fragment)
        self.record_acknowledged(fragment, is_duplicate=True)


class ConflictsAreAcknowledged(Oracle):
    """P15: conflicting fragments are acknowledged too."""

    def reject(self, fragment: Fragment, reason: str) -> None:
        super().reject(fragment, reason)
        if reason == "conflict":
            self.record_acknowledged(fragment, is_duplicate=True)


class CorruptMessagesAreAcknowledged(Oracle):
    """P21: the fragments of a corrupt message are acknowledged."""

    def revoke_acknowledged(self, rejected: Fragment) -> None:
        pass


class CorruptMessagesSuppressAcknowledgements(Oracle):
    """P15: with a corrupt message, other fragments of its direction in the same push are not acknowledged either."""

    def revoke_acknowledged(self, rejected: Fragment) -> None:
        self.acknowledged_fragments = [
            row for row in self.acknowledged_fragments if row.direction != rejected.direction
        ]


class CorruptMessagesSuppressDuplicates(Oracle):
    """P15: a duplicate of a fragment that was rejected later is not acknowledged."""

    def revoke_acknowledged(self, rejected: Fragment) -> None:
        super().revoke_acknowledged(rejected)
        own = (rejected.direction, rejected.sequence)
        self.acknowledged_fragments = [
            row for row in self.acknowledged_fragments if (row.direction, row.sequence) != own
        ]


class AcknowledgementsInOrderOfLastFragments(Oracle):
    """P15: acknowledgements are ordered by the last fragment of each direction."""

    def acknowledgements(self) -> list[Row]:
        self.acknowledged_fragments.reverse()
        return super().acknowledgements()[::-1]


class AcknowledgementsInOrderOfIds(Oracle):
    """P15: acknowledgements are ordered by conversation id."""

    def acknowledgements(self) -> list[Row]:
        self.acknowledged_fragments.sort()
        return super().acknowledgements()


class AcknowledgedNumberIsTheNext(Oracle):
    """P15: the acknowledged number is the next one."""

    def acknowledgement_row(self, conversation_id: bytes, is_initiator: bool) -> Row:  # noqa: FBT001
        row = super().acknowledgement_row(conversation_id, is_initiator)
        acked = row["acked_sequence_number"]
        return {**row, "acked_sequence_number": None if acked is None else acked + 1}


class HighestPartialMessage(Oracle):
    """P15: the highest incomplete message is reported."""

    def first_partial(self, incomplete: Sequence[int]) -> int | None:
        return max(incomplete, default=None)


class LatestPartialMessage(Oracle):
    """P15: the incomplete message that started last is reported."""

    def first_partial(self, incomplete: Sequence[int]) -> int | None:
        return incomplete[-1] if incomplete else None


class PartialFragmentsInOrderOfArrival(Oracle):
    """P15: the numbers of stored fragments are reported in order of arrival."""

    def acknowledgement_row(self, conversation_id: bytes, is_initiator: bool) -> Row:  # noqa: FBT001
        row = super().acknowledgement_row(conversation_id, is_initiator)
        if row["partial_sequence_number"] is None:
            return row
        message = self.directions[conversation_id, is_initiator].messages[row["partial_sequence_number"]]
        return {**row, "partial_fragments": list(message.fragments)}


class PendingInitiatorsFirst(Oracle):
    """P14: pending messages are ordered by conversation id, the initiator's before the target's."""

    def pending(self) -> list[Row]:
        return sorted(super().pending(), key=lambda row: (row["conversation_id"], not row["is_initiator"]))


class WaitsForThePreviousNumber(Oracle):
    """P14: a message waits for the number before its own."""

    def blocking_sequence(self, direction: Direction, sequence: int) -> int | None:
        return None if super().blocking_sequence(direction, sequence) is None else sequence - 1


class OnlyCompleteMessagesWait(Oracle):
    """P14: an incomplete message does not wait."""

    def blocking_sequence(self, direction: Direction, sequence: int) -> int | None:
        return super().blocking_sequence(direction, sequence) if direction.messages[sequence].is_complete else None


class ForgetsOnlyIncompleteMessages(Oracle):
    """P14: a waiting message is not dropped."""

    def forget(self, conversation_id: bytes, *, is_initiator: bool, sequence: int) -> bool:
        direction = self.directions.get((conversation_id, is_initiator), Direction())
        waiting = direction.messages.get(sequence)
        if waiting is not None and waiting.is_complete:
            return False
        return super().forget(conversation_id, is_initiator=is_initiator, sequence=sequence)


class ForgetsReleasedMessages(Oracle):
    """P14: a released message is forgotten too, and may be sent again."""

    def forget(self, conversation_id: bytes, *, is_initiator: bool, sequence: int) -> bool:
        direction = self.directions.get((conversation_id, is_initiator), Direction())
        if sequence == direction.next - 1:
            direction.next -= 1
            return True
        return super().forget(conversation_id, is_initiator=is_initiator, sequence=sequence)


class ForgettingSkipsTheNumber(Oracle):
    """P14: the number of a forgotten message is skipped."""

    def forget(self, conversation_id: bytes, *, is_initiator: bool, sequence: int) -> bool:
        forgot = super().forget(conversation_id, is_initiator=is_initiator, sequence=sequence)
        direction = self.directions.get((conversation_id, is_initiator))
        if forgot and direction is not None and direction.next == sequence:
            direction.next += 1
        return forgot
