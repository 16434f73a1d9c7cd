"""What tests call and older versions of pyarrow lack; `tests/__init__.py` imports it in every process of a test.

Only tests may use what is added here. If the package calls it, the error is that of the installed version, so that tests find the call.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.types

import ssbroker._compat  # noqa: F401 - it is to see which features pyarrow has

_pa: Any = pa
_types: Any = pyarrow.types


def _is_package(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in {"ssbroker", "pyspark_ssbroker"}


def _add_method(kind: Any, name: str, method: Callable[..., Any]) -> None:
    """Adds a method to an extension type, unless it has it."""
    if hasattr(kind, name):
        return

    @functools.wraps(method)
    def for_tests(*arguments: Any, **options: Any) -> Any:
        if _is_package(sys._getframe(1)):
            raise AttributeError(f"{kind.__qualname__!r} object has no attribute {name!r}")
        return method(*arguments, **options)

    _replace(kind, name, for_tests)


def _replace(kind: Any, name: str, attribute: Any) -> None:
    """Sets an attribute of an extension type, which refuses `setattr`."""
    gc.get_referents(kind.__dict__)[0][name] = attribute
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _method_of_tables(name: str) -> Callable[..., Any]:
    """Returns a method of tables for batches."""

    def method(batch: Any, *arguments: Any) -> Any:
        changed = getattr(_pa.Table.from_batches([batch]), name)(*arguments)
        for changed_batch in changed.to_batches():
            return changed_batch
        columns = [column.chunk(0) for column in changed.columns]
        return _pa.RecordBatch.from_arrays(columns, schema=changed.schema)

    return method


def _to_struct_array(table: Any) -> Any:
    arrays = [batch.to_struct_array() for batch in table.to_batches()]
    return _pa.chunked_array(arrays, pa.struct(list(table.schema)))


_record_batch: Any = pa.record_batch
_runs: Any = pa.RunEndEncodedArray.from_arrays


@functools.wraps(_record_batch)
def record_batch(data: Any, *arguments: Any, **options: Any) -> Any:
    """Takes a dict of columns too, as pyarrow 15 does."""
    if isinstance(data, Mapping) and not _is_package(sys._getframe(1)):
        return _pa.RecordBatch.from_pydict(dict(data), *arguments, **options)
    return _record_batch(data, *arguments, **options)


def _run_end_encoded(run_ends: Any, values: Any) -> Any:
    """Takes the ends as an array, as pyarrow 15 does."""
    kind = pa.run_end_encoded(run_ends.type, values.type)
    return _runs(run_ends.to_pylist(), values, kind)


class _Uuid(pa.ExtensionType):
    """The extension type `arrow.uuid`."""

    def __init__(self) -> None:
        super().__init__(pa.binary(16), "arrow.uuid")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage: Any, _serialized: bytes) -> _Uuid:
        return cls()


_pa.record_batch = record_batch
for _name in ("add_column", "append_column", "drop_columns", "rename_columns", "set_column"):
    _add_method(pa.RecordBatch, _name, _method_of_tables(_name))
_replace(pa.RunEndEncodedArray, "from_arrays", staticmethod(_run_end_encoded))
_add_method(pa.Table, "to_struct_array", _to_struct_array)
if not hasattr(pa, "string_view"):  # pyarrow 16; tests of views run with plain text and bytes instead
    _pa.string_view, _pa.binary_view = pa.string, pa.binary
    _types.is_string_view = _types.is_binary_view = lambda _kind: False
if not hasattr(pa, "uuid"):  # pyarrow 18
    _pa.uuid = _Uuid
