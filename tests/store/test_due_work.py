"""Due work of a database is found, by indexes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.store import conversation_endpoints
from ssbroker.store.database_file import DatabaseFile
from ssbroker.store.schema import DATABASE
from ssbroker.store.sqlite import Connection
from tests.broker import sqlite_steps

ON, OFF = 1, 2
"""Two queues, and the service of each."""
NEVER = 2**62


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    file = DatabaseFile.create(tmp_path / "one.sqlite", DATABASE)
    with file.write() as opened:
        opened.execute("INSERT INTO ssb_contracts VALUES (1, 'DEFAULT')")
        for number, is_on in ((ON, 1), (OFF, 0)):
            opened.execute(
                "INSERT INTO ssb_queues (queue_id, schema_name, name, is_enqueue_enabled) VALUES (?, 'dbo', ?, ?)",
                (number, f"queue {number}", is_on),
            )
            opened.execute(
                "INSERT INTO ssb_services (service_id, name, queue_id) VALUES (?, ?, ?)",
                (number, f"service {number}", number),
            )
        yield opened
    file.close()


def endpoint(
    connection: Connection,
    number: int,
    *,
    service: int = ON,
    state: str = "CO",
    lifetime: int = NEVER,
    timer: int | None = None,
    closed: int | None = None,
) -> None:
    connection.execute(
        """INSERT INTO ssb_conversation_endpoints (endpoint_id, conversation_handle, conversation_id, is_initiator,
        conversation_group_id, service_id, service_contract_id, far_service, is_encrypted, state, lifetime, priority,
        dialog_timer, security_timestamp) VALUES (?, ?, ?, 1, x'00', ?, 1, 'far', 0, ?, ?, 5, ?, ?)""",
        (number, bytes([number]), bytes([number]), service, state, lifetime, timer, closed),
    )


def message(connection: Connection, number: int, *, is_inbound: int) -> None:
    connection.execute(
        "INSERT INTO ssb_transmission_queue (endpoint_id, is_inbound, message_sequence_number, message_type_name, "
        "enqueue_time) VALUES (?, ?, 0, 'DEFAULT', 0)",
        (number, is_inbound),
    )


def test_each_waiting_conversation_is_found_once(connection: Connection) -> None:
    for number in (3, 1, 3, 7, 3):
        message(connection, number, is_inbound=0)
    message(connection, 5, is_inbound=1)
    assert conversation_endpoints.deliverable_endpoints(connection) == [1, 3, 7]


@pytest.mark.parametrize("query", [conversation_endpoints._DELIVERABLE, conversation_endpoints._ENQUEUEABLE])
def test_waiting_endpoints_are_found_among_any_number_of_messages(connection: Connection, query: str) -> None:
    """A dialog with a queue that is off may have a million messages, and this runs every few seconds."""
    work = []
    for first, last in ((0, 10), (10, 500)):
        for _ in range(first, last):
            message(connection, 5, is_inbound=1)
            message(connection, 6, is_inbound=0)
        with sqlite_steps.counted(connection) as taken:
            connection.execute(query).fetchall()
        work.append(taken.number)
    assert work[1] < work[0] * 1.5, work


def test_nothing_waits_in_an_empty_queue(connection: Connection) -> None:
    assert conversation_endpoints.deliverable_endpoints(connection) == []
    assert conversation_endpoints.enqueueable_endpoints(connection) == []


@pytest.mark.rule("P34")
def test_arrived_messages_are_found_once_their_queue_is_on(connection: Connection) -> None:
    endpoint(connection, 1, service=ON)
    endpoint(connection, 2, service=OFF)
    for number in (2, 1, 1):
        message(connection, number, is_inbound=1)
    message(connection, 1, is_inbound=0)
    assert conversation_endpoints.enqueueable_endpoints(connection) == [1]
    connection.execute("UPDATE ssb_queues SET is_enqueue_enabled = 1")
    assert conversation_endpoints.enqueueable_endpoints(connection) == [1, 2]


def test_expired_timers_are_found_oldest_first(connection: Connection) -> None:
    for number, timer in ((1, 30), (2, 20), (3, 31), (4, None)):
        endpoint(connection, number, timer=timer)
    endpoint(connection, 5, timer=10, service=OFF)
    assert conversation_endpoints.expired_timers(connection, now=30, limit=10) == [2, 1]
    assert conversation_endpoints.expired_timers(connection, now=30, limit=1) == [2]


def test_expired_lifetimes_are_found_unless_in_error_state(connection: Connection) -> None:
    for number, state in enumerate(("SO", "SI", "CO", "DI", "DO", "ER", "CD"), start=1):
        endpoint(connection, number, state=state, lifetime=number)
    endpoint(connection, 9, lifetime=100)
    assert conversation_endpoints.expired_lifetimes(connection, now=99, limit=10) == [1, 2, 3, 4, 5]


def test_an_error_waits_for_its_queue_unless_the_dialog_has_ended(connection: Connection) -> None:
    endpoint(connection, 1, lifetime=1, service=OFF)
    endpoint(connection, 2, lifetime=1, service=OFF, state="DO")
    assert conversation_endpoints.expired_lifetimes(connection, now=1, limit=10) == [2]


@pytest.mark.parametrize(("now", "left"), [(29, 3), (30, 2), (31, 1)])
def test_closed_endpoints_are_removed_when_due(connection: Connection, now: int, left: int) -> None:
    endpoint(connection, 1, state="CD", closed=30)
    endpoint(connection, 2, state="CD", closed=31)
    endpoint(connection, 3, closed=1)
    assert conversation_endpoints.remove_closed(connection, now=now, limit=10) == 3 - left
    assert connection.execute("SELECT count(*) FROM ssb_conversation_endpoints").get == left


def test_the_oldest_closed_endpoints_are_removed_first(connection: Connection) -> None:
    for number, closed in ((1, 12), (2, 10), (3, 11)):
        endpoint(connection, number, state="CD", closed=closed)
    assert [conversation_endpoints.remove_closed(connection, now=20, limit=2) for _ in range(3)] == [2, 1, 0]


def test_the_next_due_time_is_the_earliest_of_all(connection: Connection) -> None:
    assert conversation_endpoints.next_due_time(connection) is None
    endpoint(connection, 1, lifetime=50)
    assert conversation_endpoints.next_due_time(connection) == 50
    endpoint(connection, 2, timer=40)
    assert conversation_endpoints.next_due_time(connection) == 40
    endpoint(connection, 3, state="CD", closed=30 - conversation_endpoints.REMOVAL_DELAY)
    assert conversation_endpoints.next_due_time(connection) == 30
    endpoint(connection, 4, timer=10, lifetime=9, service=OFF)
    assert conversation_endpoints.next_due_time(connection) == 30


@pytest.mark.parametrize(
    "query",
    [
        conversation_endpoints._DELIVERABLE,
        conversation_endpoints._ENQUEUEABLE,
        conversation_endpoints._EXPIRED_TIMERS,
        conversation_endpoints._EXPIRED_LIFETIMES,
        conversation_endpoints._REMOVABLE,
    ],
)
def test_every_query_uses_an_index(connection: Connection, query: str) -> None:
    values = (0,) if "?" in query else ()
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
    tables = ("ssb_transmission_queue", "ssb_conversation_endpoints")
    assert [step for step in plan if step.startswith("SCAN ") and step.endswith(tables)] == []
    assert not any("TEMP B-TREE" in step for step in plan)
