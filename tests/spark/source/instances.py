"""Instances for the data source `ssbroker`, and the messages in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import ssbroker
from ssbroker.broker.database import database_context
from ssbroker.broker.dialogs.bulk_send import SendDefaults, send_batch_once

SCRIPT: Final = """
CREATE DATABASE Sales
GO
USE Sales
CREATE QUEUE Orders
CREATE QUEUE Replies
CREATE SERVICE [//Orders] ON QUEUE Orders ([DEFAULT])
CREATE SERVICE [//Shop] ON QUEUE Replies ([DEFAULT])
"""
TO_ORDERS: Final = {"database": "Sales", "from_service": "//Shop", "to_service": "//Orders"}


def create_instance(folder: Path) -> Path:
    """Creates an instance with the database Sales, whose queue Orders belongs to the service //Orders."""
    with ssbroker.Instance.create(folder, name="shop", background=False) as instance:
        instance.execute(SCRIPT)
    return folder


def send(folder: Path, *bodies: bytes, to_service: str = "//Orders") -> None:
    """Sends messages in one dialog."""
    with ssbroker.Instance.open(folder, background=False) as instance:
        part = pa.table({"message_body": pa.array(bodies, pa.binary())})
        send_batch_once(
            database_context(instance.database("Sales")),
            [part],
            SendDefaults(from_service="//Shop", to_service=to_service),
        )


def receive(folder: Path, count: int, *, queue: str = "Orders") -> None:
    """Receives messages from a queue."""
    with ssbroker.Instance.open(folder, background=False) as instance, instance.database("Sales").transaction() as t:
        assert t.receive(queue, top=count, groups=None).num_rows == count


def view(folder: Path, name: str) -> list[dict[str, Any]]:
    """Returns the rows of a view or a queue of Sales, read by the instance itself."""
    with ssbroker.Instance.open(folder, background=False) as instance:
        return instance.view(name, "Sales").to_pylist()


def bodies(folder: Path) -> list[bytes]:
    """Returns the message bodies in the queue, in order of arrival."""
    return [row["message_body"] for row in view(folder, "Orders")]


def dialogs(folder: Path) -> list[list[bytes]]:
    """Returns the message bodies in the queue, grouped by dialog."""
    found: dict[bytes, list[bytes]] = {}
    for row in sorted(view(folder, "Orders"), key=lambda row: int(row["message_sequence_number"])):
        found.setdefault(row["conversation_handle"], []).append(row["message_body"])
    return sorted(found.values())
