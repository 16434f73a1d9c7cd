"""pyarrow columns from numpy arrays. They are typed as `Any`, because the stubs of pyarrow type columns by their values."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Column: TypeAlias = Any
"""A pyarrow array or chunked array."""


def column(values: npt.NDArray[Any], *, null: npt.NDArray[np.bool_] | None = None) -> Column:
    """Wraps or copies numbers or booleans; null where `null` is true."""
    return pa.array(values, mask=null)


def buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    """Wraps the bytes of an array; copies them unless it is contiguous."""
    contiguous: Any = np.ascontiguousarray(values)
    return pa.py_buffer(contiguous)


def bitmap(valid: npt.NDArray[np.bool_]) -> pa.Buffer:
    """Returns an Arrow validity bitmap."""
    return buffer(np.packbits(valid, bitorder="little"))


def strings(
    text: npt.NDArray[np.uint8], ends: npt.NDArray[Any], *, valid: npt.NDArray[np.bool_] | None = None
) -> Column:
    """Wraps UTF-8 bytes as a column of strings that end at `ends`."""
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    buffers = [None if valid is None else bitmap(valid), buffer(offsets), buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(ends), buffers)


def fixed(values: npt.NDArray[Any], *, valid: npt.NDArray[np.bool_] | None = None) -> Column:
    """Wraps rows of 16 bytes as a column of 16-byte values; null where not `valid`."""
    buffers = [None if valid is None else bitmap(valid), buffer(values)]
    return pa.Array.from_buffers(pa.binary(16), len(values), buffers)


def halves(ids: Column) -> npt.NDArray[np.uint64]:
    """Views a chunk of 16-byte values as two numbers each; they are arbitrary for nulls."""
    return np.frombuffer(ids.buffers()[1], np.uint64).reshape(-1, 2)[ids.offset : ids.offset + len(ids)]
