"""The files that one try of a task writes: one, or one for each value of a column."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Compression: TypeAlias = Literal["snappy", "zstd", "gzip", "lz4", "brotli", "none"]
"""How Parquet compresses."""
ROW_GROUP_BYTES: Final = 64 << 20
ROW_GROUP_ROWS: Final = 1 << 20
OPEN_MAX: Final = 100
"""The files that are open at once; beyond that, the one that was written to longest ago is completed."""
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"


class Part:
    """One Parquet file in the making: rows wait until they make a row group."""

    def __init__(self, path: Path, schema: pa.Schema, settings: Mapping[str, Any]) -> None:
        self.path: Final = path
        self.rows = 0
        self._writer: Final = pq.ParquetWriter(path, schema, store_schema=False, **settings)
        self._schema: Final = schema
        self._waiting: list[pa.RecordBatch] = []
        self._held = self._held_rows = 0

    @property
    def held(self) -> int:
        """The bytes that wait."""
        return self._held

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends rows."""
        self._waiting.append(batch)
        self._held += batch.nbytes
        self._held_rows += batch.num_rows
        self.rows += batch.num_rows
        if self._held >= ROW_GROUP_BYTES or self._held_rows >= ROW_GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Writes what waits as a row group."""
        if self._waiting:
            group = pa.Table.from_batches(self._waiting, schema=self._schema)
            self._writer.write_table(group.unify_dictionaries(), row_group_size=max(1, group.num_rows))
        self._waiting = []
        self._held = self._held_rows = 0

    def close(self) -> None:
        """Completes the file."""
        self.flush()
        self._writer.close()


class Parts:
    """The files of one try.

    Args:
        folder: Where they stand.
        name: The beginning of their names.
        schema: The columns of what is written.
        partition_by: The column whose values part the files, as folders `column=value` have it; None is one file.
        compression: Of Parquet's.
        unique: Columns whose values hardly occur twice: no dictionary is tried.
        unordered: Columns of which no least and greatest value is looked for, as of those that are dictionaries: it would cost more than
            to write them, and skip nothing.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        schema: pa.Schema,
        *,
        partition_by: str | None,
        compression: Compression,
        unique: Sequence[str] = (),
        unordered: Sequence[str] = (),
    ) -> None:
        self._folder: Final = folder
        self._name: Final = name
        self._by: Final = partition_by
        self._schema: Final = schema if partition_by is None else _without(schema, partition_by)
        paths = _paths(self._schema)
        skipped = {*unordered, *(field.name for field in self._schema if pa.types.is_dictionary(field.type))}
        self._settings: Final = {
            "compression": compression,
            "use_dictionary": [path for path in paths if path not in unique],
            "write_statistics": [path for path in paths if path not in skipped],
        }
        self._open: dict[str, Part] = {}
        self.files: Final[dict[str, tuple[Path, int]]] = {}
        """Path and rows of each complete file, by its name in the result."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends rows, each to the file of its value."""
        if self._by is None:
            self._part("").write(batch)
            return
        column: Any = batch.column(self._by)
        values = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        rest = batch.drop_columns([self._by])
        for value in pc.unique(values).to_pylist():
            chosen = pc.is_null(values) if value is None else pc.equal(values, pa.scalar(value, values.type))
            text = NO_VALUE if value is None else quote(str(value), safe="")
            self._part(f"{self._by}={text}").write(rest.filter(chosen))
        while sum(part.held for part in self._open.values()) > ROW_GROUP_BYTES:
            max(self._open.values(), key=lambda part: part.held).flush()

    def close(self) -> None:
        """Completes the files."""
        for folder in list(self._open):
            self._complete(folder)

    def _part(self, folder: str) -> Part:
        part = self._open.pop(folder, None)
        if part is None:
            if len(self._open) >= OPEN_MAX:
                self._complete(next(iter(self._open)))
            path = self._folder / f"{len(self.files) + len(self._open):06}.parquet"
            part = Part(path, self._schema, self._settings)
        self._open[folder] = part  # the last is the one that was written to last
        return part

    def _complete(self, folder: str) -> None:
        part = self._open.pop(folder)
        part.close()
        name = f"{self._name}-{part.path.stem}.parquet"
        self.files[f"{folder}/{name}" if folder else name] = (part.path, part.rows)


def _paths(schema: pa.Schema) -> list[str]:
    """The columns as Parquet has them: a nested one is several."""
    file = io.BytesIO()
    pq.write_table(schema.empty_table(), file)
    columns = pq.ParquetFile(file).schema
    return [columns.column(number).path for number in range(len(columns))]


def _without(schema: pa.Schema, name: str) -> pa.Schema:
    return schema.remove(schema.get_field_index(name))
