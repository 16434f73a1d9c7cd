"""Peers that break the protocol are rejected with an event that names them; other peers are not affected."""

from __future__ import annotations

import contextlib
import random
import resource
import ssl
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.broker.network.tls import PROTOCOL
from ssbroker.protocol.events import ConnectionEvent, ConnectionStep
from ssbroker.protocol.wire import frames
from ssbroker.protocol.wire.frames import FrameKind, OwnIdentity, encode_frame
from ssbroker.protocol.wire.link import LinkLimits
from tests.broker.network.raw_sockets import raw_connection, read_until_closed
from tests.broker.network.recording_endpoints import Authority, RecordingEndpoint
from tests.protocol.wire.links import numbered

HELLO = encode_frame(
    FrameKind.HELLO, frames.pack_hello(OwnIdentity(instance_id=b"stranger".ljust(16), name="stranger", run_number=1))
)
HOUR = 3_600_000_000


@pytest.fixture
def bank() -> Iterator[RecordingEndpoint]:
    """A bank without TLS, so that bytes reach the frame parser; its timeouts are one hour."""
    limits = EndpointLimits(login_timeout=HOUR, link=LinkLimits(hello_timeout=HOUR, idle_timeout=HOUR))
    with RecordingEndpoint("bank", limits=limits) as endpoint:
        yield endpoint


def event_after(bank: RecordingEndpoint, sent: bytes) -> ConnectionEvent:
    """Sends bytes to the bank and waits for its disconnect; returns the event."""
    before = len(bank.steps(ConnectionStep.RECEIVE_IO_ERROR))
    with raw_connection(bank.address) as opened:
        host, port = opened.getsockname()
        # The bank may close the connection during the send.
        with contextlib.suppress(ConnectionError):
            opened.sendall(sent)
        read_until_closed(opened)
        bank.wait_for(lambda: len(bank.steps(ConnectionStep.RECEIVE_IO_ERROR)) > before)
    event = bank.steps(ConnectionStep.RECEIVE_IO_ERROR)[-1]
    assert event.address == f"TCP://{host}:{port}"
    assert event.error in (9752, 9757)
    return event


def header(*, magic: bytes = b"SSBW", version: int = 1, kind: int = 1, flags: int = 0, length: int = 0) -> bytes:
    """Returns a frame header, which may be invalid."""
    return struct.pack(">4sBBHII", magic, version, kind, flags, length, 0)


@pytest.mark.threat("T3")
def test_a_length_is_checked_before_anything_is_stored(bank: RecordingEndpoint) -> None:
    for length in (4097, 1 << 20, 2**31, 2**32 - 1):
        assert "4096" in event_after(bank, header(length=length)).text.replace(",", "")


@pytest.mark.threat("T3")
def test_after_hello_the_announced_limit_applies(bank: RecordingEndpoint) -> None:
    assert "8388608" in event_after(bank, HELLO + header(kind=2, length=2**32 - 1)).text.replace(",", "")


@pytest.mark.threat("T4")
@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        header(magic=b"SSBX"),
        header(version=2),
        header(kind=99),
        header(flags=1),
        encode_frame(FrameKind.FRAGMENTS, b"rows"),
        encode_frame(FrameKind.PING),
        encode_frame(FrameKind.HELLO, bytes(30)),
        HELLO[:-1] + bytes([HELLO[-1] ^ 1]),
        HELLO + HELLO,
        HELLO + encode_frame(FrameKind.FRAGMENTS, b"rows"),
        HELLO + encode_frame(FrameKind.PONG, b"more than nothing"),
    ],
    ids=range(13),
)
def test_an_invalid_frame_ends_the_connection(bank: RecordingEndpoint, sent: bytes) -> None:
    event_after(bank, sent)
    assert bank.connections() == []
    assert bank.numbers() == []


@pytest.mark.threat("T4")
def test_random_bytes_are_rejected_and_other_instances_are_not_affected(bank: RecordingEndpoint) -> None:
    rng = random.Random(5)
    with RecordingEndpoint("shop") as shop:
        for number in range(100):
            event_after(bank, rng.randbytes(16 + rng.randrange(5000)))
            shop.endpoint.send(bank.address, numbered(1, first=number))
        bank.wait_for(lambda: bank.numbers() == list(range(100)))
        assert shop.failed_connections == []
        assert len(shop.connections()) == 1


def test_an_incomplete_frame_is_ended_at_the_deadline() -> None:
    with RecordingEndpoint(
        "bank", limits=EndpointLimits(login_timeout=1000, link=LinkLimits(hello_timeout=HOUR))
    ) as bank:
        for sent in (b"", HELLO[:1], HELLO[:-1]):
            assert "did not authenticate within 0.001 s" in event_after(bank, sent).text


