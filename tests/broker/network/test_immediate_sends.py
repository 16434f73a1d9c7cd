"""A thread sends a few messages itself after it has committed them; an interrupt of that loses nothing."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import pyarrow as pa
import pytest

from ssbroker.broker.delivery import Delivery
from ssbroker.broker.network.interfaces import SEND_NOW_BYTES_MAX, SendResult
from ssbroker.broker.network.message_exchange import SEND_NOW_MESSAGES_MAX, MessageExchange
from ssbroker.broker.network.socket_endpoint import SocketEndpoint
from tests.broker.network.served_pair import ServedPair
from tests.broker.sample_databases import ORDERS, SHOP, STOCK, waiting

DEADLINE = 60.0
INTERRUPTS = 60


class Pair(ServedPair):
    """A shop and a bank with a dialog that the bank has acknowledged."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__(folder, stack)
        with self.sales.transaction() as t:
            self.dialog = t.begin_dialog(SHOP, STOCK, encryption=False)
            t.send(self.dialog, b"first")
        assert self.receive() == b"first"
        wait_until(lambda: not waiting(self.sales))

    @property
    def exchange(self) -> MessageExchange:
        return self.servers[0].exchange

    def send(self, *bodies: bytes) -> None:
        with self.sales.transaction() as t:
            for body in bodies:
                t.send(self.dialog, body)

    def receive(self) -> bytes | None:
        with self.stock.transaction() as t:
            received = t.receive_one(ORDERS, timeout=DEADLINE)
        return None if received is None else received.message_body


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(tmp_path, stack)


def wait_until(is_done: Callable[[], bool]) -> None:
    changed = threading.Event()
    for _ in range(int(DEADLINE / 0.01)):
        if is_done():
            return
        changed.wait(0.01)
    pytest.fail("not done in time")


class Interrupt:
    """Simulates a signal at one step of a function in this thread, where Python may run a signal handler: as a function begins, or after a call of C code."""

    def __init__(
        self, step: int, action: Callable[[], object], code: CodeType = MessageExchange._send_now.__code__
    ) -> None:
        self.is_done = False
        self._code = code
        self._step = step
        self._steps_left = 0
        self._action = action

    def __enter__(self) -> Self:
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        if frame.f_code is self._code and event in ("call", "return"):
            self._steps_left = self._step if event == "call" else 0
        if self._steps_left and event in ("call", "c_return"):
            self._steps_left -= 1
            if not self._steps_left:
                sys.setprofile(None)
                self.is_done = True
                self._action()


def interrupt() -> None:
    raise KeyboardInterrupt


def test_the_committing_thread_sends_a_few_messages(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one of several; another thread sends if it uses the dialogs at that moment."""
    threads: set[int] = set()
    send = SocketEndpoint.send

    def recorded(endpoint: SocketEndpoint, address: str, rows: pa.Table) -> SendResult:
        threads.add(threading.get_ident())
        return send(endpoint, address, rows)

    monkeypatch.setattr(SocketEndpoint, "send", recorded)
    for number in range(20):
        pair.send(b"%d" % number)
        assert pair.receive() == b"%d" % number
    assert threading.get_ident() in threads


@pytest.mark.parametrize(
    "bodies", [[b"%d" % number for number in range(SEND_NOW_MESSAGES_MAX + 1)], [bytes(SEND_NOW_BYTES_MAX)]]
)
def test_many_or_large_messages_wait_for_a_turn(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, bodies: list[bytes]
) -> None:
    pair.send(bodies[0])  # the next messages are expected to be as large
    assert pair.receive() == bodies[0]

    def fail(_exchange: MessageExchange) -> bool:
        pytest.fail("the committing thread sends many or large messages")

    monkeypatch.setattr(MessageExchange, "_send_now", fail)
    pair.send(*bodies)
    assert [pair.receive() for _ in bodies] == bodies


def test_messages_wait_while_another_thread_uses_the_dialogs(pair: Pair) -> None:
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        pair.exchange._guard.acquire(timeout=DEADLINE)
        entered.set()
        leave.wait(DEADLINE)
        pair.exchange._guard.release()

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait(DEADLINE)
    pair.send(b"two chairs")
    assert len(waiting(pair.sales)) == 1
    leave.set()
    holder.join()
    assert pair.receive() == b"two chairs"


def send_until_reached(interrupted: Interrupt, pair: Pair) -> list[bytes]:
    """Sends until the committing thread is interrupted; returns what was sent. A busy exchange sends in its own thread."""
    sent: list[bytes] = []
    while not interrupted.is_done:
        sent.append(b"%d" % len(sent))
        with interrupted:
            pair.send(sent[-1])
    return sent


@pytest.mark.rule("P17")
def test_an_interrupted_send_loses_nothing(pair: Pair) -> None:
    """Each message arrives once and in order, whether its send was interrupted or not."""
    steps = random.Random(17)
    count = 0
    for number in range(INTERRUPTS):
        try:
            with Interrupt(steps.randint(1, 400), interrupt):
                pair.send(b"%d" % number)
        except KeyboardInterrupt:
            count += 1
        assert pair.receive() == b"%d" % number
    assert count > INTERRUPTS // 4
    wait_until(lambda: not waiting(pair.sales))


def test_an_unexpected_error_does_not_reach_the_application(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("unexpected")

    for body in send_until_reached(Interrupt(60, fail), pair):
        assert pair.receive() == body
    assert "committed messages could not be sent immediately" in caplog.text


@pytest.mark.parametrize("step", range(5, 300, 40))
def test_a_signal_handler_may_send(pair: Pair, step: int) -> None:
    """It interrupts a send of the main thread."""
    sent = send_until_reached(Interrupt(step, lambda: pair.send(b"by the handler")), pair)
    received = [pair.receive() for _ in range(len(sent) + 1)]
    assert [body for body in received if body != b"by the handler"] == sent
    assert received.count(b"by the handler") == 1


@pytest.mark.parametrize(
    ("code", "step"),
    [
        *((Delivery.deliver_sent.__code__, step) for step in range(1, 9)),
        *((MessageExchange._send_now.__code__, step) for step in range(5, 400, 30)),
    ],
)
def test_a_signal_handler_may_close_the_server(pair: Pair, code: CodeType, step: int) -> None:
    server = pair.servers[0]
    sent = send_until_reached(Interrupt(step, server.close, code), pair)
    with pair.shop.serve(port=server.port, allow_unencrypted=True):
        assert [pair.receive() for _ in sent] == sent
