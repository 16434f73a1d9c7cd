"""The changes of a network batch in a database equal those of local delivery."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ssbroker._well_known import ERROR
from ssbroker.broker.database import database_context
from ssbroker.broker.overview import overview_of
from ssbroker.protocol.events import ConversationEvent, ConversationStep, CorruptedMessage, MessageUndeliverable
from tests.broker.dialog_calls import REPLIES, contents_of, drain, end, receive, send, switch
from tests.broker.network.engine_pair import MINUTE, ORDER, ORDERS, Pair, Side, pair


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Pair]:
    engine_pair = pair(tmp_path, max_fragment_bytes=100)
    yield engine_pair
    engine_pair.close()


def queue(side: Side, name: str = ORDERS) -> list[dict[str, Any]]:
    """Returns the queue's view."""
    rows: list[dict[str, Any]] = side.instance.view(name, database="Sales").to_pylist()
    return rows


def states(engines: Pair, shop: uuid.UUID) -> tuple[str | None, str | None]:
    """Returns the states of both endpoints; None if an endpoint does not exist."""
    near = engines.shop.row(shop)
    with database_context(engines.stock.database).file.read() as connection:
        far = connection.execute("SELECT state FROM ssb_conversation_endpoints").fetchone()
    return None if near is None else near.state, None if far is None else far[0]


def test_messages_and_replies_are_exchanged_between_instances(engines: Pair) -> None:
    shop = engines.begin(b"two chairs", b"a table")
    engines.exchange()
    rows = drain(engines.stock.database, ORDERS)
    assert contents_of(rows) == [b"two chairs", b"a table"]
    assert engines.shop.count("transmission_queue") == 0
    send(engines.stock.database, uuid.UUID(bytes=rows[0]["conversation_handle"]), b"on their way")
    engines.exchange()
    assert contents_of(receive(engines.shop.database, REPLIES)) == [b"on their way"]
    assert states(engines, shop) == ("CO", "CO")


def test_closed_ends_acknowledge_duplicates_for_30_minutes(engines: Pair) -> None:
    shop, stock = engines.establish()
    send(engines.stock.database, stock, b"thank you")
    late = engines.stock.rows()
    engines.exchange(seconds=MINUTE)
    end(engines.shop.database, shop)
    sent = engines.shop.rows()
    assert states(engines, shop) == ("DO", "CO")
    engines.stock.receive_rows(sent)
    assert states(engines, shop) == ("DO", "DI")
    assert contents_of(drain(engines.stock.database, ORDERS)) == ["EndDialog"]
    engines.exchange()
    assert states(engines, shop) == ("CD", "DI")
    end(engines.stock.database, stock)
    assert states(engines, shop) == ("CD", "CD")
    for side, rows in ((engines.shop, late), (engines.stock, sent)):
        side.restart()
        assert side.receive_rows(rows) is None
        (answer,) = side.rows()
        assert answer["acked_sequence_number"] is not None
        assert answer["message_type_name"] is None
    engines.clock.advance(seconds=31 * MINUTE)
    for side in (engines.shop, engines.stock):
        side.instance.run_due()
    assert states(engines, shop) == (None, None)


@pytest.mark.rule("P11", "P18")
def test_a_closed_endpoint_is_kept_while_duplicates_arrive(engines: Pair) -> None:
    """Otherwise the messages would be received again; duplicates in the first five minutes write nothing."""
    shop = engines.begin(b"two chairs")
    engines.exchange()
    end(engines.shop.database, shop)
    sent = engines.shop.rows()
    engines.stock.receive_rows(sent)
    (handle,) = {row["conversation_handle"] for row in drain(engines.stock.database, ORDERS)}
    end(engines.stock.database, uuid.UUID(bytes=handle))
    key = (engines.shop.key(shop)[0], False)
    removal_times: list[int | None] = []
    for _ in range(20):
        engines.clock.advance(seconds=4 * MINUTE)
        engines.stock.instance.run_due()
        engines.stock.dialogs.flush(now=engines.stock.now)
        engines.stock.receive_rows(sent)
        engines.stock.rows()
        row = engines.stock.endpoint_row(key)
        assert row is not None
        removal_times.append(row.security_timestamp)
    assert len(set(removal_times)) == 11, "every second duplicate has renewed the endpoint"
    assert drain(engines.stock.database, ORDERS) == []
    engines.clock.advance(seconds=30 * MINUTE)
    engines.stock.instance.run_due()
    assert engines.stock.endpoint_row(key) is None


