"""A process that works on jobs until it is killed, and checks of what it has done.

Each message is a number of its conversation. A job writes one row for each of its messages when it commits.
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Never

from ssbroker import Database, Instance, Job, LeaseLostError

ERRORS: Final = "errors.log"
QUEUE: Final = "Jobs"
DIALOGS: Final = 6
LEASE: Final = 0.15
"""So short that some jobs lose it."""


def prepare(folder: Path) -> None:
    """Creates the instance, the conversations and the application's tables."""
    with Instance.create(folder, name="dying", background=False) as instance:
        database = instance.create_database("Work")
        database.create_queue(QUEUE, poison_message_handling=False)
        database.create_service("//Jobs", queue=QUEUE)
        database.create_queue("Answers")
        database.create_service("//Client", queue="Answers")
        with database.transaction() as t:
            t.connection.execute("CREATE TABLE done (position INTEGER PRIMARY KEY, dialog, number, process)")
            t.connection.execute("CREATE TABLE sent (dialog PRIMARY KEY, number, handle)")
            for dialog in range(DIALOGS):
                handle = t.begin_dialog("//Client", "//Jobs")
                t.connection.execute("INSERT INTO sent VALUES (?, 0, ?)", (dialog, handle.bytes))


def start(folder: Path, seed: int) -> int:
    """Forks a process that works until it is killed; its id."""
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


def kill(child: int) -> bool:
    """Kills a process; returns whether it was still at work."""
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def finish(job: Job) -> None:
    """Commits what the job does: its rows, and an answer to each message."""
    with job.transaction() as t:
        for message in job.messages:
            body = message.message_body or b""
            dialog, number = map(int, body.split(b":"))
            t.connection.execute(
                "INSERT INTO done (dialog, number, process) VALUES (?, ?, ?)", (dialog, number, os.getpid())
            )
            t.send(message.conversation_handle, body)


def _work(folder: Path, chance: random.Random) -> Never:
    with Instance.open(folder, background=False) as instance:
        database = instance.database("Work")
        while True:
            _send(database, chance)
            with suppress(LeaseLostError, ZeroDivisionError):
                _do_job(database, chance)


def _send(database: Database, chance: random.Random) -> None:
    with database.transaction() as t:
        dialog = chance.randrange(DIALOGS)
        row: Any = t.connection.execute("SELECT number, handle FROM sent WHERE dialog = ?", (dialog,)).fetchone()
        t.connection.execute("UPDATE sent SET number = number + 1 WHERE dialog = ?", (dialog,))
        t.send(row[1], b"%d:%d" % (dialog, row[0]))


def _do_job(database: Database, chance: random.Random) -> None:
    with database.take(QUEUE, lease=LEASE, timeout=0.05, top=3) as job:
        if not job:
            return
        event = chance.random()
        if event < 0.1:
            raise ZeroDivisionError
        if event < 0.2:
            job.retry(after=0.02)
            return
        if event < 0.4:
            job.extend(LEASE)
        if event > 0.9:
            time.sleep(2 * LEASE)  # the lease is lost if another process waits for the messages
        finish(job)
