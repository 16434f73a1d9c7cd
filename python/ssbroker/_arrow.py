"""Reads any object that supports the Arrow PyCapsule protocol, and normalizes it for the native module; serializes rows."""

from __future__ import annotations

import difflib
import itertools
import re
import sys
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute

from ssbroker import _core, schemas
from ssbroker._arguments import is_utf8_text
from ssbroker._compat import (
    MINIMUMS,
    cast,
    chunked_array_from_stream,
    exportable_column,
    importable,
    is_binary_view,
    is_bool8,
    is_older,
    is_string_view,
    reader_from_stream,
    with_exportable_views,
)
from ssbroker._text import printable, restore_spaces
from ssbroker.exceptions import InputError, MalformedDataError, MissingDependencyError, SchemaError

_PYARROW_MINIMUM: Final = MINIMUMS["ssbroker"].version
if is_older(pa.__version__, _PYARROW_MINIMUM):
    raise MissingDependencyError(
        f"ssbroker needs pyarrow {_PYARROW_MINIMUM} or newer, and {pa.__version__} is installed: "
        f"pip install 'pyarrow>={_PYARROW_MINIMUM}'",
        name="pyarrow",
    )

_BOOLEAN_COLUMNS: Final = ("is_broker_enabled", "is_initiator")
_PANDAS_INDEX: Final = re.compile(r"__index_level_[0-9]+__")
"""The column name of a pandas index without a name, as pyarrow writes it; filtering a DataFrame creates such an index."""

_compute: Final[Any] = pyarrow.compute  # the stubs do not list all types of arguments
_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)


def normalize(rows: _Rows) -> _Rows:
    """Drops unnamed pandas indexes, casts `bool8` columns that the native module reads to `bool`, and makes view columns exportable.

    Examples:
        >>> normalize(pa.table({"name": ["Orders"], "__index_level_0__": [7]})).to_pylist()
        [{'name': 'Orders'}]
    """
    names = rows.schema.names
    kept = [number for number, name in enumerate(names) if not _PANDAS_INDEX.fullmatch(name)]
    return with_exportable_views(cast_bool8(rows if len(kept) == len(names) else rows.select(kept)))


def cast_bool8(rows: _Rows) -> _Rows:
    """Casts the `bool8` columns that the native module reads to `bool`; extra columns stay as they are."""
    for number, field in enumerate(rows.schema):
        if field.name in _BOOLEAN_COLUMNS and is_bool8(field.type):
            booleans = rows.column(number).cast(pa.bool_())
            rows = with_column(rows, number, field.with_type(pa.bool_()), booleans)
    return rows


def with_column(rows: _Rows, number: int, field: pa.Field[Any], column: Any) -> _Rows:
    """Returns the rows with one column replaced; the oldest supported pyarrow has no `RecordBatch.set_column`.

    Examples:
        >>> batch = pa.RecordBatch.from_pydict({"a": [1], "b": [2]})
        >>> with_column(batch, 1, pa.field("c", pa.int8()), pa.array([3], pa.int8())).to_pylist()
        [{'a': 1, 'c': 3}]
    """
    columns = [*rows.columns[:number], column, *rows.columns[number + 1 :]]
    return type(rows).from_arrays(columns, schema=rows.schema.set(number, field))


def drop_columns(batch: pa.RecordBatch, names: Collection[str]) -> pa.RecordBatch:
    """Returns a batch without some columns; the oldest supported pyarrow has no `RecordBatch.drop_columns`.

    Examples:
        >>> drop_columns(pa.RecordBatch.from_pydict({"a": [1], "b": [2]}), ["a"]).to_pylist()
        [{'b': 2}]
    """
    return batch.select([number for number, name in enumerate(batch.schema.names) if name not in names])


