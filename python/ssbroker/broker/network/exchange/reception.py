"""What connections tell and bring, kept until the exchange's thread looks at it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker.broker.databases.mirrored import UNKNOWN
from ssbroker.broker.network.connections.inbox import Inbox
from ssbroker.protocol.mirroring import MirroringRole

if TYPE_CHECKING:
    from ssbroker.broker.network.exchange.exchange import Exchange
    from ssbroker.broker.network.hooks import Mirrors
    from ssbroker.broker.network.seam import Endpoint, Peer


class Reception:
    """Implements `seam.Receiver`: it takes notes, and wakes the exchange.

    Args:
        wake: Has the exchange look soon.

    Attributes:
        endpoint: The connections; set before they begin.
        mirrors: Who knows the roles of the databases; None where nobody does.
        inbox: What has arrived.
        told: What the exchange is to do, in order.
    """

    endpoint: Endpoint

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake: Final = wake
        self.mirrors: Mirrors | None = None
        self.inbox: Final = Inbox(pause=self._pause, resume=self._resume)
        self.told: Final[deque[Callable[[Exchange], None]]] = deque()

    def arrived(self, peer: Peer, rows: pa.Table) -> None:
        """See `Receiver`."""
        self.inbox.put(peer, rows)
        self._wake()

    def has_room(self, address: str) -> None:
        """See `Receiver`."""
        self.tell(lambda exchange: exchange.opens(address))

    def unreachable(self, address: str, why: str) -> None:
        """See `Receiver`."""
        self.tell(lambda exchange: exchange.broke(address, why))

    def reached(self, address: str, peer: Peer) -> None:
        """See `Receiver`."""
        self.tell(lambda exchange: exchange.stands(address, peer))

    def is_own(self, address: str) -> None:
        """See `Receiver`."""
        self.tell(lambda exchange: exchange.is_own(address))

    def roles_of(self, broker_instances: Sequence[bytes]) -> Sequence[tuple[MirroringRole, int]]:
        """See `Receiver`."""
        if self.mirrors is None:
            return [UNKNOWN] * len(broker_instances)
        return self.mirrors.roles_of(broker_instances)

    def role_told(self, address: str, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """See `Receiver`."""
        mirrors = self.mirrors
        if mirrors is not None:
            self.tell(lambda _: mirrors.role_told(address, broker_instance, role, number))

    def tell(self, what: Callable[[Exchange], None]) -> None:
        """Has the exchange do something in its thread, soon.

        Args:
            what: Is called with the exchange.
        """
        self.told.append(what)
        self._wake()

    def _pause(self) -> None:
        self.endpoint.pause()

    def _resume(self) -> None:
        self.endpoint.resume()
