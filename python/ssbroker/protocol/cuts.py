"""Large messages that are under way, cut: so that each turn does not read, cut and sign all of them again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import pyarrow as pa

from ssbroker.protocol.ledger import Key

WORTH_KEEPING: Final = 1 << 20
"""From how many bytes on a message is kept; smaller ones are read again."""
KEPT_MAX: Final = 128 << 20
"""How many bytes are kept at most, but for the last one."""


class Cuts:
    """Cut messages, the last used ones.

    Examples:
        >>> cuts = Cuts()
        >>> cuts.keep((bytes(16), True), 3, pa.table({"message_body": [b"part"]}), size=4)
        >>> cuts.find((bytes(16), True), 3).num_rows, cuts.find((bytes(16), True), 4)
        (1, None)
    """

    __slots__ = ("_bytes", "_kept")

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Key, int], tuple[pa.Table, int]] = OrderedDict()
        self._bytes = 0

    def keep(self, key: Key, sequence: int, fragments: pa.Table, *, size: int) -> None:
        """Keeps a message's fragments, in order; those that were not used for the longest time go."""
        self.drop(key, sequence)
        while self._kept and self._bytes + size > KEPT_MAX:
            _, (_, gone) = self._kept.popitem(last=False)
            self._bytes -= gone
        self._kept[key, sequence] = (fragments, size)
        self._bytes += size

    def find(self, key: Key, sequence: int) -> pa.Table | None:
        """A message's fragments, where they are kept."""
        found = self._kept.get((key, sequence))
        if found is None:
            return None
        self._kept.move_to_end((key, sequence))
        return found[0]

    def drop(self, key: Key, sequence: int) -> None:
        """Drops one message."""
        _, size = self._kept.pop((key, sequence), (None, 0))
        self._bytes -= size

    def forget(self, key: Key) -> None:
        """Drops all of an endpoint."""
        for place in [place for place in self._kept if place[0] == key]:
            self.drop(*place)
