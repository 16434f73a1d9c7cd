"""The received batches that wait for the exchange, and the fragments that are held until a large message is complete."""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker.protocol.arrow_columns import column_values, concatenated
from ssbroker.protocol.settings import SECOND
from ssbroker.protocol.storage import EndpointKey
from ssbroker.protocol.wire.frames import size_of

if TYPE_CHECKING:
    from ssbroker.broker.network.interfaces import Peer

Batch: TypeAlias = "tuple[Peer, pa.Table]"
"""Rows of `wire.frames.WIRE`, and the peer that sent them."""

ROWS_MAX: Final = 4096
"""The number of rows that one turn processes, in whole batches; while this many rows wait, connections are not read."""
BYTES_MAX: Final = 8 << 20
"""The same limit as `ROWS_MAX`, in bytes."""
_RESUME_SHARE: Final = 0.5
"""Reading from connections resumes when the inbox has shrunk to this share of the limits."""

HELD_BYTES_MAX: Final = 32 << 20
"""The maximum size of the rows that are held until their messages are complete; longer messages are not held."""
HELD_PAUSE: Final = SECOND // 20
"""Rows are released if no other fragment of their message arrives within this time: the sender may be waiting for an acknowledgement."""
HELD_TIME: Final = SECOND
"""The maximum time for which rows are held, because the sender's timer of 4 s (P17) is running."""
_SPLIT_BYTES_MIN: Final = 64 << 10
"""While no rows are held, a batch smaller than this is not treated as the beginning of a large message."""
_RELEASED_MAX: Final = 1_000
_FRAGMENT_COLUMNS: Final = (
    "conversation_id",
    "is_initiator",
    "message_sequence_number",
    "fragment_number",
    "fragment_count",
)


@dataclass(slots=True)
class _HeldRows:
    """The rows of a dialog that are held until a message is complete.

    Attributes:
        batches: The rows, in order.
        bytes: The size of the rows. A part of a batch counts as the whole batch, because it keeps the batch in memory.
        sequence: The sequence number of the message.
        count: The number of fragments of the message.
        fragments: The fragment numbers of the message that have arrived.
        since: When the first fragment arrived.
        last: When the last fragment arrived.
    """

    sequence: int
    count: int
    since: int
    last: int
    batches: list[Batch] = field(default_factory=list)
    bytes: int = 0
    fragments: set[int] = field(default_factory=set)

    @property
    def due(self) -> int:
        """When the rows are released, even if the message is incomplete."""
        return min(self.last + HELD_PAUSE, self.since + HELD_TIME)


class LargeMessageBuffer:
    """Holds the fragments of large messages until all have arrived, so that a message is written once and acknowledged as a whole.

    Later messages of the same dialog are also held. The buffer does not hold messages larger than `HELD_BYTES_MAX`, the
    rest of a message of which a part was released, rows without a sequence number, and messages that name no broker id,
    because their senders wait for an acknowledgement (R8).
    """

    def __init__(self) -> None:
        self._held: Final[dict[tuple[uuid.UUID, EndpointKey], _HeldRows]] = {}
        self._released: Final[OrderedDict[tuple[uuid.UUID, EndpointKey], int]] = OrderedDict()
        self._bytes = 0

    @property
    def next_due(self) -> int | None:
        """When `take_due` returns rows next; None if no rows are held."""
        return min((held.due for held in self._held.values()), default=None)

    def put(self, peer: Peer, rows: pa.Table, size: int, *, now: int) -> list[Batch]:
        """Adds rows, whose total size is `size`; returns the rows that are not held, keeping the order within each dialog."""
        if not self._held and (size < _SPLIT_BYTES_MIN or pc.max(rows["fragment_count"]).as_py() == 1):
            return [(peer, rows)]
        free: list[Batch] = []
        start, holder = 0, None
        for position, (key, sequence, number, count, is_holdable) in enumerate(self._fragments(rows)):
            held = self._held.get((peer.connection_id, key)) if is_holdable else None
            if held is None and is_holdable and self._may_hold(peer, key, sequence, rows, position, count):
                held = self._held[peer.connection_id, key] = _HeldRows(sequence, count, now, now)
            if held is not holder:
                self._add(peer, rows, start, position, size, holder, free)
                start, holder = position, held
            if held is not None and sequence == held.sequence:
                held.fragments.add(number)
                held.last = now
                if len(held.fragments) == held.count:
                    self._add(peer, rows, start, position + 1, size, held, free)
                    start, holder = position + 1, None
                    free += self._release((peer.connection_id, key))
        self._add(peer, rows, start, rows.num_rows, size, holder, free)
        while self._bytes > HELD_BYTES_MAX:
            free += self._release_incomplete(next(iter(self._held)))
        return free

    def take_due(self, now: int) -> list[Batch]:
        """Removes and returns the rows that are due."""
        due = [key for key, held in self._held.items() if held.due <= now]
        return [batch for key in due for batch in self._release_incomplete(key)]

    def take_all(self) -> list[Batch]:
        """Removes and returns all rows."""
        return [batch for key in list(self._held) for batch in self._release_incomplete(key)]

    @staticmethod
    def _fragments(rows: pa.Table) -> Iterator[tuple[EndpointKey, int, int, int, bool]]:
        """Yields the receiving endpoint, message, fragment and fragment count of each row, and whether it may be held."""
        columns: list[list[Any]] = [column_values(rows[name]) for name in _FRAGMENT_COLUMNS]
        has_broker_id = rows["to_broker_instance"].is_valid().to_pylist()
        is_sequenced = rows["is_sequenced"].to_pylist()
        for conversation, side, sequence, number, count, names_broker, sequenced in zip(
            *columns, has_broker_id, is_sequenced, strict=True
        ):
            yield (conversation, not side), sequence, number, count, names_broker and sequenced

    def _may_hold(self, peer: Peer, key: EndpointKey, sequence: int, rows: pa.Table, position: int, count: int) -> bool:
        if count == 1 or self._released.get((peer.connection_id, key)) == sequence:
            return False
        return count * max(len(rows["message_body"][position].as_buffer()), 1) <= HELD_BYTES_MAX

    def _add(
        self, peer: Peer, rows: pa.Table, start: int, end: int, size: int, holder: _HeldRows | None, free: list[Batch]
    ) -> None:
        if start == end:
            return
        part = (peer, rows if end - start == rows.num_rows else rows.slice(start, end - start))
        if holder is None:
            free.append(part)
        else:
            holder.batches.append(part)
            holder.bytes += size
            self._bytes += size

    def _release(self, key: tuple[uuid.UUID, EndpointKey]) -> list[Batch]:
        held = self._held.pop(key)
        self._bytes -= held.bytes
        whole = concatenated([rows for _, rows in held.batches])  # one batch, for one transaction
        return [(held.batches[0][0], whole)]

    def _release_incomplete(self, key: tuple[uuid.UUID, EndpointKey]) -> list[Batch]:
        """Releases the rows of an incomplete message; later rows of the message will not be held."""
        self._released[key] = self._held[key].sequence
        self._released.move_to_end(key)
        if len(self._released) > _RELEASED_MAX:
            self._released.popitem(last=False)
        return self._release(key)


