"""What a turn has to read of its transmission queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ssbroker.protocol.cuts import WORTH_KEEPING
from ssbroker.protocol.envelope import SEQUENCE_MAX
from ssbroker.protocol.ledger import Wanted
from ssbroker.protocol.turn import Turn

_ANY: Final = 2**63 - 1


def wanted(turn: Turn, largest: int) -> list[Wanted]:
    """Ranges of messages: those that go again, the one that is under way, and those after it, as far as they are not too large to begin.

    Args:
        turn: The turn.
        largest: The longest message that it may begin.

    Returns:
        The ranges, in order.
    """
    transmission, key = turn.dialog.transmission, turn.dialog.key
    if not turn.dialog.is_known:
        return [Wanted(key, 0, SEQUENCE_MAX, turn.room, turn.most_bytes, largest)]
    head, after = transmission.head, max(transmission.head, transmission.passed) + 1
    is_begun = transmission.cursor > 0 or after > head + 1
    if not (turn.lost or is_begun):
        following = Wanted(key, head, turn.last, turn.room, turn.most_bytes, largest)
        return [following] if turn.room and head <= turn.last else []
    numbers = {number for flight in turn.lost for number in flight.fragments} - turn.found
    if turn.room and head <= turn.last and head not in turn.found:
        if is_begun:
            numbers.add(head)
        else:  # nothing of it was sent, and nothing has passed it: it is the first of those that follow
            after = head
    ranges = [Wanted(key, first, first + number - 1, number, _ANY) for first, number in _ranges(sorted(numbers))]
    if turn.room and after <= turn.last:
        most = largest if after == head else _passing(turn)
        ranges.append(Wanted(key, after, turn.last, turn.room, turn.most_bytes, most))
    return ranges


def _passing(turn: Turn) -> int:
    """The longest message that may pass the one that is under way: a single one; where that will be through, what is not large may follow."""
    return min(turn.fragment_bytes, WORTH_KEEPING) if turn.is_passing else WORTH_KEEPING


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as runs: first, and how many."""
    at = 0
    while at < len(numbers):
        end = at + 1
        while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
            end += 1
        yield numbers[at], end - at
        at = end
