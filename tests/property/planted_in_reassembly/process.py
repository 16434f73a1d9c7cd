from __future__ import annotations

from collections.abc import Sequence

from tests.oracle.reassembly import Fragment, Oracle, Row
from tests.oracle.traffic import Direction, Message


class ACorruptMessageIsKept(Oracle):
    """P21, M12: a message that does not match stays incomplete by its last fragment."""

    def m12_forget(self, direction: Direction, message: Message) -> None:
        super().m12_forget(direction, message)
        last = list(message.fragments)[-1]
        del message.fragments[last]
        if message.fragments:
            self.directions.setdefault(message.first.direction, direction).messages[message.first.sequence] = message


class OnlyTheLastIsRejected(Oracle):
    """M12: of a message that does not match, only the last fragment is rejected."""

    def m12_forget(self, direction: Direction, message: Message) -> None:
        before = len(self.pushed.rejected)
        super().m12_forget(direction, message)
        del self.pushed.rejected[before:-1]


class RejectedAsTheyCame(Oracle):
    """M12: the fragments of a message that does not match are rejected as they came, not by number."""

    def m12_forget(self, direction: Direction, message: Message) -> None:
        before = len(self.pushed.rejected)
        super().m12_forget(direction, message)
        order = list(message.fragments)
        self.pushed.rejected[before:] = sorted(
            self.pushed.rejected[before:], key=lambda row: order.index(row["fragment_number"])
        )


class CorruptIsWhole(Oracle):
    """M12: a message that does not match makes its direction known."""

    def m12_forget(self, direction: Direction, message: Message) -> None:
        direction.known = True
        super().m12_forget(direction, message)


class CorruptIsReleased(Oracle):
    """P21, M12: the number of a message that does not match is used up."""

    def m12_forget(self, direction: Direction, message: Message) -> None:
        super().m12_forget(direction, message)
        if direction.next == message.first.sequence:
            direction.next += 1


class NothingWaits(Oracle):
    """P14, M13: a message is released although one before it is missing."""

    def m13_release(self, direction: Direction) -> list[Message]:
        in_order, self.in_order = self.in_order, False
        released = super().m13_release(direction)
        self.in_order = in_order
        return released


class EverythingWaits(Oracle):
    """M13: `in_order=False` changes nothing."""

    def m13_release(self, direction: Direction) -> list[Message]:
        in_order, self.in_order = self.in_order, True
        released = super().m13_release(direction)
        self.in_order = in_order
        return released


class OneIsReleased(Oracle):
    """M13: a fragment releases its own message only, and those behind it wait for the next."""

    def m13_release(self, direction: Direction) -> list[Message]:
        behind = {
            sequence: direction.messages.pop(sequence)
            for sequence in sorted(sequence for sequence, each in direction.messages.items() if each.is_whole)[1:]
        }
        released = super().m13_release(direction)
        direction.messages.update(behind)
        return released


class ReleasedAsTheyCame(Oracle):
    """P11, M14: what one row releases comes in the order in which it became whole."""

    def m13_release(self, direction: Direction) -> list[Message]:
        order = list(direction.messages)
        return sorted(super().m13_release(direction), key=lambda message: order.index(message.first.sequence))


class FromOne(Oracle):
    """P12, M13: the first message is number 1."""

    def m13_release(self, direction: Direction) -> list[Message]:
        direction.next = max(direction.next, 1)
        return super().m13_release(direction)


class TheFirstFurtherColumns(Oracle):
    """M3: the further columns are those of the fragment that came first."""

    def m3_row(self, message: Message) -> Row:
        return {**super().m3_row(message), **message.first.further}


class TheLastFurtherColumns(Oracle):
    """M3: the further columns are those of the fragment with the highest number."""

    def m3_row(self, message: Message) -> Row:
        return {**super().m3_row(message), **message.by_number[-1].further}


class BodiesAsTheyCame(Oracle):
    """P13: the parts are joined in the order in which they came."""

    def m3_row(self, message: Message) -> Row:
        return {**super().m3_row(message), "message_body": b"".join(each.body for each in message.fragments.values())}


class DuplicatesAreDelivered(Oracle):
    """P12, P18: a duplicate of a message that was released is delivered again."""

    def reject(self, fragment: Fragment, reason: str) -> None:
        super().reject(fragment, reason)
        if reason == "duplicate" and fragment.count == 1:
            self.pushed.messages.append(self.m3_row(Message(fragment, {0: fragment})))


class DuplicatesAreNotAcknowledged(Oracle):
    """P18, M21: a duplicate is not acknowledged again."""

    def m21_see(self, fragment: Fragment, *, is_duplicate: bool) -> None:
        if not is_duplicate:
            super().m21_see(fragment, is_duplicate=is_duplicate)


class EverythingIsAcknowledged(Oracle):
    """P21, M21: also what was rejected."""

    def take(self, fragment: Fragment) -> None:
        super().take(fragment)
        self.m21_see(fragment, is_duplicate=True)


