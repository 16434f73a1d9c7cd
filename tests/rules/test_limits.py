"""P26: memory follows the bytes received, and limits are looked at before anything is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

import ssbroker
from ssbroker.exceptions import OptionError
from tests.oracle.traffic import Fragment
from tests.rules.fragments import (
    A,
    B,
    begun,
    ended,
    messages,
    parts,
    pending_numbers,
    push,
    reasons,
    rejected,
    single,
    whole,
)
from tests.worlds.fragment_tables import fragment_batch

DIRECTION = 128
MESSAGE = 256
FRAGMENT = 96
BEGUN = MESSAGE + FRAGMENT
"""An incomplete message of one empty fragment."""


def stranger(number: int, sequence: int = 0) -> Fragment:
    """A beginning by somebody of whom nothing was ever whole."""
    return begun(sequence, conversation=UUID(int=number))


@pytest.mark.rule("P26")
def test_a_message_may_be_as_long_as_the_limit() -> None:
    """The bytes that are there with those of this fragment."""
    assert messages(whole(*parts(b"abcd"), max_message_bytes=4)) == [(0, b"abcd")]
    result = whole(*parts(b"abcde"), max_message_bytes=4)
    assert rejected(result) == [(0, 2, "limit_exceeded")]
    assert result.pending.column("received_bytes").to_pylist() == [4]
    assert reasons(whole(single(0, body=b"abcde"), max_message_bytes=4)) == ["limit_exceeded"]


@pytest.mark.parametrize("longest", [0, -1, 2**31])
def test_what_a_cell_can_hold(longest: int) -> None:
    """At most 2^31 - 1."""
    with pytest.raises(OptionError):
        whole(single(0), max_message_bytes=longest)
    with pytest.raises(OptionError):
        ssbroker.Reassembler(max_message_bytes=longest)


@pytest.mark.rule("P26")
def test_the_count_is_limited() -> None:
    """What is declared, not what came."""
    reassembler = ssbroker.Reassembler(max_fragments_per_message=3)
    assert rejected(push(reassembler, replace(begun(0), count=4), replace(begun(1), count=3))) == [
        (0, 0, "limit_exceeded")
    ]


@pytest.mark.rule("P26")
@pytest.mark.threat("T3")
def test_a_declared_count_takes_no_memory() -> None:
    """The charge is that of the bytes that came."""
    reassembler = ssbroker.Reassembler(max_fragments_per_message=None)
    push(reassembler, replace(begun(0), count=2**31 - 1))
    assert reassembler.pending_bytes == DIRECTION + BEGUN


@pytest.mark.rule("P26")
@pytest.mark.threat("T10")
def test_how_far_ahead_a_message_may_be() -> None:
    """That far, or farther, from the lowest number that is not whole."""
    reassembler = ssbroker.Reassembler(max_sequence_distance=3)
    assert rejected(push(reassembler, single(3), single(2))) == [(3, 0, "limit_exceeded")]
    assert messages(push(reassembler, single(0), single(3))) == [(0, b"")]
    assert rejected(push(reassembler, single(4))) == [(4, 0, "limit_exceeded")]
    assert messages(push(reassembler, single(1), single(6))) == [(1, b""), (2, b""), (3, b"")]


@pytest.mark.rule("P26")
@pytest.mark.threat("T9")
def test_what_is_charged() -> None:
    """A direction, its messages, their fragments, their bytes and an eighth of them."""
    reassembler = ssbroker.Reassembler()
    first, second = (begun(number, body=bytes(17)) for number in (0, 1))
    push(reassembler, first)
    assert reassembler.pending_bytes == DIRECTION + MESSAGE + FRAGMENT + 17 + 2
    push(reassembler, replace(first, number=1, count=2, message_signature=bytes(16)))
    assert reassembler.pending_messages == 1
    push(reassembler, second, ended(second, bytes(7)))
    held = MESSAGE + 2 * FRAGMENT + 17 + 2 + 7
    assert reassembler.pending_bytes == DIRECTION + MESSAGE + FRAGMENT + 17 + 2 + held
    assert reassembler.pending_messages == 2
    push(reassembler, ended(first))
    assert (reassembler.pending_bytes, reassembler.pending_messages) == (DIRECTION, 0)


@pytest.mark.rule("P12")
def test_each_direction_is_charged() -> None:
    """For as long as its numbers must be remembered."""
    reassembler = ssbroker.Reassembler()
    push(reassembler, single(0), single(0, initiator=False), single(0, conversation=B))
    assert reassembler.pending_bytes == 3 * DIRECTION


def test_without_order_numbers_are_charged() -> None:
    """Those after a gap, until it is filled."""
    reassembler = ssbroker.Reassembler(in_order=False)
    push(reassembler, single(1), single(3))
    assert (reassembler.pending_bytes, reassembler.pending_messages) == (DIRECTION + 2 * MESSAGE, 0)
    push(reassembler, single(0))
    assert reassembler.pending_bytes == DIRECTION + MESSAGE
    push(reassembler, single(2))
    assert reassembler.pending_bytes == DIRECTION


def test_further_columns_are_charged_with_fragment_0() -> None:
    """They wait with their message."""
    charges = {}
    for note in ("", "x" * 1000):
        reassembler = ssbroker.Reassembler()
        beginning = replace(begun(0), count=3, further={"note": note, "priority": 1})
        reassembler.push(fragment_batch([replace(beginning, number=1)], has_further=True))
        assert reassembler.pending_bytes == DIRECTION + BEGUN
        reassembler.push(fragment_batch([beginning], has_further=True))
        charges[note] = reassembler.pending_bytes - (DIRECTION + BEGUN + FRAGMENT)
    assert charges["x" * 1000] - charges[""] in range(1000, 1020)


@pytest.mark.rule("P26")
@pytest.mark.parametrize("limit", [DIRECTION + 2 * BEGUN - 1, DIRECTION + 2 * BEGUN])
def test_the_limit_is_exact(limit: int) -> None:
    """By the byte; who is known may use all of it."""
    reassembler = ssbroker.Reassembler(max_pending_bytes=limit)
    push(reassembler, single(0))
    fits = limit == DIRECTION + 2 * BEGUN
    assert reasons(push(reassembler, begun(1), begun(2))) == ([] if fits else ["limit_exceeded"])
    assert reassembler.pending_bytes <= limit


def test_what_is_refused_takes_no_room() -> None:
    """Not even that of its direction."""
    reassembler = ssbroker.Reassembler(max_pending_bytes=2 * (DIRECTION + BEGUN) - 1)
    assert reasons(push(reassembler, begun(0))) == ["limit_exceeded"]
    assert (reassembler.pending_bytes, reassembler.pending_messages) == (0, 0)


def test_what_is_released_at_once_needs_no_room() -> None:
    """But for a direction that is new."""
    reassembler = ssbroker.Reassembler(max_pending_bytes=DIRECTION, max_pending_messages=1)
    assert messages(push(reassembler, single(0, body=bytes(1000)), single(1))) == [(0, bytes(1000)), (1, b"")]
    assert reasons(push(reassembler, single(0, conversation=B), begun(2))) == ["limit_exceeded"] * 2


def test_what_makes_room_needs_none() -> None:
    """The last fragment of a message that is next is taken, whatever is held behind it."""
    beginning = begun(1)
    limit = DIRECTION + 2 * BEGUN
    reassembler = ssbroker.Reassembler(max_pending_bytes=limit, max_pending_messages=2)
    push(reassembler, single(0), beginning, single(2))
    assert reassembler.pending_bytes == limit
    assert messages(push(reassembler, ended(beginning, bytes(1000)))) == [(1, bytes(1000)), (2, b"")]


@pytest.mark.rule("P14")
def test_what_is_held_needs_room() -> None:
    """A fragment that makes its message whole, but cannot release it."""
    beginning = begun(2)
    reassembler = ssbroker.Reassembler(max_pending_bytes=DIRECTION + BEGUN + FRAGMENT - 1)
    push(reassembler, single(0), beginning)
    assert reasons(push(reassembler, ended(beginning), single(2))) == ["limit_exceeded", "conflict"]
    assert messages(push(reassembler, single(1))) == [(1, b"")]
    assert messages(push(reassembler, ended(beginning))) == [(2, b"")]


def test_without_order_a_number_needs_room() -> None:
    """That of a number, not that of its message."""
    for limit in (DIRECTION + MESSAGE - 1, DIRECTION + MESSAGE):
        reassembler = ssbroker.Reassembler(max_pending_bytes=limit, in_order=False)
        result = push(reassembler, single(1, body=bytes(1000)))
        assert len(messages(result)) == (limit == DIRECTION + MESSAGE)


@pytest.mark.rule("P26")
def test_how_many_may_be_pending() -> None:
    """Messages that are incomplete or held; numbers are none."""
    reassembler = ssbroker.Reassembler(max_pending_messages=2)
    push(reassembler, single(0))
    assert rejected(push(reassembler, begun(1), single(2), begun(3), single(4), ended(begun(1)), begun(3))) == [
        (3, 0, "limit_exceeded"),
        (4, 0, "limit_exceeded"),
    ]
    unordered = ssbroker.Reassembler(max_pending_messages=2, in_order=False)
    assert reasons(push(unordered, *(single(number) for number in (0, 2, 4, 6)), begun(7), begun(8))) == []


def test_a_message_that_turns_out_corrupt_was_supposed_to_match() -> None:
    """It needs no more room than one that matches; refused, it is not even compared."""
    corrupt = replace(single(0), message_signature=bytes(16))
    assert reasons(push(ssbroker.Reassembler(max_pending_bytes=DIRECTION), corrupt)) == ["corrupt_message"]
    assert reasons(push(ssbroker.Reassembler(max_pending_bytes=DIRECTION - 1), corrupt)) == ["limit_exceeded"]


@pytest.mark.rule("P26")
def test_what_a_limit_refuses_is_not_looked_at() -> None:
    """It is not called corrupt, whatever it carries; what is there already is, limit or not."""
    corrupt = [
        replace(stranger(number), fragment_signature=signature) for number, signature in ((2, bytes(16)), (3, b"short"))
    ]
    reassembler = ssbroker.Reassembler(max_pending_messages=2)
    assert reasons(push(reassembler, *corrupt, stranger(1))) == ["corrupt_fragment"] * 2
    again = replace(stranger(1), fragment_signature=bytes(16))
    assert reasons(push(reassembler, *corrupt, again)) == ["limit_exceeded", "limit_exceeded", "corrupt_fragment"]


@pytest.mark.rule("P23", "P26")
def test_in_the_midst_of_a_flood_parts_are_compared_as_soon_as_there_is_room() -> None:
    """Of one push, what comes before room is made is refused unread, what comes after it is judged as ever."""
    here, damaged, intact, late = (parts(b"abcd", conversation=UUID(int=number)) for number in range(1, 5))
    flood = [parts(b"abcd", conversation=UUID(int=number))[0] for number in range(5, 2000)]
    bad = [replace(each[0], fragment_signature=bytes(16)) for each in (damaged, late)]
    reassembler = ssbroker.Reassembler(max_pending_messages=2)
    result = push(reassembler, here[0], *flood, bad[0], here[1], bad[0], intact[0], bad[1])
    assert reasons(result) == ["limit_exceeded"] * (len(flood) + 1) + ["corrupt_fragment", "limit_exceeded"]
    assert messages(result) == [(0, b"abcd")]
    assert reassembler.pending_messages == 1


@pytest.mark.rule("P26")
def test_who_is_not_known_may_take_half() -> None:
    """Of the bytes, rounded down, by the byte."""
    for limit, refused in ((2 * (DIRECTION + BEGUN) + 1, 0), (2 * (DIRECTION + BEGUN) - 1, 1)):
        assert len(reasons(push(ssbroker.Reassembler(max_pending_bytes=limit), begun(0)))) == refused


@pytest.mark.rule("P26")
def test_who_is_not_known_may_take_half_of_the_messages() -> None:
    """Rounded down; all of them together."""
    reassembler = ssbroker.Reassembler(max_pending_messages=5)
    result = push(reassembler, *(stranger(number) for number in range(1, 5)))
    assert reasons(result) == ["limit_exceeded"] * 2
    assert reassembler.pending_messages == 2


@pytest.mark.rule("P26")
def test_strangers_cannot_keep_out_who_is_known() -> None:
    """While they knock, a known direction still has its half."""
    reassembler = ssbroker.Reassembler(max_pending_messages=4)
    push(reassembler, single(0))
    push(reassembler, *(stranger(number) for number in range(1, 100)))
    assert pending_numbers(reassembler) == [0, 0]
    first, second = parts(b"abcd", 1)
    result = push(reassembler, single(2), first, stranger(100), second)
    assert messages(result) == [(1, b"abcd"), (2, b"")]
    assert reasons(result) == ["limit_exceeded"]


def test_one_whole_message_makes_known() -> None:
    """Then what is pending of the direction takes nothing of the strangers' half."""
    reassembler = ssbroker.Reassembler(max_pending_messages=4)
    push(reassembler, begun(1), begun(2))
    assert reasons(push(reassembler, stranger(1))) == ["limit_exceeded"]
    push(reassembler, single(0))
    assert reasons(push(reassembler, stranger(1), stranger(2), stranger(3))) == ["limit_exceeded"]


