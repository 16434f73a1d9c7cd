"""Arrow input: accepts anything that offers the Arrow PyCapsule protocol, and brings it to the layouts that the kernels read."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Final, Literal, Protocol, TypeVar

import pyarrow as pa

from ssbroker._dependencies import PYARROW, is_older
from ssbroker.exceptions import MalformedDataError, MissingDependencyError, SchemaError

_READ: Final = ("is_broker_enabled", "is_initiator")
_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)


def with_plain_bools(rows: _Rows) -> _Rows:
    """The rows with plain truth values in the columns that are read; further ones are carried as they are.

    Examples:
        >>> truth = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8()))
        >>> with_plain_bools(pa.table({"is_initiator": truth})).to_pylist()[1]
        {'is_initiator': False}
    """
    for number, field in enumerate(rows.schema):
        if field.name in _READ and isinstance(field.type, pa.Bool8Type):
            plain = rows.column(number).cast(pa.bool_())
            rows = rows.set_column(number, field.with_type(pa.bool_()), plain)
    return rows


_INDEX: Final = re.compile(r"__index_level_[0-9]+__")
"""What Arrow calls an index of pandas that has no name; pandas makes one where rows are left out."""


def plain(rows: _Rows) -> _Rows:
    """The rows with plain truth values, and without an index that nobody has named (K28).

    Examples:
        >>> plain(pa.table({"name": ["Orders"], "__index_level_0__": [7]})).to_pylist()
        [{'name': 'Orders'}]
    """
    names = rows.schema.names
    named = [number for number, name in enumerate(names) if not _INDEX.fullmatch(name)]
    return with_plain_bools(rows if len(named) == len(names) else rows.select(named))


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


def without_views(column: Any) -> Any:
    """The array with plain text or bytes in the place of views, in a dictionary too: pyarrow has no kernel that takes rows of them.

    Args:
        column: An array of any type.

    Returns:
        The array; a dictionary stays one.

    Examples:
        >>> without_views(pa.array(["LOCAL"], pa.string_view()).dictionary_encode()).type
        DictionaryType(dictionary<values=string, indices=int32, ordered=0>)
    """
    kind = type_without_views(column.type)
    if kind == column.type:
        return column
    if not pa.types.is_dictionary(kind):
        return column.cast(kind)
    return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(kind.value_type), ordered=kind.ordered)


def table_without_views(table: pa.Table) -> pa.Table:
    """The table with all its columns so; Parquet has no dictionaries of views.

    Examples:
        >>> table_without_views(pa.table({"name": pa.array(["Orders"], pa.string_view())})).schema.types
        [DataType(string)]
    """
    columns = [
        pa.chunked_array(list(map(without_views, column.chunks)), type_without_views(column.type))
        for column in table.columns
    ]
    return pa.Table.from_arrays(
        columns, schema=pa.schema([f.with_type(c.type) for f, c in zip(table.schema, columns, strict=True)])
    )


def type_without_views(kind: Any) -> Any:
    """The type of an array after `without_views`.

    Examples:
        >>> type_without_views(pa.binary_view())
        DataType(binary)
    """
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, type_without_views(kind.value_type), kind.ordered)
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.binary() if pa.types.is_binary_view(kind) else kind


_PARTS: Final = str.maketrans(" -", "__")
"""What parts words in other names."""


def check_meant(names: Collection[str], *, read: Iterable[str]) -> None:
    """No further column is meant for one that is read and missing (K27). The native module checks what reaches it by itself.

    Args:
        names: The columns that there are.
        read: Those that are read where they are there.

    Raises:
        SchemaError: One is called as one that is missing, but for upper and lower case, white space or what parts its words.

    Examples:
        >>> check_meant(["name", "Remote Service Name"], read=["name", "remote_service_name"])
        Traceback (most recent call last):
        ssbroker.exceptions.SchemaError: remote_service_name: expected a column of this very name, found "Remote Service Name"
    """
    written = {name.strip().lower().translate(_PARTS): name for name in names}
    for name in read:
        if name in written and name not in names:
            expected, actual = "a column of this very name", f'"{written[name]}"'
            raise SchemaError(
                f"{name}: expected {expected}, found {actual}", column=name, expected=expected, actual=actual
            )


def columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a table that its schema does not have.

    Examples:
        >>> import pyarrow as pa
        >>> columns(pa.table({"name": ["a"], "note": ["b"]}), pa.schema([("name", pa.string())])).column_names
        ['note']
    """
    return table.select([number for number, name in enumerate(table.schema.names) if name not in schema.names])


def joined(table: pa.Table, further: pa.Table | None) -> pa.Table:
    """Rows with the further columns; rows at the end that the input did not have get nulls.

    Examples:
        >>> import pyarrow as pa
        >>> joined(pa.table({"name": ["a", "msdb"]}), pa.table({"note": ["b"]})).to_pylist()[1]
        {'name': 'msdb', 'note': None}
    """
    if further is None:
        return table
    added = table.num_rows - further.num_rows
    for field, column in zip(further.schema, further.columns, strict=True):
        if added:
            padded = pa.chunked_array([*column.chunks, pa.nulls(added, field.type)], field.type)
            table = table.append_column(field.with_nullable(nullable=True), padded)
        else:
            table = table.append_column(field, column)
    return table
