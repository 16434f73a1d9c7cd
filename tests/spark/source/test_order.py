"""Staged rows are sent in order of position, in parts of bounded size."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from ssbroker.spark.source import writer
from ssbroker.spark.source.writer import StagedRows, ordered_parts


def stage_rows(folder: Path, rows: list[tuple[bytes | None, int | None]], partition: int, *, step: int) -> StagedRows:
    """Writes the file of a task, in batches of `step` rows."""
    path = folder / f"{partition}.arrow"
    bodies, positions = (list(values) for values in zip(*rows, strict=True))
    table = pa.table({"message_body": pa.array(bodies, pa.binary()), "position": pa.array(positions, pa.int64())})
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=step)
    return StagedRows(str(path), len(rows), partition, None)


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_ordered_by_position_and_otherwise_stable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    monkeypatch.setattr(writer, "_PART_ROWS", random.choice([1, 7, 8192]))
    monkeypatch.setattr(writer, "_PART_BYTES", random.choice([1, 100, 1 << 20]))
    tasks: list[list[tuple[bytes | None, int | None]]] = [
        [
            (
                random.choice([None, b"", bytes(random.randrange(90))]),
                random.choice([None, *range(random.choice([1, 50]))]),
            )
            for _ in range(random.randint(1, 60))
        ]
        for _ in range(random.randint(1, 4))
    ]
    files = [stage_rows(tmp_path, rows, number, step=random.randint(1, 20)) for number, rows in enumerate(tasks)]
    random.shuffle(files)
    rows_in_order = [row for rows in tasks for row in rows]
    found: list[Any] = []
    for part in ordered_parts(files):
        sizes = [len(body or b"") for body in part["message_body"].to_pylist()]
        assert len(sizes) <= writer._PART_ROWS
        assert len(sizes) == 1 or sum(sizes) <= writer._PART_BYTES
        found += zip(part["message_body"].to_pylist(), part["position"].to_pylist(), strict=True)
    assert found == sorted(rows_in_order, key=lambda row: (row[1] is None, row[1] or 0))


def test_adjacent_large_rows_are_split_into_parts(tmp_path: Path) -> None:
    """Each large row was staged by its own task, among many small ones."""
    large = 3 << 20
    rows = [[(bytes(large), 0), *((b"", place) for place in range(1, 2_000))] for _ in range(20)]
    files = [stage_rows(tmp_path, list(each), number, step=10_000) for number, each in enumerate(rows)]
    assert max(part.nbytes for part in ordered_parts(files)) <= (32 << 20) + (1 << 20)