def test_a_new_endpoint_has_all_its_columns(engines: Pair) -> None:
    engines.stock.database.create_broker_priority("Trade", level=8)
    shop = engines.begin(b"two chairs", lifetime=600)
    engines.exchange()
    near = engines.shop.row(shop)
    assert near is not None
    far = engines.stock.endpoint_row((near.conversation_id, False))
    assert far is not None
    assert (far.far_service, far.priority, far.lifetime) == ("//Shop", 8, near.lifetime)
    assert far.far_broker_instance == engines.shop.storage.broker_instance
    assert (far.is_bound, far.is_remote, far.far_peer) == (1, 1, b"certificate of the shop")
    assert (near.is_bound, near.is_remote, near.far_peer) == (1, 1, b"certificate of the stock")
    assert near.far_broker_instance == engines.stock.storage.broker_instance
    steps = [event.step for event in engines.stock.emitted(ConversationEvent)]
    assert steps == [ConversationStep.DIALOG_CREATED, ConversationStep.RECEIVED_SEQUENCED_MESSAGE]


@pytest.mark.rule("P14")
def test_incomplete_messages_are_in_the_queue_with_status_2(engines: Pair) -> None:
    shop = engines.begin(b"x" * 250)
    sent = engines.shop.rows()
    engines.stock.receive_rows(sent[:2])
    assert states(engines, shop) == ("CO", "SI")
    (row,) = queue(engines.stock)
    assert (row["status"], row["message_sequence_number"], row["message_body"]) == (2, 0, None)
    assert engines.stock.instance.view("sys.conversation_endpoints").to_pylist()[0]["receive_sequence_frag"] == 2
    assert receive(engines.stock.database).num_rows == 0
    engines.stock.restart()
    engines.stock.receive_rows(sent[2:])
    assert states(engines, shop) == ("CO", "CO")
    assert engines.stock.count("fragments") == 0
    assert contents_of(receive(engines.stock.database)) == [b"x" * 250]


@pytest.mark.rule("P14")
def test_early_messages_are_in_the_queue_with_status_2(engines: Pair) -> None:
    shop, _ = engines.establish()
    send(engines.shop.database, shop, b"1", b"2", b"3")
    sent = engines.shop.rows()
    engines.stock.receive_rows([sent[2], sent[1]])
    found = [(row["status"], row["message_sequence_number"], row["message_body"]) for row in queue(engines.stock)]
    assert found == [(2, 2, b"2"), (2, 3, b"3")]
    row = engines.stock.instance.view("sys.conversation_endpoints").to_pylist()[0]
    assert (row["first_out_of_order_sequence"], row["last_out_of_order_sequence"]) == (2, 3)
    assert (row["receive_sequence"], row["last_out_of_order_frag"]) == (1, 0)
    engines.stock.receive_rows([sent[0]])
    assert [row["status"] for row in queue(engines.stock)] == [1, 1, 1]
    assert contents_of(receive(engines.stock.database)) == [b"1", b"2", b"3"]


@pytest.mark.rule("P14", "P34")
def test_messages_for_a_disabled_queue_are_in_the_transmission_queue(engines: Pair) -> None:
    shop, _ = engines.establish()
    send(engines.shop.database, shop, b"1", b"y" * 150, b"3")
    sent = sorted(engines.shop.rows(), key=lambda row: (row["message_sequence_number"], row["fragment_number"]))
    switch(engines.stock.database, on=False)
    engines.stock.receive_rows([sent[0], sent[1], sent[3]])
    view = engines.stock.instance.view("sys.transmission_queue").to_pylist()
    assert [(row["message_sequence_number"], row["message_body"]) for row in view] == [(1, b"1"), (2, None), (3, b"3")]
    assert {row["to_service_name"] for row in view} == {"//Stock"}
    assert queue(engines.stock) == []
    engines.clock.advance(seconds=1)
    assert engines.stock.rows() != []  # P16: stored messages are acknowledged
    switch(engines.stock.database, on=True)
    assert [row["status"] for row in queue(engines.stock)] == [1, 2, 2]
    engines.stock.receive_rows([sent[2]])
    assert contents_of(drain(engines.stock.database)) == [b"1", b"y" * 150, b"3"]


