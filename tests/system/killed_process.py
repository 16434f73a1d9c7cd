"""A process that sends and receives until it is killed, and checks of its instance afterwards.

With each message the application writes a row in the same transaction: `sent` in the sending database, `received` in
the receiving one. Committed numbers are also written to a log, after the commit: every number in the log was
acknowledged.
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Never

from ssbroker import Instance
from ssbroker.broker.database import Database
from ssbroker.broker.transaction import Transaction

LOG: Final = "acknowledged.log"
ERRORS: Final = "errors.log"
LANES: Final = {"here": ("Sales", "//Here"), "there": ("Stock", "//There")}
"""Name of the lane: the receiving database and the service. All messages are sent from Sales."""
_QUEUE: Final = "Orders"


def prepare(folder: Path, *, vfs: str | None = None) -> None:
    """Creates the instance: two databases and two conversations."""
    with Instance.create(folder, name="dying", background=False, vfs=vfs) as instance:
        for name in ("Sales", "Stock"):
            database = instance.create_database(name)
            database.create_queue(_QUEUE)
            with database.transaction() as t:
                t.connection.execute("CREATE TABLE sent (lane, number, handle)")
                t.connection.execute("CREATE TABLE received (position INTEGER PRIMARY KEY, lane, number)")
        sales = instance.database("Sales")
        sales.create_queue("Replies")
        sales.create_service("//Shop", queue="Replies")
        for name, service in LANES.values():
            instance.database(name).create_service(service, queue=_QUEUE)
        with sales.transaction() as t:
            for lane, (_, service) in LANES.items():
                handle = t.begin_dialog("//Shop", service)
                t.connection.execute("INSERT INTO sent VALUES (?, -1, ?)", (lane, handle.bytes))


def start(folder: Path, seed: int) -> int:
    """Forks a process that works until it is killed; returns its id."""
    child = os.fork()
    if child:
        return child
    try:
        _work(folder, random.Random(seed))
    except BaseException:
        (folder / ERRORS).write_text(traceback.format_exc(), encoding="utf-8")
        raise
    finally:
        os._exit(1)


def wait_for_commits(folder: Path, *, above: int) -> None:
    """Waits until the log has grown: the process has opened the instance and committed.

    Raises:
        TimeoutError: The log did not grow.
    """
    deadline = time.monotonic() + 60
    while log_length(folder) <= above:
        if time.monotonic() > deadline or (folder / ERRORS).exists():
            raise TimeoutError("the process committed nothing")
        time.sleep(0.0005)


def log_length(folder: Path) -> int:
    """Returns the size of the log in bytes."""
    path = folder / LOG
    return path.stat().st_size if path.exists() else 0


def kill(child: int, *, after: float) -> bool:
    """Kills the process after a number of seconds; returns whether it was still running."""
    time.sleep(after)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def drain(instance: Instance) -> None:
    """Receives all remaining messages."""
    for lane in LANES:
        while receive(instance, lane):
            pass


def receive(instance: Instance, lane: str) -> list[int]:
    """Runs one transaction; returns the received numbers."""
    database = instance.database(LANES[lane][0])
    with database.transaction() as t:
        return _receive(t, lane)


def send(instance: Instance, lane: str, rng: random.Random) -> list[int]:
    """Sends one to four messages in a transaction; returns their numbers."""
    with instance.database("Sales").transaction() as t:
        handle, last = _conversation(t, lane)
        numbers = list(range(last + 1, last + 1 + rng.randint(1, 4)))
        _send(t, lane, handle, numbers, rng)
    return numbers


def roll_back(instance: Instance, lane: str, rng: random.Random) -> None:
    """Rolls back a transaction that sends a number not used otherwise."""
    with suppress(_RollbackError), instance.database("Sales").transaction() as t:
        handle, _ = _conversation(t, lane)
        _send(t, lane, handle, [10**9], rng)
        raise _RollbackError


def sent(instance: Instance, lane: str) -> list[int]:
    """Returns the numbers that the application recorded as sent."""
    return _numbers(instance.database("Sales"), "sent", lane)


def received(instance: Instance, lane: str) -> list[int]:
    """Returns the numbers that the application recorded as received, in order."""
    return _numbers(instance.database(LANES[lane][0]), "received", lane)


def _numbers(database: Database, table: str, lane: str) -> list[int]:
    order = "position" if table == "received" else "rowid"
    with database.transaction() as t:
        rows: list[Any] = t.connection.execute(
            f"SELECT number FROM {table} WHERE lane = ? ORDER BY {order}", (lane,)
        ).fetchall()
    return [number for (number,) in rows if number >= 0]


def acknowledged(folder: Path, word: str, lane: str) -> list[int]:
    """Returns the numbers in the log; its last line may be incomplete."""
    path = folder / LOG
    lines = path.read_text(encoding="ascii").split("\n")[:-1] if path.exists() else []
    return [int(words[2]) for line in lines if (words := line.split())[:2] == [word, lane]]


def _work(folder: Path, rng: random.Random) -> Never:
    log = os.open(folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with Instance.open(folder) as instance:
        while True:
            lane = rng.choice(list(LANES))
            if rng.random() < 0.1:
                roll_back(instance, lane, rng)
            elif rng.random() < 0.5:
                _log(log, "received", lane, receive(instance, lane))
            else:
                _log(log, "sent", lane, send(instance, lane, rng))


def _log(log: int, word: str, lane: str, numbers: list[int]) -> None:
    os.write(log, "".join(f"{word} {lane} {number}\n" for number in numbers).encode())


def _send(t: Transaction, lane: str, handle: uuid.UUID, numbers: list[int], rng: random.Random) -> None:
    for number in numbers:
        t.send(handle, _body(number, rng.choice((0, 1000, 16_000))))
        t.connection.execute("INSERT INTO sent VALUES (?, ?, NULL)", (lane, number))


def _body(number: int, more: int) -> bytes:
    """Returns a number followed by random bytes.

    SQLite's checksum of a log frame misses regular differences, such as one in each of 960 words.
    """
    return number.to_bytes(8) + random.Random(number).randbytes(more)


def _conversation(t: Transaction, lane: str) -> tuple[uuid.UUID, int]:
    row: Any = t.connection.execute("SELECT max(handle), max(number) FROM sent WHERE lane = ?", (lane,)).fetchone()
    return uuid.UUID(bytes=row[0]), row[1]


def _receive(t: Transaction, lane: str) -> list[int]:
    database = LANES[lane]
    table = t.receive(_QUEUE, top=3)
    assert set(table["service_name"].to_pylist()) <= {database[1]}, table.to_pylist()
    assert set(table["message_type_name"].to_pylist()) <= {"DEFAULT"}, table.to_pylist()
    bodies: list[Any] = table["message_body"].to_pylist()
    numbers = [int.from_bytes(body[:8]) for body in bodies]
    assert all(body == _body(number, len(body) - 8) for body, number in zip(bodies, numbers, strict=True)), numbers
    t.connection.executemany(
        "INSERT INTO received (lane, number) VALUES (?, ?)", [(lane, number) for number in numbers]
    )
    return numbers


class _RollbackError(Exception):
    """Rolls back the transaction of the application."""
