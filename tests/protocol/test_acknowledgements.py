"""P15, P16: how acknowledgements are sent, and which are trusted."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker.protocol.ack_ranges import ACK_RANGES_MAX, pack_ack_ranges, unpack_ack_ranges
from ssbroker.protocol.events import AcknowledgementStep, RemoteMessageAcknowledgement
from ssbroker.protocol.inbound_direction import InboundDirection
from ssbroker.testing.simulation import EngineFactory
from tests.protocol.pair import CONVERSATION, SECOND, Pair, Row, established_pair, numbers
from tests.protocol.test_receiver import acknowledged, with_new_header_digest


@pytest.mark.rule("P15")
def test_one_acknowledgement_covers_several_fragments(engine: EngineFactory) -> None:
    engines = established_pair(engine, max_fragment_bytes=4)
    engines.a.send(engines.outgoing, b"in three one", b"two", b"three")
    engines.b.receive_and_commit(engines.a.rows(20 * SECOND), 20 * SECOND)
    assert acknowledged(engines.b.rows(22 * SECOND)) == [3]


@pytest.mark.rule("P15")
def test_an_acknowledgement_is_carried_by_the_next_message(engine: EngineFactory) -> None:
    """Then no separate acknowledgement is sent."""
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"question")
    engines.b.receive_and_commit(engines.a.rows(20 * SECOND), 20 * SECOND)
    engines.b.send(engines.incoming, b"answer", b"more")
    rows = engines.b.rows(20 * SECOND)
    assert numbers(rows) == [(1, 0), (2, 0)]
    assert acknowledged(rows) == [1]
    assert engines.b.rows(22 * SECOND) == []
    engines.a.receive_and_commit(rows, 20 * SECOND)
    assert engines.a.waiting(engines.outgoing) == []


@pytest.mark.rule("P15")
def test_an_acknowledgement_waits_up_to_a_second_for_a_message(engine: EngineFactory) -> None:
    """P15"""
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"question")
    engines.b.receive_and_commit(engines.a.rows(20 * SECOND), 20 * SECOND)
    assert engines.b.rows(21 * SECOND - 1) == []
    assert acknowledged(engines.b.rows(21 * SECOND)) == [1]
    assert engines.b.rows(30 * SECOND) == []


def test_an_acknowledgement_does_not_wait_if_the_window_is_filling(engine: EngineFactory) -> None:
    """A quarter of the window has arrived."""
    engines = established_pair(engine, window_fragments=8)
    engines.a.send(engines.outgoing, *[b"body"] * 8)
    rows = engines.a.rows(20 * SECOND)
    engines.b.receive_and_commit(rows[:1], 20 * SECOND)
    assert engines.b.rows(20 * SECOND) == []
    engines.b.receive_and_commit(rows[1:2], 20 * SECOND)
    assert acknowledged(engines.b.rows(20 * SECOND)) == [2]


@pytest.mark.rule("P15")
def test_acknowledgements_emit_events(engine: EngineFactory) -> None:
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"question")
    engines.b.receive_and_commit(engines.a.rows(20 * SECOND), 20 * SECOND)
    engines.a.receive_and_commit(engines.b.rows(21 * SECOND), 21 * SECOND)
    (sent,) = engines.b.emitted(RemoteMessageAcknowledgement)
    (received,) = engines.a.emitted(RemoteMessageAcknowledgement)
    assert (sent.step, sent.acked_sequence_number) == (AcknowledgementStep.ACK_SENT, 1)
    assert (received.step, received.at) == (AcknowledgementStep.ACK_RECEIVED, 21 * SECOND)


def with_acknowledgement(engines: Pair, acked: int | None, ahead: bytes) -> Row:
    """Returns an acknowledgement by the target with other numbers."""
    engines.b.receive_and_commit(engines.a.rows(20 * SECOND)[:1], 20 * SECOND)
    (row,) = engines.b.rows(22 * SECOND)
    return with_new_header_digest({**row, "acked_sequence_number": acked, "acked_ahead": ahead})


@pytest.mark.rule("P16")
@pytest.mark.threat("T11")
def test_an_acknowledgement_of_unsent_messages_is_not_trusted(engine: EngineFactory) -> None:
    """An acknowledgement beyond the sent messages has no effect, and is reported as 28010."""
    for acked, ahead in ((1000, b""), (0, pack_ack_ranges([(1, 0, 1000, 0)]))):
        engines = established_pair(engine, window_fragments=4)
        engines.a.send(engines.outgoing, *[b"%d" % number for number in range(1, 9)])
        false = with_acknowledgement(engines, acked, ahead)
        engines.a.receive_and_commit([false], 22 * SECOND)
        assert [event.error for event in engines.a.rejection_events] == [28010]
        assert {5, 6, 7, 8} <= set(engines.a.waiting(engines.outgoing))
        rows = engines.a.rows(23 * SECOND)
        assert {number for number, _ in numbers(rows)} <= {1, 5, 6, 7, 8}
        assert rows != []


@pytest.mark.rule("P16")
def test_an_old_acknowledgement_has_no_effect(engine: EngineFactory) -> None:
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"one", b"two")
    rows = engines.a.rows(20 * SECOND)
    engines.b.receive_and_commit(rows[:1], 20 * SECOND)
    old = engines.b.rows(22 * SECOND)
    engines.b.receive_and_commit(rows[1:], 22 * SECOND)
    new = engines.b.rows(24 * SECOND)
    engines.a.receive_and_commit(new, 24 * SECOND)
    engines.a.receive_and_commit(old, 24 * SECOND)
    assert engines.a.storage.waiting() == []
    assert engines.a.rows(100 * SECOND) == []


@pytest.mark.rule("P16")
def test_after_a_restart_acknowledgements_count_as_far_as_messages_were_sent_again(engine: EngineFactory) -> None:
    """The peer has received more than the restarted sender has sent so far; all of it is acknowledged in the end."""
    engines = established_pair(engine, window_fragments=4, max_fragment_bytes=4)
    engines.a.send(engines.outgoing, b"a" * 30, b"b", b"c", b"d" * 30)
    for step in range(30):
        rows = engines.a.rows((20 + step) * SECOND)
        engines.b.receive_and_commit(rows, (20 + step) * SECOND)
        for row in engines.b.rows((22 + step) * SECOND):
            if step % 3:
                engines.a.receive_and_commit([row], (22 + step) * SECOND)
        if step % 4 == 1:
            engines.restart(engines.a)
    engines.exchange(60 * SECOND, times=40)
    assert engines.b.queue(engines.incoming)[1:] == [b"a" * 30, b"b", b"c", b"d" * 30]
    assert engines.a.storage.waiting() == []


@pytest.mark.rule("P13", "P16")
def test_a_large_message_resumes_after_a_restart(engine: EngineFactory) -> None:
    """The sender restarts more often than the message takes, yet it arrives, and hardly a fragment is sent twice."""
    engines = established_pair(engine, window_fragments=8, max_fragment_bytes=4)
    engines.a.send(engines.outgoing, bytes(range(200)) * 2, b"and then")
    sent = 0
    for restart in range(20):
        for step in range(4):
            now = (20 + 10 * restart + step) * SECOND
            rows = engines.a.rows(now)
            sent += len(numbers(rows))
            engines.b.receive_and_commit(rows, now)
            engines.a.receive_and_commit(engines.b.rows(now), now)
        engines.restart(engines.a)
    assert engines.b.queue(engines.incoming)[1:] == [bytes(range(200)) * 2, b"and then"]
    assert engines.a.storage.waiting() == []
    assert sent < 3 * 100


@pytest.mark.rule("P16")
def test_a_received_large_message_is_not_sent_again_after_a_restart(engine: EngineFactory) -> None:
    """Its acknowledgement was lost. It leaves the queue once its last fragment has been sent, not earlier."""
    engines = established_pair(engine, window_fragments=8, max_fragment_bytes=4)
    engines.a.send(engines.outgoing, bytes(400))
    for step in range(100):
        rows = engines.a.rows((20 + step) * SECOND)
        if any(fragment == 99 for _, fragment in numbers(rows)):
            engines.b.receive_and_commit(rows, (20 + step) * SECOND)
            break
        engines.b.receive_and_commit(rows, (20 + step) * SECOND)
        engines.a.receive_and_commit(engines.b.rows((20 + step) * SECOND), (20 + step) * SECOND)
    assert len(engines.b.queue(engines.incoming)) == 2
    engines.restart(engines.a)
    sent = engines.exchange(200 * SECOND, times=1)
    assert engines.a.waiting(engines.outgoing) == [1]
    sent += engines.exchange(202 * SECOND)
    assert engines.a.storage.waiting() == []
    assert len(numbers(sent)) <= 8 + 1
    assert numbers(sent)[-1] == (1, 99)


@pytest.mark.rule("P16")
@pytest.mark.threat("T11")
def test_a_false_acknowledgement_of_a_message_in_transit_does_not_shorten_it(engine: EngineFactory) -> None:
    """Nothing is lost, and nothing leaves the queue."""
    for lie in ((1, 3, 1, 98), (1, 0, 1, 2**31 - 1), (0, 0, 7, 0)):
        engines = established_pair(engine, window_fragments=8, max_fragment_bytes=4)
        engines.a.send(engines.outgoing, bytes(range(200)) * 2, b"and then")
        false = with_acknowledgement(engines, 0, pack_ack_ranges([lie]))
        engines.a.receive_and_commit([false], 22 * SECOND)
        assert engines.a.waiting(engines.outgoing) == [1, 2]
        engines.exchange(23 * SECOND, times=60)
        assert engines.b.queue(engines.incoming)[1:] == [bytes(range(200)) * 2, b"and then"]
        assert engines.a.storage.waiting() == []


@pytest.mark.rule("P17", "P23")
@pytest.mark.threat("T11")
def test_a_message_that_the_peer_forgot_is_resent_immediately_only_once(engine: EngineFactory) -> None:
    """A peer that has forgotten a message reports it for each row; each report must not cause another send."""
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"one")
    false = with_acknowledgement(engines, 0, pack_ack_ranges([(1, 0, 1, 0)]))
    sent = 0
    for _ in range(100):
        engines.a.receive_and_commit([false], 22 * SECOND)
        sent += len(engines.a.rows(22 * SECOND))
    assert sent == 1
    for second in range(23, 623):
        rows = engines.a.rows(second * SECOND)
        sent += len(rows)
        engines.a.receive_and_commit([false] * len(rows), second * SECOND)
    assert 10 <= sent <= 40


def test_a_peer_that_lost_acknowledged_messages_gets_an_error(engine: EngineFactory) -> None:
    """A message sent after an acknowledgement that the peer no longer knows of arrives."""
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"one")
    engines.a.receive_and_commit([with_acknowledgement(engines, None, pack_ack_ranges([(1, 0, 1, 0)]))], 22 * SECOND)
    assert engines.a.storage.failed(engines.outgoing) is not None
    assert [number for number, _ in numbers(engines.a.rows(23 * SECOND))] == engines.a.waiting(engines.outgoing)
    assert engines.a.waiting(engines.outgoing)[0] > 1 << 40


@pytest.mark.rule("P12")
def test_an_old_acknowledgement_does_not_indicate_a_loss(engine: EngineFactory) -> None:
    """Also after a restart of the sender, and whatever else it acknowledged."""
    engines = established_pair(engine, window_fragments=8, max_fragment_bytes=4)
    old: list[Row] = []
    for round_ in range(12):
        now = (20 + 20 * round_) * SECOND
        engines.a.send(engines.outgoing, b"one", b"in three one", b"two", b"three")
        for second in range(8):
            rows = engines.a.rows(now + second * SECOND)
            for row in reversed(rows[round_ % 3 :]):
                engines.b.receive_and_commit([row], now + second * SECOND)
                old += engines.b.rows(now + second * SECOND)
            engines.a.receive_and_commit(old[-1:] if second % 2 else old, now + second * SECOND)
        if round_ % 4 == 1:
            engines.restart(engines.a)
        elif round_ % 4 == 2:
            engines.a.dialogs.flush(now=now + 19 * SECOND)
    engines.exchange(300 * SECOND, times=80)
    assert engines.a.storage.failed(engines.outgoing) is None
    assert engines.a.storage.waiting() == []
    assert sum(row["acked_ahead"] not in (None, b"") for row in old) > 20


@pytest.mark.rule("P26")
@pytest.mark.threat("T11")
def test_a_range_beyond_its_message_uses_no_memory(engine: EngineFactory) -> None:
    """24 bytes can name two billion fragments of a message that has two."""
    engines = established_pair(engine, max_fragment_bytes=4)
    engines.a.send(engines.outgoing, b"message", bytes(40))
    false = with_acknowledgement(engines, 0, pack_ack_ranges([(1, 2**31 - 2, 1, 2**31 - 1), (2, 0, 2, 2**31 - 1)]))
    tracemalloc.start()
    try:
        engines.a.receive_and_commit([false], 22 * SECOND)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def runs_of(places: Iterable[tuple[int, int]], counts: Mapping[int, int]) -> InboundDirection:
    """Returns a direction in which these fragments wait, each added once."""
    made = InboundDirection((CONVERSATION, False), 0)
    for number, fragment in places:
        if (number, fragment) not in made.ranges:
            made.add((number, fragment), count=counts[number], digest=None, size=0)
    return made


COUNTS = {0: 3, 1: 1, 2: 2, 3: 2**31 - 1}
PLACES = [(number, fragment) for number, count in COUNTS.items() for fragment in range(min(count, 4))]


@pytest.mark.rule("P15")
@given(
    places=st.lists(st.sampled_from(PLACES), max_size=40),
    dropped=st.none() | st.integers(0, 3),
    reached=st.integers(0, 4),
)
def test_ranges_are_sorted_disjoint_and_not_adjacent(
    places: list[tuple[int, int]], dropped: int | None, reached: int
) -> None:
    """Also if fragments of a message have been removed, or messages are complete."""
    made = runs_of(places, COUNTS)
    if dropped is not None:
        made.drop_message(dropped)
    made.advance_to(reached)
    stored = {place for place in places if place[0] >= reached and place[0] != dropped}
    emitted = made.ranges.to_ack_ranges()
    named = [place for place in PLACES if any(run[:2] <= place <= run[2:] for run in emitted)]
    assert named == sorted(stored) == [place for place in PLACES if place in made.ranges]
    assert emitted == sorted(emitted)
    assert made.pending_fragments == len(stored)
    expected = sum(before is None or before not in stored for before in map(_before, stored))
    assert len(emitted) == len(made.ranges) == expected


def _before(place: tuple[int, int]) -> tuple[int, int] | None:
    """Returns the fragment position just before another."""
    number, fragment = place
    return (number, fragment - 1) if fragment else (number - 1, COUNTS[number - 1] - 1) if number else None


@pytest.mark.rule("P15", "P26")
def test_ranges_cover_the_stored_fragments_and_are_bounded() -> None:
    """Impossible values are rejected."""
    every_second = range(0, 4 * ACK_RANGES_MAX, 2)
    emitted = runs_of([(number, 0) for number in every_second], dict.fromkeys(every_second, 1)).ranges.to_ack_ranges()
    assert emitted == [(number, 0, number, 0) for number in every_second[:ACK_RANGES_MAX]]
    stored = runs_of([(3, 1), (4, 0), (5, 0), (5, 2)], {3: 2, 4: 1, 5: 3})
    assert stored.ranges.to_ack_ranges() == [(3, 1, 5, 0), (5, 2, 5, 2)]
    assert unpack_ack_ranges(pack_ack_ranges([(3, 1, 5, 0), (5, 2, 5, 2)])) == [(3, 1, 5, 0), (5, 2, 5, 2)]
    nonsense = ([(3, 0, 2, 0)], [(3, 1, 3, 0)], [(-1, 0, 0, 0)], [(1, -1, 1, 0)], [(3, 0, 3, 5), (3, 5, 4, 0)])
    assert [unpack_ack_ranges(pack_ack_ranges(runs)) for runs in nonsense] == [None] * len(nonsense)
    assert (
        unpack_ack_ranges(pack_ack_ranges([(2 * number, 0, 2 * number, 0) for number in range(ACK_RANGES_MAX + 1)]))
        is None
    )
    assert unpack_ack_ranges(b"x") is None