def test_the_deadline_includes_tls(tmp_path: Path) -> None:
    trust = Authority(tmp_path).trust("bank", "shop")
    with RecordingEndpoint("bank", trust=trust, limits=EndpointLimits(login_timeout=1000)) as bank:
        for sent in (b"", b"\x16", b"\x16\x03\x01\x02\x00" + bytes(511)):
            assert event_after(bank, sent).error == 9752


def test_unauthenticated_peers_can_send_at_most_16_kib(tmp_path: Path) -> None:
    """In TLS records that are invalid or incomplete."""
    trust = Authority(tmp_path).trust("bank", "shop")
    limits = EndpointLimits(login_timeout=HOUR)
    with RecordingEndpoint("bank", trust=trust, limits=limits) as bank:
        event = event_after(bank, b"\x16\x03\x01\x40\x00" + bytes(100_000))
        assert "16,384 bytes without authenticating; expected at most 16,384 bytes" in event.text
        assert (
            "TLS record has 65535 bytes; at most 16384 are allowed" in event_after(bank, b"\x16\x03\x01\xff\xff").text
        )


@pytest.mark.threat("T13")
def test_of_many_unauthenticated_connections_the_oldest_are_closed(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    limits = EndpointLimits(login_timeout=HOUR, max_unauthenticated=50, dial_burst=1000)
    with contextlib.ExitStack() as stack:
        bank = stack.enter_context(RecordingEndpoint("bank", trust=authority.trust("bank", "shop"), limits=limits))
        unauthenticated = []
        for _ in range(300):
            opened = stack.enter_context(raw_connection(bank.address))
            opened.sendall(b"\x16\x03")
            unauthenticated.append(opened)
        bank.wait_for(lambda: len(bank.steps(ConnectionStep.RECEIVE_IO_ERROR)) == 250)
        closed = {event.address for event in bank.steps(ConnectionStep.RECEIVE_IO_ERROR)}
        assert closed == {"TCP://{}:{}".format(*opened.getsockname()) for opened in unauthenticated[:250]}
        assert {event.text for event in bank.events} == {"too many unauthenticated connections; the oldest is closed"}
        for opened in unauthenticated[:250]:
            assert read_until_closed(opened) == b""
        shop = stack.enter_context(RecordingEndpoint("shop", trust=authority.trust("shop", "bank")))
        shop.endpoint.send(bank.address, numbered(10))
        bank.wait_for(lambda: len(bank.numbers()) == 10)
        assert len(bank.connections()) in (50, 51)


@pytest.mark.threat("T13")
def test_unauthenticated_connections_use_at_most_a_quarter_of_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    assert EndpointLimits().unauthenticated_limit() == 64
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert EndpointLimits().unauthenticated_limit() == 1000


@pytest.mark.threat("T5")
def test_an_unauthenticated_peer_changes_nothing(bank: RecordingEndpoint) -> None:
    """Frames before HELLO are rejected."""
    with RecordingEndpoint("shop") as shop:
        shop.endpoint.send(bank.address, numbered(1))
        bank.wait_for(bank.numbers)
        for kind in (
            FrameKind.FRAGMENTS,
            FrameKind.ROLE_QUERY,
            FrameKind.ROLE_REPLY,
            FrameKind.GOODBYE,
            FrameKind.PONG,
        ):
            event_after(bank, encode_frame(kind, bytes(16)))
        assert len(bank.batches) == 1
        assert len(bank.connections()) == 1


@pytest.mark.threat("T4")
def test_a_protocol_error_of_an_authenticated_peer_names_its_principal(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trust = authority.trust("shop.example.com", "bank")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(authority.file)
    context.load_cert_chain(trust.certificate, trust.key)
    context.set_alpn_protocols([PROTOCOL])
    with (
        RecordingEndpoint("bank", trust=authority.trust("bank", "shop.example.com")) as bank,
        raw_connection(bank.address) as opened,
        context.wrap_socket(opened) as secured,
    ):
        secured.sendall(HELLO)
        bank.wait_for(lambda: bank.steps(ConnectionStep.ACCEPT))
        assert bank.events[-1].text == "the peer is stranger, authenticated as shop.example.com"
        secured.sendall(header(kind=99))
        bank.wait_for(lambda: bank.steps(ConnectionStep.CLOSED))
        (event,) = bank.steps(ConnectionStep.RECEIVE_IO_ERROR)
        assert event.error == 9757
        assert event.text.startswith("stranger, authenticated as shop.example.com: ")


def test_the_connections_of_one_peer_are_limited(bank: RecordingEndpoint) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(50):
            opened = stack.enter_context(raw_connection(bank.address))
            opened.sendall(HELLO)
        bank.wait_for(lambda: len(bank.steps(ConnectionStep.ACCEPT)) == 50)
        bank.wait_for(lambda: len(bank.steps(ConnectionStep.CLOSING)) == 46)
        bank.wait_for(lambda: len(bank.connections()) <= 16)
