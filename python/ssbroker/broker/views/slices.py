"""Queues and the transmission queue in slices, each read by whoever has the instance open (U21, U22)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from ssbroker.broker.database import Database
from ssbroker.broker.objects.queue_names import queue_key
from ssbroker.broker.objects.refusals import existing
from ssbroker.broker.views.view_schemas import DATABASE_VIEWS, QUEUE
from ssbroker.broker.views.views import DATABASE, table_of
from ssbroker.store import queues, slices
from ssbroker.store.slices import Cut

TRANSMISSION_QUEUE: Final = "sys.transmission_queue"


def cuts(
    database: Database,
    name: str,
    *,
    after: int = 0,
    until: int | None = None,
    rows_max: int,
    bytes_max: int,
    cuts_max: int | None = None,
) -> list[Cut]:
    """Where to cut a queue, or the transmission queue, as it is now.

    Args:
        database: The database.
        name: The queue, or `sys.transmission_queue`.
        after: The number after which to begin.
        until: The last number; None is the last that there is.
        rows_max: The most rows of a slice.
        bytes_max: After how many bytes of bodies a slice ends.
        cuts_max: The most slices; nothing behind them is read.

    Returns:
        The slices, in order.

    Raises:
        BrokerError: There is no such queue (15151).
    """
    with database.file.read() as connection:
        queue_id = _queue_id(database, connection, name)
        found = slices.cuts(connection, queue_id, after=after, until=until, rows_max=rows_max, bytes_max=bytes_max)
        with closing(found):
            return list(islice(found, cuts_max))


def last_number(database: Database) -> int:
    """The last `queuing_order` that was given in a database; it never gets smaller."""
    return database.file.ask(queues.last_number)


def slice_of(database: Database, name: str, span: tuple[int, int] | None, wanted: Sequence[str]) -> pa.Table:
    """The rows of a slice.

    Args:
        database: The database.
        name: The queue, or `sys.transmission_queue`.
        span: The number after which it begins, and its last one; None is what is incomplete, and has no number yet.
        wanted: The columns; `database` is the name of the database.

    Returns:
        A table with these columns.

    Raises:
        BrokerError: There is no such queue (15151).
    """
    schema = DATABASE_VIEWS[TRANSMISSION_QUEUE] if name == TRANSMISSION_QUEUE else QUEUE
    stored = [column for column in wanted if column != DATABASE.name]
    with database.file.read() as connection:
        queue_id = _queue_id(database, connection, name)
        rows = slices.rows(connection, queue_id, span, names=schema.names, wanted=stored)
    fields: list[pa.Field[Any]] = [schema.field(column) for column in stored]
    if not stored:
        return pa.table({DATABASE.name: [database.name] * len(rows)}, schema=pa.schema([DATABASE]))
    table = table_of(rows, pa.schema(fields))
    if DATABASE.name in wanted:
        table = table.append_column(DATABASE, pa.array([database.name] * len(rows), pa.string()))
    return table.select(list(wanted))


def _queue_id(database: Database, connection: Any, name: str) -> int | None:
    if name == TRANSMISSION_QUEUE:
        return None
    return existing(database.objects(connection).queues, queue_key(name), kind="queue").queue_id
