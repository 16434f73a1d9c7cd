"""Only the pushed rows of extra columns are validated: a table in many pushes is not scanned for each of them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from tests.boundary.layouts import Array, DataType

ROWS = 6
INVALID_ROW = 4
TEXTS = pa.Array.from_buffers(
    pa.string(),
    ROWS,
    pa.array([b"\xff\xfe" if row == INVALID_ROW else b"ok" for row in range(ROWS)], pa.binary()).buffers(),
)
"""One of them is not valid UTF-8."""
ENDS = pa.array(range(ROWS + 1), pa.int32())
ONES = pa.array([1] * ROWS, pa.int32())
ENTRIES = pa.StructArray.from_arrays(
    [TEXTS, TEXTS], fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())]
)
MANY = pa.concat_arrays([TEXTS, pa.array(["ok"] * 10_000)])
"""Enough values that only those referenced by keys are checked."""
KEYS = pa.array(range(ROWS), pa.int8())


def lists(kind: DataType, *numbers: Array, child: Array = TEXTS) -> Array:
    """Returns lists of one text each."""
    return pa.Array.from_buffers(kind, ROWS, [None, *(each.buffers()[1] for each in numbers)], children=[child])


def runs(ends: Array, invalid_run: int) -> Array:
    """Returns texts, each for several rows; pyarrow does not create invalid UTF-8, so one is corrupted afterwards."""
    texts = bytearray(b"ok" * len(ends))
    starts = pa.array(range(0, 2 * len(ends) + 1, 2), pa.int32()).buffers()[1]
    values = pa.Array.from_buffers(pa.string(), len(ends), [None, starts, pa.py_buffer(texts)])
    made: Array = pa.RunEndEncodedArray.from_arrays(ends, values)
    texts[2 * invalid_run : 2 * invalid_run + 2] = b"\xff\xfe"
    return made.slice(0, ROWS)


COLUMNS: dict[str, Array] = {
    "texts": TEXTS,
    "lists": lists(pa.list_(pa.string()), ENDS),
    "large lists": lists(pa.large_list(pa.string()), ENDS.cast(pa.int64())),
    "lists of a fixed size": pa.FixedSizeListArray.from_arrays(TEXTS, 1),
    "structs": pa.StructArray.from_arrays([TEXTS], ["text"]),
    "lists of lists": lists(pa.list_(pa.list_(pa.string())), ENDS, child=lists(pa.list_(pa.string()), ENDS)),
    "lists of structs": lists(
        pa.list_(pa.struct([("text", pa.string())])), ENDS, child=pa.StructArray.from_arrays([TEXTS], ["text"])
    ),
    "maps": lists(pa.map_(pa.string(), pa.string()), ENDS, child=ENTRIES),
    "sparse unions": pa.UnionArray.from_sparse(pa.array([0] * ROWS, pa.int8()), [TEXTS, KEYS]),
    "dense unions": pa.UnionArray.from_dense(
        pa.array([0] * ROWS, pa.int8()), pa.array(range(ROWS), pa.int32()), [TEXTS, KEYS]
    ),
    "dense unions of several types": pa.UnionArray.from_dense(
        pa.array(
            [1, 0, 1, 0, 0, 1],
            pa.int8(),
        ),
        pa.array([5, 3, 4, 0, INVALID_ROW, 2], pa.int32()),
        [TEXTS, KEYS],
    ),
    "runs": runs(ENDS[1:], INVALID_ROW),
    "longer runs": runs(pa.array([2, 4, 5, 9], pa.int16()), 2),
    "a large dictionary": pa.DictionaryArray.from_arrays(KEYS, MANY),
    "a large dictionary in no order": pa.DictionaryArray.from_arrays(pa.array([5, 0, 3, 1, 4, 0], pa.int8()), MANY),
}

if hasattr(pa, "list_view"):  # pyarrow 16
    COLUMNS |= {
        "list views": lists(pa.list_view(pa.string()), ENDS, ONES),
        "large list views": lists(pa.large_list_view(pa.string()), ENDS.cast(pa.int64()), ONES.cast(pa.int64())),
    }


def push(column: Array, start: int, rows: int) -> Any:
    """Pushes a slice of messages with this column, and fragments it."""
    messages: Any = pa.record_batch(
        {
            "conversation_id": [str(number) * 8 + "-0000-0000-0000-000000000000" for number in range(ROWS)],
            "is_initiator": [True] * ROWS,
            "message_sequence_number": [0] * ROWS,
            "fragment_number": pa.array([0] * ROWS, pa.int32()),
            "fragment_count": pa.array([1] * ROWS, pa.int32()),
            "message_body": [b"body"] * ROWS,
            "extra": column,
        }
    )
    return ssbroker.Reassembler().push(messages.slice(start, rows)).messages


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_invalid_values_in_other_rows_are_ignored(column: Array) -> None:
    for start, rows in ((0, INVALID_ROW), (1, 2), (INVALID_ROW + 1, 1), (2, 0)):
        messages = push(column, start, rows)
        assert messages["extra"].to_pylist() == column.slice(start, rows).to_pylist()


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_invalid_values_in_the_pushed_rows_are_rejected(column: Array) -> None:
    for start in range(INVALID_ROW + 1):
        with pytest.raises(ssbroker.MalformedDataError) as caught:
            push(column, start, INVALID_ROW + 1 - start)
        assert caught.value.column == "extra"
