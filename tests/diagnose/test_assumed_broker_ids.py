"""An unknown broker id is not taken for a different one, and a known change of the id is not ignored."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ssbroker.diagnose import Finding, Fleet, html_report, lint, not_checked, reachability, stuck, trace
from tests.diagnose.test_remedy_proofs import SHOP, STOCK, TO_SHOP, TO_STOCK, loaded
from tests.rules.setting import ELSEWHERE, SALES
from tests.worlds.universe import NOW

BOUND = TO_STOCK.replace("ADDRESS", f"BROKER_INSTANCE = N'{ELSEWHERE}', ADDRESS")
KNOWN = STOCK.replace("Stores;", f"Stores; -- ssbroker: service_broker_guid={ELSEWHERE}", 1)
NEW_BROKER = "\nGO\nALTER DATABASE Stores SET NEW_BROKER WITH ROLLBACK IMMEDIATE;"
FORWARDER = (
    "CREATE ENDPOINT E STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED);\nGO\n"
    f"USE msdb; {TO_STOCK} {TO_SHOP}"
)


def through_hops(folder: Path, hops: int, stores: str) -> Fleet:
    """Returns NORTH and SOUTH, with a number of forwarders on the way to SOUTH and one on the way back."""
    names = ["south", *(f"gate{number}" for number in range(hops))]
    gates = {name: FORWARDER.replace("TCP://south", f"TCP://{names[number]}") for number, name in enumerate(names[1:])}
    return loaded(folder, north=f"{SHOP} {BOUND.replace('south', names[-1])}", south=stores, **gates)


def worth_reporting(whole: Fleet) -> list[Finding]:
    return [each for each in lint(whole, at=NOW) if each.severity != "info" and each.code != "SSB026"]


@pytest.mark.parametrize("hops", [0, 1, 2])
def test_unknown_id_is_the_one_of_the_route_through_any_number_of_forwarders(hops: int, tmp_path: Path) -> None:
    whole = through_hops(tmp_path, hops, f"{STOCK} {TO_SHOP}")
    assert worth_reporting(whole) == []
    assert trace(whole, "//Stock", instance="north", database="Sales", at=NOW).delivered


@pytest.mark.parametrize("hops", [0, 1, 2])
@pytest.mark.rule("I5")
def test_id_before_new_broker_is_stale(hops: int, tmp_path: Path) -> None:
    """The new id is unknown, but it is not the one that the script states for the database before."""
    whole = through_hops(tmp_path, hops, f"{KNOWN} {TO_SHOP}{NEW_BROKER}")
    (finding,) = worth_reporting(whole)
    assert (finding.code, finding.instance, finding.object, finding.scripts) == ("SSB014", "north", 'route "Stock"', ())
    assert finding.message == (
        f'has the broker id {ELSEWHERE}, which belongs to no known database; "//Stock" in south has a new broker id, from NEW_BROKER'
    )
    assert finding.remedy == (
        "Change the broker id of the route to the service_broker_guid of the database in sys.databases of south."
    )
    assert trace(whole, "//Stock", instance="north", database="Sales", at=NOW).end.outcome == "DROPPED"
    queue = pa.table({"database": ["Sales"], "to_service_name": ["//Stock"]})
    assert stuck(whole, queue, instance="north", at=NOW)["code"].to_pylist() == ["SSB014"]


def test_id_that_is_specified_after_new_broker_is_known(tmp_path: Path) -> None:
    specified = f"{NEW_BROKER} -- ssbroker: service_broker_guid={SALES}"
    (finding,) = worth_reporting(through_hops(tmp_path, 0, f"{KNOWN} {TO_SHOP}{specified}"))
    assert finding.code == "SSB014"
    assert f"BROKER_INSTANCE = N'{SALES}'" in finding.remedy


def test_new_broker_without_a_known_id_excludes_none(tmp_path: Path) -> None:
    """The route may have been written after the script ran."""
    assert worth_reporting(through_hops(tmp_path, 0, f"{STOCK} {TO_SHOP}{NEW_BROKER}")) == []


@pytest.mark.rule("R8")
def test_id_of_a_database_elsewhere_is_named_as_the_reason(tmp_path: Path) -> None:
    """The service is there, so that it is not what is missing."""
    whole = loaded(
        tmp_path,
        north=f"{SHOP} {BOUND}",
        south=f"{STOCK.replace('Stores;', f'Stores; -- ssbroker: service_broker_guid={SALES}', 1)} {TO_SHOP}",
        west=KNOWN.replace("//Stock", "//Other").replace("Stores", "Archive"),
    )
    (finding,) = (each for each in worth_reporting(whole) if each.code == "SSB024")
    assert finding.message == (
        "messages from north/Sales are dropped, because no enabled database with the service has the broker id "
        f"{ELSEWHERE}, which the route names"
    )
    assert finding.remedy == f"In north: USE [Sales]; ALTER ROUTE [Stock] WITH BROKER_INSTANCE = N'{SALES}';"


@pytest.mark.rule("R3")
def test_expired_route_of_a_forwarder_leads_nowhere(tmp_path: Path) -> None:
    """The message takes the route for all services."""
    expired = "USE msdb; CREATE ROUTE Old WITH SERVICE_NAME = N'//Stock', ADDRESS = N'TCP://west:4022', LIFETIME = 1;"
    everything = "CREATE ROUTE [All] WITH ADDRESS = N'TCP://south:4022'; DROP ROUTE AutoCreatedLocal;"
    gate = FORWARDER.partition("USE msdb")[0] + f"{expired} {everything} {TO_SHOP}"
    whole = loaded(
        tmp_path,
        north=f"{SHOP} {BOUND.replace('south', 'gate')}",
        gate=gate,
        south=f"{KNOWN} {TO_SHOP}{NEW_BROKER}",
        west=f"{STOCK.replace('Stores;', f'Stores; -- ssbroker: service_broker_guid={SALES}', 1)} {TO_SHOP}",
    )
    stale = [each for each in lint(whole, at=NOW + timedelta(seconds=2)) if each.code == "SSB014"]
    assert [each.related for each in stale] == [("south/Stores",)]


FIREWALL = "Connection attempt failed with error: '10060(A connection attempt failed.)'."


def without_ids(folder: Path, stores: str = f"{STOCK} {TO_SHOP}") -> Fleet:
    """Returns two instances that are routed correctly, through a forwarder."""
    return loaded(folder, north=f"{SHOP} {TO_STOCK.replace('south', 'gate')}", gate=FORWARDER, south=stores)


def waiting(service: str = "//Stock", **columns: Any) -> pa.Table:
    """Returns a row of a queue whose conversation names a broker id."""
    row = {"database": "Sales", "to_service_name": service, "to_broker_instance": ELSEWHERE} | columns
    return pa.Table.from_pylist(
        [{name: str(value) if name == "to_broker_instance" else value for name, value in row.items()}]
    )


@pytest.mark.rule("R31")
def test_unknown_id_is_assumed_to_be_the_one_that_a_conversation_names(tmp_path: Path) -> None:
    whole = without_ids(tmp_path)
    found = trace(whole, "//Stock", instance="north", database="Sales", to_broker_instance=ELSEWHERE, at=NOW)
    assert found.always_delivered
    assert (found.assumed_ids, found.to_dict()["assumed_ids"]) == (
        (("south", "Stores"),),
        [{"instance": "south", "database": "Stores"}],
    )
    assert (
        "Assumed: south/Stores has the broker id that the conversation names. The broker id of south/Stores is not known. "
        "SELECT name, service_broker_guid FROM sys.databases returns broker ids; specify them in a script with the comment "
        "-- ssbroker: service_broker_guid=<id> at the end of the statement that creates or uses the database"
    ) in str(found)
    assert "Assumed: south/Stores has the broker id" in html_report(whole, trace=found, at=NOW)
    assert [each.assumed_ids for each in found.acknowledgements] == [()]
    assert trace(whole, "//Stock", instance="north", database="Sales", at=NOW).assumed_ids == ()


def test_specified_id_needs_no_assumption(tmp_path: Path) -> None:
    whole = without_ids(tmp_path, f"{KNOWN} {TO_SHOP}")
    found = trace(whole, "//Stock", instance="north", database="Sales", to_broker_instance=ELSEWHERE, at=NOW)
    assert (found.always_delivered, found.assumed_ids, "Assumed" in str(found)) == (True, (), False)
    other = trace(whole, "//Stock", instance="north", database="Sales", to_broker_instance=SALES, at=NOW)
    assert other.end.outcome == "DROPPED"
    assert f"whose broker id is not {SALES}" in " ".join(str(other.hops[-1].explanation).split())


def test_status_of_a_message_to_a_database_of_unknown_id_names_the_cause(tmp_path: Path) -> None:
    whole = without_ids(tmp_path)
    (row,) = stuck(whole, waiting(transmission_status=FIREWALL), instance="north", at=NOW).to_pylist()
    assert (
        row["end"] == "DELIVERED to south/Stores; assumed: south/Stores has the broker id that the conversation names"
    )
    assert row["cause"].startswith("the routes are correct; the status says that nothing answers at the address")
    assert "firewall" in row["remedy"]
    (row,) = stuck(whole, waiting(), instance="north", at=NOW).to_pylist()
    assert (row["code"], row["cause"], row["remedy"]) == (None, None, None)


@pytest.mark.rule("R7")
def test_reply_to_a_database_of_unknown_id_is_delivered(tmp_path: Path) -> None:
    reply = waiting("//Shop", database="Stores", is_initiator=False)
    (row,) = stuck(without_ids(tmp_path), reply, instance="south", at=NOW).to_pylist()
    assert row["end"] == "DELIVERED to north/Sales; assumed: north/Sales has the broker id that the conversation names"


def test_each_conversation_has_its_own_assumption(tmp_path: Path) -> None:
    """The database has one of the ids; which one is not specified."""
    queue = pa.concat_tables([waiting(), waiting(to_broker_instance=SALES), waiting()])
    ends = stuck(without_ids(tmp_path), queue, instance="north", at=NOW)["end"].to_pylist()
    assert [str(end).partition(";")[0] for end in ends] == ["DELIVERED to south/Stores"] * 3


@pytest.mark.rule("I5")
def test_id_that_new_broker_has_replaced_is_not_assumed(tmp_path: Path) -> None:
    whole = without_ids(tmp_path, f"{KNOWN} {TO_SHOP}{NEW_BROKER}")
    (row,) = stuck(whole, waiting(), instance="north", at=NOW).to_pylist()
    assert row["end"].startswith("DROPPED by south (service_not_found)")
    assert f"whose broker id is not {ELSEWHERE}" in row["remedy"]


@pytest.mark.rule("R31")
def test_reachability_assumes_the_id_that_a_route_names(tmp_path: Path) -> None:
    whole = through_hops(tmp_path, 1, f"{STOCK} {TO_SHOP}")
    found = reachability(whole, services=["//Stock"], at=NOW).to_pylist()
    assert {(row["instance"], row["outcome"]) for row in found} == {("north", "DELIVERED"), ("south", "DELIVERED")}


def test_databases_of_unknown_id_are_reported_as_not_checked(tmp_path: Path) -> None:
    (subject,) = (each for each in not_checked(without_ids(tmp_path)) if "broker id" in each)
    assert subject.startswith("conversations that name the broker id of north/Sales, south/Stores, which is not known")
    (subject,) = (each for each in not_checked(without_ids(tmp_path, f"{KNOWN} {TO_SHOP}")) if "broker id" in each)
    assert subject.startswith("conversations that name the broker id of north/Sales, which is not known")


@pytest.mark.parametrize("specified", ["neither", "primary", "secondary"])
def test_replicas_have_the_same_id_even_if_it_is_not_specified(specified: str, tmp_path: Path) -> None:
    """The listener of an availability group leads to both."""
    scripts = {"neither": (STOCK, STOCK), "primary": (KNOWN, STOCK), "secondary": (STOCK, KNOWN)}[specified]
    disabled = "\nGO\nALTER DATABASE Stores SET DISABLE_BROKER;"
    nodes = [f"-- ssbroker: addresses=TCP://listener:4022\n{script} {TO_SHOP}" for script in scripts]
    whole = loaded(
        tmp_path, north=f"{SHOP} {TO_STOCK.replace('south', 'listener')}", one=nodes[0], two=nodes[1] + disabled
    )
    assert whole.roles == {"one": "primary", "two": "secondary"}
    assert worth_reporting(whole) == []
    for broker in (None, ELSEWHERE):
        found = trace(whole, "//Stock", instance="north", database="Sales", to_broker_instance=broker, at=NOW)
        assert (found.always_delivered, found.end.instance) == (True, "one")
