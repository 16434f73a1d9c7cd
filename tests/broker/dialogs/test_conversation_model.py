"""Random operations, commits and rollbacks of applications give the same result as the model (P11)."""

from __future__ import annotations

import copy
import random
import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ssbroker.broker.database import database_context
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.broker.transaction import Transaction
from ssbroker.exceptions import BrokerError
from ssbroker.store import conversation_endpoints
from tests.broker import dialog_calls
from tests.broker.conftest import Clock
from tests.broker.dialogs.conversation_model import Item, Model, RefusedError

QUEUES = {"//Shop": "Replies", "//VIP": "Replies", "//Orders": "Orders"}
PRIORITIES = {"//Shop": 5, "//VIP": 8, "//Orders": 5, "far": 5}
ROUNDS_MAX = 20  # of 75 s, less than the time for which closed endpoints are kept


class PlannedError(Exception):
    """Rolls back a transaction."""


NAMES = [
    *("begin", "begin", "end", "fail", "clean_up", "move"),
    *("send", "send", "send", "send", "send_batch", "send_batch"),
    *("receive", "receive", "receive", "receive"),
]


def commit_or_raise(t: Transaction, *, commits: bool) -> None:
    """Raises PlannedError unless the transaction is to be committed."""
    if not commits:
        raise PlannedError


OPERATIONS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=5)
SEEDS = range(12)
STEPS = 60
OPEN_ONLY_BELOW = 6


