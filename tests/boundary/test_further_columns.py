"""Columns that routing does not read may have any type that Arrow has; those of a catalog are carried."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from ssbroker import Catalog
from tests.boundary.layouts import Array, DataType
from tests.boundary.routed import ROWS, WORLDS, rows_of
from tests.worlds.universe import NOW

LISTS: DataType = pa.list_(pa.int8())
NULLS: list[DataType] = [
    pa.null(),
    pa.bool_(),
    pa.int8(),
    pa.uint64(),
    pa.float16(),
    pa.float64(),
    pa.time32("s"),
    pa.time64("ns"),
    pa.timestamp("ns", "Europe/Berlin"),
    pa.timestamp("us", "Nowhere/Nowhere"),
    pa.date32(),
    pa.date64(),
    pa.duration("ms"),
    pa.month_day_nano_interval(),
    pa.binary(),
    pa.binary(5),
    pa.large_string(),
    pa.binary_view(),
    pa.decimal32(5, 2),
    pa.decimal64(10, 2),
    pa.decimal128(20, -2),
    pa.decimal256(50, 2),
    pa.list_(pa.int8()),
    pa.list_(pa.int8(), 2),
    pa.list_(pa.int8(), 0),
    pa.large_list(pa.string()),
    pa.list_view(pa.int8()),
    pa.large_list_view(pa.string()),
    pa.map_(pa.string(), pa.int8()),
    pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string_view()))]),
    pa.struct([]),
    pa.dictionary(pa.uint64(), LISTS),
    pa.uuid(),
    pa.json_(),
    pa.bool8(),
    pa.fixed_shape_tensor(pa.int8(), [2]),
    pa.opaque(pa.int8(), "kind", "vendor"),
]
NUMBERS = pa.array(range(ROWS), pa.int8())
WORDS = pa.array([f"word {row}" for row in range(ROWS)])
COLUMNS: dict[str, Array] = {
    **{f"nulls of {kind}": pa.nulls(ROWS, kind) for kind in NULLS},
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([7, ROWS], pa.int32()), pa.array(["a", None])),
    "dense union": pa.UnionArray.from_dense(
        pa.array([0] * ROWS, pa.int8()), pa.array(range(ROWS), pa.int32()), [NUMBERS, WORDS]
    ),
    "sparse union": pa.UnionArray.from_sparse(pa.array([0, 1] * (ROWS // 2), pa.int8()), [NUMBERS, WORDS]),
    "lists": pa.array([[row] * (row % 3) for row in range(ROWS)]),
    "a dictionary with null keys": pa.array(["a", None, "b", "a"] * (ROWS // 4)).dictionary_encode(),
    "structs that are null": pa.array([{"a": 1}, None] * (ROWS // 2)),
}


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_conversations_with_a_column_of_any_type(column: Array) -> None:
    world = WORLDS[0]
    batch: Any = world.conversations.append_column("message_body", column)
    assert world.router.route(batch, now=NOW).equals(world.decisions)
    table = pa.Table.from_batches([batch.slice(0, 7), batch.slice(7, 0), batch.slice(7)])
    assert rows_of(world.router.route(table, now=NOW)) == rows_of(world.decisions)


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_no_conversations_with_a_column_of_any_type(column: Array) -> None:
    world = WORLDS[0]
    batch: Any = world.conversations.append_column("message_body", column)
    assert world.router.route(batch.slice(3, 0), now=NOW).num_rows == 0
    for empty in (pa.Table.from_batches([batch.slice(3, 0)]), pa.Table.from_batches([], schema=batch.schema)):
        assert world.router.route(empty, now=NOW).num_rows == 0


@pytest.mark.parametrize("column", COLUMNS.values(), ids=COLUMNS)
def test_a_catalog_with_a_column_of_any_type(column: Array) -> None:
    rows = pa.table({"name": WORDS, "address": ["LOCAL"] * ROWS, "further": column})
    plain = Catalog(rows.drop_columns(["further"]))
    for routes in (rows, pa.Table.from_batches(rows.to_batches(max_chunksize=7)), rows.slice(0, 0)):
        catalog = Catalog(routes)
        assert catalog.routes["further"].to_pylist() == routes["further"].to_pylist()
        assert catalog.routes.schema.field("further").type == column.type
        copied = pickle.loads(pickle.dumps(catalog))
        assert copied.routes["further"].to_pylist() == routes["further"].to_pylist()
    assert Catalog(rows) == plain
