"""Plug-in for the tests on old versions of pyarrow (`-p tests.compat.older_pyarrow`): what the tests themselves call and these lack.

The package is imported first, so that it sees pyarrow as it is.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types

import ssbroker  # noqa: F401 - it is to see which features there are

_pa: Any = pa
_types: Any = pyarrow.types
_record_batch: Any = pa.record_batch


def record_batch(data: Any, *arguments: Any, **options: Any) -> Any:
    """Takes a dict of columns too, as pyarrow 15 does."""
    if isinstance(data, dict):
        return _pa.RecordBatch.from_pydict(data, *arguments, **options)
    return _record_batch(data, *arguments, **options)


_pa.record_batch = record_batch
if not hasattr(pa, "string_view"):  # pyarrow 16; tests of views run with plain text and bytes instead
    _pa.string_view, _pa.binary_view = pa.string, pa.binary
    _types.is_string_view = _types.is_binary_view = lambda _kind: False


class _Uuid(pa.ExtensionType):
    """The extension type `arrow.uuid`."""

    def __init__(self) -> None:
        super().__init__(pa.binary(16), "arrow.uuid")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage: Any, _serialized: bytes) -> _Uuid:
        return cls()


if not hasattr(pa, "uuid"):  # pyarrow 18
    _pa.uuid = _Uuid
