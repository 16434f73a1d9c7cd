from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker._core import crc32c
from ssbroker.exceptions import OptionError, PeerError
from ssbroker.protocol.wire import frames
from ssbroker.protocol.wire.frames import (
    BODY_LENGTHS,
    HEADER_BYTES,
    DropReason,
    FrameKind,
    FrameReader,
    GoodbyeReason,
    MirroringRole,
    encode_frame,
)
from ssbroker.protocol.wire.link import LinkLimits
from tests.protocol.wire.links import own

FRAMES = [
    encode_frame(FrameKind.HELLO, frames.pack_hello(own())),
    encode_frame(FrameKind.FRAGMENTS, b"rows, judged later"),
    encode_frame(FrameKind.ROLE_QUERY, bytes(16)),
    encode_frame(FrameKind.ROLE_REPLY, frames.pack_role(bytes(16), "mirror", 3)),
    encode_frame(FrameKind.PING),
    encode_frame(FrameKind.PONG),
    encode_frame(FrameKind.GOODBYE, frames.pack_goodbye(GoodbyeReason.IDLE, "no traffic")),
    encode_frame(FrameKind.DROPPED, frames.pack_drops({(bytes(16), True): DropReason.NOT_ACCEPTED})),
]


def new_reader(*, body_max: int = 8 << 20) -> FrameReader:
    return FrameReader(body_max=body_max)


def read(*pieces: bytes, body_max: int = 8 << 20) -> list[tuple[FrameKind, bytes]]:
    reader, found = new_reader(body_max=body_max), []
    for piece in pieces:
        reader.feed(piece)
        while (frame := reader.next()) is not None:
            found.append(frame)
    return found


def header(*, magic: bytes = b"SSBW", version: int = 1, kind: int = 2, flags: int = 0, length: int = 1) -> bytes:
    """Returns a header without a body; its checksum is irrelevant, since the header is checked first."""
    return struct.pack(">4sBBHII", magic, version, kind, flags, length, 0)


def test_a_header_is_magic_version_kind_flags_length_and_checksum() -> None:
    frame = encode_frame(FrameKind.ROLE_QUERY, b"sixteen bytes id")
    assert frame[:12] == b"SSBW" + bytes([1, 3, 0, 0, 0, 0, 0, 16])
    assert frame[12:16] == crc32c(frame[:12] + b"sixteen bytes id", 0).to_bytes(4, "big")
    assert frame[16:] == b"sixteen bytes id"


def test_the_checksum_is_that_of_rfc_3720() -> None:
    assert crc32c(b"123456789", 0) == 0xE306_9283
    assert crc32c(bytes(32), 0) == 0x8A91_36AA
    assert crc32c(b"6789", crc32c(b"12345", 0)) == 0xE306_9283
    long = bytes(range(256)) * 300
    assert crc32c(long[100:], crc32c(long[:100], 0)) == crc32c(long, 0)


def test_the_checksum_is_computed_over_immutable_bytes() -> None:
    assert crc32c(memoryview(b"123456789"), 0) == 0xE306_9283
    assert crc32c(memoryview(b""), 7) == 7
    for altered in (bytearray(b"1"), memoryview(bytearray(b"1")), memoryview(b"12345678")[::2], "1"):
        with pytest.raises(TypeError):
            crc32c(altered, 0)  # type: ignore[arg-type]


@pytest.mark.rule("P1")
@given(st.lists(st.integers(1, 400), max_size=12))
def test_frames_are_read_from_pieces_of_any_size(cuts: list[int]) -> None:
    data, pieces = b"".join(FRAMES), []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    assert [kind for kind, _ in read(*pieces, data)] == list(FrameKind)


@pytest.mark.rule("P1")
def test_frames_are_read_byte_by_byte() -> None:
    data = b"".join(FRAMES)
    assert read(*(data[at : at + 1] for at in range(len(data)))) == read(data)


@pytest.mark.parametrize("frame", FRAMES, ids=[kind.name for kind in FrameKind])
def test_every_single_bit_flip_of_every_kind_of_frame_is_refused(frame: bytes) -> None:
    for bit in range(8 * len(frame)):
        flipped = bytearray(frame)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = read(bytes(flipped))
        except PeerError:
            continue
        # A larger length waits for bytes that belong to later frames; then the checksum does not match.
        assert found == []
        assert bit // 8 in range(8, 12)
        with pytest.raises(PeerError, match="does not match its checksum"):
            read(bytes(flipped) + bytes(8 << 20))


@pytest.mark.parametrize(
    "start",
    [
        header(magic=b"SSBX"),
        header(version=0),
        header(version=2),
        header(kind=0),
        header(kind=8),
        header(kind=255),
        header(flags=1),
        header(length=0),
        header(length=(8 << 20) + 1),
        header(length=2**32 - 1),
        header(kind=5, length=1),
        header(kind=3, length=15),
        header(kind=4, length=26),
        header(kind=7, length=0),
        header(kind=7, length=514),
        header(kind=1, length=29),
    ],
    ids=str,
)
def test_a_header_is_checked_before_its_body_arrives(start: bytes) -> None:
    with pytest.raises(PeerError):
        read(start)


