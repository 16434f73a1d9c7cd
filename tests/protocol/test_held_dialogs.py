"""P17: dialogs are held while their next hop accepts nothing, and lost fragments are sent again as soon as the loss is known."""

from __future__ import annotations

import pytest

from ssbroker.protocol.storage import Refusal
from ssbroker.testing.simulation import EngineFactory
from tests.protocol.pair import SECOND, established_pair, is_error, numbers


def test_a_held_dialog_sends_nothing_and_others_do(engine: EngineFactory) -> None:
    both = established_pair(engine)
    other = both.begin(conversation=b"the second one..", far_broker_instance=both.b.name)
    both.a.send(both.outgoing, b"held")
    both.a.dialogs.hold([both.outgoing])
    both.a.send(both.outgoing, b"and this too")
    both.a.send(other, b"goes")
    rows = both.a.rows(20 * SECOND)
    assert {row["conversation_id"] for row in rows} == {other[0]}
    both.a.dialogs.release([both.outgoing])
    assert numbers(both.a.rows(20 * SECOND)) == [(1, 0), (2, 0)]


def test_a_held_dialog_has_no_timeout(engine: EngineFactory) -> None:
    """Neither for retries nor for acknowledgements; the engine would be polled in vain."""
    both = established_pair(engine)
    both.a.send(both.outgoing, b"lost")
    both.a.rows(20 * SECOND)
    both.a.dialogs.hold([both.outgoing])
    assert both.a.rows(60 * SECOND) == []
    assert both.a.dialogs.next_timeout() is None
    both.a.dialogs.release([both.outgoing])
    assert numbers(both.a.rows(60 * SECOND)) == [(1, 0)]


def test_acknowledgements_are_held_until_the_release(engine: EngineFactory) -> None:
    both = established_pair(engine)
    both.a.send(both.outgoing, b"order")
    both.b.receive_and_commit(both.a.rows(20 * SECOND), 20 * SECOND)
    both.b.dialogs.hold([both.incoming])
    assert both.b.rows(22 * SECOND) == []
    both.b.dialogs.release([both.incoming])
    (row,) = both.b.rows(22 * SECOND)
    assert row["acked_sequence_number"] == 1


@pytest.mark.rule("P17")
def test_fragments_known_to_be_lost_are_sent_again_immediately(engine: EngineFactory) -> None:
    both = established_pair(engine)
    both.a.send(both.outgoing, b"lost")
    both.a.rows(20 * SECOND)
    assert both.a.rows(20 * SECOND) == []
    both.a.dialogs.retransmit([both.outgoing])
    assert numbers(both.a.rows(20 * SECOND)) == [(1, 0)]


@pytest.mark.rule("P17")
def test_known_losses_do_not_lengthen_the_waits(engine: EngineFactory) -> None:
    """Waits grow without answers; a failed dial is not a missing answer."""
    both = established_pair(engine)
    both.a.send(both.outgoing, b"lost")
    both.a.rows(20 * SECOND)
    for _ in range(5):
        both.a.dialogs.retransmit([both.outgoing])
        assert numbers(both.a.rows(20 * SECOND)) == [(1, 0)]
    assert numbers(both.a.rows(25 * SECOND)) == [(1, 0)], "after 4 s, with a jitter of 12.5 %"
    assert both.a.rows(32 * SECOND) == [], "then after 8 s"


@pytest.mark.rule("P16", "P17")
def test_rows_that_could_not_be_sent_are_due_again(engine: EngineFactory) -> None:
    """With what they acknowledge. No wait gets longer, because nothing was sent."""
    both = established_pair(engine)
    both.a.send(both.outgoing, b"order")
    both.b.receive_and_commit(both.a.rows(20 * SECOND), 20 * SECOND)
    both.b.send(both.incoming, b"answer")
    for _ in range(5):
        table = both.b.dialogs.data_to_send(now=20 * SECOND)
        assert table is not None
        assert (table["acked_sequence_number"].to_pylist(), numbers(table.to_pylist())) == ([1], [(1, 0)])
        both.b.dialogs.take_back(table, now=20 * SECOND)
    assert both.b.dialogs.next_timeout() == 0
    assert numbers(both.b.rows(20 * SECOND)) == [(1, 0)]
    assert numbers(both.b.rows(25 * SECOND)) == [(1, 0)], "after 4 s, with a jitter of 12.5 %"
    assert both.b.rows(32 * SECOND) == [], "then after 8 s"


@pytest.mark.rule("P11", "P16")
def test_acknowledgements_and_errors_that_could_not_be_sent_are_due_again(engine: EngineFactory) -> None:
    both = established_pair(engine, refuses=lambda kind, _: Refusal(-8498, "no") if kind == "Refused" else None)
    both.a.send(both.outgoing, b"order")
    other = both.begin(conversation=b"the second one..", far_broker_instance=both.b.name)
    both.a.send(other, b"order", message_type="Refused")
    both.b.receive_and_commit(both.a.rows(20 * SECOND), 20 * SECOND)
    table = both.b.dialogs.data_to_send(now=22 * SECOND)
    assert table is not None
    assert [is_error(row) for row in table.to_pylist()] == [False, True]
    both.b.dialogs.take_back(table, now=22 * SECOND)
    assert both.b.rows(22 * SECOND) == table.to_pylist()
    assert both.b.rows(22 * SECOND) == []


@pytest.mark.rule("P32")
def test_a_forgotten_dialog_is_not_read_from_the_work_table(engine: EngineFactory) -> None:
    """Its object is outdated: fragments that it considers unsent have been acknowledged since."""
    both = established_pair(engine)
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
