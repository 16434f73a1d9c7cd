"""Traces of conversations through a fleet, and of their acknowledgements."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ssbroker import InvalidGuidError, OptionError, SchemaError, UnknownDatabaseError
from ssbroker.catalog.details import EndpointDetails, InstanceDetails, QueueDetails, ServiceDetails
from ssbroker.diagnose import Fleet, RoutingEnd, lint, reachability, trace
from tests.diagnose.finding_cases import fleet, north, passing, south
from tests.diagnose.script_fleets import host, loaded, to
from tests.rules.setting import ELSEWHERE, MSDB, SALES, STORES, here, route
from tests.worlds.arrow import catalog_of
from tests.worlds.universe import NOW


@pytest.mark.rule("R8")
def test_trace_and_acknowledgement() -> None:
    """The acknowledgement has the initiator's broker id."""
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
        == """NORTH/Sales starts a conversation with "Stock".
  1. NORTH, sys.routes of "Sales": REMOTE to TCP://south:4022 (step 5, route 1 "route 1")
  2. SOUTH, sys.routes of "msdb": LOCAL in "Stores" (step 5, route 20 "route 20")
  => DELIVERED to SOUTH/Stores

The acknowledgement returns to "Orders" in NORTH/Sales.
  1. SOUTH, sys.routes of "Stores": REMOTE to TCP://north:4022 (step 5, route 1 "route 1")
  2. NORTH, sys.routes of "msdb": LOCAL in "Sales" (reply, delivered by its broker id without routes)
  => DELIVERED to NORTH/Sales

Not checked, because catalogs lack the information: whether the target permits SEND, and the certificates of a dialog with encryption."""
    )


def test_what_a_trace_does_not_check_is_said_only_of_a_delivery_to_another_database() -> None:
    delayed = trace(fleet(NORTH=north(), SOUTH=south("LOCAL")), "Stock", instance="NORTH", at=NOW)
    local = trace(fleet(A=here(route(1, "LOCAL"), services=(("Ops", "Stock"),))), "Stock", database="Sales", at=NOW)
    own = trace(fleet(A=here(route(1, "LOCAL"), services=(("Sales", "Stock"),))), "Stock", database="Sales", at=NOW)
    assert (local.delivered, own.delivered) == (True, True)
    assert "Not checked" not in f"{delayed}{own}"
    assert str(local).endswith(
        "\n\nNot checked, because catalogs lack the information: whether the target permits SEND, and TRUSTWORTHY of the databases."
    )


def test_message_without_acknowledgement_is_not_delivered() -> None:
    found = trace(fleet(NORTH=north(), SOUTH=south("LOCAL")), "Stock", instance="NORTH", at=NOW)
    assert found.end.outcome == "DELIVERED"
    assert not found.delivered
    assert found.acknowledgement is not None
    assert found.acknowledgement.end == RoutingEnd("DELAYED", "SOUTH", reason="service_not_found")
    assert str(found).endswith(
        "No acknowledgement arrives: the initiator resends the message about every minute until the conversation times out."
    )


@pytest.mark.rule("R42")
def test_trace_of_a_loop_terminates() -> None:
    """A message that returns to a visited instance is in a loop."""
    circle = fleet(
        NORTH=here(route(1, "TCP://b"), own=("TCP://north",)),
        B=passing("TCP://b", "TCP://c"),
        C=passing("TCP://c", "TCP://d"),
        D=passing("TCP://d", "TCP://b"),
    )
    found = trace(circle, "Stock", instance="NORTH", database="Sales", at=NOW)
    assert [hop.instance for hop in found.hops] == ["NORTH", "B", "C", "D"]
    assert found.end.outcome == "LOOP"
    assert found.acknowledgement is None


SENT_BACK_BY_B = RoutingEnd("DROPPED", "B", reason="sent_back")


