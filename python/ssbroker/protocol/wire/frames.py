"""Frames of a connection and their bodies: HELLO, GOODBYE, role queries, batches of rows, and reasons for dropped rows."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker import _core
from ssbroker._arguments import integer_argument
from ssbroker._core import crc32c
from ssbroker.exceptions import MalformedDataError, OptionError, PeerError, ProtocolError
from ssbroker.protocol.envelope import ENVELOPE
from ssbroker.protocol.storage import EndpointKey

MirroringRole: TypeAlias = Literal["principal", "mirror", "unknown"]
"""The role of a database, as reported by an address. `unknown`: no database there has the queried broker id, or its broker is disabled."""


MAGIC: Final = b"SSBW"
TLS_PREFIX: Final = b"\x16\x03"
"""The first bytes of a TLS connection: a handshake record, version 3."""
VERSION: Final = 1
HEADER_BYTES: Final = 16
Data: TypeAlias = bytes | memoryview
"""Bytes that must not be modified while they are used: outgoing bytes until they are sealed, incoming bytes for the duration of a call."""

_HEADER: Final = struct.Struct(">4sBBHI")
_CHECKSUM: Final = struct.Struct(">I")


class FrameKind(IntEnum):
    """The kind of a frame."""

    HELLO = 1
    """The identity and limits of a side; always its first frame."""
    FRAGMENTS = 2
    """A batch of rows."""
    ROLE_QUERY = 3
    """A query for the role of a mirrored database."""
    ROLE_REPLY = 4
    """The reply to a role query."""
    PING = 5
    """Asks whether the peer is alive."""
    PONG = 6
    """The answer to PING; also sent unasked by a side that has paused reading."""
    GOODBYE = 7
    """The last frame of a side, with the reason why the connection ends."""
    DROPPED = 8
    """Why rows from endpoints of the peer are not acknowledged."""


BODY_LENGTHS: Final[dict[FrameKind, tuple[int, int]]] = {
    FrameKind.HELLO: (31, 4 << 10),
    FrameKind.FRAGMENTS: (1, 8 << 20),
    FrameKind.ROLE_QUERY: (16, 16),
    FrameKind.ROLE_REPLY: (25, 25),
    FrameKind.PING: (0, 0),
    FrameKind.PONG: (0, 0),
    FrameKind.GOODBYE: (1, 513),
    FrameKind.DROPPED: (18, 18 << 10),
}
"""The minimum and maximum body length of each kind of frame."""


def frame_parts(kind: FrameKind, body: Data) -> tuple[bytes, Data]:
    """Returns the header of a frame and its body, which is not copied."""
    head = _HEADER.pack(MAGIC, VERSION, kind, 0, len(body))
    return head + _CHECKSUM.pack(crc32c(body, crc32c(head, 0))), body


def encode_frame(kind: FrameKind, body: Data = b"") -> bytes:
    """Encodes a frame.

    Examples:
        >>> encode_frame(FrameKind.PING).hex(" ", 4)
        '53534257 01050000 00000000 de05e583'
    """
    return b"".join(frame_parts(kind, body))


class FrameReader:
    """Reads frames from bytes that arrive in pieces of any size. The header of a frame is checked before the rest of its body is awaited.

    Attributes:
        body_max: The current maximum body length.

    Examples:
        >>> reader = FrameReader(body_max=4096)
        >>> reader.feed(encode_frame(FrameKind.PING)[:10])
        >>> reader.next() is None
        True
        >>> reader.feed(encode_frame(FrameKind.PING)[10:])
        >>> reader.next()
        (<FrameKind.PING: 5>, b'')
    """

    __slots__ = ("_data", "_position", "body_max")

    def __init__(self, *, body_max: int) -> None:
        self.body_max = body_max
        self._data = bytearray()
        self._position = 0

    def feed(self, data: Data) -> None:
        """Adds bytes, and discards the bytes of returned frames."""
        if self._position:
            del self._data[: self._position]
            self._position = 0
        self._data += data

    def next(self) -> tuple[FrameKind, bytes] | None:
        """Returns the next complete frame; None if more bytes are needed.

        Raises:
            PeerError: The data is not a frame, or the frame is too long or damaged.
        """
        available = len(self._data) - self._position
        header = bytes(self._data[self._position : self._position + HEADER_BYTES])
        if header[: len(MAGIC)] != MAGIC[: len(header)]:
            speaks_tls = "; the peer starts TLS, which this port does not use" if header[:2] == TLS_PREFIX else ""
            raise PeerError(f"expected a frame that starts with {MAGIC!r}, got {header[:4]!r}{speaks_tls}")
        if available < HEADER_BYTES:
            return None
        kind, length = self._check_header(header)
        if available < HEADER_BYTES + length:
            return None
        body_at = self._position + HEADER_BYTES
        self._position = body_at + length
        body = bytes(memoryview(self._data)[body_at : self._position])
        if crc32c(body, crc32c(header[: _HEADER.size], 0)) != _CHECKSUM.unpack_from(header, _HEADER.size)[0]:
            raise PeerError(f"{kind.name}: the frame does not match its checksum")
        return kind, body

    def _check_header(self, header: bytes) -> tuple[FrameKind, int]:
        _, version, number, flags, length = _HEADER.unpack_from(header)
        if version != VERSION or flags:
            raise PeerError(
                f"expected a frame of version {VERSION} without flags, got version {version}, flags {flags}"
            )
        try:
            kind = FrameKind(number)
        except ValueError:
            raise PeerError(f"expected a frame of kind 1 to {max(FrameKind)}, got kind {number}") from None
        least, most = BODY_LENGTHS[kind]
        most = min(most, self.body_max)
        if not least <= length <= most:
            raise PeerError(f"{kind.name}: expected a body of {least} to {most} bytes; {length} are declared")
        return kind, length


FRAME_BYTES_MIN: Final = 2 << 20
"""The frame size that every instance must accept: a batch of 1 MiB, and space for a slightly longer row."""
FRAME_BYTES_MAX: Final = 8 << 20

_ID_BYTES: Final = 16
_NAME_BYTES_MAX: Final = 1024
_HELLO: Final = struct.Struct(">16sQIH")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnIdentity:
    """The identity of this instance.

    Attributes:
        instance_id: The instance id, 16 bytes.
        name: A display name: up to 1,024 bytes of printable UTF-8.
        run_number: A random number for this run of the process, from 0 to 2**64 - 1, which decides which of two connections is kept.
        max_frame_bytes: The maximum frame body that the instance accepts.

    Raises:
        OptionError: A value is invalid.

    Examples:
        >>> OwnIdentity(instance_id=bytes(16), name="", run_number=1)
        Traceback (most recent call last):
        ssbroker.exceptions.OptionError: name: expected 1 to 1024 bytes of printable text, got ''
    """

    instance_id: bytes
    name: str
    run_number: int
    max_frame_bytes: int = FRAME_BYTES_MAX

    def __post_init__(self) -> None:
        integer_argument(len(self.instance_id), name="bytes of instance_id", minimum=_ID_BYTES, maximum=_ID_BYTES)
        integer_argument(self.run_number, name="run_number", minimum=0, maximum=2**64 - 1)
        integer_argument(self.max_frame_bytes, name="max_frame_bytes", minimum=FRAME_BYTES_MIN, maximum=FRAME_BYTES_MAX)
        if not _is_name(self.name):
            raise OptionError(f"name: expected 1 to {_NAME_BYTES_MAX} bytes of printable text, got {self.name!r:.80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerIdentity:
    """The identity that a peer claims, unverified.

    Attributes:
        instance_id: The instance id, 16 bytes.
        name: The display name.
        run_number: The random number of the peer's process run.
        max_frame_bytes: The maximum frame body that the peer accepts.
    """

    instance_id: bytes
    name: str
    run_number: int
    max_frame_bytes: int


def pack_hello(own: OwnIdentity) -> bytes:
    """Packs the body of HELLO: 30 bytes and the name.

    Examples:
        >>> unpack_hello(pack_hello(OwnIdentity(instance_id=bytes(16), name="shop", run_number=7))).name
        'shop'
    """
    name = own.name.encode()
    return _HELLO.pack(own.instance_id, own.run_number, own.max_frame_bytes, len(name)) + name


def unpack_hello(body: bytes) -> PeerIdentity:
    """Unpacks the body of HELLO, at least 30 bytes.

    Raises:
        PeerError: The body is inconsistent, or the peer accepts only frames smaller than every instance must accept.
    """
    instance_id, number, max_frame_bytes, length = _HELLO.unpack_from(body)
    try:
        name = body[_HELLO.size :].decode()
    except UnicodeDecodeError:
        name = ""
    if len(body) != _HELLO.size + length or not _is_name(name):
        raise PeerError(f"HELLO: expected a name of 1 to {_NAME_BYTES_MAX} printable bytes")
    if max_frame_bytes < FRAME_BYTES_MIN:
        raise PeerError(
            f"HELLO: the peer must accept frames of up to {FRAME_BYTES_MIN} bytes; it accepts only up to {max_frame_bytes}"
        )
    return PeerIdentity(instance_id=instance_id, name=name, run_number=number, max_frame_bytes=max_frame_bytes)


def _is_name(name: str) -> bool:
    # Names are logged and must not contain line breaks.
    return name.isprintable() and 0 < len(name.encode(errors="replace")) <= _NAME_BYTES_MAX


_TEXT_BYTES_MAX: Final = 512


class GoodbyeReason(IntEnum):
    """Why a connection ends."""

    IDLE = 1
    """The connection had no traffic for a while (P2)."""
    SUPERSEDED = 2
    """The same two instances have another connection, which is kept."""
    ITSELF = 3
    """The instance has connected to itself."""
    STOPPING = 4
    """The instance is stopping."""
    REFUSED = 5
    """The peer may not connect."""
    BROKEN = 6
    """The peer violated the protocol."""
    SILENT = 7
    """The peer was silent for too long. Reported on this side only, never sent."""


def pack_goodbye(reason: GoodbyeReason, text: str) -> bytes:
    r"""Packs the body of GOODBYE; unprintable characters become question marks, and a long text is truncated.

    Examples:
        >>> pack_goodbye(GoodbyeReason.STOPPING, "back at 7")
        b'\x04back at 7'
    """
    printable = "".join(letter if letter.isprintable() else "?" for letter in text)
    cut = printable.encode(errors="replace")[:_TEXT_BYTES_MAX].decode(errors="ignore")
    return bytes([reason]) + cut.encode()


def unpack_goodbye(body: bytes) -> tuple[GoodbyeReason, str]:
    r"""Unpacks the non-empty body of GOODBYE.

    Raises:
        PeerError: The reason is unknown, or the text is not printable.

    Examples:
        >>> unpack_goodbye(b"\x04back at 7")
        (<GoodbyeReason.STOPPING: 4>, 'back at 7')
    """
    try:
        reason, text = GoodbyeReason(body[0]), body[1:].decode()
    except ValueError:
        raise PeerError(f"GOODBYE: expected a reason from 1 to 6 and UTF-8 text, got {body[:40]!r}") from None
    if reason is GoodbyeReason.SILENT or not text.isprintable():
        raise PeerError(f"GOODBYE: expected a reason from 1 to 6 and printable text, got {body[:40]!r}")
    return reason, text


GUID_BYTES: Final = 16
NUMBER_MAX: Final = 2**63 - 1

_ROLE_REPLY: Final = struct.Struct(">16sBQ")
_ROLE_CODES: Final[dict[MirroringRole, int]] = {"unknown": 0, "principal": 1, "mirror": 2}
_ROLES: Final = {code: role for role, code in _ROLE_CODES.items()}


def pack_role(broker_instance: bytes, role: MirroringRole, number: int) -> bytes:
    """Packs the body of ROLE_REPLY: 25 bytes.

    Raises:
        ProtocolError: A value is invalid.

    Examples:
        >>> pack_role(bytes(16), "mirror", 3)[16:].hex()
        '020000000000000003'
    """
    if len(broker_instance) != GUID_BYTES or role not in _ROLE_CODES or not 0 <= number <= NUMBER_MAX:
        raise ProtocolError(
            f"ROLE_REPLY: expected a broker id, a role and a role sequence number, got {broker_instance!r:.80}, {role!r:.20}, {number!r:.40}"
        )
    return _ROLE_REPLY.pack(broker_instance, _ROLE_CODES[role], number)


def unpack_role(body: bytes) -> tuple[bytes, MirroringRole, int]:
    """Unpacks the body of ROLE_REPLY: the broker id, the role and its number.

    Raises:
        PeerError: The role or the number is invalid.

    Examples:
        >>> unpack_role(pack_role(bytes(16), "principal", 2))[1:]
        ('principal', 2)
    """
    broker_instance, code, number = _ROLE_REPLY.unpack(body)
    role = _ROLES.get(code)
    if role is None or number > NUMBER_MAX:
        raise PeerError(
            f"ROLE_REPLY: expected a role from 0 to {max(_ROLES)} and a role sequence number, got {code}, {number}"
        )
    return broker_instance, role, number


class DropReason(IntEnum):
    """Why a peer does not acknowledge the rows of a conversation. No reason reveals which services, databases or routes the peer has."""

    NOT_ACCEPTED = 1
    """The peer has no service or route for the rows, or refuses them."""
    FORWARDING_DISABLED = 2
    """The rows are for another instance, and the peer does not forward."""
    NOT_FORWARDED = 3
    """The peer forwards messages, but dropped these rows."""
    NO_RETURN_ROUTE = 4
    """The peer received the rows, but its routes do not lead back to the sender."""
    TOO_LARGE = 5
    """A message is larger than the peer accepts."""


DROPS_MAX: Final = 1 << 10
"""The maximum number of endpoints in a DROPPED frame."""
_DROP: Final = struct.Struct(">16s?B")


def pack_drops(drops: Mapping[EndpointKey, DropReason]) -> bytes:
    """Packs the body of DROPPED: 18 bytes per endpoint of the peer, for at most `DROPS_MAX` endpoints.

    Examples:
        >>> pack_drops({(bytes(16), True): DropReason.FORWARDING_DISABLED})[16:].hex()
        '0102'
    """
    return b"".join(_DROP.pack(*key, reason) for key, reason in drops.items())


def unpack_drops(body: bytes) -> dict[EndpointKey, DropReason]:
    """Unpacks the body of DROPPED.

    Raises:
        PeerError: The length or a reason is invalid.

    Examples:
        >>> unpack_drops(pack_drops({(bytes(16), False): DropReason.NOT_ACCEPTED})).values()
        dict_values([<DropReason.NOT_ACCEPTED: 1>])
    """
    if len(body) % _DROP.size:
        raise PeerError(f"DROPPED: expected a multiple of {_DROP.size} bytes, got {len(body)}")
    try:
        return {(conversation, side): DropReason(reason) for conversation, side, reason in _DROP.iter_unpack(body)}
    except ValueError as error:
        raise PeerError(f"DROPPED: expected a reason of 1 to {max(DropReason)}; {error}") from None


HOPS_MAX: Final = 16
"""The initial value of `hops_remaining`; a row passes through at most 15 forwarders."""

HOP_COLUMNS: Final = (
    pa.field("hops_remaining", pa.int8(), nullable=False),
    pa.field("time_to_live", pa.int32(), nullable=False),
    pa.field("time_consumed", pa.int32(), nullable=False),
    pa.field("key_exchange", pa.binary()),
)
"""The columns added to an envelope row. A forwarder changes `hops_remaining` and `time_consumed`; `key_exchange` carries the session key of a
direction."""

WIRE: Final = pa.schema([*ENVELOPE, *HOP_COLUMNS])
"""A row on the wire."""

ROWS_MAX: Final = 1_024
BYTES_MAX: Final = 1 << 20
"""A batch of rows is closed when it reaches `ROWS_MAX` rows or this many bytes."""
ROW_BYTES_MAX: Final = BYTES_MAX + (64 << 10)
"""The size of the largest row: a fragment of 1 MiB and its header."""

_FIXED_ROW_BYTES: Final = 192  # the fixed-size columns of a row
_VARIABLE_COLUMNS: Final = tuple(
    field.name for field in WIRE if pa.types.is_binary(field.type) or pa.types.is_string(field.type)
)
_REQUIRED_COLUMNS: Final = tuple(field.name for field in WIRE if not field.nullable)


_MEASURED_BYTES_MIN: Final = 64 << 10


def size_of(rows: pa.Table) -> int:
    """Returns the size of rows in bytes; for small rows, the size of their buffers, which may be larger but is found fifty times faster.

    Examples:
        >>> size_of(pa.table({"number": [1]})), size_of(pa.table({"body": [bytes(1 << 20)]})) - (1 << 20)
        (8, 4)
    """
    return rows.nbytes if (size := rows.get_total_buffer_size()) >= _MEASURED_BYTES_MIN else size


def check_rows(rows: pa.Table) -> None:
    """Checks that rows can be sent.

    Raises:
        ProtocolError: The columns are wrong, or a required value is null.

    Examples:
        >>> check_rows(pa.table({"message_body": [b""]}))
        Traceback (most recent call last):
        ssbroker.exceptions.ProtocolError: expected rows of the wire schema, got the columns message_body
    """
    if not rows.schema.equals(WIRE):
        raise ProtocolError(f"expected rows of the wire schema, got the columns {', '.join(rows.column_names)}")
    for name in _REQUIRED_COLUMNS:
        if rows.column(name).null_count:
            raise ProtocolError(
                f"{name}: expected a value in every row; there are {rows.column(name).null_count} nulls"
            )


def split_rows(rows: pa.Table, *, max_bytes: int = BYTES_MAX) -> Iterator[tuple[pa.Table, int]]:
    """Splits rows into pieces that each fit into a frame; yields the pieces with their approximate sizes.

    Args:
        rows: Rows of `WIRE`.
        max_bytes: The maximum size of a piece of more than one row.

    Raises:
        ProtocolError: A row is larger than a frame.

    Examples:
        >>> list(split_rows(WIRE.empty_table()))
        []
    """
    if not rows.num_rows:
        return
    size = rows.get_total_buffer_size()
    if size >= _MEASURED_BYTES_MIN:
        size = sum(rows.column(name).nbytes for name in _VARIABLE_COLUMNS)
    whole = rows.num_rows * _FIXED_ROW_BYTES + size
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
    """Packs rows that fit into a frame: the body is one record batch message of Arrow IPC.

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
    """Unpacks the body of a FRAGMENTS frame into 1 to 1,024 rows.

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


_LIFETIME: Final = ("lifetime",)


def to_wire_rows(rows: pa.Table, *, now: int, key_exchanges: pa.Array[Any]) -> pa.Table:
    """Converts envelope rows to rows of `WIRE`.

    Args:
        rows: The rows (`envelope.ENVELOPE`).
        now: The current time, from which the time to live is computed.
        key_exchanges: The key exchange blob of each row, or null.
    """
    hop = _core.first_hop(rows.select(_LIFETIME), now)  # passing all columns would take three times as long
    return pa.Table.from_arrays([*rows.columns, *hop.columns, key_exchanges], schema=WIRE)
