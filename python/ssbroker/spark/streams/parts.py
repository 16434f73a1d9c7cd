"""How Spark keeps the state of a bucket: as text, in parts, so that a large state is never one large value of the JVM, which copies values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from ssbroker.exceptions import MalformedDataError
from ssbroker.spark.streams import text

NAME: Final = "bucket"
"""The name of the state variable: a map from numbers to parts."""

PART_CHARACTERS = 16 << 20
_KEY: Final = "part int"
_VALUE: Final = "state string, parts int"


class Parts:
    """The state of the bucket whose turn it is.

    Args:
        handle: Spark's.
    """

    def __init__(self, handle: Any) -> None:
        self._parts: Final = handle.getMapState(NAME, _KEY, _VALUE)
        self._count = 0

    def get(self) -> bytes | None:
        """What is kept, None for nothing. It is asked before anything is put or cleared."""
        first = self._parts.getValue((0,))
        if first is None:
            self._count = 0
            return None
        begin, self._count = first
        rest = [self._parts.getValue((number,))[0] for number in range(1, self._count)]
        return text.to_bytes("".join([begin, *rest]))

    def put(self, state: bytes) -> None:
        """Keeps this in place of what was kept."""
        whole = text.of_bytes(state)
        count = -(-len(whole) // PART_CHARACTERS)
        for number in range(count):
            part = whole[number * PART_CHARACTERS : (number + 1) * PART_CHARACTERS]
            self._parts.updateValue((number,), (part, count))
        for number in range(count, self._count):
            self._parts.removeKey((number,))

    def clear(self) -> None:
        """Keeps nothing."""
        self._parts.clear()


def whole_states(rows: Iterable[tuple[int, int, str, int]]) -> Iterator[tuple[int, bytes]]:
    """The states of buckets, of rows that have their parts in any order.

    Args:
        rows: The bucket, the number of the part, the part, how many there are.

    Yields:
        The bucket and its state.

    Raises:
        MalformedDataError: A part is missing.
    """
    found: dict[int, dict[int, str]] = {}
    for bucket, number, part, count in rows:
        parts = found.setdefault(bucket, {})
        parts[number] = part
        if len(parts) == count:
            yield bucket, text.to_bytes("".join(parts[place] for place in range(count)))
            del found[bucket]
    if found:
        raise MalformedDataError(f"state: parts of bucket {min(found)} are missing")
