from __future__ import annotations

from dataclasses import replace

from tests.oracle.reassembly import Fragment, Oracle, Row
from tests.oracle.traffic import SEQUENCE_END, SIGNATURE_BYTES, Message


class NegativeSequences(Oracle):
    """M4: a sequence number below 0 is one like others."""

    def m4_out_of_range(self, fragment: Fragment) -> bool:
        if fragment.key is None:  # no header can be made of it
            fragment = replace(fragment, sequence=max(fragment.sequence, 0))
        return super().m4_out_of_range(fragment)


class TheLastSequence(Oracle):
    """M4: a sequence number of 2^63 - 1 is one like others."""

    def m4_out_of_range(self, fragment: Fragment) -> bool:
        return super().m4_out_of_range(replace(fragment, sequence=min(fragment.sequence, SEQUENCE_END - 1)))


class TheLastButOneSequence(Oracle):
    """M4: a sequence number of 2^63 - 2 is none."""

    def m4_out_of_range(self, fragment: Fragment) -> bool:
        return super().m4_out_of_range(fragment) or fragment.sequence == SEQUENCE_END - 1


class ANumberOfTheCount(Oracle):
    """M4: a fragment's number may be the count."""

    def m4_out_of_range(self, fragment: Fragment) -> bool:
        return super().m4_out_of_range(
            replace(fragment, number=fragment.number - (fragment.number == fragment.count > 0))
        )

    def m3_row(self, message: Message) -> Row:
        return super().m3_row(Message(message.first, dict(enumerate(message.by_number))))


class RangesAfterSignatures(Oracle):
    """M4, M5: what is out of range and corrupt is called corrupt."""

    def reason_against(self, fragment: Fragment) -> str | None:
        reason = super().reason_against(fragment)
        return "corrupt_fragment" if reason == "out_of_range" and self.m5_unreadable(fragment) else reason


class SignaturesBeforeLimits(Oracle):
    """P26, M10: what a limit refuses is looked at, and called corrupt."""

    def reason_against(self, fragment: Fragment) -> str | None:
        reason = super().reason_against(fragment)
        return "corrupt_fragment" if reason == "limit_exceeded" and self.m5_corrupt(fragment) else reason


class DuplicatesBeforeSignatures(Oracle):
    """M5, M8: a corrupt fragment of a message that is whole is called a duplicate."""

    def reason_against(self, fragment: Fragment) -> str | None:
        reason = super().reason_against(fragment)
        return "duplicate" if reason == "corrupt_fragment" and self.m8_whole_before(fragment) else reason


class UnprovenDuplicates(Oracle):
    """P22, M8: under a session key, a lone fragment that nobody signed is acknowledged as a duplicate."""

    def m8_is_authentic(self, fragment: Fragment) -> bool:
        return True


class UnreadableIsMissing(Oracle):
    """M5: a signature of the message that is not 16 bytes counts as none."""

    def take(self, fragment: Fragment) -> None:
        readable = fragment.message_signature is not None and len(fragment.message_signature) == SIGNATURE_BYTES
        super().take(fragment if readable else replace(fragment, message_signature=None))


class UnreadableOwnIsMissing(Oracle):
    """M5: a fragment's own signature that is not 16 bytes counts as none."""

    def m5_corrupt(self, fragment: Fragment) -> bool:
        readable = fragment.fragment_signature is not None and len(fragment.fragment_signature) == SIGNATURE_BYTES
        return super().m5_corrupt(fragment if readable else replace(fragment, fragment_signature=None))


class PartsAreNotCompared(Oracle):
    """P23, M5: a fragment's own signature is not looked at."""

    def m5_part_matches(self, fragment: Fragment) -> bool:
        return True


class PartsOfWholesAreNotCompared(Oracle):
    """P23, M5: the own signature of a message's only fragment is not looked at."""

    def m5_part_matches(self, fragment: Fragment) -> bool:
        return fragment.count == 1 or super().m5_part_matches(fragment)


class PartsNeedASignature(Oracle):
    """M1, M5: a fragment without a signature of its own is refused."""

    def m5_missing(self, fragment: Fragment) -> bool:
        return super().m5_missing(fragment) or (fragment.count > 1 and fragment.fragment_signature is None)


class KeysAskForNothing(Oracle):
    """P22, M5: under a session key signatures may be missing."""

    def m5_missing(self, fragment: Fragment) -> bool:
        return fragment.key is not None and fragment.message_signature is None

    def m5_part_matches(self, fragment: Fragment) -> bool:
        return fragment.message_signature is None or super().m5_part_matches(fragment)


