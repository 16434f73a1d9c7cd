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
"""How many forwarders a row may pass; the initial value of `hops_remaining`."""

HOP_COLUMNS: Final = (
    pa.field("hops_remaining", pa.int8(), nullable=False),
    pa.field("time_to_live", pa.int32(), nullable=False),
    pa.field("time_consumed", pa.int32(), nullable=False),
    pa.field("key_exchange", pa.binary()),
)
"""The columns added to an envelope row. Forwarders change the first three; `key_exchange` transports the session key of a direction."""

WIRE: Final = pa.schema([*ENVELOPE, *HOP_COLUMNS])
"""A row on the wire."""

ROWS_MAX: Final = 1_024
BYTES_MAX: Final = 1 << 20
"""A batch is closed when it reaches this many rows or bytes."""
ROW_BYTES_MAX: Final = BYTES_MAX + (64 << 10)
"""The size of the largest row: a fragment of 1 MiB and its header."""

_FIXED_ROW_BYTES: Final = 192  # the fixed-size columns of a row
_VARIABLE_COLUMNS: Final = tuple(
    field.name for field in WIRE if pa.types.is_binary(field.type) or pa.types.is_string(field.type)
)
_REQUIRED_COLUMNS: Final = tuple(field.name for field in WIRE if not field.nullable)


def check_rows(rows: pa.Table) -> None:
    """Checks that rows can be sent.

    Raises:
        ProtocolError: The columns are wrong, or a required value is null.

    Examples:
        >>> check_rows(pa.table({"message_body": [b""]}))
        Traceback (most recent call last):
        ssbroker.exceptions.ProtocolError: expected rows of the wire schema; got the columns message_body
    """
    if not rows.schema.equals(WIRE):
        raise ProtocolError(f"expected rows of the wire schema; got the columns {', '.join(rows.column_names)}")
    for name in _REQUIRED_COLUMNS:
        if rows.column(name).null_count:
            raise ProtocolError(
                f"{name}: expected a value in every row; there are {rows.column(name).null_count} nulls"
            )


def split_rows(rows: pa.Table, *, max_bytes: int = BYTES_MAX) -> Iterator[tuple[pa.Table, int]]:
    """Splits rows into pieces that fit a frame each, and yields them with their approximate sizes.

    Args:
        rows: Rows of the wire.
        max_bytes: The maximum size of a piece of more than one row.

    Raises:
        ProtocolError: A row is larger than a frame.

    Examples:
        >>> list(split_rows(WIRE.empty_table()))
        []
    """
    if not rows.num_rows:
        return
    whole = rows.num_rows * _FIXED_ROW_BYTES + sum(rows.column(name).nbytes for name in _VARIABLE_COLUMNS)
    if rows.num_rows <= ROWS_MAX and whole <= max_bytes:
        yield rows, whole
        return
    start = size = 0
    for row, length in enumerate(_row_lengths(rows)):
        if length > ROW_BYTES_MAX:
            raise ProtocolError(f"expected rows of at most {ROW_BYTES_MAX} bytes; row {row} has {length}")
        if row > start and (row - start == ROWS_MAX or size + length > max_bytes):
            yield rows.slice(start, row - start), size
            start, size = row, 0
        size += length
    yield rows.slice(start), size


def pack_batch(rows: pa.Table) -> memoryview:
    """Packs rows that fit a frame into its body: one record batch message of Arrow IPC.

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
    """Unpacks the body of a frame into 1 to 1,024 rows.

    Raises:
        PeerError: The body is not a valid batch.
    """
    try:
        return pa.Table.from_batches([_core.decode_fragments(body)])
    except MalformedDataError as error:
        raise PeerError(f"FRAGMENTS: {error}") from error


def _row_lengths(rows: pa.Table) -> list[Any]:
    sizes: Any = pa.scalar(_FIXED_ROW_BYTES, pa.int64())
    for name in _VARIABLE_COLUMNS:
        column: Any = rows.column(name)
        sizes = pc.add(sizes, pc.fill_null(pc.binary_length(column), 0))
    return list(sizes.to_pylist())


def to_wire_rows(rows: pa.Table, *, now: int, key_exchanges: pa.Array[Any]) -> pa.Table:
    """Converts envelope rows to rows of `WIRE`.

    Args:
        rows: The rows (`envelope.ENVELOPE`).
        now: The current time, from which the time to live is computed.
        key_exchanges: The key exchange blob of each row, or null.
    """
    hop = _core.first_hop(rows, now)
    return pa.Table.from_arrays([*rows.columns, *hop.columns, key_exchanges], schema=WIRE)