class Inbox:
    """Received batches in order. The endpoint's thread and the exchange's thread add batches; the exchange's thread takes them.

    Apart from the parts of large messages, the inbox holds about as much as one turn processes: the longer rows wait,
    the more of them the sender retransmits needlessly (P17). `pause` stops reading from connections, and `resume`
    continues reading. `clock` returns microseconds. With `holds_large_messages`, call `release_due` at the times that it
    returns.
    """

    def __init__(
        self,
        *,
        pause: Callable[[], None],
        resume: Callable[[], None],
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
        clock: Callable[[], int] = lambda: time.monotonic_ns() // 1_000,
        holds_large_messages: bool = False,
    ) -> None:
        self._pause: Final = pause
        self._resume: Final = resume
        self._rows_max: Final = rows_max
        self._bytes_max: Final = bytes_max
        self._clock: Final = clock
        self._holds_large_messages: Final = holds_large_messages
        self._guard: Final = threading.RLock()
        self._batches: deque[tuple[Batch, int]] = deque()
        self._large: Final = LargeMessageBuffer()
        self._rows = self._bytes = 0
        self._is_paused = False

    @property
    def is_empty(self) -> bool:
        """Whether there are currently no batches to take."""
        return not self._batches

    @property
    def is_holding(self) -> bool:
        """Whether parts of large messages are held back; later rows may complete them, and must not overtake them."""
        with self._guard:
            return self._large.next_due is not None

    def put(self, peer: Peer, rows: pa.Table) -> bool:
        """Adds a batch; returns whether the exchange's thread has something to do: rows to take, or a new time for `release_due`."""
        size = size_of(rows)
        with self._guard:
            is_due_known = self._large.next_due is not None
            free = (
                self._large.put(peer, rows, size, now=self._clock()) if self._holds_large_messages else [(peer, rows)]
            )
            for batch in free:
                self._append(batch, size if batch[1] is rows else size_of(batch[1]))
            self._pause_or_resume()
            return bool(free) or not is_due_known

    def release_due(self, now: int) -> int | None:
        """Makes the parts of large messages available that are due; returns the time at which the next parts are due, on the clock of `now`.

        Returns None if no parts wait.
        """
        with self._guard:
            own_now = self._clock()
            for batch in self._large.take_due(own_now):
                self._append(batch, size_of(batch[1]))
            self._pause_or_resume()
            return None if (due := self._large.next_due) is None else now + due - own_now

    def release_all(self) -> None:
        """Makes all parts of large messages available."""
        with self._guard:
            for batch in self._large.take_all():
                self._append(batch, size_of(batch[1]))

    def take(self) -> list[Batch]:
        """Removes and returns the batches for one turn: at least one batch if any waits."""
        taken: list[Batch] = []
        rows = size = 0
        with self._guard:
            while self._batches and rows < self._rows_max and size < self._bytes_max:
                batch, batch_size = self._batches.popleft()
                taken.append(batch)
                rows += batch[1].num_rows
                size += batch_size
            self._rows -= rows
            self._bytes -= size
            self._pause_or_resume()
        return taken

    def put_back(self, batches: Sequence[Batch]) -> None:
        """Puts batches that could not be written back at the front."""
        with self._guard:
            for batch in reversed(batches):
                size = size_of(batch[1])
                self._batches.appendleft((batch, size))
                self._rows += batch[1].num_rows
                self._bytes += size
            self._pause_or_resume()

    def _append(self, batch: Batch, size: int) -> None:
        self._batches.append((batch, size))
        self._rows += batch[1].num_rows
        self._bytes += size

    def _pause_or_resume(self) -> None:
        share = max(self._rows / self._rows_max, self._bytes / self._bytes_max)
        if not self._is_paused and share >= 1:
            self._is_paused = True
            self._pause()
        elif self._is_paused and share <= _RESUME_SHARE:
            self._is_paused = False
            self._resume()
