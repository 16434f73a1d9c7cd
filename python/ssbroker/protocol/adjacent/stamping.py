"""What a row is given for its first hop (N1, N21)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from ssbroker import _core
from ssbroker.protocol.adjacent.batch import WIRE


def stamped(rows: pa.Table, *, now: int, key_exchanges: pa.Array[Any]) -> pa.Table:
    """Rows of the envelope as they go on the wire.

    Args:
        rows: The rows (`envelope.ENVELOPE`).
        now: The moment, from which the time to live counts.
        key_exchanges: What rides with each to bring a key; null for nothing.

    Returns:
        The rows (`adjacent.batch.WIRE`).

    Examples:
        >>> from ssbroker.protocol.envelope import ENVELOPE
        >>> stamped(ENVELOPE.empty_table(), now=0, key_exchanges=pa.nulls(0, pa.binary())).schema == WIRE
        True
    """
    hop = _core.first_hop(rows, now)
    return pa.Table.from_arrays([*rows.columns, *hop.columns, key_exchanges], schema=WIRE)
