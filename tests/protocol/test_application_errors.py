"""An application's error is received as soon as it arrives, because its sender has dropped the messages before it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ssbroker.protocol import config
from ssbroker.protocol.storage import Key
from ssbroker.testing.simulation import EngineFactory
from tests.protocol.pair import SECOND, Pair, bound, numbers, pair

MINUTE = 60 * SECOND


def fails(both: Pair, body: bytes = b"sold out") -> None:
    """The initiator's application ends the dialog with an error; queued messages are dropped."""
    both.a.send(both.outgoing, body, message_type=config.ERROR)


def test_an_error_overtakes_lost_messages(engine: EngineFactory) -> None:
    both = bound(engine)
    both.a.send(both.outgoing, b"1", b"2", b"3")
    assert numbers(both.a.rows()) == [(1, 0), (2, 0), (3, 0)]
    fails(both)
    both.exchange(MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"sold out"]
    assert both.b.storage.accounts[both.incoming].endpoint.receive_sequence == 5
    assert both.a.waiting(both.outgoing) == []
    assert both.a.refused == both.b.refused == []


def test_an_error_overtakes_unsent_messages(engine: EngineFactory) -> None:
    both = bound(engine, window_fragments=2)
    both.a.send(both.outgoing, *[b"%d" % number for number in range(50)])
    sent = both.a.rows()
    assert len(sent) == 2
    fails(both)
    both.b.take(sent)
    both.exchange(MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"0", b"1", b"sold out"]
    assert both.a.waiting(both.outgoing) == []


@pytest.mark.rule("P17")
def test_an_error_is_sent_immediately_despite_a_full_window(engine: EngineFactory) -> None:
    """Without a retry wait, even if the window is full of fragments or bytes."""
    for window in ({"window_fragments": 2}, {"window_bytes": 2}, {"ahead_bytes": 2, "turn_fragments": 2}):
        both = bound(engine, **window)
        both.a.send(both.outgoing, *[b"%d" % number for number in range(9)])
        assert 0 < len(both.a.rows()) < 9
        fails(both)
        sent = both.a.rows()
        assert numbers(sent) == [(10, 0)]
        both.b.take(sent)
        both.a.take(both.b.rows(2 * SECOND), 2 * SECOND)
        assert both.b.queue(both.incoming) == [b"first", b"sold out"]
        assert both.a.waiting(both.outgoing) == []
        assert both.a.rows(2 * SECOND) == []
        assert both.a.dialogs.next_timeout() is None


@pytest.mark.rule("R8", "P17")
def test_an_error_of_the_target_is_sent_immediately(engine: EngineFactory) -> None:
    """A lost error is sent again, also after its dialog was evicted from memory."""
    both = pair(engine)
    both.a.send(both.outgoing, b"lost", b"dropped")
    both.a.rows()
    fails(both)
    assert numbers(both.a.rows()) == [(2, 0)]
    assert numbers(both.a.rows(20 * SECOND)) == [(2, 0)]
    assert both.a.dialogs.flush(now=31 * SECOND) == 1
    both.b.take(both.a.rows(MINUTE), MINUTE)
    assert both.b.queue(both.incoming) == [b"sold out"]
    both.exchange(2 * MINUTE)
    assert both.a.waiting(both.outgoing) == []


def test_an_error_longer_than_the_window_arrives_complete(engine: EngineFactory) -> None:
    both = pair(engine, max_fragment_bytes=4, window_fragments=4, turn_fragments=2)
    both.a.send(both.outgoing, bytes(100))
    both.a.rows()
    fails(both, bytes(range(50)))
    both.a.rows()
    both.a.dialogs.notify_queued([both.outgoing])
    both.exchange(times=30)
    assert both.b.queue(both.incoming) == [bytes(range(50))]
    assert both.a.waiting(both.outgoing) == []


