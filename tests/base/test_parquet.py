"""Parquet files of wide rows: the memory of the writer does not grow with the width of the rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssbroker._parquet import PAGE_BYTES, RowGroupWriter

# The bodies are Python bytes, so that Arrow's memory pool counts only the writer's allocations.
SCRIPT = """
import os, sys
from pathlib import Path
import pyarrow as pa
from ssbroker._parquet import RowGroupWriter

width, rows = int(sys.argv[2]), (48 << 20) // int(sys.argv[2])
offsets = pa.py_buffer(b"".join((width * row).to_bytes(4, "little") for row in range(rows + 1)))
bodies = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(os.urandom(width * rows))])
file = RowGroupWriter(Path(sys.argv[1]), pa.schema({"body": pa.binary()}), use_dictionary=False, compression="snappy")
before = pa.default_memory_pool().max_memory()
file.write(pa.RecordBatch.from_arrays([bodies], ["body"]))
file.close()
print(pa.default_memory_pool().max_memory() - before)
"""


@pytest.mark.parametrize("width", [100, 4 << 10, 32 << 10, 1 << 20])
def test_writing_a_row_group_allocates_only_a_few_pages(tmp_path: Path, width: int) -> None:
    path = tmp_path / "wide.parquet"
    command = [sys.executable, "-c", SCRIPT, str(path), str(width)]
    process = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert int(process.stdout) < 12 * PAGE_BYTES
    assert pq.read_metadata(path).num_row_groups == 1


def test_each_flush_writes_a_row_group(tmp_path: Path) -> None:
    file = RowGroupWriter(tmp_path / "rows.parquet", pa.schema({"n": pa.int64()}), metadata={"origin": "test"})
    assert not file.is_open
    for first in (0, 10):
        file.write(pa.record_batch({"n": pa.array(range(first, first + 10))}))
        assert (file.buffered_bytes, file.rows, file.is_full) == (80, first + 10, False)
        file.flush()
        assert file.is_open
    file.close()
    read = pq.ParquetFile(file.path)
    assert read.read()["n"].to_pylist() == list(range(20))
    assert read.num_row_groups == 2
    assert (read.metadata.metadata or {})[b"origin"] == b"test"


def test_a_file_without_rows_has_its_columns(tmp_path: Path) -> None:
    file = RowGroupWriter(tmp_path / "none.parquet", pa.schema({"n": pa.int64()}))
    file.close()
    assert pq.read_table(file.path).schema.names == ["n"]
