"""Frames and their bodies: HELLO, GOODBYE, ROLE_QUERY, ROLE_REPLY."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from ssbroker._arguments import whole_number
from ssbroker._core import crc32c
from ssbroker.exceptions import OptionError, PeerError, ProtocolError
from ssbroker.protocol.mirroring import MirroringRole

MAGIC: Final = b"SSBW"
TLS_PREFIX: Final = b"\x16\x03"
"""The first bytes of whoever speaks TLS: a handshake, of version 3."""
VERSION: Final = 1
HEADER_BYTES: Final = 16
Data: TypeAlias = bytes | memoryview
"""Bytes that nobody alters while they are used: what is to be sent, until it is sealed; what has come, for as long as a call lasts."""

_HEAD: Final = struct.Struct(">4sBBHI")
_CHECK: Final = struct.Struct(">I")


class FrameKind(IntEnum):
    """What a frame is (N5)."""

    HELLO = 1
    """Who a side is, and what it takes; the first frame of each."""
    FRAGMENTS = 2
    """A batch of rows."""
    ROLE_QUERY = 3
    """What a mirrored database is."""
    ROLE_REPLY = 4
    """The answer."""
    PING = 5
    """Is anybody there."""
    PONG = 6
    """Yes; also said unasked, by who does not read for a while."""
    GOODBYE = 7
    """The last frame of each side, and why."""


BODY_LENGTHS: Final[dict[FrameKind, tuple[int, int]]] = {
    FrameKind.HELLO: (31, 4 << 10),
    FrameKind.FRAGMENTS: (1, 8 << 20),
    FrameKind.ROLE_QUERY: (16, 16),
    FrameKind.ROLE_REPLY: (25, 25),
    FrameKind.PING: (0, 0),
    FrameKind.PONG: (0, 0),
    FrameKind.GOODBYE: (1, 513),
}
"""How long the body of each kind may be."""


def frame_parts(kind: FrameKind, body: Data) -> tuple[bytes, Data]:
    """A frame whose body stays where it is.

    Args:
        kind: What it is.
        body: Its body.

    Returns:
        Header and body.
    """
    head = _HEAD.pack(MAGIC, VERSION, kind, 0, len(body))
    return head + _CHECK.pack(crc32c(body, crc32c(head, 0))), body


def encode_frame(kind: FrameKind, body: Data = b"") -> bytes:
    """A frame.

    Args:
        kind: What it is.
        body: Its body.

    Returns:
        Header and body.

    Examples:
        >>> encode_frame(FrameKind.PING).hex(" ", 4)
        '53534257 01050000 00000000 de05e583'
    """
    return b"".join(frame_parts(kind, body))


class FrameReader:
    """Frames out of bytes that come in pieces of any size. A header is judged when it is there, before anything of its body is kept.

    Attributes:
        body_max: How long a body may be at this moment.

    Examples:
        >>> frames = FrameReader(body_max=4096)
        >>> frames.feed(encode_frame(FrameKind.PING)[:10])
        >>> frames.next() is None
        True
        >>> frames.feed(encode_frame(FrameKind.PING)[10:])
        >>> frames.next()
        (<FrameKind.PING: 5>, b'')
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

    def next(self) -> tuple[FrameKind, bytes] | None:
        """The next frame that is whole; None: more bytes are needed.

        Raises:
            PeerError: What comes is no frame, too long, or damaged.
        """
        there = len(self._data) - self._at
        start = bytes(self._data[self._at : self._at + HEADER_BYTES])
        if start[: len(MAGIC)] != MAGIC[: len(start)]:
            speaks_tls = "; that is how TLS begins, which is not spoken here" if start[:2] == TLS_PREFIX else ""
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

    def _judged(self, start: bytes) -> tuple[FrameKind, int]:
        _, version, number, flags, length = _HEAD.unpack_from(start)
        if version != VERSION or flags:
            raise PeerError(
                f"expected a frame of version {VERSION} without flags; got version {version}, flags {flags}"
            )
        try:
            kind = FrameKind(number)
        except ValueError:
            raise PeerError(f"expected a frame of kind 1 to {max(FrameKind)}; got kind {number}") from None
        least, most = BODY_LENGTHS[kind]
        most = min(most, self.body_max)
        if not least <= length <= most:
            raise PeerError(f"{kind.name}: expected a body of {least} to {most} bytes; {length} are declared")
        return kind, length