class ConflictsAreAcknowledged(Oracle):
    """M21: also a contradiction."""

    def reject(self, fragment: Fragment, reason: str) -> None:
        super().reject(fragment, reason)
        if reason == "conflict":
            self.m21_see(fragment, is_duplicate=True)


class CorruptMessagesAreAcknowledged(Oracle):
    """P21, M21: the fragments of a message that did not match are acknowledged."""

    def m21_unsee(self, rejected: Fragment) -> None:
        pass


class CorruptMessagesSilenceTheirDirection(Oracle):
    """M21: whatever else the direction sent in this push is not acknowledged either."""

    def m21_unsee(self, rejected: Fragment) -> None:
        self.seen = [seen for seen in self.seen if seen.direction != rejected.direction]


class CorruptMessagesSilenceTheirDuplicates(Oracle):
    """M21: a duplicate of a fragment that was rejected later is not acknowledged."""

    def m21_unsee(self, rejected: Fragment) -> None:
        super().m21_unsee(rejected)
        own = (rejected.direction, rejected.sequence)
        self.seen = [seen for seen in self.seen if (seen.direction, seen.sequence) != own]


class AcknowledgedByTheLast(Oracle):
    """M21: acknowledgements come in the order in which directions were last seen."""

    def m21_acknowledgements(self) -> list[Row]:
        self.seen.reverse()
        return super().m21_acknowledgements()[::-1]


class AcknowledgedById(Oracle):
    """M21: acknowledgements come by conversation id."""

    def m21_acknowledgements(self) -> list[Row]:
        self.seen.sort()
        return super().m21_acknowledgements()


class AckedIsNext(Oracle):
    """M21: the number that is acknowledged is the next one."""

    def m21_row(self, conversation_id: bytes, is_initiator: bool) -> Row:  # noqa: FBT001
        row = super().m21_row(conversation_id, is_initiator)
        acked = row["acked_sequence_number"]
        return {**row, "acked_sequence_number": None if acked is None else acked + 1}


class PartialIsTheHighest(Oracle):
    """M21: the highest incomplete message is told."""

    def m21_partial(self, incomplete: Sequence[int]) -> int | None:
        return max(incomplete, default=None)


class PartialIsTheLatest(Oracle):
    """M21: the incomplete message that began last is told."""

    def m21_partial(self, incomplete: Sequence[int]) -> int | None:
        return incomplete[-1] if incomplete else None


class PartialFragmentsAsTheyCame(Oracle):
    """M21: the numbers of the fragments that are there are told as they came."""

    def m21_row(self, conversation_id: bytes, is_initiator: bool) -> Row:  # noqa: FBT001
        row = super().m21_row(conversation_id, is_initiator)
        if row["partial_sequence_number"] is None:
            return row
        message = self.directions[conversation_id, is_initiator].messages[row["partial_sequence_number"]]
        return {**row, "partial_fragments": list(message.fragments)}


class InitiatorsFirst(Oracle):
    """M22: what is pending stands by conversation id, the initiator's before the target's."""

    def pending(self) -> list[Row]:
        return sorted(super().pending(), key=lambda row: (row["conversation_id"], not row["is_initiator"]))


class WaitsForTheOneBefore(Oracle):
    """M22: a message waits for the number before its own."""

    def m22_waits_for(self, direction: Direction, sequence: int) -> int | None:
        return None if super().m22_waits_for(direction, sequence) is None else sequence - 1


class OnlyWholeMessagesWait(Oracle):
    """M22: an incomplete message waits for none."""

    def m22_waits_for(self, direction: Direction, sequence: int) -> int | None:
        return super().m22_waits_for(direction, sequence) if direction.messages[sequence].is_whole else None


class ForgetsIncompleteOnly(Oracle):
    """M24: a message that is held is not dropped."""

    def forget(self, conversation_id: bytes, *, is_initiator: bool, sequence: int) -> bool:
        direction = self.directions.get((conversation_id, is_initiator), Direction())
        held = direction.messages.get(sequence)
        if held is not None and held.is_whole:
            return False
        return super().forget(conversation_id, is_initiator=is_initiator, sequence=sequence)


class ForgetsReleasedToo(Oracle):
    """M24: a message that was released is forgotten too, and may come again."""

    def forget(self, conversation_id: bytes, *, is_initiator: bool, sequence: int) -> bool:
        direction = self.directions.get((conversation_id, is_initiator), Direction())
        if sequence == direction.next - 1:
            direction.next -= 1
            return True
        return super().forget(conversation_id, is_initiator=is_initiator, sequence=sequence)


class ForgettingRejects(Oracle):
    """M24: the number of a message that is forgotten is given up."""

    def forget(self, conversation_id: bytes, *, is_initiator: bool, sequence: int) -> bool:
        forgot = super().forget(conversation_id, is_initiator=is_initiator, sequence=sequence)
        direction = self.directions.get((conversation_id, is_initiator))
        if forgot and direction is not None and direction.next == sequence:
            direction.next += 1
        return forgot
