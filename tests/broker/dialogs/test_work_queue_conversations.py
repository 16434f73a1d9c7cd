"""Work queues leave the same rows, counts and messages whether a dialog is written in one step or by the general path."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from ssbroker import Database, Instance, WorkQueue
from ssbroker.broker.database import database_context
from ssbroker.broker.dialogs import work_queue_conversations
from ssbroker.broker.unit_of_work import Work
from tests.broker.conftest import START, Clock

Scene = Callable[[Instance, Database, WorkQueue], object]
_TABLES: Final = (
    "ssb_conversation_endpoints",
    "ssb_queued_messages",
    "ssb_transmission_queue",
    "ssb_group_leases",
    "ssb_failures",
)


def process(queue: WorkQueue) -> list[Any]:
    """Takes all messages; returns their bodies, and the order in which they are taken."""
    found: list[Any] = []
    while True:
        with queue.take(timeout=0) as job:
            if not job:
                return found
            found.append((job.value, job.message.priority, job.message.message_sequence_number))


def fail(queue: WorkQueue, times: int) -> None:
    for _ in range(times):
        with pytest.raises(OSError, match="no space"), queue.take(timeout=0):
            raise OSError("no space")


def plain(_instance: Instance, _database: Database, queue: WorkQueue) -> object:
    queue.put(b"one")
    queue.put({"two": 2}, codec="json")
    queue.put(b"")
    queue.put(b"later", at=START + timedelta(hours=1))
    return process(queue)


def in_a_transaction(_instance: Instance, database: Database, queue: WorkQueue) -> object:
    with database.transaction() as t:
        queue.put(b"one", transaction=t)
        queue.put(b"two", transaction=t)
    with queue.take() as job, job.transaction() as t:
        queue.put(b"three", transaction=t)
    return process(queue)


def with_priority(instance: Instance, _database: Database, queue: WorkQueue) -> object:
    instance.execute("USE Queues; CREATE BROKER PRIORITY High FOR CONVERSATION SET (PRIORITY_LEVEL = 9)")
    queue.put(b"one")
    return process(queue)


def with_retention(instance: Instance, _database: Database, queue: WorkQueue) -> object:
    instance.execute("USE Queues; ALTER QUEUE Jobs WITH RETENTION = ON")
    queue.put(b"one")
    return process(queue)


def retention_changes(instance: Instance, _database: Database, queue: WorkQueue) -> object:
    queue.put(b"one")
    instance.execute("USE Queues; ALTER QUEUE Jobs WITH RETENTION = ON")
    return process(queue)


def disabled(instance: Instance, _database: Database, queue: WorkQueue) -> object:
    instance.execute("USE Queues; ALTER QUEUE Jobs WITH STATUS = OFF")
    queue.put(b"one")
    instance.execute("USE Queues; ALTER QUEUE Jobs WITH STATUS = ON")
    instance.run_due()
    return process(queue)


def without_delivery(instance: Instance, _database: Database, queue: WorkQueue) -> object:
    instance.execute("ALTER DATABASE Queues SET DISABLE_BROKER")
    queue.put(b"one")
    instance.execute("ALTER DATABASE Queues SET ENABLE_BROKER")
    instance.run_due()
    return process(queue)


def with_a_route(instance: Instance, _database: Database, queue: WorkQueue) -> object:
    instance.execute("USE Queues; CREATE ROUTE Away WITH SERVICE_NAME = 'Jobs', ADDRESS = 'tcp://elsewhere:4022'")
    queue.put(b"one")
    return process(queue)


def with_a_binding(instance: Instance, _database: Database, queue: WorkQueue) -> object:
    instance.execute(
        "USE Queues; CREATE USER Partner WITHOUT LOGIN;"
        "CREATE REMOTE SERVICE BINDING Jobs TO SERVICE 'Jobs' WITH USER = Partner"
    )
    queue.put(b"one")
    return process(queue)


def with_validation(instance: Instance, _database: Database, queue: WorkQueue) -> object:
    instance.execute("USE Queues; ALTER MESSAGE TYPE [application/json] VALIDATION = WELL_FORMED_XML")
    queue.put(1, codec="json")
    queue.put(b"one")
    return process(queue)


def failing(instance: Instance, _database: Database, queue: WorkQueue) -> object:
    moving = instance.queue("Moving", on_poison="move")
    moving.put(b"bad")
    moving.put(b"good")
    fail(moving, 5)
    queue.put(b"one")
    fail(queue, 2)
    return process(moving), process(instance.queue("Moving_failed")), process(queue)


def with_another_dialog(_instance: Instance, database: Database, queue: WorkQueue) -> object:
    queue.put(b"one")
    with database.transaction() as t:
        t.send(t.begin_dialog("Jobs", "Jobs", contract="//ssbroker/queue"), b"another")
        own = t.begin_dialog("Jobs", "Jobs", contract="//ssbroker/queue")
        t.send(own, b"first")
        t.send(own, b"second")
    return process(queue)


def with_a_timer(_instance: Instance, database: Database, queue: WorkQueue) -> object:
    queue.put(b"one")
    with queue.take() as job, database.transaction() as t:
        t.begin_conversation_timer(job.message.conversation_handle, 60)
    return None


def with_a_reply(_instance: Instance, database: Database, queue: WorkQueue) -> object:
    queue.put(b"one")
    with database.transaction() as t:
        (initiator,) = (
            handle
            for (handle,) in t.connection.execute(
                "SELECT conversation_handle FROM ssb_conversation_endpoints WHERE is_initiator"
            )
        )
        t.send(initiator, b"more")
    return process(queue)


SCENES: Final[list[Scene]] = [
    plain,
    in_a_transaction,
    with_priority,
    with_retention,
    retention_changes,
    disabled,
    without_delivery,
    with_a_route,
    with_a_binding,
    with_validation,
    failing,
    with_another_dialog,
    with_a_timer,
    with_a_reply,
]


def play(folder: Path, scene: Scene) -> list[object]:
    """Returns what a scene returns, the rows that it leaves, with the ids by order of their appearance, and the counters."""
    with Instance.create(folder, name="shop", clock=Clock(), random=random.Random(7), background=False) as instance:
        queue = instance.queue("Jobs")
        database = instance.database("Queues")
        returned = scene(instance, database, queue)
        with database_context(database).file.read() as connection:
            rows = [connection.execute(f"SELECT * FROM {table}").fetchall() for table in _TABLES]
        ids: dict[object, int] = {}
        numbered = [
            [tuple(ids.setdefault(each, len(ids)) if _is_id(each) else each for each in row) for row in some]
            for some in rows
        ]
        counters = database_context(database).instance.counters.counts()
    return [returned, numbered, counters]


def _is_id(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == 16


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_both_paths_leave_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scene: Scene) -> None:
    found = play(tmp_path / "one step", scene)
    monkeypatch.setattr(work_queue_conversations, "plan", lambda *_: None)
    monkeypatch.setattr(work_queue_conversations, "remove_received", lambda *_: False)
    assert found == play(tmp_path / "steps", scene)


def test_one_step_is_taken(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the other test compares the general path with itself."""
    taken: list[object] = []

    def record(function: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(work: Work, *arguments: object) -> Any:
            taken.append(function(work, *arguments))
            return taken[-1]

        return recorded

    monkeypatch.setattr(work_queue_conversations, "send_first", record(work_queue_conversations.send_first))
    monkeypatch.setattr(work_queue_conversations, "remove_received", record(work_queue_conversations.remove_received))
    queue = instance.queue("Jobs")
    queue.put(b"one")
    process(queue)
    assert len(taken) == 2
    assert all(taken)
