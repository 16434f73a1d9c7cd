"""Bytes as ASCII text: how Spark keeps the state of a bucket (U3).

The JVM's pickler writes bytes as text in which half of them take two, one character after the other, and Python reads it back so. ASCII is
copied. So the upper bits of all bytes stand before the rest, which costs a sixth in size.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Final

import numpy as np

from ssbroker.exceptions import MalformedDataError

_UPPER: Final = 0x80
_LOWER: Final = 0x7F
_UPPER_PLACE: Final = 7
_END: Final = b"\n"


def of_bytes(data: bytes) -> str:
    r"""The text of some bytes.

    Examples:
        >>> of_bytes(b"\x01\x82")
        'Ag==\n\x01\x02'
    """
    values = np.frombuffer(data, np.uint8)
    upper = b64encode(np.packbits(values & _UPPER, bitorder="little").data) + _END
    made = np.empty(len(upper) + len(values), np.uint8)
    made[: len(upper)] = np.frombuffer(upper, np.uint8)
    np.bitwise_and(values, _LOWER, out=made[len(upper) :])
    return str(made.data, "ascii")


def to_bytes(text: str) -> bytes:
    r"""The bytes of a text. Whether they are those that were kept, their digest tells.

    Raises:
        MalformedDataError: It is no text of bytes.

    Examples:
        >>> to_bytes(of_bytes(b"\x01\x82"))
        b'\x01\x82'
    """
    try:
        upper, _, lower = text.encode("ascii").partition(_END)
        bits = np.frombuffer(b64decode(upper), np.uint8)
    except ValueError as error:
        raise MalformedDataError(f"state: this is no state of a stream of ssbroker: {error}") from error
    values = np.unpackbits(bits, count=len(lower), bitorder="little")
    values <<= _UPPER_PLACE
    values |= np.frombuffer(lower, np.uint8)
    return values.tobytes()
