"""Many simulations, one seed after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Final

from ssbroker.testing.figures import Figures
from ssbroker.testing.simulation import Simulation

LARGE_DIALOGS: Final = 40
LARGE_MESSAGES: Final = 250


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation that has ended.

    Attributes:
        said: The seed, the menu of faults and the settings.
        figures: What it counted.
    """

    said: str
    figures: Figures


def run_seeds(first: int, number: int, *, dialogs: int = 6, messages: int = 12) -> Iterator[Run]:
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
        yield Run(str(simulation), simulation.run())


def run_messages(
    first: int, number: int, *, dialogs: int = LARGE_DIALOGS, messages: int = LARGE_MESSAGES
) -> Iterator[Run]:
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
        yield Run(str(simulation), figures)
