"""Parquet files: split by row groups, written in parts, with intervals and INT96 timestamps."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ssbroker._parquet import ROW_GROUP_BYTES, RowGroupWriter
from ssbroker.exceptions import InputError, MalformedDataError, OutputError, SchemaError
from ssbroker.spark.broadcast import local_path
from ssbroker.spark.reassembly_rows import plain

_NOTE: Final = "org.apache.spark.sql.parquet.row.metadata"
_KIND: Final = b"spark"
_NESTED: Final = ("elementType", "keyType", "valueType", "sqlType")


def told(columns: pa.Schema, notes: Mapping[bytes, bytes] | None) -> pa.Schema:
    """The columns of a file; with each that is an interval, or holds one, stands what Spark calls it.

    Args:
        columns: The columns.
        notes: What is noted in the file.

    Returns:
        The same columns.

    Examples:
        >>> note = b'{"type":"struct","fields":[{"name":"took","type":"interval day to second","nullable":true,"metadata":{}}]}'
        >>> kind(told(pa.schema({"took": pa.int64()}), {_NOTE.encode(): note}).field("took"))
        'interval day to second'
    """
    fields = json.loads((notes or {}).get(_NOTE.encode(), b"{}")).get("fields", [])
    kinds = {field["name"]: json.dumps(field["type"]).encode() for field in fields if _has_interval(field["type"])}
    return pa.schema(
        [field.with_metadata({_KIND: kinds[field.name]}) if field.name in kinds else field for field in columns]
    )


def kind(field: Any) -> Any:
    """What Spark calls the type of a column of `told`, if it is an interval or holds one; else None."""
    text = (field.metadata or {}).get(_KIND)
    return None if text is None else json.loads(text)


def noted(columns: pa.Schema, read: pa.Schema) -> dict[str, str]:
    """What is noted for Spark in files with these columns, so that intervals stay what they are.

    Args:
        columns: The columns.
        read: Those of the files that were read: `told`.

    Returns:
        The notes; none where there are no intervals.
    """
    kinds = {field.name: kind(field) for field in read}
    if not any(kinds.get(name) for name in columns.names):
        return {}
    fields = [
        {"name": field.name, "type": kinds.get(field.name) or _by_arrow(field.type), "nullable": True, "metadata": {}}
        for field in columns
    ]
    return {_NOTE: json.dumps({"type": "struct", "fields": fields})}


def _by_arrow(arrow_type: pa.DataType) -> Any:
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415 - pyspark is an extra

    return from_arrow_type(plain(arrow_type), prefer_timestamp_ntz=True).jsonValue()


def _has_interval(spark_type: Any) -> bool:
    if not isinstance(spark_type, dict):
        return isinstance(spark_type, str) and spark_type.startswith("interval")
    nested = [spark_type[name] for name in _NESTED if name in spark_type]
    return any(map(_has_interval, [*nested, *(field["type"] for field in spark_type.get("fields", []))]))


MOMENT: Final = pa.timestamp("us", tz="UTC")
_INT96: Final = "INT96"
_map: Final[Any] = pa.map_  # its stubs know too little of it


@dataclass(frozen=True)
class ParquetTypes:
    """The columns of a Parquet file.

    Attributes:
        schema: Their types; what is of 96 bits is a moment.
        changed: The numbers of those that Arrow reads as something else.
    """

    schema: pa.Schema
    changed: tuple[int, ...]

    @classmethod
    def of(cls, parquet: pq.ParquetFile) -> Self:
        """Those of an open file."""
        read, columns = parquet.schema_arrow, parquet.schema
        are_moments = [columns.column(number).physical_type == _INT96 for number in range(len(columns))]
        if not any(are_moments):
            return cls(read, ())
        leaves = iter(are_moments)
        fields = [field.with_type(_with_moments(field.type, leaves)) for field in read]
        changed = [number for number, field in enumerate(fields) if field.type != read.field(number).type]
        return cls(pa.schema(fields), tuple(changed))

    def given(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with these types, of a file that was opened with `coerce_int96_timestamp_unit="us"`."""
        for number in self.changed:
            field = self.schema.field(number)
            column: Any = batch.column(number)
            batch = batch.set_column(number, field, column.cast(field.type))
        return batch


def _with_moments(kind: Any, leaves: Iterator[bool]) -> pa.DataType:
    """A type whose leaves that are moments are those of Spark.

    Examples:
        >>> _with_moments(pa.struct({"a": pa.int32(), "b": pa.list_(pa.timestamp("ns"))}), iter([False, True]))
        StructType(struct<a: int32, b: list<item: timestamp[us, tz=UTC]>>)
    """
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_moments(field.type, leaves)) for field in kind])
    if pa.types.is_map(kind):
        key, item = (field.with_type(_with_moments(field.type, leaves)) for field in (kind.key_field, kind.item_field))
        mapped: pa.DataType = _map(key, item, keys_sorted=kind.keys_sorted)
        return mapped
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_moments(kind.value_type, leaves)))
    if isinstance(kind, pa.BaseExtensionType):
        _with_moments(kind.storage_type, leaves)
        as_it_is: pa.DataType = kind
        return as_it_is
    of_leaf: pa.DataType = MOMENT if next(leaves) else kind
    return of_leaf


Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A Parquet file, a folder of them, or several of both."""

BATCH_BYTES: Final = 4 << 20
"""Of wide rows, of which much at once costs a large piece of new memory each time."""
_SAMPLE_ROWS: Final = 64
_HIDDEN: Final = ("_", ".")


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads.

    Attributes:
        file: The file.
        groups: The numbers of its row groups, in order.
        first_row: The row of the file with which they begin.
        rows: How many they are.
    """

    file: str
    groups: tuple[int, ...]
    first_row: int
    rows: int


