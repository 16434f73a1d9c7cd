"""Memory grows only with received bytes, and limits are checked before anything is stored."""

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
    first_of_two,
    messages,
    parts,
    pending_numbers,
    push,
    reasons,
    reassemble_all,
    rejected,
    second_of_two,
    single,
)
from tests.worlds.fragment_tables import fragment_batch

DIRECTION = 128
MESSAGE = 256
FRAGMENT = 96
INCOMPLETE_MESSAGE = MESSAGE + FRAGMENT
"""An incomplete message of one empty fragment."""


def unknown_direction(number: int, sequence: int = 0) -> Fragment:
    """Returns the first fragment of a message in an unknown direction."""
    return first_of_two(sequence, conversation=UUID(int=number))


@pytest.mark.rule("P26")
def test_a_message_may_be_as_long_as_the_limit() -> None:
    """The received bytes together with those of this fragment."""
    assert messages(reassemble_all(*parts(b"abcd"), max_message_bytes=4)) == [(0, b"abcd")]
    result = reassemble_all(*parts(b"abcde"), max_message_bytes=4)
    assert rejected(result) == [(0, 2, "limit_exceeded")]
    assert result.pending.column("received_bytes").to_pylist() == [4]
    assert reasons(reassemble_all(single(0, body=b"abcde"), max_message_bytes=4)) == ["limit_exceeded"]


@pytest.mark.parametrize("longest", [0, -1, 2**31])
def test_messages_are_limited_to_an_arrow_cell(longest: int) -> None:
    """2^31 - 1 bytes."""
    with pytest.raises(OptionError):
        reassemble_all(single(0), max_message_bytes=longest)
    with pytest.raises(OptionError):
        ssbroker.Reassembler(max_message_bytes=longest)


@pytest.mark.rule("P26")
def test_the_declared_count_is_limited() -> None:
    """Not the number of received fragments."""
    reassembler = ssbroker.Reassembler(max_fragments_per_message=3)
    assert rejected(push(reassembler, replace(first_of_two(0), count=4), replace(first_of_two(1), count=3))) == [
        (0, 0, "limit_exceeded")
    ]


@pytest.mark.rule("P26")
@pytest.mark.threat("T3")
def test_a_declared_count_takes_no_memory() -> None:
    """Only received bytes are charged."""
    reassembler = ssbroker.Reassembler(max_fragments_per_message=None)
    push(reassembler, replace(first_of_two(0), count=2**31 - 1))
    assert reassembler.pending_bytes == DIRECTION + INCOMPLETE_MESSAGE


@pytest.mark.rule("P26")
@pytest.mark.threat("T10")
def test_the_distance_of_sequence_numbers_is_limited() -> None:
    """From the lowest number that is not complete."""
    reassembler = ssbroker.Reassembler(max_sequence_distance=3)
    assert rejected(push(reassembler, single(3), single(2))) == [(3, 0, "limit_exceeded")]
    assert messages(push(reassembler, single(0), single(3))) == [(0, b"")]
    assert rejected(push(reassembler, single(4))) == [(4, 0, "limit_exceeded")]
    assert messages(push(reassembler, single(1), single(6))) == [(1, b""), (2, b""), (3, b"")]


@pytest.mark.rule("P26")
@pytest.mark.threat("T9")
def test_memory_charges() -> None:
    """A direction, its messages, their fragments, their bytes and an eighth of them."""
    reassembler = ssbroker.Reassembler()
    first, second = (first_of_two(number, body=bytes(17)) for number in (0, 1))
    push(reassembler, first)
    assert reassembler.pending_bytes == DIRECTION + MESSAGE + FRAGMENT + 17 + 2
    push(reassembler, replace(first, number=1, count=2, message_signature=bytes(16)))
    assert reassembler.pending_messages == 1
    push(reassembler, second, second_of_two(second, bytes(7)))
    held = MESSAGE + 2 * FRAGMENT + 17 + 2 + 7
    assert reassembler.pending_bytes == DIRECTION + MESSAGE + FRAGMENT + 17 + 2 + held
    assert reassembler.pending_messages == 2
    push(reassembler, second_of_two(first))
    assert (reassembler.pending_bytes, reassembler.pending_messages) == (DIRECTION, 0)


