"""Messages that wait for a retry or a scheduled time: RECEIVE and jobs skip them at no cost, and find them at the right time."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from ssbroker import Database, Instance
from ssbroker.broker.database import database_context
from tests.broker import sqlite_steps
from tests.broker.conftest import START, Clock


def bodies(sales: Database) -> list[bytes | None]:
    """Receives all messages without a job."""
    with sales.transaction() as t:
        return t.receive("Jobs", groups=None)["message_body"].to_pylist()


def hidden(sales: Database) -> int:
    """Counts the hidden messages."""
    with database_context(sales).file.read() as connection:
        return int(connection.execute("SELECT count(*) FROM ssb_queued_messages WHERE is_hidden").get)


def put_later(sales: Database, number: int) -> None:
    queue = sales.queue("Jobs")
    with sales.transaction() as t:
        for _ in range(number):
            queue.put(b"later", at=timedelta(days=30), transaction=t)


def test_waiting_messages_do_not_slow_down_others(sales: Database) -> None:
    queue = sales.queue("Jobs")

    def take() -> None:
        queue.put(b"now")
        with queue.take(timeout=0) as job:
            assert job.value == b"now"
        with queue.take(timeout=0) as job:
            assert not job

    def receive() -> None:
        queue.put(b"now")
        assert bodies(sales) == [b"now"]

    costs = []
    for more in (20, 1_000):
        put_later(sales, more)
        for call in (take, receive):
            call()
            costs.append(sqlite_steps.steps(sales, call))
    few, many = costs[:2], costs[2:]
    assert [cost < 1.5 * before for cost, before in zip(many, few, strict=True)] == [True, True], costs


@pytest.mark.parametrize("is_background_late", [False, True])
def test_a_plain_receive_finds_messages_whose_wait_has_ended(
    instance: Instance, sales: Database, clock: Clock, *, is_background_late: bool
) -> None:
    queue = sales.queue("Jobs")
    queue.put(b"first", at=timedelta(seconds=10))
    queue.put(b"second", at=timedelta(seconds=20))
    assert (bodies(sales), hidden(sales)) == ([], 2)
    clock.advance(seconds=10)
    if not is_background_late:
        instance.run_due()
    with sales.transaction() as t:
        assert t.get_conversation_group("Jobs") is not None
        (message,) = t.receive("Jobs", timeout=0.1).to_pylist()
        assert (message["message_body"], t.receive("Jobs").num_rows) == (b"first", 0)
    clock.advance(seconds=10)
    with sales.transaction() as t:
        assert t.receive("Jobs", timeout=0.1)["message_body"].to_pylist() == [b"second"]
    assert (bodies(sales), hidden(sales)) == ([], 0)


def test_a_receive_announces_messages_of_other_queues_whose_wait_has_ended(sales: Database, clock: Clock) -> None:
    """Otherwise their receivers, and the activation of their queues, would not know of them."""
    other = sales.queue("Others")
    other.put(b"later", at=timedelta(seconds=10))
    put_later(sales, 1)
    signals, objects = database_context(sales).commit_signals, database_context(sales).objects()
    queue_id = objects.queues["dbo", "Others"].queue_id
    clock.advance(seconds=10)
    before = signals.count(queue_id)
    assert bodies(sales) == []
    assert signals.count(queue_id) > before
    with other.take(timeout=0) as job:
        assert job.value == b"later"


def test_messages_of_a_failed_job_are_hidden_until_the_retry(instance: Instance, sales: Database, clock: Clock) -> None:
    queue = sales.queue("Jobs")
    queue.put(b"job")
    with queue.take() as job:
        job.retry(after=60)
    assert (bodies(sales), hidden(sales)) == ([], 1)
    clock.advance(seconds=60)
    instance.run_due()
    assert hidden(sales) == 0
    with queue.take(timeout=0) as job:
        assert (job.value, job.attempt) == (b"job", 2)


def test_a_wait_ends_if_the_clock_is_set_back_before_its_begin(
    instance: Instance, sales: Database, clock: Clock
) -> None:
    queue = sales.queue("Jobs")
    queue.put(b"retried")
    with queue.take() as job:
        job.retry(after=60)
    clock.advance(seconds=-61)
    assert bodies(sales) == [b"retried"]
    assert instance.view("sys.dm_broker_leases").num_rows <= 1
    assert hidden(sales) == 0


def test_moved_conversations_follow_their_group(instance: Instance, sales: Database, clock: Clock) -> None:
    """A conversation that leaves a waiting group can be received, and one that joins such a group cannot."""
    queue = sales.queue("Jobs")
    queue.put(b"later", at=timedelta(seconds=60))
    queue.put(b"now")
    queue.put(b"other")
    rows = {row["message_body"]: row for row in instance.view("dbo.Jobs").to_pylist()}
    handles = {body: uuid.UUID(bytes=row["conversation_handle"]) for body, row in rows.items()}
    groups = {body: uuid.UUID(bytes=row["conversation_group_id"]) for body, row in rows.items()}
    with sales.transaction() as t:
        t.move_conversation(handles[b"now"], groups[b"later"])
        t.move_conversation(handles[b"later"], groups[b"other"])
    assert (bodies(sales), hidden(sales)) == ([b"later", b"other"], 1)
    clock.advance(seconds=60)
    assert (bodies(sales), hidden(sales)) == ([b"now"], 0)


def test_cancelled_and_cleared_messages_leave_nothing(instance: Instance, sales: Database) -> None:
    queue = sales.queue("Jobs")
    put = queue.put(b"later", at=START + timedelta(days=1))
    put_later(sales, 3)
    assert queue.cancel(put)
    assert queue.count() == 3
    assert queue.clear() == 3
    assert (hidden(sales), instance.view("sys.dm_broker_leases").num_rows) == (0, 0)
