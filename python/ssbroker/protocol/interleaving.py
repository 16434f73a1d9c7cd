"""The order in which fragments of one dialog go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def interleaved(rows: Sequence[int], sequences: Sequence[int], counts: Sequence[int]) -> Iterator[int]:
    """Rows of a dialog so that the single messages after a large one go between its fragments (P13).

    Args:
        rows: Rows, by message and fragment.
        sequences: The message of each row.
        counts: How many fragments it has.

    Yields:
        The rows.

    Examples:
        >>> list(interleaved(range(6), [0, 0, 0, 1, 2, 3], [3, 3, 3, 1, 1, 2]))
        [0, 3, 1, 4, 2, 5]
    """
    at = 0
    while at < len(rows):
        first = rows[at]
        if counts[first] == 1:
            yield first
            at += 1
            continue
        end = at
        while end < len(rows) and sequences[rows[end]] == sequences[first]:
            end += 1
        after = end
        while after < len(rows) and counts[rows[after]] == 1 and after - end < end - at:
            after += 1
        for offset in range(end - at):
            yield rows[at + offset]
            if end + offset < after:
                yield rows[end + offset]
        at = after
