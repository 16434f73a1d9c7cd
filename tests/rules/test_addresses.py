"""Address syntax and equality."""

from __future__ import annotations

import pytest

import ssbroker
from tests.oracle.world import Conversation
from tests.rules.setting import decide, decide_all, delayed, here, route
from tests.worlds.arrow import catalog_of

A = "TCP://a.example:4022"


@pytest.mark.rule("R6")
@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("TCP://host.example:4022", "TCP://host.example:4022"),
        ("tcp://HOST.Example:4022/", "TCP://host.example:4022"),
        ("TcP://host.example", "TCP://host.example:4022"),
        ("TCP://host.example/", "TCP://host.example:4022"),
        ("TCP://host.example:00080", "TCP://host.example:80"),
        ("TCP://host:1", "TCP://host:1"),
        ("TCP://host:65535", "TCP://host:65535"),
        ("TCP://10.0.0.1:5022", "TCP://10.0.0.1:5022"),
        ("TCP://my_host-1.a:4022", "TCP://my_host-1.a:4022"),
        ("TCP://[2001:0DB8:0:0:0:0:0:1]:4022", "TCP://[2001:db8::1]:4022"),
        ("TCP://[::1]", "TCP://[::1]:4022"),
        ("local", "LOCAL"),
        ("LOCAL", "LOCAL"),
        ("Transport", "TRANSPORT"),
    ],
)
def test_the_normal_form_of_an_address(written: str, normal: str) -> None:
    """Scheme and host in any case, an optional trailing slash, and port 4022 by default."""
    world = here(route(1, written), services=(("Sales", "tcp://next.example:1/x"),))
    expected = {"LOCAL": None, "TRANSPORT": "TCP://next.example:1"}.get(normal, normal)
    answer = decide(world, "tcp://next.example:1/x")
    assert (answer.next_hop_address, answer.outcome) == (expected, "LOCAL" if normal == "LOCAL" else "REMOTE")
    catalog = catalog_of(world)
    assert catalog.routes.column("address").to_pylist() == [written]


@pytest.mark.rule("R6")
@pytest.mark.parametrize("port", ["4022", "04022", None])
def test_own_addresses_are_normalized(port: str | None) -> None:
    """All spellings of an own address are equal."""
    own = "tcp://Own.Example/" if port is None else f"tcp://Own.Example:{port}/"
    world = here(route(1, "TCP://OWN.example:4022"), own=(own,))
    assert catalog_of(world).addresses == ("TCP://own.example:4022",)
    assert decide(world, "Orders") == delayed("no_route", 7)


@pytest.mark.rule("R6")
@pytest.mark.threat("T18")
@pytest.mark.parametrize(
    "text",
    [
        "",
        "host.example:4022",
        "TCP:host",
        "TCP//host",
        "http://host:4022",
        "TCP://",
        "TCP:///",
        "TCP://:4022",
        "TCP://host:",
        "TCP://host:0",
        "TCP://host:65536",
        "TCP://host:99999999999999999999",
        "TCP://host:-1",
        "TCP://host:+1",
        "TCP://host:4O22",
        "TCP://host:٤٠٢٢",
        "TCP://host:4022//",
        "TCP://host:4022/x",
        "TCP://host:4022:4022",
        "TCP://ho st:4022",
        " TCP://host:4022",
        "TCP://host:4022 ",
        "TCP://host:4022\n",
        "TCP://höst:4022",
        "TCP://.host",
        "TCP://host.",
        "TCP://a..b",
        "TCP://a@b:1",
        "TCP://a*:1",
        "TCP://::1:4022",
        "TCP://[::1",
        "TCP://[::1]4022",
        "TCP://[]:4022",
        "TCP://[1:2:3]:4022",
        "TCP://[::1%eth0]:4022",
        "TCP://[::12345]:4022",
        "TCP://[host]:4022",
        "LOCAL ",
        "LOCAL/",
        "\uff2c\uff2f\uff23\uff21\uff2c",
        "TRANSPORTS",
        "loca\u0142",
    ],
)
def test_invalid_addresses_are_rejected(text: str) -> None:
    """The error states where: in routes, in mirrors or among the own addresses."""
    good = route(1, A)
    for world in (here(good, route(2, text)), here(good, route(2, A, mirror=text)), here(good, own=(text,))):
        with pytest.raises(ssbroker.InvalidAddressError):
            catalog_of(world)


@pytest.mark.rule("R6", "R21")
def test_equal_addresses_have_one_next_hop() -> None:
    """The next hop has the same spelling, whichever route is taken."""
    spellings = ("TCP://A.example", "tcp://a.EXAMPLE:4022/", "TCP://a.example:04022")
    world = here(*(route(number, text, service=f"S{number}") for number, text in enumerate(spellings)))
    answers = decide_all(
        world, [Conversation(to_service_name=f"S{n}", database="Sales") for n in range(3)], tie_break="first"
    )
    assert [answer.next_hop_address for answer in answers] == [A] * 3