def files_of(source: Source) -> list[Path]:
    """The Parquet files of a source, absolute, those of a folder in the order of their names.

    Args:
        source: A file, a folder, which is searched with those below it, or several of both. What begins with `_` or `.` is left out.

    Returns:
        The files.

    Raises:
        InputError: Something is not there, is a URI, holds no Parquet file, or is partitioned by the names of its folders.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("b.parquet", "a.parquet", "_SUCCESS"):
        ...         Path(folder, name).touch()
        ...     [file.name for file in files_of(folder)]
        ['a.parquet', 'b.parquet']
    """
    paths = [source] if isinstance(source, str | os.PathLike) else list(source)
    found = [file for path in paths for file in _below(local_path(path, name="source"))]
    if not found:
        raise InputError("source: expected at least one file; got none")
    return found


def splits_of(files: Sequence[Path], *, split_bytes: int) -> tuple[pa.Schema, list[Split]]:
    """The columns of files, and what each task reads of them.

    Args:
        files: Parquet files with the same columns.
        split_bytes: How many bytes of row groups, as they stand in the file, a task reads, about.

    Returns:
        The schema, in which intervals of Spark are told from numbers, and splits that hold every row group once; a file without rows has none.

    Raises:
        SchemaError: A file has other columns than the first, or a column of Parquet's own intervals.
        MalformedDataError: A file is no Parquet file.
    """
    schema: pa.Schema | None = None
    splits: list[Split] = []
    for file in files:
        try:
            with pq.ParquetFile(file) as opened:
                columns, metadata = ParquetTypes.of(opened).schema.remove_metadata(), opened.metadata
                _check_intervals(file, opened)
        except (pa.ArrowException, OSError) as error:
            raise MalformedDataError(f"{file}: cannot be read as Parquet: {error}") from error
        columns = told(columns, metadata.metadata)
        if schema is None:
            schema = columns
        elif not columns.equals(schema) or [*map(kind, columns)] != [*map(kind, schema)]:
            raise SchemaError(f"{file}: {_difference(schema, columns, first=files[0])}")
        splits += _cut(file, metadata, split_bytes)
    if schema is None:
        raise InputError("source: expected at least one file; got none")
    return schema, splits


