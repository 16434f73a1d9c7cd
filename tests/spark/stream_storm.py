"""A storm for streams: the driver with its JVM, and its Python workers, are killed at random moments, and the query goes on from its checkpoint.

`python -m tests.spark.stream_storm --kills 20` prints what it counted; exit status 0 where all that came out is what the batch functions give.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq

from tests.guards.repository import ROOT
from tests.spark import process_tree, stream_traffic
from tests.spark.patience import TOO_LATE
from tests.spark.stream_traffic import Expected, Key

DEADLINE_SECONDS: Final = 300.0
_LOOK_SECONDS: Final = 0.02


@dataclass(slots=True)
class Outcome:
    """What a storm counted.

    Attributes:
        problems: What came out otherwise than it should.
        lives: How often a driver was started.
        kills: How often drivers and workers were killed.
        in_batch: How many drivers were killed while a batch was under way.
        batches: How many batches were committed.
        messages: How many messages came out.
        seconds: How long it took.
    """

    problems: list[str] = field(default_factory=list)
    lives: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    in_batch: int = 0
    batches: int = 0
    messages: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        told = [
            f"{self.messages:,} messages in {self.batches} batches, {self.seconds:.0f} s",
            f"killed: drivers {self.kills['driver']} ({self.in_batch} in a batch), workers {self.kills['worker']}; {self.lives} lives",
            *(self.problems or ["every message once, in order, unaltered, with its decision; every rejection once"]),
        ]
        return "\n".join(told)


class Storm:
    """One storm, in a folder of its own."""

    def __init__(self, folder: Path, expected: Expected, *, seed: int) -> None:
        self._folder = folder
        self._expected = expected
        self._random = random.Random(seed)
        self._driver: subprocess.Popen[bytes] | None = None
        self._counted: dict[int, int] = {}
        self.outcome = Outcome()

    def run(self, *, drivers: int, workers: int) -> Outcome:
        """Kills so many drivers and workers, in a random order, and lets the last driver come to the end."""
        started = time.monotonic()
        turns = ["driver"] * drivers + ["worker"] * workers
        self._random.shuffle(turns)
        try:
            for number, turn in enumerate(turns):
                if number == len(turns) // 2:
                    stream_traffic.set_catalog(self._folder, has_late_route=True)
                self._kill(turn)
            self._await("the last message", self._is_all_there)
        finally:
            self._end()
        self.outcome.seconds = time.monotonic() - started
        self.outcome.batches = _last(self._folder / "checkpoint" / "commits") + 1
        self.outcome.problems = self._problems()
        return self.outcome

    def _kill(self, what: str) -> None:
        """Kills something a moment after the next batch was begun, whatever that batch does by then."""
        offsets = self._folder / "checkpoint" / "offsets"
        before = _last(offsets)
        self._await("the next batch", lambda: _last(offsets) > before)
        time.sleep(self._random.random() * self._random.choice((0.1, 1.0)))
        pid = self._alive().pid
        if what == "driver":
            commits = _last(self._folder / "checkpoint" / "commits")
            self.outcome.in_batch += _last(offsets) > commits
            self._end()
        elif found := self._found_workers(pid):
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(found), signal.SIGKILL)
        self.outcome.kills[what] += 1

    def _found_workers(self, pid: int) -> list[int]:
        self._await("a worker", lambda: bool(process_tree.workers(pid)))
        return process_tree.workers(pid)

    def _alive(self) -> subprocess.Popen[bytes]:
        """The driver, started where there is none."""
        if self._driver is None:
            self.outcome.lives += 1
            command = [sys.executable, "-m", "tests.spark.stream_driver", str(self._folder)]
            with (self._folder / "errors").open("ab") as errors:
                self._driver = subprocess.Popen(
                    command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True
                )
        if self._driver.poll() is not None:
            self._begin_again()
            return self._alive()
        return self._driver

    def _begin_again(self) -> None:
        """Spark's Python came too late on a machine that has much to do; a driver that ends for any other reason is an error."""
        errors = self._folder / "errors"
        told = errors.read_text(encoding="utf-8", errors="replace")
        if TOO_LATE not in told:
            raise RuntimeError(f"the driver has ended by itself: {told[-3000:]}")
        self._end()
        errors.write_bytes(b"")

    def _end(self) -> None:
        if self._driver is not None:
            process_tree.kill_with_descendants(self._driver.pid)
            self._driver.wait()
            self._driver = None

    def _await(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not is_so():
            self._alive()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} never came: {(self._folder / 'errors').read_text()[-3000:]}")
            time.sleep(_LOOK_SECONDS)

    def _is_all_there(self) -> bool:
        """Whether as many messages as there have to be are in what the sink has made known, and the batch of the last is over."""
        batches = _made_known(self._folder / "out")
        for batch, files in batches.items():
            if batch not in self._counted:
                self._counted[batch] = sum(row["kind"] == "message" for row in _rows(files))
        is_over = _last(self._folder / "checkpoint" / "commits") >= max(batches, default=0)
        return is_over and sum(self._counted.values()) >= len(self._expected.messages)

    def _problems(self) -> list[str]:
        """How the rows of all batches, in their order, differ from what was expected."""
        expected, problems = self._expected, []
        next_number = Counter[tuple[bytes, bool]]()
        rejected = Counter[tuple[Any, ...]]()
        for batch, files in sorted(_made_known(self._folder / "out").items()):
            for row in _rows(files):
                if row["kind"] == "rejected":
                    rejected[_rejection(row)] += 1
                if row["kind"] != "message":
                    continue
                self.outcome.messages += 1
                key: Key = (row["conversation_id"], row["is_initiator"], row["message_sequence_number"])
                if next_number[key[:2]] != key[2]:
                    problems.append(f"batch {batch}: {key} where {next_number[key[:2]]} was next")
                next_number[key[:2]] = key[2] + 1
                if expected.messages.get(key) != (row["message_body"], row["next_hop_address"]):
                    problems.append(f"batch {batch}: {key} has another body or decision")
        if self.outcome.messages != len(expected.messages):
            problems.append(f"{self.outcome.messages} messages, {len(expected.messages)} were expected")
        if rejected != expected.rejected:
            problems.append(
                f"too much rejected: {rejected - expected.rejected}; too little: {expected.rejected - rejected}"
            )
        return problems


