"""Rows that wait to be sent to one address, whichever connection sends them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from ssbroker.broker.network.interfaces import SendResult
from ssbroker.protocol.wire.frames import size_of

ROW_BYTES: Final = 512
"""The fixed size that is counted for each row, in addition to its values."""


class SharedOutbox:
    """Rows that wait to be sent to one address.

    Args:
        max_bytes: The maximum number of bytes in the outbox; the last rows that it accepts may exceed this limit.
        first: The number of the first row, for `progress`.
        on_drained: Called when the outbox is half empty after it was full, in the thread that empties it, or when `unblock` is called.

    Examples:
        >>> outbox = SharedOutbox(1000)
        >>> [tuple(outbox.put(pa.table({"number": [number]}))) for number in (1, 2, 3)]
        [(True, False, 1), (True, True, 2), (False, True, 2)]
        >>> outbox.take()["number"].to_pylist()
        [1]
    """

    __slots__ = (
        "_accepted",
        "_bytes",
        "_finished",
        "_is_blocked",
        "_lock",
        "_max_bytes",
        "_must_notify_drained",
        "_on_drained",
        "_rows",
    )

    def __init__(self, max_bytes: int, *, first: int = 0, on_drained: Callable[[], None] = lambda: None) -> None:
        self._on_drained: Final = on_drained
        self._max_bytes: Final = max_bytes
        self._lock: Final = threading.RLock()
        self._rows: Final[deque[tuple[pa.Table, int]]] = deque()
        self._bytes = 0
        self._accepted = self._finished = first
        self._is_blocked = False
        self._must_notify_drained = False

    @property
    def is_empty(self) -> bool:
        """Whether no rows wait."""
        return not self._rows

    @property
    def is_full(self) -> bool:
        """Whether the outbox currently accepts no rows."""
        return self._is_blocked or self._bytes >= self._max_bytes

    @property
    def progress(self) -> tuple[int, int]:
        """The number of rows that the outbox has accepted, and how many of these are finished; neither number decreases."""
        with self._lock:
            return self._accepted, self._finished

    @property
    def pending(self) -> tuple[int, int]:
        """The number of rows that are not finished, and the size in bytes of the waiting rows."""
        with self._lock:
            return self._accepted - self._finished, self._bytes

    def put(self, rows: pa.Table) -> SendResult:
        """Adds rows unless the outbox is full or blocked."""
        size = size_of(rows) + ROW_BYTES * rows.num_rows
        with self._lock:
            if self.is_full:
                self._must_notify_drained = True
                return SendResult(False, True, self._accepted)
            self._bytes += size
            self._accepted += rows.num_rows
            self._must_notify_drained = self._must_notify_drained or self.is_full
            self._rows.append((rows, size))  # last, because an interrupt may follow a call
            return SendResult(True, self.is_full, self._accepted)

    def take(self) -> pa.Table | None:
        """Removes and returns the oldest rows, which are pending until `finish` is called; None if there are no rows."""
        with self._lock:
            if not self._rows:
                return None
            rows, size = self._rows[0]
            self._bytes -= size
            self._rows.popleft()  # done last, because an interrupt may follow a call
            return rows

    def finish(self, rows: int) -> None:
        """Records that the first `rows` pending rows were written or lost."""
        with self._lock:
            self._finished += rows

    def clear(self) -> None:
        """Discards the waiting rows."""
        with self._lock:
            self._finished += sum(rows.num_rows for rows, _ in self._rows)
            self._rows.clear()
            self._bytes = 0

    def block(self) -> None:
        """Accepts no rows until `unblock`."""
        with self._lock:
            self._is_blocked = True

    def unblock(self) -> None:
        """Accepts rows again and calls `on_drained`."""
        with self._lock:
            self._is_blocked = self._must_notify_drained = False
        self._on_drained()

    def notify_if_drained(self) -> None:
        """Calls `on_drained` if the outbox was full and is now half empty. Call this after `take`."""
        with self._lock:
            is_due = self._must_notify_drained and not self._is_blocked and self._bytes <= self._max_bytes // 2
            if is_due:
                self._must_notify_drained = False
        if is_due:
            self._on_drained()
