"""A work queue: messages are put, taken with leases and processed; recorded, and checked after a power cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ssbroker import Instance, WorkQueue
from tests.system.power.cutting import Cut
from tests.system.power.dialogs import weaken
from tests.system.power.recording import NAME, Mark, recording

if TYPE_CHECKING:
    from tests.system.power.run import Weakness

_DATABASE: Final = "Queues"
_LEASE: Final = 60.0


class Jobs:
    """Marks record which messages `put` has acknowledged, and which jobs have committed the number of their message."""

    def __init__(self, folder: Path, *, transactions: int, seed: int, weakness: Weakness) -> None:
        rng = random.Random(seed)
        with recording(ignored_syncs=weakness.ignored_syncs) as recorder:
            with Instance.create(folder, name="shop", background=False, vfs=NAME) as instance:
                database = instance.create_database(_DATABASE)
                with database.transaction() as t:
                    t.connection.execute("CREATE TABLE done (number)")
                queue = database.queue("Jobs")
                recorder.trace.append(Mark("prepared", 0))
                put = 0
                for _ in range(transactions):
                    weaken(database, weakness.synchronous)
                    if rng.random() < 0.55:
                        queue.put(b"%d" % put)
                        recorder.trace.append(Mark("put", put))
                        put += 1
                    elif (number := _process(instance, queue, is_given_back=rng.random() < 0.2)) is not None:
                        recorder.trace.append(Mark("done", number))
            self.operations = recorder.trace

    def faults(self, folder: Path, cut: Cut, *, write_after: bool) -> Iterator[str]:
        """Checks that each message is in the queue or done, and is done once; those of killed holders are taken after their leases."""
        clock = datetime.now(UTC)
        with Instance.open(folder, background=False, clock=lambda: clock) as instance:
            acknowledged = {word: {mark.number for mark in cut.marks if mark.word == word} for word in ("put", "done")}
            if not acknowledged["done"] <= set(_done(instance)):
                yield "a finished job is lost"
            queue = instance.database(_DATABASE).queue("Jobs")
            if write_after:
                queue.put(b"-1")
            clock += timedelta(seconds=2 * _LEASE)
            while _process(instance, queue) is not None:
                pass
            done = [number for number in _done(instance) if number >= 0]
            if done != [*range(len(done))] or not acknowledged["put"] <= set(done):
                yield f"put {sorted(acknowledged['put'])}, done {done}"
            if instance.view("sys.conversation_endpoints").num_rows:
                yield "dialogs are left"


def _process(instance: Instance, queue: WorkQueue, *, is_given_back: bool = False) -> int | None:
    """Takes a message, and writes its number in the transaction that acknowledges it; returns the number of a finished job."""
    with queue.take(timeout=0, lease=_LEASE) as job:
        if not job:
            return None
        number = int(job.value)
        if is_given_back:
            job.retry()
            return None
        with job.transaction() as t:
            t.connection.execute("INSERT INTO done VALUES (?)", (number,))
    return number


def _done(instance: Instance) -> list[int]:
    with instance.database(_DATABASE).transaction() as t:
        return [number for (number,) in t.connection.execute("SELECT number FROM done ORDER BY number")]
