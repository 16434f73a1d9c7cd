"""P11, P12, P14, P16, P18, P23, P26: which rows are received, stored, acknowledged and rolled back."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence

import pytest

from ssbroker import _well_known
from ssbroker.exceptions import OptionError, ProtocolError
from ssbroker.protocol.envelope import ENVELOPE
from ssbroker.protocol.storage import DialogEndpoint, Refusal
from ssbroker.testing.simulation import EngineFactory
from tests.protocol.pair import SECOND, B, established_pair, is_error, numbers, pair


def acknowledged(rows: list[dict[str, object]]) -> list[object]:
    return [row["acked_sequence_number"] for row in rows if row["acked_ahead"] is not None]


@pytest.mark.rule("P11", "P12")
def test_messages_are_received_once_and_in_order(engine: EngineFactory) -> None:
    """From 0, each direction by itself, in whatever order they arrive."""
    both = established_pair(engine)
    both.a.send(both.outgoing, b"1", b"2", b"3")
    both.b.send(both.incoming, b"-1", b"-2")
    there, back = both.a.rows(20 * SECOND), both.b.rows(20 * SECOND)
    assert numbers(there) == [(1, 0), (2, 0), (3, 0)]
    for row in (there[2], there[1], there[2], there[0], there[0]):
        both.b.receive_and_commit([row], 20 * SECOND)
    both.a.receive_and_commit([back[1], back[1], back[0]], 20 * SECOND)
    assert both.b.queue(both.incoming) == [b"first", b"1", b"2", b"3"]
    assert both.a.queue(both.outgoing) == [b"first back", b"-1", b"-2"]


@pytest.mark.rule("P12")
def test_sequence_numbers_start_at_0(engine: EngineFactory) -> None:
    both = pair(engine)
    both.a.send(both.outgoing, b"one")
    assert numbers(both.a.rows()) == [(0, 0)]


@pytest.mark.rule("P14")
def test_early_and_incomplete_messages_are_stored_but_not_received(engine: EngineFactory) -> None:
    """It is durable: after a restart it need not be sent again."""
    both = established_pair(engine, max_fragment_bytes=4)
    both.a.send(both.outgoing, b"in two", b"next")
    rows = {numbers([row])[0]: row for row in both.a.rows(20 * SECOND)}
    both.b.receive_and_commit([rows[2, 0], rows[1, 1]], 20 * SECOND)
    assert both.b.queue(both.incoming) == [b"first"]
    assert sorted(both.b.storage.accounts[both.incoming].stored) == [(1, 1), (2, 0)]
    both.restart(both.b)
    both.b.receive_and_commit([rows[1, 0]], 21 * SECOND)
    assert both.b.queue(both.incoming) == [b"first", b"in two", b"next"]
    assert both.b.storage.accounts[both.incoming].stored == {}


@pytest.mark.rule("P16")
def test_nothing_is_acknowledged_before_the_commit(engine: EngineFactory) -> None:
    """Neither a message, nor a fragment, nor a duplicate of an uncommitted one."""
    both = pair(engine)
    both.a.send(both.outgoing, b"one")
    rows = both.a.rows()
    effects = both.b.receive(rows)
    assert both.b.rows(5 * SECOND) == []
    both.b.storage.commit(effects)
    assert both.b.rows(5 * SECOND) == []
    both.b.dialogs.confirm(effects, now=5 * SECOND)
    assert acknowledged(both.b.rows(5 * SECOND)) == [0]


def test_rolled_back_rows_have_not_arrived(engine: EngineFactory) -> None:
    """The same rows are received again as if for the first time; rows stored before remain."""
    both = established_pair(engine, max_fragment_bytes=4)
    both.a.send(both.outgoing, b"in three one")
    rows = both.a.rows(20 * SECOND)
    both.b.receive_and_commit(rows[:1], 20 * SECOND)
    for _ in range(2):
        effects = both.b.receive(rows[1:], 21 * SECOND)
        assert effects.messages.num_rows == 1
        both.b.dialogs.undo(effects)
        assert acknowledged(both.b.rows(30 * SECOND)) in ([None], [0], [])
    both.b.receive_and_commit(rows[1:], 31 * SECOND)
    assert both.b.queue(both.incoming) == [b"first", b"in three one"]


def test_a_conversation_whose_start_was_rolled_back_can_start_again(engine: EngineFactory) -> None:
    both = pair(engine)
    both.a.send(both.outgoing, b"one")
    rows = both.a.rows()
    both.b.dialogs.undo(both.b.receive(rows))
    assert both.b.storage.accounts == {}
    assert both.b.rows(5 * SECOND) == []
    both.b.receive_and_commit(rows)
    assert both.b.queue(both.incoming) == [b"one"]


def test_one_batch_at_a_time(engine: EngineFactory) -> None:
    """An invalid call raises and changes nothing."""
    both = pair(engine)
    both.a.send(both.outgoing, b"one")
    rows = both.a.rows()
    effects = both.b.receive(rows)
    with pytest.raises(ProtocolError, match="confirm or undo the changes"):
        both.b.receive(rows)
    both.b.storage.commit(effects)
    both.b.dialogs.confirm(effects, now=0)
    for settle in (both.b.dialogs.undo, lambda again: both.b.dialogs.confirm(again, now=0)):
        with pytest.raises(ProtocolError, match="already confirmed or undone"):
            settle(effects)
    with pytest.raises(OptionError, match="expected the columns"):
        both.b.dialogs.receive(ENVELOPE.empty_table().drop(["priority"]), now=0)
    assert both.b.queue(both.incoming) == [b"one"]


@pytest.mark.rule("P18")
def test_a_duplicate_is_acknowledged_immediately_and_not_received(engine: EngineFactory) -> None:
    """Also after a restart, and while the peer waits for the rest."""
    both = established_pair(engine, max_fragment_bytes=4)
    both.a.send(both.outgoing, b"one", b"in two")
    rows = both.a.rows(20 * SECOND)
    both.b.receive_and_commit(rows[:2], 20 * SECOND)
    assert acknowledged(both.b.rows(22 * SECOND)) == [1]
    for restart in (False, True):
        if restart:
            both.restart(both.b)
        for row in rows[:2]:
            effects = both.b.receive_and_commit([row], 23 * SECOND)
            assert effects.is_empty
            assert acknowledged(both.b.rows(23 * SECOND)) == [1]
    assert both.b.queue(both.incoming) == [b"first", b"one"]


@pytest.mark.rule("P18")
def test_duplicates_are_reported_to_the_storage(engine: EngineFactory) -> None:
    """The storage keeps a closed endpoint while duplicates arrive."""
    both = established_pair(engine)
    both.a.send(both.outgoing, b"one")
    rows = both.a.rows(20 * SECOND)
    assert both.b.receive_and_commit(rows, 20 * SECOND).with_duplicates == set()
    assert both.b.receive_and_commit(rows, 21 * SECOND).with_duplicates == {both.incoming}
    both.restart(both.b)
    assert both.b.receive_and_commit(rows, 22 * SECOND).with_duplicates == {both.incoming}


@pytest.mark.rule("P23", "P21")
def test_only_a_damaged_fragment_is_sent_again(engine: EngineFactory) -> None:
    """It is reported and not acknowledged."""
    both = established_pair(engine, max_fragment_bytes=4)
    both.a.send(both.outgoing, b"abcdefghijkl")
    rows = both.a.rows(20 * SECOND)
    both.b.receive_and_commit([{**rows[0], "message_body": b"abcX"}, rows[1], rows[2]], 20 * SECOND)
    assert both.b.queue(both.incoming) == [b"first"]
    (event,) = both.b.rejection_events
    assert (event.NAME, event.message_sequence_number, event.fragment_number) == ("Broker:Corrupted Message", 1, 0)
    both.a.receive_and_commit(both.b.rows(22 * SECOND), 22 * SECOND)
    again = both.a.rows(30 * SECOND)
    assert numbers(again) == [(1, 0)]
    both.b.receive_and_commit(again, 30 * SECOND)
    assert both.b.queue(both.incoming)[-1] == b"abcdefghijkl"


@pytest.mark.rule("P21")
def test_a_message_without_a_signature_is_dropped(engine: EngineFactory) -> None:
    """A message in one fragment and one in two; it is reported and not acknowledged, like a message with a wrong signature."""
    for body in (b"abcd", b"abcdefgh"):
        both = established_pair(engine, max_fragment_bytes=4)
        both.a.send(both.outgoing, body)
        rows = both.a.rows(20 * SECOND)
        missing = {"message_signature": None, "fragment_signature": None}
        both.b.receive_and_commit([with_new_header_digest({**row, **missing}) for row in rows], 20 * SECOND)
        assert both.b.queue(both.incoming) == [b"first"]
        assert [(event.NAME, event.error) for event in both.b.rejection_events] == [
            ("Broker:Corrupted Message", 11230)
        ] * len(rows)
        both.exchange(30 * SECOND)
        assert both.b.queue(both.incoming) == [b"first", body]


@pytest.mark.rule("P23")
def test_a_message_with_a_wrong_digest_is_dropped_completely(engine: EngineFactory) -> None:
    """Its fragments are valid, the message is not: all of it is sent again, even stored and acknowledged fragments."""
    both = established_pair(engine, max_fragment_bytes=4)
    other = pair(engine, max_fragment_bytes=4)
    for each in (both, other):
        each.a.send(each.outgoing, b"abcdefgh")
    valid_row = both.a.rows(20 * SECOND)
    other.a.storage.accounts[other.outgoing].outgoing.clear()
    forged = established_pair(engine, max_fragment_bytes=4)
    forged.a.send(forged.outgoing, b"abcdXXXX")
    altered_row = forged.a.rows(20 * SECOND)
    mixed = with_new_header_digest({**altered_row[1], "message_signature": valid_row[0]["message_signature"]})
    both.b.receive_and_commit([valid_row[0]], 20 * SECOND)
    both.a.receive_and_commit(both.b.rows(22 * SECOND), 22 * SECOND)
    both.b.receive_and_commit([mixed], 22 * SECOND)
    assert both.b.storage.accounts[both.incoming].stored == {}
    assert [event.NAME for event in both.b.rejection_events].count("Broker:Corrupted Message") >= 1
    both.exchange(30 * SECOND, times=20)
    assert both.b.queue(both.incoming) == [b"first", b"abcdefgh"]


def with_new_header_digest(row: dict[str, object]) -> dict[str, object]:
    """Returns a row of an unsecured conversation with a recomputed header digest."""
    import hashlib  # noqa: PLC0415 - for this one only

    import pyarrow as pa  # noqa: PLC0415 - the same

    from ssbroker.protocol.envelope import table_to_rows  # noqa: PLC0415 - the same

    (made,) = table_to_rows(pa.Table.from_pylist([row], schema=ENVELOPE))
    return {**row, "header_signature": hashlib.md5(made.signature_input(made.header), usedforsecurity=False).digest()}


@pytest.mark.rule("P26")
def test_memory_is_used_only_for_arrived_data(engine: EngineFactory) -> None:
    """A sequence number far ahead or a large fragment count uses no memory."""
    both = established_pair(engine, window_fragments=16, max_pending_bytes=1 << 16)
    both.a.send(both.outgoing, b"one")
    (row,) = both.a.rows(20 * SECOND)
    far = [
        with_new_header_digest({**row, "message_sequence_number": number}) for number in (1 + 4096, 10**6, 2**63 - 2)
    ]
    effects = both.b.receive_and_commit(far, 20 * SECOND)
    assert effects.stored.num_rows == 0
    flood = [
        with_new_header_digest(
            {**row, "message_sequence_number": 2, "fragment_number": number, "fragment_count": 2**20}
        )
        for number in range(1000)
    ]
    both.b.receive_and_commit(flood, 20 * SECOND)
    assert len(both.b.storage.accounts[both.incoming].stored) < 700
    assert both.b.rejection_events != []
    both.b.receive_and_commit([row], 20 * SECOND)
    assert both.b.queue(both.incoming) == [b"first", b"one"]


@pytest.mark.rule("P26")
def test_the_last_fragment_uses_no_more_memory_than_the_first(engine: EngineFactory) -> None:
    both = established_pair(engine)
    both.a.send(both.outgoing, b"one")
    (row,) = both.a.rows(20 * SECOND)
    last = {"fragment_number": 2**20 - 1, "fragment_count": 2**20}
    flood = [with_new_header_digest({**row, "message_sequence_number": 2 + number, **last}) for number in range(500)]
    tracemalloc.start()
    try:
        both.b.receive_and_commit(flood, 20 * SECOND)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(both.b.storage.accounts[both.incoming].stored) == 500
    assert taken < 500 * 8192


@pytest.mark.rule("P11")
def test_rows_without_a_sequence_number_are_handled_on_arrival(engine: EngineFactory) -> None:
    """An error of the broker precedes waiting messages and has no sequence number."""
    both = established_pair(
        engine, refuses=lambda kind, _: Refusal(-8428, "there is no such type") if kind == "Odd" else None
    )
    both.a.send(both.outgoing, b"odd", message_type="Odd")
    both.b.send(both.incoming, b"on its way")
    late = both.b.rows(20 * SECOND)
    both.b.receive_and_commit(both.a.rows(20 * SECOND), 20 * SECOND)
    (error,) = [row for row in both.b.rows(20 * SECOND) if is_error(row)]
    both.a.receive_and_commit([error], 21 * SECOND)
    assert b"<Code>-8428</Code>" in (both.a.storage.accounts[both.outgoing].error or b"")
    assert both.a.storage.waiting() == []
    both.a.receive_and_commit(late, 22 * SECOND)
    assert both.a.queue(both.outgoing) == [b"first back", b"on its way"]


@pytest.mark.rule("P11")
def test_a_refused_message_is_answered_with_an_error(engine: EngineFactory) -> None:
    """Messages before it are received; if the error is lost, the retry causes another."""
    both = established_pair(
        engine, refuses=lambda kind, _: Refusal(-8428, "there is no such type") if kind == "Odd" else None
    )
    both.a.send(both.outgoing, b"fine")
    both.a.send(both.outgoing, b"odd", message_type="Odd")
    both.a.send(both.outgoing, b"after it")
    rows = both.a.rows(20 * SECOND)
    for _ in range(2):
        both.b.receive_and_commit(rows, 20 * SECOND)
        answers = both.b.rows(23 * SECOND)
        assert len([row for row in answers if is_error(row)]) == 1
        assert acknowledged(answers) == [1]
        assert both.b.queue(both.incoming) == [b"first", b"fine"]


def test_a_refused_first_message_creates_no_endpoint(engine: EngineFactory) -> None:
    both = pair(engine, refuses=lambda kind, _: Refusal(-8428, "there is no such type") if kind == "Odd" else None)
    both.a.send(both.outgoing, b"odd", message_type="Odd")
    both.b.receive_and_commit(both.a.rows())
    assert both.b.storage.accounts == {}
    answers = both.b.rows()
    assert [is_error(row) for row in answers] == [True]
    both.a.receive_and_commit(answers)
    assert b"<Code>-8428</Code>" in (both.a.storage.accounts[both.outgoing].error or b"")
    assert not both.a.storage.accounts[both.outgoing].endpoint.is_bound


def test_an_unknown_service_is_answered_with_an_error(engine: EngineFactory) -> None:
    """-8490; another conversation in the same batch is not affected."""
    both = pair(engine, dialog={"far_broker_instance": B})
    fine = both.begin(conversation=b"one that is fine", far_service_name="Bank 2", far_broker_instance=B)
    admit = both.b.storage.admit

    def admits(endpoints: Sequence[DialogEndpoint]) -> Sequence[DialogEndpoint | Refusal]:
        return [
            Refusal(-8490, "no such service") if endpoint.service_name == "Bank" else made
            for endpoint, made in zip(endpoints, admit(endpoints), strict=True)
        ]

    both.b.storage.admit = admits  # type: ignore[method-assign]
    both.a.send(both.outgoing, b"one")
    both.a.send(fine, b"two")
    both.b.receive_and_commit(both.a.rows())
    assert list(both.b.storage.accounts) == [(fine[0], False)]
    both.a.receive_and_commit(both.b.rows(2 * SECOND), 2 * SECOND)
    assert b"<Code>-8490</Code>" in (both.a.storage.accounts[both.outgoing].error or b"")
    assert both.a.storage.waiting() == []
    assert both.a.storage.accounts[fine].error is None


@pytest.mark.rule("P11")
def test_a_target_of_an_unknown_conversation_gets_an_error(engine: EngineFactory) -> None:
    """A row from a target for an unknown conversation is answered with -8462."""
    both = established_pair(engine)
    both.b.send(both.incoming, b"is anybody there")
    del both.a.storage.accounts[both.outgoing]
    both.a.dialogs.forget([both.outgoing])
    both.a.receive_and_commit(both.b.rows(20 * SECOND), 20 * SECOND)
    answers = both.a.rows(20 * SECOND)
    both.b.receive_and_commit(answers, 20 * SECOND)
    account = both.b.storage.accounts[both.incoming]
    assert b"<Code>-8462</Code>" in (account.error or b"")
    assert answers[0]["message_type_name"] == _well_known.ERROR


@pytest.mark.rule("P11", "P22")
def test_an_unknown_secured_dialog_is_not_answered(engine: EngineFactory) -> None:
    """No answer could be authenticated, and only authenticated errors end a secured dialog."""
    both = established_pair(engine, dialog={"session_key": bytes(32)})
    both.b.send(both.incoming, b"is anybody there")
    del both.a.storage.accounts[both.outgoing]
    both.a.dialogs.forget([both.outgoing])
    both.a.receive_and_commit(both.b.rows(20 * SECOND), 20 * SECOND)
    assert both.a.rows(20 * SECOND) == []
    assert len(both.a.rejection_events) == 1
