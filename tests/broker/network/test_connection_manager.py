"""`sys.dm_broker_connections`: each connection with its peer, state and counters."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ssbroker.broker.instance import Instance
from ssbroker.broker.network.tls import Trust
from ssbroker.protocol.events import ConnectionEvent, Event
from tests.broker.network.recording_endpoints import HOST, Authority, RecordingEndpoint
from tests.protocol.wire.links import numbered


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    with Instance.create(tmp_path / "instance", name="bank") as made:
        yield made


def connections(instance: Instance) -> list[dict[str, Any]]:
    return instance.view("sys.dm_broker_connections").to_pylist()


def connected_row(instance: Instance, address: str, trust: Trust | None) -> dict[str, Any]:
    """Returns the row of the view after a peer has sent three rows and received the answers to two later role queries."""
    with RecordingEndpoint("shop", trust=trust) as shop:
        shop.endpoint.send(address, numbered(3))
        for number in (1, 2):
            shop.endpoint.query_role(address, bytes(16))
            shop.wait_for(lambda: len(shop.roles) == number)  # noqa: B023 - called immediately
        (row,) = connections(instance)
        assert row["peer_arbitration_id"] == shop.instance_id
        assert row["total_sends"] >= 2
        assert row["total_bytes_received"] > 3 * 8
        return row


@pytest.mark.rule("P2")
def test_an_instance_that_is_not_served_has_no_connections(instance: Instance) -> None:
    assert connections(instance) == []


@pytest.mark.rule("P2")
def test_a_connection_is_shown_with_its_principal_and_its_counters(instance: Instance, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    trust = authority.trust("bank.example.com", "shop.example.com")
    with instance.serve(port=0, trust=trust) as server:
        row = connected_row(
            instance, f"TCP://{HOST}:{server.port}", authority.trust("shop.example.com", "bank.example.com")
        )
    expected = {
        "state": 4,
        "state_desc": "LOGGED_IN",
        "authentication_method": "CERTIFICATE",
        "principal_name": "shop.example.com",
        "remote_user_name": "shop",
        "is_accept": True,
        "login_state": 12,
        "login_state_desc": "ONLINE",
        "encryption_algorithm": 3,
        "encryption_algorithm_desc": "AES",
        "receives_posted": 1,
        "is_receive_flow_controlled": False,
        "is_send_flow_controlled": False,
        "total_fragments_sent": 0,
        "total_fragments_received": 3,
    }
    assert {name: row[name] for name in expected} == expected
    assert row["connect_time"] <= row["login_time"] <= row["last_activity_time"]


def test_a_connection_without_tls_is_shown_without_a_principal(instance: Instance) -> None:
    with instance.serve(port=0, allow_unencrypted=True) as server:
        row = connected_row(instance, f"TCP://{HOST}:{server.port}", None)
    names = ("authentication_method", "principal_name", "encryption_algorithm", "encryption_algorithm_desc")
    assert [row[name] for name in names] == [None, None, 0, "NONE"]


def test_an_unauthenticated_peer_is_shown_as_not_logged_in(instance: Instance, tmp_path: Path) -> None:
    """The row disappears when the connection is closed."""
    closed = threading.Event()

    def set_closed(event: Event) -> None:
        if isinstance(event, ConnectionEvent):
            closed.set()

    instance.subscribe(set_closed, ConnectionEvent)
    trust = Authority(tmp_path / "certificates").trust("bank.example.com", "shop.example.com")
    with instance.serve(port=0, trust=trust) as server, socket.create_connection((HOST, server.port)) as raw_socket:
        raw_socket.sendall(b"\x16\x03\x01")
        while not (rows := connections(instance)) or rows[0]["total_bytes_received"] < 3:
            assert not closed.is_set()
        assert [rows[0][name] for name in ("state_desc", "login_state_desc", "principal_name", "login_time")] == [
            "CONNECTED",
            "WAIT LOGIN NEGOTIATE",
            None,
            None,
        ]
        raw_socket.shutdown(socket.SHUT_RDWR)
        assert closed.wait(60.0)
        assert connections(instance) == []
