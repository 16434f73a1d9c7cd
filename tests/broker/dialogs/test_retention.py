"""Retention: sent and received messages stay with the conversation, and are not received again."""

from __future__ import annotations

from typing import Any

import pytest

from ssbroker.broker.database import Database, database_context
from ssbroker.exceptions import BrokerError
from tests.broker import dialog_calls
from tests.broker.conftest import QUEUE
from tests.broker.dialog_calls import begin, contents_of, drain, end, handle_of, receive, send


@pytest.fixture
def retaining(sales: Database) -> Database:
    """Both queues retain."""
    for queue in (QUEUE, dialog_calls.REPLIES):
        sales.alter_queue(queue, retention=True)
    return sales


def retained(database: Database) -> list[tuple[Any, ...]]:
    """Status and body of all rows in the queues, in order."""
    with database_context(database).file.read() as connection:
        return connection.execute(
            "SELECT status, message_body FROM ssb_queued_messages WHERE queue_id <> 0 ORDER BY queuing_order"
        ).fetchall()


def test_received_and_sent_messages_stay_until_the_conversation_ends(retaining: Database) -> None:
    initiator = begin(retaining, b"ask")
    assert retained(retaining) == [(3, b"ask"), (1, b"ask")]
    table = receive(retaining)
    assert contents_of(table) == [b"ask"]
    target = handle_of(table)
    assert retained(retaining) == [(3, b"ask"), (0, b"ask")]
    assert drain(retaining) == []
    send(retaining, target, b"answer")
    assert contents_of(drain(retaining, dialog_calls.REPLIES)) == [b"answer"]
    assert retained(retaining) == [(3, b"ask"), (0, b"ask"), (3, b"answer"), (0, b"answer")]
    end(retaining, initiator)
    assert retained(retaining) == [(0, b"ask"), (3, b"answer"), (1, None)]
    end(retaining, target)
    assert retained(retaining) == []


def test_retained_messages_do_not_hide_new_ones(retaining: Database) -> None:
    initiator = begin(retaining)
    for number in range(3):
        send(retaining, initiator, f"{number}".encode())
        assert contents_of(receive(retaining, top=1)) == [f"{number}".encode()]
        assert receive(retaining).num_rows == 0


def test_a_disabled_queue_with_retention_rejects_sends(retaining: Database) -> None:
    initiator = begin(retaining, b"x")
    dialog_calls.switch(retaining, dialog_calls.REPLIES, on=False)
    before = dialog_calls.contents(retaining)
    with retaining.transaction() as t, pytest.raises(BrokerError) as refused:
        t.send(initiator, b"y")
    assert refused.value.number == 9618
    assert "enable it with Database.alter_queue(" in str(refused.value)
    assert dialog_calls.contents(retaining) == before
