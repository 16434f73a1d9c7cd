"""Effects of a network batch on a database: the same as if its messages had been delivered locally."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ssbroker.broker.database import context_of as database_context
from ssbroker.protocol.config import ERROR
from ssbroker.protocol.events import ConversationEvent, ConversationStep, CorruptedMessage, MessageUndeliverable
from tests.broker.dialog_calls import REPLIES, drain, end, receive, said, send, switch
from tests.broker.network.engine_pair import MINUTE, ORDER, ORDERS, Pair, Side, pair


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Pair]:
    made = pair(tmp_path, max_fragment_bytes=100)
    yield made
    made.close()


def queue(side: Side, name: str = ORDERS) -> list[dict[str, Any]]:
    """The queue's view."""
    rows: list[dict[str, Any]] = side.instance.view(name, database="Sales").to_pylist()
    return rows


def states(both: Pair, shop: uuid.UUID) -> tuple[str | None, str | None]:
    """The states of both ends; None where one is gone."""
    near = both.shop.row(shop)
    with database_context(both.stock.database).file.read() as connection:
        far = connection.execute("SELECT state FROM ssb_conversation_endpoints").fetchone()
    return None if near is None else near.state, None if far is None else far[0]


def test_messages_go_to_another_instance_and_answers_come_back(both: Pair) -> None:
    shop = both.begin(b"two chairs", b"a table")
    both.exchange()
    rows = drain(both.stock.database, ORDERS)
    assert said(rows) == [b"two chairs", b"a table"]
    assert both.shop.count("transmission_queue") == 0
    send(both.stock.database, uuid.UUID(bytes=rows[0]["conversation_handle"]), b"on their way")
    both.exchange()
    assert said(receive(both.shop.database, REPLIES)) == [b"on their way"]
    assert states(both, shop) == ("CO", "CO")


def test_closed_ends_acknowledge_duplicates_for_30_minutes(both: Pair) -> None:
    shop, stock = both.bound()
    send(both.stock.database, stock, b"thank you")
    late = both.stock.rows()
    both.exchange(seconds=MINUTE)
    end(both.shop.database, shop)
    sent = both.shop.rows()
    assert states(both, shop) == ("DO", "CO")
    both.stock.take(sent)
    assert states(both, shop) == ("DO", "DI")
    assert said(drain(both.stock.database, ORDERS)) == ["EndDialog"]
    both.exchange()
    assert states(both, shop) == ("CD", "DI")
    end(both.stock.database, stock)
    assert states(both, shop) == ("CD", "CD")
    for side, rows in ((both.shop, late), (both.stock, sent)):
        side.restart()
        assert side.take(rows) is None
        (answer,) = side.rows()
        assert answer["acked_sequence_number"] is not None
        assert answer["message_type_name"] is None
    both.clock.advance(seconds=31 * MINUTE)
    for side in (both.shop, both.stock):
        side.instance.run_due()
    assert states(both, shop) == (None, None)


def test_a_new_endpoint_has_all_its_columns(both: Pair) -> None:
    both.stock.database.create_broker_priority("Trade", level=8)
    shop = both.begin(b"two chairs", lifetime=600)
    both.exchange()
    near = both.shop.row(shop)
    assert near is not None
    far = both.stock.at((near.conversation_id, False))
    assert far is not None
    assert (far.far_service, far.priority, far.lifetime) == ("//Shop", 8, near.lifetime)
    assert far.far_broker_instance == both.shop.storage.broker_instance
    assert (far.is_bound, far.is_remote, far.far_peer) == (1, 1, b"certificate of the shop")
    assert (near.is_bound, near.is_remote, near.far_peer) == (1, 1, b"certificate of the stock")
    assert near.far_broker_instance == both.stock.storage.broker_instance
    steps = [event.step for event in both.stock.told(ConversationEvent)]
    assert steps == [ConversationStep.DIALOG_CREATED, ConversationStep.RECEIVED_SEQUENCED_MESSAGE]


@pytest.mark.rule("P14")
def test_incomplete_messages_are_in_the_queue_with_status_2(both: Pair) -> None:
    shop = both.begin(b"x" * 250)
    sent = both.shop.rows()
    both.stock.take(sent[:2])
    assert states(both, shop) == ("CO", "SI")
    (row,) = queue(both.stock)
    assert (row["status"], row["message_sequence_number"], row["message_body"]) == (2, 0, None)
    assert both.stock.instance.view("sys.conversation_endpoints").to_pylist()[0]["receive_sequence_frag"] == 2
    assert receive(both.stock.database).num_rows == 0
    both.stock.restart()
    both.stock.take(sent[2:])
    assert states(both, shop) == ("CO", "CO")
    assert both.stock.count("fragments") == 0
    assert said(receive(both.stock.database)) == [b"x" * 250]


