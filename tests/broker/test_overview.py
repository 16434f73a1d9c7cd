"""Counts for operators. They are read every few seconds, so they must not read message bodies."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import apsw
import pytest

from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance
from ssbroker.broker.overview import overview_of
from ssbroker.store import overview_counts
from ssbroker.store.sqlite import Connection
from tests.broker.conftest import QUEUE, Clock
from tests.broker.dialog_calls import begin, drain, send

BODY = b"one chair more" * 300


def pages_read(database: Database, query: Callable[[Connection], object]) -> int:
    """Returns the number of pages that a query reads on a new connection."""
    connection: Any = apsw.Connection(str(database.path))
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS, True)
    query(connection)
    number = int(connection.status(apsw.SQLITE_DBSTATUS_CACHE_MISS)[0])
    connection.close()
    return number


@pytest.mark.parametrize(
    "query",
    [
        partial(overview_counts.queue_counts, now=0),
        overview_counts.transmission_counts,
        overview_counts.conversation_counts,
    ],
    ids=["queues", "transmission queue", "conversations"],
)
def test_no_body_is_read_to_count_messages(sales: Database, query: Callable[[Connection], object]) -> None:
    for to in ("//Orders", "//Nowhere"):
        send(sales, begin(sales, to_service=to), *[BODY] * 500)
    database_context(sales).file.checkpoint()
    assert sales.path.stat().st_size // 4096 > 1_000
    assert pages_read(sales, query) < 20


def test_waiting_messages_are_shown_with_the_oldest_by_service_and_reason(
    instance: Instance, sales: Database, clock: Clock
) -> None:
    """Conversations with the same service and reason share a row; messages for disabled queues have their own."""
    send(sales, begin(sales, b"1", to_service="//Nowhere"), b"2")
    clock.advance(seconds=10)
    begin(sales, b"3", to_service="//Nowhere")
    dialog = begin(sales, b"4")
    sales.alter_queue(QUEUE, status=False)
    clock.advance(seconds=5)
    send(sales, dialog, b"5", b"6")
    instance.run_due()
    clock.advance(seconds=1)
    rows = overview_of(instance)["transmission_queue"]
    assert [(row["to_service_name"], row["messages"], row["conversations"], row["oldest_seconds"]) for row in rows] == [
        ("//Nowhere", 3, 2, 16),
        ("//Orders", 2, 1, 1),
    ]


def test_conversations_are_shown_with_the_oldest_by_state(instance: Instance, sales: Database, clock: Clock) -> None:
    """An endpoint of an earlier version has no known time."""
    begin(sales, b"1")
    clock.advance(seconds=10)
    begin(sales, b"2", to_service="//Nowhere")
    clock.advance(seconds=5)
    found = {row["state"]: (row["count"], row["oldest_seconds"]) for row in overview_of(instance)["conversations"]}
    assert found == {"CO": (3, 15)}
    with database_context(sales).file.write() as connection:
        connection.execute("UPDATE ssb_conversation_endpoints SET begin_time = NULL")
    assert [row["oldest_seconds"] for row in overview_of(instance)["conversations"]] == [None]


def test_queues_are_shown_with_their_messages_by_status(instance: Instance, sales: Database) -> None:
    sales.create_queue("Kept", retention=True)
    sales.create_service("//Kept", queue="Kept")
    begin(sales, b"1", b"2")
    begin(sales, b"3", to_service="//Kept")
    drain(sales, "Kept")
    begin(sales, b"4", to_service="//Kept")
    queue_rows: dict[str, Any] = {row["queue"]: row for row in overview_of(instance)["queues"]}
    assert {name: (row["ready"], row["incomplete"], row["retained"]) for name, row in queue_rows.items()} == {
        "dbo.Kept": (1, 0, 1),
        "dbo.Orders": (2, 0, 0),
        "dbo.Replies": (0, 0, 0),
    }


def test_only_messages_that_can_be_received_now_are_ready(instance: Instance, sales: Database, clock: Clock) -> None:
    queue = sales.queue("Jobs")
    for body in (b"leased", b"retried", b"ready"):
        queue.put(body)
    queue.put(b"scheduled", at=clock.now + timedelta(days=1))
    with queue.take(lease=60), queue.take() as job:
        job.retry(after=600)
        clock.advance(seconds=5)
        assert counts(instance, "Jobs") == (1, 2, 1, 5)
        with queue.take(timeout=0) as other:
            assert other.value == b"ready"
        assert counts(instance, "Jobs") == (0, 2, 1, None)
        with queue.take(timeout=0) as nothing:
            assert not nothing


def test_the_age_of_a_scheduled_message_counts_from_its_time(instance: Instance, sales: Database, clock: Clock) -> None:
    """Before and after the wait is freed, and still after a failure."""
    queue = sales.queue("Jobs", retry_after=0)
    queue.put(b"tomorrow", at=clock.now + timedelta(days=1))
    clock.advance(seconds=60)
    assert counts(instance, "Jobs") == (0, 1, 0, None)
    clock.advance(seconds=24 * 3600 - 60 + 7)
    assert counts(instance, "Jobs") == (1, 0, 0, 7)
    instance.run_due()
    assert counts(instance, "Jobs") == (1, 0, 0, 7)
    with pytest.raises(ZeroDivisionError), queue.take():
        raise ZeroDivisionError
    clock.advance(seconds=3)
    assert counts(instance, "Jobs") == (1, 0, 0, 10)
    with queue.take() as job:
        job.retry(after=600)
    clock.advance(seconds=601)
    assert counts(instance, "Jobs") == (1, 0, 0, 1)


def test_the_messages_of_a_lease_that_has_ended_are_ready(instance: Instance, sales: Database, clock: Clock) -> None:
    queue = sales.queue("Jobs")
    queue.put(b"slow")
    with queue.take(lease=60):
        clock.advance(seconds=61)
        assert counts(instance, "Jobs") == (1, 0, 0, 61)
        (row,) = overview_of(instance)["leases"]
        assert (row["state"], row["groups"]) == ("READY", 1)


def counts(instance: Instance, queue: str) -> tuple[int, int, int, int | None]:
    """Returns the numbers of ready, waiting and leased messages of a queue, and the age of the oldest ready one."""
    (row,) = (row for row in overview_of(instance)["queues"] if row["queue"] == f"dbo.{queue}")
    return row["ready"], row["waiting"], row["leased"], row["oldest_seconds"]
