"""The network endpoint of an instance: listens, and runs its connections in one thread; other threads may send."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from queue import SimpleQueue
from typing import Any, Final

import pyarrow as pa

from ssbroker._text import host_and_port
from ssbroker.broker import fork_safety
from ssbroker.broker.background_thread import REENTRANT_TIMEOUT, is_reentrant_call
from ssbroker.broker.network.connection_manager import ConnectionManager
from ssbroker.broker.network.destinations import Destination
from ssbroker.broker.network.endpoint_context import EndpointContext
from ssbroker.broker.network.interfaces import SEND_NOW_BYTES_MAX, PeerKey, SendResult
from ssbroker.broker.network.listening_sockets import ACCEPT_BATCH, BACKLOG, log_loop_errors
from ssbroker.exceptions import EndpointError
from ssbroker.protocol.storage import EndpointKey
from ssbroker.protocol.wire.frames import DropReason, check_rows

_LOGGER: Final = logging.getLogger("ssbroker.broker")


def _send_now(destination: Destination) -> bool:
    """Sends the pending rows of an address, unless there are many or the endpoint's thread must send them; returns whether all rows were sent."""
    connection, (_, pending_bytes) = destination.connection, destination.outbox.pending
    if connection is None or pending_bytes > SEND_NOW_BYTES_MAX or not connection.send_now():
        return False
    return destination.outbox.is_empty  # if not, the connection was replaced just now


