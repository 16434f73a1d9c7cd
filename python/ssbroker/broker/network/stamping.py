"""What a row is given for its first hop (N1, N21)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker.protocol.adjacent.batch import WIRE
from ssbroker.protocol.ledger import Key
from ssbroker.protocol.retry import SECOND

HOPS: Final = 16
"""How many times a row may be forwarded."""
_FOREVER: Final = 2**31 - 1


def stamped(rows: pa.Table, *, now: int, key_exchanges: Mapping[Key, bytes]) -> pa.Table:
    """Rows of the envelope as they go on the wire.

    Args:
        rows: The rows (`envelope.ENVELOPE`).
        now: The moment, from which the time to live counts.
        key_exchanges: What rides with the first message of endpoints.

    Returns:
        The rows (`adjacent.batch.WIRE`).

    Examples:
        >>> from ssbroker.protocol.envelope import ENVELOPE
        >>> stamped(ENVELOPE.empty_table(), now=0, key_exchanges={}).schema == WIRE
        True
    """
    number = rows.num_rows
    hops: list[Any] = [
        pa.repeat(pa.scalar(HOPS, pa.int8()), number),
        _seconds_left(rows, now),
        pa.repeat(pa.scalar(0, pa.int32()), number),
        _exchanged(rows, key_exchanges) if key_exchanges else pa.nulls(number, pa.binary()),
    ]
    return pa.Table.from_arrays([*rows.columns, *hops], schema=WIRE)


def _seconds_left(rows: pa.Table, now: int) -> Any:
    left: Any = pc.divide(pc.subtract(rows["lifetime"].cast(pa.int64()), now), SECOND)
    least: Any = pa.scalar(0, pa.int64())
    most: Any = pa.scalar(_FOREVER, pa.int64())
    return pc.max_element_wise(pc.min_element_wise(pc.fill_null(left, most), most), least).cast(pa.int32())


def _exchanged(rows: pa.Table, key_exchanges: Mapping[Key, bytes]) -> pa.Array[Any]:
    columns: list[list[Any]] = [
        rows[name].to_pylist()
        for name in ("conversation_id", "is_initiator", "is_sequenced", "message_sequence_number")
    ]
    blobs = [
        key_exchanges.get((conversation, side)) if is_sequenced and sequence == 0 else None
        for conversation, side, is_sequenced, sequence in zip(*columns, strict=True)
    ]
    return pa.array(blobs, pa.binary())
