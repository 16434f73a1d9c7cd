"""Rows that cannot be read: which one it is, since its number in a batch that Spark has shuffled tells nobody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from ssbroker.exceptions import InputError, UnknownDatabaseError

FRAGMENT: Final = {
    name: name for name in ("conversation_id", "is_initiator", "message_sequence_number", "fragment_number")
}
"""What tells fragments apart, and where it stands."""
_CHARACTERS: Final = 80


@contextmanager
def named(rows: pa.Table | pa.RecordBatch, columns: Mapping[str, str]) -> Iterator[None]:
    """Says of an error which row it is about, and how a query goes on that was stopped by it.

    Args:
        rows: What is read in the block.
        columns: What tells rows apart, and the columns in which it stands.

    Examples:
        >>> try:
        ...     with named(pa.table({"conversation_id": [b"a", b"b"]}), {"conversation_id": "conversation_id"}):
        ...         raise InputError("no GUID", row=1)
        ... except InputError as error:
        ...     print(error.__notes__[0])
        It is the row conversation_id 0x62. A query goes on from its checkpoint once a filter before the stream leaves such rows out.
    """
    try:
        yield
    except InputError as error:
        if error.row is not None:
            there = {name: at for name, at in columns.items() if at in rows.schema.names}
            row = ", ".join(f"{name} {_text(rows.column(at)[error.row].as_py())}" for name, at in there.items())
            or_catalog = ", or the catalog has the database" if isinstance(error, UnknownDatabaseError) else ""
            error.add_note(
                f"It is the row {row}. A query goes on from its checkpoint once a filter before the stream leaves such rows out{or_catalog}."
            )
        raise


def _text(value: Any) -> str:
    text = f"0x{value.hex()}" if isinstance(value, bytes) else str(value)
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}..."