def cast_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Casts the columns of a batch to the types of a schema with the same names; the oldest supported pyarrow has no `RecordBatch.cast`."""
    columns: list[Any] = [
        cast(column, data_type) for column, data_type in zip(batch.columns, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def null_where(is_null: Any, values: Any) -> Any:
    """Returns the values, with null where a condition holds.

    In pyarrow 23 and older, `if_else` with a null scalar and a slice of text or binary reads outside the array; with an array of nulls it does not.

    Examples:
        >>> null_where(pa.array([False, True]), pa.array(["a", "b", "c"])[1:]).to_pylist()
        ['b', None]
    """
    return _compute.if_else(is_null, pa.nulls(len(values), values.type), values)


_GUID_DIGIT_POSITIONS: Final = [position for position in range(36) if position not in (8, 13, 18, 23)]


def guid_text(column: Any) -> Any:
    """Converts GUIDs of 16 bytes to their 36 characters."""
    compact = pa.concat_arrays([cast(column, pa.binary(16))])  # a copy starts at offset 0
    if len(compact) == 0:
        return pa.nulls(0, pa.large_string())
    digits = memoryview(compact.buffers()[1])[: 16 * len(compact)].hex().encode()
    text = bytearray(b"-" * (36 * len(compact)))
    for digit, position in enumerate(_GUID_DIGIT_POSITIONS):
        text[position::36] = digits[digit::32]
    rows = pa.Array.from_buffers(pa.binary(36), len(compact), [None, pa.py_buffer(text)])
    return null_where(
        _compute.is_null(compact), _compute.cast(_compute.cast(rows, pa.large_binary()), pa.large_string())
    )


_ACCEPTED: Final = (
    "an Arrow object (with __arrow_c_stream__ or __arrow_c_array__): a pyarrow Table, RecordBatch, RecordBatchReader, "
    "Dataset or Scanner, a Polars or pandas DataFrame, a DuckDB relation; or a list of dicts"
)
_ACCEPTED_COLUMN: Final = "one column: a pyarrow Array or ChunkedArray, a Polars Series, or a table with one column"
_SPARK_FRAMES: Final = (
    "pyspark.sql.classic.dataframe.DataFrame",
    "pyspark.sql.connect.dataframe.DataFrame",
    "pyspark.sql.dataframe.DataFrame",
)
_SPARK_FUNCTIONS: Final = {
    "conversations": "ssbroker.spark.route or ssbroker.spark.compare",
    "fragments": "ssbroker.spark.reassemble",
}
"""The functions of `ssbroker.spark` for inputs that may be too large to collect from Spark, by argument name."""
_HINTS: Final = {
    "polars.lazyframe.frame.LazyFrame": "call its method collect() first",
    **dict.fromkeys(_SPARK_FRAMES, "use ssbroker.spark"),
    "ssbroker.router.Routed": "pass its attribute decisions",
    "builtins.dict": "pass a list of dicts, one for each row, or pyarrow.table(...)",
}
_DATASETS: Final = "pyarrow._dataset."
_ITERATOR_HINT: Final = (
    "pyarrow.RecordBatchReader.from_batches(schema, batches) creates a stream from an iterator of record batches"
)
_PANDAS_FRAME: Final = "pandas.core.frame.DataFrame"
_POLARS_FRAME: Final = "polars.dataframe.frame.DataFrame"
_GUID_BYTES: Final = 16
_ID_COLUMNS: Final = (
    "conversation_id",
    "conversation_handle",
    "to_broker_instance",
    "broker_instance",
    "service_broker_guid",
)
_SCHEMAS: Final = {
    "routes": schemas.ROUTES,
    "databases": schemas.DATABASES,
    "services": schemas.SERVICES,
    "conversations": schemas.CONVERSATIONS,
    "messages": schemas.MESSAGES,
    "fragments": schemas.FRAGMENTS,
    "decisions": schemas.DECISIONS,
}
"""The columns of each input, by argument name."""
_NULLABLE_COLUMNS: Final = frozenset(
    field.name
    for schema in (schemas.ROUTES, schemas.DATABASES, schemas.CONVERSATIONS, schemas.FRAGMENTS)
    for field in schema
    if field.nullable
)


class ArrowArrayExportable(Protocol):
    """An object with `__arrow_c_array__`, such as a pyarrow RecordBatch."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """Returns the schema and array capsules."""


class ArrowStreamExportable(Protocol):
    """An object with `__arrow_c_stream__`, such as a pyarrow Table, a Polars or pandas DataFrame, or a DuckDB relation."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Returns the stream capsule."""


class ArrowDataset(Protocol):
    """A pyarrow Dataset."""

    def scanner(self) -> Any:
        """Returns a scanner of all rows."""


class ArrowScanner(Protocol):
    """A pyarrow Scanner."""

    def to_reader(self) -> Any:
        """Returns the rows as a stream."""


Stream: TypeAlias = ArrowStreamExportable | ArrowDataset | ArrowScanner | Sequence[Mapping[str, Any]]
"""A table that is not a single record batch."""
Rows: TypeAlias = ArrowArrayExportable | Stream
"""A table: an Arrow object, or a list of dicts."""


