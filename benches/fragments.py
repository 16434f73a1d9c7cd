"""Seeded fragments of messages, made with numpy in bulk. The benches and the tests share them.

The two directions of a conversation carry equally many messages. Every message is whole in the end; what may stand in the way is
the order of its fragments, and fragments that come twice.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benches.columns import Column, buffer, column, fixed
from benches.reassembly_rivals.answers import digest_of
from ssbroker import schemas

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]

CHUNK_BYTES: Final = 32 << 20
"""A chunk of the table holds about so many bytes of bodies."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """What the fragments are like.

    Attributes:
        messages: How many; each direction of each conversation has the same number.
        parts: Fragments of a message.
        part_bytes: Bytes of a fragment.
        conversations: Each with two directions.
        is_shuffled: All fragments in one random order; otherwise each direction sends its own in order, and which one is next is random.
        duplicates: Share of the fragments that come a second time.
        has_fragment_signatures: Each fragment carries its own MD5 beside the one of its message.
    """

    messages: int
    parts: int
    part_bytes: int
    conversations: int
    is_shuffled: bool = True
    duplicates: float = 0.0
    has_fragment_signatures: bool = False

    @property
    def directions(self) -> int:
        return 2 * self.conversations

    @property
    def nbytes(self) -> int:
        """Of all bodies, each counted once."""
        return self.messages * self.parts * self.part_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traffic:
    """Fragments in the order in which they arrive, and the digest of the messages that they make (`answers.digest`)."""

    fragments: pa.Table
    digest: str


def traffic(shape: Shape, *, seed: int = 1) -> Traffic:
    """Make the fragments, in the schema of the contract.

    Args:
        shape: What they are like.
        seed: The same seed gives the same fragments.

    Example:
        >>> shape = Shape(messages=20, parts=3, part_bytes=16, conversations=5)
        >>> traffic(shape).fragments.num_rows
        60
    """
    if shape.messages % shape.directions:
        raise ValueError(f"{shape.messages} messages are not the same number for each of {shape.directions} directions")
    rng = np.random.Generator(np.random.SFC64([seed, shape.messages, shape.parts]))
    bodies = _bodies(rng, shape)
    conversations = np.repeat(_sorted_ids(rng, shape.conversations), 2, axis=0)
    chunk_rows = max(1, CHUNK_BYTES // shape.part_bytes)
    order = _order(rng, shape)
    message_signatures = _digests(bodies)
    parts = bodies.reshape(-1, shape.part_bytes)
    part_signatures = _digests(parts) if shape.has_fragment_signatures else None
    batches = []
    for start in range(0, len(order), chunk_rows):
        rows = order[start : start + chunk_rows]
        message, number = np.divmod(rows, shape.parts)
        direction, sequence = np.divmod(message, shape.messages // shape.directions)
        columns = [
            fixed(conversations[direction]),
            column(direction % 2 == 1),
            column(sequence),
            column(number.astype(np.int32)),
            column(np.full(len(rows), shape.parts, np.int32)),
            equally_long(parts[rows]),
            fixed(message_signatures[message]),
            pa.nulls(len(rows), pa.binary(16)) if part_signatures is None else fixed(part_signatures[rows]),
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=schemas.FRAGMENTS))
    return Traffic(fragments=pa.Table.from_batches(batches), digest=_digest(shape, conversations, bodies))


def equally_long(rows: Bytes) -> Column:
    """Wrap the rows of an array as a column of binary values."""
    count, length = rows.shape
    offsets = np.arange(0, (count + 1) * length, length, dtype=np.int32) if length else np.zeros(count + 1, np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, buffer(offsets), buffer(rows)])


def _bodies(rng: np.random.Generator, shape: Shape) -> Bytes:
    """Random bytes: a row for each message, by direction and sequence number."""
    length = shape.parts * shape.part_bytes
    if length % 8:
        raise ValueError("a body is made of words of eight bytes")
    words = rng.integers(0, 2**64, (shape.messages, length // 8), np.uint64)
    return words.view(np.uint8)


def _sorted_ids(rng: np.random.Generator, count: int) -> Bytes:
    """Random ids in the order of their bytes, so that the messages stand in the order in which `answers.digest` takes them."""
    words = np.sort(rng.integers(0, 2**64, count, np.uint64)).astype(">u8")
    return np.stack([words.view(np.uint64), rng.integers(0, 2**64, count, np.uint64)], axis=1).view(np.uint8)


def _order(rng: np.random.Generator, shape: Shape) -> Ints:
    """The fragments as they arrive, by their number: message times parts plus place."""
    numbers = np.arange(shape.messages * shape.parts)
    if shape.is_shuffled:
        again = rng.choice(numbers, int(len(numbers) * shape.duplicates), replace=False)
        return rng.permutation(np.concatenate([numbers, again]))
    if shape.duplicates:
        raise ValueError("only shuffled fragments come twice")
    turns = numbers.reshape(shape.directions, -1).T
    return rng.permuted(turns, axis=1).reshape(-1)


def _digests(rows: Bytes) -> Bytes:
    """The MD5 of each row, by `hashlib`: what is measured shall not say what is right."""
    joined = b"".join([hashlib.md5(row, usedforsecurity=False).digest() for row in rows])
    return np.frombuffer(joined, np.uint8).reshape(-1, 16)


def _digest(shape: Shape, conversations: Bytes, bodies: Bytes) -> str:
    direction, sequence = np.divmod(np.arange(shape.messages), shape.messages // shape.directions)
    lengths = np.full(shape.messages, bodies.shape[1])
    return digest_of(conversations[direction], direction % 2, sequence, lengths, [memoryview(buffer(bodies))])
