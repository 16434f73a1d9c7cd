"""Kills the driver with its JVM, and Python workers, at random times; the query resumes from its checkpoint each time.

`python -m tests.spark.streams.storm --kills 20` prints its counts; the exit status is 0 if the output equals that of the batch functions.
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
from tests.spark import process_tree
from tests.spark.query_runs import WORKER_TIMEOUT
from tests.spark.streams import traffic
from tests.spark.streams.traffic import Expected, Key

DEADLINE_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.02


@dataclass(slots=True)
class Outcome:
    """The result of a storm.

    Attributes:
        problems: How the output differs from the expected one.
        starts: How many drivers were started.
        kills: How many drivers and workers were killed.
        in_batch: How many drivers were killed during a micro-batch.
        batches: How many micro-batches were committed.
        messages: How many messages were emitted.
        seconds: How long it took.
    """

    problems: list[str] = field(default_factory=list)
    starts: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    in_batch: int = 0
    batches: int = 0
    messages: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        lines = [
            f"{self.messages:,} messages in {self.batches} batches, {self.seconds:.0f} s",
            f"killed: drivers {self.kills['driver']} ({self.in_batch} in a batch), workers {self.kills['worker']}; {self.starts} starts",
            *(self.problems or ["every message once, in order, unaltered, with its decision; every rejection once"]),
        ]
        return "\n".join(lines)


class Storm:
    """A storm in its own folder."""

    def __init__(self, folder: Path, expected: Expected, *, seed: int) -> None:
        self._folder = folder
        self._expected = expected
        self._random = random.Random(seed)
        self._driver: subprocess.Popen[bytes] | None = None
        self._counted: dict[int, int] = {}
        self.outcome = Outcome()

    def run(self, *, drivers: int, workers: int) -> Outcome:
        """Kills this many drivers and workers in random order, and lets the last driver finish."""
        started = time.monotonic()
        kinds = ["driver"] * drivers + ["worker"] * workers
        self._random.shuffle(kinds)
        try:
            for number, kind in enumerate(kinds):
                if number == len(kinds) // 2:
                    traffic.set_catalog(self._folder, has_late_route=True)
                self._kill_next(kind)
            self._wait_until("the last message", self._is_complete)
        finally:
            self._stop_driver()
        self.outcome.seconds = time.monotonic() - started
        self.outcome.batches = _last(self._folder / "checkpoint" / "commits") + 1
        self.outcome.messages, self.outcome.problems = differences(self._folder, self._expected)
        return self.outcome

    def _kill_next(self, kind: str) -> None:
        """Kills a process shortly after the next micro-batch has started, whatever it is doing then."""
        offsets = self._folder / "checkpoint" / "offsets"
        before = _last(offsets)
        self._wait_until("the next batch", lambda: _last(offsets) > before)
        time.sleep(self._random.random() * self._random.choice((0.1, 1.0)))
        pid = self._running_driver().pid
        if kind == "driver":
            commits = _last(self._folder / "checkpoint" / "commits")
            self.outcome.in_batch += _last(offsets) > commits
            self._stop_driver()
        elif workers := self._wait_for_workers(pid):
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(workers), signal.SIGKILL)
        self.outcome.kills[kind] += 1

    def _wait_for_workers(self, pid: int) -> list[int]:
        self._wait_until("a worker", lambda: bool(process_tree.workers(pid)))
        return process_tree.workers(pid)

    def _running_driver(self) -> subprocess.Popen[bytes]:
        """Returns the driver, started if necessary."""
        if self._driver is None:
            self.outcome.starts += 1
            command = [sys.executable, "-m", "tests.spark.streams.driver", str(self._folder)]
            with (self._folder / "errors").open("ab") as errors:
                self._driver = subprocess.Popen(
                    command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True
                )
        if self._driver.poll() is not None:
            self._restart_if_late()
            return self._running_driver()
        return self._driver

    def _restart_if_late(self) -> None:
        """Restarts a driver whose Python started too late on an overloaded machine; any other end of a driver is an error."""
        errors = self._folder / "errors"
        output = errors.read_text(encoding="utf-8", errors="replace")
        if WORKER_TIMEOUT not in output:
            raise RuntimeError(f"the driver ended on its own: {output[-3000:]}")
        self._stop_driver()
        errors.write_bytes(b"")

    def _stop_driver(self) -> None:
        if self._driver is not None:
            process_tree.kill_with_descendants(self._driver.pid)
            self._driver.wait()
            self._driver = None

    def _wait_until(self, event: str, is_met: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not is_met():
            self._running_driver()
            if time.monotonic() > deadline:
                raise TimeoutError(f"timed out waiting for {event}: {(self._folder / 'errors').read_text()[-3000:]}")
            time.sleep(_POLL_SECONDS)

    def _is_complete(self) -> bool:
        """Returns whether the sink has published all expected messages, and the micro-batch of the last one is committed."""
        batches = _published_files(self._folder / "out")
        for batch, files in batches.items():
            if batch not in self._counted:
                self._counted[batch] = sum(row["kind"] == "message" for row in _rows(files))
        is_committed = _last(self._folder / "checkpoint" / "commits") >= max(batches, default=0)
        return is_committed and sum(self._counted.values()) >= len(self._expected.messages)


def differences(folder: Path, expected: Expected) -> tuple[int, list[str]]:
    """Returns the number of messages that all micro-batches emitted, and how their rows, in order, differ from the expected ones."""
    problems, messages = [], 0
    next_number = Counter[tuple[bytes, bool]]()
    rejected = Counter[tuple[Any, ...]]()
    for batch, files in sorted(_published_files(folder / "out").items()):
        for row in _rows(files):
            if row["kind"] == "rejected":
                rejected[_rejection(row)] += 1
            if row["kind"] != "message":
                continue
            messages += 1
            key: Key = (row["conversation_id"], row["is_initiator"], row["message_sequence_number"])
            if next_number[key[:2]] != key[2]:
                problems.append(f"batch {batch}: {key} instead of number {next_number[key[:2]]}")
            next_number[key[:2]] = key[2] + 1
            if expected.messages.get(key) != (row["message_body"], row["next_hop_address"]):
                problems.append(f"batch {batch}: {key} has another body or decision")
    if messages != len(expected.messages):
        problems.append(f"{messages} messages instead of {len(expected.messages)}")
    if rejected != expected.rejected:
        problems.append(
            f"unexpected rejections: {rejected - expected.rejected}; missing: {expected.rejected - rejected}"
        )
    return messages, problems


def storm(folder: Path, *, drivers: int, workers: int, files: int, messages: int, seed: int) -> Outcome:
    """Writes the traffic and runs a storm over it."""
    expected = traffic.write(folder, files=files, conversations=messages // 25, messages=messages, seed=seed)
    return Storm(folder, expected, seed=seed).run(drivers=drivers, workers=workers)


def _last(log: Path) -> int:
    """Returns the last number in one of Spark's logs, -1 if there is none; files being written have no number yet."""
    with suppress(FileNotFoundError):
        return max((int(path.name) for path in log.iterdir() if path.name.isdigit()), default=-1)
    return -1


def _published_files(out: Path) -> dict[int, list[Path]]:
    """Returns the files that each micro-batch has added to Spark's file sink, in order."""
    files_by_batch = {}
    log = out / "_spark_metadata"
    for path in log.iterdir() if log.exists() else ():
        if path.name.isdigit():
            lines = path.read_text(encoding="utf-8").splitlines()[1:]
            files_by_batch[int(path.name)] = sorted(
                Path(unquote(urlparse(json.loads(line)["path"]).path)) for line in lines
            )
    return files_by_batch


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
    parser.add_argument("--kills", type=int, default=20, help="number of kills; every third one kills a worker (20)")
    parser.add_argument("--messages", type=int, default=20_000, help="number of messages (20,000)")
    parser.add_argument("--seed", type=int, default=1, help="seed for the traffic and the times of kills (1)")
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
