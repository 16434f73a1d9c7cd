"""The recorded bytes of version 1: any change requires a new version."""

from __future__ import annotations

from typing import Any

import pytest

from ssbroker.protocol.wire import frames
from ssbroker.protocol.wire.frames import DropReason, FrameKind, FrameReader, GoodbyeReason, encode_frame, unpack_batch
from tests.guards.repository import ROOT
from tests.protocol.wire.links import bytes_of, own, row, table

RECORDED = {
    FrameKind[name]: bytes.fromhex(data)
    for name, data in (line.split() for line in (ROOT / "tests/protocol/wire/wire_v1.txt").read_text().splitlines())
}
ROWS = [
    row(message_body=b"one book", key_exchange=b"under certificates"),
    row(message_sequence_number=1, message_signature=None, acked_sequence_number=7, acked_ahead=b""),
]
DROPS = {
    (b"one conversation", True): DropReason.FORWARDING_DISABLED,
    (b"two conversation", False): DropReason.NO_RETURN_ROUTE,
}


def body_of(frame: bytes) -> tuple[FrameKind, bytes]:
    frames = FrameReader(body_max=8 << 20)
    frames.feed(frame)
    whole = frames.next()
    assert whole is not None
    return whole


def test_every_kind_is_recorded() -> None:
    assert list(RECORDED) == list(FrameKind)


@pytest.mark.parametrize("kind", list(FrameKind))
def test_a_recorded_frame_is_read(kind: FrameKind) -> None:
    read: dict[FrameKind, Any] = {
        FrameKind.HELLO: lambda body: frames.unpack_hello(body).name,
        FrameKind.FRAGMENTS: lambda body: unpack_batch(body).to_pylist(),
        FrameKind.ROLE_QUERY: bytes,
        FrameKind.ROLE_REPLY: frames.unpack_role,
        FrameKind.PING: bytes,
        FrameKind.PONG: bytes,
        FrameKind.GOODBYE: frames.unpack_goodbye,
        FrameKind.DROPPED: frames.unpack_drops,
    }
    expected = {
        FrameKind.HELLO: "shop",
        FrameKind.FRAGMENTS: ROWS,
        FrameKind.ROLE_QUERY: b"id of a database",
        FrameKind.ROLE_REPLY: (b"id of a database", "principal", 3),
        FrameKind.PING: b"",
        FrameKind.PONG: b"",
        FrameKind.GOODBYE: (GoodbyeReason.STOPPING, "back at 7"),
        FrameKind.DROPPED: DROPS,
    }
    was, body = body_of(RECORDED[kind])
    assert was is kind
    assert read[kind](body) == expected[kind]


def test_equal_frames_are_written_as_equal_bytes() -> None:
    """Except rows: their metadata layout depends on Arrow's version, and any layout is read."""
    emitted = frames.pack_role(b"id of a database", "principal", 3)
    assert {kind: frame for kind, frame in RECORDED.items() if kind is not FrameKind.FRAGMENTS} == {
        FrameKind.HELLO: encode_frame(FrameKind.HELLO, frames.pack_hello(own())),
        FrameKind.ROLE_QUERY: encode_frame(FrameKind.ROLE_QUERY, b"id of a database"),
        FrameKind.ROLE_REPLY: encode_frame(FrameKind.ROLE_REPLY, emitted),
        FrameKind.PING: encode_frame(FrameKind.PING),
        FrameKind.PONG: encode_frame(FrameKind.PONG),
        FrameKind.GOODBYE: encode_frame(FrameKind.GOODBYE, frames.pack_goodbye(GoodbyeReason.STOPPING, "back at 7")),
        FrameKind.DROPPED: encode_frame(FrameKind.DROPPED, frames.pack_drops(DROPS)),
    }
    assert unpack_batch(bytes_of(table(*ROWS))) == unpack_batch(body_of(RECORDED[FrameKind.FRAGMENTS])[1])
