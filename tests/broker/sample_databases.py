"""Databases that exchange messages, and queries of their contents."""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

import pyarrow as pa

from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance

SHOP = "//Shop"
STOCK = "//Stock"
ORDERS = "Orders"
REPLIES = "Replies"


class Sent(NamedTuple):
    """A row of the transmission queue."""

    message_sequence_number: int
    is_inbound: int
    transmission_status: str


def shop(instance: Instance, name: str = "Sales") -> Database:
    """Returns a database with the service `//Shop` on the queue `Replies`."""
    database = instance.create_database(name)
    database.create_queue(REPLIES)
    database.create_service(SHOP, queue=REPLIES)
    return database


def stock(instance: Instance, name: str = "Stock") -> Database:
    """Returns a database with the service `//Stock` on the queue `Orders`."""
    database = instance.create_database(name)
    database.create_queue(ORDERS)
    database.create_service(STOCK, queue=ORDERS)
    return database


def send(database: Database, *bodies: bytes, to: str = STOCK, dialog: uuid.UUID | None = None) -> uuid.UUID:
    """Sends in one transaction, in a new dialog unless one is given; returns its handle."""
    with database.transaction() as t:
        handle = t.begin_dialog(SHOP, to) if dialog is None else dialog
        for body in bodies:
            t.send(handle, body)
    return handle


def received(database: Database, queue: str = ORDERS) -> list[bytes]:
    """Receives all messages of the queue in one transaction; returns the bodies in order, conversation by conversation."""
    return [body or b"" for body in _column(database, queue, "message_body")]


def received_types(database: Database, queue: str = ORDERS) -> list[str]:
    """Receives all messages of the queue; returns the last part of each message type's name."""
    return [str(name).rsplit("/", maxsplit=1)[-1] for name in _column(database, queue, "message_type_name")]


def orders(table: pa.Table) -> list[tuple[bytes, bytes]]:
    """Returns the handle and the body of each received message."""
    return [
        (handle or b"", body or b"")
        for handle, body in zip(
            table["conversation_handle"].to_pylist(), table["message_body"].to_pylist(), strict=True
        )
    ]


def _column(database: Database, queue: str, name: str) -> list[Any]:
    values: list[Any] = []
    with database.transaction() as t:
        while (table := t.receive(queue)).num_rows:
            values += table[name].to_pylist()
    return values


def waiting(database: Database) -> list[Sent]:
    """Returns the rows of the transmission queue."""
    with database_context(database).file.read() as connection:
        return [
            Sent(*row)
            for row in connection.execute(
                "SELECT message_sequence_number, is_inbound, transmission_status FROM ssb_transmission_queue "
                "JOIN ssb_conversation_endpoints USING (endpoint_id) ORDER BY endpoint_id, message_sequence_number"
            )
        ]


def statuses(database: Database) -> set[str]:
    """Returns the error numbers in the statuses of the transmission queue."""
    return {row.transmission_status.split(":", maxsplit=1)[0] for row in waiting(database)}


def states(database: Database) -> list[str]:
    """Returns the states of the endpoints, initiators first."""
    with database_context(database).file.read() as connection:
        return [
            state
            for (state,) in connection.execute(
                "SELECT state FROM ssb_conversation_endpoints ORDER BY is_initiator DESC, endpoint_id"
            )
        ]
