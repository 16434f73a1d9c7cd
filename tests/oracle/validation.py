"""P12, P26: checks of single fragments before any limit is checked."""

from __future__ import annotations

from tests.oracle.signatures import fragment_signature, message_signature
from tests.oracle.traffic import SEQUENCE_END, SIGNATURE_BYTES, Direction, Fragment, Limits, Message


class Validation:
    """Checks fragments one by one.

    Args:
        limits: Limits of pending data and of sizes.
        in_order: Whether a message waits for earlier ones (P14).
    """

    def __init__(self, limits: Limits | None = None, *, in_order: bool = True) -> None:
        self.limits = Limits() if limits is None else limits
        self.in_order = in_order
        self.directions: dict[tuple[bytes, bool], Direction] = {}

    def direction_of(self, fragment: Fragment) -> Direction:
        """Returns the state of the fragment's direction; an empty state if it is new."""
        return self.directions.get(fragment.direction, Direction())

    def is_out_of_range(self, fragment: Fragment) -> bool:
        """P12: the sequence number, the count or the number is invalid."""
        return (
            fragment.sequence < 0
            or fragment.sequence == SEQUENCE_END
            or fragment.count < 1
            or fragment.number < 0
            or fragment.number >= fragment.count
        )

    def is_corrupt(self, fragment: Fragment) -> bool:
        """P23: an unreadable signature, one missing despite a session key, or one that does not match."""
        return self.is_unreadable(fragment) or self.lacks_signature(fragment) or not self.fragment_matches(fragment)

    def is_unreadable(self, fragment: Fragment) -> bool:
        """P21, P23: a signature of either kind is not 16 bytes long."""
        signatures = (fragment.message_signature, fragment.fragment_signature)
        return any(signature is not None and len(signature) != SIGNATURE_BYTES for signature in signatures)

    def lacks_signature(self, fragment: Fragment) -> bool:
        """P23:

        with a session key, the message signature is required, and the fragment signature if the count is above 1.
        """
        if fragment.key is None:
            return False
        return fragment.message_signature is None or (fragment.fragment_signature is None and fragment.count > 1)

    def fragment_matches(self, fragment: Fragment) -> bool:
        """P23: the fragment signature matches, if there is one."""
        if fragment.fragment_signature is None:
            return True
        return fragment.fragment_signature == self.expected_fragment_signature(fragment)

    def expected_fragment_signature(self, fragment: Fragment) -> bytes:
        """P21, P22: returns the correct fragment signature."""
        return fragment_signature(
            fragment.body,
            conversation_id=fragment.conversation_id,
            is_initiator=fragment.is_initiator,
            sequence=fragment.sequence,
            number=fragment.number,
            count=fragment.count,
            signature=fragment.message_signature or b"",
            key=fragment.key,
        )

    def expected_message_signature(self, message: Message) -> bytes:
        """P21, P22: returns the correct message signature, with the key of the first fragment that arrived."""
        return message_signature(
            message.body,
            conversation_id=message.first.conversation_id,
            is_initiator=message.first.is_initiator,
            sequence=message.first.sequence,
            key=message.first.key,
        )

    def was_complete(self, fragment: Fragment) -> bool:
        """P12, P18: its message was complete before, whether it was released or is waiting."""
        direction = self.direction_of(fragment)
        waiting = direction.messages.get(fragment.sequence)
        return (
            fragment.sequence < direction.next
            or fragment.sequence in direction.numbers
            or (waiting is not None and waiting.is_complete)
        )

    def is_authentic(self, fragment: Fragment) -> bool:
        """P18: with a session key, a fragment without its own signature matches the message signature."""
        if fragment.key is None or fragment.fragment_signature is not None:
            return True
        alone = Message(fragment, {fragment.number: fragment})
        return fragment.message_signature == self.expected_message_signature(alone)

    def compare_with_stored(self, fragment: Fragment) -> str | None:
        """P26: returns the reason for a conflict with or duplicate of an incomplete message, or None."""
        message = self.direction_of(fragment).messages.get(fragment.sequence)
        if message is None:
            return None
        if self.contradicts(fragment, message):
            return "conflict"
        same_number = message.fragments.get(fragment.number)
        if same_number is None:
            return None
        return "duplicate" if self.has_same_bytes(fragment, same_number) else "conflict"

    def contradicts(self, fragment: Fragment, message: Message) -> bool:
        """P26: another count or another message signature (including null instead of 16 bytes)."""
        first = message.first
        return fragment.count != first.count or fragment.message_signature != first.message_signature

    def has_same_bytes(self, fragment: Fragment, stored: Fragment) -> bool:
        """P26: the same number with the same bytes."""
        return fragment.body == stored.body
