"""An instance with full queues, a queue that is off, and messages that wait, some for names that attack the page."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, Final

from ssbroker import Instance

DEADLINE: Final = 60.0
HOSTILE: Final = "<img src=x onerror=alert(1)>\u202e'\"&"
SCRIPT: Final = """
CREATE DATABASE Sales
GO
USE Sales
CREATE QUEUE Replies
CREATE SERVICE [//shop/Orders] ON QUEUE Replies
CREATE QUEUE Intake
CREATE SERVICE [//shop/Intake] ON QUEUE Intake ([DEFAULT])
CREATE QUEUE Archive WITH STATUS = OFF
CREATE ROUTE Bank WITH SERVICE_NAME = '//bank/Payments', ADDRESS = 'TCP://bank.example:4022'
"""


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds

    def time(self) -> datetime:
        """The clock of an instance."""
        return datetime(2026, 11, 26, 12, tzinfo=UTC) + timedelta(seconds=self.seconds)


def create_shop(folder: Path, *, background: bool = True, unsafe: bool = True, clock: Clock | None = None) -> Instance:
    """Returns a new instance: 3 messages wait for a bank, 2 for a name, 4 are ready, and the queue `Broken` is off.

    The name, which a queue has too, attacks the page if `unsafe`.
    """
    name = HOSTILE if unsafe else "Returns"
    options: dict[str, Any] = {} if clock is None else {"clock": clock.time}
    instance = Instance.create(folder, name="shop", background=background, **options)
    instance.execute(SCRIPT)
    sales = instance.database("Sales")
    sales.create_queue(name)
    for service, messages in (("//bank/Payments", 3), (f"//nobody/{name}", 2), ("//shop/Intake", 4)):
        with sales.transaction() as t:
            dialog = t.begin_dialog("//shop/Orders", service, encryption=False)
            for _ in range(messages):
                t.send(dialog, b"one bicycle")
    broken = sales.queue("Broken", retry_after=0)
    broken.put(b"poison")
    for _ in range(5):
        with suppress(ZeroDivisionError), broken.take(timeout=0):
            raise ZeroDivisionError
    return instance


def request(
    address: tuple[str, int], path: str, *, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[HTTPResponse, bytes]:
    """Returns a response and its body."""
    connection = HTTPConnection(*address, timeout=DEADLINE)
    try:
        connection.request(method, path, headers=headers or {})
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


class EventStream:
    """The open stream of a page."""

    def __init__(self, address: tuple[str, int], *, headers: dict[str, str] | None = None) -> None:
        self._connection: Final = HTTPConnection(*address, timeout=DEADLINE)
        self._connection.request("GET", "/events", headers=headers or {})
        self.response: Final = self._connection.getresponse()

    def next(self, kind: str) -> Any:
        """Returns the content of the next message of a kind."""
        name = ""
        while line := self.response.readline():
            text = line.decode().rstrip("\n")
            if text.startswith("event: "):
                name = text.removeprefix("event: ")
            elif text.startswith("data: ") and name == kind:
                return json.loads(text.removeprefix("data: "))
        raise EOFError(f"the stream ended before a message {kind!r}")

    def close(self) -> None:
        """Closes the page."""
        self.response.close()
        self._connection.close()
