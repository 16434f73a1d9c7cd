"""A cache of the fragments of messages that take several turns to send."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import pyarrow as pa

from ssbroker import schemas
from ssbroker.protocol.arrow_columns import sliced_column
from ssbroker.protocol.storage import EndpointKey

CACHED_BYTES_MIN: Final = 1 << 20
"""The fragments of messages of at least this size are always cached; those of smaller ones only while they are in progress."""
CACHED_FRAGMENTS_MAX: Final = 1 << 16
"""The maximum number of cached fragments, apart from those of the last message."""
COUNTED_FRAGMENTS_MIN: Final = 32
"""A cached message counts as at least this many fragments, because of its fixed overhead."""
_BODY: Final = schemas.FRAGMENTS.get_field_index("message_body")


class FragmentCache:
    """The fragments of recently used messages, without their bodies: a least-recently-used cache.

    Examples:
        >>> from ssbroker.reassembly import fragment
        >>> messages = pa.table({"conversation_id": [bytes(16)], "is_initiator": [True], "message_sequence_number": [3], "message_body": [b"onetwo"]})
        >>> cache = FragmentCache()
        >>> cache.put((bytes(16), True), 3, fragment(messages, max_fragment_bytes=3))
        >>> cache.has((bytes(16), True), 3), cache.has((bytes(16), True), 4)
        (True, False)
        >>> part = cache.fragments_of((bytes(16), True), 3, 1, b"two", size=3)
        >>> part.equals(fragment(messages, max_fragment_bytes=3).slice(1))
        True
    """

    __slots__ = ("_fragments", "_messages")

    def __init__(self) -> None:
        self._messages: OrderedDict[tuple[EndpointKey, int], pa.Table] = OrderedDict()
        self._fragments = 0

    def put(self, key: EndpointKey, sequence: int, fragments: pa.Table) -> None:
        """Caches all fragments of a message and evicts the least recently used messages if necessary."""
        self.drop(key, sequence)
        while self._messages and self._fragments + _counted_fragments(fragments) > CACHED_FRAGMENTS_MAX:
            _, evicted = self._messages.popitem(last=False)
            self._fragments -= _counted_fragments(evicted)
        # `take` copies: a slice would keep the whole batch alive, including the bodies.
        self._messages[key, sequence] = fragments.remove_column(_BODY).take(pa.array(range(fragments.num_rows)))
        self._fragments += _counted_fragments(fragments)

    def has(self, key: EndpointKey, sequence: int) -> bool:
        """Returns whether a message is cached, and marks it as recently used."""
        if (key, sequence) not in self._messages:
            return False
        self._messages.move_to_end((key, sequence))
        return True

    def fragments_of(self, key: EndpointKey, sequence: int, first: int, body: bytes, *, size: int) -> pa.Table:
        """Returns consecutive fragments of a cached message.

        Args:
            key: The endpoint.
            sequence: The message.
            first: The number of the first fragment.
            body: The content of these fragments.
            size: The size of a fragment in bytes; the last one may be shorter.
        """
        column = sliced_column(body, size)
        rows = self._messages[key, sequence].slice(first, len(column))
        return rows.add_column(_BODY, schemas.FRAGMENTS.field(_BODY), column)

    def drop(self, key: EndpointKey, sequence: int) -> None:
        """Removes the cached fragments of a message."""
        dropped = self._messages.pop((key, sequence), None)
        self._fragments -= 0 if dropped is None else _counted_fragments(dropped)

    def drop_dialog(self, key: EndpointKey) -> None:
        """Drops all messages of an endpoint."""
        for place in [place for place in self._messages if place[0] == key]:
            self.drop(*place)


def _counted_fragments(fragments: pa.Table) -> int:
    return max(fragments.num_rows, COUNTED_FRAGMENTS_MIN)
