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

ROWS_MAX: Final = 4096
"""How many rows one turn of the exchange takes (N15), a batch as a whole; when so many wait, no connection is read."""
BYTES_MAX: Final = 8 << 20
"""The same in bytes."""
_RESUMED_AT: Final = 0.5
"""Connections are read again when so much of that is left."""


class Inbox:
    """Batches in the order of their arrival; the endpoint's thread puts them in, the exchange's takes them out.

    It holds what one turn takes. What is read beyond that only waits, and the longer it does, the more of it is sent again in vain (P17).

    Args:
        pause: Has no connection read.
        resume: Has them read again.
        rows_max: From how many rows on nothing is read.
        bytes_max: The same in bytes.

    Examples:
        >>> inbox = Inbox(pause=lambda: print("pause"), resume=lambda: print("resume"), rows_max=2)
        >>> inbox.put(None, pa.table({"number": [1, 2]}))
        pause
        >>> [rows.num_rows for _, rows in inbox.take()]
        resume
        [2]
    """

    def __init__(
        self,
        *,
        pause: Callable[[], None],
        resume: Callable[[], None],
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._pause: Final = pause
        self._resume: Final = resume
        self._rows_max: Final = rows_max
        self._bytes_max: Final = bytes_max
        self._guard: Final = threading.RLock()
        self._batches: deque[tuple[Batch, int]] = deque()
        self._rows = self._bytes = 0
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
            self._rows += rows.num_rows
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
            while self._batches and rows < ROWS_MAX and size < BYTES_MAX:
                batch, its_size = self._batches.popleft()
                taken.append(batch)
                rows += batch[1].num_rows
                size += its_size
            self._rows -= rows
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
                self._rows += batch[1].num_rows
                self._bytes += size
            self._settle()

    def _settle(self) -> None:
        share = max(self._rows / self._rows_max, self._bytes / self._bytes_max)
        if not self._is_paused and share >= 1:
            self._is_paused = True
            self._pause()
        elif self._is_paused and share <= _RESUMED_AT:
            self._is_paused = False
            self._resume()
