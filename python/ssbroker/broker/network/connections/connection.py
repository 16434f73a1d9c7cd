"""One connection to another instance: a line, and the socket that carries it."""

from __future__ import annotations

import asyncio
import uuid
from typing import Final

from ssbroker.broker.network.connections import standing
from ssbroker.broker.network.connections.hosts import address_of
from ssbroker.broker.network.connections.limits import EndpointLimits
from ssbroker.broker.network.connections.line import Line
from ssbroker.broker.network.connections.owner import Owner
from ssbroker.broker.network.connections.standing import Counters, Ending, State
from ssbroker.broker.network.seam import Peer
from ssbroker.exceptions import PeerError
from ssbroker.protocol.adjacent.goodbye import Reason
from ssbroker.protocol.adjacent.hello import Far
from ssbroker.protocol.adjacent.occurrences import Greeted, Left, Occurrence
from ssbroker.protocol.retry import SECOND

READ_BYTES: Final = 256 << 10
_WRITE_BYTES: Final = 512 << 10
_TURN_BYTES: Final = 2 << 20


class Connection(asyncio.BufferedProtocol):
    """One connection, from the moment that its socket is wanted.

    Args:
        owner: Who has all connections.
        line: What is spoken.
        connection_id: Its id.
        address: The far side's; None until the far side has dialled.
        limits: How long it waits.

    Attributes:
        state: How far it has come.
        counters: What has gone over it.
        connected_at: When the socket was there, in microseconds since 1970.
        logged_in_at: When the far side had said who it is.
        active_at: When the last bytes came or went.
        is_send_paused: Whether the operating system takes no more for now.
        ending: Why it ends, once that is known.
        peer: Who the far side is, once it has said so.
    """

    def __init__(
        self, owner: Owner, line: Line, *, connection_id: uuid.UUID, address: str | None, limits: EndpointLimits
    ) -> None:
        self._owner: Final = owner
        self._limits: Final = limits
        self._loop: Final = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline = self._loop.call_later(limits.login_wait / SECOND, self._too_late)
        self._is_closing = False
        self.ending: Ending | None = None
        self.peer: Peer | None = None
        self.line: Final = line
        self.connection_id: Final = connection_id
        self.address = address or ""
        self.is_accept: Final = address is None
        self.state: State = State.NEW if address is None else State.CONNECTING
        self.counters: Final = Counters()
        self.connected_at: int | None = None
        self.logged_in_at: int | None = None
        self.active_at: int | None = None
        self.is_send_paused = False

    @property
    def is_usable(self) -> bool:
        """Whether rows that wait in its outboxes go over it."""
        return not self._is_closing and self.ending is None and self.line.is_usable

    @property
    def unsent_bytes(self) -> int:
        """What the operating system has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    @property
    def descriptor(self) -> int:
        """The number of its socket; -1 where it has none."""
        found: int = -1 if self._transport is None else self._transport.get_extra_info("socket").fileno()
        return found

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what a stream protocol is given
        self._transport = transport
        self.state = State.CONNECTED
        self.connected_at = self.active_at = self._owner.now()
        transport.set_write_buffer_limits(high=_WRITE_BYTES)
        if self.is_accept:
            self.address = address_of(transport.get_extra_info("peername"))
            self._owner.accepted(self)
        if self._is_closing:
            transport.abort()
        self.pump()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: no more of them than are taken of who is not proven yet."""
        del sizehint
        room = self.line.room_to_read
        return self._owner.buffer if room is None else self._owner.buffer[: max(room, 1)]

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have come."""
        self.counters.bytes_received += nbytes
        self.counters.receives += 1
        self.active_at = self._owner.now()
        if self._is_closing:
            return
        try:
            occurrences = self.line.received(self._owner.buffer[:nbytes], now=self._clock())
        except PeerError as error:
            is_proven = self.line.channel.is_open
            self.end(Ending(str(error), standing.PROTOCOL_BROKEN if is_proven else standing.LOGIN_REFUSED))
            self.pump()
            self._close()
            return
        self._occurred(occurrences)
        self.pump()

    def eof_received(self) -> None:
        """The far side writes no more; asyncio closes the socket."""

    def pause_writing(self) -> None:
        """The operating system takes no more for now."""
        self.is_send_paused = True

    def resume_writing(self) -> None:
        """It does again. What a transport calls may not close it, so the writing goes on after this."""
        self.is_send_paused = False
        self._loop.call_soon(self.pump)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        why = "the far side closed the connection" if exc is None else f"the connection broke: {exc}"
        self.lost(Ending(why, standing.RECEIVE_FAILED))

    def lost(self, ending: Ending) -> None:
        """There is no socket, or no longer.

        Args:
            ending: Why, where it is not known better.
        """
        if self.state is State.CLOSED:
            return
        self._deadline.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._is_closing = True
        self.state = State.CLOSED
        self.line.settle()
        self._owner.ended(self, self.ending or ending)

    def pump(self) -> None:
        """Writes what there is to write, as long as it is taken."""
        transport = self._transport
        if transport is None or self._is_closing:
            return
        written = 0
        while not self.is_send_paused and not transport.is_closing():
            data = self.line.data_to_send(now=self._clock())
            if data is None:
                break
            transport.write(data)
            written += len(data)
            self.counters.bytes_sent += len(data)
            self.counters.sends += 1
            self.active_at = self._owner.now()
            if written >= _TURN_BYTES:  # others read and write meanwhile
                self._loop.call_soon(self.pump)
                break
        if self.line.is_over:
            self._close()
        else:
            self._schedule()

    def leave(self, reason: Reason, text: str) -> None:
        """Says GOODBYE behind what waits.

        Args:
            reason: Why.
            text: The same for people.
        """
        self.end(Ending(text, reason=reason))
        if self.line.leave(reason, text):
            self.pump()
        else:
            self.cut()

    def probe(self) -> None:
        """Asks the far side for a sign of life."""
        self.line.probe(now=self._clock())
        self.pump()

    def end(self, ending: Ending) -> None:
        """Says why it ends, where that is not known yet.

        Args:
            ending: Why.
        """
        if self.ending is None:
            self.ending = ending
            if ending.reason is not None and self.peer is not None:
                self._owner.closing(self, ending)

    def cut(self) -> None:
        """Closes the socket at once, without GOODBYE."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Reads no more, so that TCP slows the far side down; who is not proven is read all the same."""
        if self._transport is not None and self.line.far is not None and not self.line.is_paused:
            self.line.pause(now=self._clock())
            self._transport.pause_reading()

    def resume(self) -> None:
        """Reads again."""
        if self._transport is not None and self.line.is_paused:
            self.line.resume(now=self._clock())
            self._transport.resume_reading()
            self.pump()

    def _occurred(self, occurrences: list[Occurrence]) -> None:
        for occurrence in occurrences:
            if isinstance(occurrence, Greeted):
                self._greeted(occurrence.far)
            elif isinstance(occurrence, Left):
                self.end(Ending(occurrence.text or occurrence.reason.name.lower(), reason=occurrence.reason))
            self._owner.occurred(self, occurrence)

    def _greeted(self, far: Far) -> None:
        self._deadline.cancel()
        self.state = State.LOGGED_IN
        self.logged_in_at = self._owner.now()
        self.peer = Peer(
            instance_id=far.instance_id,
            name=far.name,
            principal=self.line.channel.principal,
            address=self.address,
            connection_id=self.connection_id,
            is_accept=self.is_accept,
        )

    def _close(self) -> None:
        """Closes the socket once what was written is gone, or a while later."""
        if self._transport is not None and not self._is_closing:
            self._is_closing = True
            if data := self.line.close():
                self._transport.write(data)
            self._transport.close()
            self._deadline.cancel()
            self._deadline = self._loop.call_later(self._limits.link.goodbye_wait / SECOND, self._transport.abort)

    def _schedule(self) -> None:
        moment = self.line.next_timeout()
        if moment is None:
            return
        at = (moment + 1) / SECOND
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._due)

    def _due(self) -> None:
        self._timer = None
        self._occurred(self.line.handle_timeout(now=self._clock()))
        if self.line.is_leaving:
            self.end(Ending("the connection carried nothing", reason=Reason.IDLE))
        self.pump()

    def _too_late(self) -> None:
        waited = self._limits.login_wait / SECOND
        self.end(Ending(f"the far side has not said who it is in {waited:g} s", standing.LOGIN_REFUSED))
        self.cut()

    def _clock(self) -> int:
        return int(self._loop.time() * SECOND)
