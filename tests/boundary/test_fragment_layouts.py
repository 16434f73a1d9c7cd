"""Fragments and messages in every Arrow layout give the results of the reference layout."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from tests.boundary.fragmented import EXPECTED, FRAGMENTS, NAMES, RESULT, ROWS, TABLES, tables_of, without_values
from tests.boundary.layouts import (
    BASIC_BINARY,
    BASIC_GUID,
    BASIC_SIGNATURE,
    KEYS,
    NOT_NULL_GUID,
    SHAPES,
    Layout,
    as_dictionary,
    as_type,
    in_every_shape,
    nulls,
    relaid,
    replace_with,
    run_end_encoded,
    shifted,
)
from tests.boundary.routed import each_and_all
from tests.reassembly.signed_messages import messages

SIGNATURES = ("message_signature", "fragment_signature")
INTEGERS = ("message_sequence_number", "fragment_number", "fragment_count")
INTEGER_TYPES = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def assert_same(layouts: dict[str, Layout], why: str) -> None:
    assert tables_of(ssbroker.reassemble(relaid(FRAGMENTS, layouts))) == EXPECTED, why


def test_the_reference_has_every_outcome() -> None:
    reasons: Any = RESULT.rejected["reason"].chunk(0)
    assert set(RESULT.rejected["reason"].to_pylist()) == set(reasons.dictionary.to_pylist()) - {"limit_exceeded"}
    assert all(getattr(RESULT, name).num_rows > 1 for name in TABLES)
    assert FRAGMENTS["message_signature"].null_count > 3
    assert FRAGMENTS["fragment_signature"].null_count > 3
    assert ROWS % 8 != 0


@pytest.mark.parametrize("layout", NOT_NULL_GUID.values(), ids=NOT_NULL_GUID)
def test_ids_in_any_layout_and_shape(layout: Layout) -> None:
    for shape, shaped in in_every_shape(layout).items():
        assert_same({"conversation_id": shaped}, shape)


@pytest.mark.parametrize("layout", BASIC_BINARY.values(), ids=BASIC_BINARY)
def test_bodies_in_any_layout_and_shape(layout: Layout) -> None:
    for shape, shaped in in_every_shape(layout).items():
        assert_same({"message_body": shaped}, shape)


@pytest.mark.parametrize("layout", BASIC_SIGNATURE.values(), ids=BASIC_SIGNATURE)
def test_signatures_in_any_layout_and_shape(layout: Layout) -> None:
    for shape, shaped in in_every_shape(layout).items():
        for layouts in each_and_all(SIGNATURES, shaped):
            assert_same(layouts, shape)


@pytest.mark.parametrize("kind", INTEGER_TYPES, ids=str)
def test_integers_of_any_width_and_shape(kind: Any) -> None:
    for shape, shaped in in_every_shape(as_type(kind)).items():
        for layouts in each_and_all(INTEGERS, shaped):
            assert_same(layouts, shape)


@pytest.mark.parametrize("kind", [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()], ids=str)
def test_unsigned_integers(kind: Any) -> None:
    """Only columns without negative numbers."""
    for layouts in each_and_all(("fragment_number", "fragment_count"), as_type(kind)):
        assert_same(layouts, str(kind))


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_numbers_and_booleans_in_a_dictionary(key: Any) -> None:
    for layouts in each_and_all((*INTEGERS, "is_initiator"), as_dictionary(key)):
        assert_same(layouts, str(key))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_booleans_in_any_shape(shape: Layout) -> None:
    assert_same({"is_initiator": shape}, "")


def test_booleans_sliced_at_every_bit() -> None:
    for places in range(1, 66):
        assert_same({"is_initiator": shifted(places)}, f"shifted by {places}")


def test_every_column_in_another_layout() -> None:
    layouts = {
        "conversation_id": in_every_shape(BASIC_GUID["upper case in braces"])["shifted by 67"],
        "is_initiator": SHAPES["unaligned and shifted"],
        "message_sequence_number": as_dictionary(pa.int8()),
        "fragment_number": in_every_shape(as_type(pa.int64()))["with a bitmap and shifted"],
        "fragment_count": as_dictionary(pa.uint64(), pa.int8()),
        "message_body": in_every_shape(BASIC_BINARY["binary_view"])["unaligned and shifted"],
        "message_signature": in_every_shape(BASIC_SIGNATURE["rubbish keys under nulls"])["shifted by 13"],
        "fragment_signature": in_every_shape(BASIC_SIGNATURE["large_binary"])["unaligned and shifted"],
    }
    assert list(layouts) == NAMES
    assert_same(layouts, "all")


@pytest.mark.parametrize("start", [0, 1, 7, 63, 64, 65, ROWS])
@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, ROWS])
def test_slices(start: int, length: int) -> None:
    fragments: Any = FRAGMENTS
    part = fragments.slice(start, length)
    copied = pa.RecordBatch.from_pylist(part.to_pylist(), schema=part.schema)
    expected = tables_of(ssbroker.reassemble(copied))
    assert tables_of(ssbroker.reassemble(part)) == expected
    assert tables_of(ssbroker.reassemble(fragments.to_struct_array().slice(start, length))) == expected


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_of_nulls_may_have_any_type(name: str) -> None:
    batch = without_values(name)
    expected = tables_of(ssbroker.reassemble(batch))
    for layout in (nulls, *BASIC_SIGNATURE.values()):
        assert tables_of(ssbroker.reassemble(relaid(batch, {name: layout}))) == expected
    left_out = batch.select([column for column in NAMES if column != name])
    assert tables_of(ssbroker.reassemble(left_out)) == expected


@pytest.mark.parametrize("size", [0, 15, 17])
@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_of_another_length_do_not_match(name: str, size: int) -> None:
    """They are valid input; their type may have another length."""
    kinds: tuple[Any, ...] = (pa.binary(), pa.binary(size), pa.binary_view())
    for kind in kinds:
        wrong = replace_with(pa.array([bytes(size)] * ROWS, kind))
        result = ssbroker.reassemble(relaid(FRAGMENTS, {name: wrong}))
        assert result.messages.num_rows == 0
        assert set(result.rejected["reason"].to_pylist()) == {"corrupt_fragment", "out_of_range"}


def test_fixed_size_bodies() -> None:
    bodies = pa.array([b"four", b"size"] * 20, pa.binary(4))
    given = relaid(messages([b"four", b"size"] * 20), {"message_body": replace_with(bodies)})
    for size in (4, 3):
        fragments = ssbroker.fragment(given, max_fragment_bytes=size)
        assert fragments.equals(ssbroker.fragment(messages([b"four", b"size"] * 20), max_fragment_bytes=size))
        if size == 4:
            fixed = fragments.set_column(5, "message_body", bodies)
            assert ssbroker.reassemble(fixed) == ssbroker.reassemble(fragments)


@pytest.mark.parametrize("name", NAMES)
def test_run_end_encoded_columns_are_rejected(name: str) -> None:
    batch = relaid(FRAGMENTS, {name: run_end_encoded})
    with pytest.raises(ssbroker.SchemaError, match=f"^{name}: expected .*, got .*(?i:run).*") as caught:
        ssbroker.reassemble(batch)
    assert (caught.value.column, bool(caught.value.expected)) == (name, True)


@pytest.mark.parametrize("layout", BASIC_BINARY.values(), ids=BASIC_BINARY)
def test_digests_of_any_layout_and_shape(layout: Layout) -> None:
    plain = FRAGMENTS["message_body"]
    expected = ssbroker.md5(plain).to_pylist()
    for shape, shaped in in_every_shape(layout).items():
        assert ssbroker.md5(shaped(plain)).to_pylist() == expected, shape


@pytest.mark.parametrize("layout", BASIC_BINARY.values(), ids=BASIC_BINARY)
def test_messages_in_any_layout_and_shape_are_fragmented(layout: Layout) -> None:
    given = messages([b"Hello, world", b"", b"1234567890"] * 30)
    expected = ssbroker.fragment(given, max_fragment_bytes=5)
    for shape, shaped in in_every_shape(layout).items():
        relaid_batch = relaid(given, {"message_body": shaped})
        assert ssbroker.fragment(relaid_batch, max_fragment_bytes=5).equals(expected), shape