class Conversations(RuleBasedStateMachine):
    """Runs each operation on an instance and on its model."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.instance = Instance.create(
            self.folder / "instance", name="shop", clock=self.clock, random=random.Random(7), background=False
        )
        self.database = self.instance.create_database("Sales")
        for name in ("Orders", "Replies"):
            self.database.create_queue(name, retention=name == "Replies", poison_message_handling=False)
        for service, queue in QUEUES.items():
            self.database.create_service(service, queue=queue)
        self.database.create_broker_priority("VIP", local_service="//VIP", level=PRIORITIES["//VIP"])
        self.model = Model(queues=QUEUES, priorities=PRIORITIES, target="//Orders", retaining={"Replies"})
        self.ids: dict[int, bytes] = {}
        self.handles: dict[tuple[int, bool], bytes] = {}
        self.bodies = 0
        self.received = 0
        self.rounds = 0

    def teardown(self) -> None:
        self.instance.close()
        shutil.rmtree(self.folder)

    @rule(operations=OPERATIONS, commits=st.booleans())
    def transaction(self, operations: list[tuple[str, int, int]], commits: bool) -> None:  # noqa: FBT001  # Hypothesis names it
        before = copy.deepcopy(self.model), dict(self.ids), dict(self.handles)
        try:
            with self.database.transaction() as t:
                for name, one, two in operations:
                    getattr(self, f"do_{name}")(t, one, two)
                commit_or_raise(t, commits=commits)
            self.deliver()
        except PlannedError:
            self.model, self.ids, self.handles = before

    @rule(queue=st.sampled_from(["Orders", "Replies"]))
    def switch(self, queue: str) -> None:
        self.model.switch(queue)
        dialog_calls.switch(self.database, queue, on=queue not in self.model.off)
        self.deliver()

    @precondition(lambda self: self.rounds < ROUNDS_MAX)
    @rule()
    def advance_clock(self) -> None:
        self.rounds += 1
        self.clock.advance(seconds=75)
        self.instance.run_due()
        self.model.deliver_all()

    def deliver(self) -> None:
        """Tries to deliver everything, as after a change of objects; twice, since one ended dialog may unblock another."""
        for _ in range(2):
            instance_context(self.instance).listener.changed(database_context(self.database))
            self.instance.run_due()
        self.model.deliver_all()

    @invariant()
    def endpoints_equal_the_model(self) -> None:
        with database_context(self.database).file.read() as connection:
            rows = connection.execute(
                "SELECT conversation_id, is_initiator, state, send_sequence, priority FROM ssb_conversation_endpoints"
            ).fetchall()
            waiting = connection.execute("SELECT count(*) FROM ssb_transmission_queue WHERE NOT is_inbound").get
        assert {row[:2]: row[2:] for row in rows} == {
            (self.ids[side.conversation], int(side.is_initiator)): (side.state, side.sent, side.priority)
            for side in self.model.sides.values()
        }
        assert waiting == sum(len(side.pending) for side in self.model.sides.values())

    def do_begin(self, t: Transaction, one: int, two: int) -> None:
        service = ("//Shop", "//VIP")[one % 2]
        related = self.any_key(two) if two > 4 else None
        # The model has queues only, but a group belongs to one service.
        if related is not None and self.model.sides.get(related) is not None:
            same_service = (
                self.model.sides[related].is_initiator and self.model.sides[related].priority == PRIORITIES[service]
            )
            related = related if same_service else None

        def begin() -> uuid.UUID:
            handle = None if related is None else self.handle(t, related)
            return t.begin_dialog(service, "//Orders", related_conversation=handle)

        handle, key = self.run_on_both(begin, lambda: self.model.begin(service, related))
        if handle is not None and key is not None:
            found = conversation_endpoints.by_handle(t.connection, handle.bytes)
            assert found is not None
            self.ids[key[0]] = found.conversation_id
            self.handles[key] = handle.bytes

    def do_send(self, t: Transaction, one: int, two: int) -> None:
        def send(key: tuple[int, bool]) -> None:
            for _ in range(two % 3 + 1):
                self.run_on_both(*self.send_calls(t, key, self.body()))

        self.on_side(one, send)

    def send_calls(
        self, t: Transaction, key: tuple[int, bool], body: bytes
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        return lambda: t.send(self.handle(t, key), body), lambda: self.model.send(key, [body])

    def do_send_batch(self, t: Transaction, one: int, two: int) -> None:
        def batch(key: tuple[int, bool]) -> None:
            bodies = [self.body() for _ in range(two + 1)]
            handles = [self.handle(t, key)] * len(bodies)
            table = {"conversation_handle": handles, "message_body": bodies}
            self.run_on_both(lambda: t.send_batch(pa.table(table)), lambda: self.model.send(key, bodies))

        self.on_side(one, batch)

    def do_end(self, t: Transaction, one: int, _: int) -> None:
        self.on_side(
            one,
            lambda key: self.run_on_both(
                lambda: t.end_conversation(self.handle(t, key)), lambda: self.model.end(key, error=False)
            ),
        )

    def do_fail(self, t: Transaction, one: int, _: int) -> None:
        def fail(key: tuple[int, bool]) -> None:
            self.run_on_both(
                lambda: t.end_conversation(self.handle(t, key), error=(1, "it failed")),
                lambda: self.model.end(key, error=True),
            )

        self.on_side(one, fail)

    def do_clean_up(self, t: Transaction, one: int, _: int) -> None:
        """Cleans up initiators only: after a cleanup at the target, later messages would create another endpoint."""

        def clean_up(key: tuple[int, bool]) -> None:
            if key[1]:
                self.run_on_both(
                    lambda: t.end_conversation(self.handle(t, key), cleanup=True), lambda: self.model.clean_up(key)
                )

        self.on_side(one, clean_up)

    def do_move(self, t: Transaction, one: int, two: int) -> None:
        def move(key: tuple[int, bool]) -> None:
            to = self.any_key(two)
            if to not in self.model.sides:
                return
            found = conversation_endpoints.by_handle(t.connection, self.handle(t, to))
            assert found is not None
            group = found.conversation_group_id
            self.run_on_both(lambda: t.move_conversation(self.handle(t, key), group), lambda: self.model.move(key, to))

        self.on_side(one, move)

    def do_receive(self, t: Transaction, one: int, two: int) -> None:
        queue, top = ("Orders", "Replies")[one % 2], (None, 1, 2, 5)[two % 4]
        table, expected = self.run_on_both(lambda: t.receive(queue, top=top), lambda: self.model.receive(queue, top))
        if table is None or expected is None:
            return
        seen = [
            ((row["conversation_id"], not row["is_initiator"]), row["message_sequence_number"], body)
            for row, body in zip(table.to_pylist(), dialog_calls.contents_of(table), strict=True)
        ]
        self.received += len(seen)
        assert seen == [((self.ids[key[0]], key[1]), item.number, shown(item)) for key, item in expected]

    def run_on_both(self, real: Callable[[], Any], model: Callable[[], Any]) -> tuple[Any, Any]:
        """Runs one operation on both; both succeed, or fail with the same number."""
        number: int | None = None
        expected = found = None
        try:
            expected = model()
        except RefusedError as refused:
            number = refused.number
        if number is None:
            found = real()
        else:
            with pytest.raises(BrokerError) as error:
                real()
            assert error.value.number == number
        return found, expected

    def on_side(self, which: int, what: Callable[[tuple[int, bool]], object]) -> None:
        key = self.any_key(which)
        if key is not None:
            what(key)

    def any_key(self, which: int) -> tuple[int, bool] | None:
        """Usually an open endpoint; sometimes any existing or former one."""
        known = sorted({*self.handles, *self.model.sides})
        open_keys = [key for key in known if key in self.model.sides and self.model.sides[key].state in ("SO", "CO")]
        candidates = open_keys if which < OPEN_ONLY_BELOW and open_keys else known
        return candidates[-1 - which % len(candidates)] if candidates else None

    def handle(self, t: Transaction, key: tuple[int, bool]) -> bytes:
        if key not in self.handles:
            found = conversation_endpoints.by_conversation(t.connection, self.ids[key[0]], is_initiator=key[1])
            assert found is not None
            self.handles[key] = found.conversation_handle
        return self.handles[key]

    def body(self) -> bytes:
        self.bodies += 1
        return f"{self.bodies}".encode()


def shown(item: Item) -> bytes | str:
    return item.body if item.kind == "message" else item.kind


Conversations.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestConversations = Conversations.TestCase


@pytest.mark.rule("P11")
@pytest.mark.parametrize("seed", SEEDS)
def test_long_runs(seed: int) -> None:
    """Longer and less regular than the runs of Hypothesis."""
    rng = random.Random(seed)
    conversations = Conversations()
    try:
        for _ in range(STEPS):
            which = rng.random()
            for queue in sorted(conversations.model.off):
                if rng.random() < 0.3:
                    conversations.switch(queue)
            if which < 0.8:
                count = rng.randrange(1, 6)
                operations = [(rng.choice(NAMES), rng.randrange(8), rng.randrange(8)) for _ in range(count)]
                conversations.transaction(operations, rng.random() < 0.75)
            elif which < 0.92:
                conversations.switch(rng.choice(["Orders", "Replies"]))
            elif conversations.rounds < ROUNDS_MAX:
                conversations.advance_clock()
            conversations.endpoints_equal_the_model()
        assert conversations.received >= 5
    finally:
        conversations.teardown()