@pytest.mark.rule("P12")
def test_each_direction_is_charged() -> None:
    """For as long as its sequence numbers must be remembered."""
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


def test_extra_columns_are_charged_with_fragment_0() -> None:
    """They wait with their message."""
    charges = {}
    for note in ("", "x" * 1000):
        reassembler = ssbroker.Reassembler()
        beginning = replace(first_of_two(0), count=3, extra={"note": note, "priority": 1})
        reassembler.push(fragment_batch([replace(beginning, number=1)], has_extra=True))
        assert reassembler.pending_bytes == DIRECTION + INCOMPLETE_MESSAGE
        reassembler.push(fragment_batch([beginning], has_extra=True))
        charges[note] = reassembler.pending_bytes - (DIRECTION + INCOMPLETE_MESSAGE + FRAGMENT)
    assert charges["x" * 1000] - charges[""] in range(1000, 1020)


@pytest.mark.rule("P26")
@pytest.mark.parametrize("limit", [DIRECTION + 2 * INCOMPLETE_MESSAGE - 1, DIRECTION + 2 * INCOMPLETE_MESSAGE])
def test_the_limit_is_exact(limit: int) -> None:
    """To the byte; known directions may use all of it."""
    reassembler = ssbroker.Reassembler(max_pending_bytes=limit)
    push(reassembler, single(0))
    fits = limit == DIRECTION + 2 * INCOMPLETE_MESSAGE
    assert reasons(push(reassembler, first_of_two(1), first_of_two(2))) == ([] if fits else ["limit_exceeded"])
    assert reassembler.pending_bytes <= limit


def test_rejected_fragments_take_no_memory() -> None:
    """Not even that of their direction."""
    reassembler = ssbroker.Reassembler(max_pending_bytes=2 * (DIRECTION + INCOMPLETE_MESSAGE) - 1)
    assert reasons(push(reassembler, first_of_two(0))) == ["limit_exceeded"]
    assert (reassembler.pending_bytes, reassembler.pending_messages) == (0, 0)


def test_messages_that_are_released_immediately_take_no_memory() -> None:
    """Except for a new direction."""
    reassembler = ssbroker.Reassembler(max_pending_bytes=DIRECTION, max_pending_messages=1)
    assert messages(push(reassembler, single(0, body=bytes(1000)), single(1))) == [(0, bytes(1000)), (1, b"")]
    assert reasons(push(reassembler, single(0, conversation=B), first_of_two(2))) == ["limit_exceeded"] * 2


def test_fragments_that_free_memory_are_accepted() -> None:
    """The last fragment of the next message is accepted, whatever waits behind it."""
    beginning = first_of_two(1)
    limit = DIRECTION + 2 * INCOMPLETE_MESSAGE
    reassembler = ssbroker.Reassembler(max_pending_bytes=limit, max_pending_messages=2)
    push(reassembler, single(0), beginning, single(2))
    assert reassembler.pending_bytes == limit
    assert messages(push(reassembler, second_of_two(beginning, bytes(1000)))) == [(1, bytes(1000)), (2, b"")]


@pytest.mark.rule("P14")
def test_waiting_messages_take_memory() -> None:
    """A fragment that completes its message but cannot release it."""
    beginning = first_of_two(2)
    reassembler = ssbroker.Reassembler(max_pending_bytes=DIRECTION + INCOMPLETE_MESSAGE + FRAGMENT - 1)
    push(reassembler, single(0), beginning)
    assert reasons(push(reassembler, second_of_two(beginning), single(2))) == ["limit_exceeded", "conflict"]
    assert messages(push(reassembler, single(1))) == [(1, b"")]
    assert messages(push(reassembler, second_of_two(beginning))) == [(2, b"")]


