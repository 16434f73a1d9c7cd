"""R51, as far as a static decision goes: a mirrored route yields both addresses."""

from __future__ import annotations

import pytest

from tests.rules.setting import MSDB, OUTSIDE, SALES, decide, dropped, forward, here, local, remote, route

A = "TCP://partner1.example:4022"
M = "TCP://partner2.example:4022"


@pytest.mark.rule("R51")
@pytest.mark.parametrize(
    "written", ["TCP://partner2.example:4022", "tcp://Partner2.EXAMPLE/", "TCP://partner2.example"]
)
def test_both_addresses_are_told(written: str) -> None:
    """The mirror in the normal form, so that both can be asked which one is the principal."""
    world = here(route(1, "tcp://PARTNER1.example", service="Orders", broker=SALES, mirror=written))
    assert decide(world, "Orders", broker=SALES) == remote(1, 1, A, broker=SALES, mirror=M)
    assert decide(world, "Orders") == remote(3, 1, A, broker=SALES, mirror=M)


@pytest.mark.rule("R51")
def test_also_where_it_is_forwarded() -> None:
    """From outside."""
    world = here(route(1, A, mirror=M, table=MSDB), forwarding=True)
    assert decide(world, "Orders", begun_in=OUTSIDE) == forward(5, 1, A, mirror=M)


@pytest.mark.rule("R51")
def test_a_route_without_a_mirror_tells_none() -> None:
    """The mirror is that of the chosen route only."""
    assert decide(here(route(1, A, service="Orders"), route(2, A, mirror=M)), "Orders") == remote(2, 1, A)


@pytest.mark.rule("R51")
def test_the_mirror_stays_with_any_outcome_that_chose_the_route() -> None:
    """Delivered here, or dropped for want of forwarding."""
    world = here(route(1, "LOCAL", mirror=M), route(1, A, mirror=M, table=MSDB), services=(("Sales", "Orders"),))
    assert decide(world, "Orders") == local(5, 1, "Sales", broker=SALES, mirror=M)
    assert decide(world, "Orders", begun_in=OUTSIDE) == dropped("forwarding_disabled", 5, 1, mirror=M)
