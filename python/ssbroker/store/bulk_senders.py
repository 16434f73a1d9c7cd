"""The last batch that each writer of bulk sends has sent, and the dialogs that each writer continues."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.sqlite import Connection


def last_batch(connection: Connection, writer: str) -> int | None:
    """Returns the id of the last batch that a writer has sent; None if it has sent no batch."""
    row = connection.execute("SELECT batch_id FROM ssb_sent_batches WHERE writer = ?", (writer,)).fetchone()
    return None if row is None else int(row[0])


def record_batch(connection: Connection, writer: str, batch_id: int) -> None:
    """Records that a writer has sent a batch, and all batches before it."""
    connection.execute(_RECORD_BATCH, (writer, batch_id))


def find_dialogs(connection: Connection, writer: str, keys: Iterable[bytes]) -> dict[bytes, ConversationEndpoint]:
    """Returns the endpoints of a writer's dialogs by their keys; omits missing endpoints."""
    rows = connection.executemany(_DIALOGS, ((writer, key) for key in keys))
    return {row[0]: ConversationEndpoint._make(row[1:]) for row in rows}


def save_dialogs(connection: Connection, rows: Iterable[tuple[str, bytes, int]]) -> None:
    """Saves the dialogs that writers continue: rows of writer, key and endpoint id. Deleting the endpoint deletes the row."""
    connection.executemany(_SAVE_DIALOG, rows)


_RECORD_BATCH: Final = """
    INSERT INTO ssb_sent_batches (writer, batch_id) VALUES (?, ?)
    ON CONFLICT (writer) DO UPDATE SET batch_id = excluded.batch_id"""
_DIALOGS: Final = """
    SELECT d.dialog, e.* FROM ssb_writer_dialogs AS d JOIN ssb_conversation_endpoints AS e USING (endpoint_id)
    WHERE d.writer = ? AND d.dialog = ?"""
_SAVE_DIALOG: Final = """
    INSERT INTO ssb_writer_dialogs (writer, dialog, endpoint_id) VALUES (?, ?, ?)
    ON CONFLICT (writer, dialog) DO UPDATE SET endpoint_id = excluded.endpoint_id"""
