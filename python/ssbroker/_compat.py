"""Differences between the supported versions of pyarrow and PySpark, and the minimum version for each feature."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    import pyarrow.parquet as pq


class Minimum(NamedTuple):
    """The first version of a library that a feature works with."""

    library: str
    version: str


MINIMUMS: Final = {
    "ssbroker": Minimum("pyarrow", "14"),  # the first with the Arrow PyCapsule interface
    "ssbroker.spark": Minimum("pyspark", "3.5"),
    "streams": Minimum("pyspark", "4.0"),  # the first with transformWithState, for pandas DataFrames
    "data source": Minimum("pyspark", "4.0"),  # the first with data sources in Python
}
"""The minimum versions by feature. pyproject.toml also contains the minimum version of pyarrow."""


def is_older(version: str, minimum: str) -> bool:
    """Returns whether a version is older than a minimum, which may have fewer components.

    Examples:
        >>> is_older("4.0.1", "4.1"), is_older("4.1.0.dev2", "4.1"), is_older("4.10.0", "4.2")
        (True, False, False)
    """
    minimum_numbers = _numbers(minimum)
    return _numbers(version)[: len(minimum_numbers)] < minimum_numbers


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)
_pa: Final[Any] = pa  # the stubs describe one version
_HAS_VIEWS: Final = hasattr(pa, "string_view")  # pyarrow 16
_LACKS_VIEW_BUFFERS: Final = _HAS_VIEWS and is_older(pa.__version__, "25")
"""Whether casts to views of short values lack a buffer; see `with_exportable_views`."""
_CRASHES_ON_SLICES: Final = is_older(pa.__version__, "17")
"""Whether casts of fixed-size binary read outside a slice; see `cast`."""


def is_bool8(kind: pa.DataType) -> bool:
    """Returns whether a type is the extension type `arrow.bool8`, which pyarrow supports since version 18."""
    return hasattr(pa, "Bool8Type") and isinstance(kind, pa.Bool8Type)


def is_string_view(kind: pa.DataType) -> bool:
    """Returns whether a type is `string_view`, which pyarrow supports since version 16."""
    return _HAS_VIEWS and pa.types.is_string_view(kind)


def is_binary_view(kind: pa.DataType) -> bool:
    """Returns whether a type is `binary_view`, which pyarrow supports since version 16."""
    return _HAS_VIEWS and pa.types.is_binary_view(kind)


@functools.cache
def binary_view() -> pa.DataType:
    """Returns the type `binary_view`; `binary` if pyarrow has no views or cannot create them from buffers."""
    if not _HAS_VIEWS:
        return pa.binary()
    empty = pa.py_buffer(b"")
    try:
        pa.Array.from_buffers(pa.binary_view(), 0, [None, empty, empty])
    except ValueError:
        return pa.binary()
    return pa.binary_view()


def cast(column: Any, kind: pa.DataType) -> Any:
    """Casts an array or a chunked array, including casts that older versions of pyarrow do not support.

    Version 14 has no cast from binary to fixed-size binary. Up to version 16, the cast of a slice of fixed-size binary reads outside of its
    buffer, and can crash the process.

    Examples:
        >>> cast(pa.array([b"ab", b"cd"], pa.binary(2))[1:], pa.binary()).to_pylist()
        [b'cd']
    """
    if not _CRASHES_ON_SLICES or kind == column.type:
        return column.cast(kind)
    if isinstance(column, pa.ChunkedArray):
        return _pa.chunked_array([cast(chunk, kind) for chunk in column.chunks], kind)
    if pa.types.is_fixed_size_binary(column.type):
        return pa.concat_arrays([column]).cast(kind)
    if pa.types.is_fixed_size_binary(kind) and (
        pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    ):
        return pa.array(column.to_pylist(), kind)
    return column.cast(kind)


def importable(value: Any) -> Any:
    """Converts objects that only newer versions of pyarrow can import: a Polars DataFrame, whose text is in views, or a chunked array of structs."""
    if _HAS_VIEWS:
        return value
    if isinstance(value, pa.ChunkedArray) and pa.types.is_struct(value.type):
        return pa.Table.from_batches(map(_pa.RecordBatch.from_struct_array, value.chunks), pa.schema(list(value.type)))
    if type(value).__module__ == "polars.dataframe.frame":
        return value.to_arrow(compat_level=sys.modules["polars"].CompatLevel.oldest())
    return value


def reader_from_stream(value: Any) -> pa.RecordBatchReader:
    """Imports an object with `__arrow_c_stream__` as a reader."""
    if hasattr(pa.RecordBatchReader, "from_stream"):  # pyarrow 15
        return pa.RecordBatchReader.from_stream(value)
    reader: pa.RecordBatchReader = _pa.RecordBatchReader._import_from_c_capsule(value.__arrow_c_stream__())  # noqa: SLF001 - pyarrow 14 has no public method
    return reader


def chunked_array_from_stream(value: Any) -> pa.ChunkedArray[Any]:
    """Imports an object with `__arrow_c_stream__` as a chunked array; a table becomes structs."""
    if hasattr(pa.ChunkedArray, "__arrow_c_stream__"):  # pyarrow 16
        found: pa.ChunkedArray[Any] = _pa.chunked_array(value)
        return found
    try:
        reader = reader_from_stream(value)
    except pa.ArrowInvalid as error:
        if "non-struct" not in str(error):
            raise
        raise pa.ArrowNotImplementedError(
            f"a stream of a single column needs pyarrow 16 or newer, but {pa.__version__} is installed; pass a table, or upgrade pyarrow"
        ) from error
    structs: pa.ChunkedArray[Any] = _pa.chunked_array(
        [batch.to_struct_array() for batch in reader], pa.struct(list(reader.schema))
    )
    return structs


def open_parquet_writer(
    path: Path, schema: pa.Schema, metadata: Mapping[str, str], **settings: Any
) -> pq.ParquetWriter:
    """Opens a Parquet file with key-value metadata."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - it is slow to import, and few programs need it

    if hasattr(pq.ParquetWriter, "add_key_value_metadata"):  # pyarrow 16
        writer = pq.ParquetWriter(path, schema, **settings)
        writer.add_key_value_metadata(dict(metadata))
        return writer
    if metadata:  # older versions write the metadata of the schema, and only if they store the schema
        added = {key.encode(): value.encode() for key, value in metadata.items()}
        schema, settings["store_schema"] = schema.with_metadata({**(schema.metadata or {}), **added}), True
    return pq.ParquetWriter(path, schema, **settings)


