"""P11, P12, P14: each message once, in the order of its direction, and nothing before its turn."""

from __future__ import annotations

from itertools import permutations

import pytest

import ssbroker
from tests.rules.fragments import (
    A,
    B,
    begun,
    ended,
    messages,
    parts,
    pending,
    pending_numbers,
    push,
    rejected,
    single,
    whole,
)
from tests.worlds.fragment_tables import rows_of


@pytest.mark.rule("P11")
def test_messages_come_once_and_in_order() -> None:
    """Whatever the order of arrival."""
    for order in permutations(single(number, body=b"%d" % number) for number in range(4)):
        assert messages(whole(*order)) == [(0, b"0"), (1, b"1"), (2, b"2"), (3, b"3")]


@pytest.mark.rule("P12")
def test_numbers_start_at_0() -> None:
    """Number 1 alone is not the first."""
    reassembler = ssbroker.Reassembler()
    assert messages(push(reassembler, single(1))) == []
    assert messages(push(reassembler, single(0))) == [(0, b""), (1, b"")]


@pytest.mark.rule("P12")
def test_each_direction_has_its_own_numbers() -> None:
    """Number 0 of the initiator is not number 0 of the target, and releases nothing of it."""
    reassembler = ssbroker.Reassembler()
    assert messages(push(reassembler, single(1, initiator=False), single(0, body=b"initiator"))) == [(0, b"initiator")]
    result = push(reassembler, single(0, body=b"target", initiator=False))
    assert rows_of(result.messages.select(["is_initiator", "message_body"])) == [
        {"is_initiator": False, "message_body": b"target"},
        {"is_initiator": False, "message_body": b""},
    ]


@pytest.mark.rule("P12")
def test_each_conversation_has_its_own_numbers() -> None:
    """P12, M2."""
    result = whole(single(0, conversation=B), single(1, conversation=A), single(1, conversation=B))
    assert [(row["conversation_id"], row["message_sequence_number"]) for row in rows_of(result.messages)] == [
        (B.bytes, 0),
        (B.bytes, 1),
    ]
    assert [row["conversation_id"] for row in rows_of(result.pending)] == [A.bytes]


@pytest.mark.rule("P12")
def test_of_equal_numbers_one_is_discarded() -> None:
    """Also if the other says something else."""
    result = whole(single(0, body=b"first"), single(0, body=b"second"))
    assert messages(result) == [(0, b"first")]
    assert rejected(result) == [(0, 0, "duplicate")]


@pytest.mark.rule("P14")
def test_what_is_early_is_held() -> None:
    """It waits for the lowest message that is not whole."""
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
def test_what_is_incomplete_holds_back_what_follows() -> None:
    """Until its last fragment is there."""
    reassembler = ssbroker.Reassembler()
    first, second, third = parts(b"abcde", 0)
    assert messages(push(reassembler, third, single(1), first)) == []
    assert messages(push(reassembler, second)) == [(0, b"abcde"), (1, b"")]
    assert pending(reassembler) == []


@pytest.mark.rule("P14")
def test_without_order_a_message_is_released_at_once() -> None:
    """`in_order=False`; nothing waits, and each still comes once."""
    reassembler = ssbroker.Reassembler(in_order=False)
    assert messages(push(reassembler, single(2), single(0), single(2))) == [(2, b""), (0, b"")]
    assert pending(reassembler) == []
    assert rejected(push(reassembler, single(2), single(0))) == [(2, 0, "duplicate"), (0, 0, "duplicate")]


@pytest.mark.rule("P11")
def test_messages_come_in_the_order_in_which_they_could_be_released() -> None:
    """Between directions there is no other order; those that one row releases come by number."""
    result = whole(single(2), single(1), single(0, conversation=B), single(0), single(3), single(1, conversation=B))
    assert [(row["conversation_id"][0], row["message_sequence_number"]) for row in rows_of(result.messages)] == [
        (0xBB, 0),
        (0xAA, 0),
        (0xAA, 1),
        (0xAA, 2),
        (0xAA, 3),
        (0xBB, 1),
    ]


def test_rejected_rows_come_in_the_order_of_the_rows_that_caused_them() -> None:
    """Beside each other, whatever the reason."""
    result = whole(single(0), single(-1), single(0), begun(1), single(1), single(0))
    assert rejected(result) == [
        (-1, 0, "out_of_range"),
        (0, 0, "duplicate"),
        (1, 0, "conflict"),
        (0, 0, "duplicate"),
    ]


@pytest.mark.rule("P14")
def test_what_is_pending_is_told() -> None:
    """By conversation id, direction (target before initiator) and number."""
    reassembler = ssbroker.Reassembler()
    first, _, third = parts(b"abcde", 1)
    push(reassembler, begun(0, conversation=B), begun(0, body=b"xyz"), third, first)
    push(reassembler, ended(begun(2), b"!!"), begun(2, body=b"?"), begun(0, initiator=False))
    names = reassembler.pending().schema.names
    assert [tuple(row[name] for name in names) for row in pending(reassembler)] == [
        (A.bytes, False, 0, 2, 1, 0, 1, None),
        (A.bytes, True, 0, 2, 1, 3, 1, None),
        (A.bytes, True, 1, 3, 2, 3, 1, 0),
        (A.bytes, True, 2, 2, 2, 3, None, 0),
        (B.bytes, True, 0, 2, 1, 0, 1, None),
    ]


def test_without_order_nothing_waits() -> None:
    """`in_order=False`."""
    reassembler = ssbroker.Reassembler(in_order=False)
    push(reassembler, begun(5))
    assert [row["waits_for_sequence_number"] for row in pending(reassembler)] == [None]


def test_a_result_can_be_asked_for_what_is_pending() -> None:
    """Of `reassemble` what is left over, of `push` what the reassembler still holds."""
    assert rows_of(whole(begun(0), single(0, conversation=B)).pending)[0]["conversation_id"] == A.bytes
    reassembler = ssbroker.Reassembler()
    result = push(reassembler, begun(7))
    assert result.pending.equals(reassembler.pending())


@pytest.mark.rule("P26")
@pytest.mark.parametrize("last", [2**32, 2**63 - 2])
def test_without_a_limit_a_number_may_be_as_far_as_it_likes(last: int) -> None:
    """The memory that it takes is that of one message."""
    reassembler = ssbroker.Reassembler(max_sequence_distance=None)
    push(reassembler, single(last))
    assert pending_numbers(reassembler) == [last]
    assert reassembler.pending_bytes == 128 + 256 + 96
