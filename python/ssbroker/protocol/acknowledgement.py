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


def lowest(mask: int, most: int) -> int:
    """The lowest ones of a number, as many as may be.

    Args:
        mask: The number.
        most: How many.

    Returns:
        The number without its other ones.

    Examples:
        >>> bin(lowest(0b10110, 2))
        '0b110'
    """
    if mask.bit_count() <= most:
        return mask
    taken = 0
    for first, last in bit_runs(mask):
        number = min(most, last + 1 - first)
        taken |= ((1 << number) - 1) << first
        most -= number
        if not most:
            break
    return taken


def named(run: Run, sequence: int, count: int) -> int:
    """Which fragments of a message a run names.

    Args:
        run: The run.
        sequence: The message.
        count: How many fragments it has.

    Returns:
        They as bits.

    Examples:
        >>> bin(named((3, 1, 4, 0), 3, 4))
        '0b1110'
    """
    first_message, first, last_message, last = run
    low = first if sequence == first_message else 0
    high = min(last, count - 1) if sequence == last_message else count - 1
    return (2 << high) - (1 << low) if low <= high else 0
