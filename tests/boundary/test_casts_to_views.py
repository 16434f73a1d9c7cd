"""Short values cast to views have no data buffer: pyarrow up to 24 crashes when it exports them, at any nesting depth."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker._arrow import null_where
from ssbroker._compat import whole_views

SHORT: Any = pa.array(["a", "b"]).cast(pa.string_view())
NESTED: dict[str, Any] = {
    "alone": SHORT,
    "dictionary": pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), SHORT),
    "struct": pa.StructArray.from_arrays([SHORT], ["text"]),
    "list": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), SHORT),
}


@pytest.mark.parametrize("extra", NESTED.values(), ids=NESTED)
def test_short_values_cast_to_views_are_kept(extra: pa.Array[Any]) -> None:
    messages = pa.table(
        {
            "conversation_id": pa.array([bytes(16)] * 2),
            "is_initiator": pa.array([True] * 2),
            "message_sequence_number": pa.array([0, 1]),
            "message_body": SHORT.cast(pa.binary()).cast(pa.binary_view()),
            "extra": extra,
        }
    )
    fragments = ssbroker.fragment(messages, max_fragment_bytes=1)
    assert fragments["extra"].to_pylist() == extra.to_pylist()
    assert fragments["message_body"].to_pylist() == [b"a", b"b"]


LAYOUTS: dict[str, pa.Array[Any]] = {
    **NESTED,
    "nulls": pa.array(["a", None, "longer than twelve bytes"]).cast(pa.string_view()),
    "binary": pa.array([b"a", None]).cast(pa.binary_view()),
    "null structs": pa.array([{"a": "x", "b": ["y"]}, None]).cast(
        pa.struct([("a", pa.string_view()), ("b", pa.list_(pa.string_view()))])
    ),
    "map": pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string())).cast(
        pa.map_(pa.string_view(), pa.string_view())
    ),
    "fixed list": pa.array([["a", "b"], None], pa.list_(pa.string(), 2)).cast(pa.list_(pa.string_view(), 2)),
    "large list": pa.array([["a"], None], pa.large_list(pa.string())).cast(pa.large_list(pa.string_view())),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), SHORT),
    "sparse union": pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [SHORT, pa.array([1, 2])]),
    "dense union": pa.UnionArray.from_dense(
        pa.array([0, 1], pa.int8()), pa.array([1, 0], pa.int32()), [SHORT, pa.array([1, 2])]
    ),
}


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("array", LAYOUTS.values(), ids=LAYOUTS)
def test_a_rebuilt_view_has_the_same_values_and_can_be_exported(array: pa.Array[Any], start: int) -> None:
    """Whatever pyarrow is installed: it rebuilds only below 25, where the export would crash."""
    rebuilt = whole_views(array[start:])
    rebuilt.validate(full=True)
    assert rebuilt.type == array.type
    assert rebuilt.to_pylist() == array[start:].to_pylist()
    rebuilt.__arrow_c_array__()


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
def test_nulls_in_a_slice_of_text_leave_the_other_values(kind: pa.DataType) -> None:
    values: Any = pa.array([f"value {number}" for number in range(100)]).cast(kind)
    for start in range(0, 60, 7):
        part = values[start : start + 30]
        mask = pa.array([number % 3 == 0 for number in range(30)])
        expected = [None if number % 3 == 0 else value for number, value in enumerate(part.to_pylist())]
        assert null_where(mask, part).to_pylist() == expected
