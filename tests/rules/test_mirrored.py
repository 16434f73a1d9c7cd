"""Decisions for mirrored routes have both addresses."""

from __future__ import annotations

import pytest

from tests.rules.setting import MSDB, OUTSIDE, SALES, decide, dropped, forward, here, local, remote, route

A = "TCP://partner1.example:4022"
M = "TCP://partner2.example:4022"


@pytest.mark.rule("R51")
@pytest.mark.parametrize(
    "written", ["TCP://partner2.example:4022", "tcp://Partner2.EXAMPLE/", "TCP://partner2.example"]
)
def test_a_decision_has_both_addresses(written: str) -> None:
    """The mirror in normal form, so that both can be asked which one is the principal."""
    world = here(route(1, "tcp://PARTNER1.example", service="Orders", broker=SALES, mirror=written))
    assert decide(world, "Orders", broker=SALES) == remote(1, 1, A, broker=SALES, mirror=M)
    assert decide(world, "Orders") == remote(3, 1, A, broker=SALES, mirror=M)


@pytest.mark.rule("R51")
def test_a_forwarded_message_has_both_addresses() -> None:
    world = here(route(1, A, mirror=M, table=MSDB), forwarding=True)
    assert decide(world, "Orders", started_in=OUTSIDE) == forward(5, 1, A, mirror=M)


@pytest.mark.rule("R51")
def test_a_route_without_a_mirror_has_no_mirror_address() -> None:
    """The mirror is that of the chosen route only."""
    assert decide(here(route(1, A, service="Orders"), route(2, A, mirror=M)), "Orders") == remote(2, 1, A)


@pytest.mark.rule("R51")
def test_every_outcome_with_a_route_has_its_mirror() -> None:
    """Delivered here, or dropped because forwarding is off."""
    world = here(route(1, "LOCAL", mirror=M), route(1, A, mirror=M, table=MSDB), services=(("Sales", "Orders"),))
    assert decide(world, "Orders") == local(5, 1, "Sales", broker=SALES, mirror=M)
    assert decide(world, "Orders", started_in=OUTSIDE) == dropped("forwarding_disabled", 5, 1, mirror=M)
