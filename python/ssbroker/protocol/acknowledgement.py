"""What a receiver tells a sender (P15): all messages up to a number, and runs of fragments beyond it, so that only what is lost goes again."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

Run: TypeAlias = tuple[int, int, int, int]
"""From which message and fragment to which, both included; all that lies between is there."""

RUNS_MAX: Final = 512
"""More runs than this are not told; their fragments are sent once more."""

_RUN: Final = struct.Struct(">qiqi")


def bit_runs(mask: int) -> Iterator[tuple[int, int]]:
    """The runs of ones in a number, as first and last bit."""
    first = 0
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        mask >>= zeros
        ones = (mask ^ (mask + 1)).bit_length() - 1
        mask >>= ones
        first += zeros
        yield first, first + ones - 1
        first += ones


def packed(runs: Iterable[Run]) -> bytes:
    """The runs as they travel.

    Args:
        runs: The runs.

    Returns:
        24 bytes for each.

    Examples:
        >>> unpacked(packed([(3, 0, 4, 2)]))
        [(3, 0, 4, 2)]
    """
    return b"".join([_RUN.pack(*run) for run in runs])


def unpacked(data: bytes) -> list[Run] | None:
    """The runs that somebody sent.

    Args:
        data: What came.

    Returns:
        The runs; None where they are cut off, too many, not ascending or below nothing.

    Examples:
        >>> unpacked(b"x") is None, unpacked(packed([(1, 2, 1, 1)])) is None
        (True, True)
    """
    if len(data) % _RUN.size or len(data) > RUNS_MAX * _RUN.size:
        return None
    runs: list[Run] = list(_RUN.iter_unpack(data))
    before = (-1, 0)
    for first_message, first, last_message, last in runs:
        if not before < (first_message, first) <= (last_message, last) or first < 0 or last < 0:
            return None
        before = (last_message, last)
    return runs
