"""Short values cast to views have no data buffer: pyarrow up to 24 crashes when it exports them, at any nesting depth."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import ssbroker

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
