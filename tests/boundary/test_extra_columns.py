"""Extra columns may have any Arrow type; those of a catalog are kept."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest

from ssbroker import Catalog
from tests.boundary.extra_types import COLUMNS, ROWS, WORDS
from tests.boundary.layouts import Array
from tests.boundary.routed import WORLDS, rows_of
from tests.worlds.universe import NOW


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
    rows = pa.table({"name": WORDS, "address": ["LOCAL"] * ROWS, "extra": column})
    plain = Catalog(rows.drop_columns(["extra"]))
    for routes in (rows, pa.Table.from_batches(rows.to_batches(max_chunksize=7)), rows.slice(0, 0)):
        catalog = Catalog(routes)
        assert catalog.routes["extra"].to_pylist() == routes["extra"].to_pylist()
        assert catalog.routes.schema.field("extra").type == column.type
        copied = pickle.loads(pickle.dumps(catalog))
        assert copied.routes["extra"].to_pylist() == routes["extra"].to_pylist()
    assert Catalog(rows) == plain
