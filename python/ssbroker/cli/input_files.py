"""Chooses and opens the input files of a command, and determines the columns that they have in common."""

from __future__ import annotations

import glob
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from ssbroker._arrow import with_column
from ssbroker._compat import cast, is_binary_view, is_string_view
from ssbroker._table_folders import partition_columns, refuse_delta_and_iceberg
from ssbroker.cli.chunks import InputFile
from ssbroker.cli.errors import reading
from ssbroker.cli.file_formats import INPUT_SUFFIXES, STANDARD_STREAM, Format, input_format, input_format_by_suffix
from ssbroker.cli.hive_partitions import PartitionedInput
from ssbroker.cli.input_columns import IS_INITIATOR, InputColumns
from ssbroker.cli.readers import (
    ArrowInput,
    CsvInput,
    JsonLinesInput,
    ParquetInput,
    added_column_error,
    infer_json_schema,
)
from ssbroker.exceptions import InputError, OptionError, SchemaError

pc: Any = pyarrow.compute  # the stubs support neither Python constants nor text with 64-bit offsets
_HIDDEN_PREFIXES: Final = (".", "_")


def expand_patterns(patterns: Sequence[str]) -> list[Path]:
    """Returns the files in the order given; each argument is a file, a folder (its files of known formats) or a pattern."""
    files: list[Path] = []
    for pattern in patterns:
        with reading(Path(pattern)):
            files += _matching_files(pattern)
    seen: set[Path] = set()
    for file in files:
        with reading(file):
            if not file.exists() and str(file) == STANDARD_STREAM:
                raise InputError(
                    f"{file}: standard input is not supported, because files are read more than once; "
                    f"write the rows to a file with one of the suffixes {INPUT_SUFFIXES}"
                )
            if not file.exists():
                raise InputError(f"{file}: no such file or folder")
            if not file.is_file():
                raise InputError(f"{file}: not a regular file, which is needed because the file is read more than once")
        if file.resolve() in seen:
            raise InputError(
                f"{file}: the file is specified twice, so its rows would be counted twice; specify it once"
            )
        seen.add(file.resolve())
    refuse_delta_and_iceberg(files)
    return files


def open_inputs(
    files: Sequence[Path],
    input_columns: InputColumns,
    *,
    keep_json_lines: bool,
    threads: int,
    progress: bool | None,
    lists_invalid: bool = False,
) -> list[InputFile]:
    """Opens the files, with the columns of their Hive partitions.

    With `keep_json_lines`, lines of JSON are copied to the output and not parsed completely, unless partitions add columns. For
    `lists_invalid`, see `CsvInput`.
    """
    file_formats = []
    for file in files:
        with reading(file):
            file_formats.append(input_format(file))
    json_files = [file for file, found in zip(files, file_formats, strict=True) if found is Format.JSONL]
    json_schema = None
    if json_files and not (keep_json_lines and not any(map(partition_columns, json_files))):
        json_schema = infer_json_schema(json_files, input_columns, threads=threads, progress=progress)
    inputs: list[InputFile] = []
    for file, file_format in zip(files, file_formats, strict=True):
        if file_format is Format.PARQUET:
            inputs.append(ParquetInput(file))
        elif file_format is Format.CSV:
            inputs.append(CsvInput(file, input_columns=input_columns, lists_invalid=lists_invalid))
        elif file_format is Format.JSONL:
            inputs.append(
                JsonLinesInput(file, input_columns=input_columns, schema=json_schema, lists_invalid=lists_invalid)
            )
        else:
            inputs.append(ArrowInput(file, is_stream=file_format is Format.ARROWS))
        _refuse_names_of_endpoints(inputs[-1], input_columns)
        if values := partition_columns(file):
            inputs[-1] = PartitionedInput(inputs[-1], values, input_columns)
    return inputs


_ENDPOINTS_QUERY: Final = (
    "SELECT DB_NAME() AS [database], conversation_id, far_service AS to_service_name, NULLIF(far_broker_instance, N'') AS "
    "to_broker_instance, CAST(is_initiator AS bit) AS is_initiator FROM sys.conversation_endpoints"
)


def _refuse_names_of_endpoints(input_file: InputFile, input_columns: InputColumns) -> None:
    """Refuses conversations with the column names of `sys.conversation_endpoints`, with the names that the command reads."""
    names = [] if input_file.schema is None else input_file.schema.names
    wanted = "to_service_name"
    if "far_service" in names and wanted not in names and wanted in input_columns.schema.names:
        raise SchemaError(
            f"{input_file.file}: {wanted}: the column is missing; in rows of sys.conversation_endpoints, rename far_service to {wanted}, "
            f"and far_broker_instance to to_broker_instance, as this query does: {_ENDPOINTS_QUERY}",
            column=wanted,
            expected="text",
        )


def _matching_files(pattern: str) -> list[Path]:
    path = Path(pattern)
    if path.is_dir():
        return _files_in(path)
    if path.exists() or not glob.has_magic(pattern):
        return [path]
    matches = sorted(Path(name) for name in glob.glob(pattern, recursive=True))  # noqa: PTH207 - Path.glob rejects absolute patterns
    if not matches:
        raise InputError(f"{pattern}: no file matches the pattern")
    return [file for match in matches for file in (_files_in(match) if match.is_dir() else [match])]


