"""Digests, and messages cut into fragments."""

from __future__ import annotations

from typing import Any, Final, overload

import pyarrow as pa

from ssbroker import _core, options
from ssbroker.arrow_input import ArrowArrayExportable, ArrowStreamExportable, as_column, pieces
from ssbroker.session_keys import SessionKeys, native

BYTES_MAX: Final = 2**31 - 1
"""The most that one Arrow cell can hold, and so the largest fragment and message."""


@overload
def md5(values: pa.ChunkedArray[Any] | ArrowStreamExportable) -> pa.ChunkedArray[Any]: ...


@overload
def md5(values: pa.Array[Any] | ArrowArrayExportable) -> pa.FixedSizeBinaryArray: ...


def md5(values: object) -> pa.FixedSizeBinaryArray | pa.ChunkedArray[Any]:
    """The MD5 digest of every value of a column of bytes or text, many at a time in the vectors of the processor.

    MD5 finds accidents, not attackers.

    Args:
        values: An Array, a ChunkedArray, or any Arrow object of one column, of any binary or string type.

    Returns:
        A digest of 16 bytes for each value, null for null; in chunks where the values came in chunks.

    Raises:
        SchemaError: It is no Arrow object, or holds neither bytes nor text.
        MalformedDataError: The data contradict their own layout.

    Examples:
        >>> import pyarrow as pa
        >>> [digest and digest.hex() for digest in md5(pa.array([b"abc", None])).to_pylist()]
        ['900150983cd24fb0d6963f7d28e17f72', None]
    """
    column = as_column(values, name="values")
    if isinstance(column, pa.Array):
        return _core.md5(column, 0)
    digests: list[pa.FixedSizeBinaryArray] = []
    first_row = 0
    for chunk in column.chunks:
        digests.append(_core.md5(chunk, first_row))
        first_row += len(chunk)
    if not digests:
        # Without a chunk there is still a type, and it is checked like any other.
        digests.append(_core.md5(pa.nulls(0, column.type), 0))
    return pa.chunked_array(digests)


def fragment(
    messages: ArrowArrayExportable | ArrowStreamExportable,
    *,
    max_fragment_bytes: int,
    session_keys: SessionKeys | None = None,
) -> pa.Table:
    """Cuts messages into fragments and signs both (P13, P21, P23).

    Every body is cut into parts of `max_fragment_bytes`, of which the last may be shorter; an empty body is one empty fragment.
    Messages keep their order, and fragments theirs. Bodies of the types `binary` and `large_binary` are not copied: the fragments lie
    where the messages do.

    Args:
        messages: Messages (`schemas.MESSAGES`, the signature left out or not) as a batch, a table or a stream. Further columns are
            repeated for each fragment.
        max_fragment_bytes: The most bytes of a part.
        session_keys: Keys that encrypt the signatures, by conversation id, or the column that has them (and is left out of the result).

    Returns:
        The fragments (`schemas.FRAGMENTS`), then the further columns.

    Raises:
        OptionError: `max_fragment_bytes` or `session_keys` is not what it can be.
        SchemaError: It is no Arrow object, or a column is missing or has a type that cannot be read.
        InputError: A value is not what was expected; column, row and value are named.

    Examples:
        >>> import pyarrow as pa
        >>> messages = pa.table({"conversation_id": [bytes(16)], "is_initiator": [True], "message_sequence_number": [0],
        ...                      "message_body": [b"Hello, world"]})
        >>> fragment(messages, max_fragment_bytes=5).select(["fragment_number", "fragment_count", "message_body"]).to_pydict()
        {'fragment_number': [0, 1, 2], 'fragment_count': [3, 3, 3], 'message_body': [b'Hello', b', wor', b'ld']}
    """
    most = options.whole(max_fragment_bytes, name="max_fragment_bytes", least=1, most=BYTES_MAX)
    keys = native(session_keys)
    fragments: list[pa.RecordBatch] = []
    first_row = 0
    for part in pieces(messages, name="messages"):
        fragments.extend(_core.fragment(part, first_row, most, keys))
        first_row += len(part)
    return pa.Table.from_batches(fragments)
