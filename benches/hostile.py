"""Hostile fragments, and the honest ones that they are mixed with.

The attacker does not know the honest conversations. The signatures of hostile fragments match.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benches.columns import Column, column, fixed
from benches.fragments import Bytes, Ints, Shape, equally_long, traffic
from ssbroker import schemas

ACCEPTED_COUNT: Final = 1 << 20
"""The default of `Reassembler` for the highest `fragment_count`."""

COUNT_MAX: Final = 2**31 - 1
_PART_BYTES: Final = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Honest:
    """Conversations whose directions each start with a single-fragment message.

    Attributes:
        greetings: The fragments of these messages, sequence number 0 of each direction.
        fragments: The fragments of the other messages, from sequence number 1 on.
        digest: The digest of the other messages (`answers.digest`), numbered from 0.
    """

    greetings: pa.Table
    fragments: pa.Table
    digest: str


def honest(shape: Shape) -> Honest:
    """Returns conversations with messages of this shape after the greetings."""
    made = traffic(shape)
    numbers = made.fragments["message_sequence_number"]
    is_first = (pc.field("message_sequence_number") == 0) & (pc.field("fragment_number") == 0)
    first = made.fragments.filter(is_first).combine_chunks()
    body = np.zeros((first.num_rows, 64), np.uint8)
    greetings = _set(
        first,
        fragment_count=column(np.ones(first.num_rows, np.int32)),
        message_body=equally_long(body),
        message_signature=_signatures(body),
        fragment_signature=_signatures(body),
    )
    fragments = _set(made.fragments, message_sequence_number=pc.add(numbers, 1))
    return Honest(greetings=greetings, fragments=fragments, digest=made.digest)


def without_greetings(messages: pa.Table) -> pa.Table:
    """Returns the messages without greetings, numbered from 0."""
    rest = messages.filter(pc.field("message_sequence_number") > 0)
    return _set(rest, message_sequence_number=pc.subtract(rest["message_sequence_number"], 1))


def first_fragments(rng: np.random.Generator, count: int) -> pa.Table:
    """Returns fragments that are the first of eight, each of a different conversation."""
    return _hostile(rng, ids=_ids(rng, count), numbers=np.zeros(count, np.int64), counts=np.full(count, 8))


def contradicting_counts(rng: np.random.Generator, count: int) -> pa.Table:
    """Returns fragments of a thousand messages with contradicting counts, from 2 to 2^31 - 1."""
    counts = np.exp2(rng.uniform(1, 31, count)).astype(np.int64).clip(2, COUNT_MAX)
    ids = _ids(rng, 1000)[rng.integers(0, 1000, count)]
    return _hostile(rng, ids=ids, numbers=rng.integers(0, counts), counts=counts)


def one_byte_each(rng: np.random.Generator, count: int) -> pa.Table:
    """Returns one-byte fragments of four messages that claim 2^31 - 1 fragments, or the most that are accepted."""
    which = rng.integers(0, 4, count)
    counts = np.where(which < 2, ACCEPTED_COUNT, COUNT_MAX)
    return _hostile(rng, ids=_ids(rng, 4)[which], numbers=rng.integers(0, counts), counts=counts, part_bytes=1)


def of_all_kinds(rng: np.random.Generator, count: int) -> pa.Table:
    """Returns equally many fragments of each kind."""
    makers = (first_fragments, contradicting_counts, one_byte_each)
    together = pa.concat_tables([make(rng, -(-count // len(makers))) for make in makers]).combine_chunks()
    return together.take(column(rng.permutation(together.num_rows)[:count]))


KINDS: Final[Mapping[str, Callable[[np.random.Generator, int], pa.Table]]] = {
    "first fragments only": first_fragments,
    "contradicting counts": contradicting_counts,
    "one byte of up to 2^31 - 1": one_byte_each,
    "all kinds": of_all_kinds,
}


def mixed(one: pa.Table, other: pa.Table, rng: np.random.Generator) -> pa.Table:
    """Interleaves the rows of two tables randomly; the rows of each stay in order."""
    is_one = rng.permutation(np.arange(one.num_rows + other.num_rows) < one.num_rows)
    rows = np.where(is_one, np.cumsum(is_one) - 1, one.num_rows + np.cumsum(~is_one) - 1)
    return pa.concat_tables([one, other]).combine_chunks().take(column(rows))


def _hostile(
    rng: np.random.Generator, *, ids: Bytes, numbers: Ints, counts: Ints, part_bytes: int = _PART_BYTES
) -> pa.Table:
    rows = len(ids)
    bodies = np.repeat(rng.integers(0, 256, (1, part_bytes), np.uint8), rows, axis=0)
    columns = [
        fixed(ids),
        column(np.ones(rows, np.bool_)),
        column(np.zeros(rows, np.int64)),
        column(numbers.astype(np.int32)),
        column(counts.astype(np.int32)),
        equally_long(bodies),
        fixed(np.zeros((rows, 16), np.uint8)),
        _signatures(bodies),
    ]
    return pa.Table.from_arrays(columns, schema=schemas.FRAGMENTS)


def _set(table: pa.Table, **columns: Column) -> pa.Table:
    for name, values in columns.items():
        at = table.column_names.index(name)
        table = table.set_column(at, table.field(at), values)
    return table


def _signatures(bodies: Bytes) -> Column:
    """Returns the MD5 of the first row for every row, because all rows are equal."""
    digest = np.frombuffer(hashlib.md5(bodies[0]).digest(), np.uint8)
    return fixed(np.tile(digest, (len(bodies), 1)))


def _ids(rng: np.random.Generator, count: int) -> Bytes:
    return rng.integers(0, 256, (count, 16), np.uint8)
