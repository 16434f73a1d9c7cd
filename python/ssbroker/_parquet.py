"""A Parquet file written a batch at a time: in row groups that fit into memory, and pages that fit into a processor's cache."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP_BYTES: Final = 64 << 20
ROW_GROUP_ROWS: Final = 1 << 20
PAGE_BYTES: Final = 1 << 20
_ROWS_AT_ONCE: Final = 1 << 10
"""What Parquet's writer takes at once if it is not told otherwise. It looks only then whether a page is full."""


class RowGroups:
    """One Parquet file in the making: rows wait until they make a row group, and there is no file before that.

    Args:
        path: Where the file will stand.
        schema: The columns.
        notes: What is noted in the file, by name.
        **settings: Those of `pyarrow.parquet.ParquetWriter`.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = RowGroups(Path(folder, "rows.parquet"), pa.schema({"n": pa.int32()}))
        ...     waits = file.write(pa.record_batch({"n": pa.array([1, 2, 3], pa.int32())}))
        ...     file.close()
        ...     waits, file.rows, pq.read_table(file.path)["n"].to_pylist()
        (12, 3, [1, 2, 3])
    """

    def __init__(
        self, path: Path, schema: pa.Schema, *, notes: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        self.path: Final = path
        self.rows = 0
        self._settings: Final = settings
        self._notes: Final = dict(notes or {})
        self._writer: pq.ParquetWriter | None = None
        self._schema: Final = schema
        self._waiting: list[pa.RecordBatch] = []
        self._held = self._held_rows = 0

    @property
    def held(self) -> int:
        """The bytes that wait."""
        return self._held

    @property
    def is_group(self) -> bool:
        """Whether what waits is enough for a row group."""
        return self._held >= ROW_GROUP_BYTES or self._held_rows >= ROW_GROUP_ROWS

    @property
    def is_open(self) -> bool:
        """Whether there is a file."""
        return self._writer is not None

    def write(self, batch: pa.RecordBatch) -> int:
        """Has rows wait; returns their bytes."""
        size = batch.nbytes
        self._waiting.append(batch)
        self._held += size
        self._held_rows += batch.num_rows
        self.rows += batch.num_rows
        return size

    def flush(self) -> None:
        """Writes what waits as a row group."""
        writer = self._opened()
        if self._waiting:
            group = pa.Table.from_batches(self._waiting, schema=self._schema)
            writer.write_table(group.unify_dictionaries(), row_group_size=max(1, group.num_rows))
        self._waiting = []
        self._held = self._held_rows = 0

    def close(self) -> None:
        """Completes the file."""
        if self._held_rows:
            self.flush()
        self._opened().close()

    def _opened(self) -> pq.ParquetWriter:
        if self._writer is None:
            at_once = rows_of_page(self._held, self._held_rows)
            self._writer = pq.ParquetWriter(self.path, self._schema, write_batch_size=at_once, **self._settings)
            self._writer.add_key_value_metadata(self._notes)
        return self._writer


def rows_of_page(size: int, rows: int) -> int:
    """How many rows Parquet's writer should take at once, so that a page of wide ones is no larger than it should be.

    Args:
        size: The bytes of some rows.
        rows: How many these are.

    Returns:
        At least one.

    Examples:
        >>> rows_of_page(64 << 20, 64), rows_of_page(64 << 20, 2048), rows_of_page(64 << 20, 1 << 20), rows_of_page(0, 0)
        (1, 32, 1024, 1024)
    """
    return max(1, min(_ROWS_AT_ONCE, PAGE_BYTES * rows // size)) if size else _ROWS_AT_ONCE
