from __future__ import annotations

import pathlib
import uuid
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from benches.queue_rivals import Message, batches
from ssbroker import Instance

QUEUE: Final = "Orders"
SERVICE: Final = "//Orders"


class Ours:
    """Dialogs inside one database; messages are sent and received one by one."""

    name: str = "ssbroker"

    def __init__(self, folder: pathlib.Path, *, conversations: int) -> None:
        self._instance = Instance.create(folder / "instance", name="bench", background=False)
        self._database = self._instance.create_database("Sales")
        for queue, service in (("Replies", "//Replies"), (QUEUE, SERVICE)):
            self._database.create_queue(queue)
            self._database.create_service(service, queue=queue)
        with self._database.transaction() as t:
            self._dialogs = [t.begin_dialog("//Replies", SERVICE) for _ in range(conversations)]

    def send(self, messages: Sequence[Message], *, batch: int) -> None:
        for chunk in batches(messages, batch):
            with self._database.transaction() as t:
                for conversation, body in chunk:
                    t.send(self._dialogs[conversation], body)

    def receive(self, count: int, *, batch: int) -> list[bytes]:
        bodies: list[bytes] = []
        while len(bodies) < count:
            with self._database.transaction() as t:
                for _ in range(batch):
                    message = t.receive_one(QUEUE)
                    assert message is not None
                    bodies.append(message.message_body or b"")
        return bodies

    def close(self) -> None:
        self._instance.close()


class OursByTable(Ours):
    """Dialogs inside one database; each transaction sends or receives an Arrow table."""

    name: str = "ssbroker, by table"

    def send(self, messages: Sequence[Message], *, batch: int) -> None:
        handles: list[uuid.UUID] = self._dialogs
        for chunk in batches(messages, batch):
            ids = pa.array([handles[conversation].bytes for conversation, _ in chunk], pa.binary(16))
            bodies = pa.array([body for _, body in chunk], pa.binary())
            with self._database.transaction() as t:
                t.send_batch(pa.table({"conversation_handle": ids, "message_body": bodies}))

    def receive(self, count: int, *, batch: int) -> list[bytes]:
        bodies: list[Any] = []
        while len(bodies) < count:
            with self._database.transaction() as t:
                table = t.receive(QUEUE, top=batch, groups=batch)
            assert table.num_rows
            bodies += table["message_body"].to_pylist()
        return bodies
