"""An unknown broker id is not taken for a different one, and a known change of the id is not ignored."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from ssbroker.diagnose import Finding, Fleet, lint, stuck, trace
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


def test_id_that_is_stated_after_new_broker_is_known(tmp_path: Path) -> None:
    stated = f"{NEW_BROKER} -- ssbroker: service_broker_guid={SALES}"
    (finding,) = worth_reporting(through_hops(tmp_path, 0, f"{KNOWN} {TO_SHOP}{stated}"))
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
