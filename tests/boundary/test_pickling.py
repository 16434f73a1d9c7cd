"""A router and a catalog decide in other processes as they do here, whatever the start method."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from typing import Any, get_args

import cloudpickle
import pytest

from ssbroker import Catalog, Router
from ssbroker.router import PendingRequest, TieBreak
from tests.boundary.attempts import ROOT
from tests.boundary.routed import WORLDS, rows_of
from tests.worlds.universe import NOW

COPIES: dict[str, Any] = {
    **{
        f"pickle protocol {protocol}": lambda value, protocol=protocol: pickle.loads(pickle.dumps(value, protocol))
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)
    },
    "cloudpickle": lambda value: pickle.loads(cloudpickle.dumps(value)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "twice": lambda value: pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(value)))),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_pickled_catalog_is_equal(copied: Any) -> None:
    for world in WORLDS:
        catalog: Catalog = copied(world.catalog)
        assert catalog == world.catalog
        assert catalog.fingerprint == world.catalog.fingerprint
        for table in ("routes", "databases", "services"):
            assert getattr(catalog, table).equals(getattr(world.catalog, table))
        assert (catalog.addresses, catalog.message_forwarding, catalog.pending_requests, catalog.user_database) == (
            world.catalog.addresses,
            world.catalog.message_forwarding,
            world.catalog.pending_requests,
            world.catalog.user_database,
        )


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("tie_break", get_args(TieBreak))
@pytest.mark.parametrize("pending_request", get_args(PendingRequest))
def test_a_pickled_router_decides_the_same(copied: Any, tie_break: TieBreak, pending_request: PendingRequest) -> None:
    for world in WORLDS:
        router = Router(world.catalog, tie_break=tie_break, pending_request=pending_request)
        other: Router = copied(router)
        assert (other.tie_break, other.pending_request) == (tie_break, pending_request)
        expected = router.route(world.conversations, now=NOW)
        assert other.route(world.conversations, now=NOW).equals(expected)


@pytest.mark.rule("R24")
@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_turns_are_not_pickled(copied: Any) -> None:
    """A copy starts with the first candidate, and does not advance the turns of the original."""
    for world in WORLDS:
        first, second, third = turns(Router(world.catalog, tie_break="round_robin"), world.conversations, 3)
        assert first != second
        router = Router(world.catalog, tie_break="round_robin")
        assert turns(router, world.conversations, 2) == [first, second]
        assert turns(copied(router), world.conversations, 3) == [first, second, third]
        assert turns(router, world.conversations, 1) == [third]


def turns(router: Router, conversations: Any, count: int) -> list[list[dict[str, Any]]]:
    # Few enough rows that no service completes a cycle of turns.
    return [rows_of(router.route(conversations.slice(0, 31), now=NOW)) for _ in range(count)]


@pytest.mark.parametrize("start_method", ["fork", "forkserver", "spawn"])
def test_other_processes_decide_the_same(start_method: str) -> None:
    """In its own process: a fork is safe only before pytest and other tests have started threads."""
    process = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.boundary.processes", start_method],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "[]\n", "")