def as_arrow(value: Any, *, name: str, read: Collection[str] | None = None) -> Any:
    """Returns an object with Arrow capsules unchanged, a dataset as a stream, and a list of dicts or a pandas or Spark DataFrame as a table.

    The keys of all dicts become columns. Missing values in pandas become null. `read` contains the names of the columns to
    read; other columns of dicts and pandas DataFrames are null, and so are 128-bit integers of Polars.

    Examples:
        >>> as_arrow([{"name": "Orders"}, {"name": "Stock", "route_id": 7}], name="routes").to_pylist()
        [{'name': 'Orders', 'route_id': None}, {'name': 'Stock', 'route_id': 7}]
        >>> as_arrow([{"name": "Orders", "note": "-"}, {"name": "Stock", "note": 7}], name="routes", read=["name"]).to_pylist()
        [{'name': 'Orders', 'note': None}, {'name': 'Stock', 'note': None}]
    """
    if qualified_type(value) == _PANDAS_FRAME:
        return _from_pandas(value, name=name, read=read)
    if qualified_type(value) == _POLARS_FRAME:
        value = _without_wide_integers(value, name=name, read=read)
    if isinstance(value, list):
        return _from_rows(value, name=name, read=read)
    if qualified_type(value).startswith(_DATASETS):
        value = value.scanner() if hasattr(value, "scanner") else value
        value = value.to_reader() if hasattr(value, "to_reader") else value
    refuse_spark_frame(value, name=name)
    if qualified_type(value) in _SPARK_FRAMES and hasattr(type(value), "toArrow"):
        return value.toArrow()  # Spark's `__arrow_c_stream__` fails on timestamps
    return importable(value)


def refuse_spark_frame(value: object, *, name: str) -> None:
    """Rejects conversations or fragments in a Spark DataFrame, because reading them would collect the DataFrame; sends nothing to a Spark server."""
    if name in _SPARK_FUNCTIONS and qualified_type(value) in _SPARK_FRAMES:
        raise SchemaError(
            f"{name}: a Spark DataFrame is not collected to this process; use {_SPARK_FUNCTIONS[name]}, "
            "or pass df.toArrow() to collect it",
            expected=_ACCEPTED,
            actual=_type_name(value),
        )


def _from_pandas(frame: Any, *, name: str, read: Collection[str] | None) -> Any:
    """Converts a DataFrame, in which a column without values often holds NaN, and a column without rows often has the type float64."""
    duplicates = frame.columns[frame.columns.duplicated()]
    if len(duplicates):
        first = str(duplicates[0])
        raise SchemaError(f"{first}: expected unique column names, got two columns with this name", column=first)
    names = list(frame.columns)
    converted = frame if read is None else frame[[column for column in names if column in read]]
    infer_type = sys.modules["pandas"].api.types.infer_dtype
    objects = [column for column in _ID_COLUMNS if column in converted and frame.dtypes[column].name == "object"]
    mixed_ids = [column for column in objects if infer_type(frame[column]) == "mixed"]
    if mixed_ids:  # `assign` copies the frame
        converted = converted.assign(**{column: _cells(column, frame[column].tolist()) for column in mixed_ids})
    with _arrow_errors(frame, name=name):
        try:
            table = pa.Table.from_pandas(converted)
        except UnicodeEncodeError as error:
            columns = [(column, converted[column].tolist()) for column in converted.columns]
            raise next(filter(None, itertools.starmap(_not_utf8_error, columns)), error) from error
        except (pa.ArrowException, OverflowError) as error:
            raise _unconverted_column(converted, name=name) or error from error
    if len(converted.columns) < len(names):  # an index that has a name is a column of the table
        found = {each: table.column(each) for each in table.column_names}
        nulls: Any = pa.nulls(len(frame))
        table = pa.table({each: found.get(each, nulls) for each in dict.fromkeys([*map(str, names), *found])})
    without_values = _NULLABLE_COLUMNS if len(frame) else frozenset(_SCHEMAS[name].names if name in _SCHEMAS else ())
    for number, field in enumerate(table.schema):
        column = table.column(number)
        if field.name in without_values and pa.types.is_floating(field.type) and column.null_count == len(column):
            nulls = pa.nulls(len(column))
            table = with_column(table, number, pa.field(field.name, pa.null()), pa.chunked_array([nulls]))
    return table


