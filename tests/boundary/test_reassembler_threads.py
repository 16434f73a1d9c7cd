"""One reassembler used by many threads, with the GIL released while it works."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Reassembler, _core
from tests.boundary.test_threads import COUNTED, THREADS, Exported, in_all_threads, needs_gil, progress_during
from tests.reassembly.signed_messages import messages, with_column

BODIES: list[bytes | None] = [bytes([number % 256]) * (number % 40) for number in range(990)]
FRAGMENTS = ssbroker.fragment(messages(BODIES), max_fragment_bytes=7)


@pytest.mark.rule("P11", "P12")
def test_threads_push_into_one_reassembler() -> None:
    """In any order, each message is returned once and complete, and nothing remains."""
    order = list(range(FRAGMENTS.num_rows))
    Random(5).shuffle(order)
    shares: list[Any] = [FRAGMENTS.take(order[number::THREADS]) for number in range(THREADS)]
    reassembler = Reassembler(in_order=False)

    def work(number: int) -> list[tuple[bytes, bool, int, bytes]]:
        got = []
        for start in range(0, shares[number].num_rows, 20):
            rows = reassembler.push(shares[number].slice(start, 20)).messages.to_pylist()
            got += [
                (row["conversation_id"], row["is_initiator"], row["message_sequence_number"], row["message_body"])
                for row in rows
            ]
            assert reassembler.pending_messages >= 0
            assert reassembler.pending().num_rows >= 0
            assert len(reassembler.checkpoint()) > 0
        return got

    found = sorted(row for rows in in_all_threads(work) for row in rows)
    expected = messages(BODIES).to_pylist()
    keys = [
        (row["conversation_id"], row["is_initiator"], row["message_sequence_number"], row["message_body"])
        for row in expected
    ]
    assert found == sorted(keys)
    assert reassembler.pending_messages == 0


def test_all_threads_fragment_and_digest_identically() -> None:
    given = messages(BODIES)
    digests = ssbroker.md5(given["message_body"]).to_pylist()

    def work(number: int) -> bool:
        cut = ssbroker.fragment(given, max_fragment_bytes=7)
        return [cut, ssbroker.md5(given["message_body"]).to_pylist()] == [FRAGMENTS, digests]

    assert in_all_threads(work) == [True] * THREADS


ROWS = 200_000
CUT = ssbroker.fragment(messages([b"some bytes"] * ROWS), max_fragment_bytes=100)
SMALL: Any = CUT.combine_chunks().to_batches()[0]
# Text takes longer to read, and is read before the bodies.
TEXT_IDS = pa.array(["11111111-2222-4333-8444-555555555555"] * ROWS)
BODIES_WITHOUT_LAST = pa.array([b"some bytes"] * (ROWS - 1) + [None])
INVALID = with_column(with_column(SMALL, "conversation_id", TEXT_IDS), "message_body", BODIES_WITHOUT_LAST)


@needs_gil
def test_the_gil_is_released_during_push() -> None:
    """The last row is invalid, so that the call ends without an export, and only the work itself can release the GIL."""
    reassembler = _core.Reassembler(
        max_pending_bytes=None,
        max_pending_messages=None,
        max_message_bytes=100,
        max_fragments_per_message=None,
        max_sequence_distance=None,
        in_order=True,
    )
    attempts = [[Exported(INVALID)] for _ in range(50)]

    def call() -> None:
        with pytest.raises(ssbroker.NullError):
            reassembler.push(attempts.pop(), None)

    assert progress_during(lambda: sum(range(300_000))) == 0
    assert any(progress_during(call) == COUNTED for _ in range(len(attempts)))


@needs_gil
def test_the_gil_is_released_during_fragment() -> None:
    attempts = [Exported(INVALID) for _ in range(50)]

    def call() -> None:
        with pytest.raises(ssbroker.NullError):
            _core.fragment(attempts.pop(), 0, 100, None)

    assert any(progress_during(call) == COUNTED for _ in range(len(attempts)))


@needs_gil
def test_waiting_for_a_reassembler_does_not_hold_the_gil() -> None:
    """Two threads use one reassembler, and a third one progresses meanwhile."""
    reassembler = Reassembler(in_order=False)
    done = threading.Event()

    def push() -> None:
        for _ in range(3):
            reassembler.push(SMALL)
        done.set()

    others = [threading.Thread(target=push) for _ in range(2)]
    for other in others:
        other.start()
    turns = 0
    while not done.wait(0.001):
        turns += 1
        assert reassembler.pending_messages == 0
    for other in others:
        other.join()
    assert turns > 0
