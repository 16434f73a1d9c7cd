"""Records one workload, and checks all points of its trace."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, Protocol
from unittest import mock

import apsw

from ssbroker.exceptions import SsbrokerError
from tests.system.power.cutting import Cut, RestoredFolder, cuts
from tests.system.power.recording import Operation

PAGES_TO_CHECKPOINT: Final = 16
"""Checkpoints are frequent."""
_ERRORS: Final = (SsbrokerError, apsw.Error, AssertionError, TypeError, ValueError)
"""Errors that corruption can cause, since rows may contain anything."""


@dataclasses.dataclass(frozen=True, slots=True)
class Weakness:
    """A weakened guarantee, with which the test must fail.

    Attributes:
        ignored_syncs: Suffixes of files whose syncs the disk ignores.
        synchronous: `full`, or a weaker setting.
        sends_unsynced: Whether the network sends acknowledgements of what is not synced.
    """

    ignored_syncs: tuple[str, ...] = ()
    synchronous: str = "full"
    sends_unsynced: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """Number of states checked, and the faults found."""

    operations: int
    states: int
    faults: list[str]


class Workload(Protocol):
    """Operations on the disk, and the check of the result."""

    @property
    def operations(self) -> Sequence[Operation]:
        """The trace."""
        ...

    def faults(self, folder: Path, cut: Cut, *, write_after: bool) -> Iterator[str]:
        """Returns the faults of the restored folder; with `write_after`, writes to it too."""
        ...


class Entry(Protocol):
    """Records a workload in an empty folder."""

    def __call__(self, folder: Path, *, transactions: int, seed: int, weakness: Weakness) -> Workload: ...


def check_power_cuts(
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
) -> Result:
    """Records a workload, and checks the disk after each of its operations."""
    with mock.patch("ssbroker.store.sqlite._PAGES_TO_CHECKPOINT", PAGES_TO_CHECKPOINT):
        workload = entry(folder, transactions=transactions, seed=seed, weakness=weakness)
    rng = random.Random(seed)
    states, faults = 0, []
    with RestoredFolder() as restored:
        for cut in islice(cuts(workload.operations, draws=draws, share=share, rng=rng), states_max):
            states += 1
            restored.put(cut)
            try:
                faults += [
                    f"{cut.where}: {fault}"
                    for fault in workload.faults(restored.folder, cut, write_after=states % 10 == 0)
                ]
            except _ERRORS as error:
                faults.append(f"{cut.where}: {error!r}")
            if faults_max is not None and len(faults) >= faults_max:
                break
    return Result(len(workload.operations), states, faults)
