"""N12, P17: dialogs rest while where they send to takes nothing, and what was lost goes again as soon as that is known."""

from __future__ import annotations

import pytest

from ssbroker.testing.simulation import Machine
from tests.protocol.pair import SECOND, bound, numbers


def test_who_is_held_sends_nothing_and_others_do(machine: Machine) -> None:
    both = bound(machine)
    other = both.begin(conversation=b"the second one..", far_broker_instance=both.b.name)
    both.a.send(both.outgoing, b"held")
    both.a.dialogs.hold([both.outgoing])
    both.a.send(both.outgoing, b"and this too")
    both.a.send(other, b"goes")
    rows = both.a.rows(20 * SECOND)
    assert {row["conversation_id"] for row in rows} == {other[0]}
    both.a.dialogs.release([both.outgoing])
    assert numbers(both.a.rows(20 * SECOND)) == [(1, 0), (2, 0)]


def test_who_is_held_wakes_nobody_until_it_is_released(machine: Machine) -> None:
    """Neither to send again nor to acknowledge: the machine would be asked for nothing, again and again."""
    both = bound(machine)
    both.a.send(both.outgoing, b"lost")
    both.a.rows(20 * SECOND)
    both.a.dialogs.hold([both.outgoing])
    assert both.a.rows(60 * SECOND) == []
    assert both.a.dialogs.next_timeout() is None
    both.a.dialogs.release([both.outgoing])
    assert numbers(both.a.rows(60 * SECOND)) == [(1, 0)]


def test_an_acknowledgement_rests_too_and_goes_at_the_release(machine: Machine) -> None:
    both = bound(machine)
    both.a.send(both.outgoing, b"order")
    both.b.take(both.a.rows(20 * SECOND), 20 * SECOND)
    both.b.dialogs.hold([both.incoming])
    assert both.b.rows(22 * SECOND) == []
    both.b.dialogs.release([both.incoming])
    (row,) = both.b.rows(22 * SECOND)
    assert row["acked_sequence_number"] == 1


@pytest.mark.rule("P17")
def test_what_is_known_to_be_lost_goes_again_at_once(machine: Machine) -> None:
    both = bound(machine)
    both.a.send(both.outgoing, b"lost")
    both.a.rows(20 * SECOND)
    assert both.a.rows(20 * SECOND) == []
    both.a.dialogs.retransmit([both.outgoing])
    assert numbers(both.a.rows(20 * SECOND)) == [(1, 0)]


@pytest.mark.rule("P17")
def test_what_is_known_to_be_lost_over_and_over_waits_no_longer_for_that(machine: Machine) -> None:
    """The waits grow with silence; a dial that failed is none."""
    both = bound(machine)
    both.a.send(both.outgoing, b"lost")
    both.a.rows(20 * SECOND)
    for _ in range(5):
        both.a.dialogs.retransmit([both.outgoing])
        assert numbers(both.a.rows(20 * SECOND)) == [(1, 0)]
    assert numbers(both.a.rows(25 * SECOND)) == [(1, 0)], "after 4 s, with a jitter of 12.5 %"
    assert both.a.rows(32 * SECOND) == [], "then after 8 s"


@pytest.mark.rule("P32")
def test_what_is_forgotten_is_not_read_back_from_the_work_table(machine: Machine) -> None:
    """Its object is of another time: what it takes for unsent has been acknowledged since, and what follows would never go."""
    both = bound(machine)
    both.a.send(both.outgoing, b"1")
    both.exchange(20 * SECOND)
    assert both.a.dialogs.flush(now=60 * SECOND)
    both.a.send(both.outgoing, b"2")
    both.exchange(61 * SECOND)
    both.a.dialogs.forget([both.outgoing])
    both.a.send(both.outgoing, b"3")
    both.exchange(70 * SECOND)
    assert both.b.queue(both.incoming)[-1] == b"3"
    assert both.a.waiting(both.outgoing) == []