@pytest.mark.parametrize("start", [b"G", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"SSH-2.0"])
def test_an_invalid_frame_is_rejected_at_the_first_wrong_byte(start: bytes) -> None:
    with pytest.raises(PeerError, match="expected a frame"):
        read(start)


def test_unexpected_tls_is_reported_as_such() -> None:
    with pytest.raises(PeerError, match="the peer starts TLS, which this port does not use"):
        read(b"\x16\x03\x01")


def test_before_authentication_a_body_has_at_most_4_kib() -> None:
    before = LinkLimits().hello_bytes_max
    assert before == 4096
    with pytest.raises(PeerError, match="4097 are declared"):
        read(header(kind=2, length=4097), body_max=before)
    assert read(header(kind=2, length=4096), body_max=before) == []


@pytest.mark.rule("P26")
def test_a_declared_length_allocates_no_memory() -> None:
    reader = new_reader()
    reader.feed(header(kind=2, length=8 << 20))
    assert reader.next() is None
    assert len(reader._data) == HEADER_BYTES


@pytest.mark.rule("P26")
def test_read_bytes_are_freed() -> None:
    reader = new_reader()
    for _ in range(100):
        reader.feed(FRAMES[1])
        assert reader.next() is not None
        assert reader.next() is None
    reader.feed(b"")
    assert len(reader._data) == 0


def test_every_kind_has_a_maximum_length() -> None:
    assert set(BODY_LENGTHS) == set(FrameKind)


def test_hello_contains_identity_and_limits() -> None:
    announced = own(name="laden «ß»", number=2**64 - 1, max_frame_bytes=2 << 20)
    peer = frames.unpack_hello(frames.pack_hello(announced))
    assert (peer.instance_id, peer.name, peer.run_number, peer.max_frame_bytes) == (
        announced.instance_id,
        "laden «ß»",
        2**64 - 1,
        2 << 20,
    )


@pytest.mark.parametrize(
    "invalid",
    [
        {"name": ""},
        {"name": "a\nb"},
        {"name": "x" * 1025},
        {"instance_id": b"short"},
        {"number": -1},
        {"number": 2**64},
    ],
    ids=str,
)
def test_an_identity_that_peers_would_reject_is_rejected(invalid: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        own(**invalid)  # type: ignore[arg-type]
    with pytest.raises(OptionError):
        own(max_frame_bytes=(2 << 20) - 1)


@pytest.mark.parametrize("name", [b"", b"a\nb", b"\x1b[31m", b"\xff", b"x" * 1025, "\u202e".encode()], ids=repr)
def test_a_name_with_control_characters_is_rejected(name: bytes) -> None:
    with pytest.raises(PeerError, match="HELLO: expected a name"):
        frames.unpack_hello(bytes(24) + b"\x00\x80\x00\x00" + struct.pack(">H", len(name)) + name)


def test_an_inconsistent_hello_is_rejected() -> None:
    body = frames.pack_hello(own())
    for invalid in (body + b"x", body[:-1]):
        with pytest.raises(PeerError, match="HELLO"):
            frames.unpack_hello(invalid)


def test_a_frame_limit_below_the_minimum_is_rejected() -> None:
    body = bytearray(frames.pack_hello(own()))
    body[24:28] = ((2 << 20) - 1).to_bytes(4, "big")
    with pytest.raises(PeerError, match="it accepts only up to 2097151"):
        frames.unpack_hello(bytes(body))


def test_goodbye_has_a_printable_reason() -> None:
    assert frames.unpack_goodbye(frames.pack_goodbye(GoodbyeReason.BROKEN, "line\nbreak \x1b[31m")) == (
        GoodbyeReason.BROKEN,
        "line?break ?[31m",
    )
    reason, text = frames.unpack_goodbye(frames.pack_goodbye(GoodbyeReason.STOPPING, "ß" * 600))
    assert (reason, text) == (GoodbyeReason.STOPPING, "ß" * 256)
    assert frames.unpack_goodbye(frames.pack_goodbye(GoodbyeReason.STOPPING, "x" * 511 + "ß"))[1] == "x" * 511


@pytest.mark.parametrize("body", [b"\x00", b"\x07", b"\x08", b"\x01\n", b"\x01\xff"])
def test_an_invalid_goodbye_is_rejected(body: bytes) -> None:
    with pytest.raises(PeerError, match="GOODBYE"):
        frames.unpack_goodbye(body)


@pytest.mark.parametrize("role", ["unknown", "principal", "mirror"])
def test_a_role_has_a_failover_number(role: MirroringRole) -> None:
    assert frames.unpack_role(frames.pack_role(bytes(16), role, 2**63 - 1)) == (bytes(16), role, 2**63 - 1)


@pytest.mark.parametrize("tail", [b"\x03" + bytes(8), b"\x01\x80" + bytes(7)])
def test_an_invalid_role_or_number_is_rejected(tail: bytes) -> None:
    with pytest.raises(PeerError, match="ROLE_REPLY"):
        frames.unpack_role(bytes(16) + tail)


@pytest.mark.parametrize("body", [bytes(17), bytes(19), bytes(17) + b"\x00", bytes(17) + b"\x06"])
def test_an_invalid_reason_for_dropped_rows_is_rejected(body: bytes) -> None:
    with pytest.raises(PeerError, match="DROPPED"):
        frames.unpack_drops(body)