def test_messages_behind_a_full_window_are_read_once_per_turn(engine: EngineFactory) -> None:
    both = bound(engine, window_fragments=2)
    asked: list[int] = []
    ended = both.a.storage.ending_errors

    def counted(keys: Sequence[Key]) -> dict[Key, int]:
        asked.append(len(keys))
        return ended(keys)

    both.a.storage.ending_errors = counted  # type: ignore[method-assign]
    for number in range(5):
        both.a.send(both.outgoing, b"one more")
        both.a.rows(20 * SECOND + number)
        both.a.rows(20 * SECOND + number)
    assert 3 <= sum(asked) <= 5
    asked.clear()
    both.a.rows(30 * SECOND)
    both.a.rows(40 * SECOND)
    assert asked == []


def test_an_error_may_skip_any_number_of_messages(engine: EngineFactory) -> None:
    """The error's number is further ahead than that of any other message may be."""
    both = bound(engine, window_fragments=1)
    both.a.send(both.outgoing, *[b""] * 20)
    both.a.rows()
    fails(both)
    both.exchange(MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"sold out"]
    assert both.a.waiting(both.outgoing) == []


def test_early_messages_before_the_error_are_not_received(engine: EngineFactory) -> None:
    both = bound(engine)
    both.a.send(both.outgoing, b"1", b"2", b"3")
    both.b.take(both.a.rows()[1:])
    assert len(both.b.storage.accounts[both.incoming].stored) == 2
    fails(both)
    both.exchange(MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"sold out"]
    assert both.b.storage.accounts[both.incoming].stored == {}
    assert both.a.waiting(both.outgoing) == []


def test_in_order_messages_in_the_batch_of_the_error_are_received(engine: EngineFactory) -> None:
    both = bound(engine)
    both.a.send(both.outgoing, b"1", b"2", b"3")
    sent = both.a.rows()
    fails(both)
    both.b.take([*sent[:2], *both.a.rows(MINUTE)])
    assert both.b.queue(both.incoming) == [b"first", b"1", b"2", b"sold out"]


def test_an_error_arrives_in_fragments(engine: EngineFactory) -> None:
    """Each fragment is marked as an error, so the first to arrive shows where the direction continues."""
    both = bound(engine, max_fragment_bytes=4)
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


def test_an_error_is_sent_after_a_restart_of_the_sender(engine: EngineFactory) -> None:
    both = bound(engine)
    both.a.send(both.outgoing, b"1", b"2")
    both.a.rows()
    fails(both)
    both.restart(both.a)
    both.exchange(MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"sold out"]
    assert both.a.waiting(both.outgoing) == []


@pytest.mark.rule("R8")
def test_an_error_is_sent_before_the_target_has_answered(engine: EngineFactory) -> None:
    """The first message was dropped, so the error is the first row to send."""
    for sends in (0, 3):
        both = pair(engine)
        both.a.send(both.outgoing, *[b"lost"] * sends)
        both.a.rows()
        fails(both)
        both.exchange(MINUTE)
        assert both.b.queue(both.incoming) == [b"sold out"]
        assert both.a.waiting(both.outgoing) == []


def test_a_rollback_undoes_the_skipped_numbers(engine: EngineFactory) -> None:
    both = bound(engine)
    both.a.send(both.outgoing, b"1", b"2")
    late = both.a.rows()
    fails(both)
    both.b.dialogs.undo(both.b.arrived(both.a.rows(MINUTE), MINUTE))
    both.b.take(late, MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"1", b"2"]
    both.exchange(3 * MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"1", b"2", b"sold out"]


@pytest.mark.rule("P12")
def test_a_duplicate_error_is_received_once(engine: EngineFactory) -> None:
    both = bound(engine)
    both.a.send(both.outgoing, b"lost")
    both.a.rows()
    fails(both)
    sent = both.a.rows(MINUTE)
    for _ in range(3):
        both.b.take([*sent, *sent], MINUTE)
    assert both.b.queue(both.incoming) == [b"first", b"sold out"]
