"""What is known of one address: what waits for it, over which connection it goes, how often it failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from ssbroker.broker.network.connections.connection import Connection
from ssbroker.broker.network.connections.outbox import Outbox

Pair: TypeAlias = tuple[bytes, str | None]
"""An instance id and the principal that claims it: who shows another certificate is another instance (T14)."""


class Destination:
    """What is known of one address. All but the outbox belongs to the endpoint's thread.

    Attributes:
        address: The address, as routes have it.
        outbox: What waits to go there.
        connection: Over which it goes; None where there is none.
        pair: Who answered there last.
        asks: Whose roles are to be asked for.
        asked: Whose roles were asked for, without an answer yet.
        failures: How often it has failed in a row.
        why: Why it has failed last; None where that is over.
        is_dialled: Whether its connection is one that was dialled for it, and has not answered yet.
        retry: What ends the wait after a failure.
    """

    __slots__ = ("address", "asked", "asks", "connection", "failures", "is_dialled", "outbox", "pair", "retry", "why")

    def __init__(self, address: str, *, outbox_bytes: int, tell_room: Callable[[], None], first: int = 0) -> None:
        self.address: Final = address
        self.outbox: Final = Outbox(outbox_bytes, tell_room=tell_room, first=first)
        self.connection: Connection | None = None
        self.pair: Pair | None = None
        self.asks: Final[set[bytes]] = set()
        self.asked: Final[set[bytes]] = set()
        self.failures = 0
        self.why: str | None = None
        self.is_dialled = False
        self.retry: asyncio.TimerHandle | None = None

    @property
    def host(self) -> str:
        """The host of the address.

        Examples:
            >>> Destination("TCP://[::1]:4022", outbox_bytes=1, tell_room=print).host
            '::1'
        """
        return host_of(self.address)

    @property
    def port(self) -> int:
        """The port of the address.

        Examples:
            >>> Destination("TCP://[::1]:4022", outbox_bytes=1, tell_room=print).port
            4022
        """
        return int(self.address.rpartition(":")[2])

    @property
    def is_wanted(self) -> bool:
        """Whether anything waits to go there."""
        return not self.outbox.is_empty or bool(self.asks)

    @property
    def is_busy(self) -> bool:
        """Whether anything goes there, or a dial or the wait after one is not over."""
        return self.is_wanted or self.is_dialled or self.connection is not None or self.retry is not None

    def attach(self, connection: Connection) -> None:
        """Has what waits go over a connection.

        Args:
            connection: The connection; the far side has said who it is.
        """
        self.detach()
        self.connection = connection
        self.is_dialled = False
        self.why = None
        connection.line.outboxes.append(self.outbox)
        self.stop_waiting()

    def detach(self) -> None:
        """Has it go over none."""
        if self.connection is not None and self.outbox in self.connection.line.outboxes:
            self.connection.line.outboxes.remove(self.outbox)
        self.connection = None
        self.asks.update(self.asked)
        self.asked.clear()

    def stop_waiting(self) -> None:
        """Ends the wait after a failure."""
        if self.retry is not None:
            self.retry.cancel()
            self.retry = None
            self.outbox.open()

    def lose(self) -> None:
        """Forgets what waits to go there, and takes nothing until the wait is over."""
        self.outbox.bar()
        self.outbox.clear()
        self.asks.clear()
        self.asked.clear()


def host_of(address: str) -> str:
    """The host of an address.

    Args:
        address: As routes have it, normalised.

    Returns:
        The host, an IPv6 address without its brackets.

    Examples:
        >>> host_of("TCP://[::1]:4022"), host_of("TCP://shop.example.com:4022")
        ('::1', 'shop.example.com')
    """
    return address.removeprefix("TCP://").rpartition(":")[0].strip("[]")