def _files_in(folder: Path) -> list[Path]:
    with reading(folder):
        entries = sorted(
            entry for entry in folder.iterdir() if entry.is_file() and not entry.name.startswith(_HIDDEN_PREFIXES)
        )
    files = [entry for entry in entries if input_format_by_suffix(entry) is not None]
    if not files:
        raise InputError(
            f"{folder}: the folder has no file of a known format ({INPUT_SUFFIXES}); "
            "to search subfolders, use a pattern such as 'folder/**/*.parquet'"
        )
    return files


def common_schema(inputs: Sequence[InputFile], input_columns: InputColumns) -> pa.Schema:
    """Returns the columns that all files must have, in the order and with the types of the first file; files without a schema are ignored.

    A column that is binary in one file and fixed-size binary in another is binary; a column that is nullable in any file is nullable.
    """
    first: InputFile | None = None
    fields: dict[str, Any] = {}
    for input_file in inputs:
        if input_file.schema is None:
            continue
        _check_column_names(input_file, input_file.schema, input_columns)
        if first is None or first.schema is None:
            first, fields = input_file, {field.name: field for field in input_file.schema}
            continue
        for name in dict.fromkeys([*first.schema.names, *input_file.schema.names]):
            one, other = _column_type(first.schema, name), _column_type(input_file.schema, name)
            if one is None or other is None:
                has, lacks = (first, input_file) if other is None else (input_file, first)
                problem = f"the column {name} is missing, but {has.file} has it"
                message = f"{lacks.file}: {problem}; expected the same columns in all files"
                raise SchemaError(message, column=name)
            if logical_type(one) != logical_type(other):
                problem = f"the type of {name} is {other}, but {one} in {first.file}"
                message = f"{input_file.file}: {problem}; expected the same types in all files"
                raise SchemaError(message, column=name, expected=str(one), actual=str(other))
            if one != other and pa.types.is_fixed_size_binary(one):
                fields[name] = fields[name].with_type(pa.binary())
            if input_file.schema.field(name).nullable:
                fields[name] = fields[name].with_nullable(True)
    return pa.schema([*fields.values()])


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Returns the batch with the columns in the order and with the types of the schema."""
    if batch.schema.equals(schema):
        return batch
    columns = []
    for field in schema:
        column: Any = batch.column(field.name)
        if pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(field.type):
            column = column.dictionary_decode()
        columns.append(column if column.type == field.type else cast(column, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def add_is_initiator(batch: pa.RecordBatch, file: Path) -> pa.RecordBatch:
    """Adds the column `is_initiator` for `--from-target`; refuses a file that has this column."""
    if IS_INITIATOR in batch.schema.names:
        raise already_known_direction(file)
    return batch.append_column(IS_INITIATOR, pa.array([False] * batch.num_rows, pa.bool_()))


def already_known_direction(source: object) -> OptionError:
    """Returns the error for `--from-target` with rows that contain their direction; `source` is the input that contains them."""
    problem = f"{source} has the column {IS_INITIATOR}, which already specifies which side sent each message"
    return OptionError(f"--from-target: {problem}; omit the option, or drop the column")


def logical_type(data_type: pa.DataType) -> pa.DataType:
    """Returns the type of the values of a column, independent of its layout.

    Examples:
        >>> logical_type(pa.dictionary(pa.int8(), pa.large_string()))
        DataType(string)
    """
    if pa.types.is_dictionary(data_type):
        return logical_type(data_type.value_type)
    if pa.types.is_large_string(data_type) or is_string_view(data_type):
        return pa.string()
    if pa.types.is_large_binary(data_type) or is_binary_view(data_type) or pa.types.is_fixed_size_binary(data_type):
        return pa.binary()
    return data_type


def with_known_names(rows: pa.Table, column: str, names: Collection[str]) -> pa.Table:
    """Replaces each name in a column with the known name that differs from it only in case, if there is exactly one.

    Examples:
        >>> with_known_names(pa.table({"database": ["SALES", None, "x"]}), "database", ["Sales"])["database"].to_pylist()
        ['Sales', None, 'x']
    """
    from ssbroker.ddl.model import find_name  # noqa: PLC0415 - keeps --help fast

    number = rows.schema.get_field_index(column)
    if number < 0 or logical_type(rows.schema.field(number).type) != pa.string():
        return rows
    given = cast(rows.column(number), pa.string())
    distinct = given.unique()
    known = [None if name is None else find_name(name, names) or name for name in distinct.to_pylist()]
    if known == distinct.to_pylist():
        return rows
    found = pc.take(pa.array(known, pa.string()), pc.index_in(given, distinct))
    return with_column(rows, number, pa.field(column, pa.string()), found)


def _column_type(schema: pa.Schema, name: str) -> pa.DataType | None:
    number = schema.get_field_index(name)
    return None if number < 0 else schema.field(number).type


def _check_column_names(input_file: InputFile, schema: pa.Schema, input_columns: InputColumns) -> None:
    seen = set()
    for name in schema.names:
        if name in seen:
            raise SchemaError(f"{input_file.file}: duplicate column {name}; expected each column once", column=name)
        if name in input_columns.added:
            raise added_column_error(str(input_file.file), name, input_columns)
        seen.add(name)