def storm(folder: Path, *, drivers: int, workers: int, files: int, messages: int, seed: int) -> Outcome:
    """Writes the traffic and runs a storm over it."""
    expected = stream_traffic.write(folder, files=files, conversations=messages // 25, messages=messages, seed=seed)
    return Storm(folder, expected, seed=seed).run(drivers=drivers, workers=workers)


def _last(log: Path) -> int:
    """The last number in one of Spark's logs; -1 where there is none. What is being written is no number yet."""
    with suppress(FileNotFoundError):
        return max((int(path.name) for path in log.iterdir() if path.name.isdigit()), default=-1)
    return -1


def _made_known(out: Path) -> dict[int, list[Path]]:
    """The files that each batch has added to Spark's sink of files, in their order."""
    found = {}
    log = out / "_spark_metadata"
    for path in log.iterdir() if log.exists() else ():
        if path.name.isdigit():
            lines = path.read_text(encoding="utf-8").splitlines()[1:]
            found[int(path.name)] = sorted(Path(unquote(urlparse(json.loads(line)["path"]).path)) for line in lines)
    return found


def _rows(files: list[Path]) -> list[dict[str, Any]]:
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def _rejection(row: dict[str, Any]) -> tuple[Any, ...]:
    names = (
        "conversation_id",
        "is_initiator",
        "message_sequence_number",
        "fragment_number",
        "fragment_count",
        "reason",
    )
    return tuple(row[name] for name in names)


def main() -> int:
    """The command."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="how many; every third is that of a worker (20)")
    parser.add_argument("--messages", type=int, default=20_000, help="how many messages (20,000)")
    parser.add_argument("--seed", type=int, default=1, help="for the traffic and the moments (1)")
    chosen = parser.parse_args()
    workers = chosen.kills // 3
    with tempfile.TemporaryDirectory() as folder:
        outcome = storm(
            Path(folder),
            drivers=chosen.kills - workers,
            workers=workers,
            files=3 * chosen.kills,
            messages=chosen.messages,
            seed=chosen.seed,
        )
    print(outcome)
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
