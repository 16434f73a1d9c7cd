"""Conversations within one database and between two: recorded, and checked after a power cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ssbroker import Instance
from ssbroker.broker.database import Database, database_context
from tests.system import killed_process
from tests.system.power.cutting import Cut
from tests.system.power.recording import NAME, Mark, Operation, recording

if TYPE_CHECKING:
    from tests.system.power.run import Weakness


class Dialogs:
    """Sends and receives, each with a row of the application in the same transaction; marks record what was acknowledged."""

    def __init__(self, folder: Path, *, transactions: int, seed: int, weakness: Weakness) -> None:
        rng = random.Random(seed)
        with recording(ignored_syncs=weakness.ignored_syncs) as recorder:
            killed_process.prepare(folder, vfs=NAME)
            recorder.trace.append(Mark("prepared", 0))
            instance = Instance.open(folder, background=False, vfs=NAME)
            for _ in range(transactions):
                for database in instance.databases:
                    weaken(database, weakness.synchronous)
                lane = rng.choice(list(killed_process.LANES))
                if rng.random() < 0.5:
                    _mark(recorder.trace, f"received {lane}", killed_process.receive(instance, lane))
                else:
                    _mark(recorder.trace, f"sent {lane}", killed_process.send(instance, lane, rng))
                if rng.random() < 0.1:
                    killed_process.roll_back(instance, lane, rng)
                if rng.random() < 0.03:
                    instance.close()
                    instance = Instance.open(folder, background=False, vfs=NAME)
            instance.close()
            self.operations = recorder.trace

    def faults(self, folder: Path, cut: Cut, *, write_after: bool) -> Iterator[str]:
        """Checks that everything acknowledged is present, and that everything sent is received once and in order."""
        with Instance.open(folder, background=False) as instance:
            for database in instance.databases:
                with database_context(database).file.read() as connection:
                    if connection.pragma("integrity_check") != "ok":
                        yield f"{database.name} is damaged"
            before = {lane: killed_process.received(instance, lane) for lane in killed_process.LANES}
            if write_after:
                for lane in killed_process.LANES:
                    killed_process.send(instance, lane, random.Random(0))
            instance.run_due()
            killed_process.drain(instance)
            for lane, received in before.items():
                acknowledged = {word: _acknowledged(cut, f"{word} {lane}") for word in ("sent", "received")}
                sent = killed_process.sent(instance, lane)
                if not acknowledged["sent"] <= set(sent) or not acknowledged["received"] <= set(received):
                    yield f"{lane}: something acknowledged is lost"
                if sent != list(range(len(sent))):
                    yield f"{lane}: sent {sent}"
                if killed_process.received(instance, lane) != sent:
                    yield f"{lane}: received {killed_process.received(instance, lane)} of {sent}"


def weaken(database: Database, synchronous: str) -> None:
    """Sets how a database is synced."""
    file = database_context(database).file
    for transaction in (file.read(), file.write()):  # each has a connection of its own
        with transaction as connection:
            pass
        connection.exec_trace = (
            None  # outside of its block, a connection that an application has had refuses statements
        )
        connection.pragma("synchronous", synchronous)


def _mark(trace: list[Operation], word: str, numbers: list[int]) -> None:
    trace += [Mark(word, number) for number in numbers]


def _acknowledged(cut: Cut, word: str) -> set[int]:
    return {mark.number for mark in cut.marks if mark.word == word}
