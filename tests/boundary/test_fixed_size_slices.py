"""Slices of fixed-size binary: pyarrow up to 16 crashes when it casts one, and 14 cannot cast to it."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker._arrow import guid_text
from ssbroker._compat import cast
from ssbroker.protocol.arrow_columns import column_values

IDS = [bytes([number]) * 16 for number in range(250)]
WHOLE: Any = pa.array(IDS, pa.binary(16))
SLICES = [(0, 250), (8, 70), (67, 70), (131, 119)]


@pytest.mark.parametrize(("start", "length"), SLICES)
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_slices_are_cast(start: int, length: int, kind: pa.DataType) -> None:
    expected = IDS[start : start + length]
    for _ in range(50):  # a wrong read does not always crash
        found = cast(WHOLE.slice(start, length), kind)
        found.validate(full=True)
        assert found.to_pylist() == expected
    chunks = pa.chunked_array([WHOLE.slice(start, 30), WHOLE.slice(start + 30, length - 30)])
    assert cast(chunks, kind).to_pylist() == expected
    assert cast(cast(chunks, kind), WHOLE.type).equals(chunks)


@pytest.mark.parametrize("kind", [pa.binary(16), pa.binary(), pa.large_binary()], ids=str)
def test_ids_are_written_as_text_whatever_their_type(kind: pa.DataType) -> None:
    ids: Any = pa.array([None, *IDS], kind)
    for _ in range(50):
        assert guid_text(ids[131:]).to_pylist() == [str(uuid.UUID(bytes=each)) for each in IDS[130:]]
    assert guid_text(ids[:1]).to_pylist() == [None]


def test_the_values_of_a_slice_are_listed() -> None:
    for _ in range(50):
        assert column_values(pa.chunked_array([WHOLE.slice(131)])) == IDS[131:]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_a_chunked_array_of_structs_is_a_table(kind: pa.DataType) -> None:
    rows = pa.table({"name": pa.array(["Orders"], kind), "address": ["TCP://orders:4022"]})
    structs = pa.chunked_array([rows.to_batches()[0].to_struct_array()] * 2)
    assert ssbroker.Catalog(structs).routes["name"].to_pylist() == ["Orders"] * 2