def read(split: Split, *, rows_most: int, in_dictionaries: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """The rows of a split, in a worker.

    Args:
        split: What is read.
        rows_most: The most rows of a batch; of wide rows it has fewer.
        in_dictionaries: Columns to be read as dictionaries, where they are there.

    Yields:
        The batches, with the types of `splits_of`, or dictionaries of them.

    Raises:
        MalformedDataError: What stands in the file cannot be read.
    """
    try:
        yield from _batches(split, rows_most=rows_most, in_dictionaries=in_dictionaries)
    except (pa.ArrowException, OSError) as error:
        raise MalformedDataError(f"{split.file}: cannot be read as Parquet: {error}") from error


def _batches(split: Split, *, rows_most: int, in_dictionaries: Sequence[str]) -> Iterator[pa.RecordBatch]:
    settings: Any = {"pre_buffer": False, "buffer_size": 1 << 20, "coerce_int96_timestamp_unit": "us"}
    with pq.ParquetFile(split.file, **settings) as looked:
        kinds, rows = ParquetTypes.of(looked), _batch_rows(looked, split.groups, rows_most)
        names: list[str] = [name for name in in_dictionaries if name in looked.schema_arrow.names]
        settings["metadata"] = looked.metadata
    with pq.ParquetFile(split.file, read_dictionary=names, **settings) as parquet:
        for batch in parquet.iter_batches(rows, row_groups=list(split.groups), use_threads=False):
            yield kinds.given(batch)


def _below(path: Path) -> list[Path]:
    try:
        if path.is_file():
            return [path]
        is_folder = path.is_dir()
    except OSError as error:  # no name can be so long
        raise InputError(f"{path}: cannot be read: {error.strerror}", value=str(path)) from error
    if not is_folder:
        raise InputError(f"{path}: there is no such file or folder", value=str(path), expected="Parquet files")
    found = sorted(_searched(path, frozenset()))
    if not found:
        raise InputError(f"{path}: holds no Parquet file", value=str(path), expected="files that end in .parquet")
    for file in found:
        named = [part for part in file.relative_to(path).parts[:-1] if "=" in part]
        if named:
            raise InputError(
                f"{path}: is partitioned by the names of its folders ({named[0]}), and columns that stand in no file are not read; "
                "name the folders below it one by one",
                value=named[0],
            )
    return found


def _searched(folder: Path, above: frozenset[Path]) -> Iterator[Path]:
    """The Parquet files of a folder and those below it; a link to a folder is one, unless it leads back to one above it."""
    real = folder.resolve()
    if real in above:
        return
    for entry in folder.iterdir():
        if entry.name.startswith(_HIDDEN):
            continue
        if entry.is_dir():
            yield from _searched(entry, above | {real})
        elif entry.suffix == ".parquet" and entry.is_file():
            yield entry


def _batch_rows(parquet: pq.ParquetFile, groups: Sequence[int], most: int) -> int:
    """How many rows to read at once: wide ones are few. What is written once for many rows, only some of the rows can tell."""
    found = [parquet.metadata.row_group(number) for number in groups]
    widest = max((group.total_byte_size // group.num_rows for group in found if group.num_rows), default=0)
    for some in parquet.iter_batches(_SAMPLE_ROWS, row_groups=list(groups), use_threads=False):
        widest = max(widest, some.nbytes // max(1, some.num_rows))
        break
    return max(1, min(most, BATCH_BYTES // max(1, widest)))


def _cut(file: Path, metadata: pq.FileMetaData, split_bytes: int) -> Iterator[Split]:
    groups: list[int] = []
    rows = first_row = held = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size = sum(group.column(column).total_compressed_size for column in range(group.num_columns))
        if groups and held + size > split_bytes:
            yield Split(str(file), tuple(groups), first_row, rows)
            first_row += rows
            groups, rows, held = [], 0, 0
        groups.append(number)
        rows += group.num_rows
        held += size
    if rows:
        yield Split(str(file), tuple(groups), first_row, rows)


def _difference(expected: pa.Schema, found: pa.Schema, *, first: Path) -> str:
    """What tells two schemas apart."""
    for name in expected.names:
        if name not in found.names:
            return f"has no column {name!r}, which {first} has"
    for name in found.names:
        if name not in expected.names:
            return f"has a column {name!r}, which {first} has not"
    for field in expected:
        for other in (found.field(place) for place in found.get_all_field_indices(field.name)):
            if not other.equals(field) or kind(other) != kind(field):
                return f"column {field.name!r} is {_told(other)}, and {_told(field)} in {first}"
    return f"has its columns in another order than {first}"


def _told(field: Any) -> str:
    return f"{kind(field) or field.type}{'' if field.nullable else ' not null'}"


def _check_intervals(file: Path, parquet: pq.ParquetFile) -> None:
    """Arrow reads Parquet's own intervals as bytes, and neither it nor Spark has a type for them."""
    for number in range(len(parquet.schema)):
        column = parquet.schema.column(number)
        if column.converted_type == "INTERVAL":
            raise SchemaError(
                f"{file}: column {column.path!r} holds intervals of Parquet's own, which neither Arrow nor Spark reads; cast it, or leave it out",
                column=column.path,
            )


Compression: TypeAlias = Literal["snappy", "zstd", "gzip", "lz4", "brotli", "none"]
"""How Parquet compresses."""
OPEN_MAX: Final = 100
"""The files that are open at once; beyond that, the one that was written to longest ago is completed. Rows that wait need no file."""
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
_compute: Final[Any] = pc  # its stubs know too little of it
# As Spark has it: it reads %E9 as one character, so what is not ASCII stays as it is.
_ESCAPED: Final = re.compile(r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_NAME_BYTES: Final = 255


class TaskFiles:
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
        self._parts: Final[dict[str, RowGroupWriter]] = {}
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
        if self._held > ROW_GROUP_BYTES:
            self._make_room()

    def close(self) -> None:
        """Completes the files."""
        for folder in list(self._parts):
            self._complete(folder)

    def _append(self, folder: str, rows: pa.RecordBatch) -> None:
        part = self._parts.get(folder)
        if part is None:
            path = self._folder / f"{len(self.files) + len(self._parts):06}.parquet"
            part = self._parts[folder] = RowGroupWriter(path, self._schema, metadata=self._notes, **self._settings)
        self._held += part.write(rows)
        if part.is_full:
            self._flush(folder)

    def _make_room(self) -> None:
        """Writes what is most, so that half of the room is free, and small files are few."""
        for folder in sorted(self._parts, key=lambda folder: -self._parts[folder].buffered_bytes):
            if 2 * self._held <= ROW_GROUP_BYTES:
                return
            self._flush(folder)

    def _flush(self, folder: str) -> None:
        part = self._parts.pop(folder)
        if not part.is_open:
            opened = [name for name, other in self._parts.items() if other.is_open]
            if len(opened) >= OPEN_MAX:
                self._complete(opened[0])
        self._held -= part.buffered_bytes
        part.flush()
        self._parts[folder] = part  # the last is the one that was written to last

    def _complete(self, folder: str) -> None:
        part = self._parts.pop(folder)
        self._held -= part.buffered_bytes
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