@pytest.mark.rule("P11")
def test_a_waiting_receive_is_woken(engines: Pair) -> None:
    engines.begin(b"two chairs")
    (queue_id,) = (
        row["object_id"]
        for row in engines.stock.instance.view("sys.service_queues").to_pylist()
        if row["name"] == ORDERS
    )
    count_before = database_context(engines.stock.database).commit_signals.count(queue_id)
    engines.stock.receive_rows(engines.shop.rows())
    assert database_context(engines.stock.database).commit_signals.count(queue_id) > count_before


def test_with_retention_messages_stay_until_the_end(engines: Pair) -> None:
    engines.stock.database.alter_queue(ORDERS, retention=True)
    shop, stock = engines.establish()
    send(engines.stock.database, stock, b"on their way")
    engines.exchange()
    assert sorted(row["status"] for row in queue(engines.stock)) == [0, 3]
    end(engines.shop.database, shop)
    engines.exchange()
    end(engines.stock.database, stock)
    assert queue(engines.stock) == []


@pytest.mark.rule("P16")
def test_acknowledged_messages_leave_the_transmission_queue(engines: Pair) -> None:
    shop = engines.begin(b"1")
    near = engines.shop.row(shop)
    assert near is not None
    assert near.transmission_status != ""
    engines.exchange()
    near = engines.shop.row(shop)
    assert near is not None
    assert (near.transmission_status, engines.shop.count("transmission_queue")) == ("", 0)


def test_an_error_of_the_remote_broker_ends_the_conversation(engines: Pair) -> None:
    engines.stock.database.alter_service("//Stock", drop_contracts=["Trade"])
    shop = engines.begin(b"1", b"2")
    engines.exchange()
    assert states(engines, shop) == ("ER", None)
    (row,) = drain(engines.shop.database, REPLIES)
    assert row["message_type_name"] == ERROR
    assert b"<Code>-8408</Code>" in row["message_body"]
    assert engines.shop.count("transmission_queue") == 0
    assert ConversationStep.RECEIVED_BROKER_ERROR in [event.step for event in engines.shop.emitted(ConversationEvent)]


def test_a_refused_message_ends_both_sides(engines: Pair) -> None:
    shop, stock = engines.establish()
    engines.stock.database.alter_message_type(ORDER, validation="WELL_FORMED_XML")
    send(engines.shop.database, shop, b"<order/>", b"no XML", b"<order/>", message_type=ORDER)
    sent = engines.shop.rows()
    engines.stock.receive_rows(sent)
    assert states(engines, shop) == ("CO", "ER")
    assert contents_of(drain(engines.stock.database)) == ["Error", b"<order/>"]
    end(engines.stock.database, stock)
    # The answer was lost; a repeated message gets the same answer and is not acknowledged.
    engines.stock.rows()
    engines.clock.advance(seconds=MINUTE)
    engines.exchange()
    assert states(engines, shop) == ("ER", "CD")
    (row,) = drain(engines.shop.database, REPLIES)
    assert b"<Code>-8430</Code>" in row["message_body"]


