"""One of several processes that send and receive on one instance concurrently."""

from __future__ import annotations

import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

from ssbroker import Instance
from ssbroker.broker.transaction import Transaction

MESSAGES: Final = 40
"""Number of messages that each process sends in each lane."""
LANES: Final = {"here": ("Sales", "//Here"), "there": ("Stock", "//There")}
QUEUE: Final = "Orders"
_DEADLINE_SECONDS: Final = 120


def prepare(folder: Path) -> None:
    """Creates the instance: two databases, a service in each, and application tables."""
    with Instance.create(folder, name="busy", background=False) as instance:
        for database_name, service in LANES.values():
            database = instance.create_database(database_name)
            database.create_queue(QUEUE)
            database.create_service(service, queue=QUEUE)
            with database.transaction() as t:
                t.connection.execute("CREATE TABLE received (position INTEGER PRIMARY KEY, sender, number, receiver)")
        sales = instance.database("Sales")
        sales.create_queue("Replies")
        sales.create_service("//Shop", queue="Replies")


def work(folder: Path, me: int, processes: int, start: Barrier) -> None:
    """Sends all messages of this process, and receives until those of all processes were received; all start together.

    Raises:
        TimeoutError: They were not all received in time.
    """
    deadline = time.monotonic() + _DEADLINE_SECONDS
    # After a release, the first to ask gets SQLite's lock: on a busy machine, a process may wait for more than 10 s.
    with Instance.open(folder, lock_timeout=_DEADLINE_SECONDS) as instance:
        sales = instance.database("Sales")
        with sales.transaction() as t:
            dialogs = [t.begin_dialog("//Shop", service) for _, service in LANES.values()]
        start.wait(_DEADLINE_SECONDS)
        for number in range(MESSAGES):
            for dialog in dialogs:
                with sales.transaction() as t:
                    t.send(dialog, bytes([me, number]))
            _receive_everywhere(instance, me)
        while min(_receive_everywhere(instance, me)) < MESSAGES * processes:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{me} did not receive all messages in time")


def received(instance: Instance, lane: str) -> list[tuple[int, int, int]]:
    """Returns sender, number and receiver of each received message, in order."""
    with instance.database(LANES[lane][0]).transaction() as t:
        rows: list[Any] = t.connection.execute(
            "SELECT sender, number, receiver FROM received ORDER BY position"
        ).fetchall()
    return rows


def _receive_everywhere(instance: Instance, me: int) -> list[int]:
    """Runs one transaction in each database; returns the number of messages received there so far."""
    counts = []
    for database_name, _ in LANES.values():
        with instance.database(database_name).transaction() as t:
            counts.append(_receive(t, me))
    return counts


def _receive(t: Transaction, me: int) -> int:
    bodies: list[Any] = t.receive(QUEUE, top=3, timeout=0.01)["message_body"].to_pylist()
    t.connection.executemany(
        "INSERT INTO received (sender, number, receiver) VALUES (?, ?, ?)", [(*body, me) for body in bodies]
    )
    count: Any = t.connection.execute("SELECT count(*) FROM received").get
    return int(count)
