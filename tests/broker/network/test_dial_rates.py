"""Limits on connections from one address: excess dials are rejected before TLS and do not affect other peers."""

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
from tests.broker.network.raw_sockets import raw_connection, read_until_closed
from tests.broker.network.recording_endpoints import Authority, RecordingEndpoint
from tests.protocol.wire.links import numbered

SECOND = 1_000_000
HOUR = 3600 * SECOND


@pytest.mark.threat("T13")
@given(
    burst=st.integers(1, 20),
    per_second=st.integers(1, 20),
    pauses=st.lists(st.integers(-SECOND, 3 * SECOND), max_size=60),
)
def test_the_rate_never_exceeds_the_token_bucket(burst: int, per_second: int, pauses: list[int]) -> None:
    """A clock that steps back neither adds nor removes tokens."""
    limiter, now, elapsed, accepted = RateLimiter(burst=burst, per_second=per_second), 0, 0, 0
    for pause in pauses:
        now += pause
        elapsed += max(pause, 0)
        accepted += limiter.take("192.0.2.1", now=now)
        assert accepted <= burst + elapsed * per_second / SECOND
    assert limiter.take("192.0.2.1", now=now + 20 * SECOND)


@pytest.mark.threat("T13")
def test_full_buckets_are_forgotten_and_their_number_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rate_limiter, "KNOWN_PEERS_MAX", 100)
    limiter = RateLimiter(burst=2, per_second=1)
    for number in range(1000):
        limiter.take(f"192.0.{number // 250}.{number % 250}", now=0)
        assert len(limiter) <= 100
    limiter.take("198.51.100.1", now=SECOND)
    assert len(limiter) == 1


@pytest.mark.threat("T13")
def test_an_ipv6_network_counts_as_one_address() -> None:
    limiter = RateLimiter(burst=2, per_second=1)
    assert [limiter.take(f"2001:db8::{number}", now=0) for number in (1, 2, 3)] == [True, True, False]
    assert limiter.take("2001:db8:0:1::1", now=0)
    assert [limiter.take(host, now=0) for host in ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1")] == [True, True, False]
    assert limiter.take("fe80::1%eth0", now=0)


def test_frequent_dials_are_rejected_before_tls(tmp_path: Path) -> None:
    """The unauthenticated dials come from one address at the same time; the existing connection of the shop continues."""
    authority = Authority(tmp_path)
    limits = EndpointLimits(login_timeout=HOUR, max_unauthenticated=5, dial_burst=4, dials_per_second=1)
    with contextlib.ExitStack() as stack:
        bank = stack.enter_context(
            RecordingEndpoint("bank", trust=authority.trust("bank", "shop"), limits=limits, frozen=True)
        )
        shop = stack.enter_context(RecordingEndpoint("shop", trust=authority.trust("shop", "bank")))
        shop.endpoint.send(bank.address, numbered(1))
        bank.wait_for(bank.numbers)
        unauthenticated = [stack.enter_context(raw_connection(bank.address)) for _ in range(50)]
        for opened in unauthenticated:
            with contextlib.suppress(ConnectionError):
                opened.sendall(b"\x16\x03")
        bank.wait_for(lambda: len(bank.steps(ConnectionStep.RECEIVE_IO_ERROR)) == 47)
        for opened in unauthenticated[3:]:
            assert read_until_closed(opened) == b""
        refused = bank.steps(ConnectionStep.RECEIVE_IO_ERROR)
        assert {event.text for event in refused} == {
            "the peer opens connections too often: one address may dial 4 connections at once and 1 a second"
        }
        assert {event.error for event in refused} == {9752}
        assert len(bank.connections()) == 4
        shop.endpoint.send(bank.address, numbered(9, first=1))
        bank.wait_for(lambda: bank.numbers() == list(range(10)))
        assert shop.failed_connections == []
        bank.advance(SECOND)
        mill = stack.enter_context(RecordingEndpoint("mill", trust=authority.trust("shop", "bank")))
        mill.endpoint.send(bank.address, numbered(1, first=10))
        bank.wait_for(lambda: bank.numbers() == list(range(11)))
        assert mill.failed_connections == []


@pytest.mark.threat("T13")
def test_an_invalid_rate_is_rejected() -> None:
    for options in ({"dial_burst": 0}, {"dials_per_second": 0}, {"dial_burst": True}):
        with pytest.raises(OptionError, match=next(iter(options))):
            EndpointLimits(**options)


@pytest.mark.threat("T13", "T14")
def test_the_connections_of_a_principal_are_limited(tmp_path: Path) -> None:
    """The connections of other principals continue."""
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
            mallory = stack.enter_context(RecordingEndpoint(f"mallory {number}", trust=trust))
            mallory.endpoint.send(bank.address, numbered(1, first=number))
            bank.wait_for(lambda number=number: bank.numbers()[-1] == number)  # type: ignore[misc]
        bank.wait_for(lambda: len(bank.connections()) == 3 + 1)
        assert len(bank.steps(ConnectionStep.ACCEPT)) == 7
        shop.endpoint.send(bank.address, numbered(1, first=101))
        bank.wait_for(lambda: bank.numbers()[-1] == 101)
        assert len(bank.steps(ConnectionStep.ACCEPT)) == 7
