"""Reference worlds in the simplest layout, with catalogs, conversations and decisions of all outcomes and reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ssbroker import Catalog, Router
from tests.boundary.layouts import Layout, relaid
from tests.worlds.arrow import batch_of, catalog_of
from tests.worlds.seeded import seeded_world
from tests.worlds.universe import NOW

ROWS = 120
"""Few enough for a dictionary with keys of 8 bits, more than one block of 64, and no multiple of 8 after a slice."""
SEEDS = (312, 185, 187)


@dataclass(frozen=True)
class Routed:
    """A world in the simplest layout, with its decisions."""

    catalog: Catalog
    router: Router
    conversations: pa.RecordBatch
    decisions: pa.RecordBatch


def routed(seed: int) -> Routed:
    """Returns the world of a seed."""
    world, conversations = seeded_world(seed, conversations=ROWS)
    catalog, batch = catalog_of(world), batch_of(conversations)
    router = Router(catalog)
    return Routed(catalog=catalog, router=router, conversations=batch, decisions=router.route(batch, now=NOW))


WORLDS = [routed(seed) for seed in SEEDS]


def relaid_table(table: pa.Table, layouts: Mapping[str, Layout]) -> pa.Table:
    """Returns the table as one chunk, with some columns in other layouts."""
    if table.num_rows == 0:
        return table
    return pa.Table.from_batches([relaid(table.combine_chunks().to_batches()[0], layouts)])


def each_and_all(names: Iterable[str], layout: Layout) -> list[dict[str, Layout]]:
    """Returns the layout for each column separately, then for all of them."""
    alone = [{name: layout} for name in names]
    return [*alone, {name: layout for each in alone for name in each}]


def rows_of(result: Any) -> list[dict[str, Any]]:
    """Returns the rows, with dictionaries decoded."""
    rows: list[dict[str, Any]] = result.to_pylist()
    return rows
