"""Limits on connections from one address: a storm from one address costs no TLS and does not affect others."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker.broker.network import rate_limiter
from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.broker.network.rate_limiter import RateLimiter
from ssbroker.exceptions import OptionError
from ssbroker.protocol.events import ConnectionStep
from tests.broker.network.raw_sockets import raw_connection, rest
from tests.broker.network.recording_endpoints import Authority, RecordingEndpoint
from tests.protocol.wire.links import numbered

SECOND = 1_000_000
HOUR = 3600 * SECOND


@pytest.mark.threat("T13")
@given(
    at_once=st.integers(1, 20),
    per_second=st.integers(1, 20),
    pauses=st.lists(st.integers(-SECOND, 3 * SECOND), max_size=60),
)
def test_the_rate_never_exceeds_the_token_bucket(at_once: int, per_second: int, pauses: list[int]) -> None:
    """Clocks may step back: then nothing comes back, and nothing is lost."""
    several, now, passed, taken = RateLimiter(burst=at_once, per_second=per_second), 0, 0, 0
    for pause in pauses:
        now += pause
        passed += max(pause, 0)
        taken += several.take("192.0.2.1", now=now)
        assert taken <= at_once + passed * per_second / SECOND
    assert several.take("192.0.2.1", now=now + 20 * SECOND)


@pytest.mark.threat("T13")
def test_full_buckets_are_forgotten_and_their_number_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rate_limiter, "KNOWN_PEERS_MAX", 100)
    several = RateLimiter(burst=2, per_second=1)
    for number in range(1000):
        several.take(f"192.0.{number // 250}.{number % 250}", now=0)
        assert len(several) <= 100
    several.take("198.51.100.1", now=SECOND)
    assert len(several) == 1


@pytest.mark.threat("T13")
def test_an_ipv6_network_counts_as_one_address() -> None:
    several = RateLimiter(burst=2, per_second=1)
    assert [several.take(f"2001:db8::{number}", now=0) for number in (1, 2, 3)] == [True, True, False]
    assert several.take("2001:db8:0:1::1", now=0)
    assert [several.take(host, now=0) for host in ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1")] == [True, True, False]
    assert several.take("fe80::1%eth0", now=0)


def test_frequent_dials_are_rejected_before_tls(tmp_path: Path) -> None:
    """The strangers come from one address, in one go; the shop's connection, which was there before, goes on."""
    authority = Authority(tmp_path)
    limits = EndpointLimits(login_timeout=HOUR, max_unauthenticated=5, dial_burst=4, dials_per_second=1)
    with contextlib.ExitStack() as stack:
        bank = stack.enter_context(
            RecordingEndpoint("bank", trust=authority.trust("bank", "shop"), limits=limits, frozen=True)
        )
        shop = stack.enter_context(RecordingEndpoint("shop", trust=authority.trust("shop", "bank")))
        shop.endpoint.send(bank.address, numbered(1))
        bank.wait_for(bank.numbers)
        strangers = [stack.enter_context(raw_connection(bank.address)) for _ in range(50)]
        for opened in strangers:
            with contextlib.suppress(ConnectionError):
                opened.sendall(b"\x16\x03")
        bank.wait_for(lambda: len(bank.steps(ConnectionStep.RECEIVE_IO_ERROR)) == 47)
        for opened in strangers[3:]:
            assert rest(opened) == b""
        refused = bank.steps(ConnectionStep.RECEIVE_IO_ERROR)
        assert {event.text for event in refused} == {
            "the peer opens connections too often: one address may dial 4 connections at once and 1 a second"
        }
        assert {event.error for event in refused} == {9752}
        assert len(bank.connections()) == 4
        shop.endpoint.send(bank.address, numbered(9, first=1))
        bank.wait_for(lambda: bank.numbers() == list(range(10)))
        assert shop.unreachable_at == []
        bank.advance(SECOND)
        mill = stack.enter_context(RecordingEndpoint("mill", trust=authority.trust("shop", "bank")))
        mill.endpoint.send(bank.address, numbered(1, first=10))
        bank.wait_for(lambda: bank.numbers() == list(range(11)))
        assert mill.unreachable_at == []


@pytest.mark.threat("T13")
def test_an_invalid_rate_is_rejected() -> None:
    for said in ({"dial_burst": 0}, {"dials_per_second": 0}, {"dial_burst": True}):
        with pytest.raises(OptionError, match=next(iter(said))):
            EndpointLimits(**said)


@pytest.mark.threat("T13", "T14")
def test_the_connections_of_a_principal_are_limited(tmp_path: Path) -> None:
    """The others keep theirs."""
    authority = Authority(tmp_path)
    names = ("bank", "mallory", "shop")
    with contextlib.ExitStack() as stack:
        limits = EndpointLimits(max_connections_per_principal=3)
        bank = stack.enter_context(RecordingEndpoint("bank", trust=authority.trust("bank", *names), limits=limits))
        shop = stack.enter_context(RecordingEndpoint("shop", trust=authority.trust("shop", *names)))
        shop.endpoint.send(bank.address, numbered(1, first=100))
        bank.wait_for(lambda: bank.numbers() == [100])
        trust = authority.trust("mallory", *names)
        for number in range(6):
            many = stack.enter_context(RecordingEndpoint(f"mallory {number}", trust=trust))
            many.endpoint.send(bank.address, numbered(1, first=number))
            bank.wait_for(lambda number=number: bank.numbers()[-1] == number)  # type: ignore[misc]
        bank.wait_for(lambda: len(bank.connections()) == 3 + 1)
        assert len(bank.steps(ConnectionStep.ACCEPT)) == 7
        shop.endpoint.send(bank.address, numbered(1, first=101))
        bank.wait_for(lambda: bank.numbers()[-1] == 101)
        assert len(bank.steps(ConnectionStep.ACCEPT)) == 7
