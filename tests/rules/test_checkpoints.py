"""Checkpoints: pending data survive the reassembler, and can be discarded."""

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
    first_of_two,
    messages,
    parts,
    pending,
    pending_numbers,
    push,
    reasons,
    second_of_two,
    single,
)


def restored(reassembler: ssbroker.Reassembler) -> ssbroker.Reassembler:
    return ssbroker.Reassembler.restore(reassembler.checkpoint())


@pytest.mark.rule("P14", "P16")
def test_a_checkpoint_contains_pending_data() -> None:
    """Incomplete and waiting messages, sequence numbers, known directions and memory charges."""
    reassembler = ssbroker.Reassembler()
    push(reassembler, single(0), *parts(b"abcdef", 1)[:2], single(2), first_of_two(0, conversation=B))
    again = restored(reassembler)
    assert pending(again) == pending(reassembler)
    assert again.pending_bytes == reassembler.pending_bytes
    assert again.pending_messages == reassembler.pending_messages == 3
    result = push(again, parts(b"abcdef", 1)[2], single(0))
    assert messages(result) == [(1, b"abcdef"), (2, b"")]
    assert reasons(result) == ["duplicate"]
    assert acknowledged(result) == [(2, None, None)]


def test_a_checkpoint_contains_the_limits() -> None:
    """And whether messages are ordered."""
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
    crowd = [first_of_two(number) for number in range(3)]
    assert reasons(push(restored(reassembler), *crowd)) == ["limit_exceeded"]
    assert messages(push(restored(reassembler), single(1))) == [(1, b"")]


@pytest.mark.rule("P12")
def test_without_order_the_numbers_after_a_gap_are_kept() -> None:
    """A complete message is still detected as a duplicate."""
    reassembler = ssbroker.Reassembler(in_order=False)
    push(reassembler, single(2))
    again = restored(reassembler)
    assert again.pending_bytes == reassembler.pending_bytes == 128 + 256
    assert reasons(push(again, single(2))) == ["duplicate"]


@pytest.mark.rule("P22")
def test_a_checkpoint_does_not_contain_session_keys() -> None:
    """They are passed to `restore` again."""
    reassembler = ssbroker.Reassembler(session_keys={A: KEY})
    first, second = parts(b"abcd", key=KEY)
    push(reassembler, first)
    state = reassembler.checkpoint()
    assert KEY not in state
    assert messages(push(ssbroker.Reassembler.restore(state, session_keys={A: KEY}), second)) == [(0, b"abcd")]
    assert reasons(push(ssbroker.Reassembler.restore(state), second)) == ["corrupt_fragment"]


@pytest.mark.rule("P26")
def test_the_size_of_a_checkpoint_is_about_that_of_pending_data() -> None:
    """Released messages need only the next number, and declared counts need nothing."""
    reassembler = ssbroker.Reassembler()
    empty = len(reassembler.checkpoint())
    push(reassembler, *(single(number, body=bytes(1000)) for number in range(50)), first_of_two(50, body=bytes(1000)))
    assert 1000 < len(reassembler.checkpoint()) < empty + 1000 + 300
    push(reassembler, second_of_two(first_of_two(50)))
    assert len(reassembler.checkpoint()) < empty + 300
    liar = ssbroker.Reassembler(max_fragments_per_message=None)
    push(liar, replace(first_of_two(0), count=2**31 - 1))
    assert len(liar.checkpoint()) < empty + 300


@pytest.fixture
def state() -> bytes:
    reassembler = ssbroker.Reassembler(in_order=False)
    push(reassembler, single(0), single(2), *parts(b"abcdef", 5)[:2], first_of_two(0, conversation=B))
    return reassembler.checkpoint()


def test_a_truncated_checkpoint_is_rejected(state: bytes) -> None:
    """At any position."""
    for length in range(len(state)):
        with pytest.raises(MalformedDataError):
            ssbroker.Reassembler.restore(state[:length])


def test_an_altered_checkpoint_is_rejected(state: bytes) -> None:
    """In any bit, or with additional bytes."""
    for bit in range(8 * len(state)):
        altered = bytearray(state)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(MalformedDataError):
            ssbroker.Reassembler.restore(bytes(altered))
    with pytest.raises(MalformedDataError):
        ssbroker.Reassembler.restore(state + b"\0")


def test_pickling_keeps_session_keys() -> None:
    """So that it can continue in another process."""
    reassembler = ssbroker.Reassembler(session_keys={A: KEY})
    first, second = parts(b"abcd", key=KEY)
    push(reassembler, first)
    assert messages(push(pickle.loads(pickle.dumps(reassembler)), second)) == [(0, b"abcd")]


@pytest.mark.rule("P13")
def test_forgotten_messages_may_be_pushed_again() -> None:
    """An incomplete message; nothing is rejected, and other messages are kept."""
    reassembler = ssbroker.Reassembler()
    fragments = parts(b"abcd", 1)
    push(reassembler, fragments[0], single(0), first_of_two(2))
    assert reassembler.forget(A, is_initiator=True, message_sequence_number=1)
    assert pending_numbers(reassembler) == [2]
    assert not reassembler.forget(A, is_initiator=True, message_sequence_number=1)
    assert messages(push(reassembler, *fragments)) == [(1, b"abcd")]


@pytest.mark.rule("P14")
def test_waiting_messages_can_be_forgotten() -> None:
    """Its number no longer counts as complete."""
    reassembler = ssbroker.Reassembler()
    push(reassembler, single(1, body=b"first"))
    assert reassembler.forget(str(A), is_initiator=True, message_sequence_number=1)
    assert acknowledged(push(reassembler, single(0))) == [(0, None, None)]
    assert messages(push(reassembler, single(1, body=b"second"))) == [(1, b"second")]


@pytest.mark.rule("P12")
def test_released_messages_cannot_be_forgotten() -> None:
    """They remain duplicates."""
    for in_order in (True, False):
        reassembler = ssbroker.Reassembler(in_order=in_order)
        push(reassembler, single(0))
        assert not reassembler.forget(A.bytes, is_initiator=True, message_sequence_number=0)
        assert reasons(push(reassembler, single(0))) == ["duplicate"]
    push(reassembler, single(2))
    assert not reassembler.forget(A, is_initiator=True, message_sequence_number=2)
    assert reasons(push(reassembler, single(2))) == ["duplicate"]


def test_forgetting_an_unknown_message_changes_nothing() -> None:
    reassembler = ssbroker.Reassembler()
    push(reassembler, first_of_two(0))
    assert not reassembler.forget(B, is_initiator=True, message_sequence_number=0)
    assert not reassembler.forget(A, is_initiator=False, message_sequence_number=0)
    assert not reassembler.forget(A, is_initiator=True, message_sequence_number=1)
    assert pending_numbers(reassembler) == [0]


def test_forgetting_the_last_message_removes_its_direction() -> None:
    """The direction is no longer charged, unless one of its messages has been complete."""
    reassembler = ssbroker.Reassembler()
    push(reassembler, first_of_two(0), single(1, conversation=B))
    assert reassembler.forget(A, is_initiator=True, message_sequence_number=0)
    assert reassembler.forget(B, is_initiator=True, message_sequence_number=1)
    assert reassembler.pending_bytes == 128
