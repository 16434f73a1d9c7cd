"""The progress of bulk senders, so that a repeated batch is not sent again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ssbroker.store.endpoints import ConversationEndpoint
from ssbroker.store.sqlite import Connection


def last_batch(connection: Connection, writer: str) -> int | None:
    """The last batch that a writer has sent; None where it has sent none."""
    row = connection.execute("SELECT batch_id FROM ssb_sent_batches WHERE writer = ?", (writer,)).fetchone()
    return None if row is None else int(row[0])


def note_batch(connection: Connection, writer: str, batch_id: int) -> None:
    """Notes that a batch is sent, and with it all before it."""
    connection.execute(_NOTE, (writer, batch_id))


def dialogs(connection: Connection, writer: str, keys: Iterable[bytes]) -> dict[bytes, ConversationEndpoint]:
    """The endpoints of a writer's dialogs, by their keys; what is not there is left out."""
    rows = connection.executemany(_DIALOGS, ((writer, key) for key in keys))
    return {row[0]: ConversationEndpoint._make(row[1:]) for row in rows}


def keep_dialogs(connection: Connection, rows: Iterable[tuple[str, bytes, int]]) -> None:
    """Has writers go on with conversations: each a writer, a key and the endpoint. They are forgotten when the endpoint goes."""
    connection.executemany(_KEEP, rows)


_NOTE: Final = """
    INSERT INTO ssb_sent_batches (writer, batch_id) VALUES (?, ?)
    ON CONFLICT (writer) DO UPDATE SET batch_id = excluded.batch_id"""
_DIALOGS: Final = """
    SELECT d.dialog, e.* FROM ssb_writer_dialogs AS d JOIN ssb_conversation_endpoints AS e USING (endpoint_id)
    WHERE d.writer = ? AND d.dialog = ?"""
_KEEP: Final = """
    INSERT INTO ssb_writer_dialogs (writer, dialog, endpoint_id) VALUES (?, ?, ?)
    ON CONFLICT (writer, dialog) DO UPDATE SET endpoint_id = excluded.endpoint_id"""
