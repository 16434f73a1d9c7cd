"""Randomly corrupts the buffers of routing columns and routes the result, from a seed and in its own process.

If pyarrow's full validation still accepts the data, the decisions must be those of the same values in plain layout.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa

from ssbroker import Catalog, Router, SsbrokerError, schemas
from tests.boundary.layouts import (
    BASIC_GUID,
    BASIC_TEXT,
    SHAPES,
    Array,
    DataType,
    Layout,
    in_every_shape,
    relaid,
    replace_with,
)
from tests.boundary.routed import WORLDS
from tests.boundary.writable import Writable, writable
from tests.worlds.universe import NOW

ROWS = 70
"""More than one block of 64."""
SHAPED_TEXT = [shaped for layout in BASIC_TEXT.values() for shaped in in_every_shape(layout).values()]
SHAPED_GUID = [shaped for layout in BASIC_GUID.values() for shaped in in_every_shape(layout).values()]
SHAPED_ONLY = list(SHAPES.values())
GUIDS = ("conversation_id", "to_broker_instance")
CONVERSATIONS = {
    "conversation_id": SHAPED_GUID,
    "database": SHAPED_TEXT,
    "to_service_name": SHAPED_TEXT,
    "to_broker_instance": SHAPED_GUID,
    "is_initiator": SHAPED_ONLY,
}
ROUTES = {
    "database": SHAPED_TEXT,
    "name": SHAPED_TEXT,
    "route_id": SHAPED_ONLY,
    "remote_service_name": SHAPED_TEXT,
    "broker_instance": SHAPED_GUID,
    "lifetime": SHAPED_ONLY,
    "address": SHAPED_TEXT,
    "mirror_address": SHAPED_TEXT,
}
SPECIAL_BYTES = (0, 1, 0x7F, 0x80, 0xFF)


def corrupt(random: Random, memory: list[bytearray | None]) -> None:
    """Overwrites a few bytes of one buffer."""
    buffers = [buffer for buffer in memory if buffer]
    if not buffers:
        return
    buffer = random.choice(buffers)
    for _ in range(random.choice((1, 1, 1, 2, 8))):
        size = random.choice((1, 1, 2, 4, 8, 16))
        at = random.randrange(len(buffer))
        at -= at % size if random.random() < 0.7 else 0
        wrong: Callable[[], int] = random.choice((lambda: random.choice(SPECIAL_BYTES), lambda: random.randrange(256)))
        one = wrong()
        for place in range(at, min(at + size, len(buffer))):
            buffer[place] = one if random.random() < 0.7 else wrong()


def corrupted(random: Random, array: Array, layouts: list[Layout]) -> tuple[Array, Callable[[], None]]:
    """Returns the column in a random layout, and the function that corrupts it."""
    copy: Writable = writable(random.choice(layouts)(array))
    if random.random() < 0.5:
        assert (
            copy.array.null_count >= 0
        )  # computes the null count, which is cached and does not change with the bitmap
    return copy.array, lambda: corrupt(random, copy.memory)


def plain(name: str, array: Array) -> Array:
    """Returns the same values in the plain layout."""
    values = [value.bytes if isinstance(value, UUID) else value for value in array.to_pylist()]
    if name not in GUIDS:
        return pa.array(values, schemas.CONVERSATIONS.field(name).type)
    kind: DataType = pa.string() if any(isinstance(value, str) for value in values) else pa.binary()
    return pa.array(values, kind)


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the same conversations in the plain layout."""
    names = batch.schema.names
    return pa.record_batch({name: plain(name, column) for name, column in zip(names, batch.columns, strict=True)})


def outcome(run: Callable[[], Any]) -> tuple[str, Any]:
    """Returns the result, or the class of an ssbroker error; any other error ends the process."""
    try:
        return "ok", run()
    except SsbrokerError as error:
        return type(error).__name__, None


def is_legal(batch: pa.RecordBatch) -> bool:
    """Returns whether pyarrow's full validation accepts the batch."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def check_routing(random: Random, counts: Counter[str]) -> None:
    """Corrupts conversations and routes them."""
    world = random.choice(WORLDS)
    conversations: Any = world.conversations
    start = random.randrange(conversations.num_rows - ROWS)
    batch = conversations.slice(start, ROWS)
    chosen = random.sample(list(CONVERSATIONS), random.choice((1, 1, 2)))
    made = {name: corrupted(random, batch[name], CONVERSATIONS[name]) for name in chosen}
    batch = relaid(batch, {name: replace_with(array) for name, (array, _) in made.items()})
    for _, write in made.values():
        write()
    given = random.choice((lambda: batch, lambda: pa.Table.from_batches([batch]), batch.to_struct_array))()
    name, decisions = outcome(lambda: world.router.route(given, now=NOW))
    counts[f"conversations {name}"] += 1
    if is_legal(batch):
        counts["legal"] += 1
        expected_name, expected = outcome(lambda: world.router.route(plain_batch(batch), now=NOW))
        assert name == expected_name
        assert name != "ok" or decisions.to_pylist() == expected.to_pylist()


def check_catalog(random: Random, counts: Counter[str]) -> None:
    """Corrupts routes, and compares the catalog and router made from them."""
    world = random.choice(WORLDS)
    batch: Any = world.catalog.routes.combine_chunks().to_batches()[0]
    name = random.choice(list(ROUTES))
    array, write = corrupted(random, batch[name], ROUTES[name])
    batch = relaid(batch, {name: replace_with(array)})
    write()
    catalog_outcome, catalog = outcome(lambda: Catalog(batch, world.catalog.databases))
    counts[f"catalog {catalog_outcome}"] += 1
    if catalog_outcome == "ok":
        counts[f"its routes {outcome(lambda: catalog.routes)[0]}"] += 1
        counts[f"its router {outcome(lambda: Router(catalog).route(world.conversations, now=NOW))[0]}"] += 1


def main(seed: int, batches: int) -> None:
    """Corrupts that many batches, four of five with conversations, and prints the counts of outcomes."""
    counts: Counter[str] = Counter()
    for number in range(batches):
        random = Random(f"{seed} {number}")
        print(number, file=sys.stderr, flush=True)
        (check_catalog if random.random() < 0.2 else check_routing)(random, counts)
    print(json.dumps(counts))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
