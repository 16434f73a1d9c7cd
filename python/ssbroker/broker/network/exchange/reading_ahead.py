"""Parts of large bodies, read ahead: SQLite walks to a place in a body from its beginning, page by page (N39)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ssbroker.protocol.ledger import Key
from ssbroker.store import remote
from ssbroker.store.sqlite import Connection

HELD_BYTES_MAX: Final = 16 << 20
"""How many bytes are read ahead of all bodies together; held are twice as many at most, with what was asked for."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A piece of a body that was read last."""

    sequence: int
    transmission_id: int
    begin: int
    data: bytes
    reaches_end: bool

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    def has(self, begin: int, end: int) -> bool:
        return begin >= self.begin and (end <= self.end or self.reaches_end)


class ReadingAhead:
    """Reads parts of bodies, and holds what follows them; that of messages which were not read for the longest time goes. For one thread."""

    def __init__(self) -> None:
        self._held: Final[OrderedDict[Key, _Held]] = OrderedDict()

    def parts(
        self, connection: Connection, key: Key, sequence: int, spans: Sequence[tuple[int, int]]
    ) -> list[bytes] | None:
        """Parts of the body of a message that an endpoint sends.

        Args:
            connection: The database, within a transaction.
            key: The endpoint.
            sequence: The message.
            spans: From which byte to before which, in order; what is beyond the end is left out.

        Returns:
            The bytes of each; None where the message is not there any more.
        """
        place = remote.place_of(connection, key, sequence)
        held = self._held.pop(key, None)
        if place is None:
            return None
        if held is not None and (held.sequence, held.transmission_id) == (sequence, place):
            self._held[key] = held
            if all(held.has(*span) for span in spans):
                return [held.data[begin - held.begin : end - held.begin] for begin, end in spans]
            if spans[-1][1] <= held.end:  # something goes again, and what is held is still to come
                return remote.parts_of(connection, place, spans)
            del self._held[key]
        if not spans:
            return []
        *earlier, (begin, end) = spans
        asked = end + HELD_BYTES_MAX // (len(self._held) + 1)
        *found, read = remote.parts_of(connection, place, [*earlier, (begin, asked)])
        self._hold(key, _Held(sequence, place, begin, read, reaches_end=len(read) < asked - begin))
        return [*found, read[: end - begin]]

    def let_go(self) -> None:
        """Holds nothing any more."""
        self._held.clear()

    def _hold(self, key: Key, held: _Held) -> None:
        self._held[key] = held
        while sum(len(each.data) for each in self._held.values()) > 2 * HELD_BYTES_MAX:
            self._held.popitem(last=False)
