"""What an instance has done in this process, counted as Service Broker counts it (fact 168)."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Final

from ssbroker.broker.work.effects import Effects

SQL_SENDS: Final = "sql_sends"
SQL_RECEIVES: Final = "sql_receives"
ENQUEUED_MESSAGES: Final = "enqueued_messages"
ENQUEUED_TRANSMISSIONQ_MESSAGES: Final = "enqueued_transmissionq_messages"
BROKER_TRANSACTION_ROLLBACKS: Final = "broker_transaction_rollbacks"
TRAN_OBJECT_GETS: Final = "tran_object_gets"
TRAN_OBJECT_WRITES: Final = "tran_object_writes"

NAMES: Final = {
    SQL_SENDS: "Messages that were sent.",
    SQL_RECEIVES: "RECEIVE statements, those that found nothing included.",
    ENQUEUED_MESSAGES: "Messages that were put into queues.",
    ENQUEUED_TRANSMISSIONQ_MESSAGES: "Messages that were put into transmission queues.",
    BROKER_TRANSACTION_ROLLBACKS: "Transactions that were rolled back.",
    TRAN_OBJECT_GETS: "Transmission objects of dialogs with other instances that were read back from the work table.",
    TRAN_OBJECT_WRITES: "Transmission objects of such dialogs that were put aside into the work table.",
}
"""What is counted, and what it means."""


class Counters:
    """Numbers that only grow, from when the instance was opened in this process. For any number of threads.

    Examples:
        >>> counters = Counters()
        >>> counters.committed(Effects(sent=2))
        >>> counters.counts()["sql_sends"]
        2
    """

    def __init__(self) -> None:
        self._guard: Final = threading.Lock()
        self._counts: Final[Counter[str]] = Counter(dict.fromkeys(NAMES, 0))

    def committed(self, effects: Effects) -> None:
        """Counts what a transaction did.

        Args:
            effects: What it did.
        """
        with self._guard:
            self._counts[SQL_SENDS] += effects.sent
            self._counts[SQL_RECEIVES] += len(effects.received)
            self._counts[ENQUEUED_MESSAGES] += effects.enqueued
            self._counts[ENQUEUED_TRANSMISSIONQ_MESSAGES] += effects.put_off

    def rolled_back(self) -> None:
        """Counts a transaction that came to nothing."""
        with self._guard:
            self._counts[BROKER_TRANSACTION_ROLLBACKS] += 1

    def objects_moved(self, *, read: int = 0, written: int = 0) -> None:
        """Counts transmission objects (P32).

        Args:
            read: How many were read back.
            written: How many were put aside.
        """
        with self._guard:
            self._counts[TRAN_OBJECT_GETS] += read
            self._counts[TRAN_OBJECT_WRITES] += written

    def counts(self) -> dict[str, int]:
        """The numbers of now, by the names of `NAMES`."""
        with self._guard:
            return dict(self._counts)
