from __future__ import annotations

from dataclasses import replace

from tests.oracle.reassembly import Fragment, Oracle
from tests.oracle.signatures import md5
from tests.oracle.traffic import Message


class KeysAreNotUsedForParts(Oracle):
    """P21, M7: the signature of a part is its mere MD5, also where there is a session key."""

    def m7_fragment_signature(self, fragment: Fragment) -> bytes:
        return super().m7_fragment_signature(replace(fragment, key=None))


class KeysAreNotUsedForWholes(Oracle):
    """P21, M7: the signature of the whole is its mere MD5, also where there is a session key."""

    def m7_message_signature(self, message: Message) -> bytes:
        return md5(message.body)


class TheLastKeyCounts(Oracle):
    """M12: the whole is compared by the key that came with its last fragment."""

    def m7_message_signature(self, message: Message) -> bytes:
        last = list(message.fragments.values())[-1]
        return super().m7_message_signature(Message(replace(message.first, key=last.key), message.fragments))


class DirectionsAreNotBound(Oracle):
    """M7: the direction is not part of the header."""

    def m7_fragment_signature(self, fragment: Fragment) -> bytes:
        return super().m7_fragment_signature(replace(fragment, is_initiator=True))


class CountsAreNotBound(Oracle):
    """M7: the count is not part of the header."""

    def m7_fragment_signature(self, fragment: Fragment) -> bytes:
        return super().m7_fragment_signature(replace(fragment, count=0))


class WholesAreNotBoundToParts(Oracle):
    """M7: the signature of a part does not depend on that of its message."""

    def m7_fragment_signature(self, fragment: Fragment) -> bytes:
        return super().m7_fragment_signature(replace(fragment, message_signature=bytes(16)))


class WholesAreNotCompared(Oracle):
    """P21, M12: the signature of the whole is not looked at."""

    def m12_matches(self, message: Message) -> bool:
        return True


class SingleFragmentsAreNotCompared(Oracle):
    """P21, M12: the whole of a message of one fragment is not compared, if its part was."""

    def m12_matches(self, message: Message) -> bool:
        compared = message.first.count == 1 and message.first.fragment_signature is not None
        return compared or super().m12_matches(message)


class WholesNeedASignature(Oracle):
    """M12: a message without a signature does not match."""

    def m12_matches(self, message: Message) -> bool:
        return message.first.message_signature is not None and super().m12_matches(message)


class WholesInOrderOfArrival(Oracle):
    """P13, M12: the signature is that of the parts as they came."""

    def m7_message_signature(self, message: Message) -> bytes:
        if message.first.key is None:
            return md5(b"".join(fragment.body for fragment in message.fragments.values()))
        return super().m7_message_signature(message)