@pytest.mark.rule("R42")
def test_no_instance_sends_a_message_back() -> None:
    """B drops what comes from A, although A has the service, and forwards what comes from others; `reachability` agrees."""
    whole = fleet(
        A=here(route(1, "TCP://b"), route(20, "LOCAL", table=MSDB), services=(("Stores", "Stock"),), own=("TCP://a",)),
        B=passing("TCP://b", "TCP://a"),
        C=here(route(1, "TCP://b"), own=("TCP://c",)),
    )
    sent_back = trace(whole, "Stock", instance="A", database="Sales", at=NOW)
    assert sent_back.possible == (sent_back.end,) == (SENT_BACK_BY_B,)
    assert str(sent_back).endswith(
        "  => DROPPED by B (sent_back): its route leads back to the instance that the message came from"
    )
    assert trace(whole, "Stock", instance="C", database="Sales", at=NOW).end == RoutingEnd("DELIVERED", "A", "Stores")
    rows = reachability(whole, services=["Stock"], at=NOW).to_pylist()
    ends = {row["instance"]: (row["outcome"], row["at_instance"]) for row in rows if row["database"] == "Sales"}
    assert ends == {"A": ("DROPPED", "B"), "B": ("DELAYED", "B"), "C": ("DELIVERED", "A")}


@pytest.mark.rule("R42")
def test_two_instances_do_not_circulate_a_message() -> None:
    circle = fleet(
        NORTH=here(route(1, "TCP://b"), own=("TCP://north",)),
        B=passing("TCP://b", "TCP://c"),
        C=passing("TCP://c", "TCP://b"),
    )
    found = trace(circle, "Stock", instance="NORTH", database="Sales", at=NOW)
    assert found.end == RoutingEnd("DROPPED", "C", reason="sent_back")


@pytest.mark.rule("R13", "R31")
def test_broker_id_of_the_route_is_sent_with_the_message() -> None:
    """Step 3 binds the conversation to the id, which selects one of two copies at the remote instance."""
    copies = here(
        route(1, "LOCAL", table=MSDB), services=(("Sales", "Stock"), ("Stores", "Stock")), own=("TCP://south",)
    )
    sender = here(route(1, "TCP://south", service="Stock", broker=STORES, table="Ops"))
    found = trace(fleet(NORTH=sender, SOUTH=copies), "Stock", instance="NORTH", database="Ops", at=NOW)
    assert found.end == RoutingEnd("DELIVERED", "SOUTH", "Stores")
    assert found.possible == (found.end,)


def through_a_hub(**details: InstanceDetails) -> Fleet:
    """Returns a fleet in which NORTH sends to SOUTH by way of HUB, and SOUTH answers directly."""
    whole = fleet(
        NORTH=north("LOCAL", sender="TCP://hub"),
        HUB=replace(passing("TCP://hub", "TCP://south"), databases=()),
        SOUTH=south("TCP://north"),
    )
    return Fleet({name: catalog.with_details(details.get(name)) for name, catalog in whole.items()})


STOPPED = InstanceDetails(endpoint=EndpointDetails(name="Broker", state="STOPPED"))


@pytest.mark.parametrize(
    ("name", "end", "text"),
    [
        (
            "NORTH",
            RoutingEnd("DELAYED", "NORTH", None, "TCP://hub:4022", "endpoint_not_started"),
            "DELAYED: waits in NORTH (endpoint_not_started): its endpoint is not started, so it does not send to TCP://hub:4022",
        ),
        (
            "HUB",
            RoutingEnd("DELAYED", "NORTH", None, "TCP://hub:4022", "next_endpoint_not_started"),
            "DELAYED: waits in NORTH (next_endpoint_not_started): the endpoint of the instance at TCP://hub:4022 is not started",
        ),
        (
            "SOUTH",
            RoutingEnd("DROPPED", "HUB", None, "TCP://south:4022", "next_endpoint_not_started"),
            "DROPPED by HUB (next_endpoint_not_started): the endpoint of the instance at TCP://south:4022 is not started",
        ),
    ],
)
def test_message_does_not_pass_a_stopped_endpoint(name: str, end: RoutingEnd, text: str) -> None:
    whole = through_a_hub(**{name: STOPPED})
    found = trace(whole, "Stock", instance="NORTH", at=NOW)
    assert (found.end, found.possible, found.delivered, found.acknowledgement) == (end, (end,), False, None)
    assert str(found).endswith(f"  => {text}")
    rows = reachability(whole, services=["Stock"], at=NOW).to_pylist()
    (row,) = (row for row in rows if row["instance"] == "NORTH")
    assert (row["outcome"], row["at_instance"], row["next_hop_address"], row["reason"]) == (*end[:2], *end[3:])
    assert {finding.code for finding in lint(whole, at=NOW) if finding.severity == "error"} == {"SSB026"}


