"""What an instance has done in this process, counted as Service Broker counts it (facts 168 and 170)."""

from __future__ import annotations

import threading
from typing import Final

from ssbroker.broker.effects import Effects
from ssbroker.broker.object_definitions import LEVELS
from ssbroker.store.file import Counts

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
    SQL_SENDS: "Messages that were sent.",
    SQL_RECEIVES: "RECEIVE statements, those that found nothing included.",
    ENQUEUED_MESSAGES: "Messages that were put into queues.",
    ENQUEUED_LOCAL_MESSAGES: "Messages that were put into queues, of conversations within the instance.",
    ENQUEUED_TRANSPORT_MESSAGES: "Messages that were put into queues, of conversations with other instances.",
    **{name: f"Messages of priority {priority} that were put into queues." for priority, name in _BY_PRIORITY.items()},
    ENQUEUED_TRANSPORT_MSG_FRAGS: "Fragments from other instances that were kept until their messages are whole.",
    ENQUEUED_TRANSMISSIONQ_MESSAGES: "Messages that were put into transmission queues.",
    DEQUEUED_TRANSMISSIONQ_MESSAGES: "Messages that left transmission queues.",
    BROKER_TRANSACTION_ROLLBACKS: "Transactions that were rolled back.",
    TASK_LIMIT_REACHED: "Times that a message came, and a queue got no further reader since max_queue_readers of them run.",
    TRAN_OBJECT_GETS: "Transmission objects of dialogs with other instances that were read back from the work table.",
    TRAN_OBJECTS_MARKED_DIRTY: "Transmission objects that were changed for the first time since they were made or read back.",
    TRAN_OBJECT_WRITES: "Transmission objects of such dialogs that were put aside into the work table.",
    TRAN_OBJECT_WRITE_BATCHES: "Transactions that put transmission objects aside.",
    TRAN_OBJECT_WRITE_SECONDS: "The seconds that these took.",
}
"""What is counted, and what it means."""


class Counters:
    """Numbers that only grow, from when the instance was opened in this process. For any number of threads.

    Attributes:
        plain: Counts what plain transactions do, of which nobody is told.

    Examples:
        >>> counters = Counters()
        >>> counters.committed(Effects(sent=2))
        >>> counters.counts()["sql_sends"]
        2
    """

    def __init__(self) -> None:
        self.plain: Final = Counts()
        self._guard: Final = threading.RLock()
        self._counts: Final[dict[str, float]] = dict.fromkeys(NAMES, 0)

    def committed(self, effects: Effects) -> None:
        """Counts what a transaction did.

        Args:
            effects: What it did.
        """
        counts = self._counts
        with self._guard:
            if effects.sent:
                counts[SQL_SENDS] += effects.sent
            if effects.received:
                counts[SQL_RECEIVES] += len(effects.received)
            for (is_remote, priority), number in effects.enqueued.items():
                counts[ENQUEUED_MESSAGES] += number
                counts[ENQUEUED_TRANSPORT_MESSAGES if is_remote else ENQUEUED_LOCAL_MESSAGES] += number
                counts[_BY_PRIORITY[priority]] += number
            if effects.fragments:
                counts[ENQUEUED_TRANSPORT_MSG_FRAGS] += effects.fragments
            if effects.put_off:
                counts[ENQUEUED_TRANSMISSIONQ_MESSAGES] += effects.put_off
            if effects.taken_off:
                counts[DEQUEUED_TRANSMISSIONQ_MESSAGES] += effects.taken_off

    def rolled_back(self) -> None:
        """Counts a transaction that came to nothing."""
        with self._guard:
            self._counts[BROKER_TRANSACTION_ROLLBACKS] += 1

    def task_limit_reached(self) -> None:
        """Counts that a queue got no further reader, since as many run as may."""
        with self._guard:
            self._counts[TASK_LIMIT_REACHED] += 1

    def objects_read(self, number: int) -> None:
        """Counts transmission objects that were read back (P32).

        Args:
            number: How many.
        """
        with self._guard:
            self._counts[TRAN_OBJECT_GETS] += number

    def objects_marked(self, number: int) -> None:
        """Counts transmission objects that became dirty (P32).

        Args:
            number: How many.
        """
        with self._guard:
            self._counts[TRAN_OBJECTS_MARKED_DIRTY] += number

    def objects_written(self, number: int, *, seconds: float) -> None:
        """Counts transmission objects that were put aside in one transaction (P32).

        Args:
            number: How many.
            seconds: How long it took.
        """
        with self._guard:
            self._counts[TRAN_OBJECT_WRITES] += number
            self._counts[TRAN_OBJECT_WRITE_BATCHES] += 1
            self._counts[TRAN_OBJECT_WRITE_SECONDS] += seconds

    def counts(self) -> dict[str, float]:
        """The numbers of now, by the names of `NAMES`."""
        sends, receives, enqueued = self.plain.take()
        effects = Effects(sent=sends, enqueued=enqueued)
        with self._guard:
            self.committed(effects)
            self._counts[SQL_RECEIVES] += receives
            return dict(self._counts)
