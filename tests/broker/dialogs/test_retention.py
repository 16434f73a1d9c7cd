"""Retention: what was sent and received stays with the conversation, and is not received again (fact 146, B15)."""

from __future__ import annotations

from typing import Any

import pytest

from ssbroker.broker.database import Database
from ssbroker.broker.database import context_of as database_context
from ssbroker.exceptions import BrokerError
from tests.broker import dialog_calls
from tests.broker.conftest import QUEUE
from tests.broker.dialog_calls import begin, drain, end, handle_of, receive, said, send


@pytest.fixture
def keeping(sales: Database) -> Database:
    """Both queues retain."""
    for queue in (QUEUE, dialog_calls.REPLIES):
        sales.alter_queue(queue, retention=True)
    return sales


def kept(database: Database) -> list[tuple[Any, ...]]:
    """Status and body of everything in the queues, in order."""
    with database_context(database).file.read() as connection:
        return connection.execute(
            "SELECT status, message_body FROM ssb_queued_messages WHERE queue_id <> 0 ORDER BY queuing_order"
        ).fetchall()


def test_received_and_sent_messages_stay_until_the_conversation_ends(keeping: Database) -> None:
    initiator = begin(keeping, b"ask")
    assert kept(keeping) == [(3, b"ask"), (1, b"ask")]
    table = receive(keeping)
    assert said(table) == [b"ask"]
    target = handle_of(table)
    assert kept(keeping) == [(3, b"ask"), (0, b"ask")]
    assert drain(keeping) == []
    send(keeping, target, b"answer")
    assert said(drain(keeping, dialog_calls.REPLIES)) == [b"answer"]
    assert kept(keeping) == [(3, b"ask"), (0, b"ask"), (3, b"answer"), (0, b"answer")]
    end(keeping, initiator)
    assert kept(keeping) == [(0, b"ask"), (3, b"answer"), (1, None)]
    end(keeping, target)
    assert kept(keeping) == []


def test_retained_messages_do_not_hide_new_ones(keeping: Database) -> None:
    initiator = begin(keeping)
    for number in range(3):
        send(keeping, initiator, f"{number}".encode())
        assert said(receive(keeping, top=1)) == [f"{number}".encode()]
        assert receive(keeping).num_rows == 0


def test_a_queue_that_keeps_what_is_sent_and_is_off_refuses_to_send(keeping: Database) -> None:
    """Fact 114."""
    initiator = begin(keeping, b"x")
    dialog_calls.switch(keeping, dialog_calls.REPLIES, on=False)
    before = dialog_calls.contents(keeping)
    with keeping.transaction() as t, pytest.raises(BrokerError) as refused:
        t.send(initiator, b"y")
    assert refused.value.number == 9618
    assert dialog_calls.contents(keeping) == before
