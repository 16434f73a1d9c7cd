"""Performance counters of an instance in this process, with Service Broker's names and meanings."""

from __future__ import annotations

import threading
from typing import Final

from ssbroker.broker.effects import Effects
from ssbroker.ddl.statements import LEVELS
from ssbroker.store.session import Counts

SQL_SENDS: Final = "sql_sends"
SQL_RECEIVES: Final = "sql_receives"
ENQUEUED_MESSAGES: Final = "enqueued_messages"
ENQUEUED_LOCAL_MESSAGES: Final = "enqueued_local_messages"
ENQUEUED_TRANSPORT_MESSAGES: Final = "enqueued_transport_messages"
ENQUEUED_TRANSPORT_MSG_FRAGS: Final = "enqueued_transport_msg_frags"
ENQUEUED_TRANSMISSIONQ_MESSAGES: Final = "enqueued_transmissionq_messages"
DEQUEUED_TRANSMISSIONQ_MESSAGES: Final = "dequeued_transmissionq_messages"
BROKER_TRANSACTION_ROLLBACKS: Final = "broker_transaction_rollbacks"
TASK_LIMIT_REACHED: Final = "task_limit_reached"
TRAN_OBJECT_GETS: Final = "tran_object_gets"
TRAN_OBJECTS_MARKED_DIRTY: Final = "tran_objects_marked_dirty"
TRAN_OBJECT_WRITES: Final = "tran_object_writes"
TRAN_OBJECT_WRITE_BATCHES: Final = "tran_object_write_batches"
TRAN_OBJECT_WRITE_SECONDS: Final = "tran_object_write_seconds"
_BY_PRIORITY: Final = {priority: f"enqueued_p{priority}_messages" for priority in LEVELS}

NAMES: Final = {
    SQL_SENDS: "Messages sent.",
    SQL_RECEIVES: "RECEIVE calls, including empty ones.",
    ENQUEUED_MESSAGES: "Messages put into queues.",
    ENQUEUED_LOCAL_MESSAGES: "Messages from services of the same instance put into queues.",
    ENQUEUED_TRANSPORT_MESSAGES: "Messages from services of other instances put into queues.",
    **{name: f"Messages of priority {priority} put into queues." for priority, name in _BY_PRIORITY.items()},
    ENQUEUED_TRANSPORT_MSG_FRAGS: "Fragments from other instances stored until their messages are complete.",
    ENQUEUED_TRANSMISSIONQ_MESSAGES: "Messages put into transmission queues.",
    DEQUEUED_TRANSMISSIONQ_MESSAGES: "Messages removed from transmission queues.",
    BROKER_TRANSACTION_ROLLBACKS: "Transactions rolled back.",
    TASK_LIMIT_REACHED: "Messages that arrived when a queue needed another reader but max_queue_readers were running.",
    TRAN_OBJECT_GETS: "Transmission objects of dialogs with other instances read back from the work table.",
    TRAN_OBJECTS_MARKED_DIRTY: "Transmission objects changed for the first time since they were created or read back.",
    TRAN_OBJECT_WRITES: "Transmission objects written to the work table.",
    TRAN_OBJECT_WRITE_BATCHES: "Transactions that wrote transmission objects to the work table.",
    TRAN_OBJECT_WRITE_SECONDS: "Seconds spent in transactions that wrote transmission objects to the work table.",
}
"""The counters and their descriptions."""


class Counters:
    """Counters that only increase, starting when the instance is opened in this process. Thread-safe.

    Attributes:
        fast_path: The counters of fast-path transactions.

    Examples:
        >>> counters = Counters()
        >>> counters.committed(Effects(sent=2))
        >>> counters.counts()["sql_sends"]
        2
    """

    def __init__(self) -> None:
        self.fast_path: Final = Counts()
        self._guard: Final = threading.RLock()
        self._counts: Final[dict[str, float]] = dict.fromkeys(NAMES, 0)

    def committed(self, effects: Effects) -> None:
        """Counts the effects of a transaction."""
        counts = self._counts
        with self._guard:
            if effects.sent:
                counts[SQL_SENDS] += effects.sent
            if effects.received:
                counts[SQL_RECEIVES] += sum(not each.is_repeated for each in effects.received)
            for (is_remote, priority), number in effects.enqueued.items():
                counts[ENQUEUED_MESSAGES] += number
                counts[ENQUEUED_TRANSPORT_MESSAGES if is_remote else ENQUEUED_LOCAL_MESSAGES] += number
                counts[_BY_PRIORITY[priority]] += number
            if effects.fragments:
                counts[ENQUEUED_TRANSPORT_MSG_FRAGS] += effects.fragments
            if effects.transmission_added:
                counts[ENQUEUED_TRANSMISSIONQ_MESSAGES] += effects.transmission_added
            if effects.transmission_removed:
                counts[DEQUEUED_TRANSMISSIONQ_MESSAGES] += effects.transmission_removed

    def rolled_back(self) -> None:
        """Counts a transaction that was rolled back."""
        with self._guard:
            self._counts[BROKER_TRANSACTION_ROLLBACKS] += 1

    def task_limit_reached(self) -> None:
        """Counts a message that got no additional reader because the maximum number of readers is running."""
        with self._guard:
            self._counts[TASK_LIMIT_REACHED] += 1

    def objects_read(self, number: int) -> None:
        """Counts transmission objects read back from the work table (P32)."""
        with self._guard:
            self._counts[TRAN_OBJECT_GETS] += number

    def objects_marked(self, number: int) -> None:
        """Counts transmission objects that became dirty: changed since they were created or read back (P32)."""
        with self._guard:
            self._counts[TRAN_OBJECTS_MARKED_DIRTY] += number

    def objects_written(self, number: int, *, seconds: float) -> None:
        """Counts transmission objects written to the work table in one transaction (P32)."""
        with self._guard:
            self._counts[TRAN_OBJECT_WRITES] += number
            self._counts[TRAN_OBJECT_WRITE_BATCHES] += 1
            self._counts[TRAN_OBJECT_WRITE_SECONDS] += seconds

    def counts(self) -> dict[str, float]:
        """Returns the current counters by name."""
        sends, receives, enqueued = self.fast_path.take()
        effects = Effects(sent=sends, enqueued=enqueued)
        with self._guard:
            self.committed(effects)
            self._counts[SQL_RECEIVES] += receives
            return dict(self._counts)
