"""Fragments with every kind of damage, and what the Python API makes of them."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import ssbroker
from tests.cli.conftest import as_text

CONVERSATIONS = [uuid.UUID(int=number) for number in (1, 2, 3)]
KEYS = {CONVERSATIONS[0]: bytes(range(16)), CONVERSATIONS[2]: bytes(range(32))}
TABLES = ("messages", "rejected", "incomplete", "acknowledgements")


def messages(count: int, *, body_bytes: int = 300, seed: int = 7) -> pa.Table:
    """Returns messages of three conversations in both directions, with extra columns."""
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
    """Returns the rows in another order."""
    order = list(range(table.num_rows))
    random.Random(seed).shuffle(order)
    return table.take(order)


def damaged_fragments(count: int, *, seed: int = 7, **options: Any) -> pa.Table:
    """Returns fragments that are shuffled, and some of them lost, duplicated, damaged or in conflict."""
    table = shuffled(ssbroker.fragment(messages(count, seed=seed), max_fragment_bytes=64, **options), seed=seed)
    source = random.Random(seed)
    rows = []
    for row in table.to_pylist():
        damage = source.random()
        if damage < 0.02 and row["message_body"]:
            rows.append(row | {"message_body": b"damaged"})
        if damage < 0.05:
            rows.append(row | {"fragment_count": row["fragment_count"] + 1})
        if damage > 0.01:
            rows += [row] * (2 if damage > 0.97 else 1)
    return pa.Table.from_pylist(rows, schema=table.schema)


def expected_tables(fragments: pa.Table, **options: Any) -> dict[str, list[dict[str, Any]]]:
    """Returns the tables of the Python API after one push, with bytes as text."""
    found = ssbroker.reassemble(fragments, **options)
    tables = (found.messages, found.rejected, found.pending, found.acknowledgements)
    return {name: rows_as_text(table) for name, table in zip(TABLES, tables, strict=True)}


def rows_as_text(table: pa.Table) -> list[dict[str, Any]]:
    """Returns the rows of a table, with bytes as text."""
    return [as_text(row) for row in table.to_pylist()]


def with_text_ids(table: pa.Table) -> pa.Table:
    """Returns the table with ids as text, as a tool without binary columns writes it."""
    ids = [str(uuid.UUID(bytes=value)) for value in table["conversation_id"].to_pylist()]
    return table.set_column(table.column_names.index("conversation_id"), "conversation_id", pa.array(ids))


def body_bytes(table: pa.Table) -> int:
    """Returns the total size of the bodies."""
    total: int = pc.sum(pc.binary_length(table["message_body"])).as_py()
    return total
