"""An instance on a virtual network: the dialog protocol's machine with a ledger in memory, which may crash."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa

from ssbroker.exceptions import ProtocolError
from ssbroker.protocol.dialogs import Dialogs
from ssbroker.protocol.event_log import EventLog
from ssbroker.protocol.settings import Settings
from ssbroker.testing.book import Book
from ssbroker.testing.memory import MemoryLedger

Machine: TypeAlias = Callable[..., Dialogs]
Books: TypeAlias = Callable[[str], Book]


def memory_of(name: str) -> MemoryLedger:
    """A ledger in memory for the instance of a name, of which its broker id is made.

    Args:
        name: The name.

    Returns:
        The ledger.

    Examples:
        >>> memory_of("A").broker_instance
        b'A---------------'
    """
    return MemoryLedger(name.encode().ljust(16, b"-"))


class Node:
    """An instance: what is committed stands in its ledger, all else is lost when it crashes.

    Args:
        name: Its name on the network.
        settings: How the protocol is set up.
        random: Where chance comes from.
        machine: What makes its machine; `Dialogs` unless a test plants a bug.
        books: What keeps what is durable, by the name; in memory unless told otherwise.

    Examples:
        >>> node = Node("A", Settings(), Random(7))
        >>> node.data_to_send(now=0) is None
        True
    """

    def __init__(
        self, name: str, settings: Settings, random: Random, *, machine: Machine = Dialogs, books: Books = memory_of
    ) -> None:
        self.name = name
        self.ledger = books(name)
        self.log = EventLog()
        self.clock_offset = 0
        self.crashes = 0
        self.rollbacks = 0
        self._settings = settings
        self._random = random
        self._machine = machine
        self._outbox: list[pa.Table] = []
        self.dialogs = self._started()

    def _started(self) -> Dialogs:
        self.ledger.restart()
        made = self._machine(self.ledger, roll=self._random.random, settings=self._settings, log=self.log)
        made.queued(self.ledger.waiting())
        return made

    def crash(self) -> None:
        """Loses all that is not committed, and starts anew."""
        self.crashes += 1
        self.dialogs = self._started()

    def data_to_send(self, *, now: int) -> pa.Table | None:
        """What it sends now.

        Args:
            now: The moment of the network; its own clock may show another.

        Returns:
            The rows; None for nothing.
        """
        self._collect(now)
        tables, self._outbox = self._outbox, []
        return pa.concat_tables(tables) if tables else None

    def _collect(self, now: int) -> None:
        while (table := self.dialogs.data_to_send(now=now + self.clock_offset)) is not None:
            self._outbox.append(table)

    def next_timeout(self) -> int | None:
        """When it has something to send again, by the network's clock."""
        due = self.dialogs.next_timeout()
        return None if due is None else due - self.clock_offset if due else 0

    def receive(
        self,
        table: pa.Table,
        *,
        now: int,
        peer: bytes | None,
        session_keys: Mapping[bytes, bytes],
        crashes: float = 0.0,
        rollbacks: float = 0.0,
    ) -> None:
        """Takes a batch and commits what it comes to, unless something goes wrong.

        Args:
            table: The rows.
            now: The moment.
            peer: Who handed it over.
            session_keys: Keys of conversations that begin with it.
            crashes: How likely a crash is, just before or just after the commit.
            rollbacks: How likely the transaction is rolled back.
        """
        moment = now + self.clock_offset
        chance = self._random.random()
        options: dict[str, Any] = {"peer": peer, "session_keys": session_keys}
        effects = self.dialogs.arrived(table, now=moment, **options)
        # What it sends while the transaction runs is out, whatever becomes of that.
        self._collect(now)
        if chance < crashes / 2:
            self.crash()
            return
        if chance > 1 - rollbacks:
            self.rollbacks += 1
            self.dialogs.undo(effects)
            return
        if self.ledger.commit(effects) is not None:
            raise ProtocolError(f"{self.name}: the ledger did not take what is its own")
        if chance < crashes:
            self.crash()
            return
        self.dialogs.confirm(effects, now=moment)
