"""Arrow tables in cells of Spark: what a stream moves between the JVM and Python, and keeps."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def to_ipc(rows: pa.RecordBatch | pa.Table) -> bytes:
    """Rows with their schema as bytes.

    Examples:
        >>> of_ipc(to_ipc(pa.table({"a": [1, 2]}))).num_rows
        2
    """
    sink = pa.BufferOutputStream()
    write_ipc(rows, sink)
    return sink.getvalue().to_pybytes()


def write_ipc(rows: pa.RecordBatch | pa.Table, sink: pa.NativeFile) -> None:
    """Writes rows with their schema behind what has been written.

    Args:
        rows: The rows.
        sink: Where to write.

    Examples:
        >>> sink = pa.BufferOutputStream()
        >>> write_ipc(pa.table({"a": [1, 2]}), sink)
        >>> of_ipc(sink.getvalue().to_pybytes()).num_rows
        2
    """
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)


def of_ipc(data: bytes | memoryview) -> pa.Table:
    """The rows of what `to_ipc` gave, over the same memory."""
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()


def pieces(rows: pa.RecordBatch, *, most: int) -> Iterator[pa.RecordBatch]:
    """Cuts rows so that a piece is not much larger than it should be, unless one row is.

    Args:
        rows: The rows.
        most: The bytes that a piece should not exceed.

    Yields:
        The pieces, in order.

    Examples:
        >>> [piece.num_rows for piece in pieces(pa.record_batch({"a": [b"1234"] * 4}), most=20)]
        [2, 2]
    """
    if rows.num_rows > 1 and rows.nbytes > most:
        half = rows.num_rows // 2
        yield from pieces(rows.slice(0, half), most=most)
        yield from pieces(rows.slice(half), most=most)
    elif rows.num_rows:
        yield rows
