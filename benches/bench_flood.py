"""Names and ids that were chosen to collide, compared with random ones: building the index, lookups that hit, and lookups that miss."""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import pyarrow as pa
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benches import flood, workload
from benches.columns import column, fixed
from benches.race import ReplayClock, Times, race
from benches.settings import SIZE, report
from benches.workload import Bytes
from ssbroker import Catalog, Router

CLOCK: Final = ReplayClock()
pytestmark = [pytest.mark.benchmark(timer=CLOCK), pytest.mark.timeout(3600)]

NAMES: Final = flood.name_families(SIZE.flood)
GUIDS: Final = flood.guid_families(SIZE.flood)
LOOKUPS: Final = 10
"""The number of lookups of each key."""


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize("task", ["build", "find", "miss"])
def test_names(benchmark: BenchmarkFixture, task: str, family: str) -> None:
    benchmark.group = f"flood of names: {task}"
    CLOCK.replay(benchmark, _times("names")[task][family])


@pytest.mark.parametrize("family", GUIDS)
@pytest.mark.parametrize("task", ["build", "find", "miss"])
def test_broker_ids(benchmark: BenchmarkFixture, task: str, family: str) -> None:
    benchmark.group = f"flood of broker ids: {task}"
    CLOCK.replay(benchmark, _times("broker ids")[task][family])


def test_unkeyed_hashes_are_defeated() -> None:
    """Shows that the attack works: with such a hash function, one lookup compares half of all keys."""
    heading = f"Keys compared by one lookup among {SIZE.flood:,}, with unkeyed hash functions"
    for hash_of, families, crafted in (
        (flood.fnv1a, NAMES, "equal by FNV-1a"),
        (flood.polynomial, NAMES, "equal by 31 * h + byte"),
        (flood.fxhash, GUIDS, "equal by FxHash"),
    ):
        random, chosen = (flood.chain_compares(hash_of(families[name])) for name in (flood.RANDOM, crafted))
        assert random < 2
        assert chosen > SIZE.flood / 2
        report(heading, f"{hash_of.__name__:<12} random {random:.2f}, chosen {chosen:,.0f}")


@functools.cache
def _times(kind: str) -> dict[str, dict[str, Times]]:
    families = NAMES if kind == "names" else GUIDS
    tables = {family: _routes(kind, keys) for family, keys in families.items()}
    inputs = {family: _conversations(table) for family, table in tables.items()}
    routers = {family: _router(table) for family, table in tables.items()}
    others = (flood.name_families if kind == "names" else flood.guid_families)(SIZE.flood, seed=2)[flood.RANDOM]
    other_router = _router(_routes(kind, others))
    find = {family: functools.partial(routers[family].route, inputs[family], now=workload.NOW) for family in families}
    miss = {family: functools.partial(other_router.route, inputs[family], now=workload.NOW) for family in families}
    for family in families:
        assert set(find[family]()["reason"].unique().to_pylist()) == {"matched"}
        assert set(miss[family]()["reason"].unique().to_pylist()) == {"no_route"}
    build = {family: functools.partial(_router, table) for family, table in tables.items()}
    times = {
        task: race(lanes, rounds=2 * SIZE.rounds) for task, lanes in (("build", build), ("find", find), ("miss", miss))
    }
    for task, lanes in times.items():
        ratios = {family: lane.median / lanes[flood.RANDOM].median for family, lane in lanes.items()}
        worst = max(ratios, key=lambda family: ratios[family])
        report(
            f"Flood of {SIZE.flood:,} {kind}, compared with random ones",
            f"{task:<6} at most {ratios[worst]:.2f} x ({worst})",
        )
    return times


def _router(routes: pa.Table) -> Router:
    return Router(Catalog(routes), tie_break="first")


def _routes(kind: str, keys: Bytes) -> pa.Table:
    """Returns a route for each name, or for each broker id of one service."""
    count = len(keys)
    names = flood.text(keys) if kind == "names" else pa.repeat("//contoso.example/Orders", count)
    return pa.table(
        {
            "name": pa.repeat("Route", count),
            "remote_service_name": names,
            "broker_instance": pa.nulls(count, pa.binary(16)) if kind == "names" else fixed(keys),
            "lifetime": pa.nulls(count, pa.timestamp("us", tz="UTC")),
            "address": pa.repeat("TCP://hub.example", count),
            "mirror_address": pa.nulls(count, pa.string()),
        }
    )


def _conversations(routes: pa.Table) -> pa.Table:
    """Returns ten conversations for each route, shuffled."""
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(routes.num_rows), LOOKUPS))
    keys = routes.select(["remote_service_name", "broker_instance"]).take(column(order))
    return keys.rename_columns(["to_service_name", "to_broker_instance"])