def test_the_fragment_that_makes_known_is_taken_as_if_it_were() -> None:
    """A first message that is early is held although strangers have their half."""
    reassembler = ssbroker.Reassembler(max_pending_messages=2)
    push(reassembler, stranger(1))
    assert reasons(push(reassembler, stranger(2), single(1))) == ["limit_exceeded"]
    assert reassembler.pending_messages == 2


def test_who_becomes_known_within_a_push_is_so_for_what_comes_next() -> None:
    """Also while the message that made it known waits to be compared; how the rows are cut changes nothing."""
    known = UUID(int=7)
    rows = [
        stranger(1),
        single(0, conversation=known),
        *parts(b"abcd", 1, conversation=known),
        single(1),
        begun(2),
    ]
    at_once, one_by_one = (ssbroker.Reassembler(max_pending_messages=3) for _ in range(2))
    assert reasons(push(at_once, *rows)) == []
    assert [reason for row in rows for reason in reasons(push(one_by_one, row))] == []
    assert pending_numbers(at_once) == pending_numbers(one_by_one) == [0, 1, 2]


@pytest.mark.rule("P21")
def test_a_corrupt_message_makes_nobody_known() -> None:
    """It was whole, and did not match."""
    reassembler = ssbroker.Reassembler(max_pending_messages=2)
    push(reassembler, replace(single(0), message_signature=bytes(16)))
    assert reasons(push(reassembler, begun(0), begun(1))) == ["limit_exceeded"]