@pytest.mark.rule("P14")
def test_early_messages_are_in_the_queue_with_status_2(both: Pair) -> None:
    shop, _ = both.bound()
    send(both.shop.database, shop, b"1", b"2", b"3")
    sent = both.shop.rows()
    both.stock.take([sent[2], sent[1]])
    found = [(row["status"], row["message_sequence_number"], row["message_body"]) for row in queue(both.stock)]
    assert found == [(2, 2, b"2"), (2, 3, b"3")]
    row = both.stock.instance.view("sys.conversation_endpoints").to_pylist()[0]
    assert (row["first_out_of_order_sequence"], row["last_out_of_order_sequence"]) == (2, 3)
    assert (row["receive_sequence"], row["last_out_of_order_frag"]) == (1, 0)
    both.stock.take([sent[0]])
    assert [row["status"] for row in queue(both.stock)] == [1, 1, 1]
    assert said(receive(both.stock.database)) == [b"1", b"2", b"3"]


@pytest.mark.rule("P14", "P34")
def test_messages_for_a_disabled_queue_are_in_the_transmission_queue(both: Pair) -> None:
    shop, _ = both.bound()
    send(both.shop.database, shop, b"1", b"y" * 150, b"3")
    sent = sorted(both.shop.rows(), key=lambda row: (row["message_sequence_number"], row["fragment_number"]))
    switch(both.stock.database, on=False)
    both.stock.take([sent[0], sent[1], sent[3]])
    view = both.stock.instance.view("sys.transmission_queue").to_pylist()
    assert [(row["message_sequence_number"], row["message_body"]) for row in view] == [(1, b"1"), (2, None), (3, b"3")]
    assert {row["to_service_name"] for row in view} == {"//Stock"}
    assert queue(both.stock) == []
    both.clock.advance(seconds=1)
    assert both.stock.rows() != []  # it is durable, so it is acknowledged (P16)
    switch(both.stock.database, on=True)
    assert [row["status"] for row in queue(both.stock)] == [1, 2, 2]
    both.stock.take([sent[2]])
    assert said(drain(both.stock.database)) == [b"1", b"y" * 150, b"3"]


@pytest.mark.rule("P11")
def test_a_waiting_receive_is_woken(both: Pair) -> None:
    both.begin(b"two chairs")
    (queue_of,) = (
        row["object_id"] for row in both.stock.instance.view("sys.service_queues").to_pylist() if row["name"] == ORDERS
    )
    seen = database_context(both.stock.database).arrivals.count(queue_of)
    both.stock.take(both.shop.rows())
    assert database_context(both.stock.database).arrivals.count(queue_of) > seen


def test_with_retention_messages_stay_until_the_end(both: Pair) -> None:
    both.stock.database.alter_queue(ORDERS, retention=True)
    shop, stock = both.bound()
    send(both.stock.database, stock, b"on their way")
    both.exchange()
    assert sorted(row["status"] for row in queue(both.stock)) == [0, 3]
    end(both.shop.database, shop)
    both.exchange()
    end(both.stock.database, stock)
    assert queue(both.stock) == []


@pytest.mark.rule("P16")
def test_acknowledged_messages_leave_the_transmission_queue(both: Pair) -> None:
    shop = both.begin(b"1")
    near = both.shop.row(shop)
    assert near is not None
    assert near.transmission_status != ""
    both.exchange()
    near = both.shop.row(shop)
    assert near is not None
    assert (near.transmission_status, both.shop.count("transmission_queue")) == ("", 0)


def test_an_error_of_the_remote_broker_ends_the_conversation(both: Pair) -> None:
    both.stock.database.alter_service("//Stock", drop_contracts=["Trade"])
    shop = both.begin(b"1", b"2")
    both.exchange()
    assert states(both, shop) == ("ER", None)
    (row,) = drain(both.shop.database, REPLIES)
    assert row["message_type_name"] == ERROR
    assert b"<Code>-8408</Code>" in row["message_body"]
    assert both.shop.count("transmission_queue") == 0
    assert ConversationStep.RECEIVED_BROKER_ERROR in [event.step for event in both.shop.told(ConversationEvent)]


