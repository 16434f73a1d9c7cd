"""Rows that wait until they can go, in their order (N7)."""

from __future__ import annotations

from collections import deque

import pyarrow as pa

from ssbroker.protocol.adjacent.batch import BYTES_MAX, ROWS_MAX, checked, packed, pieces


class Outbox:
    """Rows that wait. What is put in goes in frames as full as they may be, however it was put in.

    Attributes:
        bytes: About what they take.
    """

    __slots__ = ("_pieces", "bytes")

    def __init__(self) -> None:
        self._pieces: deque[tuple[pa.Table, int]] = deque()
        self.bytes = 0

    def put(self, rows: pa.Table) -> None:
        """Puts rows behind the others; a ProtocolError where they cannot go, and then none is put in."""
        checked(rows)
        for piece in list(pieces(rows)):
            self._pieces.append(piece)
            self.bytes += piece[1]

    def take(self) -> bytes | None:
        """The body of the next frame; None: nothing waits."""
        if not self._pieces:
            return None
        taken: list[pa.Table] = []
        rows = size = 0
        while self._pieces:
            piece, length = self._pieces[0]
            if taken and (rows + piece.num_rows > ROWS_MAX or size + length > BYTES_MAX):
                break
            self._pieces.popleft()
            taken.append(piece)
            rows += piece.num_rows
            size += length
        self.bytes -= size
        return packed(taken[0] if len(taken) == 1 else pa.concat_tables(taken))

    def clear(self) -> None:
        """Drops all; whoever sent it sends it again (P17)."""
        self._pieces.clear()
        self.bytes = 0
