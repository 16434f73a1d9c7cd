"""One connection to another instance: its socket, its timers, and the reason for closing it."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final, Protocol

import pyarrow as pa

from ssbroker.broker.network.addresses import address_of
from ssbroker.broker.network.interfaces import EndpointListener, Peer
from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.broker.network.secure_link import SecureLink
from ssbroker.exceptions import PeerError
from ssbroker.protocol.settings import SECOND
from ssbroker.protocol.wire.frames import GoodbyeReason, PeerIdentity
from ssbroker.protocol.wire.link import FragmentsArrived, LinkEvent, PeerGreeted, PeerLeft

_LOGGER: Final = logging.getLogger("ssbroker.broker")
# Service Broker's error numbers.
CONNECT_FAILED: Final = 9754
RECEIVE_FAILED: Final = 9755
PROTOCOL_ERROR: Final = 9757
LOGIN_REFUSED: Final = 9752
NAME_UNKNOWN: Final = 9783


class ConnectionState(IntEnum):
    """The state of a connection, with the numbers of `sys.dm_broker_connections`."""

    NEW = 1
    CONNECTING = 2
    CONNECTED = 3
    LOGGED_IN = 4
    CLOSED = 5


@dataclass(frozen=True, slots=True)
class CloseReason:
    """Why a connection ends.

    Attributes:
        text: The reason, for messages.
        error: Service Broker's error number; 0 if the reason is not an error.
        goodbye: The reason of GOODBYE; None if none was sent or received.
    """

    text: str
    error: int = 0
    goodbye: GoodbyeReason | None = None


@dataclass(slots=True)
class ConnectionCounters:
    """The traffic of a connection.

    Attributes:
        bytes_sent: Bytes written to the socket.
        bytes_received: Bytes read from the socket.
        fragments_received: Rows received.
        sends: Number of writes.
        receives: Number of reads.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    fragments_received: int = 0
    sends: int = 0
    receives: int = 0


class ConnectionOwner(Protocol):
    """Manages the connections of an endpoint, in the endpoint's thread."""

    @property
    def buffer(self) -> memoryview:
        """The buffer into which all sockets are read, one at a time."""

    def now(self) -> int:
        """Returns the time in microseconds since 1970."""

    def accepted(self, connection: PeerConnection) -> None:
        """Handles a new connection from a peer."""

    def event_received(self, connection: PeerConnection, event: LinkEvent) -> None:
        """Handles an event of a connection, other than received rows."""

    def closing(self, connection: PeerConnection, reason: CloseReason) -> None:
        """Handles a GOODBYE from either side, or a peer that has stopped answering."""

    def ended(self, connection: PeerConnection, reason: CloseReason) -> None:
        """Handles the closed socket of a connection."""


READ_BYTES: Final = 256 << 10
_WRITE_BYTES: Final = 512 << 10
_PUMP_BYTES: Final = 2 << 20
_CAN_SEND_IN_ANY_THREAD: Final = os.name == "posix"
"""On other platforms, `os.write` cannot write to a socket."""