def test_without_order_sequence_numbers_take_memory() -> None:
    """That of a number, not that of its message."""
    for limit in (DIRECTION + MESSAGE - 1, DIRECTION + MESSAGE):
        reassembler = ssbroker.Reassembler(max_pending_bytes=limit, in_order=False)
        result = push(reassembler, single(1, body=bytes(1000)))
        assert len(messages(result)) == (limit == DIRECTION + MESSAGE)


@pytest.mark.rule("P26")
def test_the_number_of_pending_messages_is_limited() -> None:
    """Incomplete and waiting messages; numbers do not count."""
    reassembler = ssbroker.Reassembler(max_pending_messages=2)
    push(reassembler, single(0))
    assert rejected(
        push(
            reassembler,
            first_of_two(1),
            single(2),
            first_of_two(3),
            single(4),
            second_of_two(first_of_two(1)),
            first_of_two(3),
        )
    ) == [
        (3, 0, "limit_exceeded"),
        (4, 0, "limit_exceeded"),
    ]
    unordered = ssbroker.Reassembler(max_pending_messages=2, in_order=False)
    assert (
        reasons(push(unordered, *(single(number) for number in (0, 2, 4, 6)), first_of_two(7), first_of_two(8))) == []
    )


def test_a_corrupt_message_takes_as_much_memory_as_a_valid_one() -> None:
    """If a limit rejects it, it is not even verified."""
    corrupt = replace(single(0), message_signature=bytes(16))
    assert reasons(push(ssbroker.Reassembler(max_pending_bytes=DIRECTION), corrupt)) == ["corrupt_message"]
    assert reasons(push(ssbroker.Reassembler(max_pending_bytes=DIRECTION - 1), corrupt)) == ["limit_exceeded"]


@pytest.mark.rule("P26")
def test_fragments_beyond_a_limit_are_not_verified() -> None:
    """They are not reported as corrupt; fragments of stored messages are."""
    corrupt = [
        replace(unknown_direction(number), fragment_signature=signature)
        for number, signature in ((2, bytes(16)), (3, b"short"))
    ]
    reassembler = ssbroker.Reassembler(max_pending_messages=2)
    assert reasons(push(reassembler, *corrupt, unknown_direction(1))) == ["corrupt_fragment"] * 2
    again = replace(unknown_direction(1), fragment_signature=bytes(16))
    assert reasons(push(reassembler, *corrupt, again)) == ["limit_exceeded", "limit_exceeded", "corrupt_fragment"]


@pytest.mark.rule("P23", "P26")
def test_fragments_are_verified_again_once_memory_is_free() -> None:
    """Within one push: before memory is free they are rejected unread, after that they are verified."""
    here, damaged, intact, late = (parts(b"abcd", conversation=UUID(int=number)) for number in range(1, 5))
    flood = [parts(b"abcd", conversation=UUID(int=number))[0] for number in range(5, 2000)]
    bad = [replace(each[0], fragment_signature=bytes(16)) for each in (damaged, late)]
    reassembler = ssbroker.Reassembler(max_pending_messages=2)
    result = push(reassembler, here[0], *flood, bad[0], here[1], bad[0], intact[0], bad[1])
    assert reasons(result) == ["limit_exceeded"] * (len(flood) + 1) + ["corrupt_fragment", "limit_exceeded"]
    assert messages(result) == [(0, b"abcd")]
    assert reassembler.pending_messages == 1


@pytest.mark.rule("P26")
def test_unknown_directions_may_take_half_of_the_memory() -> None:
    """Rounded down, to the byte."""
    for limit, refused in (
        (2 * (DIRECTION + INCOMPLETE_MESSAGE) + 1, 0),
        (2 * (DIRECTION + INCOMPLETE_MESSAGE) - 1, 1),
    ):
        assert len(reasons(push(ssbroker.Reassembler(max_pending_bytes=limit), first_of_two(0)))) == refused


@pytest.mark.rule("P26")
def test_unknown_directions_may_have_half_of_the_messages() -> None:
    """Rounded down; all of them together."""
    reassembler = ssbroker.Reassembler(max_pending_messages=5)
    result = push(reassembler, *(unknown_direction(number) for number in range(1, 5)))
    assert reasons(result) == ["limit_exceeded"] * 2
    assert reassembler.pending_messages == 2


