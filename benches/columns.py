"""pyarrow columns from numpy arrays. The stubs of pyarrow type a column by what is in it; here that is said by names and docstrings."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Column: TypeAlias = Any
"""A pyarrow array, chunked or not."""


def column(values: npt.NDArray[Any], *, null: npt.NDArray[np.bool_] | None = None) -> Column:
    """Wrap or copy numbers or flags, null where `null` says so."""
    return pa.array(values, mask=null)


def buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    """Wrap the bytes of an array, which must be contiguous to spare the copy."""
    contiguous: Any = np.ascontiguousarray(values)
    return pa.py_buffer(contiguous)


def bitmap(valid: npt.NDArray[np.bool_]) -> pa.Buffer:
    """Write the bits of an Arrow validity map."""
    return buffer(np.packbits(valid, bitorder="little"))


def strings(
    text: npt.NDArray[np.uint8], ends: npt.NDArray[Any], *, valid: npt.NDArray[np.bool_] | None = None
) -> Column:
    """Wrap bytes of UTF-8 as a column of strings that end at `ends`."""
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    buffers = [None if valid is None else bitmap(valid), buffer(offsets), buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(ends), buffers)


def fixed(values: npt.NDArray[Any], *, valid: npt.NDArray[np.bool_] | None = None) -> Column:
    """Wrap rows of 16 bytes as a column of 16-byte values, null where not `valid`."""
    buffers = [None if valid is None else bitmap(valid), buffer(values)]
    return pa.Array.from_buffers(pa.binary(16), len(values), buffers)


def halves(ids: Column) -> npt.NDArray[np.uint64]:
    """View a chunk of 16-byte values as two numbers each; where they are null these are arbitrary."""
    return np.frombuffer(ids.buffers()[1], np.uint64).reshape(-1, 2)[ids.offset : ids.offset + len(ids)]
