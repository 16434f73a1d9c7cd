"""P13: a sender that is restarted with another fragment size does not contradict the fragments that it sent before."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ssbroker.testing.simulation import EngineFactory
from tests.protocol.pair import SECOND, Pair, bound, numbers


def restart(both: Pair, length: int) -> None:
    """Restarts the sender with another fragment size."""
    both.settings = replace(both.settings, max_fragment_bytes=length)
    both.restart(both.a)


@pytest.mark.rule("P13", "P16")
@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("length", [1, 7, 11, 1000])
def test_a_partly_sent_message_arrives_complete_and_once(engine: EngineFactory, length: int, *, secured: bool) -> None:
    """Whatever fragments the peer has stored, and however often the size changes."""
    chance = Random(length)
    for seed in range(10):
        dialog = {"session_key": bytes(32)} if secured else {}
        both = bound(engine, max_fragment_bytes=10, turn_fragments=4, window_fragments=16, dialog=dialog)
        bodies = [chance.randbytes(chance.choice([0, 5, 45, 95, 300])) for _ in range(6)]
        both.a.send(both.outgoing, *bodies)
        now = 20 * SECOND
        for changed in (length, 3, 10):
            both.b.take([row for row in both.a.rows(now) if chance.random() < 0.5], now)
            restart(both, changed)
            both.b.take([row for row in both.a.rows(now) if chance.random() < 0.5], now)
            now += 5 * SECOND
        both.a.send(both.outgoing, b"x" * 40)
        both.exchange(now, times=300)
        assert both.b.queue(both.incoming)[1:] == [*bodies, b"x" * 40], seed
        assert both.a.waiting(both.outgoing) == []
        assert both.b.refused == []


def test_a_conversation_without_messages_in_transit_uses_the_new_size(engine: EngineFactory) -> None:
    """New conversations too, while others keep the old size."""
    both = bound(engine, max_fragment_bytes=10)
    late = both.begin(conversation=b"the second one..", far_broker_instance=both.b.name)
    restart(both, 20)
    both.a.send(both.outgoing, bytes(40))
    assert numbers(both.a.rows(20 * SECOND)) == [(1, 0), (1, 1)]
    restart(both, 40)
    both.a.send(late, bytes(40))
    rows = both.a.rows(30 * SECOND)
    assert {(row["conversation_id"], row["fragment_count"]) for row in rows} == {(both.outgoing[0], 2), (late[0], 1)}
    both.exchange(40 * SECOND)
    assert both.a.waiting(both.outgoing) == both.a.waiting(late) == []
    restart(both, 10)
    both.a.send(both.outgoing, bytes(40))
    assert len(both.a.rows(60 * SECOND)) == 4
