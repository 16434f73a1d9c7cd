"""Conversations in every Arrow layout get the decisions of the reference layout."""

from __future__ import annotations

from typing import Any, get_args

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Router, schemas
from ssbroker.router import TieBreak
from tests.boundary.layouts import (
    BASIC_GUID,
    BASIC_TEXT,
    KEYS,
    SHAPES,
    Array,
    DataType,
    Layout,
    as_dictionary,
    in_every_shape,
    nulls,
    nulls_of,
    relaid,
    replace_with,
    run_end_encoded,
    shifted,
)
from tests.boundary.routed import ROWS, WORLDS, Routed, each_and_all, rows_of
from tests.worlds.universe import NOW

TEXT = ("database", "to_service_name")
GUIDS = ("conversation_id", "to_broker_instance")
NULLABLE = ("database", "to_broker_instance")


def assert_same(world: Routed, layouts: dict[str, Layout], shape: str = "as it is") -> None:
    batch = relaid(world.conversations, layouts)
    assert world.router.route(batch, now=NOW).equals(world.decisions), (list(layouts), shape)


def test_the_worlds_have_every_outcome_and_reason() -> None:
    decisions = pa.Table.from_pylist([row for world in WORLDS for row in rows_of(world.decisions)])
    labels = WORLDS[0].decisions
    outcome: Any = labels["outcome"]
    reason: Any = labels["reason"]
    assert set(decisions["outcome"].to_pylist()) == set(outcome.dictionary.to_pylist())
    assert set(decisions["reason"].to_pylist()) == set(reason.dictionary.to_pylist())
    assert set(decisions["match_step"].to_pylist()) == {None, *range(8)}


@pytest.mark.parametrize("layout", BASIC_TEXT.values(), ids=BASIC_TEXT)
def test_text_in_any_layout_and_shape(layout: Layout) -> None:
    for shape, shaped in in_every_shape(layout).items():
        for world in WORLDS:
            for layouts in each_and_all(TEXT, shaped):
                assert_same(world, layouts, shape)


@pytest.mark.parametrize("layout", BASIC_GUID.values(), ids=BASIC_GUID)
def test_guids_in_any_layout_and_shape(layout: Layout) -> None:
    for shape, shaped in in_every_shape(layout).items():
        for world in WORLDS:
            for layouts in each_and_all(GUIDS, shaped):
                assert_same(world, layouts, shape)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_booleans_in_any_shape(shape: Layout) -> None:
    for world in WORLDS:
        assert_same(world, {"is_initiator": shape})


def test_booleans_sliced_at_every_bit() -> None:
    for places in range(1, 66):
        assert_same(WORLDS[0], {"is_initiator": shifted(places)}, f"shifted by {places}")


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_booleans_in_a_dictionary(key: DataType) -> None:
    for world in WORLDS:
        assert_same(world, {"is_initiator": as_dictionary(key)})


@pytest.mark.parametrize("tie_break", get_args(TieBreak))
def test_the_tie_break_makes_no_difference(tie_break: TieBreak) -> None:
    layouts = {
        "database": in_every_shape(BASIC_TEXT["dictionary uint16 to string_view"])["shifted by 13"],
        "to_service_name": in_every_shape(BASIC_TEXT["string_view"])["unaligned and shifted"],
        "to_broker_instance": in_every_shape(BASIC_GUID["upper case in braces"])["shifted by 67"],
        "conversation_id": in_every_shape(BASIC_GUID["arrow.uuid"])["unaligned and shifted"],
        "is_initiator": SHAPES["unaligned and shifted"],
    }
    for world in WORLDS:
        expected = Router(world.catalog, tie_break=tie_break).route(world.conversations, now=NOW)
        batch = relaid(world.conversations, layouts)
        assert Router(world.catalog, tie_break=tie_break).route(batch, now=NOW).equals(expected)


@pytest.mark.parametrize("start", [0, 1, 7, 63, 64, 65, ROWS])
@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, ROWS])
def test_slices(start: int, length: int) -> None:
    for world in WORLDS:
        conversations: Any = world.conversations
        part = conversations.slice(start, length)
        expected = rows_of(world.decisions)[start : start + length]
        assert rows_of(world.router.route(part, now=NOW)) == expected
        struct = conversations.to_struct_array().slice(start, length)
        assert rows_of(world.router.route(struct, now=NOW)) == expected


def test_a_struct_with_an_all_valid_bitmap() -> None:
    struct = WORLDS[0].conversations.to_struct_array()
    fields = list(WORLDS[0].conversations.schema)
    marked = pa.StructArray.from_arrays(struct.flatten(), fields=fields, mask=pa.array([False] * ROWS))
    assert WORLDS[0].router.route(marked, now=NOW).equals(WORLDS[0].decisions)


@pytest.mark.parametrize("name", NULLABLE)
def test_a_column_of_nulls_may_have_any_type(name: str) -> None:
    layouts = BASIC_TEXT if name == "database" else BASIC_GUID
    kind = schemas.CONVERSATIONS.field(name).type
    for world in WORLDS:
        batch = relaid(world.conversations, {name: nulls_of(kind)})
        expected = world.router.route(batch, now=NOW)
        untyped = relaid(batch, {name: nulls})
        assert world.router.route(untyped, now=NOW).equals(expected)
        for layout in layouts.values():
            assert world.router.route(relaid(batch, {name: layout}), now=NOW).equals(expected)


@pytest.mark.parametrize("name", NULLABLE)
@pytest.mark.parametrize("values", [pa.nulls(0), pa.nulls(1)], ids=["no value", "a null"])
def test_a_dictionary_of_nulls_may_have_any_type(name: str, values: Array) -> None:
    """As pandas exports a categorical without categories."""
    keys = pa.array([0 if len(values) else None] * ROWS, pa.int8())
    for world in WORLDS:
        expected = world.router.route(relaid(world.conversations, {name: nulls}), now=NOW)
        batch = relaid(world.conversations, {name: replace_with(pa.DictionaryArray.from_arrays(keys, values))})
        assert world.router.route(batch, now=NOW).equals(expected)


def test_optional_columns_may_be_omitted() -> None:
    """Without `is_initiator` the sender is the initiator; without a broker id none is named."""
    for world in WORLDS:
        batch = relaid(
            world.conversations,
            {
                "is_initiator": replace_with(pa.array([True] * ROWS)),
                "to_broker_instance": nulls,
            },
        )
        expected = world.router.route(batch, now=NOW)
        bare: Any = batch.select(["to_service_name", "database", "conversation_id"])
        assert world.router.route(bare, now=NOW).equals(expected)
        handles = bare.rename_columns(["to_service_name", "database", "conversation_handle"])
        assert world.router.route(handles, now=NOW).equals(expected)


@pytest.mark.parametrize("name", schemas.CONVERSATIONS.names)
def test_run_end_encoded_columns_are_rejected(name: str) -> None:
    batch = relaid(WORLDS[0].conversations, {name: run_end_encoded})
    with pytest.raises(ssbroker.SchemaError, match=f"^{name}: expected .*, got .*(?i:run).*") as caught:
        WORLDS[0].router.route(batch, now=NOW)
    assert (caught.value.column, bool(caught.value.expected)) == (name, True)
    assert "run" in str(caught.value.actual).lower()
