"""A fleet from a folder."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ssbroker import Catalog, DuplicateError, InputError, SchemaError, schemas
from ssbroker.diagnose import Fleet, html_report, lint, not_checked, trace
from tests.diagnose.finding_cases import north, south
from tests.worlds.arrow import catalog_of
from tests.worlds.universe import NOW


def test_each_folder_and_each_script_is_an_instance(tmp_path: Path) -> None:
    catalog_of(north()).save(tmp_path / "NORTH", now=NOW)
    catalog_of(south()).save(tmp_path / "SOUTH.sql", now=NOW)
    (tmp_path / "notes.txt").write_text("not an instance")
    (tmp_path / ".git").mkdir()
    loaded = Fleet.load(tmp_path, now=NOW)
    assert list(loaded) == ["NORTH", "SOUTH"]
    assert loaded["NORTH"] == catalog_of(north())
    assert loaded.at("TCP://south:4022") == "SOUTH"
    assert loaded.addresses == {"TCP://north:4022": "NORTH", "TCP://south:4022": "SOUTH"}
    assert repr(loaded) == "Fleet(instances=2, addresses=2)"


def test_invalid_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        Fleet.load(tmp_path / "none")
    with pytest.raises(InputError, match="contains no instance"):
        Fleet.load(tmp_path)
    (tmp_path / "NORTH").mkdir()
    (tmp_path / "NORTH.sql").write_text("")
    with pytest.raises(DuplicateError, match=r"NORTH and NORTH\.sql both describe the instance 'NORTH'"):
        Fleet.load(tmp_path)


def test_address_must_belong_to_one_instance() -> None:
    with pytest.raises(DuplicateError, match="both 'A' and 'B' have the address TCP://north:4022"):
        Fleet({"A": catalog_of(north()), "B": catalog_of(replace(south(), addresses=("TCP://north",)))})
    with pytest.raises(SchemaError, match=r"expected names \(str\) and Catalogs, got "):
        Fleet({"A": "catalog"})  # type: ignore[dict-item]
    one = catalog_of(north())
    assert isinstance(Fleet.of(one)["instance"], Catalog)
    assert Fleet.of(Fleet({"A": one}))["A"] is one


@pytest.mark.rule("R41")
def test_instances_may_share_localhost(tmp_path: Path) -> None:
    """Each instance uses localhost for itself."""
    for name, service, to in (("NORTH", "//Sales", "south"), ("SOUTH", "//Stock", "north")):
        (tmp_path / f"{name}.sql").write_text(
            f"-- ssbroker: addresses=TCP://{name.lower()}\n"
            "CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER;\n"
            f"CREATE DATABASE Shop; USE Shop; CREATE QUEUE Q; CREATE SERVICE [{service}] ON QUEUE Q ([DEFAULT]);\n"
            f"CREATE ROUTE Other WITH ADDRESS = 'TCP://{to}';\n"
            "CREATE ROUTE Own WITH SERVICE_NAME = '//Own', ADDRESS = 'TCP://localhost:4022';\n"
        )
    loaded = Fleet.load(tmp_path, now=NOW)
    assert loaded.at("TCP://south:4022") == "SOUTH"
    assert loaded.at("TCP://localhost:4022") is None
    assert [loaded.at("TCP://localhost:4022", seen_from=name) for name in loaded] == ["NORTH", "SOUTH"]
    assert trace(loaded, "//Stock", instance="NORTH", at=NOW).delivered
    found = [(finding.code, finding.where) for finding in lint(loaded, at=NOW) if finding.route_id is not None]
    assert [where for code, where in found if code == "SSB009"] == [
        'NORTH/Shop/route "Own"',
        'SOUTH/Shop/route "Own"',
    ]
    assert [where for code, where in found if code == "SSB022"] == []
    (data,) = re.findall(r'id="data">(.*?)</script>', html_report(loaded, at=NOW))
    graph = json.loads(data)
    decisions = [dict(zip(graph["fields"], row, strict=True)) for row in graph["decisions"]]
    own = [row for row in decisions if row["hop"] == "TCP://localhost:4022"]
    assert all(row["hop_instance"] == row["instance"] for row in own)


def test_loopback_address_of_one_instance_leads_to_it_from_others() -> None:
    """Instances on one computer have different ports."""
    both = Fleet(
        {
            "A": Catalog(schemas.ROUTES.empty_table(), addresses=["TCP://localhost:4022", "TCP://127.0.0.1:4022"]),
            "B": Catalog(schemas.ROUTES.empty_table(), addresses=["TCP://localhost:4023"]),
        }
    )
    assert both.at("TCP://localhost:4023", seen_from="A") == "B"
    assert both.addresses["TCP://127.0.0.1:4022"] == "A"


def test_loopback_addresses_given_in_python_are_known() -> None:
    """They were specified explicitly, unlike those of an endpoint in a script or of a server."""
    first, second = (
        Catalog(schemas.ROUTES.empty_table(), addresses=[f"TCP://127.0.0.1:{port}"]) for port in (4022, 4023)
    )
    assert not [each for each in not_checked(Fleet({"A": first, "B": second})) if "address is not known" in each]
    derived = second.with_details(replace(second.details, specified_addresses=frozenset()))
    assert [
        each
        for each in not_checked(Fleet({"A": first, "B": derived}))
        if "lead to B, whose address is not known" in each
    ]
    moved = first.replace(routes=[{"name": "R", "remote_service_name": "//R", "address": "TCP://127.0.0.1:4023"}])
    assert not [each for each in not_checked(Fleet({"A": moved, "B": second})) if "address is not known" in each]
