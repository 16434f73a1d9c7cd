"""A TCP proxy between two instances that injects the faults of bad networks. It runs in its own thread."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tests.system.faults import DIRECTIONS, NO_FAULTS, Direction, FaultRates, Stream, stream

HOST: Final = "127.0.0.1"
_CHUNK: Final = 1 << 16
_DEADLINE_SECONDS: Final = 60
_ABORT: Final = struct.pack("ii", 1, 0)
"""Close without sending pending data: the peer gets a reset."""
_T = TypeVar("_T")


class Proxy:
    """A fixed address in front of a process that may restart on another port.

    Connections are forwarded to the last port given to `set_target`. Without one, they are closed immediately.
    """

    def __init__(self, *, rates: FaultRates = NO_FAULTS, seed: int = 0, host: str = HOST) -> None:
        self.host: Final = host
        self.counted: Final[Counter[str]] = Counter()
        self._rates = rates
        self._seed: Final = seed
        self._target: tuple[str, int] | None = None
        self._links: Final[set[_Link]] = set()
        self._loop: Final = asyncio.new_event_loop()
        self._thread: Final = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._gates: dict[Direction, asyncio.Event] = {}
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def address(self) -> str:
        """The address, in the form used in routes."""
        return f"TCP://{self.host}:{self.port}"

    def set_target(self, port: int | None, *, host: str = HOST) -> None:
        """Forwards new connections to this port; None closes them."""
        self._call(lambda: setattr(self, "_target", None if port is None else (host, port)))

    def set_rates(self, rates: FaultRates) -> None:
        """Uses other faults for new connections."""
        self._call(lambda: setattr(self, "_rates", rates))

    def cut(self) -> int:
        """Disconnects every connection; returns their number."""
        return self._call(self._cut)

    def hold(self, *directions: Direction) -> None:
        """Blocks these directions (default: both) without disconnecting: a partition that nobody is notified of."""
        self._call(lambda: self._set_gates(directions or DIRECTIONS, is_open=False))

    def release(self) -> None:
        """Unblocks everything, blocked data first."""
        self._call(lambda: self._set_gates(DIRECTIONS, is_open=True))

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_DEADLINE_SECONDS)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_DEADLINE_SECONDS)

    def _call(self, work: Callable[[], _T]) -> _T:
        done: Future[_T] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(work()))
        return done.result(_DEADLINE_SECONDS)

    async def _open(self) -> None:
        self._gates = {direction: asyncio.Event() for direction in DIRECTIONS}
        for gate in self._gates.values():
            gate.set()
        self._server = await asyncio.start_server(self._accepted, self.host, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            self._cut()
            await asyncio.wait(tasks)

    def _set_gates(self, directions: tuple[Direction, ...], *, is_open: bool) -> None:
        for direction in directions:
            gate = self._gates[direction]
            if is_open:
                gate.set()
            else:
                gate.clear()

    def _cut(self) -> int:
        links = list(self._links)
        for link in links:
            link.cut()
        self.counted["cut"] += len(links)
        return len(links)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._target is None:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self.counted["connections"] += 1
        number = self.counted["connections"]
        streams = {
            direction: stream(self._rates, seed=self._seed, connection=number, direction=direction)
            for direction in DIRECTIONS
        }
        link = _Link(writer, server_writer)
        self._links.add(link)
        link.tasks = [
            asyncio.ensure_future(self._pump(link, reader, server_writer, streams["there"], "there")),
            asyncio.ensure_future(self._pump(link, server_reader, writer, streams["back"], "back")),
        ]
        await asyncio.wait(link.tasks)
        link.cut()
        self._links.discard(link)

    async def _pump(
        self,
        link: _Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        faults: Stream,
        direction: Direction,
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                for segment in faults.segments(data):
                    if segment.delay:
                        self.counted["delays"] += 1
                        await asyncio.sleep(segment.delay)
                    await self._gates[direction].wait()
                    self.counted["flips"] += segment.flips
                    self.counted["bytes"] += len(segment.data)
                    writer.write(segment.data)
                    await writer.drain()
                    if segment.is_cut:
                        self.counted["cut"] += 1
                        link.cut()
                        return
            writer.write_eof()


class _Link:
    """Two connections that appear as one to their peers."""

    def __init__(self, *writers: asyncio.StreamWriter) -> None:
        self.tasks: list[asyncio.Future[None]] = []
        self._writers: Final = writers

    def cut(self) -> None:
        """Disconnects both, and drops data in transit."""
        for writer in self._writers:
            end: socket.socket | None = writer.get_extra_info("socket")
            if end is not None and not writer.is_closing():
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            writer.transport.abort()
        for task in self.tasks:
            if task is not asyncio.current_task():
                task.cancel()
