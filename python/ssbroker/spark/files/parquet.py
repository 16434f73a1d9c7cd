"""Parquet files: splitting by row groups, partitioned output, Spark's intervals and INT96 timestamps."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ssbroker._arrow import drop_columns, with_column
from ssbroker._arrow_types import replace_leaves, without_dictionaries
from ssbroker._compat import is_binary_view, is_string_view
from ssbroker._parquet import ROW_GROUP_BYTES, RowGroupWriter
from ssbroker._table_folders import NULL_PARTITION, partition_columns, refuse_delta_and_iceberg
from ssbroker.exceptions import InputError, MalformedDataError, OutputError, SchemaError
from ssbroker.spark.arguments import local_path
from ssbroker.spark.arrow_columns import to_spark_type
from ssbroker.spark.reassembly_output import TIMESTAMP

_SPARK_METADATA_KEY: Final = "org.apache.spark.sql.parquet.row.metadata"
_INTERVAL_KEY: Final = b"spark"
SPLIT_BYTES: Final = 128 << 20
"""Default size of a split."""
_NESTED: Final = ("elementType", "keyType", "valueType", "sqlType")


def with_interval_types(columns: pa.Schema, metadata: Mapping[bytes, bytes] | None) -> pa.Schema:
    """Attaches Spark's type to each column that is an interval or contains one, from the metadata that Spark writes into files.

    Examples:
        >>> metadata = b'{"type":"struct","fields":[{"name":"took","type":"interval day to second","nullable":true,"metadata":{}}]}'
        >>> schema = with_interval_types(pa.schema({"took": pa.int64()}), {_SPARK_METADATA_KEY.encode(): metadata})
        >>> interval_type(schema.field("took"))
        'interval day to second'
    """
    fields = json.loads((metadata or {}).get(_SPARK_METADATA_KEY.encode(), b"{}")).get("fields", [])
    interval_types = {
        field["name"]: json.dumps(field["type"]).encode() for field in fields if _has_interval(field["type"])
    }
    return pa.schema(
        [
            field.with_metadata({_INTERVAL_KEY: interval_types[field.name]}) if field.name in interval_types else field
            for field in columns
        ]
    )


def interval_type(field: Any) -> Any:
    """Returns Spark's type of a column from `with_interval_types` if it is or contains an interval, else None."""
    text = (field.metadata or {}).get(_INTERVAL_KEY)
    return None if text is None else json.loads(text)


def interval_metadata(columns: pa.Schema, source_schema: pa.Schema) -> dict[str, str]:
    """Returns the metadata that preserves intervals in files with these columns; empty if there are no intervals.

    `source_schema` contains the columns of the files that were read, as `with_interval_types` returns them.
    """
    interval_types = {field.name: interval_type(field) for field in source_schema}
    if not any(interval_types.get(name) for name in columns.names):
        return {}
    fields = [
        {
            "name": field.name,
            "type": interval_types.get(field.name) or _spark_type_json(field.type),
            "nullable": True,
            "metadata": {},
        }
        for field in columns
    ]
    return {_SPARK_METADATA_KEY: json.dumps({"type": "struct", "fields": fields})}


def _spark_type_json(arrow_type: pa.DataType) -> Any:
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415 - pyspark is an extra

    return from_arrow_type(to_spark_type(arrow_type), prefer_timestamp_ntz=True).jsonValue()


def _has_interval(spark_type: Any) -> bool:
    if not isinstance(spark_type, dict):
        return isinstance(spark_type, str) and spark_type.startswith("interval")
    nested = [spark_type[name] for name in _NESTED if name in spark_type]
    return any(map(_has_interval, [*nested, *(field["type"] for field in spark_type.get("fields", []))]))


_INT96: Final = "INT96"