def _unconverted_column(frame: Any, *, name: str) -> SchemaError | None:
    """Returns the error of the first column whose values have no common Arrow type; None if there is no such column."""
    for column in frame.columns:
        try:
            pa.Array.from_pandas(frame[column])
        except (pa.ArrowException, OverflowError) as error:
            return _mixed_column_error(column, error, name=name)
    return None


def _without_wide_integers(frame: Any, *, name: str, read: Collection[str] | None) -> Any:
    """Replaces columns of 128-bit integers, for which Arrow has no type, by nulls; raises SchemaError if they are to be read."""
    wide = [column for column, data_type in frame.schema.items() if "Int128" in str(data_type)]
    for column in wide:
        if read is None or column in read:
            raise SchemaError(
                f"{column:.80}: Arrow has no type for {frame.schema[column]} in {name}; cast the column to Int64, Decimal or String",
                column=column,
                actual=str(frame.schema[column]),
            )
    return frame.with_columns(sys.modules["polars"].lit(None).alias(column) for column in wide) if wide else frame


def _cells(column: object, values: list[Any]) -> list[Any]:
    """Converts UUIDs to text. If an id column contains both bytes and text, converts the bytes, too; otherwise Arrow would store the text as bytes.

    Examples:
        >>> _cells("conversation_id", ["-", bytes(16), None, b"-"])
        ['-', '00000000-0000-0000-0000-000000000000', None, '0x2d']
    """
    cells = [str(value) if isinstance(value, uuid.UUID) else value for value in values]
    if column not in _ID_COLUMNS or not {bytes, str}.issubset(map(type, cells)):
        return cells
    return [_id_text(cell) if isinstance(cell, bytes) else cell for cell in cells]


def _id_text(value: bytes) -> str:
    return str(uuid.UUID(bytes=value)) if len(value) == _GUID_BYTES else f"0x{value.hex()}"


def _not_utf8_error(column: object, values: list[Any]) -> InputError | None:
    """Returns the error of the first text that UTF-8 cannot encode; None if there is no such text."""
    for row, value in enumerate(values):
        if isinstance(value, str) and not is_utf8_text(value):
            expected, shown = "valid UTF-8 text", ascii(value)[:80]
            return InputError(
                f"{column!s:.80}, row {row}: expected {expected}, got {shown}",
                column=str(column),
                row=row,
                value=shown,
                expected=expected,
            )
    return None


def _mixed_column_error(column: object, error: Exception, *, name: str) -> SchemaError:
    return SchemaError(f"{column!s:.80}: the values in {name} have no common Arrow type: {error}", column=str(column))


def _from_rows(rows: list[Any], *, name: str, read: Collection[str] | None) -> pa.Table:
    if not rows and name in _SCHEMAS:
        return pa.table({column: pa.nulls(0) for column in _SCHEMAS[name].names})
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            hint = "; pyarrow.Table.from_batches(...) creates a table" if isinstance(row, pa.RecordBatch) else ""
            raise SchemaError(
                f"{name}, row {number}: expected a dict in the list, got {_type_name(row)}{hint}",
                expected="a dict",
                actual=_type_name(row),
            )
    columns: dict[str, Any] = {}
    for column in dict.fromkeys(itertools.chain.from_iterable(rows)):
        if read is not None and column not in read:
            columns[str(column)] = pa.nulls(len(rows))
            continue
        values = [row.get(column) for row in rows]
        try:
            columns[str(column)] = pa.array(_cells(column, values))
        except UnicodeEncodeError as error:
            raise _not_utf8_error(column, values) or error from error
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            raise _mixed_column_error(column, error, name=name) from error
    return pa.table(columns)


_COLUMNS_LISTED_MAX: Final = 20
_SIMILARITY_MIN: Final = 0.55


