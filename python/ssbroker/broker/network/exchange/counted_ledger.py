"""The ledger of a machine, with what Service Broker counts of transmission objects (fact 170)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from ssbroker.broker.network.exchange.ledger import SqliteLedger
from ssbroker.protocol.ledger import Key

if TYPE_CHECKING:
    from ssbroker.broker.database import Database


class CountedLedger(SqliteLedger):
    """Counts the transmission objects that are read back and put aside.

    Args:
        database: The database.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._counters: Final = database.instance.worker.counters

    def put_aside(self, objects: Mapping[Key, bytes]) -> None:
        """See `Ledger`."""
        begun = time.perf_counter()
        super().put_aside(objects)
        self._counters.objects_written(len(objects), seconds=time.perf_counter() - begun)

    def read_back(self, keys: Sequence[Key]) -> Mapping[Key, bytes]:
        """See `Ledger`."""
        found = super().read_back(keys)
        self._counters.objects_read(len(found))
        return found