def test_acknowledgement_does_not_pass_a_stopped_endpoint() -> None:
    """The message takes another way than its acknowledgement."""
    whole = fleet(NORTH=north("LOCAL"), HUB=passing("TCP://hub", "TCP://north"), SOUTH=south("TCP://hub"))
    hub = whole["HUB"].with_details(STOPPED)
    found = trace(Fleet({**whole, "HUB": hub}), "Stock", instance="NORTH", at=NOW)
    assert found.end.outcome == "DELIVERED"
    assert not found.delivered
    assert found.acknowledgement is not None
    assert found.acknowledgement.end.reason == "next_endpoint_not_started"


def test_message_waits_if_the_next_instance_is_known_to_have_no_endpoint() -> None:
    whole = fleet(NORTH=north("LOCAL"), SOUTH=south("TCP://north"))
    for is_known, outcome in ((True, "DELAYED"), (False, "DELIVERED")):
        details = InstanceDetails(is_endpoint_known=is_known)
        missing = Fleet({**whole, "SOUTH": whole["SOUTH"].with_details(details)})
        assert trace(missing, "Stock", instance="NORTH", at=NOW).end.outcome == outcome


def test_mirror_of_a_stopped_instance_may_receive() -> None:
    whole = fleet(
        NORTH=replace(
            north("LOCAL"), routes=(route(1, "TCP://south", service="Stock", broker=STORES, mirror="TCP://mirror"),)
        ),
        SOUTH=south("TCP://north"),
    )
    stopped = Fleet({**whole, "SOUTH": whole["SOUTH"].with_details(STOPPED)})
    assert trace(stopped, "Stock", instance="NORTH", at=NOW).end.outcome == "DELIVERED"


@pytest.mark.parametrize(
    ("stopped", "end"),
    [
        ((), RoutingEnd("DELIVERED", "SOUTH", "Stores")),
        (("SOUTH",), RoutingEnd("DELIVERED", "MIRROR", "Stores")),
        (("MIRROR",), RoutingEnd("DELIVERED", "SOUTH", "Stores")),
        (
            ("SOUTH", "MIRROR"),
            RoutingEnd("DELAYED", "NORTH", address="TCP://south:4022", reason="next_endpoint_not_started"),
        ),
    ],
    ids=str,
)
def test_a_mirrored_route_leads_to_the_partner_whose_endpoint_is_started(
    stopped: tuple[str, ...], end: RoutingEnd
) -> None:
    both = fleet(
        NORTH=replace(
            north("LOCAL"), routes=(route(1, "TCP://south", service="Stock", broker=STORES, mirror="TCP://mirror"),)
        ),
        SOUTH=south("TCP://north"),
        MIRROR=replace(south("TCP://north"), addresses=("TCP://mirror",)),
    )
    whole = Fleet({name: each.with_details(STOPPED) if name in stopped else each for name, each in both.items()})
    found = trace(whole, "Stock", instance="NORTH", at=NOW)
    assert (found.end, found.delivered) == (end, end.outcome == "DELIVERED")
    (row,) = (
        row
        for row in reachability(whole, services=["Stock"], at=NOW).to_pylist()
        if (row["instance"], row["database"]) == ("NORTH", "Sales")
    )
    assert (row["outcome"], row["at_instance"]) == (end.outcome, end.instance)


