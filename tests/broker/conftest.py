"""An instance in its own folder, whose clock is moved by the test and whose randomness has a seed."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance
from ssbroker.store.database_file import DatabaseFile

START = datetime(2026, 11, 21, tzinfo=UTC)
QUEUE = "Orders"
INITIATOR = "//Shop"
TARGET = "//Orders"


class Clock:
    """Returns the time set by the test."""

    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now

    def advance(self, *, seconds: float) -> None:
        """Lets time pass."""
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def without_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system where processes cannot wake each other. Request it before the instance."""
    monkeypatch.setattr(DatabaseFile, "share_memory", lambda _: None)


@pytest.fixture
def instance(tmp_path: Path, clock: Clock) -> Iterator[Instance]:
    """An instance without background threads."""
    folder = tmp_path / "instance"
    with Instance.create(folder, name="shop", clock=clock, random=random.Random(7), background=False) as created:
        yield created


@pytest.fixture
def sales(instance: Instance) -> Database:
    """The database Sales with the queue `Orders` of the service `//Orders`, and `Replies` of `//Shop`; both accept DEFAULT."""
    database = instance.create_database("Sales")
    database.create_queue(QUEUE)
    database.create_service(TARGET, queue=QUEUE)
    database.create_queue("Replies")
    database.create_service(INITIATOR, queue="Replies")
    return database


@pytest.fixture
def established_dialog(sales: Database) -> tuple[Database, uuid.UUID]:
    """An established conversation: one message was sent and received."""
    with sales.transaction() as t:
        dialog = t.begin_dialog(INITIATOR, TARGET)
        t.send(dialog, b"first")
    with sales.transaction() as t:
        t.receive(QUEUE)
    return sales, dialog
