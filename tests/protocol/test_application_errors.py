"""An application's error is received as soon as it arrives, because its sender has dropped the messages before it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ssbroker import _well_known
from ssbroker.protocol.storage import EndpointKey
from ssbroker.testing.simulation import EngineFactory
from tests.protocol.pair import SECOND, Pair, established_pair, numbers, pair

MINUTE = 60 * SECOND


def fails(engines: Pair, body: bytes = b"sold out") -> None:
    """Ends the dialog with an error at the initiator, which drops queued messages."""
    engines.a.send(engines.outgoing, body, message_type=_well_known.ERROR)


def test_an_error_overtakes_lost_messages(engine: EngineFactory) -> None:
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"1", b"2", b"3")
    assert numbers(engines.a.rows()) == [(1, 0), (2, 0), (3, 0)]
    fails(engines)
    engines.exchange(MINUTE)
    assert engines.b.queue(engines.incoming) == [b"first", b"sold out"]
    assert engines.b.storage.accounts[engines.incoming].endpoint.receive_sequence == 5
    assert engines.a.waiting(engines.outgoing) == []
    assert engines.a.rejection_events == engines.b.rejection_events == []


def test_an_error_overtakes_unsent_messages(engine: EngineFactory) -> None:
    engines = established_pair(engine, window_fragments=2)
    engines.a.send(engines.outgoing, *[b"%d" % number for number in range(50)])
    sent = engines.a.rows()
    assert len(sent) == 2
    fails(engines)
    engines.b.receive_and_commit(sent)
    engines.exchange(MINUTE)
    assert engines.b.queue(engines.incoming) == [b"first", b"0", b"1", b"sold out"]
    assert engines.a.waiting(engines.outgoing) == []


@pytest.mark.rule("P17")
def test_an_error_is_sent_immediately_despite_a_full_window(engine: EngineFactory) -> None:
    """Without a retry wait, even if the window is full of fragments or bytes."""
    for window in ({"window_fragments": 2}, {"window_bytes": 2}, {"max_ahead_bytes": 2, "fragments_per_turn": 2}):
        engines = established_pair(engine, **window)
        engines.a.send(engines.outgoing, *[b"%d" % number for number in range(9)])
        assert 0 < len(engines.a.rows()) < 9
        fails(engines)
        sent = engines.a.rows()
        assert numbers(sent) == [(10, 0)]
        engines.b.receive_and_commit(sent)
        engines.a.receive_and_commit(engines.b.rows(2 * SECOND), 2 * SECOND)
        assert engines.b.queue(engines.incoming) == [b"first", b"sold out"]
        assert engines.a.waiting(engines.outgoing) == []
        assert engines.a.rows(2 * SECOND) == []
        assert engines.a.dialogs.next_timeout() is None


@pytest.mark.rule("R8", "P17")
def test_an_error_of_the_target_is_sent_immediately(engine: EngineFactory) -> None:
    """A lost error is sent again, also after its dialog was evicted from memory."""
    engines = pair(engine)
    engines.a.send(engines.outgoing, b"lost", b"dropped")
    engines.a.rows()
    fails(engines)
    assert numbers(engines.a.rows()) == [(2, 0)]
    assert numbers(engines.a.rows(20 * SECOND)) == [(2, 0)]
    assert engines.a.dialogs.flush(now=31 * SECOND) == 1
    engines.b.receive_and_commit(engines.a.rows(MINUTE), MINUTE)
    assert engines.b.queue(engines.incoming) == [b"sold out"]
    engines.exchange(2 * MINUTE)
    assert engines.a.waiting(engines.outgoing) == []


def test_an_error_longer_than_the_window_arrives_complete(engine: EngineFactory) -> None:
    engines = pair(engine, max_fragment_bytes=4, window_fragments=4, fragments_per_turn=2)
    engines.a.send(engines.outgoing, bytes(100))
    engines.a.rows()
    fails(engines, bytes(range(50)))
    engines.a.rows()
    engines.a.dialogs.notify_queued([engines.outgoing])
    engines.exchange(times=30)
    assert engines.b.queue(engines.incoming) == [bytes(range(50))]
    assert engines.a.waiting(engines.outgoing) == []


def test_messages_behind_a_full_window_are_read_once_per_turn(engine: EngineFactory) -> None:
    engines = established_pair(engine, window_fragments=2)
    read_keys: list[int] = []
    ended = engines.a.storage.ending_errors

    def counted(keys: Sequence[EndpointKey]) -> dict[EndpointKey, int]:
        read_keys.append(len(keys))
        return ended(keys)

    engines.a.storage.ending_errors = counted  # type: ignore[method-assign]
    for number in range(5):
        engines.a.send(engines.outgoing, b"one more")
        engines.a.rows(20 * SECOND + number)
        engines.a.rows(20 * SECOND + number)
    assert 3 <= sum(read_keys) <= 5
    read_keys.clear()
    engines.a.rows(30 * SECOND)
    engines.a.rows(40 * SECOND)
    assert read_keys == []


def test_an_error_may_skip_any_number_of_messages(engine: EngineFactory) -> None:
    """The error's number is further ahead than that of any other message may be."""
    engines = established_pair(engine, window_fragments=1)
    engines.a.send(engines.outgoing, *[b""] * 20)
    engines.a.rows()
    fails(engines)
    engines.exchange(MINUTE)
    assert engines.b.queue(engines.incoming) == [b"first", b"sold out"]
    assert engines.a.waiting(engines.outgoing) == []


