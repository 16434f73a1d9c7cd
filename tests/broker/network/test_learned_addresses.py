"""Addresses that peers choose by service names (R23) are limited, forgotten, and dialled only if allowed."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ssbroker.broker.network import conversations_in_transit, destinations, message_exchange
from ssbroker.broker.network.addresses import DialFilter
from ssbroker.broker.network.conversations_in_transit import ConversationsInTransit
from ssbroker.broker.network.forwarding import MessageForwarder
from ssbroker.broker.network.instance_server import ServeOptions
from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.exceptions import OptionError
from ssbroker.protocol.events import ConnectionStep, Event, EventLog, ForwardedMessageDropped
from tests.broker.network.forwarded_rows import Outboxes, decisions, peer, row, wire
from tests.broker.network.recording_endpoints import HOST, QUICK, RecordingEndpoint
from tests.broker.network.shop_and_bank import shop_and_bank_pair
from tests.broker.network.test_socket_endpoint import NO_RETRY, free_port
from tests.broker.sample_databases import STOCK
from tests.protocol.wire.links import numbered


@pytest.fixture
def local_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolves all names that end in `.example` to this host."""
    getaddrinfo = socket.getaddrinfo

    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        return getaddrinfo(HOST if str(host).endswith(".example") else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def test_an_unused_address_is_forgotten(monkeypatch: pytest.MonkeyPatch, local_names: None) -> None:
    """One instance is dialled by many names; only those in use are kept."""
    monkeypatch.setattr(destinations, "KNOWN_MAX", 4)
    limits = replace(QUICK, link=replace(QUICK.link, idle_timeout=100_000))
    with RecordingEndpoint("bank", limits=limits) as bank, RecordingEndpoint("shop", limits=limits) as shop:
        manager = shop.endpoint._manager
        manager.dialer.destinations._forget_beyond = 4
        names = [f"TCP://h{number}.example:{bank.port}" for number in range(1, 16)]
        before = {}
        for number, name in enumerate(names):
            shop.endpoint.send(name, numbered(1, first=number))
            before[name] = shop.endpoint.progress(name)
            bank.wait_for(lambda: len(bank.numbers()) > number)  # noqa: B023 - called immediately
            shop.wait_for(lambda: not any(each.is_busy for each in manager.dialer.destinations.all()))
        assert len(manager.dialer.destinations.all()) <= 9
        for name, (taken, _) in before.items():
            assert shop.endpoint.progress(name)[1] >= taken
        assert bank.numbers() == list(range(len(names)))
        for name in names[:2]:
            (before_these, _), result = shop.endpoint.progress(name), shop.endpoint.send(name, numbered(2))
            assert not result.is_full
            assert result.accepted_rows == shop.endpoint.progress(name)[0] == before_these + 2


def test_concurrent_dials_of_learned_addresses_are_limited(
    local_names: None,
) -> None:
    """Silent listeners use up the dials; addresses of routes are still dialled."""
    limits = EndpointLimits(max_unrouted_dials=2, login_timeout=3600_000_000)
    with (
        socket.create_server((HOST, 0)) as silent,
        RecordingEndpoint("shop", limits=limits) as shop,
        RecordingEndpoint("bank") as bank,
    ):
        port = silent.getsockname()[1]
        for number in range(1, 6):
            shop.endpoint.send(f"TCP://h{number}.example:{port}", numbered(1))
        shop.wait_for(lambda: len(shop.steps(ConnectionStep.CONNECTING)) == 2)
        shop.endpoint.send(bank.address, numbered(1))
        shop.endpoint.set_routed_addresses({f"TCP://h9.example:{bank.port}"})
        shop.endpoint.send(f"TCP://h9.example:{bank.port}", numbered(1, first=1))
        bank.wait_for(bank.numbers)
        dialled = [event.address for event in shop.steps(ConnectionStep.CONNECTING)]
        assert dialled[2:] == [f"TCP://h9.example:{bank.port}"]
        silent.accept()[0].close()
        shop.wait_for(lambda: len(shop.steps(ConnectionStep.CONNECTING)) > 3)


def test_the_number_of_addresses_from_peers_is_limited(local_names: None) -> None:
    limits = replace(NO_RETRY, max_unrouted_addresses=3)
    with RecordingEndpoint("shop", limits=limits) as shop:
        port = free_port()
        names = [f"TCP://h{number}.example:{port}" for number in range(1, 6)]
        shop.endpoint.set_routed_addresses({names[3]})
        assert [shop.endpoint.refusal_reason(name) for name in names] == [None] * 5
        for name in names[:3]:
            shop.endpoint.send(name, numbered(1))
        shop.wait_for(lambda: len(shop.failed_connections) == 3)
        assert [shop.endpoint.refusal_reason(name) for name in names] == [
            None,
            None,
            None,
            None,
            "the limit of 3 addresses that no route names is reached; raise limits.max_unrouted_addresses",
        ]


@pytest.mark.parametrize(
    ("entries", "host", "is_refused"),
    [
        ((), "192.0.2.1", False),
        (("10.0.0.0/8",), "10.255.0.1", False),
        (("10.0.0.0/8",), "192.0.2.1", True),
        (("10.0.0.0/8",), "::ffff:10.0.0.1", False),
        (("2001:db8::/32",), "2001:db8::1", False),
        (("2001:db8::/32",), "10.0.0.1", True),
        (("192.0.2.1",), "192.0.2.1", False),
        (("shop.example.com",), "shop.example.com", False),
        (("Shop.Example.com",), "shop.example.com", False),
        (("shop.example.com",), "evil.shop.example.com", True),
        (("*.example.com",), "a.b.example.com", False),
        (("*.example.com",), "example.com", True),
        (("*.example.com",), "evilexample.com", True),
        (("shop.example.com",), "10.0.0.1", True),
    ],
)
def test_allowed_addresses_are_networks_hosts_or_domains(
    entries: tuple[str, ...],
    host: str,
    is_refused: bool,  # noqa: FBT001 - a column of the table above
) -> None:
    assert DialFilter(entries).refuses(host) is is_refused


@pytest.mark.parametrize("entry", ["", "10.0.0.1/8", "10.0.0.0/33", "*", "*.", "a b", "TCP://shop", "*.*.com"])
def test_an_invalid_dial_filter_is_rejected(entry: str) -> None:
    with pytest.raises(OptionError, match="dial_only: "):
        ServeOptions(allow_unencrypted=True, dial_only=[entry])


def test_a_name_that_resolves_outside_the_allowed_networks_is_not_dialled(local_names: None) -> None:
    """Names are checked after they are resolved, at each dial."""
    with (
        RecordingEndpoint("bank") as bank,
        RecordingEndpoint("shop", limits=NO_RETRY, dial_only=["192.0.2.0/24", "other.example"]) as shop,
    ):
        names = [f"TCP://{host}:{bank.port}" for host in ("name.example", "127.0.0.1")]
        for name in names:
            shop.endpoint.send(name, numbered(1))
        shop.wait_for(lambda: len(shop.failed_connections) == 2)
        assert sorted(shop.failed_connections) == [
            (name, f"the dial failed: {name[6:].partition(':')[0]} is not allowed by dial_only")
            for name in sorted(names)
        ]
        assert shop.endpoint.refusal_reason(names[1]) == "it is not allowed by dial_only"
        assert shop.endpoint.refusal_reason(names[0]) is None
        shop.endpoint.send(f"TCP://other.example:{bank.port}", numbered(1, first=7))
        bank.wait_for(lambda: bank.numbers() == [7])


def test_reasons_are_kept_for_the_latest_unreachable_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations_in_transit, "UNREACHABLE_MAX", 3)
    in_transit = ConversationsInTransit(principal_address=lambda address, *_: address)
    for number in (1, 2, 3, 1, 4):
        in_transit.mark_unreachable(f"TCP://{number}:4022", f"no {number}")
    assert list(in_transit.unreachable) == ["TCP://3:4022", "TCP://1:4022", "TCP://4:4022"]


