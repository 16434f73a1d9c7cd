"""Functions that other processes run with a router; top-level, so that they can be pickled by name."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from typing import Any, get_args

import cloudpickle
import pyarrow as pa

from ssbroker import Catalog, Router
from ssbroker.router import TieBreak
from tests.boundary.routed import WORLDS, Routed, rows_of
from tests.worlds.universe import NOW

Rows = list[dict[str, Any]]
CREATED_BEFORE: dict[str, Router] = {}
"""Routers that exist before a process forks; a new process has none."""


def decide(router: Router, conversations: pa.RecordBatch) -> Rows:
    """Routes with a router that was sent here."""
    return rows_of(router.route(conversations, now=NOW))


def decide_with_a_new_router(catalog: Catalog, tie_break: TieBreak, conversations: pa.RecordBatch) -> Rows:
    """Creates a router from a catalog that was sent here, and routes with it."""
    return rows_of(Router(catalog, tie_break=tie_break).route(conversations, now=NOW))


def decide_by_cloudpickle(pickled: bytes, conversations: pa.RecordBatch) -> Rows:
    """Routes with a closure over a router, as Spark sends them."""
    return rows_of(pickle.loads(pickled)(conversations))


def decide_with_inherited_router(tie_break: TieBreak, conversations: pa.RecordBatch) -> Rows:
    """Routes with a router that was created before this process was forked."""
    return rows_of(CREATED_BEFORE[tie_break].route(conversations, now=NOW))


def mismatches(context: Any, world: Routed, tie_break: TieBreak) -> list[str]:
    """Returns the ways of passing a router to a process that give other decisions there."""
    here = Router(world.catalog, tie_break=tie_break)
    expected = decide(Router(world.catalog, tie_break=tie_break), world.conversations)
    CREATED_BEFORE[tie_break] = here
    if tie_break == "round_robin":
        decide(here, world.conversations)  # the turns taken here have no effect in other processes, except after a fork
    closure = cloudpickle.dumps(lambda conversations: here.route(conversations, now=NOW))
    with context.Pool(1) as pool:
        found = {
            "pickled": pool.apply(decide, (here, world.conversations)),
            "made there": pool.apply(decide_with_a_new_router, (world.catalog, tie_break, world.conversations)),
            "cloudpickled": pool.apply(decide_by_cloudpickle, (closure, world.conversations)),
        }
        if context.get_start_method() == "fork" and tie_break != "round_robin":
            found["made before"] = pool.apply(decide_with_inherited_router, (tie_break, world.conversations))
    return [f"{tie_break}: {form}" for form, rows in found.items() if rows != expected]


def main(start_method: str) -> None:
    """Tries all worlds and tie breaks, and prints what differs."""
    context = multiprocessing.get_context(start_method)
    print(
        [
            wrong
            for world in WORLDS[:1]
            for tie_break in get_args(TieBreak)
            for wrong in mismatches(context, world, tie_break)
        ]
    )


if __name__ == "__main__":
    from tests.boundary import processes  # pickles the functions by the name of this module, not as `__main__`

    processes.main(sys.argv[1])