def test_message_waits_at_the_target_while_the_queue_is_disabled() -> None:
    disabled = InstanceDetails(
        services={("Stores", "Stock"): ServiceDetails(queue="dbo.q", accepts_conversations=True)},
        queues={("Stores", "dbo.q"): QueueDetails(schema="dbo", name="Q", is_enabled=False)},
    )
    whole = through_a_hub(SOUTH=disabled)
    found = trace(whole, "Stock", instance="NORTH", at=NOW)
    end = RoutingEnd("DELAYED", "SOUTH", "Stores", reason="queue_disabled")
    assert (found.end, found.possible, found.delivered) == (end, (end,), False)
    assert str(found).endswith(
        "  => DELAYED: waits in the transmission queue of SOUTH/Stores (queue_disabled): the queue of the service is disabled"
    )
    rows = reachability(whole, services=["Stock"], at=NOW).to_pylist()
    (row,) = (row for row in rows if row["instance"] == "NORTH")
    assert (row["outcome"], row["at_instance"], row["target_database"], row["reason"]) == (*end[:3], end.reason)
    assert {finding.code for finding in lint(whole, at=NOW) if finding.severity == "error"} == {"SSB027"}


@pytest.mark.rule("R24")
def test_other_ends_of_ties_are_listed() -> None:
    """One path is followed, the others are listed."""
    two = here(route(1, "TCP://one", service="Stock"), route(2, "TCP://two", service="Stock"))
    found = trace(catalog_of(two), "Stock", database="Sales", at=NOW)
    assert found.end == RoutingEnd("ELSEWHERE", "instance", address="TCP://one:4022")
    assert len(found.possible) == 2
    assert str(found).splitlines()[-1] == (
        "     or, with another choice between equal routes: ELSEWHERE: sent to TCP://two:4022, which is not a known address of any of the instances"
    )


def test_trace_that_leaves_the_fleet_says_how_to_state_an_address() -> None:
    found = trace(catalog_of(here(route(1, "TCP://one", service="Stock"))), "Stock", database="Sales", at=NOW)
    assert str(found).splitlines()[-1] == (
        "     Add the catalog of the instance at this address, and specify its address: --address NAME=TCP://one:4022, or -- ssbroker: "
        "addresses=TCP://one:4022 in its script. Or correct the route."
    )


def test_trace_as_json() -> None:
    found = trace(fleet(NORTH=north(), SOUTH=south("LOCAL")), "Stock", instance="NORTH", at=NOW)
    exported = json.loads(json.dumps(found.to_dict()))
    assert exported["end"] == {
        "outcome": "DELIVERED",
        "instance": "SOUTH",
        "database": "Stores",
        "address": None,
        "reason": None,
    }
    assert exported["delivered"] is False
    assert [hop["explanation"]["decision"]["outcome"] for hop in exported["hops"]] == ["REMOTE", "LOCAL"]
    assert exported["acknowledgement"]["acknowledgement"] is None


def test_initiator_service_can_be_specified() -> None:
    world = here(route(1, "LOCAL"), services=(("Sales", "A"), ("Sales", "B"), ("Stores", "Stock")))
    assert trace(catalog_of(world), "Stock", database="Sales", at=NOW).acknowledgement.to_service_name == "A"  # type: ignore[union-attr]
    back = trace(catalog_of(world), "Stock", database="Sales", from_service_name="B", at=NOW).acknowledgement
    assert back is not None
    assert back.to_service_name == "B"


def test_invalid_places_are_refused() -> None:
    two = fleet(NORTH=north(), SOUTH=south())
    with pytest.raises(UnknownDatabaseError, match="instance: specify one of NORTH, SOUTH"):
        trace(two, "Stock")
    with pytest.raises(UnknownDatabaseError, match="unknown instance 'EAST'; expected one of NORTH, SOUTH"):
        trace(two, "Stock", instance="EAST")
    with pytest.raises(UnknownDatabaseError, match="unknown database 'Stores' in NORTH; expected one of Sales, msdb"):
        trace(two, "Stock", instance="NORTH", database="Stores")
    with pytest.raises(
        UnknownDatabaseError, match="database: specify one of the databases of instance: Ops, Sales, Stores, msdb"
    ):
        trace(catalog_of(here()), "Stock")
    with pytest.raises(UnknownDatabaseError, match="the fleet has no instances"):
        trace(Fleet({}), "Stock")
    with pytest.raises(InvalidGuidError):
        trace(two, "Stock", instance="NORTH", to_broker_instance="no id")
    with pytest.raises(SchemaError, match="to_service_name: expected str, got int"):
        trace(two, 7, instance="NORTH")  # type: ignore[arg-type]


