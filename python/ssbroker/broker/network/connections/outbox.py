"""Rows that wait to go to one place: bounded, and filled by other threads than the one that empties it (N12)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import pyarrow as pa

ROW_BYTES: Final = 512
"""What a row counts beside its values."""


class Outbox:
    """Rows that wait to go to one place.

    Args:
        most: How many bytes it takes. The last rows that it takes may exceed that.
        first: The number of its first row; those before it are done with.
        tell_room: Called where somebody was told to wait and half of it is free again; in the thread that empties it.

    Examples:
        >>> outbox = Outbox(1000)
        >>> outbox.put(pa.table({"number": [1]})), outbox.put(pa.table({"number": [2]}))
        ((True, 480), (True, -40))
        >>> outbox.put(pa.table({"number": [3]})), outbox.progress
        ((False, -40), (2, 0))
        >>> outbox.take()["number"].to_pylist()
        [1]
    """

    __slots__ = ("_bytes", "_changed", "_done", "_is_barred", "_is_owed", "_most", "_rows", "_taken", "_tell_room")

    def __init__(self, most: int, *, first: int = 0, tell_room: Callable[[], None] = lambda: None) -> None:
        self._tell_room: Final = tell_room
        self._most: Final = most
        self._changed: Final = threading.RLock()
        self._rows: Final[deque[tuple[pa.Table, int]]] = deque()
        self._bytes = 0
        self._taken = self._done = first
        self._is_barred = False
        self._is_owed = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._rows

    @property
    def is_full(self) -> bool:
        """Whether it takes nothing for now."""
        return self._is_barred or self._bytes >= self._most

    @property
    def progress(self) -> tuple[int, int]:
        """How many rows it has taken, and how many of these are done with. Both only grow."""
        with self._changed:
            return self._taken, self._done

    @property
    def pending(self) -> tuple[int, int]:
        """How many rows are not done with, and how many bytes those count that wait."""
        with self._changed:
            return self._taken - self._done, self._bytes

    def put(self, rows: pa.Table) -> tuple[bool, int]:
        """Takes rows, unless it is full.

        Args:
            rows: The rows.

        Returns:
            Whether it has taken them, and how many bytes more it takes.
        """
        size = rows.nbytes + ROW_BYTES * rows.num_rows
        with self._changed:
            room = self._most - self._bytes
            if self._is_barred or room <= 0:
                self._is_owed = True
                return False, min(room, 0)
            self._rows.append((rows, size))
            self._bytes += size
            self._taken += rows.num_rows
            self._is_owed = self._is_owed or room <= size
            return True, room - size

    def take(self) -> pa.Table | None:
        """The rows that have waited longest; they are done with once `finish` is told so."""
        with self._changed:
            if not self._rows:
                return None
            rows, size = self._rows.popleft()
            self._bytes -= size
            return rows

    def finish(self, rows: int) -> None:
        """Says that rows are written or lost.

        Args:
            rows: How many, the first ones.
        """
        with self._changed:
            self._done += rows

    def clear(self) -> None:
        """Loses what waits."""
        with self._changed:
            self._done += sum(rows.num_rows for rows, _ in self._rows)
            self._rows.clear()
            self._bytes = 0

    def bar(self) -> None:
        """Takes nothing from now on."""
        with self._changed:
            self._is_barred = True

    def open(self) -> None:
        """Takes rows again, and says so."""
        with self._changed:
            self._is_barred = self._is_owed = False
        self._tell_room()

    def drained(self) -> None:
        """Called after rows were taken out: tells who waits for room, if there is enough."""
        with self._changed:
            is_due = self._is_owed and not self._is_barred and self._bytes <= self._most // 2
            if is_due:
                self._is_owed = False
        if is_due:
            self._tell_room()
