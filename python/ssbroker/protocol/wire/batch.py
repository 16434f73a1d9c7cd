"""Batches of fragments on the wire: schema and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import _core
from ssbroker.exceptions import MalformedDataError, PeerError, ProtocolError
from ssbroker.protocol.envelope import ENVELOPE
from ssbroker.protocol.wire.frames import Data

HOPS_MAX: Final = 16
"""How many forwarders a row may pass; what `hops_remaining` begins with."""

HOP_COLUMNS: Final = (
    pa.field("hops_remaining", pa.int8(), nullable=False),
    pa.field("time_to_live", pa.int32(), nullable=False),
    pa.field("time_consumed", pa.int32(), nullable=False),
    pa.field("key_exchange", pa.binary()),
)
"""What goes beside a row of the envelope: forwarders change the first three; `key_exchange` brings the session key of a direction."""

WIRE: Final = pa.schema([*ENVELOPE, *HOP_COLUMNS])
"""A row on the wire."""

ROWS_MAX: Final = 1_024
BYTES_MAX: Final = 1 << 20
"""A batch is closed at so many rows or bytes, whichever is first."""
ROW_BYTES_MAX: Final = BYTES_MAX + (64 << 10)
"""The largest row; that of a part of 1 MiB is a little larger than the part."""

_FIXED_BYTES: Final = 192  # of a row, all columns together but what is of any length
_OF_ANY_LENGTH: Final = tuple(
    field.name for field in WIRE if pa.types.is_binary(field.type) or pa.types.is_string(field.type)
)
_NEVER_NULL: Final = tuple(field.name for field in WIRE if not field.nullable)


def check_rows(rows: pa.Table) -> None:
    """Whether rows can go as they are.

    Args:
        rows: The rows.

    Raises:
        ProtocolError: Other columns, or a null where there can be none.

    Examples:
        >>> check_rows(pa.table({"message_body": [b""]}))
        Traceback (most recent call last):
        ssbroker.exceptions.ProtocolError: expected rows of the wire's schema; the columns are message_body
    """
    if not rows.schema.equals(WIRE):
        raise ProtocolError(f"expected rows of the wire's schema; the columns are {', '.join(rows.column_names)}")
    for name in _NEVER_NULL:
        if rows.column(name).null_count:
            raise ProtocolError(
                f"{name}: expected a value in every row; there are {rows.column(name).null_count} nulls"
            )


def split_rows(rows: pa.Table, *, most: int = BYTES_MAX) -> Iterator[tuple[pa.Table, int]]:
    """Rows in pieces that fit a frame each, with the bytes that each takes, about.

    Args:
        rows: Rows of the wire.
        most: How many bytes a piece may have, unless it is one row.

    Returns:
        The pieces, in order.

    Raises:
        ProtocolError: One row is larger than a frame.

    Examples:
        >>> list(split_rows(WIRE.empty_table()))
        []
    """
    if not rows.num_rows:
        return
    whole = rows.num_rows * _FIXED_BYTES + sum(rows.column(name).nbytes for name in _OF_ANY_LENGTH)
    if rows.num_rows <= ROWS_MAX and whole <= most:
        yield rows, whole
        return
    start = size = 0
    for row, length in enumerate(_lengths(rows)):
        if length > ROW_BYTES_MAX:
            raise ProtocolError(f"expected rows of at most {ROW_BYTES_MAX} bytes; row {row} has {length}")
        if row > start and (row - start == ROWS_MAX or size + length > most):
            yield rows.slice(start, row - start), size
            start, size = row, 0
        size += length
    yield rows.slice(start), size


def pack_batch(rows: pa.Table) -> memoryview:
    """Rows as the body of a frame.

    Args:
        rows: Rows of the wire, as many as fit a frame.

    Returns:
        One record batch message of Arrow IPC.

    Examples:
        >>> some = {pa.string(): "Bank", pa.bool_(): True, pa.binary(): b"", pa.binary(16): bytes(16)}
        >>> row = {field.name: some.get(field.type, 1) for field in WIRE if not field.nullable}
        >>> rows = pa.Table.from_pylist([row], schema=WIRE)
        >>> unpack_batch(pack_batch(rows)) == rows
        True
    """
    batch = rows.combine_chunks().to_batches()[0]
    return memoryview(batch.serialize()).cast("B").toreadonly()


def unpack_batch(body: Data) -> pa.Table:
    """The rows of a body.

    Args:
        body: What came.

    Returns:
        The rows, 1 to 1,024.

    Raises:
        PeerError: They are no batch of the wire.

    Examples:
        >>> unpack_batch(b"rows")
        Traceback (most recent call last):
        ssbroker.exceptions.PeerError: FRAGMENTS: not a valid batch of fragments: missing marker
    """
    try:
        return pa.Table.from_batches([_core.decode_fragments(body)])
    except MalformedDataError as error:
        raise PeerError(f"FRAGMENTS: {error}") from error


def _lengths(rows: pa.Table) -> list[Any]:
    sizes: Any = pa.scalar(_FIXED_BYTES, pa.int64())
    for name in _OF_ANY_LENGTH:
        column: Any = rows.column(name)
        sizes = pc.add(sizes, pc.fill_null(pc.binary_length(column), 0))
    return list(sizes.to_pylist())


def to_wire_rows(rows: pa.Table, *, now: int, key_exchanges: pa.Array[Any]) -> pa.Table:
    """Rows of the envelope as they go on the wire.

    Args:
        rows: The rows (`envelope.ENVELOPE`).
        now: The moment, from which the time to live counts.
        key_exchanges: What rides with each to bring a key; null for nothing.

    Returns:
        The rows (`adjacent.batch.WIRE`).

    Examples:
        >>> from ssbroker.protocol.envelope import ENVELOPE
        >>> to_wire_rows(ENVELOPE.empty_table(), now=0, key_exchanges=pa.nulls(0, pa.binary())).schema == WIRE
        True
    """
    hop = _core.first_hop(rows, now)
    return pa.Table.from_arrays([*rows.columns, *hop.columns, key_exchanges], schema=WIRE)
