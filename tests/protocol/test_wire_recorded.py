"""The bytes of version 1, as they were when it was made: whatever changes here has to be another version."""

from __future__ import annotations

from typing import Any

import pytest

from ssbroker.protocol.wire import frames
from ssbroker.protocol.wire.batch import unpack_batch
from ssbroker.protocol.wire.frames import Frames, Kind, Reason, framed
from tests.guards.repository import ROOT
from tests.protocol.wire import bytes_of, own, row, table

RECORDED = {
    Kind[name]: bytes.fromhex(data)
    for name, data in (line.split() for line in (ROOT / "tests/protocol/wire_v1.txt").read_text().splitlines())
}
ROWS = [
    row(message_body=b"one book", key_exchange=b"under certificates"),
    row(message_sequence_number=1, message_signature=None, acked_sequence_number=7, acked_ahead=b""),
]


def body_of(frame: bytes) -> tuple[Kind, bytes]:
    frames = Frames(body_max=8 << 20)
    frames.feed(frame)
    whole = frames.next()
    assert whole is not None
    return whole


def test_n4_every_kind_is_recorded() -> None:
    assert list(RECORDED) == list(Kind)


@pytest.mark.parametrize("kind", list(Kind))
def test_n4_a_recorded_frame_is_read(kind: Kind) -> None:
    read: dict[Kind, Any] = {
        Kind.HELLO: lambda body: frames.unpack_hello(body).name,
        Kind.FRAGMENTS: lambda body: unpack_batch(body).to_pylist(),
        Kind.ROLE_ASKED: bytes,
        Kind.ROLE_TOLD: frames.unpack_role,
        Kind.PING: bytes,
        Kind.PONG: bytes,
        Kind.GOODBYE: frames.unpack_goodbye,
    }
    said = {
        Kind.HELLO: "shop",
        Kind.FRAGMENTS: ROWS,
        Kind.ROLE_ASKED: b"id of a database",
        Kind.ROLE_TOLD: (b"id of a database", "principal", 3),
        Kind.PING: b"",
        Kind.PONG: b"",
        Kind.GOODBYE: (Reason.STOPPING, "back at 7"),
    }
    was, body = body_of(RECORDED[kind])
    assert was is kind
    assert read[kind](body) == said[kind]


def test_n4_the_same_is_said_in_the_same_bytes() -> None:
    """But for rows: how Arrow lays out its metadata is a matter of its version, and any layout is read."""
    told = frames.pack_role(b"id of a database", "principal", 3)
    assert {kind: frame for kind, frame in RECORDED.items() if kind is not Kind.FRAGMENTS} == {
        Kind.HELLO: framed(Kind.HELLO, frames.pack_hello(own())),
        Kind.ROLE_ASKED: framed(Kind.ROLE_ASKED, b"id of a database"),
        Kind.ROLE_TOLD: framed(Kind.ROLE_TOLD, told),
        Kind.PING: framed(Kind.PING),
        Kind.PONG: framed(Kind.PONG),
        Kind.GOODBYE: framed(Kind.GOODBYE, frames.pack_goodbye(Reason.STOPPING, "back at 7")),
    }
    assert unpack_batch(bytes_of(table(*ROWS))) == unpack_batch(body_of(RECORDED[Kind.FRAGMENTS])[1])
