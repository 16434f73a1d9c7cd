"""P14 and P16: what is pending outlives the reassembler, and can be forgotten."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

import ssbroker
from ssbroker.exceptions import MalformedDataError
from tests.rules.fragments import (
    KEY,
    A,
    B,
    acknowledged,
    begun,
    ended,
    messages,
    parts,
    pending,
    pending_numbers,
    push,
    reasons,
    single,
)


def restored(reassembler: ssbroker.Reassembler) -> ssbroker.Reassembler:
    return ssbroker.Reassembler.restore(reassembler.checkpoint())


@pytest.mark.rule("P14", "P16")
def test_a_checkpoint_holds_what_is_pending() -> None:
    """Incomplete and held messages, numbers, what is known and what it is charged."""
    reassembler = ssbroker.Reassembler()
    push(reassembler, single(0), *parts(b"abcdef", 1)[:2], single(2), begun(0, conversation=B))
    again = restored(reassembler)
    assert pending(again) == pending(reassembler)
    assert again.pending_bytes == reassembler.pending_bytes
    assert again.pending_messages == reassembler.pending_messages == 3
    result = push(again, parts(b"abcdef", 1)[2], single(0))
    assert messages(result) == [(1, b"abcdef"), (2, b"")]
    assert reasons(result) == ["duplicate"]
    assert acknowledged(result) == [(2, None, None)]


def test_a_checkpoint_holds_the_limits() -> None:
    """And whether there is an order."""
    reassembler = ssbroker.Reassembler(
        max_pending_bytes=2000,
        max_pending_messages=4,
        max_message_bytes=10,
        max_fragments_per_message=3,
        max_sequence_distance=9,
        in_order=False,
    )
    bad = [single(0, body=b"12345678901"), single(9), *parts(b"12345678")]
    assert reasons(push(restored(reassembler), *bad)) == ["limit_exceeded"] * 6
    crowd = [begun(number) for number in range(3)]
    assert reasons(push(restored(reassembler), *crowd)) == ["limit_exceeded"]
    assert messages(push(restored(reassembler), single(1))) == [(1, b"")]


@pytest.mark.rule("P12")
def test_without_order_the_numbers_after_a_gap_are_kept() -> None:
    """What was whole is still a duplicate."""
    reassembler = ssbroker.Reassembler(in_order=False)
    push(reassembler, single(2))
    again = restored(reassembler)
    assert again.pending_bytes == reassembler.pending_bytes == 128 + 256
    assert reasons(push(again, single(2))) == ["duplicate"]


@pytest.mark.rule("P22")
def test_session_keys_are_given_anew() -> None:
    """The state does not hold them."""
    reassembler = ssbroker.Reassembler(session_keys={A: KEY})
    first, second = parts(b"abcd", key=KEY)
    push(reassembler, first)
    state = reassembler.checkpoint()
    assert KEY not in state
    assert messages(push(ssbroker.Reassembler.restore(state, session_keys={A: KEY}), second)) == [(0, b"abcd")]
    assert reasons(push(ssbroker.Reassembler.restore(state), second)) == ["corrupt_fragment"]


@pytest.mark.rule("P26")
def test_its_size_is_that_of_what_is_pending() -> None:
    """Of what was released only the next number stays, and of a lying count nothing."""
    reassembler = ssbroker.Reassembler()
    empty = len(reassembler.checkpoint())
    push(reassembler, *(single(number, body=bytes(1000)) for number in range(50)), begun(50, body=bytes(1000)))
    assert 1000 < len(reassembler.checkpoint()) < empty + 1000 + 300
    push(reassembler, ended(begun(50)))
    assert len(reassembler.checkpoint()) < empty + 300
    liar = ssbroker.Reassembler(max_fragments_per_message=None)
    push(liar, replace(begun(0), count=2**31 - 1))
    assert len(liar.checkpoint()) < empty + 300


@pytest.fixture
def state() -> bytes:
    reassembler = ssbroker.Reassembler(in_order=False)
    push(reassembler, single(0), single(2), *parts(b"abcdef", 5)[:2], begun(0, conversation=B))
    return reassembler.checkpoint()


def test_a_state_that_is_cut_off_is_an_error(state: bytes) -> None:
    """At any place."""
    for length in range(len(state)):
        with pytest.raises(MalformedDataError):
            ssbroker.Reassembler.restore(state[:length])


def test_a_state_that_is_altered_is_an_error(state: bytes) -> None:
    """In any bit, or longer."""
    for bit in range(8 * len(state)):
        altered = bytearray(state)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MalformedDataError):
            ssbroker.Reassembler.restore(bytes(altered))
    with pytest.raises(MalformedDataError):
        ssbroker.Reassembler.restore(state + b"\0")


def test_a_reassembler_pickles_with_its_keys() -> None:
    """So that it goes to another process as it is."""
    reassembler = ssbroker.Reassembler(session_keys={A: KEY})
    first, second = parts(b"abcd", key=KEY)
    push(reassembler, first)
    assert messages(push(pickle.loads(pickle.dumps(reassembler)), second)) == [(0, b"abcd")]


@pytest.mark.rule("P13")
def test_what_is_forgotten_may_come_again() -> None:
    """An incomplete message; nothing is rejected, and others stay."""
    reassembler = ssbroker.Reassembler()
    fragments = parts(b"abcd", 1)
    push(reassembler, fragments[0], single(0), begun(2))
    assert reassembler.forget(A, is_initiator=True, message_sequence_number=1)
    assert pending_numbers(reassembler) == [2]
    assert not reassembler.forget(A, is_initiator=True, message_sequence_number=1)
    assert messages(push(reassembler, *fragments)) == [(1, b"abcd")]


@pytest.mark.rule("P14")
def test_what_is_held_may_be_forgotten_too() -> None:
    """Its number is not whole any more."""
    reassembler = ssbroker.Reassembler()
    push(reassembler, single(1, body=b"first"))
    assert reassembler.forget(str(A), is_initiator=True, message_sequence_number=1)
    assert acknowledged(push(reassembler, single(0))) == [(0, None, None)]
    assert messages(push(reassembler, single(1, body=b"second"))) == [(1, b"second")]


@pytest.mark.rule("P12")
def test_what_was_released_is_not_forgotten() -> None:
    """It stays a duplicate; so does a mere number."""
    for in_order in (True, False):
        reassembler = ssbroker.Reassembler(in_order=in_order)
        push(reassembler, single(0))
        assert not reassembler.forget(A.bytes, is_initiator=True, message_sequence_number=0)
        assert reasons(push(reassembler, single(0))) == ["duplicate"]
    push(reassembler, single(2))
    assert not reassembler.forget(A, is_initiator=True, message_sequence_number=2)
    assert reasons(push(reassembler, single(2))) == ["duplicate"]


def test_what_is_not_there_is_not_forgotten() -> None:
    """Nor made."""
    reassembler = ssbroker.Reassembler()
    push(reassembler, begun(0))
    assert not reassembler.forget(B, is_initiator=True, message_sequence_number=0)
    assert not reassembler.forget(A, is_initiator=False, message_sequence_number=0)
    assert not reassembler.forget(A, is_initiator=True, message_sequence_number=1)
    assert pending_numbers(reassembler) == [0]


def test_forgetting_the_last_of_a_direction_forgets_the_direction() -> None:
    """It is charged no more, unless one of its messages has been whole."""
    reassembler = ssbroker.Reassembler()
    push(reassembler, begun(0), single(1, conversation=B))
    assert reassembler.forget(A, is_initiator=True, message_sequence_number=0)
    assert reassembler.forget(B, is_initiator=True, message_sequence_number=1)
    assert reassembler.pending_bytes == 128