class SocketEndpoint:
    """The network endpoint of an instance (`NetworkEndpoint`), with a thread for its connections.

    Args:
        context: The identity, listener, credentials and limits of the endpoint.
        host: The host to listen on.
        port: The port; 0 for any free port.
    """

    def __init__(self, context: EndpointContext, *, host: str, port: int) -> None:
        self._context: Final = context
        self._host: Final = host
        self._port: Final = port
        self._manager: Final = ConnectionManager(context)
        self._destinations: Final = self._manager.dialer.destinations
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._stopped: Final = asyncio.Event()
        self._lock: Final = threading.RLock()
        self._unsent: Final[set[Destination]] = set()
        self._started: Final[SimpleQueue[tuple[str, int] | OSError | ValueError | RuntimeError]] = SimpleQueue()
        self._thread: Final = threading.Thread(
            target=self._run, name=f"ssbroker {context.own.name} endpoint", daemon=True
        )

    @property
    def is_alive(self) -> bool:
        """See `NetworkEndpoint`."""
        return self._thread.is_alive()

    def start(self) -> tuple[str, int]:
        """See `NetworkEndpoint`."""
        fork_safety.close_after_fork(self)
        self._thread.start()
        started = self._started.get()
        if isinstance(started, Exception):
            self._thread.join()
            # asyncio prefixes the reason with the address as a tuple.
            reason = str(getattr(started, "strerror", None) or started).rpartition("): ")[2]
            raise EndpointError(f"cannot listen on {host_and_port(self._host, self._port)}: {reason}") from started
        return started

    def send(self, address: str, rows: pa.Table) -> SendResult:
        """See `NetworkEndpoint`."""
        check_rows(rows)  # here, so that the caller gets the error
        destination, result = self._destinations.put(address, rows)
        if result.is_accepted and not _send_now(destination):
            self._schedule_sending(destination)
        return result

    def dial(self, address: str) -> None:
        """See `NetworkEndpoint`."""
        self._call(lambda: self._manager.dialer.dial(address))

    def progress(self, address: str) -> tuple[int, int]:
        """See `NetworkEndpoint`."""
        return self._destinations.progress(address)

    def refusal_reason(self, address: str) -> str | None:
        """See `NetworkEndpoint`."""
        return self._destinations.refusal_reason(address)

    def set_routed_addresses(self, addresses: Collection[str]) -> None:
        """See `NetworkEndpoint`."""
        self._destinations.set_routed_addresses(addresses)

    def query_role(self, address: str, broker_instance: bytes) -> None:
        """See `NetworkEndpoint`."""
        self._call(lambda: self._manager.dialer.query_role(address, broker_instance))

    def report_drops(self, peer_key: PeerKey, reasons: Mapping[EndpointKey, DropReason]) -> None:
        """See `NetworkEndpoint`."""
        self._call(lambda: self._manager.report_drops(peer_key, reasons))

    def pause(self) -> None:
        """See `NetworkEndpoint`."""
        self._call(lambda: self._manager.set_paused(is_paused=True))

    def resume(self) -> None:
        """See `NetworkEndpoint`."""
        self._call(lambda: self._manager.set_paused(is_paused=False))

    @property
    def sent_by_priority(self) -> Mapping[int, int]:
        """See `NetworkEndpoint`."""
        return self._context.sent_by_priority

    @property
    def pending(self) -> tuple[int, int]:
        """See `NetworkEndpoint`."""
        return self._destinations.pending()

    @property
    def refusals(self) -> int:
        """See `NetworkEndpoint`."""
        return self._manager.refusals

    @property
    def traffic(self) -> Mapping[str, int]:
        """See `NetworkEndpoint`."""
        return self._manager.traffic()

    def view_rows(self) -> Iterable[tuple[Any, ...]]:
        """See `NetworkEndpoint`."""
        return self._manager.view_rows()

    def close(self, timeout: float) -> None:
        """See `NetworkEndpoint`."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                loop.call_soon_threadsafe(self._stop, loop, timeout)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            # The thread may wait for a lock that the interrupted call further up the stack holds; then the thread ends
            # after that call.
            self._thread.join(min(timeout, REENTRANT_TIMEOUT) if is_reentrant_call() else None)

    def descriptors(self) -> Iterator[int]:
        """Returns the listening and connected sockets to close after a fork; dialled sockets register themselves."""
        if self._server is not None:
            yield from (listening.fileno() for listening in self._server.sockets)
        yield from (connection.descriptor for connection in list(self._manager.connections.values()))

    def _schedule_sending(self, destination: Destination) -> None:
        """Sends pending rows in the endpoint's thread; many calls share one pass."""
        try:
            with self._lock:
                is_first = not self._unsent
                self._unsent.add(destination)
            if is_first:
                self._call(self._send_waiting)
        except BaseException:  # after an interrupt, no later call would be the first
            self._call(self._send_waiting)
            raise

    def _send_waiting(self) -> None:
        with self._lock:
            waiting = list(self._unsent)
            self._unsent.clear()
        for destination in waiting:
            self._manager.dialer.send_or_dial(destination)

    def _call(self, what: Callable[[], None]) -> None:
        """Calls a function soon, in the endpoint's thread."""
        with self._lock:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(what)

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._serve())
        except (OSError, RuntimeError) as error:  # such as too many open files to create the event loop
            if self._loop is not None:
                _LOGGER.exception("%s: the endpoint failed; all connections are closed", self._context.own.name)
            self._started.put(error)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        log_loop_errors(loop, name=self._context.own.name, events=self._context.events, clock=self._context.clock)
        try:
            server = await loop.create_server(self._manager.accept, self._host, self._port, backlog=ACCEPT_BATCH)
            self._server = server
            for listening in server.sockets:
                with listening.dup() as duplicate:
                    duplicate.listen(BACKLOG)
        except (OSError, ValueError) as error:  # such as an invalid host name
            self._started.put(error)
            return
        with self._lock:
            self._loop = loop
        host, port, *_ = server.sockets[0].getsockname()
        self._started.put((host, port))
        await self._stopped.wait()

    def _stop(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        """Stops listening, writes pending data, and aborts connections that are still open after `timeout` seconds."""
        if self._server is not None:
            self._server.close()
        loop.call_later(timeout, self._manager.cut)
        self._manager.stop(self._stopped.set)
