"""P13: a sender that is restarted with another fragment size does not contradict the fragments that it sent before."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ssbroker.testing.simulation import EngineFactory
from tests.protocol.pair import SECOND, Pair, established_pair, numbers


def restart(engines: Pair, length: int) -> None:
    """Restarts the sender with another fragment size."""
    engines.settings = replace(engines.settings, max_fragment_bytes=length)
    engines.restart(engines.a)


@pytest.mark.rule("P13", "P16")
@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("length", [1, 7, 11, 1000])
def test_a_partly_sent_message_arrives_complete_and_once(engine: EngineFactory, length: int, *, secured: bool) -> None:
    """Whatever fragments the peer has stored, and however often the size changes."""
    rng = Random(length)
    for seed in range(10):
        dialog = {"session_key": bytes(32)} if secured else {}
        engines = established_pair(
            engine, max_fragment_bytes=10, fragments_per_turn=4, window_fragments=16, dialog=dialog
        )
        bodies = [rng.randbytes(rng.choice([0, 5, 45, 95, 300])) for _ in range(6)]
        engines.a.send(engines.outgoing, *bodies)
        now = 20 * SECOND
        for changed in (length, 3, 10):
            engines.b.receive_and_commit([row for row in engines.a.rows(now) if rng.random() < 0.5], now)
            restart(engines, changed)
            engines.b.receive_and_commit([row for row in engines.a.rows(now) if rng.random() < 0.5], now)
            now += 5 * SECOND
        engines.a.send(engines.outgoing, b"x" * 40)
        engines.exchange(now, times=300)
        assert engines.b.queue(engines.incoming)[1:] == [*bodies, b"x" * 40], seed
        assert engines.a.waiting(engines.outgoing) == []
        assert engines.b.rejection_events == []


def test_a_conversation_without_messages_in_transit_uses_the_new_size(engine: EngineFactory) -> None:
    """New conversations too, while others keep the old size."""
    engines = established_pair(engine, max_fragment_bytes=10)
    late = engines.begin(conversation=b"the second one..", far_broker_instance=engines.b.name)
    restart(engines, 20)
    engines.a.send(engines.outgoing, bytes(40))
    assert numbers(engines.a.rows(20 * SECOND)) == [(1, 0), (1, 1)]
    restart(engines, 40)
    engines.a.send(late, bytes(40))
    rows = engines.a.rows(30 * SECOND)
    assert {(row["conversation_id"], row["fragment_count"]) for row in rows} == {(engines.outgoing[0], 2), (late[0], 1)}
    engines.exchange(40 * SECOND)
    assert engines.a.waiting(engines.outgoing) == engines.a.waiting(late) == []
    restart(engines, 10)
    engines.a.send(engines.outgoing, bytes(40))
    assert len(engines.a.rows(60 * SECOND)) == 4
