"""The addresses that are sent to, as many as are in use: neighbours may choose any (R23), so idle ones are forgotten (N34)."""

from __future__ import annotations

import threading
from collections.abc import Collection
from functools import partial
from typing import Final

import pyarrow as pa

from ssbroker.broker.network.connections.destination import Destination, host_of
from ssbroker.broker.network.connections.setup import Setup

KNOWN: Final = 1024
"""The addresses beyond which those are forgotten to which nothing goes."""


def named_by(routes: pa.Table) -> Collection[str]:
    """The addresses that routes name; a live instance's are normalised.

    Args:
        routes: `schemas.ROUTES`.

    Returns:
        The addresses, those of mirrors too.
    """
    columns = [routes[name].unique().to_pylist() for name in ("address", "mirror_address")]
    return frozenset(address for column in columns for address in column if address is not None)


class Addresses:
    """The addresses that are sent to. All but `forget_idle` may be called from any thread.

    Args:
        setup: What the parts of an endpoint share.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup: Final = setup
        self._changed: Final = threading.RLock()
        self._destinations: Final[dict[str, Destination]] = {}
        self._routed: Collection[str] = frozenset()
        self._forget_beyond = KNOWN
        self._numbered_from = 0

    def all(self) -> list[Destination]:
        """What is known of all of them."""
        with self._changed:
            return list(self._destinations.values())

    def destination(self, address: str) -> Destination:
        """What is known of an address.

        Args:
            address: The address.

        Returns:
            The same object at each call, for as long as the address is in use.
        """
        with self._changed:
            return self._destination(address)

    def put(self, address: str, rows: pa.Table) -> tuple[Destination, bool, int]:
        """Has rows wait to go to an address.

        Args:
            address: The address.
            rows: The rows.

        Returns:
            What is known of the address, and what its outbox says (`Outbox.put`).
        """
        with self._changed:  # so that it is not forgotten in between
            destination = self._destination(address)
            return (destination, *destination.outbox.put(rows))

    def progress(self, address: str) -> tuple[int, int]:
        """How far what was sent to an address has come.

        Args:
            address: The address.

        Returns:
            How many rows were taken for it, and how many of these are done with (`Outbox.progress`).
        """
        with self._changed:
            found = self._destinations.get(address)
            return (self._numbered_from, self._numbered_from) if found is None else found.outbox.progress

    def pending(self) -> tuple[int, int]:
        """How many rows wait to go to all addresses, or are being written; and how many bytes those count that wait."""
        with self._changed:
            each = [destination.outbox.pending for destination in self._destinations.values()]
        return sum(rows for rows, _ in each), sum(size for _, size in each)

    def refuses(self, address: str) -> str | None:
        """Why nothing new is begun with an address.

        Args:
            address: The address.

        Returns:
            Why not; None where nothing is in the way.
        """
        if self._setup.reach.refuses(host_of(address)):
            return "it is not among what may be dialled (dial_only)"
        most = self._setup.limits.learnt_most
        with self._changed:
            if address in self._routed or address in self._destinations or len(self._destinations) < most:
                return None
            learnt = sum(each.is_busy and each.address not in self._routed for each in self._destinations.values())
        return f"{learnt} addresses that no route names are in use already" if learnt >= most else None

    def is_learnt(self, address: str) -> bool:
        """Whether no route names an address, so that a neighbour has chosen it.

        Args:
            address: The address.
        """
        with self._changed:
            return address not in self._routed

    def routes_lead_to(self, addresses: Collection[str]) -> None:
        """Says which addresses routes name.

        Args:
            addresses: The addresses.
        """
        with self._changed:
            self._routed = addresses

    def forget_idle(self) -> None:
        """Forgets the addresses to which nothing goes, where there are many; in the endpoint's thread."""
        with self._changed:
            if len(self._destinations) <= self._forget_beyond:
                return
            for address, destination in list(self._destinations.items()):
                if not destination.is_busy:
                    # Who asks how far it has come is told a number that is no smaller than it was.
                    self._numbered_from = max(self._numbered_from, destination.outbox.progress[0])
                    del self._destinations[address]
            self._forget_beyond = max(KNOWN, 2 * len(self._destinations))

    def _destination(self, address: str) -> Destination:
        found = self._destinations.get(address)
        if found is None:
            found = self._destinations[address] = Destination(
                address,
                outbox_bytes=self._setup.limits.outbox_bytes,
                first=self._numbered_from,
                tell_room=partial(self._setup.call, partial(self._setup.receiver.has_room, address)),
            )
        return found
