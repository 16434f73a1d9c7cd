"""Rows that wait until they can go, in their order (N7)."""

from __future__ import annotations

from collections import deque
from typing import Final

import pyarrow as pa

from ssbroker.protocol.adjacent.batch import BYTES_MAX, ROWS_MAX, checked, packed, pieces

FIRST_BYTES: Final = 64 << 10
"""How full the first frame of a connection is; each that follows may be twice as full, up to what a frame takes.

Where a network damages what it carries, each connection lives for a few bytes only: small frames come through, and so all does in time.
"""


class Outbox:
    """Rows that wait. What is put in goes in frames as full as they may be, however it was put in.

    Args:
        first_bytes: How full the first frame may be.

    Attributes:
        rows: How many they are.
        bytes: About what they take.
    """

    __slots__ = ("_most", "_pieces", "bytes", "rows")

    def __init__(self, *, first_bytes: int = BYTES_MAX) -> None:
        self._most = first_bytes
        self._pieces: deque[tuple[pa.Table, int]] = deque()
        self.rows = self.bytes = 0

    def put(self, rows: pa.Table) -> None:
        """Puts rows behind the others; a ProtocolError where they cannot go, and then none is put in."""
        checked(rows)
        for piece in list(pieces(rows)):
            self._pieces.append(piece)
            self.rows += piece[0].num_rows
            self.bytes += piece[1]

    def take(self) -> memoryview | None:
        """The body of the next frame; None: nothing waits."""
        if not self._pieces:
            return None
        taken: list[pa.Table] = []
        rows = size = 0
        self._divide()
        while self._pieces:
            piece, length = self._pieces[0]
            if taken and (rows + piece.num_rows > ROWS_MAX or size + length > self._most):
                break
            self._pieces.popleft()
            taken.append(piece)
            rows += piece.num_rows
            size += length
        self._most = min(2 * self._most, BYTES_MAX)
        self.rows -= rows
        self.bytes -= size
        return packed(taken[0] if len(taken) == 1 else pa.concat_tables(taken))

    def _divide(self) -> None:
        """Divides the first piece, where it is more than a frame takes now."""
        piece, length = self._pieces[0]
        if length > self._most:
            parts = list(pieces(piece, most=self._most))
            self._pieces.popleft()
            self._pieces.extendleft(reversed(parts))
            self.bytes += sum(size for _, size in parts) - length

    def clear(self) -> None:
        """Drops all; whoever sent it sends it again (P17)."""
        self._pieces.clear()
        self.rows = self.bytes = 0
