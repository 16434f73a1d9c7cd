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
"""How many bytes are held of all bodies together."""


@dataclass(frozen=True, slots=True)
class _Held:
    """What comes next of a body."""

    sequence: int
    transmission_id: int
    begin: int
    data: bytes

    @property
    def end(self) -> int:
        return self.begin + len(self.data)


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
        if held is not None and (held.sequence, held.transmission_id) != (sequence, place):
            held = None
        if held is not None and all(held.begin <= begin and end <= held.end for begin, end in spans):
            self._held[key] = held
            return [held.data[begin - held.begin : end - held.begin] for begin, end in spans]
        ahead = HELD_BYTES_MAX // (len(self._held) + 1)
        *earlier, (begin, end) = spans or [(0, 0)]
        if held is not None and end <= held.end:  # something goes again, and what is held is still to come
            self._held[key] = held
            return remote.parts_of(connection, place, spans)
        *found, read = remote.parts_of(connection, place, [*earlier, (begin, end + ahead)])
        self._hold(key, _Held(sequence, place, end, read[end - begin :]))
        return [*found, read[: end - begin]] if spans else []

    def let_go(self) -> None:
        """Holds nothing any more."""
        self._held.clear()

    def _hold(self, key: Key, held: _Held) -> None:
        if not held.data:
            return
        self._held[key] = held
        while sum(len(each.data) for each in self._held.values()) > HELD_BYTES_MAX:
            self._held.popitem(last=False)
