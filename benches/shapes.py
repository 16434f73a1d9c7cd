"""The shapes of traffic for the reassembly benchmarks, in full size or divided by a factor."""

from __future__ import annotations

import dataclasses
from typing import Final

from benches.fragments import Shape

SMALL: Final = "s"
SMALL_SHUFFLED: Final = "s, shuffled"
MIDDLE: Final = "m"
MIDDLE_SIGNED: Final = "m, fragments signed too"
LARGE: Final = "l"

_FULL: Final = {
    SMALL: Shape(messages=1_000_000, parts=1, part_bytes=512, conversations=50_000, is_shuffled=False),
    SMALL_SHUFFLED: Shape(messages=1_000_000, parts=1, part_bytes=512, conversations=50_000),
    MIDDLE: Shape(messages=50_000, parts=8, part_bytes=4096, conversations=1000),
    MIDDLE_SIGNED: Shape(messages=50_000, parts=8, part_bytes=4096, conversations=1000, has_fragment_signatures=True),
    LARGE: Shape(messages=200, parts=512, part_bytes=16_384, conversations=20, duplicates=0.01),
}

NAMES: Final = tuple(_FULL)


def shape(name: str, *, shrunk: int) -> Shape:
    """Returns the shape of this name, with the number of messages and conversations divided by `shrunk`.

    Example:
        >>> shape("m", shrunk=10).messages
        5000
    """
    full = _FULL[name]
    conversations = max(1, full.conversations // shrunk)
    each = max(1, full.messages // shrunk // (2 * conversations))
    return dataclasses.replace(full, conversations=conversations, messages=2 * conversations * each)


def text(of: Shape) -> str:
    """Describes a shape.

    Example:
        >>> text(shape("l", shrunk=1))
        '200 messages of 512 x 16384 B, shuffled, 1% duplicates'
    """
    parts = f"{of.messages:,} messages of {of.parts} x {of.part_bytes} B"
    order = "shuffled" if of.is_shuffled else f"{of.directions:,} directions interleaved"
    again = f", {of.duplicates:.0%} duplicates" if of.duplicates else ""
    signed = ", fragments signed too" if of.has_fragment_signatures else ""
    return f"{parts}, {order}{again}{signed}"