def missing_column_error(error: SchemaError, rows: object, *, expected: Collection[str]) -> SchemaError:
    """Returns an error about a missing column that lists the columns of the input and suggests the most similar one.

    Other errors are returned unchanged. `expected` are the columns that the input may have.

    Examples:
        >>> error = SchemaError("to_service_name: the column is missing", column="to_service_name")
        >>> print(missing_column_error(error, pa.table({"service": ["//Orders"]}), expected=["to_service_name"]))
        to_service_name: the column is missing; the input has the column "service"; if "service" is meant, rename it to "to_service_name"
    """
    fields: Any = rows.type if isinstance(rows, pa.Array) else getattr(rows, "schema", ())
    names = [field.name for field in fields]
    if error.column is None or error.actual is not None or f"{error.column}: the column is missing" not in str(error):
        return error
    shown = ", ".join(f'"{printable(name)}"' for name in names[:_COLUMNS_LISTED_MAX])
    more = f" and {len(names) - _COLUMNS_LISTED_MAX} more" if len(names) > _COLUMNS_LISTED_MAX else ""
    listing = (
        f"the input has the column{'' if len(names) == 1 else 's'} {shown}{more}"
        if names
        else "the input has no columns"
    )
    candidates = {name.lower(): name for name in names if name not in expected}
    wanted = error.column.rpartition(".")[2]
    words = set(wanted.split("_"))
    similar = difflib.get_close_matches(wanted, candidates, n=1, cutoff=_SIMILARITY_MIN) or [
        name for name in candidates if words.issuperset(name.split("_"))
    ]
    advice = f'; if "{printable(candidates[similar[0]])}" is meant, rename it to "{wanted}"' if similar else ""
    return SchemaError(
        restore_spaces(f"{error}; {listing}{advice}"), column=error.column, expected=error.expected, actual=None
    )


def as_table(value: object, *, name: str, read: Collection[str] | None = None) -> pa.Table:
    """Reads any Arrow object as a table, if possible without copying buffers. `name` is the argument, for messages; see `as_arrow` for `read`."""
    value = as_arrow(value, name=name, read=read)
    if isinstance(value, pa.Table):
        table = value
    elif isinstance(value, pa.RecordBatch):
        table = pa.Table.from_batches([value])
    else:
        with _arrow_errors(value, name=name):
            if hasattr(value, "__arrow_c_stream__"):
                reader = _import_capsules(value, "__arrow_c_stream__", reader_from_stream, name=name)
                table = pa.Table.from_batches(_with_rows(reader), reader.schema)
            elif hasattr(value, "__arrow_c_array__"):
                table = _import_capsules(value, "__arrow_c_array__", pa.table, name=name)
            else:
                raise not_arrow_error(value, name=name)
    check_layout(table, name=name, qualified=True)
    return normalize(table)


def as_batch(value: object, *, name: str) -> pa.RecordBatch | pa.Array[Any]:
    """Reads an object with `__arrow_c_array__` as one record batch, or as an array of structs."""
    batch: pa.RecordBatch | pa.Array[Any]
    if isinstance(value, pa.RecordBatch | pa.Array):
        batch = value
    else:
        with _arrow_errors(value, name=name):
            batch = _import_capsules(value, "__arrow_c_array__", pa.array, name=name)
    check_layout(batch, name=name)
    return normalize(batch) if isinstance(batch, pa.RecordBatch) else exportable_column(batch)


def stream_batches(value: object, *, name: str) -> Iterator[pa.RecordBatch]:
    """Yields the checked batches of a table or stream as they are read; at least one, which may be empty."""
    with _arrow_errors(value, name=name):
        if isinstance(value, pa.Table):
            check_layout(value, name=name)
            reader = value.to_reader()
        elif isinstance(value, pa.RecordBatchReader):
            reader = value
        else:
            reader = _import_capsules(value, "__arrow_c_stream__", reader_from_stream, name=name)
        is_empty = True
        for batch in _with_rows(reader):
            is_empty = False
            check_layout(batch, name=name)
            yield normalize(batch)
        if is_empty:
            yield normalize(_empty_batch(reader.schema))


