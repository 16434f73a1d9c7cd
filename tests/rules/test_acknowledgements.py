"""Acknowledgements for the sender."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ssbroker
from tests.rules.fragments import (
    A,
    B,
    acknowledged,
    first_of_two,
    messages,
    parts,
    push,
    reasons,
    reassemble_all,
    rejected,
    second_of_two,
    single,
)
from tests.worlds.fragment_tables import rows_of


@pytest.mark.rule("P15")
def test_every_message_is_acknowledged() -> None:
    """All messages up to and including the number are complete."""
    assert acknowledged(reassemble_all(single(0))) == [(0, None, None)]


@pytest.mark.rule("P15")
def test_one_acknowledgement_covers_several_fragments() -> None:
    """One row for each direction, however many fragments arrived."""
    assert acknowledged(reassemble_all(*parts(b"abcdef", 0), single(1), single(2))) == [(2, None, None)]


@pytest.mark.rule("P15")
def test_a_gap_is_not_covered() -> None:
    """Complete messages after a gap are not acknowledged; the number is null until the first message is complete."""
    reassembler = ssbroker.Reassembler()
    assert acknowledged(push(reassembler, single(1))) == [(None, None, None)]
    assert acknowledged(push(reassembler, single(0), single(3))) == [(1, None, None)]
    assert acknowledged(push(reassembler, single(2))) == [(3, None, None)]


@pytest.mark.rule("P15")
def test_acknowledgements_do_not_depend_on_in_order() -> None:
    """The numbers are the same with `in_order=False`."""
    for in_order in (True, False):
        reassembler = ssbroker.Reassembler(in_order=in_order)
        assert acknowledged(push(reassembler, single(2), single(1))) == [(None, None, None)]
        assert acknowledged(push(reassembler, single(0))) == [(2, None, None)]


@pytest.mark.rule("P15", "P13")
def test_fragments_of_the_first_incomplete_message_are_acknowledged() -> None:
    """In ascending order."""
    fragments = parts(b"abcdefgh", 1)
    result = reassemble_all(single(0), first_of_two(2), fragments[3], fragments[1])
    assert acknowledged(result) == [(0, 1, [1, 3])]


@pytest.mark.rule("P15")
def test_waiting_messages_have_no_partial_acknowledgement() -> None:
    """A complete message that waits for others is not acknowledged by its fragments."""
    assert acknowledged(reassemble_all(*parts(b"abcd", 1), first_of_two(2))) == [(None, 2, [0])]


@pytest.mark.rule("P15")
def test_directions_are_ordered_by_their_first_accepted_fragment() -> None:
    """Rejected fragments do not count."""
    bad = replace(single(0), fragment_signature=bytes(16))
    result = reassemble_all(
        bad, single(0, conversation=B), single(0, initiator=False), single(0), single(1, conversation=B)
    )
    names = ["conversation_id", "is_initiator", "acked_sequence_number"]
    assert [tuple(row.values()) for row in rows_of(result.acknowledgements.select(names))] == [
        (B.bytes, True, 1),
        (A.bytes, False, 0),
        (A.bytes, True, 0),
    ]


@pytest.mark.rule("P16", "P15")
def test_only_directions_of_this_push_are_acknowledged() -> None:
    """Store the messages before you send the acknowledgements."""
    reassembler = ssbroker.Reassembler()
    push(reassembler, single(0, conversation=B))
    result = push(reassembler, single(0))
    assert [row["conversation_id"] for row in rows_of(result.acknowledgements)] == [A.bytes]


@pytest.mark.rule("P18")
def test_a_duplicate_is_acknowledged_again_and_not_delivered_again() -> None:
    """For a message that was released."""
    reassembler = ssbroker.Reassembler()
    push(reassembler, single(0, body=b"once"))
    result = push(reassembler, single(0, body=b"once"))
    assert messages(result) == []
    assert reasons(result) == ["duplicate"]
    assert acknowledged(result) == [(0, None, None)]


@pytest.mark.rule("P18")
def test_duplicates_of_pending_messages_are_acknowledged_again() -> None:
    """For a message that waits, and for a fragment of an incomplete one."""
    reassembler = ssbroker.Reassembler()
    push(reassembler, single(1), first_of_two(2))
    for again in (single(1), first_of_two(2)):
        result = push(reassembler, again)
        assert reasons(result) == ["duplicate"]
        assert acknowledged(result) == [(None, 2, [0])]


@pytest.mark.rule("P18")
def test_any_fragment_of_a_complete_message_is_a_duplicate() -> None:
    """Even with another count, body or signature."""
    message = single(0, body=b"once")
    others = [
        first_of_two(0),
        second_of_two(first_of_two(0)),
        replace(first_of_two(0), message_signature=bytes(16)),
        single(0, body=b"twice"),
    ]
    assert reasons(reassemble_all(message, *others)) == ["duplicate"] * 4


@pytest.mark.rule("P21")
def test_rejected_fragments_are_not_acknowledged() -> None:
    """Corrupt, contradicting, out of range, or too far ahead."""
    reassembler = ssbroker.Reassembler(max_sequence_distance=5)
    push(reassembler, first_of_two(0))
    corrupt = replace(single(1), fragment_signature=bytes(16))
    result = push(reassembler, corrupt, single(0), single(-1), single(5))
    assert reasons(result) == ["corrupt_fragment", "conflict", "out_of_range", "limit_exceeded"]
    assert acknowledged(result) == []


@pytest.mark.rule("P21")
def test_fragments_of_a_corrupt_message_are_rejected() -> None:
    """Accepted and rejected in the same push; earlier acknowledgements are not revoked."""
    first, second = (replace(each, message_signature=bytes(16)) for each in parts(b"abcd"))
    assert acknowledged(reassemble_all(first, second)) == []
    assert acknowledged(reassemble_all(first, second, single(0))) == [(0, None, None)]
    assert acknowledged(reassemble_all(single(1), first, second)) == [(None, None, None)]
    reassembler = ssbroker.Reassembler()
    assert acknowledged(push(reassembler, first)) == [(None, 0, [0])]
    assert acknowledged(push(reassembler, second)) == []


def test_fragments_of_a_corrupt_message_do_not_order_directions() -> None:
    """The direction is ordered by its next accepted fragment."""
    corrupt = replace(single(0), message_signature=bytes(16))
    first, second = (replace(each, message_signature=bytes(16)) for each in parts(b"abcd"))
    for fragments in ([corrupt], [first, second]):
        result = reassemble_all(*fragments, single(0, conversation=B), single(0))
        assert [row["conversation_id"] for row in rows_of(result.acknowledgements)] == [B.bytes, A.bytes]


@pytest.mark.rule("P18")
def test_a_duplicate_in_a_corrupt_message_is_acknowledged() -> None:
    """The acknowledgement describes the state after the push: nothing is stored."""
    first, second = (replace(each, message_signature=bytes(16)) for each in parts(b"abcd"))
    result = reassemble_all(first, first, second)
    assert rejected(result) == [(0, 0, "duplicate"), (0, 0, "corrupt_message"), (0, 1, "corrupt_message")]
    assert acknowledged(result) == [(None, None, None)]