@pytest.mark.rule("P26")
def test_unknown_directions_cannot_displace_known_ones() -> None:
    """A known direction still has its half."""
    reassembler = ssbroker.Reassembler(max_pending_messages=4)
    push(reassembler, single(0))
    push(reassembler, *(unknown_direction(number) for number in range(1, 100)))
    assert pending_numbers(reassembler) == [0, 0]
    first, second = parts(b"abcd", 1)
    result = push(reassembler, single(2), first, unknown_direction(100), second)
    assert messages(result) == [(1, b"abcd"), (2, b"")]
    assert reasons(result) == ["limit_exceeded"]


def test_one_complete_message_makes_a_direction_known() -> None:
    """From then on its pending data do not count towards the half of unknown directions."""
    reassembler = ssbroker.Reassembler(max_pending_messages=4)
    push(reassembler, first_of_two(1), first_of_two(2))
    assert reasons(push(reassembler, unknown_direction(1))) == ["limit_exceeded"]
    push(reassembler, single(0))
    assert reasons(push(reassembler, unknown_direction(1), unknown_direction(2), unknown_direction(3))) == [
        "limit_exceeded"
    ]


def test_the_fragment_that_makes_a_direction_known_counts_as_known() -> None:
    """An early first message is stored although unknown directions have used their half."""
    reassembler = ssbroker.Reassembler(max_pending_messages=2)
    push(reassembler, unknown_direction(1))
    assert reasons(push(reassembler, unknown_direction(2), single(1))) == ["limit_exceeded"]
    assert reassembler.pending_messages == 2


def test_a_direction_is_known_for_the_rest_of_the_push() -> None:
    """Even before its message is verified; the split into batches makes no difference."""
    known = UUID(int=7)
    rows = [
        unknown_direction(1),
        single(0, conversation=known),
        *parts(b"abcd", 1, conversation=known),
        single(1),
        first_of_two(2),
    ]
    at_once, one_by_one = (ssbroker.Reassembler(max_pending_messages=3) for _ in range(2))
    assert reasons(push(at_once, *rows)) == []
    assert [reason for row in rows for reason in reasons(push(one_by_one, row))] == []
    assert pending_numbers(at_once) == pending_numbers(one_by_one) == [0, 1, 2]


@pytest.mark.rule("P21")
def test_a_corrupt_message_does_not_make_a_direction_known() -> None:
    reassembler = ssbroker.Reassembler(max_pending_messages=2)
    push(reassembler, replace(single(0), message_signature=bytes(16)))
    assert reasons(push(reassembler, first_of_two(0), first_of_two(1))) == ["limit_exceeded"]


@pytest.mark.rule("P26")
def test_a_direction_without_data_is_removed() -> None:
    """After its only message was corrupt."""
    reassembler = ssbroker.Reassembler()
    first, second = (replace(each, message_signature=bytes(16)) for each in parts(b"abcd"))
    push(reassembler, first)
    assert reassembler.pending_bytes == DIRECTION + INCOMPLETE_MESSAGE + 2
    push(reassembler, second)
    assert reassembler.pending_bytes == 0


def test_none_means_no_limit() -> None:
    reassembler = ssbroker.Reassembler(
        max_pending_bytes=None, max_pending_messages=None, max_fragments_per_message=None, max_sequence_distance=None
    )
    many = [replace(first_of_two(2**40 + number), count=2**31 - 1) for number in range(1000)]
    assert reasons(push(reassembler, *many)) == []
    assert reassembler.pending_messages == 1000
    assert A.bytes == reassembler.pending().column("conversation_id")[0].as_py()


@pytest.mark.parametrize(
    "name", ["max_pending_bytes", "max_pending_messages", "max_fragments_per_message", "max_sequence_distance"]
)
def test_negative_limits_are_errors(name: str) -> None:
    options: dict[str, Any] = {name: -1}
    with pytest.raises(OptionError):
        ssbroker.Reassembler(**options)