@pytest.mark.rule("P26")
def test_messages_of_a_broken_conversation_are_not_stored(engines: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, stock = engines.establish()
    engines.stock.database.alter_message_type(ORDER, validation="WELL_FORMED_XML")
    send(engines.shop.database, shop, b"no XML", b"z" * 450, message_type=ORDER)
    bad, *early = engines.shop.rows()
    engines.stock.receive_rows(early[:2])
    assert engines.stock.count("fragments") == 2
    engines.stock.receive_rows([bad])
    assert states(engines, shop) == ("CO", "ER")
    read: list[int] = []
    stored = engines.stock.storage.read_stored

    def counted(*given: Any, **options: Any) -> pa.Table:
        table = stored(*given, **options)
        read.append(table.num_rows)
        return table

    monkeypatch.setattr(engines.stock.storage, "read_stored", counted)
    engines.stock.receive_rows([bad])
    engines.stock.dialogs.forget([engines.stock.key(stock)])
    engines.stock.receive_rows([bad])
    engines.stock.receive_rows(early[2:3])
    assert sum(read) == 0
    assert engines.stock.count("fragments") == 2
    engines.exchange(seconds=MINUTE)
    assert states(engines, shop) == ("ER", "ER")


def test_a_lost_error_is_sent_again_for_duplicates(engines: Pair) -> None:
    shop, _ = engines.establish()
    engines.stock.database.alter_message_type(ORDER, validation="WELL_FORMED_XML")
    send(engines.shop.database, shop, b"no XML" * 50, message_type=ORDER)
    engines.stock.receive_rows(engines.shop.rows())
    assert len(engines.stock.rows()) == 1
    engines.shop.restart()
    for row in engines.shop.rows():
        engines.stock.receive_rows([row])
    engines.shop.receive_rows(engines.stock.rows())
    assert states(engines, shop) == ("ER", "ER")
    assert engines.stock.count("fragments") == 0


def test_a_refused_first_message_leaves_no_endpoint(engines: Pair) -> None:
    engines.stock.database.alter_message_type(ORDER, validation="WELL_FORMED_XML")
    shop = engines.begin()
    send(engines.shop.database, shop, b"z" * 250, message_type=ORDER)
    sent = engines.shop.rows()
    engines.stock.receive_rows(sent[:1])
    assert states(engines, shop) == ("CO", "SI")
    engines.stock.receive_rows(sent[1:])
    assert (states(engines, shop), engines.stock.count("fragments")) == (("CO", None), 0)
    engines.exchange(seconds=MINUTE)
    assert states(engines, shop) == ("ER", None)


def test_an_unknown_service_is_an_error_if_the_broker_id_was_given(engines: Pair) -> None:
    engines.stock.database.drop_service("//Stock")
    named = engines.begin(b"1", broker_instance=engines.stock.database.service_broker_guid)
    engines.exchange()
    assert states(engines, named) == ("ER", None)
    assert b"<Code>-8490</Code>" in drain(engines.shop.database, REPLIES)[0]["message_body"]


@pytest.mark.rule("R26")
def test_an_unknown_service_without_broker_id_is_only_reported(engines: Pair) -> None:
    engines.stock.database.drop_service("//Stock")
    shop = engines.begin(b"1")
    engines.stock.receive_rows(engines.shop.rows())
    assert engines.stock.rows() == []
    assert [event.error for event in engines.stock.emitted(MessageUndeliverable)] == [11210]
    engines.stock.database.create_service("//Stock", queue=ORDERS, contracts=["Trade"])
    engines.exchange(seconds=MINUTE)
    assert states(engines, shop) == ("CO", "CO")


@pytest.mark.rule("P23")
def test_a_message_with_a_wrong_digest_is_dropped_and_sent_again(engines: Pair) -> None:
    engines.begin(b"x" * 250)
    sent = engines.shop.rows()
    engines.stock.receive_rows(sent[:2])
    with database_context(engines.stock.database).file.write() as connection:
        connection.execute(
            "UPDATE ssb_fragments SET message_body = ?, fragment_digest = NULL WHERE fragment_number = 0", (b"y" * 100,)
        )
    engines.stock.restart()
    engines.stock.receive_rows(sent[2:])
    assert engines.stock.emitted(CorruptedMessage) != []
    assert engines.stock.count("fragments") == 0
    engines.exchange(seconds=MINUTE)
    assert contents_of(receive(engines.stock.database)) == [b"x" * 250]


def test_incomplete_messages_are_shown_in_the_queue_to_which_their_group_was_moved(engines: Pair) -> None:
    stock = engines.stock.database
    stock.create_queue("Failed")
    stock.alter_queue(ORDERS, on_poison="move", poison_queue="Failed")
    shop = engines.begin(b"poison")
    engines.exchange()
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), stock.transaction() as t:
            assert t.receive(ORDERS).num_rows
            raise ZeroDivisionError
    send(engines.shop.database, shop, b"x" * 250)
    engines.stock.receive_rows(engines.shop.rows()[:2])

    def shown() -> list[tuple[int, int]]:
        """Ready and incomplete messages of Failed and Orders."""
        rows: dict[str, Any] = {row["queue"]: row for row in overview_of(engines.stock.instance)["queues"]}
        return [(rows[f"dbo.{name}"]["ready"], rows[f"dbo.{name}"]["incomplete"]) for name in ("Failed", ORDERS)]

    assert [len(queue(engines.stock, name)) for name in ("Failed", ORDERS)] == [2, 0]
    assert shown() == [(1, 1), (0, 0)]
    stock.alter_queue(ORDERS, status=False)
    assert engines.stock.instance.view("sys.transmission_queue", database="Sales").num_rows == 0
    stock.alter_queue("Failed", status=False)
    assert engines.stock.instance.view("sys.transmission_queue", database="Sales").num_rows == 1


