"""Routing by a join with the decision table in DuckDB gives the decisions of the router."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ssbroker
from ssbroker import schemas
from ssbroker._arrow import guid_text
from ssbroker.router import TieBreak
from tests.docs.markdown import blocks
from tests.guards.repository import ROOT
from tests.oracle.world import Conversation, World
from tests.worlds.arrow import batch_of, catalog_of
from tests.worlds.seeded import seeded_world
from tests.worlds.table_join import BY_NAME, BY_ROW, routed_by_table
from tests.worlds.universe import NOW

WORLDS = 600
CHUNKS = 6
CONVERSATIONS = 40
PAGE = ROOT / "docs" / "how-to" / "decision-table.md"


def assert_agrees(
    world: World,
    conversations: list[Conversation],
    tie_break: TieBreak,
    connection: duckdb.DuckDBPyConnection,
    seen: set[object],
) -> None:
    router, batch = ssbroker.Router(catalog_of(world), tie_break=tie_break), batch_of(conversations)
    for now in (NOW - timedelta(microseconds=1), NOW):
        assert router.decision_table(now=now).schema == schemas.DECISION_TABLE
        found = routed_by_table(connection, router, batch, now=now)
        for decided, expected in zip(found, router.route(batch, now=now).to_pylist(), strict=True):
            if isinstance(decided, dict):
                assert decided == expected, f"{decided}\n{world}"
                seen.add(decided["outcome"])
            else:
                seen.add(decided)


@pytest.mark.rule("R24", "R41", "R7")
@pytest.mark.parametrize("number", range(CHUNKS))
def test_duckdb_routes_with_the_table_as_the_router_does(number: int) -> None:
    connection, seen = duckdb.connect(), set[object]()
    for seed in range(number * WORLDS // CHUNKS, (number + 1) * WORLDS // CHUNKS):
        world, conversations = seeded_world(seed, conversations=CONVERSATIONS)
        tie_break: TieBreak = "hash" if seed % 3 else "first"
        assert_agrees(world, conversations, tie_break, connection, seen)
    assert seen == {"LOCAL", "REMOTE", "FORWARD", "DELAYED", "DROPPED", BY_NAME, BY_ROW}


@pytest.mark.rule("R7", "R41")
@pytest.mark.parametrize("library", ["duckdb", "polars"])
def test_the_queries_of_the_page_decide_as_the_router_or_leave_it_to_the_router(library: str) -> None:
    python = [block.text for block in blocks(PAGE.read_text("utf-8")) if block.language == "python"]
    (recipe,) = (text for text in python if f"import {library}" in text)
    outcomes, replies_left_to_router = set[str](), 0
    for seed in range(25):
        world, conversations = seeded_world(seed, conversations=CONVERSATIONS)
        router, batch = ssbroker.Router(catalog_of(world)), batch_of(conversations)
        expected: Any = router.route(batch, now=NOW)
        waiting = pa.table(batch).append_column("hash", ssbroker.tie_break_hash(batch["conversation_id"]))
        for number, name in enumerate(waiting.column_names):
            if waiting.schema.field(name).type == pa.binary(16):
                waiting = waiting.set_column(number, name, guid_text(waiting[name].combine_chunks()))
        names: dict[str, Any] = {
            "decisions": router.decision_table(now=NOW),
            "pa": pa,
            "ssbroker": ssbroker,
            "waiting": waiting,
        }
        names["table"] = pa.Table.from_batches([names["decisions"]])
        exec(recipe, names)
        if library == "duckdb":
            found = names["connection"].execute(names["query"]).fetchall()
        else:
            destination = names["pl"].coalesce("next_hop_address", "target_database")
            found = names["routed"].sort("row_id").select("row_id", "outcome", "match_step", destination).rows()
        assert [row[0] for row in found] == [*range(1, len(conversations) + 1)]
        for (_, outcome, *rest), decided, asked in zip(found, expected.to_pylist(), conversations, strict=True):
            if outcome is None:
                assert rest == [None, None]
                replies_left_to_router += not asked.is_initiator
            else:
                destination = decided["next_hop_address"] or decided["target_database"]
                assert [outcome, *rest] == [decided["outcome"], decided["match_step"], destination], f"{asked}\n{world}"
                outcomes.add(outcome)
    assert outcomes == {"LOCAL", "REMOTE", "FORWARD", "DELAYED", "DROPPED"}
    assert replies_left_to_router


def test_the_ranges_of_each_kind_of_conversation_cover_all_hashes_once() -> None:
    keys = ["database", "is_reply", "to_service_name", "has_broker_instance", "to_broker_instance"]
    several = 0
    for seed in range(100):
        world, _ = seeded_world(seed, conversations=1)
        rows = ssbroker.Router(catalog_of(world)).decision_table(now=NOW).to_pylist()
        by_kind: dict[tuple[object, ...], list[tuple[int, int]]] = {}
        for row in rows:
            by_kind.setdefault(tuple(row[key] for key in keys), []).append((row["hash_from"], row["hash_to"]))
        for ranges in by_kind.values():
            several += len(ranges) > 1
            assert ranges == sorted(ranges)
            assert (ranges[0][0], ranges[-1][1]) == (-(2**63), 2**63 - 1)
            assert all(one[1] + 1 == other[0] for one, other in pairwise(ranges))
    assert several > 50


def test_a_row_is_valid_until_a_route_that_it_depends_on_expires() -> None:
    """The decisions are the same until just before, and others at that time."""
    changed = 0
    for seed in range(100):
        world, conversations = seeded_world(seed, conversations=20)
        router = ssbroker.Router(catalog_of(world), tie_break="first")
        table = router.decision_table(now=NOW)
        until = pc.min(table["valid_until"]).as_py()
        if until is None:
            continue
        assert until > NOW
        batch = batch_of(conversations)
        before = until - timedelta(microseconds=1)
        assert router.route(batch, now=NOW).equals(router.route(batch, now=before))
        changed += not table.equals(router.decision_table(now=until))
    assert changed > 20


def test_a_router_that_takes_turns_has_no_table() -> None:
    router = ssbroker.Router(catalog_of(World()), tie_break="round_robin")
    with pytest.raises(
        ssbroker.OptionError,
        match="a router with 'round_robin' has no decision table; create the router with 'hash' or 'first'",
    ):
        router.decision_table()


def test_the_hash_is_that_of_spark() -> None:
    """Of ids as text and as bytes, in chunks and with nulls, in any object of one column."""
    ids = ["00000000-0000-0000-0000-000000000000", None, "{FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF}"]
    expected = [-3510225485978208079, None, -8690740447264083704]
    for given in (pa.array(ids), pa.table({"id": ids}), pl.Series(ids), pl.DataFrame({"id": ids})):
        assert ssbroker.tie_break_hash(given).to_pylist() == expected
    as_bytes = pa.chunked_array([pa.array([bytes(16), None], pa.binary(16)), pa.array([b"\xff" * 16], pa.binary(16))])
    assert ssbroker.tie_break_hash(as_bytes).to_pylist() == expected
    with pytest.raises(ssbroker.InvalidGuidError, match="conversation_id, row 2"):
        ssbroker.tie_break_hash(pa.chunked_array([pa.array(ids[:2]), pa.array(["0"])]))


def test_the_type_of_ids_without_chunks_is_checked() -> None:
    assert ssbroker.tie_break_hash(pa.chunked_array([], pa.string())).equals(pa.chunked_array([], pa.int64()))
    with pytest.raises(ssbroker.SchemaError, match="conversation_id: expected a GUID"):
        ssbroker.tie_break_hash(pa.chunked_array([], pa.int32()))
