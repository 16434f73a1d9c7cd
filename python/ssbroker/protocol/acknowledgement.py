"""What a receiver tells a sender (P15): all messages up to a number, and runs of fragments beyond it, so that only what is lost goes again."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from ssbroker.protocol.spans import Spans

Run: TypeAlias = tuple[int, int, int, int]
"""From which message and fragment to which, both included; all that lies between is there."""

RUNS_MAX: Final = 512
"""More runs than this are not told; their fragments are sent once more."""

_RUN: Final = struct.Struct(">qiqi")


def runs_of(early: Mapping[int, tuple[int, Spans]]) -> list[Run]:
    """What is there of messages that are incomplete or wait for others, as runs.

    Args:
        early: For each such message how many fragments it has, and which are there.

    Returns:
        At most `RUNS_MAX` runs, ascending.

    Examples:
        >>> early = {number: (4, Spans()) for number in (3, 4)}
        >>> for sequence, fragment in ((3, 2), (3, 3), (4, 0), (4, 3)):
        ...     early[sequence][1].add(fragment)
        >>> runs_of(early)
        [(3, 2, 4, 0), (4, 3, 4, 3)]
    """
    runs: list[Run] = []
    joins = (-1, 0)  # where a run would go on
    for sequence in sorted(early):
        count, there = early[sequence]
        for first, last in there:
            if (sequence, first) == joins:
                runs[-1] = (*runs[-1][:2], sequence, last)
            elif len(runs) == RUNS_MAX:
                return runs
            else:
                runs.append((sequence, first, sequence, last))
            joins = (sequence + 1, 0) if last == count - 1 else (-1, 0)
    return runs


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
