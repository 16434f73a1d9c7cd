"""The traffic that the benches of reassembly take: the sizes of the full form, or smaller by a factor."""

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
    """The shape of this name with so many times fewer messages, in so many times fewer conversations.

    Example:
        >>> shape("m", shrunk=10).messages
        5000
    """
    full = _FULL[name]
    conversations = max(1, full.conversations // shrunk)
    each = max(1, full.messages // shrunk // (2 * conversations))
    return dataclasses.replace(full, conversations=conversations, messages=2 * conversations * each)


def text(of: Shape) -> str:
    """Say it in words.

    Example:
        >>> text(shape("l", shrunk=1))
        '200 messages of 512 x 16384 B, shuffled, 1% twice'
    """
    parts = f"{of.messages:,} messages of {of.parts} x {of.part_bytes} B"
    order = "shuffled" if of.is_shuffled else f"in turns of {of.directions:,} directions"
    again = f", {of.duplicates:.0%} twice" if of.duplicates else ""
    signed = ", fragments signed too" if of.has_fragment_signatures else ""
    return f"{parts}, {order}{again}{signed}"
