"""Decisions do not depend on how conversations are split into batches, including empty ones."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pytest

from ssbroker import Catalog, Router, schemas
from tests.boundary.layouts import BASIC_GUID, BASIC_TEXT, Layout, as_dictionary, relaid, shifted
from tests.boundary.routed import ROWS, WORLDS, rows_of
from tests.worlds.universe import NOW

CUTS = {
    "one batch": (ROWS,),
    "odd": (0, 1, 0, 7, 64, 48),
    "single rows": (1,) * ROWS,
    "empty at the end": (ROWS, 0, 0),
}
ROUTER = Router(Catalog(schemas.ROUTES.empty_table()))


def cut(rows: Any, sizes: Sequence[int]) -> list[Any]:
    assert sum(sizes) == ROWS
    starts = accumulate(sizes, initial=0)
    return [rows.slice(start, size) for start, size in zip(starts, sizes, strict=False)]


@pytest.mark.parametrize("sizes", CUTS.values(), ids=CUTS)
def test_a_table_or_stream_in_any_batches(sizes: Sequence[int]) -> None:
    for world in WORLDS:
        parts = cut(world.conversations, sizes)
        table = pa.Table.from_batches(parts)
        reader = pa.RecordBatchReader.from_batches(world.conversations.schema, iter(parts))
        for conversations in (table, reader):
            decisions = world.router.route(conversations, now=NOW)
            assert isinstance(decisions, pa.Table)
            assert decisions.schema.equals(schemas.DECISIONS)
            assert rows_of(decisions) == rows_of(world.decisions)


def test_columns_with_different_chunks() -> None:
    for world in WORLDS:
        columns: dict[str, Any] = {}
        for column, sizes in zip(schemas.CONVERSATIONS.names, [*CUTS.values(), (60, 60)], strict=True):
            columns[column] = pa.chunked_array(cut(world.conversations[column], sizes))
        assert rows_of(world.router.route(pa.table(columns), now=NOW)) == rows_of(world.decisions)


def test_chunks_with_their_own_dictionaries() -> None:
    sizes = CUTS["odd"]
    for world in WORLDS:
        columns: dict[str, Any] = {"is_initiator": world.conversations["is_initiator"]}
        for name in ("database", "to_service_name", "conversation_id", "to_broker_instance"):
            chunks = [as_dictionary(pa.int8())(part) for part in cut(world.conversations[name], sizes)]
            columns[name] = pa.chunked_array(chunks)
        assert rows_of(world.router.route(pa.table(columns), now=NOW)) == rows_of(world.decisions)


def test_round_robin_continues_from_batch_to_batch() -> None:
    for world in WORLDS:
        whole = Router(world.catalog, tie_break="round_robin").route(world.conversations, now=NOW)
        table = pa.Table.from_batches(cut(world.conversations, CUTS["odd"]))
        assert rows_of(Router(world.catalog, tie_break="round_robin").route(table, now=NOW)) == rows_of(whole)


@pytest.mark.parametrize(
    "layout",
    [
        *((name, layout) for name in ("database", "to_service_name") for layout in BASIC_TEXT.values()),
        *((name, layout) for name in ("conversation_id", "to_broker_instance") for layout in BASIC_GUID.values()),
        ("is_initiator", shifted(3)),
    ],
    ids=[
        *(f"{name} {layout}" for name in ("database", "to_service_name") for layout in BASIC_TEXT),
        *(f"{name} {layout}" for name in ("conversation_id", "to_broker_instance") for layout in BASIC_GUID),
        "is_initiator shifted",
    ],
)
def test_empty_batches_in_any_layout(layout: tuple[str, Layout]) -> None:
    conversations: Any = WORLDS[0].conversations
    name, relay = layout
    for batch in (relaid(conversations, {name: relay}).slice(5, 0), relaid(conversations.slice(5, 0), {name: relay})):
        decided = WORLDS[0].router.route(batch, now=NOW)
        assert isinstance(decided, pa.RecordBatch)
        assert (decided.num_rows, decided.schema) == (0, schemas.DECISIONS)
        table = WORLDS[0].router.route(pa.Table.from_batches([batch, batch]), now=NOW)
        assert (table.num_rows, table.schema) == (0, schemas.DECISIONS)


EMPTY = schemas.CONVERSATIONS.empty_table()


@pytest.mark.parametrize(
    "conversations",
    [
        EMPTY,
        pa.Table.from_batches([], schema=schemas.CONVERSATIONS),
        pa.table({field.name: pa.chunked_array([], field.type) for field in schemas.CONVERSATIONS}),
        pa.RecordBatchReader.from_batches(schemas.CONVERSATIONS, iter([])),
        pa.table({name: [] for name in schemas.CONVERSATIONS.names if name != "is_initiator"}),
    ],
    ids=["empty", "no batches", "no chunks", "a stream without batches", "columns without a type"],
)
def test_no_batches(conversations: Any) -> None:
    decisions = ROUTER.route(conversations, now=NOW)
    assert isinstance(decisions, pa.Table)
    assert (decisions.num_rows, decisions.schema) == (0, schemas.DECISIONS)


def test_empty_boolean_columns_of_null_type() -> None:
    """As from an empty list of objects, or a CSV file without rows."""
    untyped = pa.table({name: [] for name in schemas.CONVERSATIONS.names})
    assert ROUTER.route(untyped, now=NOW).num_rows == 0
