"""Gives the library rows in random Arrow layouts, and compares with the result of the plain layout: `python -m tests.boundary.random_layouts`.

Each row set has random columns in random layouts and shapes, an extra column of a random type, and one of the forms in which Arrow data are passed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final

import pyarrow as pa

import ssbroker
from tests.boundary.extra_types import COLUMNS
from tests.boundary.extra_types import ROWS as EXTRA_ROWS
from tests.boundary.fragmented import FRAGMENTS, tables_of
from tests.boundary.layouts import (
    BASIC_BINARY,
    BASIC_GUID,
    BASIC_SIGNATURE,
    BASIC_TEXT,
    NOT_NULL_GUID,
    SHAPES,
    Array,
    Layout,
    relaid,
    then,
)
from tests.boundary.routed import ROWS, WORLDS, rows_of
from tests.routing.conversations import ForeignArray, ForeignStream
from tests.worlds.universe import NOW

ONLY_SHAPES: Final[dict[str, Layout]] = {"as it is": lambda array: array}
CONVERSATIONS: Final[dict[str, Mapping[str, Layout]]] = {
    "conversation_id": BASIC_GUID,
    "database": BASIC_TEXT,
    "to_service_name": BASIC_TEXT,
    "to_broker_instance": BASIC_GUID,
    "is_initiator": ONLY_SHAPES,
}
FRAGMENT_COLUMNS: Final[dict[str, Mapping[str, Layout]]] = {
    "conversation_id": NOT_NULL_GUID,
    "is_initiator": ONLY_SHAPES,
    "message_sequence_number": ONLY_SHAPES,
    "fragment_number": ONLY_SHAPES,
    "message_body": BASIC_BINARY,
    "message_signature": BASIC_SIGNATURE,
    "fragment_signature": BASIC_SIGNATURE,
}
FORMS: Final[Mapping[str, Callable[[pa.RecordBatch], Any]]] = {
    "batch": lambda batch: batch,
    "struct array": lambda batch: batch.to_struct_array(),
    "table": lambda batch: pa.Table.from_batches([batch]),
    "chunks": lambda batch: pa.Table.from_batches([batch.slice(0, 3), batch.slice(3, 0), batch.slice(3)]),
    "reader": lambda batch: pa.RecordBatchReader.from_batches(batch.schema, iter([batch])),
    "foreign array": ForeignArray,
    "foreign stream": lambda batch: ForeignStream(pa.Table.from_batches([batch])),
}


def random_layout(random: Random, layouts: Mapping[str, Layout]) -> Layout:
    """Returns a layout, in a shape or as it is."""
    layout = random.choice(list(layouts.values()))
    return then(layout, random.choice(list(SHAPES.values()))) if random.random() < 0.6 else layout


def copied(batch: Any, start: int, length: int) -> Any:
    """Returns a copy of some rows, because the layouts take whole arrays."""
    part = batch.slice(start, length)
    return relaid(part, dict.fromkeys(part.schema.names, lambda array: pa.concat_arrays([array])))


def random_rows(random: Random, batch: Any, layouts: Mapping[str, Mapping[str, Layout]]) -> tuple[str, Any]:
    """Returns the rows with some columns in random layouts, and the name of their form."""
    chosen = random.sample(list(layouts), random.randint(1, len(layouts)))
    batch = relaid(batch, {name: random_layout(random, layouts[name]) for name in chosen})
    if random.random() < 0.3:
        extra: Array = random.choice(list(COLUMNS.values()))
        start = random.randint(0, EXTRA_ROWS - batch.num_rows)
        batch = batch.append_column("extra", extra.slice(start, batch.num_rows))
    form = random.choice(list(FORMS))
    return form, FORMS[form](batch)


def check_route(random: Random) -> str:
    """Routes a slice of the conversations of a world."""
    world = random.choice(WORLDS)
    start = random.randrange(ROWS)
    length = random.randint(0, min(70, ROWS - start))
    form, given = random_rows(random, copied(world.conversations, start, length), CONVERSATIONS)
    found = world.router.route(given, now=NOW)
    assert rows_of(found) == rows_of(world.decisions.slice(start, length)), form
    return f"route, {form}"


def check_reassemble(random: Random) -> str:
    """Reassembles a slice of fragments."""
    start = random.randrange(FRAGMENTS.num_rows)
    part = copied(FRAGMENTS, start, random.randint(0, min(40, FRAGMENTS.num_rows - start)))
    form, given = random_rows(random, part, FRAGMENT_COLUMNS)
    found = ssbroker.reassemble(given)
    for name, rows, expected in zip(
        ("messages", "rejected", "acknowledgements", "pending"),
        tables_of(found),
        tables_of(ssbroker.reassemble(part)),
        strict=True,
    ):
        kept = [{key: value for key, value in row.items() if key != "extra"} for row in rows]
        assert kept == expected, (form, name)
    return f"reassemble, {form}"


def check_md5(random: Random) -> str:
    """Computes the digests of a slice of bodies."""
    start = random.randrange(FRAGMENTS.num_rows)
    rows = copied(FRAGMENTS, start, random.randint(0, min(90, FRAGMENTS.num_rows - start)))
    bodies: Any = rows["message_body"]
    column = random_layout(random, BASIC_BINARY)(bodies)
    assert ssbroker.md5(column).to_pylist() == ssbroker.md5(bodies).to_pylist()
    return "md5"


def main() -> None:
    """Tries that many layouts, and prints what was tried."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=33)
    parser.add_argument(
        "--first", type=int, default=0, help="the number of the first layout, to repeat one that failed"
    )
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    checks = (check_route, check_route, check_route, check_reassemble, check_md5)
    for number in range(options.first, options.first + options.count):
        if number % 1000 == 0:
            print(number, file=sys.stderr, flush=True)
        random = Random(f"{options.seed} {number}")
        try:
            counts[random.choice(checks)(random)] += 1
        except Exception as error:
            raise AssertionError(f"--seed {options.seed} --first {number} --count 1") from error
    for name, count in sorted(counts.items()):
        print(f"{count:8,} {name}")
    print(f"pyarrow {pa.__version__}: {counts.total():,} layouts, no difference")


if __name__ == "__main__":
    main()
