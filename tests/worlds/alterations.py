"""Damage of and attacks on fragments, one function for each; another module exchanges conversations and keys."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.oracle.signatures import fragment_signature
from tests.oracle.traffic import SEQUENCE_END, SIGNATURE_BYTES, Fragment
from tests.worlds.world_maker import Chooser

Alter = Callable[[Chooser, Fragment], Fragment]

INT32_MAX = 2**31 - 1
ODD_LENGTHS = (0, 15, 17)


def resigned(fragment: Fragment) -> Fragment:
    """With its signature recomputed, if it has one and can have one."""
    signature = fragment.message_signature
    readable = signature is not None and len(signature) == SIGNATURE_BYTES
    if fragment.fragment_signature is None or not (readable or fragment.key is None) or out_of_range(fragment):
        return fragment
    own = fragment_signature(
        fragment.body,
        conversation_id=fragment.conversation_id,
        is_initiator=fragment.is_initiator,
        sequence=fragment.sequence,
        number=fragment.number,
        count=fragment.count,
        signature=signature or b"",
        key=fragment.key,
    )
    return replace(fragment, fragment_signature=own)


def out_of_range(fragment: Fragment) -> bool:
    """With numbers out of range for a header, so that nothing can be signed."""
    return min(fragment.sequence, fragment.number, fragment.count) < 0


def int32(number: int) -> int:
    """Returns the nearest number that fits the column."""
    return max(-INT32_MAX - 1, min(INT32_MAX, number))


def other_bytes(chooser: Chooser, fragment: Fragment) -> Fragment:
    """With another body of the same length."""
    body = bytearray(fragment.body or b"a")
    body[chooser.count(0, len(body) - 1)] ^= chooser.one_of((3, 128))
    return replace(fragment, body=bytes(body))


def more_or_fewer_bytes(chooser: Chooser, fragment: Fragment) -> Fragment:
    """With a body longer or shorter by one, or empty."""
    return replace(fragment, body=chooser.one_of((fragment.body + b"a", fragment.body[:-1], b"")))


def no_fragment_signature(_chooser: Chooser, fragment: Fragment) -> Fragment:
    """Without its own signature."""
    return replace(fragment, fragment_signature=None)


def bare_other_bytes(chooser: Chooser, fragment: Fragment) -> Fragment:
    """With another body and without its own signature."""
    return no_fragment_signature(chooser, other_bytes(chooser, fragment))


def no_message_signature(_chooser: Chooser, fragment: Fragment) -> Fragment:
    """Without the signature of its message."""
    return replace(fragment, message_signature=None)


def another_message_signature(chooser: Chooser, fragment: Fragment) -> Fragment:
    """With one bit of the message signature changed, or all."""
    signature = bytearray(fragment.message_signature or bytes(16))
    if signature:
        signature[0] ^= chooser.one_of((1, 255))
    return replace(fragment, message_signature=bytes(signature))


def another_fragment_signature(chooser: Chooser, fragment: Fragment) -> Fragment:
    """With one bit of its own signature changed, or with one added."""
    signature = fragment.fragment_signature or b"no MD5 of a part"
    return replace(fragment, fragment_signature=signature[:-1] + bytes([signature[-1] ^ chooser.one_of((1, 128))]))


def unreadable_signature(chooser: Chooser, fragment: Fragment) -> Fragment:
    """With a signature of either kind that is longer or shorter than 16 bytes."""
    odd = bytes(chooser.one_of(ODD_LENGTHS))
    if chooser.chance(50):
        return replace(fragment, message_signature=odd)
    return replace(fragment, fragment_signature=odd)


def another_count(chooser: Chooser, fragment: Fragment) -> Fragment:
    """With another count, near or out of range."""
    count = fragment.count
    return replace(fragment, count=int32(chooser.one_of((count + 1, count - 1, 0, -1, INT32_MAX, -INT32_MAX - 1))))


def another_number(chooser: Chooser, fragment: Fragment) -> Fragment:
    """With another number, near or out of range."""
    near = (fragment.number + 1, fragment.number - 1, 0)
    return replace(fragment, number=int32(chooser.one_of((*near, fragment.count, INT32_MAX, -INT32_MAX - 1))))


def another_sequence(chooser: Chooser, fragment: Fragment) -> Fragment:
    """With another sequence number, near, far or out of range."""
    near = (fragment.sequence + 1, fragment.sequence - 1)
    far = (SEQUENCE_END, SEQUENCE_END - 1, -SEQUENCE_END - 1)
    sequence = chooser.one_of((*near, *near, *far))
    return replace(fragment, sequence=max(-SEQUENCE_END - 1, min(SEQUENCE_END, sequence)))


def the_other_direction(_chooser: Chooser, fragment: Fragment) -> Fragment:
    """As if sent in the other direction."""
    return replace(fragment, is_initiator=not fragment.is_initiator)


def other_extra_columns(_chooser: Chooser, fragment: Fragment) -> Fragment:
    """With other extra columns."""
    return replace(fragment, extra={**fragment.extra, "note": "another"} if fragment.extra else {})


ALTERATIONS: tuple[Alter, ...] = (
    other_bytes,
    more_or_fewer_bytes,
    no_fragment_signature,
    bare_other_bytes,
    no_message_signature,
    another_message_signature,
    another_fragment_signature,
    unreadable_signature,
    another_count,
    another_number,
    another_sequence,
    the_other_direction,
    other_extra_columns,
)
