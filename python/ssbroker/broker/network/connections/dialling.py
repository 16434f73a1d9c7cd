"""The addresses that are sent to: dialled when something waits, and dialled again after a while where that failed (N9, N10)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from ssbroker.broker.network.connections.addresses import Addresses
from ssbroker.broker.network.connections.connection import Connection
from ssbroker.broker.network.connections.destination import Destination, Pair
from ssbroker.broker.network.connections.dial import connected
from ssbroker.broker.network.connections.line import Line
from ssbroker.broker.network.connections.setup import Setup
from ssbroker.broker.network.connections.standing import CONNECT_FAILED, NAME_UNKNOWN, Ending
from ssbroker.broker.network.connections.turns import Turns
from ssbroker.protocol.adjacent.goodbye import Reason
from ssbroker.protocol.events import ConnectionStep
from ssbroker.protocol.mirroring import MirroringRole
from ssbroker.protocol.retry import SECOND


class Dialling:
    """Dials the addresses that are sent to. All of it is called in the endpoint's thread.

    Args:
        setup: What the parts of an endpoint share.
        begin: Takes a connection in that is about to be dialled.
        usable: The connection of a pair that takes rows, if there is one.

    Attributes:
        addresses: The addresses that are sent to.
    """

    def __init__(
        self, setup: Setup, *, begin: Callable[[Line, str], Connection], usable: Callable[[Pair], Connection | None]
    ) -> None:
        self.addresses: Final = Addresses(setup)
        self._setup: Final = setup
        self._begin: Final = begin
        self._usable: Final = usable
        self._turns: Final = Turns(setup.limits.learnt_dials)
        self._of_connection: Final[dict[Connection, list[Destination]]] = {}
        self._tasks: Final[set[asyncio.Task[None]]] = set()
        self._is_stopped = False

    def attend(self, destination: Destination) -> None:
        """Has what waits for an address go, or dials.

        Args:
            destination: The address.
        """
        self.addresses.forget_idle()
        if destination.connection is not None and destination.connection.is_usable:
            self._ask(destination)
            destination.connection.pump()
        elif (
            destination.is_wanted
            and destination.connection is None
            and destination.retry is None
            and not destination.is_dialled
            and not self._is_stopped
        ):
            known = None if destination.pair is None else self._usable(destination.pair)
            if known is not None:
                self._attach(destination, known)
            else:
                destination.is_dialled = True
                begin = partial(self._dial, destination)
                if self.addresses.is_learnt(destination.address):
                    self._turns.take(destination, begin)
                else:
                    begin()

    def ask(self, address: str, broker_instance: bytes) -> None:
        """Asks an address for a role, now or when it is reached.

        Args:
            address: The address.
            broker_instance: Whose role.
        """
        destination = self.addresses.destination(address)
        destination.asks.add(broker_instance)
        self.attend(destination)

    def greeted(self, connection: Connection, pair: Pair) -> None:
        """Has what waits for the far side go over a connection: one that was dialled, or what ends the wait for it.

        Args:
            connection: The connection.
            pair: Who it leads to.
        """
        for destination in self._of_connection.get(connection, ()):
            destination.pair = pair
            self._turns.give_back(destination)
        known = [each for each in self.addresses.all() if each.pair == pair and each.connection is None]
        for destination in known:
            self._attach(destination, connection)

    def move(self, loser: Connection, survivor: Connection) -> None:
        """Has what goes over one connection go over another.

        Args:
            loser: The one.
            survivor: The other.
        """
        for destination in list(self._of_connection.get(loser, ())):
            if destination.connection is loser:
                self._attach(destination, survivor)

    def is_own(self, connection: Connection) -> None:
        """The far side of a connection that was dialled is this instance.

        Args:
            connection: The connection.
        """
        for destination in self._of_connection.pop(connection, ()):
            self._turns.give_back(destination)
            destination.is_dialled = False
            destination.lose()
            self._wait(destination)
            self._setup.call(partial(self._setup.receiver.is_own, destination.address))

    def role_told(self, connection: Connection, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """The far side has told a role.

        Args:
            connection: Over which it came.
            broker_instance: Whose role.
            role: The role.
            number: Its number.
        """
        for destination in list(self._of_connection.get(connection, ())):
            if broker_instance in destination.asked:
                destination.asked.discard(broker_instance)
                told = partial(self._setup.receiver.role_told, destination.address, broker_instance, role, number)
                self._setup.call(told)

    def ended(self, connection: Connection, ending: Ending, pair: Pair | None) -> None:
        """A connection is closed.

        Args:
            connection: The connection.
            ending: Why.
            pair: Who it led to, if that was known.
        """
        for destination in self._of_connection.pop(connection, ()):
            self._turns.give_back(destination)
            if destination.connection is connection or destination.is_dialled:
                destination.detach()
                destination.is_dialled = False
                self._ended(destination, connection, ending, pair)

    def has_failed_before(self, connection: Connection, ending: Ending) -> bool:
        """Whether the dials before have ended as this one does.

        Args:
            connection: The connection, which is about to be told of as ended.
            ending: Why it ends.
        """
        going = self._of_connection.get(connection, ())
        return bool(going) and all(each.is_dialled and each.why == ending.text for each in going)

    def stop(self) -> None:
        """Dials no more."""
        self._is_stopped = True
        self._turns.clear()
        for task in self._tasks:
            task.cancel()
        for destination in self.addresses.all():
            if destination.retry is not None:
                destination.retry.cancel()

    def _ended(self, destination: Destination, connection: Connection, ending: Ending, pair: Pair | None) -> None:
        if self._is_stopped:
            return
        limits, since = self._setup.limits, connection.logged_in_at
        is_steady = since is not None and self._setup.clock() - since >= min(limits.steady_after, limits.link.idle)
        if is_steady or connection.counters.fragments_received:
            destination.failures = 0
        if ending.reason is Reason.IDLE and pair is not None and is_steady:
            self.attend(destination)
        elif ending.reason is Reason.SUPERSEDED and pair is not None:
            survivor = self._usable(pair)
            if survivor is None:  # it is about to come
                destination.failures += 1
                self._wait(destination)
            else:
                self._attach(destination, survivor)
        else:
            destination.failures += 1
            destination.why = ending.text
            destination.lose()
            self._wait(destination)
            self._setup.call(partial(self._setup.receiver.unreachable, destination.address, ending.text))

    def _attach(self, destination: Destination, connection: Connection) -> None:
        if destination.connection is not None:
            self._of_connection[destination.connection].remove(destination)
        destination.attach(connection)
        going = self._of_connection.setdefault(connection, [])
        if destination not in going:
            going.append(destination)
        if connection.peer is not None:
            self._setup.call(partial(self._setup.receiver.reached, destination.address, connection.peer))
        self._ask(destination)
        connection.pump()

    def _ask(self, destination: Destination) -> None:
        connection = destination.connection
        while connection is not None and connection.is_usable and destination.asks:
            broker_instance = destination.asks.pop()
            destination.asked.add(broker_instance)
            connection.line.ask_role(broker_instance)

    def _wait(self, destination: Destination) -> None:
        wait = self._setup.limits.wait(max(destination.failures, 1), roll=self._setup.random.random())
        loop = asyncio.get_running_loop()
        destination.retry = loop.call_later(wait / SECOND, self._waited, destination)

    def _waited(self, destination: Destination) -> None:
        destination.stop_waiting()
        self.attend(destination)

    def _dial(self, destination: Destination) -> bool:
        """Dials, unless a connection has been found meanwhile; whether it does."""
        if self._is_stopped or not destination.is_dialled:
            return False
        loop = asyncio.get_running_loop()
        line = Line(
            self._setup.channel(is_accept=False),
            own=self._setup.own,
            is_accept=False,
            limits=self._setup.limits,
            now=int(loop.time() * SECOND),
            sent=self._setup.sent_by_priority,
        )
        connection = self._begin(line, destination.address)
        self._of_connection[connection] = [destination]
        self._setup.tell(connection, ConnectionStep.CONNECTING)
        task = loop.create_task(self._open(connection, destination.host, destination.port))
        self._tasks.add(task)
        task.add_done_callback(partial(self._opened, connection))
        return True

    def _opened(self, connection: Connection, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # maybe before its first step
            connection.lost(Ending("the instance stops"))
        elif (error := task.exception()) is not None:  # such as a name that cannot be one
            connection.lost(Ending(f"the dial failed: {error}", CONNECT_FAILED))

    async def _open(self, connection: Connection, host: str, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._setup.limits.login_wait / SECOND):
                await loop.create_connection(lambda: connection, sock=await connected(host, port, self._setup.reach))
        except socket.gaierror as error:
            connection.lost(Ending(f"the name {host} is not known: {error.strerror}", NAME_UNKNOWN))
        except TimeoutError:
            connection.lost(Ending("nobody has answered the dial", CONNECT_FAILED))
        except OSError as error:
            connection.lost(Ending(f"the dial failed: {error.strerror or error}", CONNECT_FAILED))
