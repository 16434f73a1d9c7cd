"""Reasons for dropped rows are sent only to the peer that sent the rows: they contain the ids of its conversations."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssbroker.broker.instance import Instance
from ssbroker.protocol.wire.frames import DropReason
from tests.broker.network.recording_endpoints import HOST, Authority, RecordingEndpoint
from tests.protocol.wire.links import row, table

SENDER = (row()["conversation_id"], row()["is_initiator"])


@pytest.mark.threat("T6", "T14")
@pytest.mark.parametrize("reason", [DropReason.NOT_ACCEPTED, DropReason.NOT_FORWARDED])
def test_a_peer_that_claims_another_instance_id_gets_no_reasons(tmp_path: Path, reason: DropReason) -> None:
    """Whether the row is for the hub or passes through it. The answer to a role query would follow a reason."""
    authority = Authority(tmp_path / "certificates")
    names = ("hub", "shop", "thief")
    with (
        Instance.create(tmp_path / "hub", name="hub") as hub,
        hub.serve(port=0, trust=authority.trust("hub", *names)) as server,
        RecordingEndpoint("shop", trust=authority.trust("shop", *names)) as shop,
        RecordingEndpoint("thief", trust=authority.trust("thief", *names), instance_id=shop.instance_id) as thief,
    ):
        if reason is DropReason.NOT_FORWARDED:
            hub.execute(
                f"CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = {server.port}) "
                "FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED)\n"
                f"USE msdb\nCREATE ROUTE Bank WITH SERVICE_NAME = 'Bank', ADDRESS = 'TCP://{HOST}:1'"
            )
        for peer in (shop, thief):
            peer.endpoint.query_role(server.address, bytes(16))
            peer.wait_for(lambda: peer.roles)  # noqa: B023 - called immediately
        shop.endpoint.send(server.address, table(row(time_to_live=0)))
        shop.wait_for(lambda: shop.drops == [(server.address, {SENDER: reason})])
        thief.endpoint.query_role(server.address, bytes(16))
        thief.wait_for(lambda: len(thief.roles) == 2)
        assert thief.drops == []
