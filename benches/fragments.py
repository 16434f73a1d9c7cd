"""Random fragments of messages, generated with numpy. Benchmarks and tests share them.

Both directions of a conversation have the same number of messages. All messages are complete; fragments may be out of order or duplicated.
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
"""The approximate size of the bodies in a chunk of the table."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """The shape of the traffic.

    Attributes:
        messages: The number of messages; all directions have the same number.
        parts: The number of fragments per message.
        part_bytes: The size of a fragment in bytes.
        conversations: The number of conversations, each with two directions.
        is_shuffled: Whether all fragments are in random order; otherwise each direction is in order, and directions alternate randomly.
        duplicates: The share of fragments that are duplicated.
        has_fragment_signatures: Whether fragments have signatures in addition to those of the messages.
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
        """The total size of the bodies, without duplicates."""
        return self.messages * self.parts * self.part_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traffic:
    """Fragments in order of arrival, and the digest of their messages (`answers.digest`)."""

    fragments: pa.Table
    digest: str


def traffic(shape: Shape, *, seed: int = 1) -> Traffic:
    """Returns fragments in `schemas.FRAGMENTS`.

    Args:
        shape: The shape of the traffic.
        seed: The random seed.

    Example:
        >>> shape = Shape(messages=20, parts=3, part_bytes=16, conversations=5)
        >>> traffic(shape).fragments.num_rows
        60
    """
    if shape.messages % shape.directions:
        raise ValueError(f"{shape.messages} messages cannot be divided evenly among {shape.directions} directions")
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
    """Wraps the rows of an array as a column of binary values."""
    count, length = rows.shape
    offsets = np.arange(0, (count + 1) * length, length, dtype=np.int32) if length else np.zeros(count + 1, np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, buffer(offsets), buffer(rows)])


def _bodies(rng: np.random.Generator, shape: Shape) -> Bytes:
    """Returns random bytes: a row for each message, by direction and sequence number."""
    length = shape.parts * shape.part_bytes
    if length % 8:
        raise ValueError("the size of a body must be a multiple of 8")
    words = rng.integers(0, 2**64, (shape.messages, length // 8), np.uint64)
    return words.view(np.uint8)


def _sorted_ids(rng: np.random.Generator, count: int) -> Bytes:
    """Returns random ids, sorted so that the messages are in the order of `answers.digest`."""
    words = np.sort(rng.integers(0, 2**64, count, np.uint64)).astype(">u8")
    return np.stack([words.view(np.uint64), rng.integers(0, 2**64, count, np.uint64)], axis=1).view(np.uint8)


def _order(rng: np.random.Generator, shape: Shape) -> Ints:
    """Returns the order of arrival, as numbers of fragments: message * parts + fragment."""
    numbers = np.arange(shape.messages * shape.parts)
    if shape.is_shuffled:
        again = rng.choice(numbers, int(len(numbers) * shape.duplicates), replace=False)
        return rng.permutation(np.concatenate([numbers, again]))
    if shape.duplicates:
        raise ValueError("only shuffled fragments can be duplicated")
    turns = numbers.reshape(shape.directions, -1).T
    return rng.permuted(turns, axis=1).reshape(-1)


def _digests(rows: Bytes) -> Bytes:
    """Returns the MD5 of each row, from `hashlib`, which is independent of the measured code."""
    joined = b"".join([hashlib.md5(row, usedforsecurity=False).digest() for row in rows])
    return np.frombuffer(joined, np.uint8).reshape(-1, 16)


def _digest(shape: Shape, conversations: Bytes, bodies: Bytes) -> str:
    direction, sequence = np.divmod(np.arange(shape.messages), shape.messages // shape.directions)
    lengths = np.full(shape.messages, bodies.shape[1])
    return digest_of(conversations[direction], direction % 2, sequence, lengths, [memoryview(buffer(bodies))])
