"""P15, P16, B35: how acknowledgements travel, and which are believed."""

from __future__ import annotations

from ssbroker.protocol.acknowledgement import RUNS_MAX, packed, runs_of, unpacked
from ssbroker.protocol.events import AcknowledgementStep, RemoteMessageAcknowledgement
from ssbroker.testing.node import Machine
from tests.protocol.pair import SECOND, Pair, Row, bound, numbers
from tests.protocol.test_receiving import acknowledged, resigned


def test_p15_one_acknowledgement_covers_several_fragments(machine: Machine) -> None:
    both = bound(machine, max_fragment_bytes=4)
    both.a.send(both.outgoing, b"in three one", b"two", b"three")
    both.b.take(both.a.rows(20 * SECOND), 20 * SECOND)
    assert acknowledged(both.b.rows(22 * SECOND)) == [3]


def test_p15_it_rides_in_the_header_of_a_message_that_goes_anyway(machine: Machine) -> None:
    """P15: and then none goes alone."""
    both = bound(machine)
    both.a.send(both.outgoing, b"question")
    both.b.take(both.a.rows(20 * SECOND), 20 * SECOND)
    both.b.send(both.incoming, b"answer", b"more")
    rows = both.b.rows(20 * SECOND)
    assert numbers(rows) == [(1, 0), (2, 0)]
    assert acknowledged(rows) == [1]
    assert both.b.rows(22 * SECOND) == []
    both.a.take(rows, 20 * SECOND)
    assert both.a.waiting(both.outgoing) == []


def test_b35_alone_it_waits_up_to_a_second_for_one(machine: Machine) -> None:
    """B35, P15"""
    both = bound(machine)
    both.a.send(both.outgoing, b"question")
    both.b.take(both.a.rows(20 * SECOND), 20 * SECOND)
    assert both.b.rows(21 * SECOND - 1) == []
    assert acknowledged(both.b.rows(21 * SECOND)) == [1]
    assert both.b.rows(30 * SECOND) == []


def test_b35_it_does_not_wait_while_the_sender_has_to(machine: Machine) -> None:
    """B35: when a quarter of the window is there."""
    both = bound(machine, window_fragments=8)
    both.a.send(both.outgoing, *[b"body"] * 8)
    rows = both.a.rows(20 * SECOND)
    both.b.take(rows[:1], 20 * SECOND)
    assert both.b.rows(20 * SECOND) == []
    both.b.take(rows[1:2], 20 * SECOND)
    assert acknowledged(both.b.rows(20 * SECOND)) == [2]


def test_p15_events_tell_of_acknowledgements(machine: Machine) -> None:
    both = bound(machine)
    both.a.send(both.outgoing, b"question")
    both.b.take(both.a.rows(20 * SECOND), 20 * SECOND)
    both.a.take(both.b.rows(21 * SECOND), 21 * SECOND)
    (sent,) = both.b.told(RemoteMessageAcknowledgement)
    (received,) = both.a.told(RemoteMessageAcknowledgement)
    assert (sent.step, sent.acked_sequence_number) == (AcknowledgementStep.ACK_SENT, 1)
    assert (received.step, received.at) == (AcknowledgementStep.ACK_RECEIVED, 21 * SECOND)


def with_acknowledgement(both: Pair, acked: int | None, ahead: bytes) -> Row:
    """An acknowledgement of the target with other numbers."""
    both.b.take(both.a.rows(20 * SECOND)[:1], 20 * SECOND)
    (row,) = both.b.rows(22 * SECOND)
    return resigned({**row, "acked_sequence_number": acked, "acked_ahead": ahead})


def test_p16_what_was_not_sent_is_not_believed_to_be_acknowledged(machine: Machine) -> None:
    """P16, T11, B39: beyond what was sent an acknowledgement says nothing, and is told of as 28010."""
    for acked, ahead in ((1000, b""), (None, packed([(1, 0, 1000, 0)]))):
        both = bound(machine, window_fragments=4)
        both.a.send(both.outgoing, *[b"%d" % number for number in range(1, 9)])
        false = with_acknowledgement(both, acked, ahead)
        both.a.take([false], 22 * SECOND)
        assert [event.error for event in both.a.refused] == [28010]
        assert {5, 6, 7, 8} <= set(both.a.waiting(both.outgoing))
        rows = both.a.rows(23 * SECOND)
        assert {number for number, _ in numbers(rows)} <= {1, 5, 6, 7, 8}
        assert rows != []


def test_p16_an_old_acknowledgement_takes_nothing_back(machine: Machine) -> None:
    both = bound(machine)
    both.a.send(both.outgoing, b"one", b"two")
    rows = both.a.rows(20 * SECOND)
    both.b.take(rows[:1], 20 * SECOND)
    old = both.b.rows(22 * SECOND)
    both.b.take(rows[1:], 22 * SECOND)
    new = both.b.rows(24 * SECOND)
    both.a.take(new, 24 * SECOND)
    both.a.take(old, 24 * SECOND)
    assert both.a.ledger.waiting() == []
    assert both.a.rows(100 * SECOND) == []


def test_p16_after_a_restart_what_was_acknowledged_before_helps_as_far_as_it_was_sent_again(machine: Machine) -> None:
    """P16: the far side has more than this life of the sender has sent; nothing stays behind."""
    both = bound(machine, window_fragments=4, max_fragment_bytes=4)
    both.a.send(both.outgoing, b"a" * 30, b"b", b"c", b"d" * 30)
    for step in range(30):
        rows = both.a.rows((20 + step) * SECOND)
        both.b.take(rows, (20 + step) * SECOND)
        for row in both.b.rows((22 + step) * SECOND):
            if step % 3:
                both.a.take([row], (22 + step) * SECOND)
        if step % 4 == 1:
            both.restart(both.a)
    both.exchange(60 * SECOND, times=40)
    assert both.b.queue(both.incoming)[1:] == [b"a" * 30, b"b", b"c", b"d" * 30]
    assert both.a.ledger.waiting() == []


def test_p15_runs_say_what_is_there_and_are_bounded() -> None:
    """P15, P26: what nobody could have meant is refused."""
    early = dict.fromkeys(range(0, 4 * RUNS_MAX, 2), (1, 1))
    assert len(runs_of(early)) == RUNS_MAX
    assert runs_of({3: (2, 0b10), 4: (1, 1), 5: (3, 0b101)}) == [(3, 1, 5, 0), (5, 2, 5, 2)]
    assert unpacked(packed([(3, 1, 5, 0), (5, 2, 5, 2)])) == [(3, 1, 5, 0), (5, 2, 5, 2)]
    nonsense = ([(3, 0, 2, 0)], [(3, 1, 3, 0)], [(-1, 0, 0, 0)], [(1, -1, 1, 0)], [(3, 0, 3, 5), (3, 5, 4, 0)])
    assert [unpacked(packed(runs)) for runs in nonsense] == [None] * len(nonsense)
    assert unpacked(packed([(2 * number, 0, 2 * number, 0) for number in range(RUNS_MAX + 1)])) is None
    assert unpacked(b"x") is None