def with_exportable_views(rows: _Rows) -> _Rows:
    """Returns the rows with views that can be exported.

    Up to pyarrow 24, a view array made by a cast from short values lacks its data buffer, and exporting it crashes the process.

    Examples:
        >>> rows = pa.table({"text": pa.array(["a", "b"]).cast(pa.string_view())})
        >>> with_exportable_views(rows).equals(rows)
        True
    """
    if not _LACKS_VIEW_BUFFERS or not any(_contains_view(field.type) for field in rows.schema):
        return rows
    columns: list[Any] = [exportable_column(column) for column in rows.columns]
    return type(rows).from_arrays(columns, schema=rows.schema)


def exportable_column(column: Any) -> Any:
    """Returns an array or a chunked array with views that can be exported; see `with_exportable_views`."""
    if not _LACKS_VIEW_BUFFERS or not _contains_view(column.type):
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([whole_views(chunk) for chunk in column.chunks], column.type)
    return whole_views(column)


def whole_views(array: Any) -> Any:
    """Rebuilds an array so that each view array in it, at any depth, has all of its buffers.

    Examples:
        >>> whole_views(pa.array([["a"], None]).cast(pa.list_(pa.string_view()))).to_pylist()
        [['a'], None]
    """
    kind = array.type
    if not _contains_view(kind):
        return array
    if is_string_view(kind) or is_binary_view(kind):
        own, data = array.buffers()[:2], array.buffers()[2:]
        if all(each is not None for each in data):
            return array
        return pa.Array.from_buffers(kind, len(array), own, array.null_count, array.offset)
    if isinstance(kind, pa.BaseExtensionType):
        return _pa.ExtensionArray.from_storage(kind, whole_views(array.storage))
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(array.indices, whole_views(array.dictionary), ordered=kind.ordered)
    if pa.types.is_struct(kind):
        fields = [whole_views(array.field(number)) for number in range(kind.num_fields)]
        return _pa.StructArray.from_arrays(
            fields, fields=list(kind), mask=array.is_null() if array.null_count else None
        )
    if pa.types.is_union(kind):
        fields = [whole_views(array.field(number)) for number in range(kind.num_fields)]
        names = [kind.field(number).name for number in range(kind.num_fields)]
        # In a slice, `type_codes` and `offsets` would belong to the whole array, but the fields are sliced.
        _, codes, *offsets = array.buffers()[: 3 if kind.mode == "dense" else 2]
        sliced = [
            pa.concat_arrays([pa.Array.from_buffers(number, len(array), [None, buffer], 0, array.offset)])
            for number, buffer in zip((pa.int8(), pa.int32()), (codes, *offsets), strict=False)
        ]
        make = _pa.UnionArray.from_dense if offsets else _pa.UnionArray.from_sparse
        return make(*sliced, fields, names, kind.type_codes)
    if pa.types.is_run_end_encoded(kind):
        children, own = [array.run_ends, whole_views(array.values)], 1
    else:
        children, own = [whole_views(array.values)], _list_buffers(kind)
    return _pa.Array.from_buffers(kind, len(array), array.buffers()[:own], array.null_count, array.offset, children)


def _list_buffers(kind: pa.DataType) -> int:
    """Returns how many buffers a list array of this type has, not counting the buffers of its values."""
    if pa.types.is_fixed_size_list(kind):
        return 1
    return 3 if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind) else 2


def _contains_view(kind: Any) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _contains_view(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _contains_view(kind.value_type)
    if is_string_view(kind) or is_binary_view(kind):
        return True
    return any(_contains_view(kind.field(number).type) for number in range(kind.num_fields))
