"""What connections have brought and the exchange has not taken yet (N12)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from ssbroker.broker.network.seam import Peer

Batch: TypeAlias = "tuple[Peer, pa.Table]"
"""Rows of `adjacent.batch.WIRE`, and who brought them."""

BYTES_MAX: Final = 32 << 20
"""After so many bytes no connection is read."""
TAKEN_ROWS: Final = 4096
"""How many rows one turn of the exchange takes (N15); a batch is taken as a whole."""
TAKEN_BYTES: Final = 8 << 20
"""And how many bytes of them."""


class Inbox:
    """Batches in the order of their arrival; the endpoint's thread puts them in, the exchange's takes them out.

    Args:
        pause: Has no connection read.
        resume: Has them read again.

    Examples:
        >>> inbox = Inbox(pause=lambda: print("pause"), resume=lambda: print("resume"), bytes_max=1)
        >>> inbox.put(None, pa.table({"number": [1, 2]}))
        pause
        >>> [rows.num_rows for _, rows in inbox.take()]
        resume
        [2]
    """

    def __init__(self, *, pause: Callable[[], None], resume: Callable[[], None], bytes_max: int = BYTES_MAX) -> None:
        self._pause: Final = pause
        self._resume: Final = resume
        self._bytes_max: Final = bytes_max
        self._guard: Final = threading.Lock()
        self._batches: deque[tuple[Batch, int]] = deque()
        self._bytes = 0
        self._is_paused = False

    @property
    def bytes(self) -> int:
        """How many bytes wait."""
        return self._bytes

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._batches

    def put(self, peer: Peer, rows: pa.Table) -> None:
        """Puts a batch in.

        Args:
            peer: Who brought it.
            rows: The rows.
        """
        size = rows.nbytes
        with self._guard:
            self._batches.append(((peer, rows), size))
            self._bytes += size
            self._settle()

    def take(self) -> list[Batch]:
        """Takes out what fits into one turn: at least one batch, where there is any.

        Returns:
            The batches, in the order of their arrival.
        """
        taken: list[Batch] = []
        rows = size = 0
        with self._guard:
            while self._batches and rows < TAKEN_ROWS and size < TAKEN_BYTES:
                batch, its_size = self._batches.popleft()
                taken.append(batch)
                rows += batch[1].num_rows
                size += its_size
            self._bytes -= size
            self._settle()
        return taken

    def put_back(self, batches: Sequence[Batch]) -> None:
        """Puts batches in again, before all others: they could not be taken now.

        Args:
            batches: In their order.
        """
        with self._guard:
            for batch in reversed(batches):
                size = batch[1].nbytes
                self._batches.appendleft((batch, size))
                self._bytes += size
            self._settle()

    def _settle(self) -> None:
        if not self._is_paused and self._bytes >= self._bytes_max:
            self._is_paused = True
            self._pause()
        elif self._is_paused and self._bytes <= self._bytes_max // 2:
            self._is_paused = False
            self._resume()
