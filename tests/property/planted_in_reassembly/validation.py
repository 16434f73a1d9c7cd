from __future__ import annotations

from dataclasses import replace

from tests.oracle.reassembly import Fragment, Oracle, Row
from tests.oracle.traffic import SEQUENCE_END, SIGNATURE_BYTES, Message


class NegativeSequencesAreValid(Oracle):
    """P12: a sequence number below 0 is valid."""

    def is_out_of_range(self, fragment: Fragment) -> bool:
        if fragment.key is None:  # no header can represent it
            fragment = replace(fragment, sequence=max(fragment.sequence, 0))
        return super().is_out_of_range(fragment)


class HighestSequenceIsValid(Oracle):
    """P12: a sequence number of 2^63 - 1 is valid."""

    def is_out_of_range(self, fragment: Fragment) -> bool:
        return super().is_out_of_range(replace(fragment, sequence=min(fragment.sequence, SEQUENCE_END - 1)))


class SecondHighestSequenceIsInvalid(Oracle):
    """P12: a sequence number of 2^63 - 2 is invalid."""

    def is_out_of_range(self, fragment: Fragment) -> bool:
        return super().is_out_of_range(fragment) or fragment.sequence == SEQUENCE_END - 1


class NumberMayEqualTheCount(Oracle):
    """P12: a fragment's number may be the count."""

    def is_out_of_range(self, fragment: Fragment) -> bool:
        return super().is_out_of_range(
            replace(fragment, number=fragment.number - (fragment.number == fragment.count > 0))
        )

    def message_row(self, message: Message) -> Row:
        return super().message_row(Message(message.first, dict(enumerate(message.by_number))))


class SignaturesBeforeRanges(Oracle):
    """P12, P23: a fragment out of range and corrupt is reported as corrupt."""

    def reason_against(self, fragment: Fragment) -> str | None:
        reason = super().reason_against(fragment)
        return "corrupt_fragment" if reason == "out_of_range" and self.is_unreadable(fragment) else reason


class SignaturesBeforeLimits(Oracle):
    """P26: signatures are verified before limits."""

    def reason_against(self, fragment: Fragment) -> str | None:
        reason = super().reason_against(fragment)
        return "corrupt_fragment" if reason == "limit_exceeded" and self.is_corrupt(fragment) else reason


class DuplicatesBeforeSignatures(Oracle):
    """P23, P18: a corrupt fragment of a complete message is reported as a duplicate."""

    def reason_against(self, fragment: Fragment) -> str | None:
        reason = super().reason_against(fragment)
        return "duplicate" if reason == "corrupt_fragment" and self.was_complete(fragment) else reason


class UnauthenticatedDuplicates(Oracle):
    """P22: with a session key, a single fragment without any signature is acknowledged as a duplicate."""

    def is_authentic(self, fragment: Fragment) -> bool:
        return True


class InvalidMessageSignatureIsMissing(Oracle):
    """P23: a message signature that is not 16 bytes counts as none."""

    def push_row(self, fragment: Fragment) -> None:
        readable = fragment.message_signature is not None and len(fragment.message_signature) == SIGNATURE_BYTES
        super().push_row(fragment if readable else replace(fragment, message_signature=None))


class InvalidFragmentSignatureIsMissing(Oracle):
    """P23: a fragment signature that is not 16 bytes counts as none."""

    def is_corrupt(self, fragment: Fragment) -> bool:
        readable = fragment.fragment_signature is not None and len(fragment.fragment_signature) == SIGNATURE_BYTES
        return super().is_corrupt(fragment if readable else replace(fragment, fragment_signature=None))


class FragmentSignaturesAreNotVerified(Oracle):
    """P23: a fragment's own signature is not checked."""

    def fragment_matches(self, fragment: Fragment) -> bool:
        return True


class SingleFragmentSignaturesAreNotVerified(Oracle):
    """P23: the own signature of a message's only fragment is not checked."""

    def fragment_matches(self, fragment: Fragment) -> bool:
        return fragment.count == 1 or super().fragment_matches(fragment)


class FragmentSignaturesAreRequired(Oracle):
    """P21, P23: a fragment without a signature of its own is rejected."""

    def lacks_signature(self, fragment: Fragment) -> bool:
        return super().lacks_signature(fragment) or (fragment.count > 1 and fragment.fragment_signature is None)


class KeysRequireNoSignatures(Oracle):
    """P22: with a session key signatures may be missing."""

    def lacks_signature(self, fragment: Fragment) -> bool:
        return fragment.key is not None and fragment.message_signature is None

    def fragment_matches(self, fragment: Fragment) -> bool:
        return fragment.message_signature is None or super().fragment_matches(fragment)


