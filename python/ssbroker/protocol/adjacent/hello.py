"""HELLO: what each side says of itself, first of all (N5)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from ssbroker import options
from ssbroker.exceptions import OptionError, PeerError

FRAME_BYTES_LEAST: Final = 2 << 20
"""What every instance takes: a batch of 1 MiB, with the room that a row which is a little longer needs."""
FRAME_BYTES_MOST: Final = 8 << 20

_ID_BYTES: Final = 16
_NAME_BYTES_MAX: Final = 1024
_HELLO: Final = struct.Struct(">16sQIH")


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What an instance says of itself.

    Attributes:
        instance_id: Its id, 16 bytes.
        name: Its name, for people: up to 1,024 bytes of UTF-8 that can be printed.
        number: The random number of its run, from 0 to 2**64 - 1, by which of two connections one is kept (N9).
        max_frame_bytes: The longest body of a frame that it takes.

    Raises:
        OptionError: One of them is not what it can be.

    Examples:
        >>> Own(instance_id=bytes(16), name="", number=1)
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: name: expected 1 to 1024 bytes of text that can be printed; got ''
    """

    instance_id: bytes
    name: str
    number: int
    max_frame_bytes: int = FRAME_BYTES_MOST

    def __post_init__(self) -> None:
        options.whole(len(self.instance_id), name="bytes of instance_id", least=_ID_BYTES, most=_ID_BYTES)
        options.whole(self.number, name="number", least=0, most=2**64 - 1)
        options.whole(self.max_frame_bytes, name="max_frame_bytes", least=FRAME_BYTES_LEAST, most=FRAME_BYTES_MOST)
        if not _is_name(self.name):
            raise OptionError(
                f"name: expected 1 to {_NAME_BYTES_MAX} bytes of text that can be printed; got {self.name!r:.80}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Far:
    """What the far side says of itself; none of it is proven.

    Attributes:
        instance_id: Its id, 16 bytes.
        name: Its name, for people.
        number: The random number of its run.
        max_frame_bytes: The longest body of a frame that it takes.
    """

    instance_id: bytes
    name: str
    number: int
    max_frame_bytes: int


def packed(own: Own) -> bytes:
    """The body of HELLO.

    Args:
        own: Who says it.

    Returns:
        30 bytes and the name.

    Examples:
        >>> unpacked(packed(Own(instance_id=bytes(16), name="shop", number=7))).name
        'shop'
    """
    name = own.name.encode()
    return _HELLO.pack(own.instance_id, own.number, own.max_frame_bytes, len(name)) + name


def unpacked(body: bytes) -> Far:
    """What a HELLO says.

    Args:
        body: Its body, at least as long as without a name.

    Returns:
        Who said it.

    Raises:
        PeerError: It contradicts itself, or takes less than every instance has to.

    Examples:
        >>> unpacked(bytes(30))
        Traceback (most recent call last):
        ssbroker.exceptions.PeerError: HELLO: expected a name of 1 to 1024 bytes that can be printed
    """
    instance_id, number, max_frame_bytes, length = _HELLO.unpack_from(body)
    try:
        name = body[_HELLO.size :].decode()
    except UnicodeDecodeError:
        name = ""
    if len(body) != _HELLO.size + length or not _is_name(name):
        raise PeerError(f"HELLO: expected a name of 1 to {_NAME_BYTES_MAX} bytes that can be printed")
    if max_frame_bytes < FRAME_BYTES_LEAST:
        raise PeerError(
            f"HELLO: expected a side that takes frames of {FRAME_BYTES_LEAST} bytes; it takes {max_frame_bytes}"
        )
    return Far(instance_id=instance_id, name=name, number=number, max_frame_bytes=max_frame_bytes)


def _is_name(name: str) -> bool:
    # What goes into logs must not be able to write lines of its own there.
    return name.isprintable() and 0 < len(name.encode(errors="replace")) <= _NAME_BYTES_MAX