def test_messages_after_the_end_are_dropped_and_acknowledged(engines: Pair) -> None:
    shop, stock = engines.establish()
    end(engines.stock.database, stock)
    send(engines.shop.database, shop, b"1", b"2" * 250)
    sent = engines.shop.rows()
    engines.stock.receive_rows([*sent[:2], sent[3]])
    engines.stock.restart()  # dropped messages and fragments are acknowledged
    engines.exchange(seconds=MINUTE)
    assert queue(engines.stock) == []
    assert engines.shop.count("transmission_queue") == engines.stock.count("fragments") == 0
    assert states(engines, shop) == ("DI", "CD")


@pytest.mark.rule("P13")
def test_messages_after_the_end_in_many_batches_are_acknowledged_immediately(engines: Pair) -> None:
    """No fragment is stored or sent again."""
    shop, stock = engines.establish()
    send(engines.shop.database, shop, b"1" * 350, b"2" * 250)
    sent = engines.shop.rows()
    end(engines.stock.database, stock)
    engines.shop.receive_rows(engines.stock.rows())
    engines.clock.advance(seconds=1)
    engines.stock.receive_rows(engines.shop.rows())
    assert states(engines, shop) == ("DI", "CD")
    for row in reversed(sent):
        engines.stock.receive_rows([row])
        assert engines.stock.count("fragments") == 0
    engines.clock.advance(seconds=1)
    engines.shop.receive_rows(engines.stock.rows())
    assert engines.shop.count("transmission_queue") == 0
    assert queue(engines.stock) == []


def test_end_with_error_drops_waiting_messages_and_is_received_immediately(engines: Pair) -> None:
    shop, _ = engines.establish()
    send(engines.shop.database, shop, b"1", b"2", b"3")
    engines.stock.receive_rows(engines.shop.rows()[1:])
    end(engines.shop.database, shop, error=(7, "sold out"))
    engines.exchange(seconds=MINUTE)
    (row,) = drain(engines.stock.database)
    assert b"<Code>7</Code><Description>sold out" in row["message_body"]
    assert states(engines, shop) == ("CD", "ER")
    assert engines.stock.count("fragments") == engines.shop.count("transmission_queue") == 0


def test_the_end_of_an_unsent_conversation_creates_no_target_endpoint(engines: Pair) -> None:
    shop = engines.begin(b"lost")
    engines.shop.rows()
    end(engines.shop.database, shop, error=(7, "sold out"))
    engines.exchange(seconds=MINUTE)
    assert states(engines, shop) == ("CD", None)
    assert engines.shop.count("transmission_queue") == 0


@pytest.mark.rule("I6")
def test_error_broker_conversations_sends_an_error(engines: Pair) -> None:
    shop, _ = engines.establish()
    engines.shop.database.set_broker("ERROR_BROKER_CONVERSATIONS")
    engines.exchange()
    assert states(engines, shop) == ("ER", "ER")
    assert b"<Code>-9720</Code>" in drain(engines.stock.database)[0]["message_body"]


@pytest.mark.rule("I6")
def test_the_error_is_sent_even_if_this_end_has_ended(engines: Pair) -> None:
    shop, _ = engines.establish()
    engines.shop.database.set_broker("ERROR_BROKER_CONVERSATIONS")
    end(engines.shop.database, shop)
    assert states(engines, shop) == ("DO", "CO")
    engines.exchange()
    assert states(engines, shop) == ("CD", "ER")
    assert b"<Code>-9720</Code>" in drain(engines.stock.database)[0]["message_body"]


def test_an_excessive_lifetime_is_reduced(engines: Pair) -> None:
    """A time beyond the range of datetime would stop the timers."""
    key = (engines.shop.key(engines.begin(b"1"))[0], False)
    effects = engines.stock.process(engines.shop.rows())
    engines.stock.dialogs.undo(effects)
    (created,) = effects.created
    (admitted,) = engines.stock.storage.admit([replace(created, lifetime=2**63 - 1)])
    assert admitted == replace(created, lifetime=engines.stock.now + (2**31 - 1) * 1_000_000)
    assert engines.stock.endpoint_row(key) is None
