"""What is accepted as a table: anything that offers the Arrow PyCapsule protocol, checked before native code sees it.

The C data interface carries no buffer lengths. So an offset beyond its buffer can be seen only here, where pyarrow still
knows the length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol

import pyarrow as pa

from ssbroker.exceptions import MalformedDataError, SchemaError

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
    elif hasattr(value, "__arrow_c_stream__") or hasattr(value, "__arrow_c_array__"):
        try:
            table = pa.Table.from_batches([value]) if isinstance(value, pa.RecordBatch) else pa.table(value)
        except pa.ArrowInvalid as error:
            raise _refused(error, name=name) from error
        except (pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise SchemaError(f"{name}: {_kind(value)} cannot be read as an Arrow table: {error}") from error
    else:
        raise not_arrow(value, name=name)
    check_layout(table, name=name)
    return table


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
    try:
        if isinstance(value, pa.Table):
            check_layout(value, name=name)
            reader = value.to_reader()
        else:
            stream: Any = value
            reader = stream if isinstance(stream, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(stream)
        empty = True
        for batch in reader:
            empty = False
            check_layout(batch, name=name)
            yield batch
    except pa.ArrowInvalid as error:
        raise _refused(error, name=name) from error
    except (pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"{name}: {_kind(value)} cannot be read as an Arrow stream: {error}") from error
    if empty:
        columns = [column.combine_chunks() for column in reader.schema.empty_table().columns]
        yield pa.RecordBatch.from_arrays(columns, schema=reader.schema)


def check_layout(value: Any, *, name: str) -> None:
    """Checks the buffers of a pyarrow object against its lengths and offsets; the cost does not grow with the rows.

    Args:
        value: A Table, RecordBatch or Array.
        name: What the value is, for messages.

    Raises:
        MalformedDataError: A buffer is too short, or an offset lies beyond it.

    Examples:
        >>> import pyarrow as pa
        >>> check_layout(pa.array(["LOCAL"]), name="address")
    """
    try:
        value.validate()
    except pa.ArrowInvalid as error:
        raise _refused(error, name=name, column=_broken_column(value)) from error


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


def _broken_column(value: Any) -> str | None:
    if isinstance(value, pa.Table | pa.RecordBatch):
        columns: list[Any] = value.columns
        for name, column in zip(value.schema.names, columns, strict=True):
            try:
                column.validate()
            except pa.ArrowInvalid:
                return name
    return None


def _refused(error: pa.ArrowInvalid, *, name: str, column: str | None = None) -> MalformedDataError | SchemaError:
    if "non-struct" in str(error):
        return SchemaError(f"{name}: expected a table, got a single column: {error}")
    where = name if column is None else f"{name}.{column}"
    return MalformedDataError(f"{where}: the Arrow data cannot be read: {error}", column=column and where)
