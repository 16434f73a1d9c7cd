"""Large messages that are under way, cut: what a turn sends of one takes no more than that much to read."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import pyarrow as pa

from ssbroker import schemas
from ssbroker.protocol.columns import pieces
from ssbroker.protocol.ledger import Key

WORTH_KEEPING: Final = 1 << 20
"""From how many bytes on a message is kept cut in any case; smaller ones while they are under way."""
FRAGMENTS_MAX: Final = 1 << 16
"""Of how many fragments the digests are kept at most, but for those of the last message."""
FRAGMENTS_LEAST: Final = 32
"""As how many fragments a message counts that has fewer: so much does it take anyway."""
_BODY: Final = schemas.FRAGMENTS.get_field_index("message_body")


class Cuts:
    """Cut messages without their bytes, the last used ones.

    Examples:
        >>> from ssbroker.fragments import fragment
        >>> messages = pa.table({"conversation_id": [bytes(16)], "is_initiator": [True], "message_sequence_number": [3], "message_body": [b"onetwo"]})
        >>> cuts = Cuts()
        >>> cuts.keep((bytes(16), True), 3, fragment(messages, max_fragment_bytes=3))
        >>> cuts.has((bytes(16), True), 3), cuts.has((bytes(16), True), 4)
        (True, False)
        >>> part = cuts.part((bytes(16), True), 3, 1, b"two", size=3)
        >>> part.equals(fragment(messages, max_fragment_bytes=3).slice(1))
        True
    """

    __slots__ = ("_fragments", "_kept")

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Key, int], pa.Table] = OrderedDict()
        self._fragments = 0

    def keep(self, key: Key, sequence: int, fragments: pa.Table) -> None:
        """Keeps what is said of a message's fragments; that of messages which were not used for the longest time goes.

        Args:
            key: The endpoint.
            sequence: The message.
            fragments: All its fragments, in order.
        """
        self.drop(key, sequence)
        while self._kept and self._fragments + _count(fragments) > FRAGMENTS_MAX:
            _, gone = self._kept.popitem(last=False)
            self._fragments -= _count(gone)
        # Taken, because a slice would hold all that was cut with it, the bytes too.
        self._kept[key, sequence] = fragments.remove_column(_BODY).take(pa.array(range(fragments.num_rows)))
        self._fragments += _count(fragments)

    def has(self, key: Key, sequence: int) -> bool:
        """Whether a message is kept; then it has been used."""
        if (key, sequence) not in self._kept:
            return False
        self._kept.move_to_end((key, sequence))
        return True

    def part(self, key: Key, sequence: int, first: int, body: bytes, *, size: int) -> pa.Table:
        """Fragments that follow one another, of a message that is kept.

        Args:
            key: The endpoint.
            sequence: The message.
            first: The first fragment.
            body: The bytes of all of them.
            size: How many bytes one has; the last may have fewer.

        Returns:
            The fragments as they were cut.
        """
        column = pieces(body, size)
        rows = self._kept[key, sequence].slice(first, len(column))
        return rows.add_column(_BODY, schemas.FRAGMENTS.field(_BODY), column)

    def drop(self, key: Key, sequence: int) -> None:
        """Drops one message."""
        gone = self._kept.pop((key, sequence), None)
        self._fragments -= 0 if gone is None else _count(gone)

    def forget(self, key: Key) -> None:
        """Drops all of an endpoint."""
        for place in [place for place in self._kept if place[0] == key]:
            self.drop(*place)


def _count(fragments: pa.Table) -> int:
    return max(fragments.num_rows, FRAGMENTS_LEAST)
