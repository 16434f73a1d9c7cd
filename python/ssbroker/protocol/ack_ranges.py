"""The ranges of fragments that an acknowledgement names, and the bit masks of fragments."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

AckRange: TypeAlias = tuple[int, int, int, int]
"""The first message and fragment, and the last message and fragment, both inclusive; everything between them has arrived."""

ACK_RANGES_MAX: Final = 512
"""The maximum number of ranges; further ranges are not acknowledged, and their fragments are sent again."""

_RUN: Final = struct.Struct(">qiqi")


def bit_ranges(mask: int) -> Iterator[tuple[int, int]]:
    """Yields the first and last bit of each run of ones in a number."""
    first = 0
    while mask:
        skipped = (mask & -mask).bit_length() - 1
        mask >>= skipped
        ones = (mask ^ (mask + 1)).bit_length() - 1
        mask >>= ones
        first += skipped
        yield first, first + ones - 1
        first += ones


def pack_ack_ranges(runs: Iterable[AckRange]) -> bytes:
    """Packs ranges into 24 bytes each.

    Examples:
        >>> unpack_ack_ranges(pack_ack_ranges([(3, 0, 4, 2)]))
        [(3, 0, 4, 2)]
    """
    return b"".join([_RUN.pack(*run) for run in runs])


def unpack_ack_ranges(data: bytes) -> list[AckRange] | None:
    """Unpacks ranges from a peer; None if they are truncated, too many, not ascending or negative.

    Examples:
        >>> unpack_ack_ranges(b"x") is None, unpack_ack_ranges(pack_ack_ranges([(1, 2, 1, 1)])) is None
        (True, True)
    """
    if len(data) % _RUN.size or len(data) > ACK_RANGES_MAX * _RUN.size:
        return None
    runs: list[AckRange] = list(_RUN.iter_unpack(data))
    before = (-1, 0)
    for first_message, first, last_message, last in runs:
        if not before < (first_message, first) <= (last_message, last) or first < 0 or last < 0:
            return None
        before = (last_message, last)
    return runs


def lowest_bits(mask: int, limit: int) -> int:
    """Returns a number that keeps only the lowest `limit` one-bits.

    Examples:
        >>> bin(lowest_bits(0b10110, 2))
        '0b110'
    """
    if mask.bit_count() <= limit:
        return mask
    taken = 0
    for first, last in bit_ranges(mask):
        number = min(limit, last + 1 - first)
        taken |= ((1 << number) - 1) << first
        limit -= number
        if not limit:
            break
    return taken


def fragments_in_range(run: AckRange, sequence: int, count: int) -> int:
    """Returns a bit mask of the fragments of a message that a range names.

    Examples:
        >>> bin(fragments_in_range((3, 1, 4, 0), 3, 4))
        '0b1110'
    """
    first_message, first, last_message, last = run
    low = first if sequence == first_message else 0
    high = min(last, count - 1) if sequence == last_message else count - 1
    return (2 << high) - (1 << low) if low <= high else 0