class PeerConnection(asyncio.BufferedProtocol):
    """One connection, as an asyncio protocol; it is created before its socket.

    All methods run in the endpoint's thread, except `send_now`.

    Attributes:
        guard: Held while the link is used, because `send_now` uses it in another thread.
        state: The state of the connection.
        counters: The traffic of the connection.
        connected_at: When the socket was connected, in microseconds since 1970.
        logged_in_at: When the peer sent HELLO.
        active_at: When bytes were last read or written.
        is_send_paused: Whether the socket's write buffer is full.
        discards_rows: Whether received rows are discarded; the peer sends them again (P17).
        close_reason: Why the connection ends, once known.
        peer: The peer, once it has sent HELLO.
    """

    def __init__(
        self,
        owner: ConnectionOwner,
        link: SecureLink,
        *,
        listener: EndpointListener,
        connection_id: uuid.UUID,
        address: str | None,
        limits: EndpointLimits,
    ) -> None:
        self._owner: Final = owner
        self._listener: Final = listener
        self._limits: Final = limits
        self._loop: Final = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = self._loop.call_later(limits.login_timeout / SECOND, self._login_timed_out)
        self._is_closing = False
        self._unwritten = b""
        self.guard: Final = threading.RLock()
        self.close_reason: CloseReason | None = None
        self.peer: Peer | None = None
        self.link: Final = link
        self.connection_id: Final = connection_id
        self.address = address or ""
        self.is_accept: Final = address is None
        self.state: ConnectionState = ConnectionState.NEW if address is None else ConnectionState.CONNECTING
        self.counters: Final = ConnectionCounters()
        self.connected_at: int | None = None
        self.logged_in_at: int | None = None
        self.active_at: int | None = None
        self.is_send_paused = False
        self.discards_rows = False

    @property
    def is_usable(self) -> bool:
        """Whether the connection sends the rows of its outboxes."""
        return not self._is_closing and self.close_reason is None and self.link.is_usable

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that the operating system has not accepted yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def descriptor(self) -> int:
        """The file descriptor of the socket; -1 if there is none."""
        found: int = -1 if self._transport is None else self._transport.get_extra_info("socket").fileno()
        return found

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handles the connected socket."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - always so for a stream protocol
        self._transport = transport
        self.state = ConnectionState.CONNECTED
        self.connected_at = self.active_at = self._owner.now()
        transport.set_write_buffer_limits(high=_WRITE_BYTES)
        if self.is_accept:
            self.address = address_of(transport.get_extra_info("peername"))
            self._owner.accepted(self)
        if self._is_closing:
            transport.abort()
        self.pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the buffer for the next bytes, limited while the peer is unauthenticated."""
        del sizehint
        limit = self.link.bytes_to_read
        return self._owner.buffer if limit is None else self._owner.buffer[: max(limit, 1)]

    def buffer_updated(self, nbytes: int) -> None:
        """Handles received bytes."""
        self.counters.bytes_received += nbytes
        self.counters.receives += 1
        self.active_at = self._owner.now()
        if self._is_closing:
            return
        try:
            with self.guard:
                events = self.link.received(self._owner.buffer[:nbytes], now=self._clock())
        except PeerError as error:
            is_authenticated = self.link.channel.is_open
            self.set_close_reason(CloseReason(str(error), PROTOCOL_ERROR if is_authenticated else LOGIN_REFUSED))
            self.pump()
            self._close()
            return
        self._process_events(events)
        self.pump()

    def eof_received(self) -> None:
        """Does nothing: asyncio closes the socket."""

    def pause_writing(self) -> None:
        """Handles a full write buffer."""
        self.is_send_paused = True

    def resume_writing(self) -> None:
        """Schedules further writing instead of writing now, because a transport must not be closed in this callback."""
        self.is_send_paused = False
        self._loop.call_soon(self.pump)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handles the closed socket."""
        text = "the peer closed the connection" if exc is None else f"the connection broke: {exc}"
        channel = self.link.channel
        if not self.is_accept and channel.is_open and self.link.peer_identity is None:
            text += (
                " before it answered: it may require TLS"
                if channel.method is None
                else " after the TLS handshake: it does not let this instance connect, or has too many connections; its log shows the reason"
            )
        self.lost(CloseReason(text, RECEIVE_FAILED))

    def lost(self, reason: CloseReason) -> None:
        """Ends the connection, whose socket is closed or was never connected; an earlier reason takes precedence."""
        if self.state is ConnectionState.CLOSED:
            return
        self._deadline.cancel()
        if self._timer is not None:
            self._timer.cancel()
        with self.guard:  # from now on `send_now` does not use the socket
            self._is_closing = True
            self.state = ConnectionState.CLOSED
            self.link.mark_finished()
        self._owner.ended(self, self.close_reason or reason)

    def pump(self) -> None:
        """Writes pending data, as long as the socket accepts it."""
        with self.guard:
            if self._transport is not None and not self._is_closing:
                self._pump(self._transport)

    def _pump(self, transport: asyncio.Transport) -> None:
        written = 0
        if self._unwritten:
            transport.write(self._unwritten)
            self._unwritten = b""
        while not self.is_send_paused and not transport.is_closing():
            data = self._data_to_send()
            if data is None:
                break
            transport.write(data)
            written += len(data)
            if written >= _PUMP_BYTES:  # let other connections run
                self._loop.call_soon(self.pump)
                break
        if self.link.is_finished:
            self._close()
        else:
            self._schedule_timer()

    def send_now(self) -> bool:
        """Writes pending data in the calling thread, which may be any thread; returns False if `pump` must be called."""
        with self.guard:
            transport = self._transport
            if (
                not _CAN_SEND_IN_ANY_THREAD
                or transport is None
                or transport.is_closing()
                or not self.is_usable
                or self._unwritten
                or self.unsent_bytes
            ):
                return False
            try:
                while (data := self._data_to_send()) is not None:
                    try:
                        written = os.write(self.descriptor, data)
                    except OSError:  # the socket accepts nothing now, or is broken; `pump` handles both
                        written = 0
                    if written < len(data):
                        self._unwritten = data[written:]
                        return False
            except BaseException:  # such as an interrupt of the main thread: some bytes may not have been written
                self._loop.call_soon_threadsafe(self._sending_interrupted)
                raise
            timeout = self.link.next_timeout()
            return timeout is None or (self._timer is not None and self._timer.when() <= _expiry_time(timeout))

    def _sending_interrupted(self) -> None:
        self.set_close_reason(CloseReason("sending was interrupted"))
        self.cut()

    def leave(self, reason: GoodbyeReason, text: str) -> None:
        """Sends GOODBYE after the queued rows."""
        self.set_close_reason(CloseReason(text, goodbye=reason))
        with self.guard:
            is_leaving = self.link.leave(reason, text)
        if is_leaving:
            self.pump()
        else:
            self.cut()

    def probe(self) -> None:
        """Asks the peer to show that it is alive."""
        with self.guard:
            self.link.probe(now=self._clock())
        self.pump()

    def set_close_reason(self, reason: CloseReason) -> None:
        """Records why the connection ends, unless a reason is already known."""
        if self.close_reason is None:
            self.close_reason = reason
            if reason.goodbye is not None and self.peer is not None:
                self._owner.closing(self, reason)

    def cut(self) -> None:
        """Closes the socket immediately, without GOODBYE."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stops reading, so that TCP slows the peer down; does nothing until the peer has sent HELLO."""
        if self._transport is not None and self.link.peer_identity is not None and not self.link.is_paused:
            with self.guard:
                self.link.pause(now=self._clock())
            self._transport.pause_reading()

    def resume(self) -> None:
        """Resumes reading."""
        if self._transport is not None and self.link.is_paused:
            with self.guard:
                self.link.resume(now=self._clock())
            self._transport.resume_reading()
            self.pump()

    def _process_events(self, events: list[LinkEvent]) -> None:
        for event in events:
            if isinstance(event, FragmentsArrived):
                self._rows_received(event.rows)
                continue
            if isinstance(event, PeerGreeted):
                self._greeted(event.peer)
            elif isinstance(event, PeerLeft):
                self.set_close_reason(CloseReason(event.text or event.reason.name.lower(), goodbye=event.reason))
            self._owner.event_received(self, event)

    def _rows_received(self, rows: pa.Table) -> None:
        if self.peer is not None and not self.discards_rows:
            self.counters.fragments_received += rows.num_rows
            call_listener(partial(self._listener.rows_received, self.peer, rows))

    def _greeted(self, identity: PeerIdentity) -> None:
        self._deadline.cancel()
        self.state = ConnectionState.LOGGED_IN
        self.logged_in_at = self._owner.now()
        self.peer = Peer(
            instance_id=identity.instance_id,
            name=identity.name,
            principal=self.link.channel.principal,
            address=self.address,
            connection_id=self.connection_id,
            is_accept=self.is_accept,
        )

    def _close(self) -> None:
        """Closes the socket once its data is written, or after the GOODBYE timeout."""
        if self._transport is not None and not self._is_closing:
            with self.guard:
                self._is_closing = True
                if data := self._unwritten + self.link.close():
                    self._transport.write(data)
                self._transport.close()
            self._deadline.cancel()
            self._deadline = self._loop.call_later(self._limits.link.goodbye_timeout / SECOND, self._transport.abort)

    def _data_to_send(self) -> bytes | None:
        """Returns the next bytes for the socket, counted as sent; None if there are none at present."""
        data = self.link.data_to_send(now=self._clock())
        if data is not None:
            self.counters.bytes_sent += len(data)
            self.counters.sends += 1
            self.active_at = self._owner.now()
        return data

    def _schedule_timer(self) -> None:
        timeout = self.link.next_timeout()
        if timeout is None:
            return
        at = _expiry_time(timeout)
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._timer_expired)

    def _timer_expired(self) -> None:
        with self.guard:
            self._timer = None
            events = self.link.handle_timeout(now=self._clock())
        self._process_events(events)
        if self.link.is_leaving:
            self.set_close_reason(CloseReason("the connection was idle", goodbye=GoodbyeReason.IDLE))
        self.pump()

    def _login_timed_out(self) -> None:
        waited = self._limits.login_timeout / SECOND
        self.set_close_reason(CloseReason(f"the peer did not authenticate within {waited:g} s", LOGIN_REFUSED))
        self.cut()

    def _clock(self) -> int:
        return int(self._loop.time() * SECOND)


def _expiry_time(timeout: int) -> float:
    """Returns the time, in seconds, at which the timer of a timeout expires."""
    return (timeout + 1) / SECOND


def call_listener(what: Callable[[], None]) -> None:
    """Calls the listener of an endpoint; its exceptions are logged and do not affect connections."""
    try:
        what()
    except Exception:
        _LOGGER.exception("a listener of the network endpoint raised an exception; the connections continue")
