"""Contradicting fragments are rejected alone and do no harm."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ssbroker
from tests.oracle.traffic import Fragment
from tests.rules.fragments import (
    first_of_two,
    messages,
    parts,
    pending,
    push,
    reasons,
    reassemble_all,
    rejected,
    second_of_two,
    single,
    unsigned,
)

LARGEST = 2**31 - 1


@pytest.mark.rule("P26")
@pytest.mark.parametrize(
    "fragment",
    [
        replace(single(0), sequence=-1),
        replace(single(0), sequence=-(2**63)),
        replace(single(0), sequence=2**63 - 1),
        replace(single(0), count=0),
        replace(single(0), count=-1),
        replace(single(0), number=-1),
        replace(single(0), number=1),
        replace(single(0), number=LARGEST, count=LARGEST),
        replace(single(0), number=-LARGEST - 1, count=-LARGEST - 1),
    ],
)
def test_numbers_out_of_range_are_rejected(fragment: Fragment) -> None:
    """Before signatures are verified, which are wrong here too."""
    for bad in (fragment, replace(fragment, message_signature=b"no signature", fragment_signature=bytes(16))):
        result = reassemble_all(bad)
        assert rejected(result) == [(bad.sequence, bad.number, "out_of_range")]
        assert result.acknowledgements.num_rows == result.pending.num_rows == 0


@pytest.mark.threat("T10")
@pytest.mark.parametrize("in_order", [True, False])
def test_the_highest_numbers_are_valid(in_order: bool) -> None:  # noqa: FBT001
    """Sequence number 2^63 - 2, and the last of the maximum number of fragments."""
    reassembler = ssbroker.Reassembler(in_order=in_order, max_sequence_distance=None, max_fragments_per_message=None)
    last = replace(first_of_two(2**63 - 2), number=LARGEST - 1, count=LARGEST)
    assert reasons(push(reassembler, last)) == []
    assert [(row["received_fragments"], row["first_missing_fragment"]) for row in pending(reassembler)] == [(1, 0)]


@pytest.mark.rule("P26")
@pytest.mark.threat("T8")
@pytest.mark.parametrize(
    "other",
    [
        replace(first_of_two(0), number=1, count=3),
        replace(first_of_two(0), number=1, count=1 + 1, message_signature=bytes(16)),
        replace(first_of_two(0), body=b"another"),
        single(0),
    ],
    ids=["another count", "another signature", "another content", "another count and signature"],
)
def test_a_contradicting_fragment_is_rejected_alone(other: Fragment) -> None:
    """The stored fragments are unaffected."""
    result = reassemble_all(first_of_two(0), other, second_of_two(first_of_two(0), b"end"))
    assert reasons(result) == ["conflict"]
    assert messages(result) == [(0, b"end")]


def test_a_missing_signature_contradicts_a_present_one() -> None:
    """In both orders."""
    first, second = (replace(each, fragment_signature=None) for each in parts(b"abcd"))
    bare = unsigned([second])[0]
    assert reasons(reassemble_all(first, bare)) == ["conflict"]
    assert reasons(reassemble_all(bare, first)) == ["conflict"]


@pytest.mark.rule("P12")
def test_the_same_number_with_the_same_bytes_is_a_duplicate() -> None:
    """With or without its own signature."""
    first = parts(b"abcd")[0]
    bare = replace(first, fragment_signature=None)
    assert reasons(reassemble_all(first, bare)) == reasons(reassemble_all(bare, first)) == ["duplicate"]


@pytest.mark.rule("P26")
def test_a_forged_first_fragment_blocks_its_message() -> None:
    """Contradicting fragments are rejected until the message is forgotten."""
    reassembler = ssbroker.Reassembler()
    good = parts(b"abcd", 0)
    push(reassembler, replace(good[0], message_signature=bytes(16)))
    assert reasons(push(reassembler, *good)) == ["conflict", "conflict"]
    assert reassembler.forget(good[0].conversation_id, is_initiator=True, message_sequence_number=0)
    assert messages(push(reassembler, *good)) == [(0, b"abcd")]


def test_contradictions_are_checked_before_limits() -> None:
    """A contradicting fragment that is too large is a contradiction."""
    reassembler = ssbroker.Reassembler(max_message_bytes=4, max_fragments_per_message=2)
    push(reassembler, first_of_two(0, body=b"1234"))
    result = push(
        reassembler, replace(first_of_two(0), count=3), first_of_two(0, body=b"12345"), first_of_two(0, body=b"1234")
    )
    assert reasons(result) == ["conflict", "conflict", "duplicate"]
