"""Two ends of a connection without sockets: TLS and frames together, with a clock set by the test."""

from __future__ import annotations

import pytest

from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.broker.network.secure_link import SecureLink
from ssbroker.broker.network.shared_outbox import SharedOutbox
from ssbroker.broker.network.tls import Channel, TlsChannel, TlsContexts, UnencryptedChannel
from ssbroker.exceptions import PeerError
from ssbroker.protocol.wire.frames import GoodbyeReason
from ssbroker.protocol.wire.link import FragmentsArrived, LinkEvent, PeerGreeted, PeerLeft
from tests.broker.network.recording_endpoints import Authority
from tests.protocol.wire.links import BANK, SHOP, numbered, numbers, own

SECOND = 1_000_000
LIMITS = EndpointLimits(outbox_bytes=8 << 20)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[TlsContexts, TlsContexts]:
    """The TLS contexts of the shop and the bank."""
    authority = Authority(tmp_path_factory.mktemp("certificates"))
    return TlsContexts.load(authority.trust("shop", "bank")), TlsContexts.load(authority.trust("bank", "shop"))


def pair(shop: Channel, bank: Channel) -> tuple[SecureLink, SecureLink]:
    """Returns the link of a shop that has dialled a bank and has an outbox for it, and the link of the bank."""
    links = (
        SecureLink(shop, own=own(SHOP, name="shop", number=1), limits=LIMITS, now=0),
        SecureLink(bank, own=own(BANK, name="bank", number=2), limits=LIMITS, now=0),
    )
    links[0].outboxes.append(SharedOutbox(LIMITS.outbox_bytes))
    return links


def unencrypted_pair() -> tuple[SecureLink, SecureLink]:
    """Returns a pair without TLS, after both HELLO frames."""
    links = pair(UnencryptedChannel(), UnencryptedChannel())
    exchange(*links)
    return links


def transfer(one: SecureLink, other: SecureLink, *, now: int = 0, piece: int = 1 << 20) -> list[LinkEvent]:
    """Transfers all bytes of one end to the other in pieces; returns the events of the receiver."""
    found = []
    while (data := one.data_to_send(now=now)) is not None:
        for start in range(0, len(data), piece):
            found += other.received(data[start : start + piece], now=now)
    return found


def exchange(one: SecureLink, other: SecureLink, *, now: int = 0, piece: int = 1 << 20) -> list[LinkEvent]:
    """Transfers bytes in both directions until there are none; returns the events of both ends."""
    found: list[LinkEvent] = []
    while step := transfer(one, other, now=now, piece=piece) + transfer(other, one, now=now, piece=piece):
        found += step
    return found


def handshake(one: SecureLink, other: SecureLink, *, piece: int = 1 << 20) -> list[LinkEvent]:
    """Exchanges bytes several times, since the first TLS flights cause no events."""
    return [each for _ in range(4) for each in exchange(one, other, piece=piece)]


@pytest.mark.parametrize("piece", [1, 7, 1000, 1 << 20])
def test_tls_and_frames_work_in_pieces_of_any_size(contexts: tuple[TlsContexts, TlsContexts], piece: int) -> None:
    shop, bank = pair(TlsChannel(contexts[0], is_accept=False), TlsChannel(contexts[1], is_accept=True))
    shop.outboxes[0].put(numbered(20, size=3000))
    found = handshake(shop, bank, piece=piece)
    assert {each.peer.name for each in found if isinstance(each, PeerGreeted)} == {"bank", "shop"}
    assert numbers(found) == list(range(20))
    assert (shop.channel.principal, bank.channel.principal) == ("bank", "shop")
    assert shop.outboxes[0].progress == (20, 20)


def test_a_frame_is_written_in_small_pieces_before_the_connection_ends() -> None:
    shop, bank = unencrypted_pair()
    for number in range(3):
        shop.outboxes[0].put(numbered(100, first=100 * number, size=10_000))
    shop.leave(GoodbyeReason.STOPPING, "enough")
    pieces = list(iter(lambda: shop.data_to_send(now=0), None))
    assert max(map(len, pieces)) < 66_000
    assert sum(map(len, pieces)) > 3_000_000
    found = [each for piece in pieces for each in bank.received(piece or b"", now=0)]
    assert numbers(found) == list(range(300))
    found = shop.received(bank.data_to_send(now=0) or b"", now=0)
    assert [type(each) for each in found] == [PeerLeft]
    assert (shop.is_finished, bank.is_finished) == (True, True)


def test_a_connection_ends_after_its_reason_was_sent() -> None:
    shop, bank = unencrypted_pair()
    shop.outboxes[0].put(numbered(100, size=10_000))
    assert shop.data_to_send(now=0) is not None
    with pytest.raises(PeerError):
        shop.received(b"no frame at all.", now=0)
    assert not shop.is_finished
    assert [each.reason for each in transfer(shop, bank) if isinstance(each, PeerLeft)] == [GoodbyeReason.BROKEN]
    assert shop.is_finished


def test_a_connection_to_a_silent_peer_ends_with_unwritten_data() -> None:
    """The peer has stopped in the middle of a frame, so the socket accepts no data."""
    shop, bank = unencrypted_pair()
    shop.outboxes[0].put(numbered(100, size=10_000))
    pieces = [shop.data_to_send(now=0) or b"" for _ in range(2)]
    now = 0
    while (timeout := shop.next_timeout()) is not None:
        now = timeout
        shop.handle_timeout(now=now)
    assert shop.is_finished
    pieces.append(shop.close())
    received_numbers = numbers([each for piece in pieces for each in bank.received(piece, now=now)])
    assert received_numbers == list(range(6 + 12))  # two frames, the second one incomplete
    assert shop.close() == b""


