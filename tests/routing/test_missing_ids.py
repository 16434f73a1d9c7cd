"""Without conversation ids, conversations are routed unless one has several equal candidates."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Catalog, Router
from tests.routing.conversations import CATALOG, IDS, NOW, conversations, routes
from tests.worlds.arrow import batch_of, catalog_of
from tests.worlds.seeded import seeded_world
from tests.worlds.universe import NOW as WORLD_NOW


def without_ids(batch: pa.RecordBatch) -> Any:
    return batch.drop_columns(["conversation_id"])


def test_conversations_with_one_candidate_each_are_routed() -> None:
    batch = conversations(["//Mirrored", "//Late", "//Sales", "//Nobody"] * 25)
    expected = Router(CATALOG).route(batch, now=NOW)
    assert Router(CATALOG).route(without_ids(batch), now=NOW).equals(expected)
    assert Router(CATALOG).route(without_ids(batch).to_pylist(), now=NOW).to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("row", [0, 1, 63, 64, 99])
def test_the_error_names_the_first_row_with_several_candidates_and_both_remedies(row: int) -> None:
    names = ["//Mirrored"] * row + ["//Orders"] * (100 - row)
    batch = without_ids(conversations(names))
    with pytest.raises(ssbroker.SchemaError) as caught:
        Router(CATALOG).route(batch, now=NOW)
    assert str(caught.value) == (
        'conversation_id: the column is missing; expected a conversation id for each row, or a router with tie_break="first", '
        f"because row {row} has several equal candidates; "
        'the input has the columns "database", "to_service_name", "to_broker_instance"'
    )
    assert Router(CATALOG, tie_break="first").route(batch, now=NOW)["route_id"][row].as_py() == 65536
    ids = pa.array(IDS[:100], pa.binary(16))
    assert Router(CATALOG).route(batch.append_column("conversation_id", ids), now=NOW).num_rows == 100


def test_rows_are_counted_over_all_batches() -> None:
    parts = [without_ids(conversations(["//Mirrored"] * 7)), without_ids(conversations(["//Late", "//Orders"]))]
    with pytest.raises(ssbroker.SchemaError, match="because row 8 has"):
        Router(CATALOG).route(pa.Table.from_batches(parts), now=NOW)


def test_an_error_is_raised_for_the_same_conversations_as_explanations_have_ties() -> None:
    """In hundreds of small worlds of edge cases."""
    tied = untied = 0
    for seed in range(150):
        world, conversations_ = seeded_world(seed, conversations=20)
        router = Router(catalog_of(world))
        first = Router(catalog_of(world), tie_break="first")
        batch = batch_of(conversations_)
        bare = without_ids(batch)
        for row, conversation in enumerate(conversations_):
            explanation = router.explain(
                conversation.to_service_name,
                to_broker_instance=conversation.to_broker_instance,
                database=conversation.database,
                is_initiator=conversation.is_initiator,
                now=WORLD_NOW,
            )
            one = bare.slice(row, 1)
            if explanation.to_dict()["picks_undetermined"]:
                tied += 1
                with pytest.raises(ssbroker.SchemaError, match="several equal candidates"):
                    router.route(one, now=WORLD_NOW)
            else:
                untied += 1
                assert router.route(one, now=WORLD_NOW).equals(first.route(one, now=WORLD_NOW)), (seed, row)
                assert router.route(one, now=WORLD_NOW).equals(router.route(batch.slice(row, 1), now=WORLD_NOW))
    assert tied > 50
    assert untied > 1000


def test_conversations_that_are_decided_one_by_one_are_not_explained() -> None:
    """Explaining each of these conversations, whose name contains an address, would take minutes."""
    names = ["//Mirrored", *(f"host{number}:4022/x" for number in range(20_000))]
    others = [
        {"name": name, "address": "TCP://a:4022", "remote_service_name": f"//{name}"}
        for name in map(str, range(20_000))
    ]
    router = Router(Catalog(routes({"name": "Any", "address": "TRANSPORT"}, *others), CATALOG.databases))
    batch = pa.record_batch({"database": ["Sales"] * len(names), "to_service_name": names})
    expected = [f"TCP://{name.partition('/')[0]}" for name in names]
    assert router.route(batch.slice(1), now=NOW)["next_hop_address"].to_pylist() == expected[1:]


def test_an_empty_batch_needs_no_ids() -> None:
    assert Router(CATALOG).route(without_ids(conversations([])), now=NOW).num_rows == 0
    assert Router(Catalog(CATALOG.routes)).route(without_ids(conversations([])), now=NOW).num_rows == 0
