"""Comparing the messages that rivals made, whatever the order of the conversations and the chunks."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
import pyarrow as pa

KEYS: Final = ("conversation_id", "is_initiator", "message_sequence_number")


def digest(messages: pa.Table) -> str:
    """Hash keys and bodies of all messages by conversation id and direction.

    Within a direction they are taken as they come, so that equal digests mean that they came in the same order.
    """
    words = _words(messages)
    is_initiator = messages["is_initiator"].to_numpy()
    order = np.lexsort([is_initiator, words[:, 1], words[:, 0]])
    bodies = [body for chunk in messages["message_body"].chunks for body in _views(chunk)]
    lengths = np.array([len(body) for body in bodies], np.int64)
    state = hashlib.blake2b(digest_size=16)
    state.update(words[order].astype(">u8"))
    for values in (
        is_initiator[order].astype(np.uint8),
        messages["message_sequence_number"].to_numpy()[order].astype(np.int64),
        lengths[order],
    ):
        state.update(np.ascontiguousarray(values))
    for row in order:
        state.update(bodies[row])
    return state.hexdigest()


def _words(messages: pa.Table) -> Any:
    """The conversation ids as two numbers each, which sort as their bytes do."""
    ids = messages["conversation_id"].cast(pa.binary(16)).combine_chunks()
    return np.frombuffer(ids.buffers()[1], ">u8").reshape(-1, 2)[ids.offset : ids.offset + len(ids)].astype(np.uint64)


def _views(bodies: Any) -> list[memoryview]:
    """The values of a chunk, without a copy."""
    if not len(bodies):
        return []
    width = np.int64 if pa.types.is_large_binary(bodies.type) else np.int32
    offsets = np.frombuffer(bodies.buffers()[1], width)[bodies.offset : bodies.offset + len(bodies) + 1].tolist()
    data = memoryview(bodies.buffers()[2])
    return [data[start:end] for start, end in zip(offsets, offsets[1:], strict=False)]
