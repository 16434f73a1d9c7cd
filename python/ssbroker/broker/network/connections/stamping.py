"""What a row is given for its first hop (N1, N21)."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker.protocol.adjacent.batch import WIRE
from ssbroker.protocol.retry import SECOND

HOPS: Final = 16
"""How many times a row may be forwarded."""
_FOREVER: Final = 2**31 - 1


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
    number = rows.num_rows
    hops: list[Any] = [
        pa.repeat(pa.scalar(HOPS, pa.int8()), number),
        _seconds_left(rows, now),
        pa.repeat(pa.scalar(0, pa.int32()), number),
        key_exchanges,
    ]
    return pa.Table.from_arrays([*rows.columns, *hops], schema=WIRE)


def _seconds_left(rows: pa.Table, now: int) -> Any:
    lifetimes: Any = rows["lifetime"]
    if lifetimes.null_count == rows.num_rows:
        return pa.repeat(pa.scalar(_FOREVER, pa.int32()), rows.num_rows)
    left: Any = pc.divide(pc.subtract(lifetimes.cast(pa.int64()), now), SECOND)
    least: Any = pa.scalar(0, pa.int64())
    most: Any = pa.scalar(_FOREVER, pa.int64())
    return pc.max_element_wise(pc.min_element_wise(pc.fill_null(left, most), most), least).cast(pa.int32())
