"""One trace, and all its moments."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

import apsw

from ssbroker.exceptions import SsbrokerError
from tests.store.power.cutting import Cut, Place, cuts
from tests.store.power.recording import Operation

_WRONG: Final = (SsbrokerError, apsw.Error, AssertionError, TypeError, ValueError)
"""What damage leads to: rows may hold anything, and what reads them find that out."""


@dataclasses.dataclass(frozen=True, slots=True)
class Weakness:
    """What is taken out, so that the test has to fail.

    Attributes:
        deaf_to: The ends of the names of files whose syncs the disk does not hear.
        synchronous: `full`, or what it is weakened to.
    """

    deaf_to: tuple[str, ...] = ()
    synchronous: str = "full"


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """How much was looked at, and what was wrong with it."""

    operations: int
    states: int
    faults: list[str]


class Workload(Protocol):
    """What was done to the disk, and what has to be found."""

    @property
    def operations(self) -> Sequence[Operation]:
        """The trace."""
        ...

    def faults(self, folder: Path, cut: Cut, *, goes_on: bool) -> Iterator[str]:
        """What is wrong with what is left in the folder; with `goes_on` something is written to it too."""
        ...


class Entry(Protocol):
    """Records a workload in an empty folder."""

    def __call__(self, folder: Path, *, transactions: int, seed: int, weakness: Weakness) -> Workload: ...


def cut_often(
    entry: Entry,
    folder: Path,
    *,
    seed: int,
    transactions: int = 100,
    draws: int = 2,
    share: float = 1,
    states_max: int | None = None,
    faults_max: int | None = None,
    weakness: Weakness = Weakness(),
) -> Found:
    """Records a workload, and looks at the disk after each operation of it."""
    workload = entry(folder, transactions=transactions, seed=seed, weakness=weakness)
    chance = random.Random(seed)
    states, faults = 0, []
    with Place() as place:
        for cut in islice(cuts(workload.operations, draws=draws, share=share, chance=chance), states_max):
            states += 1
            place.put(cut)
            try:
                faults += [
                    f"{cut.where}: {fault}" for fault in workload.faults(place.folder, cut, goes_on=states % 10 == 0)
                ]
            except _WRONG as error:
                faults.append(f"{cut.where}: {error!r}")
            if faults_max is not None and len(faults) >= faults_max:
                break
    return Found(len(workload.operations), states, faults)