def _with_rows(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Returns the batches that have rows, because pyarrow rejects the buffers of an imported empty slice of views as too short."""
    return (batch for batch in reader if batch.num_rows)


def _empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Returns a batch without rows; `Schema.empty_table` does not support union columns."""
    columns: list[Any] = [pa.nulls(0, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def input_batches(value: object, *, name: str) -> Iterator[pa.RecordBatch | pa.Array[Any]]:
    """Yields the checked batches of a record batch, table or stream; at least one, which may be empty."""
    value = as_arrow(value, name=name)
    if hasattr(value, "__arrow_c_array__"):
        yield as_batch(value, name=name)
    elif hasattr(value, "__arrow_c_stream__"):
        yield from stream_batches(value, name=name)
    else:
        raise not_arrow_error(value, name=name)


def as_column(value: object, *, name: str) -> pa.Array[Any] | pa.ChunkedArray[Any]:
    """Reads an array, chunked array or table of one column as that column, without copying."""
    column: Any
    if isinstance(value, pa.Array | pa.ChunkedArray):
        column = value
    else:
        with _arrow_errors(value, name=name):
            if hasattr(value, "__arrow_c_array__"):
                column = _import_capsules(value, "__arrow_c_array__", pa.array, name=name)
            elif hasattr(value, "__arrow_c_stream__"):
                column = _import_capsules(value, "__arrow_c_stream__", chunked_array_from_stream, name=name)
            else:
                raise SchemaError(
                    f"{name}: expected {_ACCEPTED_COLUMN}, got {_type_name(value)}; pyarrow.array(...) creates an Array from a list",
                    expected=_ACCEPTED_COLUMN,
                )
    check_layout(column, name=name)
    if pa.types.is_struct(column.type):
        if column.type.num_fields != 1:
            raise SchemaError(
                f"{name}: expected a single column, got {column.type.num_fields} columns", expected="one column"
            )
        column = column.flatten()[0]
    result: pa.Array[Any] | pa.ChunkedArray[Any] = exportable_column(column)
    return result


def map_chunks(
    column: pa.Array[Any] | pa.ChunkedArray[Any], function: Callable[[Any, int], pa.Array[Any]]
) -> pa.ChunkedArray[Any]:
    """Calls `function` with each chunk of a column and the index of its first row.

    A column without chunks is treated as one empty chunk, so that its type is checked too.
    """
    chunks = [column] if isinstance(column, pa.Array) else column.chunks or [pa.nulls(0, column.type)]
    starts = itertools.accumulate(map(len, chunks), initial=0)
    return pa.chunked_array([function(chunk, start) for chunk, start in zip(chunks, starts, strict=False)])


def check_layout(value: Any, *, name: str, qualified: bool = False) -> None:
    """Checks the lengths and offsets of a pyarrow object against its buffers, in time that does not depend on the number of rows.

    With `qualified`, an error names a column as `name.column`.
    """
    try:
        value.validate()
    except pa.ArrowInvalid as error:
        column = _broken_column(value)
        raise _invalid_data_error(
            error, name=name, column=f"{name}.{column}" if column and qualified else column
        ) from error


def not_arrow_error(value: object, *, name: str) -> SchemaError:
    hint = _HINTS.get(qualified_type(value), _ITERATOR_HINT if isinstance(value, Iterator) else None)
    return SchemaError(
        f"{name}: expected {_ACCEPTED}, got {_type_name(value)}{f'; {hint}' if hint else ''}",
        expected=_ACCEPTED,
        actual=_type_name(value),
    )


def qualified_type(value: object) -> str:
    """Returns the module and name of the type of a value."""
    class_ = type(value)
    return f"{class_.__module__}.{class_.__qualname__}"


def _type_name(value: object) -> str:
    return qualified_type(value).removeprefix("builtins.")


@contextmanager
def _arrow_errors(value: object, *, name: str) -> Iterator[None]:
    """Converts pyarrow errors about unreadable data to `SchemaError` or `MalformedDataError`."""
    try:
        yield
    except pa.ArrowInvalid as error:
        raise _invalid_data_error(error, name=name) from error
    except (pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"{name}: {_type_name(value)} cannot be read as Arrow data: {error}") from error


def _import_capsules(
    value: Any,
    method: Literal["__arrow_c_array__", "__arrow_c_stream__"],
    import_: Callable[[Any], Any],
    *,
    name: str,
) -> Any:
    """Imports the capsules that `value` exports; errors that its export method raises pass through."""
    capsules = getattr(value, method)()
    try:
        imported = import_(SimpleNamespace(**{method: lambda _requested_schema=None: capsules}))
    except pa.ArrowException:
        raise
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{name}: {_type_name(value)}.{method} returned no valid Arrow capsules: {error}") from error
    if method == "__arrow_c_array__" and len(imported) == 0:  # as for `_with_rows`
        is_table = isinstance(imported, pa.Table)
        return pa.Table.from_batches([_empty_batch(imported.schema)]) if is_table else pa.nulls(0, imported.type)
    return imported


def _broken_column(value: Any) -> str | None:
    columns: list[tuple[str, Any]] = []
    if isinstance(value, pa.Table | pa.RecordBatch):
        columns = list(zip(value.schema.names, value.columns, strict=True))
    elif isinstance(value, pa.StructArray):
        columns = [(field.name, value.field(number)) for number, field in enumerate(value.type)]
    for name, column in columns:
        try:
            column.validate()
        except pa.ArrowInvalid:
            return name
    return None


def _invalid_data_error(
    error: pa.ArrowInvalid, *, name: str, column: str | None = None
) -> MalformedDataError | SchemaError:
    if "non-struct" in str(error):
        return SchemaError(f"{name}: expected a table, got a single column: {error}")
    return MalformedDataError(f"{column or name}: the Arrow data cannot be read: {error}", column=column)


def without_views(column: Any) -> Any:
    """Casts string and binary views, in dictionaries too, to `string` and `binary`: pyarrow's take and filter do not support views.

    Examples:
        >>> without_views(pa.array(["LOCAL"], pa.string_view()).dictionary_encode()).type
        DictionaryType(dictionary<values=string, indices=int32, ordered=0>)
    """
    data_type = type_without_views(column.type)
    if data_type == column.type:
        return column
    if not pa.types.is_dictionary(data_type):
        return column.cast(data_type)
    return pa.DictionaryArray.from_arrays(
        column.indices, column.dictionary.cast(data_type.value_type), ordered=data_type.ordered
    )


def table_without_views(table: pa.Table) -> pa.Table:
    """Applies `without_views` to every column: Parquet cannot store dictionaries of views."""
    columns = [
        pa.chunked_array(list(map(without_views, column.chunks)), type_without_views(column.type))
        for column in table.columns
    ]
    return pa.Table.from_arrays(
        columns, schema=pa.schema([f.with_type(c.type) for f, c in zip(table.schema, columns, strict=True)])
    )


def type_without_views(data_type: Any) -> Any:
    """Returns the type of an array after `without_views`."""
    if pa.types.is_dictionary(data_type):
        return pa.dictionary(data_type.index_type, type_without_views(data_type.value_type), data_type.ordered)
    if is_string_view(data_type):
        return pa.string()
    return pa.binary() if is_binary_view(data_type) else data_type


def reject_misspelled_columns(names: Collection[str], *, expected: Iterable[str]) -> None:
    """Raises SchemaError if an extra column looks like a misspelling of an expected column that is missing.

    Names count as misspelled if they differ only in case, in separators, or in one letter of a long name. The native module checks its own
    input.

    Examples:
        >>> reject_misspelled_columns(["name", "Remote Service Name"], expected=["name", "remote_service_name"])
        Traceback (most recent call last):
        ssbroker.exceptions.SchemaError: remote_service_name: expected a column with exactly this name, got "Remote Service Name"
    """
    for name in expected:
        if name in names:
            continue
        found = next((each for each in names if _core.is_misspelling(each, name)), None)
        if found is not None:
            wanted, actual = "a column with exactly this name", f'"{found}"'
            raise SchemaError(f"{name}: expected {wanted}, got {actual}", column=name, expected=wanted, actual=actual)


def extra_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns the columns of a table that are not in the schema."""
    return table.select([number for number, name in enumerate(table.schema.names) if name not in schema.names])


def append_extra_columns(table: pa.Table, extra: pa.Table | None) -> pa.Table:
    """Appends extra columns to a table; rows beyond the length of `extra` get nulls."""
    if extra is None:
        return table
    missing_rows = table.num_rows - extra.num_rows
    for field, column in zip(extra.schema, extra.columns, strict=True):
        if missing_rows:
            padded = pa.chunked_array([*column.chunks, pa.nulls(missing_rows, field.type)], field.type)
            table = table.append_column(field.with_nullable(nullable=True), padded)
        else:
            table = table.append_column(field, column)
    return table


def to_ipc(rows: pa.RecordBatch | pa.Table) -> bytes:
    """Serializes rows with their schema.

    Examples:
        >>> from_ipc(to_ipc(pa.table({"a": [1, 2]}))).num_rows
        2
    """
    sink = pa.BufferOutputStream()
    write_ipc(rows, sink)
    return sink.getvalue().to_pybytes()


def write_ipc(rows: pa.RecordBatch | pa.Table, sink: pa.NativeFile) -> None:
    """Appends rows with their schema to a sink."""
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)


def from_ipc(data: bytes | memoryview) -> pa.Table:
    """Reads rows that `to_ipc` serialized, without a copy."""
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()
