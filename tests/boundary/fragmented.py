"""Reference fragments in the simplest layout, with every outcome: messages, every reason, acknowledgements and pending messages."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa

import ssbroker
from ssbroker import Reassembly, schemas
from tests.boundary.layouts import relaid, replace_with
from tests.reassembly.signed_messages import messages

BODIES: list[bytes | None] = [bytes([65 + number % 26]) * (number % 30) for number in range(60)]
NAMES = schemas.FRAGMENTS.names
TABLES = ("messages", "rejected", "acknowledgements", "pending")


def _fragments() -> pa.RecordBatch:
    """More than one block of 64 rows and not a multiple of 8; ids, numbers and signatures differ in every row."""
    random = Random(20261121)
    cut = ssbroker.fragment(messages(BODIES), max_fragment_bytes=13).to_pylist()
    rows = [dict(row) for row in cut if random.random() < 0.97]
    for row in rows:
        if row["conversation_id"][15] % 10 == 3:  # each fragment's signature is valid, but that of the message is not
            row["message_signature"] = bytes(range(16))
    for row in random.sample(rows, 12):
        altered = dict(row)
        name, value = random.choice(
            [
                ("fragment_count", 40),
                ("message_body", b"altered"),
                ("message_signature", bytes(range(16))),
                ("fragment_signature", bytes(16)),
                ("message_sequence_number", -1),
                ("fragment_number", 99),
            ]
        )
        altered[name] = value
        rows.append(altered)
    rows += random.sample(rows, 10)
    for row in random.sample(rows, 15):
        row["fragment_signature"] = None
    for row in rows:
        row["message_signature"] = row["message_signature"] if row["conversation_id"][15] % 5 else None
    random.shuffle(rows)
    return pa.Table.from_pylist(
        rows[:127], schema=pa.schema([each.with_nullable(nullable=True) for each in schemas.FRAGMENTS])
    ).to_batches()[0]


FRAGMENTS = _fragments()
ROWS = FRAGMENTS.num_rows
RESULT = ssbroker.reassemble(FRAGMENTS)


def tables_of(result: Reassembly) -> list[list[dict[str, Any]]]:
    """Returns the rows of all tables of a result."""
    return [getattr(result, name).to_pylist() for name in TABLES]


EXPECTED = tables_of(RESULT)


def without_values(name: str) -> pa.RecordBatch:
    """Returns the fragments with a column of nulls."""
    column: Any = FRAGMENTS[name]
    return relaid(FRAGMENTS, {name: replace_with(pa.nulls(ROWS, column.type))})
