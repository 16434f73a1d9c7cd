"""Batches of rows that are sent once, however often they come (U24)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from ssbroker.broker.dialogs.rows import Addressing, RowSender
from ssbroker.broker.work.own_work import own_work
from ssbroker.store import writers

if TYPE_CHECKING:
    from ssbroker.broker.database import Database

_LOCK_TIMEOUT: Final = 60.0


class Batch(NamedTuple):
    """One batch of a writer that numbers them upwards."""

    writer: str
    """Who sends it."""
    batch_id: int
    """Its number: whoever has sent it has sent all before it."""


def send_once(
    database: Database, rows: Iterable[pa.Table], addressing: Addressing, *, batch: Batch | None = None
) -> int | None:
    """Sends rows as messages, all of them in one transaction with the note that their batch is sent.

    Args:
        database: The database that sends.
        rows: The rows in parts; each is sent in its order before the next is asked for.
        addressing: What holds for all rows.
        batch: The batch; without one, the rows are sent whenever this is called.

    Returns:
        How many rows were sent; None where the batch had been sent before, and nothing is done.

    Raises:
        BrokerError: A message or a dialog is refused; nothing was sent.
        InputError: A value is not what was expected; nothing was sent.
        StorageError: The file cannot be written; nothing was sent.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> rows = [pa.table({"message_body": pa.array([b"two chairs"], pa.binary())})]
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
        ...     sales = instance.create_database("Sales")
        ...     sales.create_queue("Orders")
        ...     sales.create_service("//Orders", queue="Orders")
        ...     said = Addressing(from_service="//Orders", to_service="//Orders")
        ...     [send_once(sales, rows, said, batch=Batch("night", 7)) for _ in range(2)]
        [1, None]
    """
    with own_work(database, lock_timeout=_LOCK_TIMEOUT) as work:
        if batch is not None:
            last = writers.last_batch(work.connection, batch.writer)
            if last is not None and batch.batch_id <= last:
                return None
            writers.note_batch(work.connection, *batch)
        sender = RowSender(work, addressing, writer=None if batch is None else batch.writer)
        for part in rows:
            sender.send(part)
        return sender.finish()
