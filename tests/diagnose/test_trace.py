"""A conversation followed through a fleet, and its acknowledgement back."""

from __future__ import annotations

import json

import pytest

from ssbroker import InvalidGuidError, SchemaError, UnknownDatabaseError
from ssbroker.diagnose import Fleet, RoutingEnd, trace
from tests.diagnose.cases import fleet, north, passing, south
from tests.rules.setting import ELSEWHERE, MSDB, SALES, STORES, here, route
from tests.worlds.arrow import catalog_of
from tests.worlds.universe import NOW


@pytest.mark.rule("R8")
def test_there_and_back() -> None:
    """What the target sends back carries the initiator's broker id."""
    found = trace(fleet(NORTH=north(), SOUTH=south("TCP://north")), "Stock", instance="NORTH", at=NOW)
    assert found.end == RoutingEnd("DELIVERED", "SOUTH", "Stores")
    assert [hop.instance for hop in found.hops] == ["NORTH", "SOUTH"]
    back = found.acknowledgement
    assert back is not None
    assert (back.instance, back.database, back.to_service_name, back.is_initiator) == (
        "SOUTH",
        "Stores",
        "Orders",
        False,
    )
    assert back.hops[0].explanation.to_dict()["conversation"]["to_broker_instance"] == str(SALES)
    assert back.end == RoutingEnd("DELIVERED", "NORTH", "Sales")
    assert found.delivered
    assert (
        str(found)
        == """NORTH/Sales begins a conversation for "Stock".
  1. NORTH, table of "Sales": REMOTE to TCP://south:4022 (step 5, route 1 "route 1")
  2. SOUTH, table of "msdb": LOCAL in "Stores" (step 5, route 20 "route 20")
  => DELIVERED to SOUTH/Stores

The acknowledgement goes back to "Orders" in NORTH/Sales.
  1. SOUTH, table of "Stores": REMOTE to TCP://north:4022 (step 5, route 1 "route 1")
  2. NORTH, table of "msdb": LOCAL in "Sales" (step 0, reply)
  => DELIVERED to NORTH/Sales"""
    )


def test_what_cannot_come_back_is_not_delivered() -> None:
    found = trace(fleet(NORTH=north(), SOUTH=south("LOCAL")), "Stock", instance="NORTH", at=NOW)
    assert found.end.outcome == "DELIVERED"
    assert not found.delivered
    assert found.acknowledgement is not None
    assert found.acknowledgement.end == RoutingEnd("DELAYED", "SOUTH", reason="service_not_found")
    assert str(found).endswith(
        "It does not come back: the initiator sends the message again, about every minute, until the conversation times out."
    )


@pytest.mark.rule("R42")
def test_a_loop_ends() -> None:
    """A message that comes to where it was goes on so."""
    circle = fleet(
        NORTH=here(route(1, "TCP://b"), own=("TCP://north",)),
        B=passing("TCP://b", "TCP://c"),
        C=passing("TCP://c", "TCP://b"),
    )
    found = trace(circle, "Stock", instance="NORTH", database="Sales", at=NOW)
    assert [hop.instance for hop in found.hops] == ["NORTH", "B", "C"]
    assert found.end.outcome == "LOOP"
    assert found.acknowledgement is None


@pytest.mark.rule("R13", "R31")
def test_the_id_of_the_route_goes_with_the_message() -> None:
    """Step 3 binds the conversation; at the far side the id finds the database among two copies."""
    copies = here(
        route(1, "LOCAL", table=MSDB), services=(("Sales", "Stock"), ("Stores", "Stock")), own=("TCP://south",)
    )
    sender = here(route(1, "TCP://south", service="Stock", broker=STORES, table="Ops"))
    found = trace(fleet(NORTH=sender, SOUTH=copies), "Stock", instance="NORTH", database="Ops", at=NOW)
    assert found.end == RoutingEnd("DELIVERED", "SOUTH", "Stores")
    assert found.possible == (found.end,)


@pytest.mark.rule("R24")
def test_ties_are_told() -> None:
    """One way is followed, the others are named."""
    two = here(route(1, "TCP://one", service="Stock"), route(2, "TCP://two", service="Stock"))
    found = trace(catalog_of(two), "Stock", database="Sales", at=NOW)
    assert found.end == RoutingEnd("ELSEWHERE", "instance", address="TCP://one:4022")
    assert len(found.possible) == 2
    assert str(found).splitlines()[-1] == (
        "     or, where a tie falls another way: ELSEWHERE: leaves for TCP://two:4022, which no instance here has"
    )


def test_json_holds_all_of_it() -> None:
    found = trace(fleet(NORTH=north(), SOUTH=south("LOCAL")), "Stock", instance="NORTH", at=NOW)
    told = json.loads(json.dumps(found.to_dict()))
    assert told["end"] == {
        "outcome": "DELIVERED",
        "instance": "SOUTH",
        "database": "Stores",
        "address": None,
        "reason": None,
    }
    assert told["delivered"] is False
    assert [hop["explanation"]["decision"]["outcome"] for hop in told["hops"]] == ["REMOTE", "LOCAL"]
    assert told["acknowledgement"]["acknowledgement"] is None


def test_who_begins_the_conversation_may_be_said() -> None:
    world = here(route(1, "LOCAL"), services=(("Sales", "A"), ("Sales", "B"), ("Stores", "Stock")))
    assert trace(catalog_of(world), "Stock", database="Sales", at=NOW).acknowledgement.to_service_name == "A"  # type: ignore[union-attr]
    back = trace(catalog_of(world), "Stock", database="Sales", from_service_name="B", at=NOW).acknowledgement
    assert back is not None
    assert back.to_service_name == "B"


def test_places_that_are_none_are_refused() -> None:
    two = fleet(NORTH=north(), SOUTH=south())
    with pytest.raises(UnknownDatabaseError, match="has to be named; the fleet has NORTH, SOUTH"):
        trace(two, "Stock")
    with pytest.raises(UnknownDatabaseError, match="the fleet has no 'EAST'; expected one of NORTH, SOUTH"):
        trace(two, "Stock", instance="EAST")
    with pytest.raises(UnknownDatabaseError, match="NORTH has no 'Stores'; expected one of Sales, msdb"):
        trace(two, "Stock", instance="NORTH", database="Stores")
    with pytest.raises(UnknownDatabaseError, match="database: has to be named; instance has Ops, Sales, Stores, msdb"):
        trace(catalog_of(here()), "Stock")
    with pytest.raises(UnknownDatabaseError, match="the fleet has none"):
        trace(Fleet({}), "Stock")
    with pytest.raises(InvalidGuidError):
        trace(two, "Stock", instance="NORTH", to_broker_instance="no id")
    with pytest.raises(SchemaError, match="to_service_name: expected str, got int"):
        trace(two, 7, instance="NORTH")  # type: ignore[arg-type]


@pytest.mark.rule("R16", "R31")
def test_an_id_that_nobody_has_waits_or_is_dropped() -> None:
    """R16, R31."""
    found = trace(fleet(NORTH=north(), SOUTH=south()), "Stock", instance="NORTH", to_broker_instance=ELSEWHERE, at=NOW)
    assert found.end == RoutingEnd("DROPPED", "SOUTH", reason="service_not_found")
    assert "not acknowledged, so the sender sends it again" in str(found)