class KeysAskOfSingleFragmentsToo(Oracle):
    """M5: under a session key the only fragment of a message needs a signature of its own."""

    def m5_missing(self, fragment: Fragment) -> bool:
        return super().m5_missing(fragment) or (fragment.key is not None and fragment.fragment_signature is None)


class HeldIsNotWhole(Oracle):
    """M8: what comes again of a message that is held is judged by what it says."""

    def m8_whole_before(self, fragment: Fragment) -> bool:
        held = self.direction_of(fragment).messages.get(fragment.sequence)
        return held is None and super().m8_whole_before(fragment)


class NumbersAreForgotten(Oracle):
    """P12, M8: with `in_order=False` what was whole after a gap may come again."""

    def m8_whole_before(self, fragment: Fragment) -> bool:
        return fragment.sequence not in self.direction_of(fragment).numbers and super().m8_whole_before(fragment)


class WholeByOne(Oracle):
    """M8: the message that is next counts as whole."""

    def m8_whole_before(self, fragment: Fragment) -> bool:
        return super().m8_whole_before(fragment) or 0 < fragment.sequence == self.direction_of(fragment).next


class CountsMayDiffer(Oracle):
    """M9: another count is no contradiction while the number is below both."""

    def m9_contradicts(self, fragment: Fragment, message: Message) -> bool:
        if fragment.number < message.first.count:
            fragment = replace(fragment, count=message.first.count)
        return super().m9_contradicts(fragment, message)


class SignaturesMayDiffer(Oracle):
    """M9: another signature of the message is no contradiction."""

    def m9_contradicts(self, fragment: Fragment, message: Message) -> bool:
        return fragment.count != message.first.count


class NullIsAnySignature(Oracle):
    """M9: no signature of the message contradicts none."""

    def m9_contradicts(self, fragment: Fragment, message: Message) -> bool:
        if fragment.message_signature is None:
            fragment = replace(fragment, message_signature=message.first.message_signature)
        return super().m9_contradicts(fragment, message)


class NullWasAnySignature(Oracle):
    """M9: a signature of the message does not contradict the lack of one."""

    def m9_contradicts(self, fragment: Fragment, message: Message) -> bool:
        if message.first.message_signature is None:
            fragment = replace(fragment, message_signature=None)
        return super().m9_contradicts(fragment, message)


class TheSameNumberIsTheSame(Oracle):
    """M9: the same number is a duplicate, whatever its bytes."""

    def m9_same_bytes(self, fragment: Fragment, there: Fragment) -> bool:
        return True


class TheSameLengthIsTheSame(Oracle):
    """M9: the same number with as many bytes is a duplicate."""

    def m9_same_bytes(self, fragment: Fragment, there: Fragment) -> bool:
        return len(fragment.body) == len(there.body)


class TheSameBeginningIsTheSame(Oracle):
    """M9: the same number with a prefix of the bytes is a duplicate."""

    def m9_same_bytes(self, fragment: Fragment, there: Fragment) -> bool:
        return there.body.startswith(fragment.body)


class TheSameNumberIsAConflict(Oracle):
    """M9, P18: the same number is a conflict, whatever its bytes."""

    def m9_same_bytes(self, fragment: Fragment, there: Fragment) -> bool:
        return False


class OwnSignaturesMustBeTheSame(Oracle):
    """M9: the same number with the same bytes and another signature of its own is a conflict."""

    def m9_same_bytes(self, fragment: Fragment, there: Fragment) -> bool:
        return fragment.body == there.body and fragment.fragment_signature == there.fragment_signature


class LimitsBeforeDuplicates(Oracle):
    """M9, M10: a duplicate of an incomplete message is refused where a limit would refuse what is new."""

    def m9_against_what_is_here(self, fragment: Fragment) -> str | None:
        reason = super().m9_against_what_is_here(fragment)
        return "limit_exceeded" if reason == "duplicate" and self.m15_too_long(fragment) else reason


class LimitsBeforeConflicts(Oracle):
    """M9, M10: a conflict is called too large where it is that too."""

    def m9_against_what_is_here(self, fragment: Fragment) -> str | None:
        reason = super().m9_against_what_is_here(fragment)
        too_large = self.m15_too_long(fragment) or self.m16_too_many_fragments(fragment)
        return "limit_exceeded" if reason == "conflict" and too_large else reason


class ADirectionIsAConversation(Oracle):
    """P12, M2: both directions of a conversation count as one."""

    def take(self, fragment: Fragment) -> None:
        super().take(replace(fragment, is_initiator=True))
