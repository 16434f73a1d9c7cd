"""Decisions packed in one number equal those in columns."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from ssbroker import Catalog, Router
from ssbroker._arguments import epoch_microseconds
from ssbroker.router import TieBreak
from tests.worlds.arrow import batch_of, catalog_of
from tests.worlds.numbered import hosts, numbered, rerouted
from tests.worlds.seeded import seeded_world
from tests.worlds.universe import NOW

WORLDS = 300


def unpacked(router: Router, packed: pa.RecordBatch, decisions: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Returns the decisions of the numbers, with labels from the dictionaries of the columns."""
    addresses, databases = router.catalog.native.destinations() or ([], [])
    places = [None, *addresses, *databases]
    outcomes, reasons = (decisions[name].dictionary.to_pylist() for name in ("outcome", "reason"))  # type: ignore[attr-defined]
    numbers: list[Any] = packed["decision_number"].to_pylist()
    for number, broker in zip(numbers, packed["broker_instance"].to_pylist(), strict=True):
        place = number >> 11 & 0xFFFFF
        yield {
            "outcome": outcomes[number >> 8 & 7],
            "match_step": None if number & 15 == 15 else number & 15,
            "route_id": None if number >> 31 & 1 else number >> 32,
            "next_hop_address": places[place] if place <= len(addresses) else None,
            "mirror_address": None,
            "target_database": places[place] if place > len(addresses) else None,
            "broker_instance": broker,
            "reason": reasons[number >> 4 & 15],
        }


@pytest.mark.parametrize("first", range(0, WORLDS, 100))
def test_numbers_equal_columns(first: int) -> None:
    seen = set()
    for seed in range(first, first + 100):
        world, conversations = seeded_world(seed, conversations=90)
        tie_break: TieBreak = ("hash", "first", "round_robin")[seed % 3]
        catalog = numbered(catalog_of(world))
        batch = batch_of(conversations)
        expected = Router(catalog, tie_break=tie_break).route(batch, now=NOW)
        router = Router(catalog, tie_break=tie_break)
        packed = router.native.route_packed(batch, epoch_microseconds(NOW), True)
        assert packed is not None
        assert list(unpacked(router, packed, expected)) == expected.to_pylist(), seed
        seen |= {(row["outcome"], row["reason"]) for row in expected.to_pylist()}
        short = Router(catalog, tie_break=tie_break).native.route_packed(batch, epoch_microseconds(NOW), False)
        assert short is not None
        assert short["decision_number"] == packed["decision_number"]
        named = batch["to_broker_instance"].to_pylist()
        whole = [known or bound for known, bound in zip(named, short["broker_instance"].to_pylist(), strict=True)]
        assert whole == expected["broker_instance"].to_pylist(), seed
        assert not any(
            known and bound for known, bound in zip(named, short["broker_instance"].to_pylist(), strict=True)
        )
    assert len(seen) > 8


def test_places_are_the_same_in_other_processes() -> None:
    for seed in range(30):
        world, _ = seeded_world(seed, conversations=1)
        catalog = numbered(catalog_of(world))
        places = catalog.native.destinations()
        assert places is not None
        assert places == pickle.loads(pickle.dumps(catalog)).native.destinations()
        shuffled = catalog.routes.take(pa.array(range(catalog.routes.num_rows - 1, -1, -1)))
        assert rerouted(catalog, shuffled).native.destinations() == places


@pytest.mark.parametrize("column", ["address", "mirror_address"])
def test_there_are_no_numbers_if_a_next_hop_has_no_place(column: str) -> None:
    row = {"name": "r", "remote_service_name": "//s", "broker_instance": None, "lifetime": None, "address": "TCP://a"}
    changed = {"mirror_address": None, column: "TRANSPORT" if column == "address" else "TCP://b"}
    catalog = Catalog(pa.Table.from_pylist([{**row, **changed}]))
    batch = pa.record_batch({"to_service_name": ["//s"], "to_broker_instance": pa.nulls(1)})
    assert catalog.native.destinations() is None
    assert Router(catalog, tie_break="first").native.route_packed(batch, 0, True) is None


def test_there_are_no_numbers_for_too_many_places() -> None:
    beside = 4  # LOCAL, TRANSPORT and two databases
    assert hosts((1 << 16) - beside).native.destinations() is not None
    assert hosts((1 << 16) - beside + 1).native.destinations() is None
