"""All connections of an endpoint: who they lead to, which of two stays, and what they bring (N8, N9, N11)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from functools import partial
from typing import Final

from ssbroker.broker.network.connections.buckets import Buckets
from ssbroker.broker.network.connections.connection import READ_BYTES, Connection
from ssbroker.broker.network.connections.destination import Pair, host_of
from ssbroker.broker.network.connections.dialling import Dialling
from ssbroker.broker.network.connections.line import Line
from ssbroker.broker.network.connections.role_answers import RoleAnswers
from ssbroker.broker.network.connections.setup import Setup
from ssbroker.broker.network.connections.standing import LOGIN_REFUSED, Ending
from ssbroker.broker.network.connections.traffic import Traffic
from ssbroker.protocol.adjacent.arbitration import Met, Stays, stays
from ssbroker.protocol.adjacent.goodbye import Reason
from ssbroker.protocol.adjacent.occurrences import Batch, Greeted, Occurrence, RoleAsked, RoleTold
from ssbroker.protocol.events import ConnectionStep
from ssbroker.protocol.retry import SECOND

_OF_ONE_DIALLER_MOST: Final = 4
_OF_ONE_PAIR_MOST: Final = 16


class Switchboard:
    """All connections of an endpoint. What its methods do, they do in the endpoint's thread.

    Args:
        setup: What the parts of an endpoint share.

    Attributes:
        buffer: Where sockets are read into, one at a time.
        connections: All connections, by their ids, in the order in which they began.
        dialling: The addresses that are sent to.
        refusals: How many connections were cut off since their address dials too often.
        traffic: What has gone over connections that have ended.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup: Final = setup
        self._roles: Final = RoleAnswers(setup)
        self._of_pair: Final[dict[Pair, list[Connection]]] = {}
        self._unproven: Final[dict[Connection, None]] = {}
        self._unproven_most: Final = setup.limits.unproven_allowed()
        self._principal_most: Final = setup.limits.principal_allowed()
        limits = setup.limits
        self._buckets: Final = Buckets(at_once=limits.dials_at_once, per_second=limits.dials_per_second)
        self._too_often: Final = (
            f"the far side dials too often: {limits.dials_at_once} at once and {limits.dials_per_second} a second"
            " are taken from one address"
        )
        self.refusals = 0
        self.traffic: Final = Traffic()
        self._is_paused = False
        self._is_deaf = False
        self._on_empty: Callable[[], None] | None = None
        self.buffer: Final = memoryview(bytearray(READ_BYTES))
        self.connections: Final[dict[uuid.UUID, Connection]] = {}
        self.dialling: Final = Dialling(setup, begin=self._begun, usable=self.usable)

    def now(self) -> int:
        """The moment, in microseconds since 1970."""
        return self._setup.clock()

    def accept(self) -> Connection:
        """Begins a connection that others have dialled.

        Returns:
            The connection, whose socket is about to be there; it may as well never be, such as where the instance stops.
        """
        line = Line(
            self._setup.channel(is_accept=True),
            own=self._setup.own,
            is_accept=True,
            limits=self._setup.limits,
            now=int(asyncio.get_running_loop().time() * SECOND),
            sent=self._setup.sent_by_priority,
        )
        return self._new(line, None)

    def accepted(self, connection: Connection) -> None:
        """Takes in a connection that others have dialled, unless they dial too often (T13).

        One that has waited longest to be proven goes for it, if there are many.

        Args:
            connection: The connection.
        """
        self.connections[connection.connection_id] = connection
        if self._on_empty is not None:
            connection.end(Ending("the instance stops"))
            connection.cut()
            return
        if not self._buckets.take(host_of(connection.address), now=self.now()):
            self.refusals += 1
            connection.end(Ending(self._too_often, LOGIN_REFUSED))
            connection.cut()
            return
        self._unproven[connection] = None
        if len(self._unproven) > self._unproven_most:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            oldest.end(Ending("too many connect and do not say who they are; the oldest goes first", LOGIN_REFUSED))
            oldest.cut()

    def usable(self, pair: Pair) -> Connection | None:
        """The connection to an instance that takes rows.

        Args:
            pair: The instance.

        Returns:
            The youngest, since who dials twice knows why; None where there is none.
        """
        return next((each for each in reversed(self._of_pair.get(pair, [])) if each.is_usable), None)

    def occurred(self, connection: Connection, occurrence: Occurrence) -> None:
        """Something has come over a connection.

        Args:
            connection: The connection.
            occurrence: What it is.
        """
        peer = connection.peer
        match occurrence:
            case Greeted(is_self=is_self):
                self._greeted(connection, is_self=is_self)
            case Batch(rows=rows) if peer is not None and not self._is_deaf:
                connection.counters.fragments_received += rows.num_rows
                self._setup.call(partial(self._setup.receiver.arrived, peer, rows))
            case RoleAsked(broker_instance=broker_instance):
                self._roles.asked(connection, broker_instance)
            case RoleTold(broker_instance=broker_instance, role=role, number=number):
                self.dialling.role_told(connection, broker_instance, role, number)

    def closing(self, connection: Connection, ending: Ending) -> None:
        """One of the sides says GOODBYE, or falls silent.

        Args:
            connection: The connection.
            ending: Why.
        """
        self._setup.tell(connection, ConnectionStep.CLOSING, text=ending.text)

    def ended(self, connection: Connection, ending: Ending) -> None:
        """A connection is closed.

        Args:
            connection: The connection.
            ending: Why.
        """
        self.traffic.ends(self.connections, connection)
        self._unproven.pop(connection, None)
        pair = _pair(connection)
        if pair is not None:
            self._of_pair[pair].remove(connection)
            if not self._of_pair[pair]:
                del self._of_pair[pair]
        self._tell_end(connection, ending, is_proven=pair is not None)
        self.dialling.ended(connection, ending, pair)
        if not self.connections and self._on_empty is not None:
            self._on_empty()

    def pause(self, *, is_paused: bool) -> None:
        """Reads no connection, or all of them again (N12).

        Args:
            is_paused: Which of the two.
        """
        self._is_paused = is_paused
        for connection in list(self.connections.values()):
            if is_paused:
                connection.pause()
            else:
                connection.resume()

    def stop(self, on_empty: Callable[[], None]) -> None:
        """Dials no more, and has all connections end once what waits is written.

        Args:
            on_empty: Called when the last one has ended.
        """
        self._on_empty = on_empty
        self._is_deaf = self._is_paused  # what comes before their GOODBYE is read to get there, and comes again (P17)
        self.pause(is_paused=False)
        self.dialling.stop()
        for connection in list(self.connections.values()):
            connection.leave(Reason.STOPPING, "the instance stops")
        if not self.connections:
            on_empty()

    def cut(self) -> None:
        """Ends all connections at once."""
        for connection in list(self.connections.values()):
            connection.cut()

    def _begun(self, line: Line, address: str) -> Connection:
        connection = self._new(line, address)
        self.connections[connection.connection_id] = connection
        return connection

    def _new(self, line: Line, address: str | None) -> Connection:
        return Connection(self, line, connection_id=self._setup.new_id(), address=address, limits=self._setup.limits)

    def _greeted(self, connection: Connection, *, is_self: bool) -> None:
        self._unproven.pop(connection, None)
        pair = _pair(connection)
        if pair is None:
            return
        self._of_pair.setdefault(pair, []).append(connection)
        step = ConnectionStep.ACCEPT if connection.is_accept else ConnectionStep.CONNECTED
        self._setup.tell(connection, step, text=_described(connection))
        if self._is_paused:
            connection.pause()
        if is_self:
            connection.end(Ending("the address is this instance's own", reason=Reason.ITSELF))
            self.dialling.is_own(connection)
            return
        self.dialling.greeted(connection, pair)
        self._arbitrate(connection, pair)
        if connection.is_accept and pair[1] is not None:
            self._cut_oldest(pair[1])

    def _cut_oldest(self, principal: str) -> None:
        """Has one principal keep only some of the connections that it has dialled: it may call itself as many instances as it likes (T13)."""
        accepted = [each for each in self.connections.values() if each.is_accept]
        dialled = [each for each in accepted if each.peer is not None and each.peer.principal == principal]
        for oldest in dialled[: -self._principal_most]:
            oldest.cut()

    def _arbitrate(self, connection: Connection, pair: Pair) -> None:
        """Has one connection stay for each pair of instances."""
        for rival in [each for each in self._of_pair[pair] if each is not connection and each.is_usable]:
            which = self._stays(rival, connection)
            if which is Stays.SECOND:
                self._supersede(rival, connection)
            elif which is Stays.FIRST:
                self._supersede(connection, rival)
                rival.probe()
        # Who dials again and again, and neither leaves what it had nor answers a goodbye, keeps a few all the same.
        for older in [each for each in self._of_pair[pair] if each.is_usable][:-_OF_ONE_DIALLER_MOST]:
            self._supersede(older, connection)
        for oldest in self._of_pair[pair][:-_OF_ONE_PAIR_MOST]:
            oldest.cut()

    def _stays(self, first: Connection, second: Connection) -> Stays:
        far_first, far_second = first.line.far, second.line.far
        if far_first is None or far_second is None:
            return Stays.BOTH
        return stays(self._setup.own, Met(far_first, first.is_accept), Met(far_second, second.is_accept))

    def _supersede(self, loser: Connection, survivor: Connection) -> None:
        if not (loser.is_usable and survivor.is_usable):
            return
        self.dialling.move(loser, survivor)
        loser.leave(Reason.SUPERSEDED, "another connection of the same two instances stays")

    def _tell_end(self, connection: Connection, ending: Ending, *, is_proven: bool) -> None:
        step = ConnectionStep.CLOSED
        if not is_proven:
            step = ConnectionStep.RECEIVE_IO_ERROR if connection.is_accept else ConnectionStep.CONNECT_FAILED
        elif ending.error:
            text = f"{_described(connection)}: {ending.text}"
            self._setup.tell(connection, ConnectionStep.RECEIVE_IO_ERROR, error=ending.error, text=text)
        is_repeated = not connection.is_accept and self.dialling.has_failed_before(connection, ending)
        self._setup.tell(connection, step, error=ending.error, text=ending.text, is_repeated=is_repeated)


def _pair(connection: Connection) -> Pair | None:
    return None if connection.peer is None else (connection.peer.instance_id, connection.peer.principal)


def _described(connection: Connection) -> str:
    return "" if connection.peer is None else connection.peer.described