def test_a_refused_message_ends_both_sides(both: Pair) -> None:
    shop, stock = both.bound()
    both.stock.database.alter_message_type(ORDER, validation="WELL_FORMED_XML")
    send(both.shop.database, shop, b"<order/>", b"no XML", b"<order/>", message_type=ORDER)
    sent = both.shop.rows()
    both.stock.take(sent)
    assert states(both, shop) == ("CO", "ER")
    assert said(drain(both.stock.database)) == ["Error", b"<order/>"]
    end(both.stock.database, stock)
    # What it answered was lost; asked again, it says the same, and does not take the message for taken.
    both.stock.rows()
    both.clock.advance(seconds=MINUTE)
    both.exchange()
    assert states(both, shop) == ("ER", "CD")
    (row,) = drain(both.shop.database, REPLIES)
    assert b"<Code>-8430</Code>" in row["message_body"]


@pytest.mark.rule("P26")
def test_messages_of_a_broken_conversation_are_not_stored(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, stock = both.bound()
    both.stock.database.alter_message_type(ORDER, validation="WELL_FORMED_XML")
    send(both.shop.database, shop, b"no XML", b"z" * 450, message_type=ORDER)
    bad, *early = both.shop.rows()
    both.stock.take(early[:2])
    assert both.stock.count("fragments") == 2
    both.stock.take([bad])
    assert states(both, shop) == ("CO", "ER")
    read: list[int] = []
    stored = both.stock.storage.read_stored

    def counted(*given: Any, **options: Any) -> pa.Table:
        table = stored(*given, **options)
        read.append(table.num_rows)
        return table

    monkeypatch.setattr(both.stock.storage, "read_stored", counted)
    both.stock.take([bad])
    both.stock.dialogs.forget([both.stock.key(stock)])
    both.stock.take([bad])
    both.stock.take(early[2:3])
    assert sum(read) == 0
    assert both.stock.count("fragments") == 2
    both.exchange(seconds=MINUTE)
    assert states(both, shop) == ("ER", "ER")


def test_a_lost_error_is_sent_again_for_duplicates(both: Pair) -> None:
    shop, _ = both.bound()
    both.stock.database.alter_message_type(ORDER, validation="WELL_FORMED_XML")
    send(both.shop.database, shop, b"no XML" * 50, message_type=ORDER)
    both.stock.take(both.shop.rows())
    assert len(both.stock.rows()) == 1
    both.shop.restart()
    for row in both.shop.rows():
        both.stock.take([row])
    both.shop.take(both.stock.rows())
    assert states(both, shop) == ("ER", "ER")
    assert both.stock.count("fragments") == 0


def test_a_refused_first_message_leaves_no_endpoint(both: Pair) -> None:
    both.stock.database.alter_message_type(ORDER, validation="WELL_FORMED_XML")
    shop = both.begin()
    send(both.shop.database, shop, b"z" * 250, message_type=ORDER)
    sent = both.shop.rows()
    both.stock.take(sent[:1])
    assert states(both, shop) == ("CO", "SI")
    both.stock.take(sent[1:])
    assert (states(both, shop), both.stock.count("fragments")) == (("CO", None), 0)
    both.exchange(seconds=MINUTE)
    assert states(both, shop) == ("ER", None)


def test_an_unknown_service_is_an_error_if_the_broker_id_was_named(both: Pair) -> None:
    both.stock.database.drop_service("//Stock")
    named = both.begin(b"1", broker_instance=both.stock.database.service_broker_guid)
    both.exchange()
    assert states(both, named) == ("ER", None)
    assert b"<Code>-8490</Code>" in drain(both.shop.database, REPLIES)[0]["message_body"]


@pytest.mark.rule("R26")
def test_an_unknown_service_without_broker_id_is_only_reported(both: Pair) -> None:
    both.stock.database.drop_service("//Stock")
    shop = both.begin(b"1")
    both.stock.take(both.shop.rows())
    assert both.stock.rows() == []
    assert [event.error for event in both.stock.told(MessageUndeliverable)] == [11210]
    both.stock.database.create_service("//Stock", queue=ORDERS, contracts=["Trade"])
    both.exchange(seconds=MINUTE)
    assert states(both, shop) == ("CO", "CO")


@pytest.mark.rule("P23")
def test_a_message_with_a_wrong_digest_is_dropped_and_sent_again(both: Pair) -> None:
    both.begin(b"x" * 250)
    sent = both.shop.rows()
    both.stock.take(sent[:2])
    with database_context(both.stock.database).file.write() as connection:
        connection.execute(
            "UPDATE ssb_fragments SET message_body = ?, fragment_digest = NULL WHERE fragment_number = 0", (b"y" * 100,)
        )
    both.stock.restart()
    both.stock.take(sent[2:])
    assert both.stock.told(CorruptedMessage) != []
    assert both.stock.count("fragments") == 0
    both.exchange(seconds=MINUTE)
    assert said(receive(both.stock.database)) == [b"x" * 250]


def test_messages_after_the_end_are_dropped_and_acknowledged(both: Pair) -> None:
    shop, stock = both.bound()
    end(both.stock.database, stock)
    send(both.shop.database, shop, b"1", b"2" * 250)
    sent = both.shop.rows()
    both.stock.take([*sent[:2], sent[3]])
    both.stock.restart()  # what is dropped counts as taken, also in parts
    both.exchange(seconds=MINUTE)
    assert queue(both.stock) == []
    assert both.shop.count("transmission_queue") == both.stock.count("fragments") == 0
    assert states(both, shop) == ("DI", "CD")


@pytest.mark.rule("P13")
def test_messages_after_the_end_in_many_batches_are_acknowledged_immediately(both: Pair) -> None:
    """None of it is kept, and none of it comes twice."""
    shop, stock = both.bound()
    send(both.shop.database, shop, b"1" * 350, b"2" * 250)
    sent = both.shop.rows()
    end(both.stock.database, stock)
    both.shop.take(both.stock.rows())
    both.clock.advance(seconds=1)
    both.stock.take(both.shop.rows())
    assert states(both, shop) == ("DI", "CD")
    for row in reversed(sent):
        both.stock.take([row])
        assert both.stock.count("fragments") == 0
    both.clock.advance(seconds=1)
    both.shop.take(both.stock.rows())
    assert both.shop.count("transmission_queue") == 0
    assert queue(both.stock) == []


def test_end_with_error_drops_waiting_messages_and_is_received_immediately(both: Pair) -> None:
    shop, _ = both.bound()
    send(both.shop.database, shop, b"1", b"2", b"3")
    both.stock.take(both.shop.rows()[1:])
    end(both.shop.database, shop, error=(7, "sold out"))
    both.exchange(seconds=MINUTE)
    (row,) = drain(both.stock.database)
    assert b"<Code>7</Code><Description>sold out" in row["message_body"]
    assert states(both, shop) == ("CD", "ER")
    assert both.stock.count("fragments") == both.shop.count("transmission_queue") == 0


def test_the_end_of_an_unsent_conversation_creates_none_at_the_target(both: Pair) -> None:
    shop = both.begin(b"lost")
    both.shop.rows()
    end(both.shop.database, shop, error=(7, "sold out"))
    both.exchange(seconds=MINUTE)
    assert states(both, shop) == ("CD", None)
    assert both.shop.count("transmission_queue") == 0


@pytest.mark.rule("I6")
def test_error_broker_conversations_sends_an_error(both: Pair) -> None:
    shop, _ = both.bound()
    both.shop.database.set_broker("ERROR_BROKER_CONVERSATIONS")
    both.exchange()
    assert states(both, shop) == ("ER", "ER")
    assert b"<Code>-9720</Code>" in drain(both.stock.database)[0]["message_body"]


@pytest.mark.rule("I6")
def test_the_error_is_sent_even_if_this_end_has_ended(both: Pair) -> None:
    shop, _ = both.bound()
    both.shop.database.set_broker("ERROR_BROKER_CONVERSATIONS")
    end(both.shop.database, shop)
    assert states(both, shop) == ("DO", "CO")
    both.exchange()
    assert states(both, shop) == ("CD", "ER")
    assert b"<Code>-9720</Code>" in drain(both.stock.database)[0]["message_body"]


def test_too_long_a_lifetime_is_reduced(both: Pair) -> None:
    """Moments that no calendar has would stop what looks at the next one."""
    key = (both.shop.key(both.begin(b"1"))[0], False)
    effects = both.stock.arrived(both.shop.rows())
    both.stock.dialogs.undo(effects)
    (created,) = effects.created
    (admitted,) = both.stock.storage.admit([replace(created, lifetime=2**63 - 1)])
    assert admitted == replace(created, lifetime=both.stock.now + (2**31 - 1) * 1_000_000)
    assert both.stock.at(key) is None
