"""P17: dialogs are held while their next hop accepts nothing, and lost fragments are sent again as soon as the loss is known."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from ssbroker.protocol.storage import DialogEndpoint, Refusal
from ssbroker.testing.simulation import EngineFactory
from tests.protocol.pair import SECOND, B, Pair, established_pair, is_error, numbers

BANK = "TCP://bank:4022"


@dataclass
class Holding:
    """An established pair whose initiator and target send over a next hop that can be closed."""

    pair: Pair
    closed_hops: set[str]


@pytest.fixture
def holding(engine: EngineFactory) -> Holding:
    closed_hops: set[str] = set()
    both = established_pair(partial(engine, closed_hops=closed_hops))
    both.a.dialogs.assign(both.outgoing, BANK)
    both.b.dialogs.assign(both.incoming, BANK)
    return Holding(both, closed_hops)


def test_a_held_dialog_sends_nothing_and_others_do(holding: Holding) -> None:
    both = holding.pair
    other = both.begin(conversation=b"the second one..", far_broker_instance=both.b.name)
    both.a.send(both.outgoing, b"held")
    holding.closed_hops.add(BANK)
    both.a.send(both.outgoing, b"and this too")
    both.a.send(other, b"goes")
    rows = both.a.rows(20 * SECOND)
    assert {row["conversation_id"] for row in rows} == {other[0]}
    holding.closed_hops.clear()
    assert numbers(both.a.rows(20 * SECOND)) == [(1, 0), (2, 0)]


def test_a_held_dialog_has_no_timeout(holding: Holding) -> None:
    """Neither for retries nor for acknowledgements; the engine would be polled in vain."""
    both = holding.pair
    both.a.send(both.outgoing, b"lost")
    both.a.rows(20 * SECOND)
    holding.closed_hops.add(BANK)
    assert both.a.rows(60 * SECOND) == []
    assert both.a.dialogs.next_timeout() is None
    holding.closed_hops.clear()
    assert both.a.dialogs.next_timeout() == 0
    assert numbers(both.a.rows(60 * SECOND)) == [(1, 0)]


@pytest.mark.parametrize("is_new_message_due", [False, True])
def test_acknowledgements_are_held_until_the_next_hop_opens(holding: Holding, *, is_new_message_due: bool) -> None:
    both = holding.pair
    both.a.send(both.outgoing, b"order")
    both.b.receive_and_commit(both.a.rows(20 * SECOND), 20 * SECOND)
    holding.closed_hops.add(BANK)
    assert both.b.rows(22 * SECOND) == []
    assert both.b.dialogs.next_timeout() is None
    if is_new_message_due:
        both.b.send(both.incoming, b"answer")
    holding.closed_hops.clear()
    (row,) = both.b.rows(22 * SECOND)
    assert row["acked_sequence_number"] == 1
    assert both.b.rows(24 * SECOND) == []


def test_a_held_dialog_sends_when_it_gets_another_next_hop(holding: Holding) -> None:
    both = holding.pair
    both.a.send(both.outgoing, b"order")
    both.b.receive_and_commit(both.a.rows(20 * SECOND), 20 * SECOND)
    holding.closed_hops.add(BANK)
    both.a.send(both.outgoing, b"held")
    assert both.a.rows(20 * SECOND) == both.b.rows(22 * SECOND) == []
    both.a.dialogs.assign(both.outgoing, "TCP://mirror:4022")
    both.b.dialogs.assign(both.incoming, None)
    assert numbers(both.a.rows(20 * SECOND)) == [(2, 0)]
    assert [row["acked_sequence_number"] for row in both.b.rows(22 * SECOND)] == [1]


def test_a_held_dialog_stays_in_memory_while_it_has_something_to_send(holding: Holding) -> None:
    both = holding.pair
    holding.closed_hops.add(BANK)
    both.a.send(both.outgoing, b"held")
    assert both.a.dialogs.flush(now=60 * SECOND) == 0
    assert both.b.dialogs.flush(now=60 * SECOND) == 1


@pytest.mark.rule("P18", "P32")
def test_a_held_acknowledgement_leaves_memory_after_five_minutes(holding: Holding) -> None:
    """A peer to which no route leads could otherwise fill the memory; its next duplicate is acknowledged."""
    both = holding.pair
    both.a.send(both.outgoing, b"order")
    rows = both.a.rows(20 * SECOND)
    holding.closed_hops.add(BANK)
    both.b.receive_and_commit(rows, 20 * SECOND)
    assert both.b.rows(22 * SECOND) == []
    assert both.b.dialogs.flush(now=310 * SECOND) == 0
    assert both.b.dialogs.flush(now=330 * SECOND) == 1
    assert not both.b.dialogs.is_loaded(both.incoming)
    assert both.b.rows(331 * SECOND) == []
    assert not both.b.dialogs.is_loaded(both.incoming)
    both.b.receive_and_commit(rows, 340 * SECOND)
    holding.closed_hops.clear()
    assert [row["acked_sequence_number"] for row in both.b.rows(340 * SECOND)] == [1]


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_held_dialog_stays_in_memory_while_its_messages_are_reported(holding: Holding, *, is_loaded: bool) -> None:
    """Delivery reports waiting messages again at the intervals of P17."""
    both = holding.pair
    if not is_loaded:
        both.a.dialogs.flush(now=50 * SECOND)
    holding.closed_hops.add(BANK)
    both.a.send(both.outgoing, b"held")
    for minute in range(1, 12):
        assert both.a.rows(minute * 60 * SECOND) == []
        both.a.dialogs.notify_queued([both.outgoing])
        assert both.a.dialogs.flush(now=minute * 60 * SECOND) == 0
    holding.closed_hops.clear()
    assert numbers(both.a.rows(660 * SECOND)) == [(1, 0)]


def test_closing_and_opening_a_next_hop_schedules_nothing(holding: Holding) -> None:
    """Otherwise, an outbox that is often full would fill the memory."""
    both = holding.pair
    both.a.send(both.outgoing, b"in flight")
    both.a.rows(20 * SECOND)
    timers = both.a.dialogs._cache._timers
    before = len(timers)
    for _ in range(10):
        holding.closed_hops.add(BANK)
        assert both.a.rows(20 * SECOND) == []
        holding.closed_hops.clear()
        assert both.a.rows(20 * SECOND) == []
    assert len(timers) == before


def test_next_hops_have_their_turns_in_rotation(engine: EngineFactory) -> None:
    """A next hop with many dialogs does not delay others; a higher priority still comes first."""
    both = established_pair(engine, honor_priority=True)
    dialogs = [
        both.begin(conversation=b"%16d" % number, far_broker_instance=both.b.name, priority=9 if number == 5 else 5)
        for number in range(6)
    ]
    for number, dialog in enumerate(dialogs):
        both.a.dialogs.assign(dialog, BANK if number < 4 else "TCP://depot:4022")
        both.a.send(dialog, b"order")
    sent = [int(row["conversation_id"]) for _ in range(6) for row in table_rows(both, max_rows=1)]
    assert sent == [5, 0, 4, 1, 2, 3]


def table_rows(both: Pair, *, max_rows: int) -> list[dict[str, Any]]:
    """Returns the rows that the initiator sends in one call."""
    table = both.a.dialogs.data_to_send(now=20 * SECOND, max_rows=max_rows)
    return [] if table is None else table.to_pylist()


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
        both.b.dialogs.return_unsent(table, now=20 * SECOND)
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
    both.b.dialogs.return_unsent(table, now=22 * SECOND)
    assert both.b.rows(22 * SECOND) == table.to_pylist()
    assert both.b.rows(22 * SECOND) == []


@pytest.mark.rule("P16", "P17")
def test_an_error_makes_the_rows_that_were_read_before_it_due_again(
    engine: EngineFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instead of after the wait of P17: they were not sent."""
    both = established_pair(engine)
    both.a.send(both.outgoing, b"order")
    both.b.receive_and_commit(both.a.rows(20 * SECOND), 20 * SECOND)
    both.b.send(both.incoming, b"answer")
    for number in range(100):  # more than the first batch contains
        order = DialogEndpoint(
            conversation_id=b"%16d" % number,
            is_initiator=True,
            service_name="Bank",
            far_service_name="Shop",
            broker_instance=B,
        )
        both.b.send(both.b.storage.begin(order), b"order")
    read, calls = both.b.storage.outgoing, 0

    def fail_once(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError("no disk")
        return read(*arguments)

    monkeypatch.setattr(both.b.storage, "outgoing", fail_once)
    with pytest.raises(OSError, match="no disk"):
        both.b.rows(20 * SECOND)
    rows = both.b.rows(20 * SECOND)
    assert len({row["conversation_id"] for row in rows}) == 101
    assert [row["acked_sequence_number"] for row in rows if row["acked_sequence_number"]] == [1]


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
