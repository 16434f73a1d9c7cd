"""Honest fragments as numeric columns, and what an attacker without the key can create from them, thousands at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

PART_BYTES = 16

Bytes = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
Numbers = np.ndarray[tuple[int], np.dtype[Any]]


@dataclass(frozen=True)
class Columns:
    """Fragments of 16 bytes each, without nulls except for missing fragment signatures."""

    conversation_id: Bytes
    is_initiator: Numbers
    sequence: Numbers
    number: Numbers
    count: Numbers
    body: Bytes
    message_signature: Bytes
    fragment_signature: Bytes
    has_own: Numbers

    def __len__(self) -> int:
        return len(self.sequence)

    def batch(self) -> pa.RecordBatch:
        """As Arrow."""
        return pa.record_batch(
            {
                "conversation_id": blocks_array(self.conversation_id),
                "is_initiator": pa.array(self.is_initiator),
                "message_sequence_number": pa.array(self.sequence, pa.int64()),
                "fragment_number": pa.array(self.number, pa.int32()),
                "fragment_count": pa.array(self.count, pa.int32()),
                "message_body": blocks_array(self.body).cast(pa.binary()),
                "message_signature": blocks_array(self.message_signature),
                "fragment_signature": pa.array(
                    pa.compute.if_else(pa.array(self.has_own), blocks_array(self.fragment_signature), None)
                ),
            }
        )


def columns_of(fragments: pa.Table) -> Columns:
    """Returns the fragments as columns; messages of one fragment lose their optional own signature."""
    count = fragments.column("fragment_count").to_numpy()
    return Columns(
        conversation_id=blocks_of(fragments, "conversation_id"),
        is_initiator=fragments.column("is_initiator").to_numpy(),
        sequence=fragments.column("message_sequence_number").to_numpy(),
        number=fragments.column("fragment_number").to_numpy(),
        count=count,
        body=blocks_of(fragments, "message_body"),
        message_signature=blocks_of(fragments, "message_signature"),
        fragment_signature=blocks_of(fragments, "fragment_signature"),
        has_own=count > 1,
    )


def blocks_of(table: pa.Table, name: str) -> Bytes:
    """Returns a column of 16 bytes as blocks."""
    data = b"".join(value or b"" for value in table.column(name).to_pylist())
    return np.frombuffer(data, np.uint8).reshape(-1, PART_BYTES)


def blocks_array(blocks: Bytes) -> pa.Array[Any]:
    """Returns blocks as an Arrow array."""
    data = pa.py_buffer(blocks.tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(PART_BYTES), len(blocks), [None, data])


def one_bit(random: np.random.Generator, blocks: Bytes) -> Bytes:
    """Flips one bit of each block."""
    other = blocks.copy()
    rows = len(blocks)
    other[np.arange(rows), random.integers(0, PART_BYTES, rows)] ^= np.uint8(1) << random.integers(
        0, 8, rows, dtype=np.uint8
    )
    return other


def away(random: np.random.Generator, columns: Columns) -> int:
    """Returns distances to other rows, never zero."""
    return int(random.integers(1, len(columns)))


def tampered_body(random: np.random.Generator, columns: Columns) -> Columns:
    return replace(columns, body=one_bit(random, columns.body))


def tampered_fragment_signature(random: np.random.Generator, columns: Columns) -> Columns:
    signature = one_bit(random, columns.fragment_signature)
    return replace(columns, fragment_signature=signature, has_own=np.ones(len(columns), bool))


def tampered_message_signature(random: np.random.Generator, columns: Columns) -> Columns:
    return replace(columns, message_signature=one_bit(random, columns.message_signature))


def forged_signatures(random: np.random.Generator, columns: Columns) -> Columns:
    """Replaces signatures by random ones."""
    forged = random.integers(0, 256, (2, len(columns), PART_BYTES), dtype=np.uint8)
    return replace(columns, message_signature=forged[0], fragment_signature=forged[1])


def another_conversation(random: np.random.Generator, columns: Columns) -> Columns:
    """Moves fragments to another conversation of the same length and key."""
    ids = np.unique(columns.conversation_id, axis=0)
    rank = np.unique(columns.conversation_id, axis=0, return_inverse=True)[1].reshape(-1)
    step = random.integers(1, len(ids), len(columns))
    return replace(columns, conversation_id=ids[(rank + step) % len(ids)])


def the_other_direction(_random: np.random.Generator, columns: Columns) -> Columns:
    return replace(columns, is_initiator=~columns.is_initiator)


def another_sequence(random: np.random.Generator, columns: Columns) -> Columns:
    step = random.integers(1, 100, len(columns))
    sequence = np.where(columns.sequence >= step, columns.sequence - step, columns.sequence + step)
    return replace(columns, sequence=sequence)


def another_place(_random: np.random.Generator, columns: Columns) -> Columns:
    """Moves fragments to the next number of the same message; a single fragment precedes a missing one."""
    count = np.maximum(columns.count, 2)
    return replace(columns, number=(columns.number + 1) % count, count=count)


def another_count(_random: np.random.Generator, columns: Columns) -> Columns:
    """Increases the count by one."""
    return replace(columns, count=columns.count + 1)


def another_part(random: np.random.Generator, columns: Columns) -> Columns:
    """Puts the body and signatures of another fragment under this header."""
    step = away(random, columns)
    return replace(
        columns,
        body=np.roll(columns.body, step, axis=0),
        fragment_signature=np.roll(columns.fragment_signature, step, axis=0),
    )


def another_whole(random: np.random.Generator, columns: Columns) -> Columns:
    """Puts the body and all signatures of another message under this header."""
    step = away(random, columns)
    return replace(
        columns,
        body=np.roll(columns.body, step, axis=0),
        message_signature=np.roll(columns.message_signature, step, axis=0),
        fragment_signature=np.roll(columns.fragment_signature, step, axis=0),
    )


def without_own_signature(_random: np.random.Generator, columns: Columns) -> Columns:
    """Changes the body and removes its own signature; for messages of one fragment, the message signature detects it."""
    body = columns.body ^ np.uint8(1)
    return replace(columns, body=body, has_own=np.zeros(len(columns), bool))


ATTACKS: tuple[Callable[[np.random.Generator, Columns], Columns], ...] = (
    tampered_body,
    tampered_fragment_signature,
    tampered_message_signature,
    forged_signatures,
    another_conversation,
    the_other_direction,
    another_sequence,
    another_place,
    another_count,
    another_part,
    another_whole,
    without_own_signature,
)
