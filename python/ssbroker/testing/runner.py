"""Runs many simulations, and records their results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any, Final

from ssbroker.exceptions import MalformedDataError
from ssbroker.testing.simulation import Simulation, SimulationResult

LARGE_DIALOGS: Final = 40
LARGE_MESSAGES: Final = 250


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A finished simulation.

    Attributes:
        description: The seed, the faults and the settings.
        result: The result of the simulation.
    """

    description: str
    result: SimulationResult


def run_seeds(first: int, number: int, *, dialogs: int = 6, messages: int = 12) -> Iterator[FinishedRun]:
    """Runs one simulation for each seed.

    Args:
        first: The first seed.
        number: The number of seeds.
        dialogs: The number of dialogs in each simulation.
        messages: How many messages each endpoint of a dialog sends.

    Yields:
        The simulations as they finish.

    Examples:
        >>> from ssbroker.testing import run_seeds
        >>> [run.result.is_correct for run in run_seeds(7, 1, dialogs=2, messages=4)]
        [True]
    """
    for seed in range(first, first + number):
        simulation = Simulation(seed, dialogs=dialogs, messages=messages)
        yield FinishedRun(str(simulation), simulation.run())


def run_messages(
    first: int, number: int, *, dialogs: int = LARGE_DIALOGS, messages: int = LARGE_MESSAGES
) -> Iterator[FinishedRun]:
    """Runs simulations with many dialogs until enough messages were sent.

    Args:
        first: The first seed.
        number: The minimum number of messages.
        dialogs: The number of dialogs in each simulation.
        messages: How many messages each endpoint of a dialog sends.

    Yields:
        The simulations as they finish.

    Examples:
        >>> from ssbroker.testing import run_messages
        >>> list(run_messages(7, 0))
        []
    """
    left = number
    for seed in count(first):
        if left <= 0:
            return
        simulation = Simulation(seed, dialogs=dialogs, messages=messages)
        result = simulation.run()
        left -= result.messages
        yield FinishedRun(str(simulation), result)


class RunJournal:
    """A file of JSON Lines: a description of the run, then the result of each seed.

    Args:
        path: The file; created if missing.
        what: The parameters that must be the same to resume the run, such as the first seed.

    Raises:
        MalformedDataError: The file is not a journal, or is a journal with different parameters or from a different version of ssbroker.

    Examples:
        >>> journal = RunJournal(Path("journal"), {"first": 7})
        >>> journal.add(SimulationResult(messages=20))
        >>> reopened = RunJournal(Path("journal"), {"first": 7})
        >>> reopened.seeds, reopened.total.messages
        (1, 20)
    """

    def __init__(self, path: Path, what: dict[str, int]) -> None:
        self.seeds = 0
        self.total = SimulationResult()
        self._path = path
        head = json.dumps({"ssbroker": version("ssbroker"), **what})
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        # A line that was cut off when the run stopped has no line end; its seed runs again.
        *lines, rest = text.split("\n")
        is_ours = lines[0] == head if lines else head.startswith(rest)
        if not is_ours:
            first_line = text.partition("\n")[0]
            raise MalformedDataError(
                f"{path}: is not a journal of this run: its first line is {first_line!r:.200}, expected {head!r}; "
                "use another file, or run with the version and parameters in its first line"
            )
        for number, line in enumerate(lines[1:], start=2):
            self._count(_parse_result(path, number, line))
        with path.open("a", encoding="utf-8") as file:
            file.truncate(len(text.encode()) - len(rest.encode()))
            if not lines:
                file.write(f"{head}\n")

    def add(self, result: SimulationResult) -> None:
        """Appends the result of the next seed."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(asdict(result))}\n")
        self._count(result)

    def _count(self, result: SimulationResult) -> None:
        self.seeds += 1
        self.total.add(result)


def _parse_result(path: Path, number: int, line: str) -> SimulationResult:
    try:
        values: dict[str, Any] = json.loads(line)
        return SimulationResult(**values)
    except (ValueError, TypeError) as error:
        raise MalformedDataError(f"{path}, line {number}: expected the result of a seed, got {line[:200]}") from error
