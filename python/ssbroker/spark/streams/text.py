"""Bytes as ASCII text: how Spark keeps the state of a bucket (U3).

The JVM's pickler writes bytes as text in which half of them take two, one character after the other, and Python reads it back so. ASCII is
copied. So the upper bits of all bytes stand before the rest, seven in a character, one of each seventh of the bytes.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from ssbroker.exceptions import MalformedDataError
from ssbroker.spark.streams.arrays import Column, pc

_BITS: Final = 7
_UPPER: Final = pa.scalar(0x80, pa.uint8())
_LOWER: Final = pa.scalar(0x7F, pa.uint8())


def of_bytes(data: bytes) -> str:
    r"""The text of some bytes.

    Examples:
        >>> of_bytes(b"\x01\x82")
        '\x02\x01\x02'
    """
    size = -(-len(data) // _BITS)
    whole = _numbers(data)
    upper = _numbers(bytes(size))
    for place in range(_BITS):
        part = whole.slice(place * size, size)
        bits = pc.shift_right(pc.bit_wise_and(part, _UPPER), pa.scalar(_BITS - place, pa.uint8()))
        if len(bits) < size:
            bits = pa.concat_arrays([bits, _numbers(bytes(size - len(bits)))])
        upper = pc.bit_wise_or(upper, bits)
    return b"".join([_bytes(upper), _bytes(pc.bit_wise_and(whole, _LOWER))]).decode("ascii")


def to_bytes(text: str) -> bytes:
    r"""The bytes of a text. Whether they are those that were kept, their digest tells.

    Raises:
        MalformedDataError: It is no text of bytes.

    Examples:
        >>> to_bytes(of_bytes(b"\x01\x82"))
        b'\x01\x82'
    """
    try:
        whole = _numbers(text.encode("ascii"))
    except ValueError as error:
        raise MalformedDataError(f"state: this is no state of a stream of ssbroker: {error}") from error
    size = -(-len(whole) // (_BITS + 1))
    upper, lower = whole.slice(0, size), whole.slice(size)
    parts = []
    for place in range(_BITS):
        part = lower.slice(place * size, size)
        bits = pc.bit_wise_and(upper.slice(0, len(part)), pa.scalar(1 << place, pa.uint8()))
        parts.append(_bytes(pc.bit_wise_or(part, pc.shift_left(bits, pa.scalar(_BITS - place, pa.uint8())))))
    return b"".join(parts)


def _numbers(data: bytes) -> Column:
    made: Column = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    return made


def _bytes(numbers: Column) -> memoryview:
    if not len(numbers):
        return memoryview(b"")
    return memoryview(numbers.buffers()[1])[numbers.offset : numbers.offset + len(numbers)]