def test_rows_to_a_disallowed_address_are_dropped_with_the_reason() -> None:
    """Peers choose service names; rows to disallowed addresses are dropped without affecting others."""
    outboxes, log = Outboxes(refused={"TCP://a.example:1": "not now"}), EventLog()
    dropped: list[Event] = []
    log.subscribe(dropped.append, ForwardedMessageDropped)
    forwarding = MessageForwarder(
        outboxes, resolve_mirror=lambda *_: None, max_bytes=lambda: 1 << 20, events=log, clock=lambda: 0
    )
    outboxes.on_dial = lambda address: forwarding.connected(address, peer(99, address=address))
    routes: list[tuple[str, str | None, bytes | None]] = [(f"TCP://{name}.example:1", None, None) for name in "ab"]
    forwarding.forward(peer(), wire([row(0), row(1)]), decisions(routes))
    assert [each["message_sequence_number"] for each in outboxes.write("TCP://b.example:1")] == [1]
    (event,) = dropped
    assert isinstance(event, ForwardedMessageDropped)
    assert (event.error, event.text) == (11292, "11292: the next hop cannot be reached: not now")
    assert forwarding.run_due(now=0) is None
    assert forwarding.pending == (0, 0)


def test_a_silent_name_server_delays_neither_other_names_nor_closing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lookup answers only after the endpoint is closed, or at the deadline, which fails the test."""
    lookup_started, ended, timed_out = threading.Event(), threading.Event(), threading.Event()
    getaddrinfo = socket.getaddrinfo

    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host != "silent.example":
            return getaddrinfo(HOST if host == "bank.example" else host, *args, **kwargs)
        lookup_started.set()
        if not ended.wait(60):
            timed_out.set()
        raise OSError("no answer")

    with RecordingEndpoint("bank") as bank:
        shop = RecordingEndpoint("shop", limits=NO_RETRY)
        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        shop.endpoint.send("TCP://silent.example:1", numbered(1))
        assert lookup_started.wait(60)
        shop.endpoint.send(f"TCP://bank.example:{bank.port}", numbered(1))
        bank.wait_for(bank.numbers)
        shop.endpoint.close(0.0)
        ended.set()
        assert not timed_out.is_set()


def test_the_number_of_learned_own_addresses_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new own address routes all conversations again, and peers can cause many of them."""
    monkeypatch.setattr(message_exchange, "OWN_ADDRESSES_MAX", 2)
    for shop_and_bank in shop_and_bank_pair(tmp_path):
        shop_exchange = shop_and_bank.network.servers["shop"].exchange
        for number in (1, 2, 2, 3, 4):
            shop_exchange.own_address_reached(f"TCP://127.0.0.{number}:4022")
        shop_exchange.turn()
        own = shop_and_bank.shop.catalog().addresses
        assert [f"TCP://127.0.0.{number}:4022" in own for number in (1, 2, 3, 4)] == [True, True, False, False]


@pytest.mark.rule("R41", "R43")
@pytest.mark.parametrize(("own_max", "error"), [(2, 11294), (0, 11292)])
def test_forwarded_rows_do_not_wait_for_an_own_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_max: int, error: int
) -> None:
    """They are routed again, or dropped if no more own addresses are learned."""
    monkeypatch.setattr(message_exchange, "OWN_ADDRESSES_MAX", own_max)
    for shop_and_bank in shop_and_bank_pair(tmp_path):
        between = shop_and_bank.network.instance("between")
        between.execute(
            "CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED);"
        )
        between.msdb.create_route("There", address="TCP://alias:4022", service_name=STOCK)
        shop_and_bank.sales.alter_route("There", address="TCP://between:4022")
        shop_and_bank.send(b"two chairs")
        shop_and_bank.network.settle()
        assert between.view("sys.dm_broker_forwarded_messages").num_rows == 1
        shop_and_bank.network.pipe("between").receiver.own_address_reached("TCP://alias:4022")
        shop_and_bank.network.settle()
        assert between.view("sys.dm_broker_forwarded_messages").num_rows == 0
        (dropped,) = shop_and_bank.network.emitted("between", ForwardedMessageDropped)
        assert dropped.error == error
