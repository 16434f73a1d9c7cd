"""The machines of an instance: one for each database that sends and receives (N2)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from ssbroker.broker.delivery.transport import Outgoing
from ssbroker.broker.network.exchange.machine import Machine
from ssbroker.exceptions import StorageError
from ssbroker.protocol.settings import Settings
from ssbroker.store import carrying
from ssbroker.store.watch import Watch

if TYPE_CHECKING:
    from ssbroker.broker.database import Database
    from ssbroker.broker.instance import Instance
    from ssbroker.broker.network.hooks import KeyExchanges, Mirrors

LOGGER: Final = logging.getLogger("ssbroker.broker")


class Machines:
    """Makes machines, and makes them anew where a database has become another. For one thread.

    Args:
        instance: The instance.
        settings: How the protocol is set up.
        keys: Who settles the keys of dialogs.
        closed: The gates that are closed.
        mirrors: Who knows the principals of mirrored routes; None where nobody does.

    Attributes:
        is_due: Whether `renew` has something to do, whatever the catalog says.
        has_failed: Whether a database has no machine because its file could not be used; to be tried again some time.
    """

    def __init__(
        self,
        instance: Instance,
        *,
        settings: Settings,
        keys: KeyExchanges,
        closed: set[str],
        mirrors: Mirrors | None,
    ) -> None:
        self._instance: Final = instance
        self._keys: Final = keys
        self._settings: Final = settings
        self._closed: Final = closed
        self._mirrors: Final = mirrors
        self.is_due = True
        self.has_failed = False
        self._machines: dict[int, Machine] = {}
        self._marks: dict[int, tuple[bytes, bool]] = {}
        self._watches: dict[int, Watch] = {}

    def all(self) -> list[Machine]:
        """The machines, in the order of their databases."""
        return list(self._machines.values())

    def named(self, name: str) -> Machine | None:
        """The machine of a database, by its name; None where it cannot send or receive now."""
        return next((each for each in self._machines.values() if each.database.name == name), None)

    def numbered(self, database_id: int) -> Machine | None:
        """The same by its number."""
        return self._machines.get(database_id)

    def drop(self, machine: Machine) -> None:
        """Drops a machine whose database has become another; `renew` makes a new one."""
        self._machines.pop(machine.database.database_id, None)
        self.is_due = True

    def renew(self) -> None:
        """Makes the machines that are missing, and drops those whose database is gone, disabled, a mirror or another broker now."""
        before, self._machines = self._machines, {}
        self.is_due = self.has_failed = False
        for database in self._instance.databases:
            number = database.database_id
            try:
                mark = _mark(database)
                if mark is None:
                    continue
                known = before.get(number)
                if known is not None and known.database is database and self._marks.get(number) == mark:
                    self._machines[number] = known
                    continue
                settings = replace(self._settings, honor_priority=mark[1])
                self._machines[number] = Machine(
                    database, settings=settings, keys=self._keys, closed=self._closed, mirrors=self._mirrors
                )
                self._marks[number] = mark
            except StorageError as error:
                self.has_failed = True
                LOGGER.warning("%s: sends and receives nothing over the network for now: %s", database.name, error)
        for number in self._watches.keys() - self._machines.keys():
            self._watches.pop(number).close()

    def waiting_anew(self, machine: Machine, sent: Callable[[], Mapping[int, tuple[bytes, int]]]) -> list[Outgoing]:
        """What was committed to a database since the last look, by whomever, and goes to other instances (N16).

        Args:
            machine: The database's machine.
            sent: Tells up to which message conversations are carried: handle, and number of the next one, by endpoint.

        Returns:
            The conversations.

        Raises:
            StorageError: The file cannot be read.
        """
        database = machine.database
        watch = self._watches.get(database.database_id)
        if watch is None:
            watch = self._watches[database.database_id] = database.file.watch()
        if not watch.has_changed():
            return []
        with database.file.read() as connection:
            waiting = carrying.waiting(connection)
            carried = sent() if waiting else {}
            new = [endpoint_id for endpoint_id, number in waiting.items() if carried.get(endpoint_id) != number]
            senders = carrying.senders(connection, new)
        if not senders:
            return []
        decisions = self._instance.worker.ways.decisions(database.name, senders)
        return [
            Outgoing(database, sender, decision)
            for sender, decision in zip(senders, decisions, strict=True)
            if decision.next_hop_address is not None
        ]

    def close(self) -> None:
        """Gives back what it holds of the files."""
        self._machines = {}
        for watch in self._watches.values():
            watch.close()
        self._watches = {}


def _mark(database: Database) -> tuple[bytes, bool] | None:
    """What makes a machine the one of its database: the broker id, and whether priorities count; None where it rests."""
    broker = database.objects().broker
    return (broker.service_broker_guid, broker.is_honor_broker_priority_on) if broker.is_delivering else None
