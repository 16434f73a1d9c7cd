"""Parquet files of wide rows: what a writer takes beside its rows does not grow with how wide they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssbroker._parquet import PAGE_BYTES, RowGroups

# Bytes of Python's own, so that Arrow's pool knows of what the writer takes alone.
WRITES = """
import os, sys
from pathlib import Path
import pyarrow as pa
from ssbroker._parquet import RowGroups

width, rows = int(sys.argv[2]), (48 << 20) // int(sys.argv[2])
offsets = pa.py_buffer(b"".join((width * row).to_bytes(4, "little") for row in range(rows + 1)))
bodies = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(os.urandom(width * rows))])
file = RowGroups(Path(sys.argv[1]), pa.schema({"body": pa.binary()}), use_dictionary=False, compression="snappy")
before = pa.default_memory_pool().max_memory()
file.write(pa.record_batch({"body": bodies}))
file.close()
print(pa.default_memory_pool().max_memory() - before)
"""


@pytest.mark.parametrize("width", [100, 4 << 10, 32 << 10, 1 << 20])
def test_a_row_group_takes_a_few_pages_to_write(tmp_path: Path, width: int) -> None:
    path = tmp_path / "wide.parquet"
    given = [sys.executable, "-c", WRITES, str(path), str(width)]
    ran = subprocess.run(given, capture_output=True, text=True, check=True, timeout=120)
    assert int(ran.stdout) < 12 * PAGE_BYTES
    assert pq.read_metadata(path).num_row_groups == 1


def test_rows_come_back_in_their_row_groups(tmp_path: Path) -> None:
    file = RowGroups(tmp_path / "rows.parquet", pa.schema({"n": pa.int64()}), notes={"told": "by whom"})
    assert not file.is_open
    for first in (0, 10):
        file.write(pa.record_batch({"n": pa.array(range(first, first + 10))}))
        assert (file.held, file.rows, file.is_group) == (80, first + 10, False)
        file.flush()
        assert file.is_open
    file.close()
    read = pq.ParquetFile(file.path)
    assert read.read()["n"].to_pylist() == list(range(20))
    assert read.num_row_groups == 2
    assert (read.metadata.metadata or {})[b"told"] == b"by whom"


def test_a_file_without_rows_has_its_columns(tmp_path: Path) -> None:
    file = RowGroups(tmp_path / "none.parquet", pa.schema({"n": pa.int64()}))
    file.close()
    assert pq.read_table(file.path).schema.names == ["n"]
