"""What is accepted as a table: anything that offers the Arrow PyCapsule protocol, checked before native code sees it.

The C data interface carries no buffer lengths. So an offset beyond its buffer can be seen only here, where pyarrow still
knows the length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final, Literal, Protocol

import pyarrow as pa

from ssbroker.exceptions import MalformedDataError, MissingDependencyError, SchemaError
from ssbroker.plain_rows import plain
from ssbroker.versions import PYARROW, is_older

if is_older(pa.__version__, PYARROW):
    raise MissingDependencyError(
        f"ssbroker needs pyarrow {PYARROW} or newer, and {pa.__version__} is installed: pip install 'pyarrow>={PYARROW}'",
        name="pyarrow",
    )

_ACCEPTED: Final = (
    "an Arrow object, which offers __arrow_c_stream__ or __arrow_c_array__: a pyarrow Table, RecordBatch or RecordBatchReader, "
    "a Polars or pandas DataFrame, a DuckDB relation"
)


class ArrowArrayExportable(Protocol):
    """Anything that offers `__arrow_c_array__`, such as a pyarrow RecordBatch."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        """The schema and array capsules."""


class ArrowStreamExportable(Protocol):
    """Anything that offers `__arrow_c_stream__`, such as a pyarrow Table, a Polars or pandas DataFrame, a DuckDB relation."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The stream capsule."""


def as_table(value: object, *, name: str) -> pa.Table:
    """Reads `value` as a table.

    Args:
        value: Anything that offers the Arrow PyCapsule protocol.
        name: What the value is, for messages.

    Returns:
        The table; its buffers are those of `value` where that is possible.

    Raises:
        SchemaError: `value` is no Arrow object, or one that is no table.
        MalformedDataError: Its data contradict their own layout.

    Examples:
        >>> import pyarrow as pa
        >>> as_table(pa.record_batch({"name": ["//Orders"]}), name="services").num_rows
        1
    """
    if isinstance(value, pa.Table):
        table = value
    elif isinstance(value, pa.RecordBatch):
        table = pa.Table.from_batches([value])
    else:
        with _reading(value, name=name):
            if hasattr(value, "__arrow_c_stream__"):
                table = _taken(value, "__arrow_c_stream__", pa.RecordBatchReader.from_stream, name=name).read_all()
            elif hasattr(value, "__arrow_c_array__"):
                table = _taken(value, "__arrow_c_array__", pa.table, name=name)
            else:
                raise not_arrow(value, name=name)
    check_layout(table, name=name, qualified=True)
    return plain(table)


def as_batch(value: object, *, name: str) -> pa.RecordBatch | pa.Array[Any]:
    """Reads `value` as one batch.

    Args:
        value: Anything that offers `__arrow_c_array__`.
        name: What the value is, for messages.

    Returns:
        The batch, or the array of structs that it is to other libraries; the buffers are those of `value`.

    Raises:
        SchemaError: What it answers is no Arrow array.
        MalformedDataError: The data contradict their own layout.

    Examples:
        >>> import pyarrow as pa
        >>> len(as_batch(pa.array([{"to_service_name": "//Orders"}]), name="conversations"))
        1
    """
    batch: pa.RecordBatch | pa.Array[Any]
    if isinstance(value, pa.RecordBatch | pa.Array):
        batch = value
    else:
        with _reading(value, name=name):
            batch = _taken(value, "__arrow_c_array__", pa.array, name=name)
    check_layout(batch, name=name)
    return plain(batch) if isinstance(batch, pa.RecordBatch) else batch


def batches(value: object, *, name: str) -> Iterator[pa.RecordBatch]:
    """The batches of a table or stream, one after the other, each checked; one without rows where there is none.

    Args:
        value: Anything that offers `__arrow_c_stream__`.
        name: What the value is, for messages.

    Yields:
        The batches. A stream is read as they are asked for.

    Raises:
        SchemaError: `value` is no stream of tables.
        MalformedDataError: The data contradict their own layout.

    Examples:
        >>> import pyarrow as pa
        >>> [batch.num_rows for batch in batches(pa.table({"a": [1, 2]}), name="conversations")]
        [2]
    """
    with _reading(value, name=name):
        if isinstance(value, pa.Table):
            check_layout(value, name=name)
            reader = value.to_reader()
        elif isinstance(value, pa.RecordBatchReader):
            reader = value
        else:
            reader = _taken(value, "__arrow_c_stream__", pa.RecordBatchReader.from_stream, name=name)
        empty = True
        for batch in reader:
            empty = False
            check_layout(batch, name=name)
            yield plain(batch)
        if empty:
            # Not `empty_table`: that cannot make a column of a union.
            columns: list[Any] = [pa.nulls(0, field.type) for field in reader.schema]
            yield plain(pa.RecordBatch.from_arrays(columns, schema=reader.schema))