class KeysRequireSingleFragmentSignatures(Oracle):
    """P23: with a session key the only fragment of a message needs a signature of its own."""

    def lacks_signature(self, fragment: Fragment) -> bool:
        return super().lacks_signature(fragment) or (fragment.key is not None and fragment.fragment_signature is None)


class WaitingIsNotComplete(Oracle):
    """P18: fragments of a waiting message are checked for contradictions instead of being duplicates."""

    def was_complete(self, fragment: Fragment) -> bool:
        waiting = self.direction_of(fragment).messages.get(fragment.sequence)
        return waiting is None and super().was_complete(fragment)


class NumbersAreForgotten(Oracle):
    """P12: with `in_order=False`, messages completed after a gap may be sent again."""

    def was_complete(self, fragment: Fragment) -> bool:
        return fragment.sequence not in self.direction_of(fragment).numbers and super().was_complete(fragment)


class NextMessageIsComplete(Oracle):
    """P18: the next message counts as complete."""

    def was_complete(self, fragment: Fragment) -> bool:
        return super().was_complete(fragment) or 0 < fragment.sequence == self.direction_of(fragment).next


class CountsMayDiffer(Oracle):
    """P26: another count is no contradiction if the number is below both."""

    def contradicts(self, fragment: Fragment, message: Message) -> bool:
        if fragment.number < message.first.count:
            fragment = replace(fragment, count=message.first.count)
        return super().contradicts(fragment, message)


class SignaturesMayDiffer(Oracle):
    """P26: another message signature is no contradiction."""

    def contradicts(self, fragment: Fragment, message: Message) -> bool:
        return fragment.count != message.first.count


class MissingSignatureContradictsNone(Oracle):
    """P26: a missing message signature contradicts none."""

    def contradicts(self, fragment: Fragment, message: Message) -> bool:
        if fragment.message_signature is None:
            fragment = replace(fragment, message_signature=message.first.message_signature)
        return super().contradicts(fragment, message)


class NoSignatureContradictsAMissingOne(Oracle):
    """P26: a message signature does not contradict a missing one."""

    def contradicts(self, fragment: Fragment, message: Message) -> bool:
        if message.first.message_signature is None:
            fragment = replace(fragment, message_signature=None)
        return super().contradicts(fragment, message)


class SameNumberIsADuplicate(Oracle):
    """P26: the same number is a duplicate, with any bytes."""

    def has_same_bytes(self, fragment: Fragment, stored: Fragment) -> bool:
        return True


class SameLengthIsADuplicate(Oracle):
    """P26: the same number with the same length is a duplicate."""

    def has_same_bytes(self, fragment: Fragment, stored: Fragment) -> bool:
        return len(fragment.body) == len(stored.body)


class SamePrefixIsADuplicate(Oracle):
    """P26: the same number with a prefix of the bytes is a duplicate."""

    def has_same_bytes(self, fragment: Fragment, stored: Fragment) -> bool:
        return stored.body.startswith(fragment.body)


class SameNumberIsAConflict(Oracle):
    """P18: the same number is a conflict, even with the same bytes."""

    def has_same_bytes(self, fragment: Fragment, stored: Fragment) -> bool:
        return False


class FragmentSignaturesMustBeEqual(Oracle):
    """P26: the same number with the same bytes and another fragment signature is a conflict."""

    def has_same_bytes(self, fragment: Fragment, stored: Fragment) -> bool:
        return fragment.body == stored.body and fragment.fragment_signature == stored.fragment_signature


class LimitsBeforeDuplicates(Oracle):
    """P26: a duplicate of an incomplete message is rejected if a limit would reject a new fragment."""

    def compare_with_stored(self, fragment: Fragment) -> str | None:
        reason = super().compare_with_stored(fragment)
        return "limit_exceeded" if reason == "duplicate" and self.exceeds_length(fragment) else reason


class LimitsBeforeConflicts(Oracle):
    """P26: a conflict that exceeds a limit is reported as too large."""

    def compare_with_stored(self, fragment: Fragment) -> str | None:
        reason = super().compare_with_stored(fragment)
        too_large = self.exceeds_length(fragment) or self.exceeds_fragments(fragment)
        return "limit_exceeded" if reason == "conflict" and too_large else reason


class DirectionsAreNotDistinguished(Oracle):
    """P12: both directions of a conversation count as one."""

    def push_row(self, fragment: Fragment) -> None:
        super().push_row(replace(fragment, is_initiator=True))
