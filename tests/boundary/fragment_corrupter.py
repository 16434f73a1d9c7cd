"""Randomly corrupts the buffers of fragments and reassembles the result, from a seed and in its own process.

If pyarrow's full validation still accepts the data, the result must be that of the same values in plain layout.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa

import ssbroker
from ssbroker import Reassembler, schemas
from tests.boundary.corrupter import SHAPED_GUID, SHAPED_ONLY, SHAPED_TEXT, corrupted, is_legal, outcome
from tests.boundary.fragmented import FRAGMENTS, tables_of
from tests.boundary.layouts import BINARIES, Array, Layout, as_dictionary, as_type, in_every_shape, relaid, replace_with

ROWS = 70
"""More than one block of 64."""
WORDS = pa.array([None if row % 5 == 0 else "word " * (row % 4) for row in range(FRAGMENTS.num_rows)])
ITEMS = pa.array([[row] * (row % 3) if row % 7 else None for row in range(FRAGMENTS.num_rows)])
VALID: Any = pa.record_batch(
    {**dict(zip(FRAGMENTS.schema.names, FRAGMENTS.columns, strict=True)), "word": WORDS, "items": ITEMS}
)
KINDS: Any = tuple(BINARIES.values())
SHAPED_BINARY: list[Layout] = [
    shaped
    for layout in (*map(as_type, KINDS), as_dictionary(pa.int16()), as_dictionary(pa.uint8(), pa.binary_view()))
    for shaped in in_every_shape(layout).values()
]
COLUMNS: dict[str, list[Layout]] = {
    "conversation_id": SHAPED_GUID,
    "is_initiator": SHAPED_ONLY,
    "message_sequence_number": SHAPED_ONLY,
    "fragment_number": SHAPED_ONLY,
    "fragment_count": SHAPED_ONLY,
    "message_body": SHAPED_BINARY,
    "message_signature": SHAPED_BINARY,
    "fragment_signature": SHAPED_BINARY,
    "word": SHAPED_TEXT,
}


def plain(name: str, array: Array) -> Array:
    """Returns the same values in the plain layout."""
    values = [value.bytes if isinstance(value, UUID) else value for value in array.to_pylist()]
    if name == "conversation_id":
        return pa.array(values, pa.string() if any(isinstance(value, str) for value in values) else pa.binary())
    if name.endswith("_signature"):
        return pa.array(values, pa.binary())
    kind: Any = VALID.schema.field(name).type if name in ("word", "items") else schemas.FRAGMENTS.field(name).type
    return pa.array(values, kind)


def plain_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the same fragments in the plain layout."""
    names = batch.schema.names
    return pa.record_batch({name: plain(name, column) for name, column in zip(names, batch.columns, strict=True)})


def all_rows(batch: pa.RecordBatch) -> Any:
    """Returns the rows of all tables, of one push and of two with a checkpoint in between."""
    whole = tables_of(ssbroker.reassemble(batch))
    reassembler = Reassembler()
    first = tables_of(reassembler.push(batch.slice(0, ROWS // 2)))
    again = Reassembler.restore(reassembler.checkpoint())
    return whole, first, tables_of(again.push(batch.slice(ROWS // 2)))


def valid_and_invalid_rows(batch: pa.RecordBatch) -> Any:
    """Returns the rows of all tables, with invalid rows listed instead of an error."""
    result = ssbroker.reassemble(batch, errors="reject")
    return tables_of(result), result.invalid.to_pylist()


def check_reassembly(random: Random, counts: Counter[str]) -> None:
    """Corrupts fragments, reassembles them, and fragments the bodies again."""
    start = random.randrange(FRAGMENTS.num_rows - ROWS)
    batch = VALID.slice(start, ROWS)
    chosen = random.sample(list(COLUMNS), random.choice((1, 1, 2)))
    made = {name: corrupted(random, batch[name], COLUMNS[name]) for name in chosen}
    batch = relaid(batch, {name: replace_with(array) for name, (array, _) in made.items()})
    messages = relaid(batch, {"message_sequence_number": replace_with(pa.array(range(ROWS)))})
    for _, write in made.values():
        write()
    name, result = outcome(lambda: all_rows(batch))
    counts[name] += 1
    listed_name, listed = outcome(lambda: valid_and_invalid_rows(batch))
    counts[f"listed {listed_name}"] += 1
    assert listed_name == "ok" or name != "ok"
    counts[f"cut {outcome(lambda: ssbroker.fragment(messages, max_fragment_bytes=3))[0]}"] += 1
    if is_legal(batch):
        counts["legal"] += 1
        expected_name, expected = outcome(lambda: all_rows(plain_batch(batch)))
        assert (name, result) == (expected_name, expected)
        assert (listed_name, listed) == outcome(lambda: valid_and_invalid_rows(plain_batch(batch)))


def main(seed: int, batches: int) -> None:
    """Corrupts that many batches, and prints the counts of outcomes."""
    counts: Counter[str] = Counter()
    for number in range(batches):
        print(number, file=sys.stderr, flush=True)
        check_reassembly(Random(f"{seed} {number}"), counts)
    print(json.dumps(counts))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
