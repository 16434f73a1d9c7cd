"""All points of a trace at which the power may fail, and the possible contents of the disk."""

from __future__ import annotations

import dataclasses
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from tests.system.power.disk import FATES, Disk, all_kept, lost
from tests.system.power.recording import Mark, Operation

_IN_MEMORY: Final = Path("/dev/shm")  # a RAM disk, if there is one


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """A point at which the power failed.

    Attributes:
        files: Content of the disk, by name.
        marks: Marks of the workload so far.
        where: Description of the point.
    """

    files: dict[str, bytes]
    marks: Sequence[Mark]
    where: str


def cuts(operations: Sequence[Operation], *, draws: int, share: float, rng: random.Random) -> Iterator[Cut]:
    """Yields, after each operation, each fate of the unsynced data; random fates are drawn `draws` times.

    Args:
        operations: The trace.
        draws: Number of draws of each random fate.
        share: Share of the points to take, from 0 to 1.
        rng: Random generator.
    """
    disk = Disk()
    marks: list[Mark] = []
    for position, operation in enumerate(operations):
        disk.apply(operation)
        if isinstance(operation, Mark):
            marks.append(operation)
        if not marks or isinstance(operation, Mark):  # nothing was acknowledged, or nothing happened
            continue
        for fate in FATES:
            for draw in range(1 if fate in {lost, all_kept} else draws):
                if share == 1 or rng.random() < share:
                    where = f"operation {position}, {fate.__name__}, draw {draw}"
                    yield Cut(disk.cut(fate, rng), marks, where)


class RestoredFolder:
    """A folder with the files found after the power cut."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))

    def put(self, cut: Cut) -> None:
        """Replaces the files of the folder. The index of a log is not durable and may have any content."""
        for old in self.folder.iterdir():
            old.unlink()
        for name, data in cut.files.items():
            path = self.folder / Path(name).name
            path.write_bytes(data)
            if path.suffix == ".sqlite":
                path.with_name(path.name + "-shm").write_bytes(b"\xa5" * 32768)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        shutil.rmtree(self.folder)