@dataclass(frozen=True)
class ParquetTypes:
    """The column types of a Parquet file.

    Attributes:
        schema: The types. INT96 columns are timestamps, and views are large types, because pyarrow's take does not support views.
        changed: The indexes of the columns that Arrow reads with a different type.
    """

    schema: pa.Schema
    changed: tuple[int, ...]

    @classmethod
    def of(cls, parquet: pq.ParquetFile) -> Self:
        """Returns the types of an open file."""
        arrow_schema, columns = parquet.schema_arrow, parquet.schema
        is_int96 = [columns.column(number).physical_type == _INT96 for number in range(len(columns))]
        types = list(arrow_schema.types)
        if any(is_int96):
            leaves = iter(is_int96)
            types = [_with_timestamps(each, leaves) for each in types]
        fields = [
            field.with_type(replace_leaves(each, _large_type)) for field, each in zip(arrow_schema, types, strict=True)
        ]
        changed = [number for number, field in enumerate(fields) if field.type != arrow_schema.field(number).type]
        return cls(pa.schema(fields), tuple(changed))

    def cast(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Casts rows to these types; the file must be opened with `coerce_int96_timestamp_unit="us"`."""
        for number in self.changed:
            field = self.schema.field(number)
            column: Any = batch.column(number)
            batch = with_column(batch, number, field, column.cast(field.type))
        return batch


def _with_timestamps(arrow_type: Any, leaves: Iterator[bool]) -> pa.DataType:
    """Returns a type with INT96 leaves replaced by Spark's timestamps.

    Examples:
        >>> _with_timestamps(pa.struct({"a": pa.int32(), "b": pa.list_(pa.timestamp("ns"))}), iter([False, True]))
        StructType(struct<a: int32, b: list<item: timestamp[us, tz=UTC]>>)
    """

    def replace(leaf: Any) -> Any:
        if not isinstance(leaf, pa.BaseExtensionType):
            return TIMESTAMP if next(leaves) else leaf
        _with_timestamps(leaf.storage_type, leaves)  # only to advance `leaves`
        return leaf

    replaced: pa.DataType = replace_leaves(arrow_type, replace)
    return replaced


def _large_type(leaf: Any) -> Any:
    """Returns the large type for a view type, whose values can exceed 2 GiB; returns other types unchanged."""
    if is_string_view(leaf):
        return pa.large_string()
    return pa.large_binary() if is_binary_view(leaf) else leaf


Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A Parquet file, a folder of Parquet files, or several of both."""

BATCH_BYTES: Final = 4 << 20
"""The target batch size for wide rows; larger batches would allocate a large block of memory each time."""
_SAMPLE_ROWS: Final = 64
_HIDDEN: Final = ("_", ".")


@dataclass(frozen=True, slots=True)
class Split:
    """The part of a file that one task reads.

    Attributes:
        file: The file.
        groups: The indexes of the row groups, in order.
        first_row: The index in the file of the first row.
        rows: The number of rows.
    """

    file: str
    groups: tuple[int, ...]
    first_row: int
    rows: int


def list_files(source: Source) -> list[Path]:
    """Returns the Parquet files of a source as absolute paths; the files of a folder are in the order of their names.

    Folders are searched recursively; names that start with `_` or `.` are skipped. Raises `InputError` for missing paths, URIs, folders
    without Parquet files, Hive partitions, and Delta and Iceberg tables.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("b.parquet", "a.parquet", "_SUCCESS"):
        ...         Path(folder, name).touch()
        ...     [file.name for file in list_files(folder)]
        ['a.parquet', 'b.parquet']
    """
    paths = list(source) if isinstance(source, Iterable) and not isinstance(source, str | os.PathLike) else [source]
    found = [file for path in paths for file in _find_files(local_path(path, name="source"), given=Path(path))]
    if not found:
        raise InputError("source: expected at least one path, got an empty list")
    refuse_delta_and_iceberg(found)
    return found


def plan_splits(files: Sequence[Path], *, split_bytes: int) -> tuple[pa.Schema, list[Split]]:
    """Returns the common schema of files, with Spark's intervals, and splits of about `split_bytes` that cover every row group once.

    The schema contains no dictionaries, because row groups have different ones, and a bucket file can contain only one for each column.
    Raises `SchemaError` if the files have different columns, and `MalformedDataError` if a file is not a valid Parquet file.
    """
    schema: pa.Schema | None = None
    splits: list[Split] = []
    for file in files:
        try:
            with pq.ParquetFile(file) as opened:
                columns, metadata = ParquetTypes.of(opened).schema.remove_metadata(), opened.metadata
                _reject_parquet_intervals(file, opened)
        except (pa.ArrowException, OSError) as error:
            raise MalformedDataError(f"{file}: cannot be read as Parquet: {error}") from error
        columns = with_interval_types(columns, metadata.metadata)
        if schema is None:
            schema = columns
        elif not columns.equals(schema) or [*map(interval_type, columns)] != [*map(interval_type, schema)]:
            difference = _schema_difference(schema, columns, first=files[0])
            raise SchemaError(
                f"{file}: {difference}; read such files with spark.read.parquet, and pass the DataFrame to ssbroker.spark"
            )
        splits += _split_file(file, metadata, split_bytes)
    if schema is None:
        raise InputError("source: expected at least one file, got none")
    return without_dictionaries(schema), splits


def read_split(split: Split, *, max_rows: int, dictionary_columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """Reads the rows of a split in a worker, in batches of at most `max_rows`; columns in `dictionary_columns` are read as dictionaries."""
    try:
        yield from _batches(split, max_rows=max_rows, dictionary_columns=dictionary_columns)
    except (pa.ArrowException, OSError) as error:
        raise MalformedDataError(f"{split.file}: cannot be read as Parquet: {error}") from error


def _batches(split: Split, *, max_rows: int, dictionary_columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    settings: Any = {"pre_buffer": False, "buffer_size": 1 << 20, "coerce_int96_timestamp_unit": "us"}
    with pq.ParquetFile(split.file, **settings) as opened:
        rows = _rows_per_batch(opened, split.groups, max_rows)
        names: list[str] = [name for name in dictionary_columns if name in opened.schema_arrow.names]
        settings["metadata"] = opened.metadata
    with pq.ParquetFile(split.file, read_dictionary=names, **settings) as parquet:
        types = ParquetTypes.of(parquet)
        for batch in parquet.iter_batches(rows, row_groups=list(split.groups), use_threads=False):
            yield types.cast(batch)


def _find_files(path: Path, *, given: Path) -> list[Path]:
    """Returns the Parquet files of a path; `given` is the path that the caller passed, whose folders may also be partitions."""
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError as error:  # such as a name that is too long
        raise InputError(f"{path}: cannot be read: {error.strerror}", value=str(path)) from error
    if not is_file and not is_folder:
        raise InputError(f"{path}: no such file or folder", value=str(path), expected="Parquet files")
    found = [path] if is_file else sorted(_walk(path, frozenset()))
    if not found:
        raise InputError(
            f"{path}: contains no file with the suffix .parquet",
            value=str(path),
            expected="files with the suffix .parquet",
        )
    for file in found:
        for name in partition_columns(given / file.relative_to(path)):
            raise InputError(
                f"{file}: is in a Hive partition, and does not contain the partition column {name}; "
                "read the files with spark.read, and pass the DataFrame to ssbroker.spark",
                value=str(file),
            )
    return found


def _walk(folder: Path, above: frozenset[Path]) -> Iterator[Path]:
    """Yields the Parquet files of a folder and its subfolders; follows links, unless they lead back to a folder above."""
    real = folder.resolve()
    if real in above:
        return
    for entry in folder.iterdir():
        if entry.name.startswith(_HIDDEN):
            continue
        if entry.is_dir():
            yield from _walk(entry, above | {real})
        elif entry.suffix == ".parquet" and entry.is_file():
            yield entry


def _rows_per_batch(parquet: pq.ParquetFile, groups: Sequence[int], max_rows: int) -> int:
    """Returns the batch size in rows; wide rows get small batches.

    The sizes in the metadata count a repeated value once if it is stored once, so a sample is also read.
    """
    found = [parquet.metadata.row_group(number) for number in groups]
    widest = max((group.total_byte_size // group.num_rows for group in found if group.num_rows), default=0)
    for some in parquet.iter_batches(_SAMPLE_ROWS, row_groups=list(groups), use_threads=False):
        widest = max(widest, some.nbytes // max(1, some.num_rows))
        break
    return max(1, min(max_rows, BATCH_BYTES // max(1, widest)))


def _split_file(file: Path, metadata: pq.FileMetaData, split_bytes: int) -> Iterator[Split]:
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


def _schema_difference(expected: pa.Schema, found: pa.Schema, *, first: Path) -> str:
    """Describes how two schemas differ."""
    for name in expected.names:
        if name not in found.names:
            return f"column {name!r} is missing, but {first} has it"
    for name in found.names:
        if name not in expected.names:
            return f"unexpected column {name!r}, which {first} does not have"
    for field in expected:
        for other in (found.field(place) for place in found.get_all_field_indices(field.name)):
            if not other.equals(field) or interval_type(other) != interval_type(field):
                return f"column {field.name!r} has type {_type_name(other)}, but {_type_name(field)} in {first}"
    return f"the columns are in a different order than in {first}"


def _type_name(field: Any) -> str:
    return f"{interval_type(field) or field.type}{'' if field.nullable else ' not null'}"


def _reject_parquet_intervals(file: Path, parquet: pq.ParquetFile) -> None:
    """Raises `SchemaError` for Parquet's INTERVAL type, which Arrow reads as bytes and Spark does not support."""
    for number in range(len(parquet.schema)):
        column = parquet.schema.column(number)
        if column.converted_type == "INTERVAL":
            raise SchemaError(
                f"{file}: column {column.path!r} has Parquet's type INTERVAL, which neither Arrow nor Spark reads; rewrite the file with another type, or without this column",
                column=column.path,
            )


Compression: TypeAlias = Literal["snappy", "zstd", "gzip", "lz4", "brotli", "none"]
"""A compression codec of Parquet."""
OPEN_FILES_MAX: Final = 100
"""The maximum number of open files; beyond it, the least recently written file is completed. Buffered rows need no open file."""
_compute: Final[Any] = pc  # the stubs are incomplete
# The characters that Spark escapes. Spark decodes %E9 as one character, so non-ASCII characters are not escaped.
_ESCAPED_CHARACTERS: Final = re.compile(r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_NAME_BYTES: Final = 255


class TaskFiles:
    """The Parquet files that one attempt of a task writes.

    Args:
        folder: The folder for the files.
        name: The prefix of the file names.
        schema: The columns of the rows.
        partition_by: The column whose values partition the files into folders `column=value`; None for one file.
        compression: The compression codec.
        source_schema: The columns of the files that were read, as `with_interval_types` returns them, if any are passed through.
        no_dictionary: Columns with mostly distinct values, for which no dictionary is built.
        no_statistics: Columns for which no minimum and maximum are computed, as for dictionary columns: computing them
            would cost more than writing the column, and no reader could skip row groups with them.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        schema: pa.Schema,
        *,
        partition_by: str | None,
        compression: Compression,
        source_schema: pa.Schema | None = None,
        no_dictionary: Sequence[str] = (),
        no_statistics: Sequence[str] = (),
    ) -> None:
        self._folder: Final = folder
        self._name: Final = name
        self._partition_by: Final = partition_by
        self._schema: Final = schema if partition_by is None else _without_column(schema, partition_by)
        paths = _column_paths(self._schema)
        skipped = {*no_statistics, *(field.name for field in self._schema if pa.types.is_dictionary(field.type))}
        self._settings: Final[dict[str, Any]] = {
            "compression": compression,
            "use_dictionary": [path for path in paths if path not in no_dictionary],
            "write_statistics": [path for path in paths if path not in skipped],
            # Without the Arrow schema, a duration would be read back as a number; other types have Parquet equivalents.
            "store_schema": any(_has_duration(field.type) for field in self._schema),
        }
        self._metadata: Final = {} if source_schema is None else interval_metadata(self._schema, source_schema)
        self._partitions: Final[dict[str, RowGroupWriter]] = {}
        self._held = 0
        self.files: Final[dict[str, tuple[Path, int]]] = {}
        """The path and row count of each complete file, by file name in the result."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends rows, each to the file of its partition."""
        if self._partition_by is None:
            self._append("", batch)
        else:
            for value, rows in _split_by_value(batch, self._partition_by):
                self._append(partition_folder(self._partition_by, value), rows)
        if self._held > ROW_GROUP_BYTES:
            self._flush_largest()

    def close(self) -> None:
        """Completes the files."""
        for folder in list(self._partitions):
            self._complete(folder)

    def _append(self, folder: str, rows: pa.RecordBatch) -> None:
        partition = self._partitions.get(folder)
        if partition is None:
            path = self._folder / f"{len(self.files) + len(self._partitions):06}.parquet"
            partition = self._partitions[folder] = RowGroupWriter(
                path, self._schema, metadata=self._metadata, **self._settings
            )
        self._held += partition.write(rows)
        if partition.is_full:
            self._flush(folder)

    def _flush_largest(self) -> None:
        """Writes the largest buffers until half of the limit is free, which keeps the number of small files low."""
        for folder in sorted(self._partitions, key=lambda folder: -self._partitions[folder].buffered_bytes):
            if 2 * self._held <= ROW_GROUP_BYTES:
                return
            self._flush(folder)

    def _flush(self, folder: str) -> None:
        partition = self._partitions.pop(folder)
        if not partition.is_open:
            opened = [name for name, other in self._partitions.items() if other.is_open]
            if len(opened) >= OPEN_FILES_MAX:
                self._complete(opened[0])
        self._held -= partition.buffered_bytes
        partition.flush()
        self._partitions[folder] = partition  # ordered by the last write

    def _complete(self, folder: str) -> None:
        partition = self._partitions.pop(folder)
        self._held -= partition.buffered_bytes
        partition.close()
        name = f"{self._name}-{partition.path.stem}.parquet"
        self.files[f"{folder}/{name}" if folder else name] = (partition.path, partition.rows)


def partition_folder(column: str, value: object) -> str:
    """Returns the folder name for a partition value, which Spark, Hive and Arrow decode alike; raises `OutputError` if it is too long.

    Examples:
        >>> partition_folder("next_hop_address", "TCP://a:4022"), partition_folder("target_database", "销售 50%")
        ('next_hop_address=TCP%3A%2F%2Fa%3A4022', 'target_database=销售 50%25')
        >>> partition_folder("target_database", None)
        'target_database=__HIVE_DEFAULT_PARTITION__'
    """
    text = (
        NULL_PARTITION if value is None else _ESCAPED_CHARACTERS.sub(lambda found: f"%{ord(found[0]):02X}", str(value))
    )
    name = f"{column}={text}"
    if len(name.encode()) > _NAME_BYTES:
        raise OutputError(
            f"partition_by: the folder name for {column} {str(value)!r:.80} exceeds {_NAME_BYTES} bytes; "
            "use shorter values, or do not partition by this column"
        )
    return name


def _split_by_value(batch: pa.RecordBatch, column: str) -> Iterator[tuple[object, pa.RecordBatch]]:
    """Yields the rows of each value, without the column; values are in order of first appearance, and rows keep their order."""
    values: Any = batch.column(column)
    decoded = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    encoded = decoded.dictionary_encode(null_encoding="encode")
    order = pc.sort_indices(encoded.indices)  # stable
    rest = drop_columns(batch, [column]).take(order)
    runs = _compute.run_end_encode(encoded.indices.take(order))
    start = 0
    for code, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield encoded.dictionary[code].as_py(), _compact_dictionaries(rest.slice(start, end - start))
        start = end


def _compact_dictionaries(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Removes dictionary values that these rows do not use; otherwise, a few rows would be buffered and written with the whole dictionary."""
    for number, field in enumerate(rows.schema):
        column: Any = rows.column(number)
        if pa.types.is_dictionary(field.type) and len(column.dictionary) > rows.num_rows:
            encoded = column.dictionary_decode().dictionary_encode()
            indices = encoded.indices.cast(field.type.index_type)
            rows = with_column(rows, number, field, pa.DictionaryArray.from_arrays(indices, encoded.dictionary))
    return rows


def _column_paths(schema: pa.Schema) -> list[str]:
    """Returns the column paths in Parquet; a nested column has several paths."""
    file = io.BytesIO()
    pq.write_table(schema.empty_table(), file)
    columns = pq.ParquetFile(file).schema
    return [columns.column(number).path for number in range(len(columns))]


def _has_duration(arrow_type: Any) -> bool:
    nested = [arrow_type.field(number).type for number in range(arrow_type.num_fields)]
    return pa.types.is_duration(arrow_type) or any(map(_has_duration, nested))


def _without_column(schema: pa.Schema, name: str) -> pa.Schema:
    return schema.remove(schema.get_field_index(name))
