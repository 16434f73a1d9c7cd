"""B13: an application's error is taken as soon as it comes, since its sender has dropped what was before it."""

from __future__ import annotations

from ssbroker.protocol import names
from ssbroker.testing.node import Machine
from tests.protocol.pair import SECOND, Pair, bound, numbers, pair

MINUTE = 60 * SECOND


def fails(both: Pair, body: bytes = b"sold out") -> None:
    """The initiator's application ends the dialog with an error; what waits is dropped."""
    both.a.send(both.outgoing, body, message_type=names.ERROR)


def test_b13_an_error_overtakes_what_was_sent_and_lost(machine: Machine) -> None:
    both = bound(machine)
    both.a.send(both.outgoing, b"1", b"2", b"3")
    assert numbers(both.a.rows()) == [(1, 0), (2, 0), (3, 0)]
    fails(both)
    both.exchange(MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"sold out"]
    assert both.b.ledger.accounts[both.incoming].endpoint.receive_sequence == 5
    assert both.a.waiting(both.outgoing) == []
    assert both.a.refused == both.b.refused == []


def test_b13_and_what_was_never_sent(machine: Machine) -> None:
    both = bound(machine, window_fragments=2)
    both.a.send(both.outgoing, *[b"%d" % number for number in range(50)])
    sent = both.a.rows()
    assert len(sent) == 2
    fails(both)
    both.b.take(sent)
    both.exchange(MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"0", b"1", b"sold out"]
    assert both.a.waiting(both.outgoing) == []


def test_b13_however_much_that_was(machine: Machine) -> None:
    """It lies further ahead than any other message may."""
    both = bound(machine, window_fragments=1)
    both.a.send(both.outgoing, *[b""] * 20)
    both.a.rows()
    fails(both)
    both.exchange(MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"sold out"]
    assert both.a.waiting(both.outgoing) == []


def test_b13_what_came_early_is_not_received_any_more(machine: Machine) -> None:
    both = bound(machine)
    both.a.send(both.outgoing, b"1", b"2", b"3")
    both.b.take(both.a.rows()[1:])
    assert len(both.b.ledger.accounts[both.incoming].stored) == 2
    fails(both)
    both.exchange(MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"sold out"]
    assert both.b.ledger.accounts[both.incoming].stored == {}
    assert both.a.waiting(both.outgoing) == []


def test_b13_what_comes_with_it_in_order_is_received(machine: Machine) -> None:
    both = bound(machine)
    both.a.send(both.outgoing, b"1", b"2", b"3")
    sent = both.a.rows()
    fails(both)
    both.b.take([*sent[:2], *both.a.rows(MINUTE)])
    assert both.b.queue(both.incoming) == [b"first", b"1", b"2", b"sold out"]


def test_b13_an_error_in_fragments(machine: Machine) -> None:
    """Each of them says that it is an error, so that the first to come shows where the direction goes on; the rest may be lost."""
    both = bound(machine, max_fragment_bytes=4)
    both.a.send(both.outgoing, b"lost")
    both.a.rows()
    fails(both, b"0123456789ab")
    sent = both.a.rows(MINUTE)
    assert numbers(sent) == [(2, 0), (2, 1), (2, 2)]
    both.b.take([sent[2], sent[0]])
    assert both.b.queue(both.incoming) == [b"first"]
    both.restart(both.b)
    both.exchange(2 * MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"0123456789ab"]
    assert both.a.waiting(both.outgoing) == []


def test_b13_after_a_restart_of_the_sender(machine: Machine) -> None:
    both = bound(machine)
    both.a.send(both.outgoing, b"1", b"2")
    both.a.rows()
    fails(both)
    both.restart(both.a)
    both.exchange(MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"sold out"]
    assert both.a.waiting(both.outgoing) == []


def test_b13_r8_before_the_target_has_answered(machine: Machine) -> None:
    """The first message was dropped, so the error is the first that can go."""
    for sends in (0, 3):
        both = pair(machine)
        both.a.send(both.outgoing, *[b"lost"] * sends)
        both.a.rows()
        fails(both)
        both.exchange(MINUTE)
        assert both.b.queue(both.incoming) == [b"sold out"]
        assert both.a.waiting(both.outgoing) == []


def test_b13_a_rollback_takes_the_leap_back(machine: Machine) -> None:
    both = bound(machine)
    both.a.send(both.outgoing, b"1", b"2")
    late = both.a.rows()
    fails(both)
    both.b.dialogs.undo(both.b.arrived(both.a.rows(MINUTE), MINUTE))
    both.b.take(late, MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"1", b"2"]
    both.exchange(3 * MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"1", b"2", b"sold out"]


def test_p12_of_an_error_that_came_twice_one_is_received(machine: Machine) -> None:
    both = bound(machine)
    both.a.send(both.outgoing, b"lost")
    both.a.rows()
    fails(both)
    sent = both.a.rows(MINUTE)
    for _ in range(3):
        both.b.take([*sent, *sent], MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"sold out"]
