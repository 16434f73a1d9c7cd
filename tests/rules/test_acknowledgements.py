"""P15, P16, P18: what is told to the sender."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ssbroker
from tests.rules.fragments import (
    A,
    B,
    acknowledged,
    begun,
    ended,
    messages,
    parts,
    push,
    reasons,
    rejected,
    single,
    whole,
)
from tests.worlds.fragment_tables import rows_of


@pytest.mark.rule("P15")
def test_every_message_is_acknowledged() -> None:
    """All up to and including the number are whole."""
    assert acknowledged(whole(single(0))) == [(0, None, None)]


@pytest.mark.rule("P15")
def test_one_acknowledgement_covers_several_fragments() -> None:
    """A row for each direction, however many came."""
    assert acknowledged(whole(*parts(b"abcdef", 0), single(1), single(2))) == [(2, None, None)]


@pytest.mark.rule("P15")
def test_a_gap_is_not_covered() -> None:
    """What is whole after a gap is not told by number; null while not even the first is whole."""
    reassembler = ssbroker.Reassembler()
    assert acknowledged(push(reassembler, single(1))) == [(None, None, None)]
    assert acknowledged(push(reassembler, single(0), single(3))) == [(1, None, None)]
    assert acknowledged(push(reassembler, single(2))) == [(3, None, None)]


@pytest.mark.rule("P15")
def test_whether_released_or_not() -> None:
    """The numbers are the same with `in_order=False`."""
    for in_order in (True, False):
        reassembler = ssbroker.Reassembler(in_order=in_order)
        assert acknowledged(push(reassembler, single(2), single(1))) == [(None, None, None)]
        assert acknowledged(push(reassembler, single(0))) == [(2, None, None)]


@pytest.mark.rule("P15", "P13")
def test_the_fragments_of_an_incomplete_message_are_told() -> None:
    """Of the lowest one, ascending."""
    fragments = parts(b"abcdefgh", 1)
    result = whole(single(0), begun(2), fragments[3], fragments[1])
    assert acknowledged(result) == [(0, 1, [1, 3])]


@pytest.mark.rule("P15")
def test_what_is_held_is_not_partial() -> None:
    """A message that is whole and waits is not told by its fragments."""
    assert acknowledged(whole(*parts(b"abcd", 1), begun(2))) == [(None, 2, [0])]


@pytest.mark.rule("P15")
def test_directions_in_the_order_in_which_they_first_counted() -> None:
    """A rejected fragment does not count."""
    bad = replace(single(0), fragment_signature=bytes(16))
    result = whole(bad, single(0, conversation=B), single(0, initiator=False), single(0), single(1, conversation=B))
    names = ["conversation_id", "is_initiator", "acked_sequence_number"]
    assert [tuple(row.values()) for row in rows_of(result.acknowledgements.select(names))] == [
        (B.bytes, True, 1),
        (A.bytes, False, 0),
        (A.bytes, True, 0),
    ]


@pytest.mark.rule("P16", "P15")
def test_only_this_push_is_told() -> None:
    """A direction of which nothing came is not acknowledged again; who stores the messages then sends the rows."""
    reassembler = ssbroker.Reassembler()
    push(reassembler, single(0, conversation=B))
    result = push(reassembler, single(0))
    assert [row["conversation_id"] for row in rows_of(result.acknowledgements)] == [A.bytes]


@pytest.mark.rule("P18")
def test_a_duplicate_is_acknowledged_again_and_not_delivered_again() -> None:
    """Of a message that was released, ..."""
    reassembler = ssbroker.Reassembler()
    push(reassembler, single(0, body=b"once"))
    result = push(reassembler, single(0, body=b"once"))
    assert messages(result) == []
    assert reasons(result) == ["duplicate"]
    assert acknowledged(result) == [(0, None, None)]


@pytest.mark.rule("P18")
def test_a_duplicate_of_what_is_held_or_incomplete() -> None:
    """... of one that waits, and of a fragment that is there."""
    reassembler = ssbroker.Reassembler()
    push(reassembler, single(1), begun(2))
    for again in (single(1), begun(2)):
        result = push(reassembler, again)
        assert reasons(result) == ["duplicate"]
        assert acknowledged(result) == [(None, 2, [0])]


@pytest.mark.rule("P18")
def test_once_whole_whatever_else_the_fragment_says() -> None:
    """Another count, body or signature does not matter any more."""
    message = single(0, body=b"once")
    others = [begun(0), ended(begun(0)), replace(begun(0), message_signature=bytes(16)), single(0, body=b"twice")]
    assert reasons(whole(message, *others)) == ["duplicate"] * 4


@pytest.mark.rule("P21")
def test_what_is_rejected_is_not_acknowledged() -> None:
    """Corrupt, contradicting, out of range, too far."""
    reassembler = ssbroker.Reassembler(max_sequence_distance=5)
    push(reassembler, begun(0))
    corrupt = replace(single(1), fragment_signature=bytes(16))
    result = push(reassembler, corrupt, single(0), single(-1), single(5))
    assert reasons(result) == ["corrupt_fragment", "conflict", "out_of_range", "limit_exceeded"]
    assert acknowledged(result) == []


@pytest.mark.rule("P21")
def test_a_corrupt_message_takes_its_fragments_back() -> None:
    """Accepted and rejected in the same push; what was acknowledged before stays so."""
    first, second = (replace(each, message_signature=bytes(16)) for each in parts(b"abcd"))
    assert acknowledged(whole(first, second)) == []
    assert acknowledged(whole(first, second, single(0))) == [(0, None, None)]
    assert acknowledged(whole(single(1), first, second)) == [(None, None, None)]
    reassembler = ssbroker.Reassembler()
    assert acknowledged(push(reassembler, first)) == [(None, 0, [0])]
    assert acknowledged(push(reassembler, second)) == []


def test_a_corrupt_message_loses_its_place_in_the_order() -> None:
    """A direction that first counted by such a fragment counts by what it sent afterwards."""
    corrupt = replace(single(0), message_signature=bytes(16))
    first, second = (replace(each, message_signature=bytes(16)) for each in parts(b"abcd"))
    for came in ([corrupt], [first, second]):
        result = whole(*came, single(0, conversation=B), single(0))
        assert [row["conversation_id"] for row in rows_of(result.acknowledgements)] == [B.bytes, A.bytes]


@pytest.mark.rule("P18")
def test_a_duplicate_counts_although_its_message_was_corrupt() -> None:
    """What it says is how things stand after the push: nothing is there."""
    first, second = (replace(each, message_signature=bytes(16)) for each in parts(b"abcd"))
    result = whole(first, first, second)
    assert rejected(result) == [(0, 0, "duplicate"), (0, 0, "corrupt_message"), (0, 1, "corrupt_message")]
    assert acknowledged(result) == [(None, None, None)]
