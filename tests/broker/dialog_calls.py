"""Calls for conversations between two services of a database, and queries of its state."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa

from ssbroker._well_known import DIALOG_TIMER, END_DIALOG, ERROR
from ssbroker.broker.database import Database, database_context
from ssbroker.store import conversation_endpoints
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from tests.broker.conftest import INITIATOR, QUEUE, TARGET

SHORT = {END_DIALOG: "EndDialog", ERROR: "Error", DIALOG_TIMER: "DialogTimer"}
REPLIES = "Replies"


def begin(database: Database, *bodies: bytes, **options: Any) -> uuid.UUID:
    """Begins a dialog from //Shop to //Orders and sends messages in it."""
    with database.transaction() as t:
        dialog = t.begin_dialog(INITIATOR, options.pop("to_service", TARGET), **options)
        for body in bodies:
            t.send(dialog, body)
    return dialog


def send(database: Database, dialog: uuid.UUID, *bodies: bytes, **options: Any) -> None:
    with database.transaction() as t:
        for body in bodies:
            t.send(dialog, body, **options)


def end(database: Database, dialog: uuid.UUID, **options: Any) -> None:
    with database.transaction() as t:
        t.end_conversation(dialog, **options)


def receive(database: Database, queue: str = QUEUE, **options: Any) -> pa.Table:
    with database.transaction() as t:
        return t.receive(queue, **options)


def drain(database: Database, queue: str = QUEUE) -> list[dict[str, Any]]:
    """Receives all messages of a queue, in order."""
    found: list[dict[str, Any]] = []
    with database.transaction() as t:
        while (table := t.receive(queue)).num_rows:
            found += table.to_pylist()
    return found


def contents_of(rows: pa.Table | list[dict[str, Any]]) -> list[bytes | str]:
    """Returns the bodies of messages; for system messages, their type."""
    listed = rows.to_pylist() if isinstance(rows, pa.Table) else rows
    return [SHORT.get(row["message_type_name"]) or row["message_body"] for row in listed]


def handle_of(rows: pa.Table | list[dict[str, Any]]) -> uuid.UUID:
    """Returns the handle of the first message's conversation, at the receiver."""
    listed = rows.to_pylist() if isinstance(rows, pa.Table) else rows
    return uuid.UUID(bytes=listed[0]["conversation_handle"])


def pair(database: Database) -> tuple[uuid.UUID, uuid.UUID]:
    """Returns an established conversation with empty queues: the handles of initiator and target."""
    initiator = begin(database, b"hello")
    with database.transaction() as t:
        target = handle_of(t.receive(QUEUE, conversation_handle=far_handle(database, initiator, t.connection)))
    return initiator, target


def far_handle(database: Database, dialog: uuid.UUID, connection: Any = None) -> uuid.UUID:
    """Returns the handle of the other endpoint, in the same database."""
    if connection is None:
        with database_context(database).file.read() as reader:
            return far_handle(database, dialog, reader)
    near = conversation_endpoints.by_handle(connection, dialog.bytes)
    assert near is not None
    far = conversation_endpoints.by_conversation(connection, near.conversation_id, is_initiator=not near.is_initiator)
    assert far is not None
    return uuid.UUID(bytes=far.conversation_handle)


def endpoint(database: Database, dialog: uuid.UUID) -> ConversationEndpoint | None:
    with database_context(database).file.read() as connection:
        return conversation_endpoints.by_handle(connection, dialog.bytes)


def state(database: Database, dialog: uuid.UUID) -> str | None:
    """Returns the state of an endpoint; None if it does not exist."""
    found = endpoint(database, dialog)
    return None if found is None else found.state


def switch(database: Database, queue: str = QUEUE, *, on: bool) -> None:
    """Turns a queue on or off."""
    database.alter_queue(queue, status=on)


def group_of(database: Database, dialog: uuid.UUID) -> bytes:
    found = endpoint(database, dialog)
    assert found is not None
    return found.conversation_group_id


def waiting(database: Database) -> int:
    """Returns the number of messages in the transmission queue."""
    with database_context(database).file.read() as connection:
        count: int = connection.execute("SELECT count(*) FROM ssb_transmission_queue").get
        return count


def contents(database: Database, connection: Any = None) -> dict[str, list[tuple[Any, ...]]]:
    """Returns the content of all broker tables."""
    if connection is None:
        with database_context(database).file.read() as reader:
            return contents(database, reader)
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}