def test_early_messages_before_the_error_are_not_received(engine: EngineFactory) -> None:
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"1", b"2", b"3")
    engines.b.receive_and_commit(engines.a.rows()[1:])
    assert len(engines.b.storage.accounts[engines.incoming].stored) == 2
    fails(engines)
    engines.exchange(MINUTE)
    assert engines.b.queue(engines.incoming) == [b"first", b"sold out"]
    assert engines.b.storage.accounts[engines.incoming].stored == {}
    assert engines.a.waiting(engines.outgoing) == []


def test_in_order_messages_in_the_batch_of_the_error_are_received(engine: EngineFactory) -> None:
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"1", b"2", b"3")
    sent = engines.a.rows()
    fails(engines)
    engines.b.receive_and_commit([*sent[:2], *engines.a.rows(MINUTE)])
    assert engines.b.queue(engines.incoming) == [b"first", b"1", b"2", b"sold out"]


def test_an_error_arrives_in_fragments(engine: EngineFactory) -> None:
    """Each fragment is marked as an error, so the first to arrive shows where the direction continues."""
    engines = established_pair(engine, max_fragment_bytes=4)
    engines.a.send(engines.outgoing, b"lost")
    engines.a.rows()
    fails(engines, b"0123456789ab")
    sent = engines.a.rows(MINUTE)
    assert numbers(sent) == [(2, 0), (2, 1), (2, 2)]
    engines.b.receive_and_commit([sent[2], sent[0]])
    assert engines.b.queue(engines.incoming) == [b"first"]
    engines.restart(engines.b)
    engines.exchange(2 * MINUTE)
    assert engines.b.queue(engines.incoming) == [b"first", b"0123456789ab"]
    assert engines.a.waiting(engines.outgoing) == []


def test_an_error_is_sent_after_a_restart_of_the_sender(engine: EngineFactory) -> None:
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"1", b"2")
    engines.a.rows()
    fails(engines)
    engines.restart(engines.a)
    engines.exchange(MINUTE)
    assert engines.b.queue(engines.incoming) == [b"first", b"sold out"]
    assert engines.a.waiting(engines.outgoing) == []


@pytest.mark.rule("R8")
def test_an_error_is_sent_before_the_target_has_answered(engine: EngineFactory) -> None:
    """The first message was dropped, so the error is the first row to send."""
    for sends in (0, 3):
        engines = pair(engine)
        engines.a.send(engines.outgoing, *[b"lost"] * sends)
        engines.a.rows()
        fails(engines)
        engines.exchange(MINUTE)
        assert engines.b.queue(engines.incoming) == [b"sold out"]
        assert engines.a.waiting(engines.outgoing) == []


def test_a_rollback_undoes_the_skipped_numbers(engine: EngineFactory) -> None:
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"1", b"2")
    late = engines.a.rows()
    fails(engines)
    engines.b.dialogs.undo(engines.b.receive(engines.a.rows(MINUTE), MINUTE))
    engines.b.receive_and_commit(late, MINUTE)
    assert engines.b.queue(engines.incoming) == [b"first", b"1", b"2"]
    engines.exchange(3 * MINUTE)
    assert engines.b.queue(engines.incoming) == [b"first", b"1", b"2", b"sold out"]


@pytest.mark.rule("P12")
def test_a_duplicate_error_is_received_once(engine: EngineFactory) -> None:
    engines = established_pair(engine)
    engines.a.send(engines.outgoing, b"lost")
    engines.a.rows()
    fails(engines)
    sent = engines.a.rows(MINUTE)
    for _ in range(3):
        engines.b.receive_and_commit([*sent, *sent], MINUTE)
    assert engines.b.queue(engines.incoming) == [b"first", b"sold out"]
