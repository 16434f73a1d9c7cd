"""With `errors="reject"`, invalid rows change nothing about the valid ones, which give what the oracle says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from tests.oracle.reassembly import Oracle
from tests.property.traffic_replay import charge_of, reassembler_for, results_of
from tests.worlds.fragment_tables import batch_of_traffic, rows_of, session_keys_of
from tests.worlds.fragments import KEY_COLUMN, Traffic
from tests.worlds.seeded import seeded_traffic

WORLDS = 1000
CHUNKS = 5


@dataclass(frozen=True)
class Flaw:
    """An invalid value, and how it is listed."""

    column: str
    value: Any
    shown: str | None
    reason: str


FLAWS = (
    Flaw("conversation_id", None, None, "null"),
    Flaw("conversation_id", bytes(15), "0x" + "00" * 15, "invalid_guid"),
    Flaw("conversation_id", b"", "0x", "invalid_guid"),
    Flaw("is_initiator", None, None, "null"),
    Flaw("is_initiator", 2, "2", "out_of_range"),
    Flaw("message_sequence_number", None, None, "null"),
    Flaw("fragment_number", None, None, "null"),
    Flaw("fragment_number", 2**31, str(2**31), "out_of_range"),
    Flaw("fragment_count", -(2**31) - 1, str(-(2**31) - 1), "out_of_range"),
    Flaw("message_body", None, None, "null"),
)
KEY_FLAW = Flaw(KEY_COLUMN, b"abc", "3 bytes", "out_of_range")
TYPES: dict[str, pa.DataType] = {
    "conversation_id": pa.binary(),
    "is_initiator": pa.int8(),
    "fragment_number": pa.int64(),
    "fragment_count": pa.int64(),
}
"""Types of columns that can hold the flaws."""


def wider(batch: pa.RecordBatch) -> pa.Table:
    """Returns the rows in types that can hold the flaws."""
    fields = [field.with_type(TYPES.get(field.name, field.type)) for field in batch.schema]
    return pa.Table.from_batches([batch]).cast(pa.schema(fields))


def with_flaws(
    rows: Sequence[dict[str, Any]], flaws: Sequence[Flaw], random: Random, *, share: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the rows with invalid rows in between, and how these are listed."""
    mixed: list[dict[str, Any]] = []
    listed: list[dict[str, Any]] = []
    for row in rows:
        while random.random() < share:
            flaw = random.choice(flaws)
            place = {"row": len(mixed), "column": flaw.column}
            listed.append({**place, "value": flaw.shown, "reason": flaw.reason})
            mixed.append({**row, flaw.column: flaw.value})
        mixed.append(row)
    return mixed, listed


def check_mixed_traffic(traffic: Traffic, random: Random) -> None:
    """Compares every result of every push with that of the oracle for the valid rows only, and counts all rows."""
    traffic = traffic.charged(charge_of)
    table, keys = wider(batch_of_traffic(traffic)), session_keys_of(traffic)
    flaws = FLAWS + ((KEY_FLAW,) if traffic.keys == "column" else ())
    share = random.choice([0.02, 0.3, 0.8])
    reassembler = reassembler_for(traffic.limits, in_order=traffic.in_order, session_keys=keys)
    oracle = Oracle(traffic.limits, in_order=traffic.in_order)
    for start, step, fragments in traffic.pushes():
        rows = table.slice(start, step.rows).to_pylist()
        mixed, listed = with_flaws(rows, flaws, random, share=share)
        given = pa.Table.from_pylist(mixed, schema=table.schema)
        if random.random() < 0.5:
            given = pa.Table.from_batches(given.to_batches(max_chunksize=random.randrange(1, 9)), schema=table.schema)
        pushed = reassembler.push(given, errors="reject")
        assert rows_of(pushed.invalid) == listed
        assert results_of(pushed) == oracle.push(fragments)
        assert len(fragments) + pushed.invalid.num_rows == given.num_rows
        if step.checkpoint:
            reassembler = ssbroker.Reassembler.restore(reassembler.checkpoint(), session_keys=keys)
        if step.forget is not None:
            conversation, is_initiator, sequence = step.forget
            reassembler.forget(conversation, is_initiator=is_initiator, message_sequence_number=sequence)
            oracle.forget(conversation.bytes, is_initiator=is_initiator, sequence=sequence)
        assert rows_of(reassembler.pending()) == oracle.pending()
        assert reassembler.pending_bytes == oracle.pending_bytes


@pytest.mark.rule("P11", "P12", "P13", "P14", "P15", "P16", "P18", "P21", "P22", "P23", "P26")
@pytest.mark.parametrize("number", range(CHUNKS))
def test_invalid_rows_between_valid_ones_change_nothing(number: int) -> None:
    """All results, both orders, all limits, with and without keys, extra columns and checkpoints."""
    for seed in range(number * WORLDS // CHUNKS, (number + 1) * WORLDS // CHUNKS):
        check_mixed_traffic(seeded_traffic(seed), Random(seed))


@pytest.mark.rule("P11", "P12", "P13", "P14", "P15", "P16", "P18", "P21", "P22", "P23", "P26")
def test_invalid_rows_in_large_pushes_change_nothing() -> None:
    """More than one block, so that invalid rows are at the edges of blocks."""
    for seed in range(20):
        check_mixed_traffic(seeded_traffic(seed, size=12), Random(seed))
