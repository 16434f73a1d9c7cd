"""Applications send, receive, end and roll back while rows are lost, plans become stale and instances crash."""

from __future__ import annotations

import random
import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ssbroker._well_known import DIALOG_TIMER, END_DIALOG, ERROR
from ssbroker.broker.database import database_context
from ssbroker.exceptions import BrokerError
from ssbroker.store import conversation_endpoints
from tests.broker.dialog_calls import REPLIES
from tests.broker.network.engine_pair import DEFAULT, MINUTE, ORDERS, SHOP, STOCK, TRADE, Pair, Row, Side, pair

STEPS = 120
ROUNDS_MAX = 40
SYSTEM = (END_DIALOG, ERROR, DIALOG_TIMER)


def expected(error: BrokerError, *numbers: int) -> None:
    """Raises the error unless its number is expected."""
    if error.number not in numbers:
        raise error


class RandomOperations:
    """Random operations, and the messages sent and received, by conversation and side of the sender."""

    def __init__(self, engines: Pair, seed: int) -> None:
        self.engines = engines
        self.random = random.Random(seed)
        self.sent: dict[tuple[bytes, bool], int] = defaultdict(int)
        self.received: dict[tuple[bytes, bool], list[int]] = defaultdict(list)
        self.ended: set[bytes] = set()
        self.stale = 0

    def run(self) -> None:
        frequent = [
            self.deliver,
            self.deliver,
            self.deliver,
            self.deliver,
            self.send,
            self.send,
            self.send,
            self.receive,
            self.wait,
        ]
        rare = [self.begin, self.end, self.switch, self.crash, self.flush]
        self.begin()
        for _ in range(STEPS):
            self.random.choice(frequent if self.random.random() < 0.8 else rare)()
        self.deliver_all()

    def side(self) -> Side:
        return self.random.choice([self.engines.shop, self.engines.stock])

    def handles(self, side: Side) -> list[tuple[bytes, bool, uuid.UUID]]:
        with database_context(side.database).file.read() as connection:
            found: list[Any] = connection.execute(
                "SELECT conversation_id, is_initiator, conversation_handle FROM ssb_conversation_endpoints "
                "WHERE state NOT IN ('SI', 'CD') ORDER BY conversation_id"
            ).fetchall()
        return [
            (conversation, bool(is_initiator), uuid.UUID(bytes=handle)) for conversation, is_initiator, handle in found
        ]

    def begin(self) -> None:
        with self.engines.shop.database.transaction() as t:
            t.begin_dialog(SHOP, STOCK, contract=TRADE, lifetime=self.random.choice([200, None, None, None]))

    def send(self) -> None:
        side = self.side()
        found = self.handles(side)
        if not found:
            return
        conversation, is_initiator, handle = self.random.choice(found)
        for _ in range(self.random.choice([1, 1, 3])):
            number = self.sent[conversation, is_initiator]
            body = b"%d:" % number + self.random.randbytes(self.random.choice([0, 20, 250]))
            try:
                with side.database.transaction() as t:
                    t.send(handle, body, message_type=DEFAULT)
            except BrokerError as error:
                expected(error, 8429, 8489)
                self.ended.add(conversation)
                return
            self.sent[conversation, is_initiator] += 1

    def receive(self) -> None:
        self.receive_from(self.side(), top=self.random.choice([1, 5]))

    def receive_from(self, side: Side, *, top: int) -> int:
        """Receives from a queue; often ends a conversation that the other side has ended."""
        with side.database.transaction() as t:
            try:
                rows: list[dict[str, Any]] = t.receive(
                    ORDERS if side is self.engines.stock else REPLIES, top=top
                ).to_pylist()
            except BrokerError as error:
                expected(error, 9617)  # the queue is off
                return 0
            for row in rows:
                handle = uuid.UUID(bytes=row["conversation_handle"])
                found = conversation_endpoints.by_handle(t.connection, handle.bytes)
                assert found is not None
                if row["message_type_name"] not in SYSTEM:
                    number = int(row["message_body"].split(b":", maxsplit=1)[0])
                    self.received[found.conversation_id, not found.is_initiator].append(number)
                    continue
                self.ended.add(found.conversation_id)
                if self.random.random() < 0.7 and found.state in ("DI", "ER"):
                    t.end_conversation(handle)
                    break
        return len(rows)

    def end(self) -> None:
        side = self.side()
        found = self.handles(side)
        if not found or self.random.random() < 0.5:
            return
        conversation, is_initiator, handle = self.random.choice(found)
        # A target endpoint that was cleaned up would be created again by later messages of the dialog.
        options: dict[str, Any] = self.random.choice(
            [{}, {"error": (7, "sold out")}, {"cleanup": True} if is_initiator else {}]
        )
        try:
            with side.database.transaction() as t:
                t.end_conversation(handle, **options)
        except BrokerError as error:
            expected(error, 8427)  # it has already ended
        self.ended.add(conversation)

    def switch(self) -> None:
        side = self.side()
        name = ORDERS if side is self.engines.stock else REPLIES
        side.database.alter_queue(name, status=self.random.random() < 0.5)

    def crash(self) -> None:
        self.side().restart()

    def flush(self) -> None:
        side = self.side()
        side.dialogs.flush(now=side.now)

    def wait(self) -> None:
        self.engines.clock.advance(seconds=self.random.choice([0.2, 1, 5, MINUTE]))
        for side in (self.engines.shop, self.engines.stock):
            side.instance.run_due()

    def deliver(self, *, share: float = 0.8) -> None:
        """Delivers a share of the rows of both sides, sometimes with another operation between plan and commit."""
        for source, target in ((self.engines.shop, self.engines.stock), (self.engines.stock, self.engines.shop)):
            rows = [row for row in source.rows() if self.random.random() < share]
            self.random.shuffle(rows)
            while rows:
                rows = self.deliver_to(target, rows, is_disturbed=share < 1 and self.random.random() < 0.3)

    def deliver_to(self, side: Side, rows: list[Row], *, is_disturbed: bool) -> list[Row]:
        effects = side.process(rows)
        if is_disturbed:
            operation: Callable[[], None] = self.random.choice(
                [self.end, self.send, self.receive, self.switch, self.wait]
            )
            operation()
        if is_disturbed and self.random.random() < 0.2:
            side.dialogs.undo(effects)
            return []
        stale = side.commit_or_undo(effects)
        if stale is None:
            return []
        self.stale += 1
        assert stale.keys
        return rows

    def deliver_all(self) -> None:
        """Delivers without faults until all messages have arrived or their conversations have ended."""
        for side, name in ((self.engines.shop, REPLIES), (self.engines.stock, ORDERS)):
            side.database.alter_queue(name, status=True)
        for _ in range(ROUNDS_MAX):
            self.deliver(share=1)
            self.engines.clock.advance(seconds=70)
            for side in (self.engines.shop, self.engines.stock):
                side.instance.run_due()
                while self.receive_from(side, top=50):
                    pass
            if not self.engines.shop.count("transmission_queue") and not self.engines.stock.count("transmission_queue"):
                return
        raise AssertionError(
            [
                side.instance.view("sys.transmission_queue").to_pylist()
                for side in (self.engines.shop, self.engines.stock)
            ]
        )

    def check(self) -> None:
        for sender, numbers in self.received.items():
            assert numbers == sorted(set(numbers)), sender
            assert numbers == list(range(len(numbers))), sender
            assert len(numbers) <= self.sent[sender], sender
        for (conversation, is_initiator), number in self.sent.items():
            if conversation not in self.ended:
                assert len(self.received[conversation, is_initiator]) == number, (conversation, is_initiator)


@pytest.mark.rule("P11", "P14", "P16")
@pytest.mark.parametrize("seed", range(8))
def test_concurrent_use(tmp_path: Path, seed: int) -> None:
    """Messages of open conversations are received once and in order; of ended ones, the first messages are."""
    engines = pair(tmp_path, has_subscriber=seed % 2 == 0, max_fragment_bytes=100)
    operations = RandomOperations(engines, seed)
    operations.run()
    operations.check()
    for side in (engines.shop, engines.stock):
        with database_context(side.database).file.read() as connection:
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            assert connection.pragma("integrity_check") == "ok"
    engines.close()
