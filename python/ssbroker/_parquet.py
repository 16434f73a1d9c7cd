"""Streaming Parquet writer with bounded row groups and pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ssbroker._compat import open_parquet_writer

ROW_GROUP_BYTES: Final = 64 << 20
ROW_GROUP_ROWS: Final = 1 << 20
PAGE_BYTES: Final = 1 << 20
_WRITE_BATCH_ROWS: Final = 1 << 10
"""The number of rows in pyarrow's default write batch. The writer checks only after each batch whether a page is full."""


class RowGroupWriter:
    """Writes one Parquet file: buffers rows until they fill a row group; the first flush creates the file.

    Args:
        path: The file to create.
        schema: The columns.
        metadata: Key-value metadata of the file.
        **settings: Options of `pyarrow.parquet.ParquetWriter`.
    """

    def __init__(
        self, path: Path, schema: pa.Schema, *, metadata: Mapping[str, str] | None = None, **settings: Any
    ) -> None:
        self.path: Final = path
        self.rows = 0
        self._settings: Final = settings
        self._metadata: Final = dict(metadata or {})
        self._writer: pq.ParquetWriter | None = None
        self._schema: Final = schema
        self._buffered: list[pa.RecordBatch] = []
        self._buffered_bytes = self._buffered_rows = 0

    @property
    def buffered_bytes(self) -> int:
        return self._buffered_bytes

    @property
    def is_full(self) -> bool:
        """Whether the buffered rows fill a row group."""
        return self._buffered_bytes >= ROW_GROUP_BYTES or self._buffered_rows >= ROW_GROUP_ROWS

    @property
    def is_open(self) -> bool:
        """Whether the file has been created."""
        return self._writer is not None

    def write(self, batch: pa.RecordBatch) -> int:
        """Buffers rows, and returns their size in bytes."""
        size = batch.nbytes
        self._buffered.append(batch)
        self._buffered_bytes += size
        self._buffered_rows += batch.num_rows
        self.rows += batch.num_rows
        return size

    def flush(self) -> None:
        """Writes the buffered rows as a row group."""
        writer = self._open_writer()
        if self._buffered:
            group = pa.Table.from_batches(self._buffered, schema=self._schema)
            writer.write_table(group.unify_dictionaries(), row_group_size=max(1, group.num_rows))
        self._buffered = []
        self._buffered_bytes = self._buffered_rows = 0

    def close(self) -> None:
        """Writes the buffered rows and the footer."""
        if self._buffered_rows:
            self.flush()
        self._open_writer().close()

    def _open_writer(self) -> pq.ParquetWriter:
        if self._writer is None:
            batch_rows = write_batch_rows(self._buffered_bytes, self._buffered_rows)
            self._writer = open_parquet_writer(
                self.path, self._schema, self._metadata, write_batch_size=batch_rows, **self._settings
            )
        return self._writer


def write_batch_rows(size: int, rows: int) -> int:
    """Returns how many rows the writer should write per batch so that pages of wide rows stay within `PAGE_BYTES`.

    Examples:
        >>> [write_batch_rows(64 << 20, rows) for rows in (64, 2048, 1 << 20)], write_batch_rows(0, 0)
        ([1, 32, 1024], 1024)
    """
    return max(1, min(_WRITE_BATCH_ROWS, PAGE_BYTES * rows // size)) if size else _WRITE_BATCH_ROWS
