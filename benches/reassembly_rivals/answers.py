"""Compares the messages of rivals, independently of chunks and the order of conversations."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benches.columns import Column

Values: TypeAlias = npt.NDArray[Any]


def digest(messages: pa.Table) -> str:
    """Hashes keys and bodies of all messages, sorted by conversation id and direction.

    Messages of a direction are hashed in the given order, so equal digests mean the same order.
    """
    ids: Column = messages["conversation_id"].cast(pa.binary(16)).combine_chunks()
    words: Values = np.frombuffer(ids.buffers()[1], ">u8").reshape(-1, 2)[ids.offset : ids.offset + len(ids)]
    is_initiator: Values = messages["is_initiator"].to_numpy()
    sequences: Values = messages["message_sequence_number"].to_numpy()
    order = np.lexsort([is_initiator, words[:, 1], words[:, 0]])
    bodies = [body for chunk in messages["message_body"].chunks for body in _views(chunk)]
    lengths = np.array([len(body) for body in bodies], np.int64)
    return digest_of(
        words[order], is_initiator[order], sequences[order], lengths[order], (bodies[row] for row in order.tolist())
    )


def digest_of(
    ids: Values, is_initiator: Values, sequences: Values, lengths: Values, bodies: Iterable[memoryview]
) -> str:
    """Hashes sorted messages; `bodies` are their concatenated bodies in any chunks."""
    state = hashlib.blake2b(digest_size=16)
    for values in (ids, is_initiator.astype(np.uint8), sequences.astype(np.int64), lengths.astype(np.int64)):
        state.update(values.tobytes())
    for body in bodies:
        state.update(body)
    return state.hexdigest()


def _views(bodies: Column) -> list[memoryview]:
    """Returns the values of a chunk without a copy."""
    if len(bodies) == 0:
        return []
    width = np.int64 if pa.types.is_large_binary(bodies.type) else np.int32
    offsets = np.frombuffer(bodies.buffers()[1], width)[bodies.offset : bodies.offset + len(bodies) + 1].tolist()
    data = memoryview(bodies.buffers()[2])
    return [data[start:end] for start, end in pairwise(offsets)]
