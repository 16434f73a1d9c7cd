"""P24: TLS at the end of a connection: a peer that has closed it is not written to, and that is not an internal error."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssbroker.broker.network.connection import SecureLink, SharedOutbox
from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.broker.network.tls import TlsChannel, TlsContexts
from ssbroker.exceptions import PeerError
from ssbroker.protocol.wire.frames import OwnIdentity
from tests.system.controlled_peer import row, table_of
from tests.system.serve_options import certificate_options, serve_arguments


@pytest.fixture
def ends(tmp_path: Path) -> tuple[TlsChannel, TlsChannel]:
    """Both ends of a connection after the handshake."""
    given = certificate_options(tmp_path, ("one", "two"))
    contexts = [TlsContexts.load(serve_arguments(given[name])["trust"]) for name in ("one", "two")]
    dialer, accepted = TlsChannel(contexts[0], is_accept=False), TlsChannel(contexts[1], is_accept=True)
    carry(dialer, accepted)
    assert (dialer.is_open, accepted.is_open) == (True, True)
    return dialer, accepted


def carry(one: TlsChannel, two: TlsChannel) -> list[bytes]:
    """Transfers bytes in both directions until there are none; returns the received data."""
    said: list[bytes] = []
    moved = True
    while moved:
        moved = False
        for source, target in ((one, two), (two, one)):
            if data := source.data_to_send():
                moved = True
                said += [meant] if (meant := target.received(data)) else []
    return said


@pytest.mark.rule("P24")
def test_encrypted_data_are_decrypted_at_the_other_end(ends: tuple[TlsChannel, TlsChannel]) -> None:
    ends[0].seal(b"hello")
    assert carry(*ends) == [b"hello"]


@pytest.mark.rule("P24")
@pytest.mark.parametrize("end", [0, 1])
def test_writing_after_the_peer_closed_tls_is_a_peer_error(ends: tuple[TlsChannel, TlsChannel], end: int) -> None:
    near, far = ends[end], ends[1 - end]
    far.close()
    near.received(far.data_to_send())
    near.close()
    with pytest.raises(PeerError, match=r"TLS"):
        near.seal(b"hello")


@pytest.mark.rule("P24")
def test_a_link_ends_when_its_peer_closes_tls(tmp_path: Path) -> None:
    """They are lost with the connection, and sent again over another."""
    given = certificate_options(tmp_path, ("one", "two"))
    lines: list[SecureLink] = []
    for name in given:
        channel = TlsChannel(TlsContexts.load(serve_arguments(given[name])["trust"]), is_accept=bool(lines))
        own = OwnIdentity(instance_id=name.encode().ljust(16), name=name, run_number=1)
        lines.append(SecureLink(channel, own=own, is_accept=bool(lines), limits=EndpointLimits(), now=0))
    near, far = lines
    for _ in range(8):
        for source, target in ((near, far), (far, near)):
            while (data := source.data_to_send(now=0)) is not None:
                target.received(data, now=0)
    assert near.is_usable
    near.outboxes.append(SharedOutbox(1000))
    near.outboxes[0].put(table_of([row(0)]))
    near.channel.close()
    near.channel.data_to_send()
    assert not near.is_finished
    assert near.data_to_send(now=0) is None
    assert near.is_finished