@pytest.mark.rule("P26")
def test_a_direction_of_which_nothing_is_left_is_forgotten() -> None:
    """After its only message was corrupt."""
    reassembler = ssbroker.Reassembler()
    first, second = (replace(each, message_signature=bytes(16)) for each in parts(b"abcd"))
    push(reassembler, first)
    assert reassembler.pending_bytes == DIRECTION + BEGUN + 2
    push(reassembler, second)
    assert reassembler.pending_bytes == 0


def test_limits_of_none() -> None:
    """None means none."""
    reassembler = ssbroker.Reassembler(
        max_pending_bytes=None, max_pending_messages=None, max_fragments_per_message=None, max_sequence_distance=None
    )
    many = [replace(begun(2**40 + number), count=2**31 - 1) for number in range(1000)]
    assert reasons(push(reassembler, *many)) == []
    assert reassembler.pending_messages == 1000
    assert A.bytes == reassembler.pending().column("conversation_id")[0].as_py()


@pytest.mark.parametrize(
    "name", ["max_pending_bytes", "max_pending_messages", "max_fragments_per_message", "max_sequence_distance"]
)
def test_a_limit_below_0_is_none(name: str) -> None:
    """An error, not a limit."""
    options: dict[str, Any] = {name: -1}
    with pytest.raises(OptionError):
        ssbroker.Reassembler(**options)
