"""One of several processes that send and receive on one instance concurrently."""

from __future__ import annotations

import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

from ssbroker import Instance
from ssbroker.broker.transaction import Transaction

MESSAGES: Final = 40
"""What each process sends by each lane."""
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
    """Sends all of its own, and receives whatever comes until all is received that any of them sends. They begin together.

    Raises:
        TimeoutError: That did not happen.
    """
    deadline = time.monotonic() + _DEADLINE_SECONDS
    # SQLite gives the lock to the first to ask after a release: on a very busy machine, one process may miss it for 10 s.
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
                raise TimeoutError(f"{me} waits in vain")


def received(instance: Instance, lane: str) -> list[tuple[int, int, int]]:
    """Sender, number and receiver of each received message, in that order."""
    with instance.database(LANES[lane][0]).transaction() as t:
        rows: list[Any] = t.connection.execute(
            "SELECT sender, number, receiver FROM received ORDER BY position"
        ).fetchall()
    return rows


def _receive_everywhere(instance: Instance, me: int) -> list[int]:
    """One transaction in each database; how many messages have been received there by now."""
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
