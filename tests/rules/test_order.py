"""Each message once, in the order of its direction, and not before its turn."""

from __future__ import annotations

from itertools import permutations

import pytest

import ssbroker
from tests.rules.fragments import (
    A,
    B,
    first_of_two,
    messages,
    parts,
    pending,
    pending_numbers,
    push,
    reassemble_all,
    rejected,
    second_of_two,
    single,
)
from tests.worlds.fragment_tables import rows_of


@pytest.mark.rule("P11")
def test_messages_are_released_once_and_in_order() -> None:
    """Whatever the order of arrival."""
    for order in permutations(single(number, body=b"%d" % number) for number in range(4)):
        assert messages(reassemble_all(*order)) == [(0, b"0"), (1, b"1"), (2, b"2"), (3, b"3")]


@pytest.mark.rule("P12")
def test_numbers_start_at_0() -> None:
    """Number 1 alone is not the first."""
    reassembler = ssbroker.Reassembler()
    assert messages(push(reassembler, single(1))) == []
    assert messages(push(reassembler, single(0))) == [(0, b""), (1, b"")]


@pytest.mark.rule("P12")
def test_each_direction_has_its_own_numbers() -> None:
    """Number 0 of the initiator is not number 0 of the target."""
    reassembler = ssbroker.Reassembler()
    assert messages(push(reassembler, single(1, initiator=False), single(0, body=b"initiator"))) == [(0, b"initiator")]
    result = push(reassembler, single(0, body=b"target", initiator=False))
    assert rows_of(result.messages.select(["is_initiator", "message_body"])) == [
        {"is_initiator": False, "message_body": b"target"},
        {"is_initiator": False, "message_body": b""},
    ]


@pytest.mark.rule("P12")
def test_each_conversation_has_its_own_numbers() -> None:
    result = reassemble_all(single(0, conversation=B), single(1, conversation=A), single(1, conversation=B))
    assert [(row["conversation_id"], row["message_sequence_number"]) for row in rows_of(result.messages)] == [
        (B.bytes, 0),
        (B.bytes, 1),
    ]
    assert [row["conversation_id"] for row in rows_of(result.pending)] == [A.bytes]


@pytest.mark.rule("P12")
def test_one_of_two_messages_with_equal_numbers_is_discarded() -> None:
    """Even if their content differs."""
    result = reassemble_all(single(0, body=b"first"), single(0, body=b"second"))
    assert messages(result) == [(0, b"first")]
    assert rejected(result) == [(0, 0, "duplicate")]


@pytest.mark.rule("P14")
def test_early_messages_wait() -> None:
    """For the lowest number that is not complete."""
    reassembler = ssbroker.Reassembler()
    assert messages(push(reassembler, single(1), single(3))) == []
    assert [(row["message_sequence_number"], row["waits_for_sequence_number"]) for row in pending(reassembler)] == [
        (1, 0),
        (3, 0),
    ]
    assert messages(push(reassembler, single(0))) == [(0, b""), (1, b"")]
    assert [(row["message_sequence_number"], row["waits_for_sequence_number"]) for row in pending(reassembler)] == [
        (3, 2)
    ]


@pytest.mark.rule("P14")
def test_an_incomplete_message_delays_later_ones() -> None:
    """Until its last fragment arrives."""
    reassembler = ssbroker.Reassembler()
    first, second, third = parts(b"abcde", 0)
    assert messages(push(reassembler, third, single(1), first)) == []
    assert messages(push(reassembler, second)) == [(0, b"abcde"), (1, b"")]
    assert pending(reassembler) == []


@pytest.mark.rule("P14")
def test_without_order_messages_are_released_immediately() -> None:
    """Nothing waits, and each message is still released once."""
    reassembler = ssbroker.Reassembler(in_order=False)
    assert messages(push(reassembler, single(2), single(0), single(2))) == [(2, b""), (0, b"")]
    assert pending(reassembler) == []
    assert rejected(push(reassembler, single(2), single(0))) == [(2, 0, "duplicate"), (0, 0, "duplicate")]


@pytest.mark.rule("P11")
def test_messages_of_several_directions_are_released_in_the_order_of_completion() -> None:
    """Those that one row releases are ordered by number."""
    result = reassemble_all(
        single(2), single(1), single(0, conversation=B), single(0), single(3), single(1, conversation=B)
    )
    assert [(row["conversation_id"][0], row["message_sequence_number"]) for row in rows_of(result.messages)] == [
        (0xBB, 0),
        (0xAA, 0),
        (0xAA, 1),
        (0xAA, 2),
        (0xAA, 3),
        (0xBB, 1),
    ]


def test_rejected_rows_are_in_the_order_of_their_causes() -> None:
    """Rows with the same cause are adjacent."""
    result = reassemble_all(single(0), single(-1), single(0), first_of_two(1), single(1), single(0))
    assert rejected(result) == [
        (-1, 0, "out_of_range"),
        (0, 0, "duplicate"),
        (1, 0, "conflict"),
        (0, 0, "duplicate"),
    ]


@pytest.mark.rule("P14")
def test_pending_messages_are_sorted() -> None:
    """By conversation id, direction (target before initiator) and number."""
    reassembler = ssbroker.Reassembler()
    first, _, third = parts(b"abcde", 1)
    push(reassembler, first_of_two(0, conversation=B), first_of_two(0, body=b"xyz"), third, first)
    push(
        reassembler, second_of_two(first_of_two(2), b"!!"), first_of_two(2, body=b"?"), first_of_two(0, initiator=False)
    )
    names = reassembler.pending().schema.names
    assert [tuple(row[name] for name in names) for row in pending(reassembler)] == [
        (A.bytes, False, 0, 2, 1, 0, 1, None),
        (A.bytes, True, 0, 2, 1, 3, 1, None),
        (A.bytes, True, 1, 3, 2, 3, 1, 0),
        (A.bytes, True, 2, 2, 2, 3, None, 0),
        (B.bytes, True, 0, 2, 1, 0, 1, None),
    ]


def test_without_order_only_incomplete_messages_are_pending() -> None:
    reassembler = ssbroker.Reassembler(in_order=False)
    push(reassembler, first_of_two(5))
    assert [row["waits_for_sequence_number"] for row in pending(reassembler)] == [None]


def test_a_result_has_the_pending_messages() -> None:
    """Those left over by `reassemble`, or those that the reassembler stores after `push`."""
    assert rows_of(reassemble_all(first_of_two(0), single(0, conversation=B)).pending)[0]["conversation_id"] == A.bytes
    reassembler = ssbroker.Reassembler()
    result = push(reassembler, first_of_two(7))
    assert result.pending.equals(reassembler.pending())


@pytest.mark.rule("P26")
@pytest.mark.parametrize("last", [2**32, 2**63 - 2])
def test_without_a_limit_sequence_numbers_may_be_arbitrarily_far(last: int) -> None:
    """One message takes the memory of one message."""
    reassembler = ssbroker.Reassembler(max_sequence_distance=None)
    push(reassembler, single(last))
    assert pending_numbers(reassembler) == [last]
    assert reassembler.pending_bytes == 128 + 256 + 96
