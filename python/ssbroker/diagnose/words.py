"""Columns of text and ids with many equal values: each value once, and where it stands."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute  # its stubs do not know dictionaries


def encoded(column: Any) -> tuple[list[int], list[Any]]:
    """The values of an array without an object for each row.

    Args:
        column: The array, a dictionary or plain.

    Returns:
        The place of each value among the distinct ones, and those; the last of them is None, at place -1.

    Examples:
        >>> encoded(pa.array(["b", None, "a", "b"]))
        ([0, -1, 1, 0], ['b', 'a', None])
    """
    dictionary = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    places = pc.cast(pc.fill_null(dictionary.indices, -1), pa.int32())
    first = places.offset
    numbers = memoryview(places.buffers()[1]).cast("i")[first : first + len(places)].tolist()
    return numbers, [*dictionary.dictionary.to_pylist(), None]


def shared(column: Any) -> list[Any]:
    """The values of an array, equal ones as one object; equal texts are one object in all arrays.

    Examples:
        >>> one, other = shared(pa.array(["//Orders"])), shared(pa.array(["//Orders"]))
        >>> one[0] is other[0]
        True
    """
    numbers, words = encoded(column)
    kept = [sys.intern(word) if isinstance(word, str) else word for word in words]
    return list(map(kept.__getitem__, numbers))
