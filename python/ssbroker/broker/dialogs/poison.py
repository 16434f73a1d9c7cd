"""Poison messages: five rollbacks in a row of transactions that received from a queue turn it off (B24, fact 145)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ssbroker.broker.work.effects import Effects
from ssbroker.broker.work.own_work import own_work
from ssbroker.broker.work.telling import queue_name
from ssbroker.protocol.events import QueueDisabled
from ssbroker.store import object_changes, rollbacks

if TYPE_CHECKING:
    from ssbroker.broker.database import Database

ROLLBACKS_MAX: Final = 5


def received_from(effects: Effects) -> set[int]:
    """The queues from which a transaction took something.

    Args:
        effects: What it did.

    Returns:
        Their ids.
    """
    return {each.queue_id for each in effects.received if not each.is_empty}


def rolled_back(database: Database, queue_ids: Iterable[int]) -> None:
    """Counts a rollback, in a transaction of its own.

    Args:
        database: The database.
        queue_ids: The queues that the transaction had received from.

    Raises:
        LockTimeoutError: Others were writing to the file.
        StorageError: It cannot be written.
    """
    with own_work(database) as work:
        for queue_id in queue_ids:
            counted = rollbacks.count(work.connection, queue_id)
            queue = work.objects.queues_by_id.get(queue_id)
            if queue is None or not queue.is_poison_message_handling_enabled or counted < ROLLBACKS_MAX:
                continue
            if not queue.is_receive_enabled:
                continue
            off = {"is_receive_enabled": False, "is_enqueue_enabled": False}
            object_changes.alter(work.connection, "ssb_queues", queue_id, off)
            work.effects.is_catalog_changed = True
            work.effects.events.append(QueueDisabled(at=work.now(), database=work.database, queue=queue_name(queue)))
