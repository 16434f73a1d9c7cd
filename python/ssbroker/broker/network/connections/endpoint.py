"""The endpoint of an instance: it listens, dials and carries, in a thread of its own (P2, P3, N8 to N12)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from queue import SimpleQueue
from typing import Any, Final

import pyarrow as pa

from ssbroker.broker import forks
from ssbroker.broker.network.connections.connections import rows as rows_of
from ssbroker.broker.network.connections.destination import Destination
from ssbroker.broker.network.connections.setup import LOGGER, Setup
from ssbroker.broker.network.connections.switchboard import Switchboard
from ssbroker.exceptions import EndpointError
from ssbroker.protocol.adjacent.batch import checked
from ssbroker.wording import host_and_port

_BACKLOG: Final = 1024
_ACCEPTED_AT_ONCE: Final = 1
"""More would be accepted before any of them is judged (N11, N33). And where no file is left, asyncio tries that often, and again for each."""


class SocketEndpoint:
    """The endpoint of an instance; see `seam.Endpoint`.

    Args:
        setup: Who it is, who is told, whom it believes, how long it waits.
        host: Where it listens.
        port: The port; 0 takes any that is free.
    """

    def __init__(self, setup: Setup, *, host: str, port: int) -> None:
        self._setup: Final = setup
        self._host: Final = host
        self._port: Final = port
        self._board: Final = Switchboard(setup)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._stopped: Final = asyncio.Event()
        self._changed: Final = threading.RLock()
        self._waiting: Final[set[Destination]] = set()
        self._started: Final[SimpleQueue[tuple[str, int] | OSError | ValueError | RuntimeError]] = SimpleQueue()
        self._thread: Final = threading.Thread(
            target=self._run, name=f"ssbroker {setup.own.name} endpoint", daemon=True
        )

    @property
    def is_alive(self) -> bool:
        """See `seam.Endpoint`."""
        return self._thread.is_alive()

    def start(self) -> tuple[str, int]:
        """See `seam.Endpoint`."""
        forks.lets_go(self)
        self._thread.start()
        started = self._started.get()
        if isinstance(started, Exception):
            self._thread.join()
            # asyncio says where as Python writes a tuple, and then why.
            reason = str(getattr(started, "strerror", None) or started).rpartition("): ")[2]
            where = host_and_port(self._host, self._port)
            raise EndpointError(f"{where}: cannot be listened on: {reason}") from started
        return started

    def send(self, address: str, rows: pa.Table) -> int:
        """See `seam.Endpoint`."""
        checked(rows)
        destination, is_taken, room = self._board.dialling.addresses.put(address, rows)
        if is_taken:
            self._attend(destination)
        return room

    def progress(self, address: str) -> tuple[int, int]:
        """See `seam.Endpoint`."""
        return self._board.dialling.addresses.progress(address)

    def refuses(self, address: str) -> str | None:
        """See `seam.Endpoint`."""
        return self._board.dialling.addresses.refuses(address)

    def routes_lead_to(self, addresses: Collection[str]) -> None:
        """See `seam.Endpoint`."""
        self._board.dialling.addresses.routes_lead_to(addresses)

    def ask_role(self, address: str, broker_instance: bytes) -> None:
        """See `seam.Endpoint`."""
        self._call(lambda: self._board.dialling.ask(address, broker_instance))

    def pause(self) -> None:
        """See `seam.Endpoint`."""
        self._call(lambda: self._board.pause(is_paused=True))

    def resume(self) -> None:
        """See `seam.Endpoint`."""
        self._call(lambda: self._board.pause(is_paused=False))

    @property
    def sent_by_priority(self) -> Mapping[int, int]:
        """See `seam.Endpoint`."""
        return self._setup.sent_by_priority

    @property
    def pending(self) -> tuple[int, int]:
        """See `seam.Endpoint`."""
        return self._board.dialling.addresses.pending()

    @property
    def refusals(self) -> int:
        """See `seam.Endpoint`."""
        return self._board.refusals

    @property
    def traffic(self) -> Mapping[str, int]:
        """See `seam.Endpoint`."""
        return self._board.traffic.totals(self._board.connections)

    def view_rows(self) -> Iterable[tuple[Any, ...]]:
        """See `seam.Endpoint`."""
        return rows_of(self._board)

    def close(self, timeout: float) -> None:
        """See `seam.Endpoint`."""
        with self._changed:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(self._stop, loop, timeout)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def board(self) -> Switchboard:
        """All connections."""
        return self._board

    def descriptors(self) -> Iterator[int]:
        """See `forks.Holder`: where it listens, and whoever has dialled; what it has dialled itself tells of itself."""
        if self._server is not None:
            yield from (listening.fileno() for listening in self._server.sockets)
        yield from (connection.descriptor for connection in list(self._board.connections.values()))

    def _attend(self, destination: Destination) -> None:
        """Has the thread look at what waits; many calls come to one look."""
        with self._changed:
            is_first = not self._waiting
            self._waiting.add(destination)
        if is_first:
            self._call(self._look)

    def _look(self) -> None:
        with self._changed:
            waiting = list(self._waiting)
            self._waiting.clear()
        for destination in waiting:
            self._board.dialling.attend(destination)

    def _call(self, what: Callable[[], None]) -> None:
        """Has the thread call something soon."""
        with self._changed:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(what)

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except (OSError, RuntimeError) as error:  # such as no file left for the loop itself
            if self._loop is not None:
                LOGGER.exception("%s: its connections have ended", self._setup.own.name)
            self._started.put(error)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._troubled)
        try:
            server = await loop.create_server(self._board.accept, self._host, self._port, backlog=_ACCEPTED_AT_ONCE)
            self._server = server
            for listening in server.sockets:
                with listening.dup() as same:
                    same.listen(_BACKLOG)
        except (OSError, ValueError) as error:  # such as a host that cannot be a name
            self._started.put(error)
            return
        with self._changed:
            self._loop = loop
        host, port, *_ = server.sockets[0].getsockname()
        self._started.put((host, port))
        await self._stopped.wait()

    def _troubled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Tells of what has no connection that it could be told of, such as that no file is left for the next one."""
        name, message, now = self._setup.own.name, str(context["message"]), self._setup.clock()
        if self._setup.events.may_be_logged(message, level=logging.ERROR, source=name, now=now):
            error = context.get("exception")
            LOGGER.error("%s: %s: %s", name, message, error, exc_info=None if isinstance(error, OSError) else error)

    def _stop(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        """Ends, in the thread: who dials now finds nobody, what waits is written, and nothing lasts longer than `timeout`."""
        if self._server is not None:
            self._server.close()
        loop.call_later(timeout, self._board.cut)
        self._board.stop(self._stopped.set)