def test_nothing_is_sent_before_the_peer_is_authenticated(contexts: tuple[TlsContexts, TlsContexts]) -> None:
    shop, bank = pair(TlsChannel(contexts[0], is_accept=False), TlsChannel(contexts[1], is_accept=True))
    shop.outboxes[0].put(numbered(1))
    assert transfer(shop, bank) == []
    assert not shop.channel.is_open
    assert not bank.is_usable
    assert shop.outboxes[0].progress == (1, 0)


def test_a_connection_with_unwritten_rows_is_not_idle() -> None:
    """The socket accepts no data for an hour, while the peer sends pings."""
    shop, bank = unencrypted_pair()
    for number in range(3):
        shop.outboxes[0].put(numbered(1000, first=1000 * number, size=1000))
    assert shop.data_to_send(now=0) is not None
    bank.pause(now=0)
    for second in range(0, 3600, 5):
        now = second * SECOND
        assert bank.handle_timeout(now=now) == []
        transfer(bank, shop, now=now)
        assert shop.handle_timeout(now=now) == []
        assert shop.is_usable


@pytest.mark.rule("P2")
def test_an_idle_connection_is_closed_after_30_seconds() -> None:
    shop, bank = unencrypted_pair()
    assert shop.handle_timeout(now=29 * SECOND) == []
    assert shop.is_usable
    shop.handle_timeout(now=30 * SECOND)
    assert shop.is_leaving
    found = exchange(shop, bank, now=30 * SECOND)
    assert [each.reason for each in found if isinstance(each, PeerLeft)] == [GoodbyeReason.IDLE, GoodbyeReason.IDLE]
    assert shop.is_finished
    assert bank.is_finished


def test_a_closing_connection_writes_waiting_rows() -> None:
    shop, bank = unencrypted_pair()
    for number in range(3):
        shop.outboxes[0].put(numbered(1000, first=1000 * number, size=1000))
    assert shop.leave(GoodbyeReason.SUPERSEDED, "another stays")
    assert not shop.is_usable
    found = exchange(shop, bank)
    assert numbers(found) == list(range(3000))
    kinds = [type(each) for each in found]
    assert kinds.index(PeerLeft) > len(kinds) - 1 - kinds[::-1].index(FragmentsArrived)
    assert shop.is_finished
    assert bank.is_finished
    assert shop.outboxes[0].progress == (3000, 3000)


def test_no_goodbye_is_sent_before_hello() -> None:
    shop, _ = pair(UnencryptedChannel(), UnencryptedChannel())
    assert not shop.leave(GoodbyeReason.STOPPING, "the instance stops")


def test_more_than_16_kib_before_hello_are_rejected() -> None:
    _, bank = pair(UnencryptedChannel(), UnencryptedChannel())
    assert bank.bytes_to_read == 16 << 10
    assert bank.received(b"SSBW", now=0) == []
    assert bank.bytes_to_read == (16 << 10) - 4
    with pytest.raises(PeerError):
        bank.received(bytes(16 << 10), now=0)


def test_after_hello_reading_is_not_limited() -> None:
    shop, bank = unencrypted_pair()
    assert shop.bytes_to_read is bank.bytes_to_read is None


def test_rows_of_several_addresses_take_turns() -> None:
    """An address with many rows does not delay the rows of another."""
    shop, bank = unencrypted_pair()
    first = shop.outboxes[0]
    second = type(first)(8 << 20)
    shop.outboxes.append(second)
    for number in range(4):
        first.put(numbered(1000, first=1000 * number, size=1000))
    second.put(numbered(1, first=77_777))
    found = numbers(exchange(shop, bank))
    assert len(found) == 4001
    assert found.index(77_777) < 3000


@pytest.mark.rule("R43")
def test_written_rows_are_released_while_more_follow() -> None:
    """An outbox that is filled as fast as it is written holds only unwritten rows."""
    shop, _ = unencrypted_pair()
    first = 0
    for _ in range(640):
        while not shop.outboxes[0].is_full:
            shop.outboxes[0].put(numbered(100, first=first, size=1000))
            first += 100
        assert shop.data_to_send(now=0) is not None
        _, waiting = shop.outboxes[0].pending
        accepted, written = shop.outboxes[0].progress
        assert waiting > 0
        assert accepted - written < 10_000
    assert first > 30_000


@pytest.mark.threat("T15")
def test_a_certificate_is_required_before_anything_is_trusted(contexts: tuple[TlsContexts, TlsContexts]) -> None:
    """A flipped bit in the TLS handshake ends the connection or leaves it unopened."""
    for position in range(0, 512, 16):
        shop, bank = pair(TlsChannel(contexts[0], is_accept=False), TlsChannel(contexts[1], is_accept=True))
        hello = shop.data_to_send(now=0)
        assert hello is not None
        at = position % len(hello)
        flipped = hello[:at] + bytes([hello[at] ^ 1]) + hello[at + 1 :]
        try:
            bank.received(flipped, now=0)
            handshake(shop, bank)
        except PeerError:
            continue
        assert not (shop.channel.is_open and bank.channel.is_open)
