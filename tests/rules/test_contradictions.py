"""P12 and P26: what contradicts what is there is refused alone, and harms nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

import ssbroker
from tests.oracle.traffic import Fragment
from tests.rules.fragments import (
    begun,
    ended,
    messages,
    parts,
    pending,
    push,
    reasons,
    rejected,
    single,
    unsigned,
    whole,
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
def test_out_of_range(fragment: Fragment) -> None:
    """Numbers that no message can have; before signatures, which are wrong here too."""
    for bad in (fragment, replace(fragment, message_signature=b"no signature", fragment_signature=bytes(16))):
        result = whole(bad)
        assert rejected(result) == [(bad.sequence, bad.number, "out_of_range")]
        assert result.acknowledgements.num_rows == result.pending.num_rows == 0


@pytest.mark.threat("T10")
@pytest.mark.parametrize("in_order", [True, False])
def test_the_last_number_is_one(in_order: bool) -> None:  # noqa: FBT001
    """2^63 - 2, and the last fragment of as many as there can be."""
    reassembler = ssbroker.Reassembler(in_order=in_order, max_sequence_distance=None, max_fragments_per_message=None)
    last = replace(begun(2**63 - 2), number=LARGEST - 1, count=LARGEST)
    assert reasons(push(reassembler, last)) == []
    assert [(row["received_fragments"], row["first_missing_fragment"]) for row in pending(reassembler)] == [(1, 0)]


@pytest.mark.rule("P26")
@pytest.mark.threat("T8")
@pytest.mark.parametrize(
    "other",
    [
        replace(begun(0), number=1, count=3),
        replace(begun(0), number=1, count=1 + 1, message_signature=bytes(16)),
        replace(begun(0), body=b"another"),
        single(0),
    ],
    ids=["another count", "another signature", "another content", "another count and signature"],
)
def test_a_contradiction_is_refused_alone(other: Fragment) -> None:
    """What was there goes on as if nothing had come."""
    result = whole(begun(0), other, ended(begun(0), b"end"))
    assert reasons(result) == ["conflict"]
    assert messages(result) == [(0, b"end")]


def test_no_signature_contradicts_one() -> None:
    """Null against 16 bytes too, in both orders."""
    first, second = (replace(each, fragment_signature=None) for each in parts(b"abcd"))
    bare = unsigned([second])[0]
    assert reasons(whole(first, bare)) == ["conflict"]
    assert reasons(whole(bare, first)) == ["conflict"]


@pytest.mark.rule("P12")
def test_the_same_number_with_the_same_bytes_is_a_duplicate() -> None:
    """Its own signature, which matched, may be there or not."""
    first = parts(b"abcd")[0]
    bare = replace(first, fragment_signature=None)
    assert reasons(whole(first, bare)) == reasons(whole(bare, first)) == ["duplicate"]


@pytest.mark.rule("P26")
def test_a_lie_that_came_first_is_what_is_there() -> None:
    """What contradicts it is refused until it is forgotten."""
    reassembler = ssbroker.Reassembler()
    good = parts(b"abcd", 0)
    push(reassembler, replace(good[0], message_signature=bytes(16)))
    assert reasons(push(reassembler, *good)) == ["conflict", "conflict"]
    assert reassembler.forget(good[0].conversation_id, is_initiator=True, message_sequence_number=0)
    assert messages(push(reassembler, *good)) == [(0, b"abcd")]


def test_comes_before_limits() -> None:
    """A contradiction is one although it is too large as well."""
    reassembler = ssbroker.Reassembler(max_message_bytes=4, max_fragments_per_message=2)
    push(reassembler, begun(0, body=b"1234"))
    result = push(reassembler, replace(begun(0), count=3), begun(0, body=b"12345"), begun(0, body=b"1234"))
    assert reasons(result) == ["conflict", "conflict", "duplicate"]
