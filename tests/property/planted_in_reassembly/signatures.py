from __future__ import annotations

from dataclasses import replace

from tests.oracle.reassembly import Fragment, Oracle
from tests.oracle.signatures import md5
from tests.oracle.traffic import Message


class KeysAreNotUsedForParts(Oracle):
    """P21: the signature of a part is its unencrypted MD5, also if there is a session key."""

    def expected_fragment_signature(self, fragment: Fragment) -> bytes:
        return super().expected_fragment_signature(replace(fragment, key=None))


class KeysAreNotUsedForWholes(Oracle):
    """P21: the signature of the whole is its unencrypted MD5, also if there is a session key."""

    def expected_message_signature(self, message: Message) -> bytes:
        return md5(message.body)


class TheLastKeyCounts(Oracle):
    """P21: the whole is compared by the key that came with its last fragment."""

    def expected_message_signature(self, message: Message) -> bytes:
        last = list(message.fragments.values())[-1]
        return super().expected_message_signature(Message(replace(message.first, key=last.key), message.fragments))


class DirectionsAreNotBound(Oracle):
    """P22: the direction is not part of the header."""

    def expected_fragment_signature(self, fragment: Fragment) -> bytes:
        return super().expected_fragment_signature(replace(fragment, is_initiator=True))


class CountsAreNotBound(Oracle):
    """P22: the count is not part of the header."""

    def expected_fragment_signature(self, fragment: Fragment) -> bytes:
        return super().expected_fragment_signature(replace(fragment, count=0))


class WholesAreNotBoundToParts(Oracle):
    """P22: the signature of a part does not depend on that of its message."""

    def expected_fragment_signature(self, fragment: Fragment) -> bytes:
        return super().expected_fragment_signature(replace(fragment, message_signature=bytes(16)))


class WholesAreNotCompared(Oracle):
    """P21: the signature of the whole is not checked."""

    def message_matches(self, message: Message) -> bool:
        return True


class SingleFragmentsAreNotCompared(Oracle):
    """P21: the whole of a message of one fragment is not compared, if its part was."""

    def message_matches(self, message: Message) -> bool:
        compared = message.first.count == 1 and message.first.fragment_signature is not None
        return compared or super().message_matches(message)


class WholesNeedASignature(Oracle):
    """P21: a message without a signature does not match."""

    def message_matches(self, message: Message) -> bool:
        return message.first.message_signature is not None and super().message_matches(message)


class WholesInOrderOfArrival(Oracle):
    """P13: the signature is that of the parts in order of arrival."""

    def expected_message_signature(self, message: Message) -> bytes:
        if message.first.key is None:
            return md5(b"".join(fragment.body for fragment in message.fragments.values()))
        return super().expected_message_signature(message)
