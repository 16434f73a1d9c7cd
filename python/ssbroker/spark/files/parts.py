"""The files that one try of a task writes: one, or one for each value of a column."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ssbroker import row_groups
from ssbroker.exceptions import OutputError
from ssbroker.row_groups import RowGroups
from ssbroker.spark.files.intervals import noted

Compression: TypeAlias = Literal["snappy", "zstd", "gzip", "lz4", "brotli", "none"]
"""How Parquet compresses."""
OPEN_MAX: Final = 100
"""The files that are open at once; beyond that, the one that was written to longest ago is completed. Rows that wait need no file."""
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_compute: Final[Any] = pc  # its stubs know too little of it
# As Spark has it: it reads %E9 as one character, so what is not ASCII stays as it is.
_ESCAPED: Final = re.compile(r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_NAME_BYTES: Final = 255


class Parts:
    """The files of one try.

    Args:
        folder: Where they stand.
        name: The beginning of their names.
        schema: The columns of what is written.
        partition_by: The column whose values part the files, as folders `column=value` have it; None is one file.
        compression: Of Parquet's.
        unique: Columns whose values hardly occur twice: no dictionary is tried.
        read: The columns of the files that were read, as `intervals.told` has them, if any are carried from there.
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
        read: pa.Schema | None = None,
        unique: Sequence[str] = (),
        unordered: Sequence[str] = (),
    ) -> None:
        self._folder: Final = folder
        self._name: Final = name
        self._by: Final = partition_by
        self._schema: Final = schema if partition_by is None else _without(schema, partition_by)
        paths = _paths(self._schema)
        skipped = {*unordered, *(field.name for field in self._schema if pa.types.is_dictionary(field.type))}
        self._settings: Final[dict[str, Any]] = {
            "compression": compression,
            "use_dictionary": [path for path in paths if path not in unique],
            "write_statistics": [path for path in paths if path not in skipped],
            # Of all types of Arrow that Parquet has, only this one is a number without it.
            "store_schema": any(_has_duration(field.type) for field in self._schema),
        }
        self._notes: Final = {} if read is None else noted(self._schema, read)
        self._parts: Final[dict[str, RowGroups]] = {}
        self._held = 0
        self.files: Final[dict[str, tuple[Path, int]]] = {}
        """Path and rows of each complete file, by its name in the result."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends rows, each to the file of its value.

        Raises:
            OutputError: A value is too long for the name of a folder.
        """
        if self._by is None:
            self._append("", batch)
        else:
            for value, rows in _by_value(batch, self._by):
                self._append(folder_of(self._by, value), rows)
        if self._held > row_groups.ROW_GROUP_BYTES:
            self._make_room()

    def close(self) -> None:
        """Completes the files."""
        for folder in list(self._parts):
            self._complete(folder)

    def _append(self, folder: str, rows: pa.RecordBatch) -> None:
        part = self._parts.get(folder)
        if part is None:
            path = self._folder / f"{len(self.files) + len(self._parts):06}.parquet"
            part = self._parts[folder] = RowGroups(path, self._schema, notes=self._notes, **self._settings)
        self._held += part.write(rows)
        if part.is_group:
            self._flush(folder)

    def _make_room(self) -> None:
        """Writes what is most, so that half of the room is free, and small files are few."""
        for folder in sorted(self._parts, key=lambda folder: -self._parts[folder].held):
            if 2 * self._held <= row_groups.ROW_GROUP_BYTES:
                return
            self._flush(folder)

    def _flush(self, folder: str) -> None:
        part = self._parts.pop(folder)
        if not part.is_open:
            opened = [name for name, other in self._parts.items() if other.is_open]
            if len(opened) >= OPEN_MAX:
                self._complete(opened[0])
        self._held -= part.held
        part.flush()
        self._parts[folder] = part  # the last is the one that was written to last

    def _complete(self, folder: str) -> None:
        part = self._parts.pop(folder)
        self._held -= part.held
        part.close()
        name = f"{self._name}-{part.path.stem}.parquet"
        self.files[f"{folder}/{name}" if folder else name] = (part.path, part.rows)


def folder_of(column: str, value: object) -> str:
    """The folder of the files with a value, by a name that Spark, Hive and Arrow read alike.

    Args:
        column: The column.
        value: The value.

    Returns:
        The name.

    Raises:
        OutputError: It is longer than a name can be.

    Examples:
        >>> folder_of("next_hop_address", "TCP://a:4022"), folder_of("target_database", "销售 50%"), folder_of("target_database", None)
        ('next_hop_address=TCP%3A%2F%2Fa%3A4022', 'target_database=销售 50%25', 'target_database=__HIVE_DEFAULT_PARTITION__')
    """
    text = NO_VALUE if value is None else _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", str(value))
    name = f"{column}={text}"
    if len(name.encode()) > _NAME_BYTES:
        raise OutputError(
            f"partition_by: {column} {str(value)!r:.80} is too long for the name of a folder ({_NAME_BYTES} bytes); "
            "expected shorter ones, or files that are not parted by it"
        )
    return name


def _by_value(batch: pa.RecordBatch, column: str) -> Iterator[tuple[object, pa.RecordBatch]]:
    """The rows of each value, without its column; values in the order in which they come first, and their rows in order, too."""
    values: Any = batch.column(column)
    plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    coded = plain.dictionary_encode(null_encoding="encode")
    order = pc.sort_indices(coded.indices)  # stable
    rest = batch.drop_columns([column]).take(order)
    runs = _compute.run_end_encode(coded.indices.take(order))
    start = 0
    for code, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield coded.dictionary[code].as_py(), _compact(rest.slice(start, end - start))
        start = end


def _compact(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows without what stands in dictionaries for others: a few rows would be held and written with all of it."""
    for number, field in enumerate(rows.schema):
        column: Any = rows.column(number)
        if pa.types.is_dictionary(field.type) and len(column.dictionary) > rows.num_rows:
            coded = column.dictionary_decode().dictionary_encode()
            indices = coded.indices.cast(field.type.index_type)
            rows = rows.set_column(number, field, pa.DictionaryArray.from_arrays(indices, coded.dictionary))
    return rows


def _paths(schema: pa.Schema) -> list[str]:
    """The columns as Parquet has them: a nested one is several."""
    file = io.BytesIO()
    pq.write_table(schema.empty_table(), file)
    columns = pq.ParquetFile(file).schema
    return [columns.column(number).path for number in range(len(columns))]


def _has_duration(kind: Any) -> bool:
    nested = [kind.field(number).type for number in range(kind.num_fields)]
    return pa.types.is_duration(kind) or any(map(_has_duration, nested))


def _without(schema: pa.Schema, name: str) -> pa.Schema:
    return schema.remove(schema.get_field_index(name))
