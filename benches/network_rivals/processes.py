"""The processes of a rival: one sender and some receivers, controlled through pipes."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Final

from benches.network_rivals import Rival, Setting
from benches.network_rivals.load import MessageChecker, messages
from benches.queue_rivals import Missing

_DEADLINE_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a run.

    Attributes:
        seconds: The time from sending the first message to the commit of receiving the last one.
        cpu: The CPU time of all processes, without servers.
        delays: The latencies in seconds, sorted.
    """

    seconds: float
    cpu: float
    delays: list[float]


class Running:
    """A running rival.

    Raises:
        Missing: A server or library is not available.
    """

    def __init__(self, rival: Rival, setting: Setting) -> None:
        self.name: Final = rival.name
        self._setting: Final = setting
        self._sent = 0
        self._processes: Final[list[BaseProcess]] = []
        rival.prepare(setting)
        self._receivers: Final = [self._start(_receive, rival, setting, number) for number in range(setting.receivers)]
        addresses = [self._read_reply(pipe) for pipe in self._receivers]
        self._sender: Final = self._start(_send, rival, setting, addresses)
        self._read_reply(self._sender)

    def run(self, count: int, size: int, *, rate: float = 0.0) -> Found:
        """Sends and receives messages, at a rate per second if one is given.

        Raises:
            AssertionError: A message was lost, duplicated, out of order or altered.
        """
        started = time.monotonic()
        shares = self._shares(count)
        for pipe, share in zip(self._receivers, shares, strict=True):
            pipe.send(share)
        self._sender.send((self._sent, count, size, rate))
        self._sent += count
        cpu = self._read_reply(self._sender)
        delays: list[float] = []
        ended = started
        for pipe, share in zip(self._receivers, shares, strict=True):
            got, wrong, last, spent, seconds = self._read_reply(pipe)
            assert (got, wrong) == (share, 0), f"{self.name}: received {got} of {share} messages, {wrong} of them wrong"
            delays += seconds
            ended = max(ended, last)
            cpu += spent
        return Found(ended - started, cpu, sorted(delays))

    def close(self) -> None:
        """Ends the processes."""
        for pipe in (self._sender, *self._receivers):
            pipe.send(None)
        for process in self._processes:
            process.join(60)
            if process.is_alive():
                process.kill()

    def _shares(self, count: int) -> list[int]:
        conversations, receivers = self._setting.conversations, self._setting.receivers
        shares = [0] * receivers
        for place in range(self._sent, self._sent + count):
            shares[place % conversations % receivers] += 1
        return shares

    def _start(self, target: Any, *arguments: Any) -> Connection[Any, Any]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        process.start()
        self._processes.append(process)
        return ours

    def _read_reply(self, pipe: Connection[Any, Any]) -> Any:
        if not pipe.poll(_DEADLINE_SECONDS):
            raise TimeoutError(f"{self.name} does not finish")
        reply = pipe.recv()
        if isinstance(reply, Missing):
            raise reply
        if isinstance(reply, str) and reply.startswith("Traceback"):
            raise AssertionError(f"{self.name}: {reply}")
        return reply


def _send(pipe: Connection[Any, Any], rival: Rival, setting: Setting, addresses: Sequence[str]) -> None:
    try:
        sender = rival.sender(setting, addresses)
        pipe.send("ready")
        while (asked := pipe.recv()) is not None:
            before = time.process_time()
            _send_all(sender, setting, *asked)
            pipe.send(time.process_time() - before)
        sender.close()
    except BaseException as error:  # noqa: BLE001  # the waiting process reports any error
        pipe.send(error if isinstance(error, Missing) else traceback.format_exc())
        os._exit(1)


def _send_all(sender: Any, setting: Setting, first: int, count: int, size: int, rate: float) -> None:
    started, done = time.monotonic(), 0
    while done < count:
        size_of_batch = min(setting.batch, count - done)
        if rate:
            due = int((time.monotonic() - started) * rate) + 1 - done
            if due < 1:
                time.sleep(max(0.0, started + done / rate - time.monotonic()))
                continue
            size_of_batch = min(size_of_batch, due)
        sender.send(list(messages(size_of_batch, setting.conversations, size, first=first + done)))
        done += size_of_batch


def _receive(pipe: Connection[Any, Any], rival: Rival, setting: Setting, number: int) -> None:
    try:
        receiver, address = rival.receiver(setting, number)
        pipe.send(address)
        checker = MessageChecker()
        while (share := pipe.recv()) is not None:
            before = time.process_time()
            checker.count, checker.wrong, checker.seconds = 0, 0, []
            while checker.count < share:
                checker.take(receiver.receive(setting.batch))
            pipe.send((checker.count, checker.wrong, time.monotonic(), time.process_time() - before, checker.seconds))
        receiver.close()
    except BaseException as error:  # noqa: BLE001  # the waiting process reports any error
        pipe.send(error if isinstance(error, Missing) else traceback.format_exc())
        os._exit(1)
