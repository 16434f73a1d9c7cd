"""Views of text and bytes that pyarrow before 25 cannot hand over: it ends the process where an array of short values has no data."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from ssbroker.exceptions import MalformedDataError

_HANDS_OVER: Final = int(pa.__version__.partition(".")[0]) >= 25  # noqa: PLR2004 - the version is told above
_BEFORE_DATA: Final = 2
"""The buffers of a view that stand before those of its data."""


def check_views(value: Any, *, name: str) -> None:
    """Refuses what could not be handed over.

    Args:
        value: A Table, RecordBatch, Array or ChunkedArray.
        name: What the value is, for messages.

    Raises:
        MalformedDataError: An array of views has no data, and pyarrow is too old for that.

    Examples:
        >>> check_views(pa.array(["LOCAL"]), name="address")
    """
    if _HANDS_OVER:
        return
    is_table = isinstance(value, pa.Table | pa.RecordBatch)
    named = zip(value.schema.names, value.columns, strict=True) if is_table else [(name, value)]
    for column, arrays in named:
        for array in getattr(arrays, "chunks", [arrays]):
            if lacks_data(array):
                raise MalformedDataError(
                    f"{column}: pyarrow {pa.__version__} cannot hand over this array of type {array.type}: cast it to another type of text "
                    "or bytes, or install pyarrow 25 or newer",
                    column=column,
                )


def lacks_data(array: Any) -> bool:
    """Whether an array is one of views, and a buffer of its data is missing.

    Examples:
        >>> lacks_data(pa.array(["LOCAL"], pa.string_view()))
        False
    """
    is_view = pa.types.is_string_view(array.type) or pa.types.is_binary_view(array.type)
    return is_view and any(buffer is None for buffer in array.buffers()[_BEFORE_DATA:])
