from __future__ import annotations

from dataclasses import replace

from tests.oracle.reassembly import Fragment, Oracle
from tests.oracle.signatures import md5
from tests.oracle.traffic import Message


class FragmentSignaturesIgnoreTheKey(Oracle):
    """P21: a fragment signature is the unencrypted MD5 even with a session key."""

    def expected_fragment_signature(self, fragment: Fragment) -> bytes:
        return super().expected_fragment_signature(replace(fragment, key=None))


class MessageSignaturesIgnoreTheKey(Oracle):
    """P21: a message signature is the unencrypted MD5 even with a session key."""

    def expected_message_signature(self, message: Message) -> bytes:
        return md5(message.body)


class LastKeyIsUsed(Oracle):
    """P21: a message is verified with the key of the fragment that arrived last."""

    def expected_message_signature(self, message: Message) -> bytes:
        last = list(message.fragments.values())[-1]
        return super().expected_message_signature(Message(replace(message.first, key=last.key), message.fragments))


class DirectionsAreNotSigned(Oracle):
    """P22: the direction is not part of the header."""

    def expected_fragment_signature(self, fragment: Fragment) -> bytes:
        return super().expected_fragment_signature(replace(fragment, is_initiator=True))


class CountsAreNotSigned(Oracle):
    """P22: the count is not part of the header."""

    def expected_fragment_signature(self, fragment: Fragment) -> bytes:
        return super().expected_fragment_signature(replace(fragment, count=0))


class FragmentSignaturesIgnoreTheMessage(Oracle):
    """P22: a fragment signature does not depend on that of its message."""

    def expected_fragment_signature(self, fragment: Fragment) -> bytes:
        return super().expected_fragment_signature(replace(fragment, message_signature=bytes(16)))


class MessageSignaturesAreNotVerified(Oracle):
    """P21: the message signature is not verified."""

    def message_matches(self, message: Message) -> bool:
        return True


class SingleFragmentMessagesAreNotVerified(Oracle):
    """P21: the message signature of a single fragment is not verified if its fragment signature was."""

    def message_matches(self, message: Message) -> bool:
        compared = message.first.count == 1 and message.first.fragment_signature is not None
        return compared or super().message_matches(message)


class MessageSignaturesAreRequired(Oracle):
    """P21: a message without a signature does not match."""

    def message_matches(self, message: Message) -> bool:
        return message.first.message_signature is not None and super().message_matches(message)


class MessageSignaturesInOrderOfArrival(Oracle):
    """P13: the message signature is that of the parts in order of arrival."""

    def expected_message_signature(self, message: Message) -> bytes:
        if message.first.key is None:
            return md5(b"".join(fragment.body for fragment in message.fragments.values()))
        return super().expected_message_signature(message)