def pieces(value: object, *, name: str) -> Iterator[pa.RecordBatch | pa.Array[Any]]:
    """The batches of anything that is a batch, a table or a stream, each checked.

    Args:
        value: Anything that offers the Arrow PyCapsule protocol.
        name: What the value is, for messages.

    Yields:
        The batches, at least one. A stream is read as they are asked for.

    Raises:
        SchemaError: `value` is no Arrow object, or one that is no table.
        MalformedDataError: The data contradict their own layout.

    Examples:
        >>> import pyarrow as pa
        >>> [len(batch) for batch in pieces(pa.record_batch({"a": [1, 2]}), name="fragments")]
        [2]
    """
    if hasattr(value, "__arrow_c_array__"):
        yield as_batch(value, name=name)
    elif hasattr(value, "__arrow_c_stream__"):
        yield from batches(value, name=name)
    else:
        raise not_arrow(value, name=name)


def as_column(value: object, *, name: str) -> pa.Array[Any] | pa.ChunkedArray[Any]:
    """Reads `value` as a single column; of a table of one column it is that column.

    Args:
        value: An Array, a ChunkedArray, or anything else that offers `__arrow_c_array__` or `__arrow_c_stream__`.
        name: What the value is, for messages.

    Returns:
        The column, whole or in chunks as it came; the buffers are those of `value`.

    Raises:
        SchemaError: `value` is no Arrow object, or has several columns.
        MalformedDataError: The data contradict their own layout.

    Examples:
        >>> import pyarrow as pa
        >>> as_column(pa.table({"message_body": [b"ab"]}), name="values").to_pylist()
        [b'ab']
    """
    column: Any
    if isinstance(value, pa.Array | pa.ChunkedArray):
        column = value
    else:
        with _reading(value, name=name):
            if hasattr(value, "__arrow_c_array__"):
                column = _taken(value, "__arrow_c_array__", pa.array, name=name)
            elif hasattr(value, "__arrow_c_stream__"):
                column = _taken(value, "__arrow_c_stream__", pa.chunked_array, name=name)
            else:
                raise not_arrow(value, name=name)
    check_layout(column, name=name)
    if pa.types.is_struct(column.type):
        if column.type.num_fields != 1:
            raise SchemaError(f"{name}: expected a single column, got {column.type.num_fields}", expected="one column")
        column = column.flatten()[0]
    checked: pa.Array[Any] | pa.ChunkedArray[Any] = column
    return checked


def check_layout(value: Any, *, name: str, qualified: bool = False) -> None:
    """Checks the buffers of a pyarrow object against its lengths and offsets; the cost does not grow with the rows.

    Args:
        value: A Table, RecordBatch or Array.
        name: What the value is, for messages.
        qualified: Whether the error names a column together with `name`, as where there are several tables.

    Raises:
        MalformedDataError: A buffer is too short, or an offset lies beyond it.

    Examples:
        >>> import pyarrow as pa
        >>> check_layout(pa.array(["LOCAL"]), name="address")
    """
    try:
        value.validate()
    except pa.ArrowInvalid as error:
        column = _broken_column(value)
        raise _refused(error, name=name, column=f"{name}.{column}" if column and qualified else column) from error


def not_arrow(value: object, *, name: str) -> SchemaError:
    """The error for a value that is no Arrow object.

    Examples:
        >>> str(not_arrow([1], name="routes"))[:58]
        'routes: expected an Arrow object, which offers __arrow_c_s'
    """
    return SchemaError(f"{name}: expected {_ACCEPTED}; got {_kind(value)}", expected=_ACCEPTED, actual=_kind(value))


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@contextmanager
def _reading(value: object, *, name: str) -> Iterator[None]:
    """Turns what pyarrow says of data that it cannot read into our errors."""
    try:
        yield
    except pa.ArrowInvalid as error:
        raise _refused(error, name=name) from error
    except (pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"{name}: {_kind(value)} cannot be read as Arrow data: {error}") from error


def _taken(
    value: Any,
    method: Literal["__arrow_c_array__", "__arrow_c_stream__"],
    take: Callable[[Any], Any],
    *,
    name: str,
) -> Any:
    """What pyarrow makes of the capsules that `value` answers; an error of its own passes through."""
    answer = getattr(value, method)()
    try:
        return take(SimpleNamespace(**{method: lambda _requested_schema=None: answer}))
    except pa.ArrowException:
        raise
    except (TypeError, ValueError) as error:
        raise SchemaError(f"{name}: {_kind(value)}.{method} answers no Arrow capsules: {error}") from error


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


def _refused(error: pa.ArrowInvalid, *, name: str, column: str | None = None) -> MalformedDataError | SchemaError:
    if "non-struct" in str(error):
        return SchemaError(f"{name}: expected a table, got a single column: {error}")
    return MalformedDataError(f"{column or name}: the Arrow data cannot be read: {error}", column=column)
