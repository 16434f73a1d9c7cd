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
    """One simulation that has ended.

    Attributes:
        said: The seed, the menu of faults and the settings.
        figures: What it counted.
    """

    said: str
    figures: SimulationResult


def run_seeds(first: int, number: int, *, dialogs: int = 6, messages: int = 12) -> Iterator[FinishedRun]:
    """Runs seeds.

    Args:
        first: The first seed.
        number: How many.
        dialogs: How many dialogs each has.
        messages: How many messages each side of a dialog sends.

    Yields:
        Each as it ends.

    Examples:
        >>> [run.figures.is_right for run in run_seeds(7, 1, dialogs=2, messages=4)]
        [True]
    """
    for seed in range(first, first + number):
        simulation = Simulation(seed, dialogs=dialogs, messages=messages)
        yield FinishedRun(str(simulation), simulation.run())


def run_messages(
    first: int, number: int, *, dialogs: int = LARGE_DIALOGS, messages: int = LARGE_MESSAGES
) -> Iterator[FinishedRun]:
    """Runs seeds of many dialogs until that many messages were sent.

    Args:
        first: The first seed.
        number: How many messages.
        dialogs: How many dialogs a seed has.
        messages: How many messages each side of a dialog sends.

    Yields:
        Each seed as it ends.

    Examples:
        >>> list(run_messages(7, 0))
        []
    """
    left = number
    for seed in count(first):
        if left <= 0:
            return
        simulation = Simulation(seed, dialogs=dialogs, messages=messages)
        figures = simulation.run()
        left -= figures.messages
        yield FinishedRun(str(simulation), figures)


class RunJournal:
    """A line of JSON for what runs, then one for each seed.

    Args:
        path: The file; it need not be there yet.
        what: What tells these seeds from others, such as how many dialogs each has.

    Raises:
        MalformedDataError: The file is no journal, or one of other seeds or of another version of ssbroker.

    Examples:
        >>> journal = RunJournal(Path("journal"), {"first": 7})
        >>> journal.add(SimulationResult(messages=20))
        >>> again = RunJournal(Path("journal"), {"first": 7})
        >>> again.seeds, again.total.messages
        (1, 20)
    """

    def __init__(self, path: Path, what: dict[str, int]) -> None:
        self.seeds = 0
        self.total = SimulationResult()
        self._path = path
        head = json.dumps({"ssbroker": version("ssbroker"), **what})
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        # What was being written when the run was stopped has no end of line: that seed runs again.
        *lines, rest = text.split("\n")
        is_ours = lines[0] == head if lines else head.startswith(rest)
        if not is_ours:
            raise MalformedDataError(f"{path}: expected a journal of {head}, got one of {text[:200]}")
        for number, line in enumerate(lines[1:], start=2):
            self._count(_figures(path, number, line))
        with path.open("a", encoding="utf-8") as file:
            file.truncate(len(text.encode()) - len(rest.encode()))
            if not lines:
                file.write(f"{head}\n")

    def add(self, figures: SimulationResult) -> None:
        """Writes down what the next seed counted."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(asdict(figures))}\n")
        self._count(figures)

    def _count(self, figures: SimulationResult) -> None:
        self.seeds += 1
        self.total.add(figures)


def _figures(path: Path, number: int, line: str) -> SimulationResult:
    try:
        told: dict[str, Any] = json.loads(line)
        return SimulationResult(**told)
    except (ValueError, TypeError) as error:
        raise MalformedDataError(f"{path}, line {number}: expected the figures of a seed, got {line[:200]}") from error
