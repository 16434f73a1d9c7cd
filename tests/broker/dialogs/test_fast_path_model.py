"""The native fast path gives the same result as the Python path in every column, and ignores messages outside it."""

from __future__ import annotations

import random
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssbroker import SsbrokerError
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.broker.transaction import Transaction
from ssbroker.store.session import Session
from tests.broker.conftest import Clock
from tests.internals import instance_of

TABLES = ("ssb_conversation_endpoints", "ssb_queued_messages", "ssb_transmission_queue", "ssb_queues")
FAR = "//Elsewhere"


def create_world(folder: Path) -> None:
    """An instance with queues, services, a contract and a priority."""
    made = Instance.create(folder, name="shop", clock=Clock(), random=random.Random(3), background=False)
    sales = made.create_database("Sales")
    sales.create_queue("Orders")
    sales.create_queue("Replies")
    sales.create_queue("Audit", retention=True)
    sales.create_message_type("//Order", validation="EMPTY")
    sales.create_message_type("//Answer", validation="WELL_FORMED_XML")
    sales.create_message_type("//Note")
    sales.create_contract(
        "//Trade", {"//Order": "INITIATOR", "//Answer": "TARGET", "//Note": "TARGET", "DEFAULT": "ANY"}
    )
    sales.create_service("//Shop", queue="Replies", contracts=["DEFAULT"])
    sales.create_service("//Orders", queue="Orders", contracts=["DEFAULT", "//Trade"])
    sales.create_service("//Audit", queue="Audit", contracts=["DEFAULT"])
    sales.create_broker_priority("high", local_service="//Orders", level=8)
    made.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An instance folder; each example copies it, because creating it takes longer than most examples."""
    folder = tmp_path_factory.mktemp("world") / "shop"
    create_world(folder)
    return folder


def opened(world: Path, folder: Path) -> Instance:
    """Returns a copy of the instance, whose ids come from a seed."""
    shutil.copytree(world, folder)
    return Instance.open(folder, clock=Clock(), random=random.Random(3), background=False)


@contextmanager
def no_fast_path() -> Iterator[None]:
    """Disables the fast path."""
    with (
        mock.patch.object(Session, "send", return_value=False),
        mock.patch.object(Session, "send_batch", return_value=False),
    ):
        yield


def rows(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    with database_context(database).file.read() as connection:
        return {name: connection.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for name in TABLES}


def begin_dialogs(t: Transaction) -> list[uuid.UUID]:
    """Dialogs within the database, one with a queue that retains, one with an unknown service, and one with a typed contract."""
    made = [t.begin_dialog("//Shop", to, lifetime=60) for to in ("//Orders", "//Orders", "//Audit", FAR)]
    return [*made, t.begin_dialog("//Shop", "//Orders", contract="//Trade")]


NUMBERS = st.sampled_from([0, 1, 1, 1, 2, 3, 4, 4])
BODIES = st.sampled_from([b"", b"<a/>", b"other"])
KINDS = st.sampled_from(["DEFAULT", "DEFAULT", "//Order", "//Answer", "//Note", "//None"])
SEND = st.tuples(st.just("send"), NUMBERS, BODIES, KINDS)
STEPS = st.lists(
    st.one_of(
        SEND,
        SEND,
        SEND,
        st.tuples(st.just("send_batch"), st.lists(NUMBERS, max_size=6)),
        st.tuples(st.just("receive"), st.sampled_from(["Orders", "Replies", "Audit"]), st.sampled_from([1, 2, None])),
        st.tuples(st.just("receive_one"), st.sampled_from(["Orders", "Audit"])),
        st.tuples(st.just("answer"), NUMBERS, BODIES, KINDS),
        st.tuples(st.just("answer"), NUMBERS, BODIES, KINDS),
        st.tuples(st.just("queue"), st.sampled_from(["Orders", "Orders", "Replies"]), st.booleans()),
        st.tuples(st.just("pause"), st.lists(NUMBERS, max_size=3)),
        st.tuples(st.just("end"), NUMBERS),
        st.tuples(st.just("commit"), st.sampled_from([True, True, False])),
        st.tuples(st.just("later"), st.sampled_from([1, 1, 1, 61])),
    ),
    max_size=40,
)


class Undo(Exception):  # noqa: N818  # it is not an error
    """Rolls back a transaction."""


def commit_or_raise(*, commits: bool) -> None:
    if not commits:
        raise Undo


class Player:
    """Runs steps in transactions of one world, and records results and errors."""

    def __init__(self, instance: Instance) -> None:
        self.database = instance.database("Sales")
        with self.database.transaction() as t:
            self.dialogs = begin_dialogs(t)
        with self.database.transaction() as t:
            for dialog in self.dialogs[1:]:
                t.send(dialog, b"first")
        with database_context(self.database).file.read() as connection:
            pairs: Any = connection.execute(
                "SELECT e.conversation_handle, f.conversation_handle FROM ssb_conversation_endpoints AS e "
                "JOIN ssb_conversation_endpoints AS f USING (conversation_id) WHERE e.is_initiator > f.is_initiator"
            )
            self.targets: dict[bytes, bytes] = dict(pairs)
        self.emitted: list[object] = []

    def play(self, steps: list[tuple[Any, ...]]) -> None:
        left = list(steps)
        while left:
            try:
                with self.database.transaction() as t:
                    while left:
                        name, *arguments = left.pop(0)
                        if name in ("queue", "pause"):
                            break
                        if name == "commit":
                            commit_or_raise(commits=arguments[0])
                            break
                        self.try_one(getattr(self, name), t, *arguments)
            except Undo:
                self.emitted.append("undone")
                name = ""
            if name == "queue":
                self.database.alter_queue(arguments[0], status=arguments[1])
            if name == "pause":
                self.pause(*arguments)

    def pause(self, numbers: list[int]) -> None:
        """Messages for a disabled queue wait, and later ones must not overtake them."""
        self.database.alter_queue("Orders", status=False)
        with self.database.transaction() as t:
            for number in numbers:
                self.try_one(self.send, t, number, b"", "DEFAULT")
        self.database.alter_queue("Orders", status=True)

    def try_one(self, step: Callable[..., object], t: Transaction, *arguments: Any) -> None:
        try:
            self.emitted.append(step(t, *arguments))
        except SsbrokerError as error:
            self.emitted.append((type(error).__name__, str(error)))

    def send(self, t: Transaction, number: int, body: bytes, kind: str) -> None:
        t.send(self.dialogs[number], body, message_type=kind)

    def answer(self, t: Transaction, number: int, body: bytes, kind: str) -> None:
        """A message from the target, if it exists."""
        row = self.targets.get(self.dialogs[number].bytes)
        if row is not None:
            t.send(uuid.UUID(bytes=row), body, message_type=kind)

    def send_batch(self, t: Transaction, numbers: list[int]) -> None:
        handles = pa.array([self.dialogs[number].bytes for number in numbers], pa.binary(16))
        bodies = pa.array([bytes([place]) for place in range(len(numbers))], pa.binary())
        t.send_batch(pa.table({"conversation_handle": handles, "message_body": bodies}))

    def receive(self, t: Transaction, queue: str, top: int | None) -> object:
        return t.receive(queue, top=top, groups=top).to_pylist()

    def receive_one(self, t: Transaction, queue: str) -> object:
        message = t.receive_one(queue)
        return None if message is None else message._row

    def later(self, _t: Transaction, seconds: int) -> None:
        clock = instance_context(instance_of(self.database)).clock
        assert isinstance(clock, Clock)
        clock.advance(seconds=seconds)

    def end(self, t: Transaction, number: int) -> None:
        t.end_conversation(self.dialogs[number])


@pytest.mark.rule("P33")
@settings(max_examples=150, deadline=None)
@given(steps=STEPS)
def test_the_fast_path_equals_the_python_path(world: Path, steps: list[tuple[Any, ...]]) -> None:
    """Compares every table, error, message and counter."""
    with tempfile.TemporaryDirectory() as folder:
        found = []
        for use_fast_path in (True, False):
            with (
                opened(world, Path(folder) / str(use_fast_path)) as instance,
                nullcontext() if use_fast_path else no_fast_path(),
            ):
                player = Player(instance)
                player.play(steps)
                counts = instance_context(instance).counters.counts()
                found.append((player.emitted, rows(player.database), counts))
        assert found[0] == found[1]
