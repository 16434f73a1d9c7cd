"""TLS between two ends, also after one of them has ended it (P24)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.broker.network.secure_link import SecureLink
from ssbroker.broker.network.shared_outbox import SharedOutbox
from ssbroker.broker.network.tls import TlsChannel, TlsContexts
from ssbroker.exceptions import PeerError
from ssbroker.protocol.wire.frames import OwnIdentity
from tests.system.controlled_peer import row, table_of
from tests.system.serve_options import certificate_options, serve_arguments


@pytest.fixture
def ends(tmp_path: Path) -> tuple[TlsChannel, TlsChannel]:
    """Both ends of a connection after the handshake."""
    certificates = certificate_options(tmp_path, ("one", "two"))
    contexts = [TlsContexts.load(serve_arguments(certificates[name])["trust"]) for name in ("one", "two")]
    dialer, accepted = TlsChannel(contexts[0], is_accept=False), TlsChannel(contexts[1], is_accept=True)
    transfer(dialer, accepted)
    assert (dialer.is_open, accepted.is_open) == (True, True)
    return dialer, accepted


def transfer(one: TlsChannel, two: TlsChannel) -> list[bytes]:
    """Transfers bytes in both directions until there are none; returns the received data."""
    received: list[bytes] = []
    moved = True
    while moved:
        moved = False
        for source, target in ((one, two), (two, one)):
            if data := source.data_to_send():
                moved = True
                received += [plaintext] if (plaintext := target.received(data)) else []
    return received


@pytest.mark.rule("P24")
def test_encrypted_data_are_decrypted_at_the_other_end(ends: tuple[TlsChannel, TlsChannel]) -> None:
    ends[0].seal(b"hello")
    assert transfer(*ends) == [b"hello"]


@pytest.mark.rule("P24")
@pytest.mark.parametrize("end", [0, 1])
def test_writing_after_the_peer_closed_tls_is_a_peer_error(ends: tuple[TlsChannel, TlsChannel], end: int) -> None:
    own, remote = ends[end], ends[1 - end]
    remote.close()
    own.received(remote.data_to_send())
    own.close()
    with pytest.raises(PeerError, match=r"TLS"):
        own.seal(b"hello")


@pytest.mark.rule("P24")
@pytest.mark.parametrize("end", [0, 1])
def test_data_after_the_end_of_tls_are_a_peer_error(ends: tuple[TlsChannel, TlsChannel], end: int) -> None:
    """OpenSSL would leave them in the buffer, which would grow without limit."""
    own, remote = ends[end], ends[1 - end]
    remote.seal(b"hello")
    remote.close()
    assert own.received(remote.data_to_send() + b"more") == b"hello"
    with pytest.raises(PeerError, match=r"^the peer sent data after it had ended TLS$"):
        own.received(b"and more")


@pytest.mark.rule("P24")
def test_a_link_ends_when_its_peer_closes_tls(tmp_path: Path) -> None:
    """Unwritten rows are lost with the connection and sent again over another."""
    certificates = certificate_options(tmp_path, ("one", "two"))
    links: list[SecureLink] = []
    for name in certificates:
        channel = TlsChannel(TlsContexts.load(serve_arguments(certificates[name])["trust"]), is_accept=bool(links))
        own = OwnIdentity(instance_id=name.encode().ljust(16), name=name, run_number=1)
        links.append(SecureLink(channel, own=own, limits=EndpointLimits(), now=0))
    link, peer_link = links
    for _ in range(8):
        for source, target in ((link, peer_link), (peer_link, link)):
            while (data := source.data_to_send(now=0)) is not None:
                target.received(data, now=0)
    assert link.is_usable
    link.outboxes.append(SharedOutbox(1000))
    link.outboxes[0].put(table_of([row(0)]))
    link.channel.close()
    link.channel.data_to_send()
    assert not link.is_finished
    assert link.data_to_send(now=0) is None
    assert link.is_finished