FRAME_BYTES_MIN: Final = 2 << 20
"""What every instance takes: a batch of 1 MiB, with the room that a row which is a little longer needs."""
FRAME_BYTES_MAX: Final = 8 << 20

_ID_BYTES: Final = 16
_NAME_BYTES_MAX: Final = 1024
_HELLO: Final = struct.Struct(">16sQIH")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnIdentity:
    """What an instance says of itself.

    Attributes:
        instance_id: Its id, 16 bytes.
        name: Its name, for people: up to 1,024 bytes of UTF-8 that can be printed.
        number: The random number of its run, from 0 to 2**64 - 1, by which of two connections one is kept (N9).
        max_frame_bytes: The longest body of a frame that it takes.

    Raises:
        OptionError: One of them is not what it can be.

    Examples:
        >>> OwnIdentity(instance_id=bytes(16), name="", run_number=1)
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: name: expected 1 to 1024 bytes of text that can be printed; got ''
    """

    instance_id: bytes
    name: str
    run_number: int
    max_frame_bytes: int = FRAME_BYTES_MAX

    def __post_init__(self) -> None:
        whole_number(len(self.instance_id), name="bytes of instance_id", minimum=_ID_BYTES, maximum=_ID_BYTES)
        whole_number(self.run_number, name="run_number", minimum=0, maximum=2**64 - 1)
        whole_number(self.max_frame_bytes, name="max_frame_bytes", minimum=FRAME_BYTES_MIN, maximum=FRAME_BYTES_MAX)
        if not _is_name(self.name):
            raise OptionError(
                f"name: expected 1 to {_NAME_BYTES_MAX} bytes of text that can be printed; got {self.name!r:.80}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerIdentity:
    """What the far side says of itself; none of it is proven.

    Attributes:
        instance_id: Its id, 16 bytes.
        name: Its name, for people.
        number: The random number of its run.
        max_frame_bytes: The longest body of a frame that it takes.
    """

    instance_id: bytes
    name: str
    run_number: int
    max_frame_bytes: int


def pack_hello(own: OwnIdentity) -> bytes:
    """The body of HELLO.

    Args:
        own: Who says it.

    Returns:
        30 bytes and the name.

    Examples:
        >>> unpack_hello(pack_hello(OwnIdentity(instance_id=bytes(16), name="shop", run_number=7))).name
        'shop'
    """
    name = own.name.encode()
    return _HELLO.pack(own.instance_id, own.run_number, own.max_frame_bytes, len(name)) + name


def unpack_hello(body: bytes) -> PeerIdentity:
    """What a HELLO says.

    Args:
        body: Its body, at least as long as without a name.

    Returns:
        Who said it.

    Raises:
        PeerError: It contradicts itself, or takes less than every instance has to.

    Examples:
        >>> unpack_hello(bytes(30))
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
    if max_frame_bytes < FRAME_BYTES_MIN:
        raise PeerError(
            f"HELLO: expected a side that takes frames of {FRAME_BYTES_MIN} bytes; it takes {max_frame_bytes}"
        )
    return PeerIdentity(instance_id=instance_id, name=name, run_number=number, max_frame_bytes=max_frame_bytes)


def _is_name(name: str) -> bool:
    # What goes into logs must not be able to write lines of its own there.
    return name.isprintable() and 0 < len(name.encode(errors="replace")) <= _NAME_BYTES_MAX


_TEXT_BYTES_MAX: Final = 512


class GoodbyeReason(IntEnum):
    """Why a connection ends."""

    IDLE = 1
    """It carried nothing for a while (P2)."""
    SUPERSEDED = 2
    """The same two instances have another one, and that one stays (N9)."""
    ITSELF = 3
    """The instance has dialled itself (N9)."""
    STOPPING = 4
    """The instance stops."""
    REFUSED = 5
    """The far side may not connect."""
    BROKEN = 6
    """The far side broke the protocol."""
    SILENT = 7
    """The far side gave no sign (N10). Only told on this side, since there is nobody to tell it to."""


def pack_goodbye(reason: GoodbyeReason, text: str) -> bytes:
    r"""The body of GOODBYE.

    Args:
        reason: Why.
        text: The same for people; what cannot be printed goes as a question mark, and what is too long is cut.

    Returns:
        A byte and the text.

    Examples:
        >>> pack_goodbye(GoodbyeReason.STOPPING, "back at 7")
        b'\x04back at 7'
    """
    printable = "".join(letter if letter.isprintable() else "?" for letter in text)
    cut = printable.encode(errors="replace")[:_TEXT_BYTES_MAX].decode(errors="ignore")
    return bytes([reason]) + cut.encode()


def unpack_goodbye(body: bytes) -> tuple[GoodbyeReason, str]:
    r"""What a GOODBYE says.

    Args:
        body: Its body, not empty.

    Returns:
        Why, and the same for people.

    Raises:
        PeerError: There is no such reason, or the text cannot be printed.

    Examples:
        >>> unpack_goodbye(b"\x04back at 7")
        (<GoodbyeReason.STOPPING: 4>, 'back at 7')
    """
    try:
        reason, text = GoodbyeReason(body[0]), body[1:].decode()
    except ValueError:
        raise PeerError("GOODBYE: expected a reason from 1 to 6, and UTF-8") from None
    if reason is GoodbyeReason.SILENT or not text.isprintable():
        raise PeerError("GOODBYE: expected a reason from 1 to 6, and text that can be printed")
    return reason, text


GUID_BYTES: Final = 16
NUMBER_MAX: Final = 2**63 - 1

_TOLD: Final = struct.Struct(">16sBQ")
_CODES: Final[dict[MirroringRole, int]] = {"unknown": 0, "principal": 1, "mirror": 2}
_ROLES: Final = {code: role for role, code in _CODES.items()}


def pack_role(broker_instance: bytes, role: MirroringRole, number: int) -> bytes:
    """The body of ROLE_REPLY.

    Args:
        broker_instance: The database's broker id.
        role: What it is.
        number: The role's number.

    Returns:
        25 bytes.

    Raises:
        ProtocolError: They are no such things.

    Examples:
        >>> pack_role(bytes(16), "mirror", 3)[16:].hex()
        '020000000000000003'
    """
    if len(broker_instance) != GUID_BYTES or role not in _CODES or not 0 <= number <= NUMBER_MAX:
        raise ProtocolError(
            f"ROLE_REPLY: expected a broker id, a role and its number; got {role!r:.20}, {number!r:.40}"
        )
    return _TOLD.pack(broker_instance, _CODES[role], number)


def unpack_role(body: bytes) -> tuple[bytes, MirroringRole, int]:
    """What a ROLE_REPLY says.

    Args:
        body: Its body, 25 bytes.

    Returns:
        The database's broker id, what it is, and the role's number.

    Raises:
        PeerError: There is no such role or number.

    Examples:
        >>> unpack_role(pack_role(bytes(16), "principal", 2))[1:]
        ('principal', 2)
    """
    broker_instance, code, number = _TOLD.unpack(body)
    role = _ROLES.get(code)
    if role is None or number > NUMBER_MAX:
        raise PeerError(f"ROLE_REPLY: expected a role from 0 to {max(_ROLES)} and its number; got {code}, {number}")
    return broker_instance, role, number
