"""Hive partitions: folders such as `day=2026-01-01`, whose names add a column to the files in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from ssbroker._table_folders import partition_columns
from ssbroker.cli.chunks import Chunk, InputFile, LoadedChunk, empty_batch
from ssbroker.cli.input_columns import InputColumns
from ssbroker.cli.text_conversion import convert_csv
from ssbroker.exceptions import InputError


def refuse_partitions(files: Sequence[Path]) -> None:
    """Raises an error for the first file in a Hive partition; used by readers that do not add the columns of partitions."""
    for file in files:
        for name in partition_columns(file):
            raise InputError(
                f"{file}: --spark does not read the Hive partition column {name}; omit --spark, or read the files with "
                "spark.read, and pass the DataFrame to ssbroker.spark",
                value=str(file),
            )


@dataclass(frozen=True)
class PartitionedInput:
    """A file with the columns of its Hive partitions. They are text, except that columns that the command reads get the expected type."""

    whole: InputFile
    values: Mapping[str, str | None]
    input_columns: InputColumns

    @property
    def file(self) -> Path:
        """The path."""
        return self.whole.file

    @cached_property
    def schema(self) -> pa.Schema | None:
        """The columns of the file, followed by the columns of the partitions; None if the lines of the file are copied unchanged."""
        return None if self.whole.schema is None else self._extended(empty_batch(self.whole.schema)).schema

    def chunks(self) -> Iterator[Chunk]:
        """Yields the rows in order."""
        for chunk in self.whole.chunks():
            yield replace(chunk, load=partial(self._load, chunk))

    def _load(self, chunk: Chunk) -> LoadedChunk:
        loaded = chunk.load()
        return replace(loaded, batch=self._extended(loaded.batch))

    def _extended(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Appends the columns of the partitions to a batch; a column that the file itself has keeps its values."""
        columns: dict[str, Any] = {
            name: pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)
            for name, value in self.values.items()
            if name not in batch.schema.names
        }
        added = convert_csv(pa.record_batch(columns), self.input_columns, file=self.file)
        return pa.RecordBatch.from_arrays(
            [*batch.columns, *added.columns], schema=pa.schema([*batch.schema, *added.schema])
        )