@pytest.mark.rule("R16", "R31")
def test_unknown_broker_id_is_dropped() -> None:
    """R16, R31."""
    found = trace(fleet(NORTH=north(), SOUTH=south()), "Stock", instance="NORTH", to_broker_instance=ELSEWHERE, at=NOW)
    assert found.end == RoutingEnd("DROPPED", "SOUTH", reason="service_not_found")
    assert "not acknowledged, so the sender resends it" in str(found)


def test_acknowledgement_is_followed_from_every_copy_of_the_target(tmp_path: Path) -> None:
    whole = loaded(
        tmp_path,
        A=host("A", service="//A", routes=to("B1", "//B", "b1.corp") + to("B2", "//B", "b2.corp")),
        B1=host("B1", service="//B", routes=to("A", "//A", "a.corp")),
        B2=host("B2", service="//B"),
    )
    found = trace(whole, "//B", instance="A", at=NOW)
    assert found.delivered
    assert not found.always_delivered
    assert [(path.instance, path.end.outcome) for path in found.acknowledgements] == [
        ("B1", "DELIVERED"),
        ("B2", "DELAYED"),
    ]
    assert 'With another choice between equal routes, the acknowledgement returns from B2/B2 to "//A" in A/A.' in str(
        found
    )
    assert len(found.to_dict()["other_acknowledgements"]) == 1


def test_acknowledgement_that_can_go_elsewhere_is_not_always_delivered(tmp_path: Path) -> None:
    whole = loaded(
        tmp_path,
        A=host("A", service="//A", routes=to("B", "//B", "b.corp")),
        B=host("B", service="//B", routes=to("A", "//A", "a.corp") + to("A2", "//A", "none.corp")),
    )
    found = trace(whole, "//B", instance="A", at=NOW)
    assert found.delivered
    assert not found.always_delivered


def test_trace_to_a_wrong_port_says_the_right_one(tmp_path: Path) -> None:
    wrong = to("B", "//B", "b.corp").replace("4022", "4023")
    whole = loaded(tmp_path, A=host("A", service="//A", routes=wrong), B=host("B", service="//B"))
    found = trace(whole, "//B", instance="A", at=NOW)
    assert found.advice == "B listens on port 4022: correct the port of the route."
    assert "B listens on port 4022" in next(each.message for each in lint(whole, at=NOW) if each.code == "SSB022")
    assert found.advice in str(found)
    second = host("C", service="//C", addresses="TCP://b.corp:4024")
    both = loaded(tmp_path, A=host("A", service="//A", routes=wrong), B=host("B", service="//B"), C=second)
    advice = trace(both, "//B", instance="A", at=NOW).advice
    assert advice == "B listens on port 4022, and C on port 4024: correct the port of the route."


def test_initiator_service_must_exist(tmp_path: Path) -> None:
    whole = loaded(tmp_path, A=host("A", service="//A", routes=to("B", "//B", "b.corp")))
    with pytest.raises(OptionError, match="from_service_name: A/A has no service '//None'; expected one of \"//A\""):
        trace(whole, "//B", from_service_name="//None", at=NOW)


def test_mirror_of_a_route_is_shown(tmp_path: Path) -> None:
    mirrored = f", BROKER_INSTANCE = '{SALES}', MIRROR_ADDRESS = 'TCP://b2.corp:4022'"
    whole = loaded(tmp_path, A=host("A", service="//A", routes=to("B", "//B", "b1.corp", more=mirrored)))
    assert "REMOTE to TCP://b1.corp:4022, mirror TCP://b2.corp:4022 (step 3" in str(trace(whole, "//B", at=NOW))
