"""All moments of a trace, and what the disk may hold then."""

from __future__ import annotations

import dataclasses
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Self

from tests.store.power.disk import FATES, Disk, kept, lost
from tests.store.power.recording import Mark, Operation

_IN_MEMORY: Final = Path("/dev/shm")  # where there is one, it spares the disk


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """A moment at which the power went.

    Attributes:
        files: What the disk holds, by name.
        marks: What the workload had said by then.
        where: The moment, for a person.
    """

    files: dict[str, bytes]
    marks: Sequence[Mark]
    where: str


def cuts(operations: Sequence[Operation], *, draws: int, share: float, chance: random.Random) -> Iterator[Cut]:
    """After each operation, each fate of what was not synced, `draws` times where there is something to draw.

    Args:
        operations: The trace.
        draws: How often each.
        share: How many of them to take, from 0 to 1.
        chance: What is drawn.
    """
    disk = Disk()
    marks: list[Mark] = []
    for position, operation in enumerate(operations):
        disk.apply(operation)
        if isinstance(operation, Mark):
            marks.append(operation)
        if not marks or isinstance(operation, Mark):  # nothing has been promised, or nothing happened
            continue
        for fate in FATES:
            for draw in range(1 if fate in {lost, kept} else draws):
                if share == 1 or chance.random() < share:
                    where = f"operation {position}, {fate.__name__}, draw {draw}"
                    yield Cut(disk.cut(fate, chance), marks, where)


class Place:
    """A folder into which files are put as they were found after the cut."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=_IN_MEMORY if _IN_MEMORY.is_dir() else None))

    def put(self, cut: Cut) -> None:
        """These files and no others. The index of a log is not kept over a power cut, but may lie there with anything in it."""
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
