"""The last step of rivals that sort: sorted fragments in one buffer are messages already."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benches.columns import Column, buffer, column

Ints: TypeAlias = npt.NDArray[np.int64]

KEYS: Final = ("conversation_id", "is_initiator", "message_sequence_number", "fragment_number")


def messages_of(fragments: pa.Table) -> pa.Table:
    """Returns messages of sorted fragments without duplicates: verifies their MD5 and splits the buffer of bodies."""
    bodies = fragments["message_body"]
    if bodies.num_chunks != 1:
        raise ValueError("the bodies must be in one buffer")
    offsets, data = _buffers(bodies.chunk(0))
    number = fragments["fragment_number"].to_numpy()
    count = fragments["fragment_count"].to_numpy()
    starts = np.flatnonzero(number == 0)
    ends = np.append(starts[1:], len(number))
    # The fragments of a message have ascending numbers, up to the count.
    if not np.array_equal(ends - starts, count[starts]) or not np.array_equal(
        number, np.arange(len(number)) - np.repeat(starts, ends - starts)
    ):
        raise ValueError("rivals accept only complete messages")
    if fragments["fragment_signature"].null_count == 0:
        compare(data, offsets, fragments["fragment_signature"])
    heads = fragments.select(["conversation_id", "is_initiator", "message_sequence_number", "message_signature"]).take(
        column(starts)
    )
    edges = offsets[np.append(starts, len(number))]
    compare(data, edges, heads["message_signature"])
    whole: Any = pa.Array.from_buffers(pa.large_binary(), len(starts), [None, buffer(edges), data])
    return heads.append_column("message_body", whole)


def compare(data: pa.Buffer, edges: Ints, signatures: Column) -> None:
    """Compares the MD5 of each slice of the buffer with its signature."""
    md5, view = hashlib.md5, memoryview(data)
    found = b"".join([md5(view[start:end]).digest() for start, end in pairwise(edges.tolist())])
    given = signatures.cast(pa.binary(16)).combine_chunks()
    if memoryview(given.buffers()[1]).cast("B")[16 * given.offset :][: 16 * len(given)] != found:
        raise ValueError("rivals accept only valid fragments")


def _buffers(bodies: Column) -> tuple[Ints, pa.Buffer]:
    width = np.int64 if pa.types.is_large_binary(bodies.type) else np.int32
    offsets = np.frombuffer(bodies.buffers()[1], width)[bodies.offset : bodies.offset + len(bodies) + 1]
    return offsets.astype(np.int64), bodies.buffers()[2]
