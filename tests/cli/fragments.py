"""Fragments of every kind of trouble, and what the Python API makes of them."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import ssbroker
from tests.cli.conftest import readable

CONVERSATIONS = [uuid.UUID(int=number) for number in (1, 2, 3)]
KEYS = {CONVERSATIONS[0]: bytes(range(16)), CONVERSATIONS[2]: bytes(range(32))}
TABLES = ("messages", "rejected", "incomplete", "acknowledgements")


def messages(count: int, *, body_bytes: int = 300, seed: int = 7) -> pa.Table:
    """Messages of three conversations in both directions, with columns of the user's own."""
    source = random.Random(seed)
    numbers: dict[tuple[uuid.UUID, bool], int] = {}
    rows = []
    for _ in range(count):
        direction = source.choice(CONVERSATIONS), source.random() < 0.7
        numbers[direction] = number = numbers.get(direction, -1) + 1
        body = source.randbytes(source.choice([0, 1, body_bytes // 2, body_bytes]))
        note = source.choice(["007", "", "naïve", None, "a,b\nc"])
        rows.append((direction[0].bytes, direction[1], number, body, note, source.choice([1, None])))
    names = ("conversation_id", "is_initiator", "message_sequence_number", "message_body", "note", "priority")
    types = (pa.binary(16), pa.bool_(), pa.int64(), pa.binary(), pa.string(), pa.int8())
    return pa.table(
        {
            name: pa.array([row[n] for row in rows], kind)
            for n, (name, kind) in enumerate(zip(names, types, strict=True))
        }
    )


def shuffled(table: pa.Table, *, seed: int = 7) -> pa.Table:
    """The rows in another order."""
    order = list(range(table.num_rows))
    random.Random(seed).shuffle(order)
    return table.take(order)


def trouble(count: int, *, seed: int = 7, **options: Any) -> pa.Table:
    """Fragments that are shuffled, here and there lost, sent twice and damaged."""
    table = shuffled(ssbroker.fragment(messages(count, seed=seed), max_fragment_bytes=64, **options), seed=seed)
    source = random.Random(seed)
    rows = []
    for row in table.to_pylist():
        fate = source.random()
        if fate < 0.02 and row["message_body"]:
            rows.append(row | {"message_body": b"damaged"})
        if fate < 0.05:
            rows.append(row | {"fragment_count": row["fragment_count"] + 1})
        if fate > 0.01:
            rows += [row] * (2 if fate > 0.97 else 1)
    return pa.Table.from_pylist(rows, schema=table.schema)


def expected(fragments: pa.Table, **options: Any) -> dict[str, list[dict[str, Any]]]:
    """What the Python API makes of them, in one push, bytes as text."""
    found = ssbroker.reassemble(fragments, **options)
    tables = (found.messages, found.rejected, found.pending, found.acknowledgements)
    return {name: rows(table) for name, table in zip(TABLES, tables, strict=True)}


def rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table, bytes as text."""
    return [readable(row) for row in table.to_pylist()]


def text_ids(table: pa.Table) -> pa.Table:
    """The same with ids as text, as a tool without binary columns has them."""
    ids = [str(uuid.UUID(bytes=value)) for value in table["conversation_id"].to_pylist()]
    return table.set_column(table.column_names.index("conversation_id"), "conversation_id", pa.array(ids))


def bytes_of(table: pa.Table) -> int:
    """The bytes of all bodies."""
    total: int = pc.sum(pc.binary_length(table["message_body"])).as_py()
    return total
