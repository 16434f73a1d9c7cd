"""Round trips of ssbroker between two processes: a request and its answer, each in a durable transaction."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

from benches.network_rivals import Setting
from benches.network_rivals.ours import QUEUE, Ours, OursReceiver, OursSender

_BODY = bytes(1 << 10)
_WAIT_SECONDS = 0.2
_DEADLINE_SECONDS = 60.0


def round_trips(setting: Setting, count: int, *, pause: float) -> list[float]:
    """Returns the duration of each round trip in seconds, with a pause before each; the first one is not counted."""
    Ours().prepare(setting)
    context = multiprocessing.get_context("spawn")
    pipe, other_end = context.Pipe()
    answering = context.Process(target=_answer, args=(other_end, setting), daemon=True)
    answering.start()
    sender = OursSender(setting, [pipe.recv()])
    try:
        pipe.send("the sender has its port")
        _ask(sender)
        return [_ask(sender, pause) for _ in range(count)]
    finally:
        pipe.send("stop")
        sender.close()
        answering.join(_DEADLINE_SECONDS)


def _ask(sender: OursSender, pause: float = 0.0) -> float:
    time.sleep(pause)
    started = time.monotonic()
    sender.send([(0, _BODY)])
    with sender.database.transaction() as t:
        answer = t.receive_one(QUEUE, timeout=_DEADLINE_SECONDS)
    assert answer is not None, "no answer"
    return time.monotonic() - started


def _answer(pipe: Connection[Any, Any], setting: Setting) -> None:
    receiver = OursReceiver(setting, 0)
    pipe.send(receiver.address)
    pipe.recv()
    receiver.create_reply_route()
    while not pipe.poll():
        with receiver.database.transaction() as t:
            request = t.receive_one(QUEUE, timeout=_WAIT_SECONDS)
            if request is not None:
                t.send(request.conversation_handle, request.message_body or b"")
    receiver.close()
