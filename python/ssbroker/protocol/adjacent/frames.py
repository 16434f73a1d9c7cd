"""Frames: sixteen bytes of header and a body (N4)."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, TypeAlias

from ssbroker._core import crc32c
from ssbroker.exceptions import PeerError

MAGIC: Final = b"SSBW"
TLS_BEGINS: Final = b"\x16\x03"
"""The first bytes of whoever speaks TLS: a handshake, of version 3."""
VERSION: Final = 1
HEADER_BYTES: Final = 16
Data: TypeAlias = bytes | memoryview
"""Bytes that nobody alters while they are used: what is to be sent, until it is sealed; what has come, for as long as a call lasts."""

_HEAD: Final = struct.Struct(">4sBBHI")
_CHECK: Final = struct.Struct(">I")


class Kind(IntEnum):
    """What a frame is (N5)."""

    HELLO = 1
    """Who a side is, and what it takes; the first frame of each."""
    FRAGMENTS = 2
    """A batch of rows."""
    ROLE_ASKED = 3
    """What a mirrored database is."""
    ROLE_TOLD = 4
    """The answer."""
    PING = 5
    """Is anybody there."""
    PONG = 6
    """Yes; also said unasked, by who does not read for a while."""
    GOODBYE = 7
    """The last frame of each side, and why."""


LENGTHS: Final[dict[Kind, tuple[int, int]]] = {
    Kind.HELLO: (31, 4 << 10),
    Kind.FRAGMENTS: (1, 8 << 20),
    Kind.ROLE_ASKED: (16, 16),
    Kind.ROLE_TOLD: (25, 25),
    Kind.PING: (0, 0),
    Kind.PONG: (0, 0),
    Kind.GOODBYE: (1, 513),
}
"""How long the body of each kind may be."""


def headed(kind: Kind, body: Data) -> tuple[bytes, Data]:
    """A frame whose body stays where it is.

    Args:
        kind: What it is.
        body: Its body.

    Returns:
        Header and body.
    """
    head = _HEAD.pack(MAGIC, VERSION, kind, 0, len(body))
    return head + _CHECK.pack(crc32c(body, crc32c(head, 0))), body


def framed(kind: Kind, body: Data = b"") -> bytes:
    """A frame.

    Args:
        kind: What it is.
        body: Its body.

    Returns:
        Header and body.

    Examples:
        >>> framed(Kind.PING).hex(" ", 4)
        '53534257 01050000 00000000 de05e583'
    """
    return b"".join(headed(kind, body))


class Frames:
    """Frames out of bytes that come in pieces of any size. A header is judged when it is there, before anything of its body is kept.

    Attributes:
        body_max: How long a body may be at this moment.

    Examples:
        >>> frames = Frames(body_max=4096)
        >>> frames.feed(framed(Kind.PING)[:10])
        >>> frames.next() is None
        True
        >>> frames.feed(framed(Kind.PING)[10:])
        >>> frames.next()
        (<Kind.PING: 5>, b'')
    """

    __slots__ = ("_at", "_data", "body_max")

    def __init__(self, *, body_max: int) -> None:
        self.body_max = body_max
        self._data = bytearray()
        self._at = 0

    def feed(self, data: Data) -> None:
        """Takes bytes, and forgets what has been given."""
        if self._at:
            del self._data[: self._at]
            self._at = 0
        self._data += data

    def next(self) -> tuple[Kind, bytes] | None:
        """The next frame that is whole; None: more bytes are needed.

        Raises:
            PeerError: What comes is no frame, too long, or damaged.
        """
        there = len(self._data) - self._at
        start = bytes(self._data[self._at : self._at + HEADER_BYTES])
        if start[: len(MAGIC)] != MAGIC[: len(start)]:
            speaks_tls = "; that is how TLS begins, which is not spoken here" if start[:2] == TLS_BEGINS else ""
            raise PeerError(f"expected a frame, which begins with {MAGIC!r}; got {start[:4]!r}{speaks_tls}")
        if there < HEADER_BYTES:
            return None
        kind, length = self._judged(start)
        if there < HEADER_BYTES + length:
            return None
        body_at = self._at + HEADER_BYTES
        self._at = body_at + length
        body = bytes(memoryview(self._data)[body_at : self._at])
        if crc32c(body, crc32c(start[: _HEAD.size], 0)) != _CHECK.unpack_from(start, _HEAD.size)[0]:
            raise PeerError(f"{kind.name}: the frame does not match its checksum")
        return kind, body

    def _judged(self, start: bytes) -> tuple[Kind, int]:
        _, version, number, flags, length = _HEAD.unpack_from(start)
        if version != VERSION or flags:
            raise PeerError(
                f"expected a frame of version {VERSION} without flags; got version {version}, flags {flags}"
            )
        try:
            kind = Kind(number)
        except ValueError:
            raise PeerError(f"expected a frame of kind 1 to {max(Kind)}; got kind {number}") from None
        least, most = LENGTHS[kind]
        most = min(most, self.body_max)
        if not least <= length <= most:
            raise PeerError(f"{kind.name}: expected a body of {least} to {most} bytes; {length} are declared")
        return kind, length
