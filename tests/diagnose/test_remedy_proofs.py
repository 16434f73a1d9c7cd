"""A remedy in T-SQL does what it must: it was proven on a copy before it was offered."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ssbroker import Catalog
from ssbroker.diagnose import Finding, Fleet, lint, trace
from tests.diagnose.broken_fleets import failures_of
from tests.diagnose.finding_cases import fleet, north, south
from tests.rules.setting import ELSEWHERE, SALES, route
from tests.worlds.universe import NOW


@pytest.mark.parametrize("seed", range(2000, 2025))
def test_remedies_of_random_broken_fleets_are_right(seed: int, tmp_path: Path) -> None:
    """The full run is `python -m tests.diagnose.broken_fleets --fleets 2000`."""
    assert failures_of(seed, tmp_path, Counter()) == []


def test_most_errors_have_a_remedy(tmp_path: Path) -> None:
    """Otherwise the test above would check nothing."""
    counts: Counter[str] = Counter()
    for seed in range(24):
        failures_of(seed, tmp_path, counts)
    assert counts["errors with a proven remedy"] > 0.6 * counts["errors"] > 0


def loaded(folder: Path, **scripts: str) -> Fleet:
    """Returns a fleet of scripts."""
    instances = {}
    for name, script in scripts.items():
        file = folder / f"{name}.sql"
        file.write_text(f"-- ssbroker: addresses=TCP://{name}:4022\n{script}", encoding="utf-8")
        instances[name] = Catalog.load(file, now=NOW)
    return Fleet(instances)


def errors(whole: Fleet) -> list[Finding]:
    return [finding for finding in lint(whole, at=NOW) if finding.severity == "error"]


SERVICE = "CREATE QUEUE Q; CREATE SERVICE [{}] ON QUEUE Q ([DEFAULT]);"
STOCK = "CREATE DATABASE Stores;\nGO\nUSE Stores; " + SERVICE.format("//Stock")
SHOP = "CREATE DATABASE Sales;\nGO\nUSE Sales; " + SERVICE.format("//Shop").replace(" ([DEFAULT])", "")
TO_STOCK = "CREATE ROUTE Stock WITH SERVICE_NAME = N'//Stock', ADDRESS = N'TCP://south:4022';"
TO_SHOP = "CREATE ROUTE Shop WITH SERVICE_NAME = N'//Shop', ADDRESS = N'TCP://north:4022';"


def test_route_missing_in_msdb_is_found_there(tmp_path: Path) -> None:
    """Not as a missing route in the other instance, which has it."""
    whole = loaded(
        tmp_path, north=f"{SHOP} {TO_STOCK}", south=f"USE msdb; DROP ROUTE AutoCreatedLocal;\nGO\n{STOCK} {TO_SHOP}"
    )
    (finding,) = errors(whole)
    assert (finding.code, finding.instance, finding.database) == ("SSB024", "south", "msdb")
    assert finding.remedy == "In south: USE [msdb]; CREATE ROUTE [AutoCreatedLocal] WITH ADDRESS = N'LOCAL';"


def test_wrong_port_is_corrected_rather_than_a_route_added(tmp_path: Path) -> None:
    """A second route would leave half of the conversations stuck."""
    whole = loaded(tmp_path, north=f"{SHOP} {TO_STOCK}", south=f"{STOCK} {TO_SHOP.replace('4022', '4023')}")
    found = {finding.code: finding for finding in errors(whole)}
    assert sorted(found) == ["SSB017", "SSB022"]
    assert {finding.remedy for finding in found.values()} == {
        "In south: USE [Stores]; ALTER ROUTE [Shop] WITH ADDRESS = N'TCP://north:4022';"
    }
    assert "leads to TCP://north:4023, but north listens on port 4022" in found["SSB022"].message


def test_return_route_beside_a_wrong_one(tmp_path: Path) -> None:
    """Half of the answers are lost: the wrong route goes."""
    wrong = TO_SHOP.replace("ROUTE Shop", "ROUTE Old").replace("north", "old")
    whole = loaded(tmp_path, north=f"{SHOP} {TO_STOCK}", south=f"{STOCK} {TO_SHOP} {wrong}")
    (finding,) = errors(whole)
    assert (finding.code, finding.remedy) == ("SSB017", "In south: USE [Stores]; DROP ROUTE [Old];")


def test_localhost_is_no_address_for_another_machine(tmp_path: Path) -> None:
    """Of the addresses of an instance, others can use only those that are its own."""
    endpoint = (
        "CREATE ENDPOINT B STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (ENCRYPTION = SUPPORTED);"
    )
    whole = loaded(tmp_path, north=f"{endpoint}\nGO\n{SHOP} {TO_STOCK}", south=f"{endpoint}\nGO\n{STOCK}")
    assert "TCP://localhost:4022" in whole["north"].addresses
    (finding,) = errors(whole)
    assert finding.remedy == (
        "In south: USE [Stores]; CREATE ROUTE [Shop] WITH SERVICE_NAME = N'//Shop', ADDRESS = N'TCP://north:4022';"
    )


def test_unknown_broker_id_is_not_another(tmp_path: Path) -> None:
    """A script cannot know the id of a database that exists already."""
    own = f"CREATE ROUTE Own WITH SERVICE_NAME = N'//Stock', BROKER_INSTANCE = N'{ELSEWHERE}', ADDRESS = N'LOCAL';"
    found = lint(loaded(tmp_path, south=f"USE Stores; {SERVICE.format('//Stock')} {own}"), at=NOW)
    assert [finding for finding in found if finding.severity != "info"] == []


def test_service_without_a_contract_is_no_target(tmp_path: Path) -> None:
    """The broker refuses the conversation with -8408, so nothing has to return."""
    whole = loaded(tmp_path, north=f"{SHOP} {TO_STOCK}", south=f"{STOCK} {TO_SHOP}".replace("([DEFAULT])", ""))
    traced = trace(whole, "//Stock", instance="north", database="Sales", at=NOW)
    assert (traced.end.outcome, traced.end.reason, traced.delivered) == ("REFUSED", "no_contract", False)
    assert "the service has no contract" in str(traced)
    assert [finding.code for finding in errors(whole)] == []


def test_route_to_a_service_without_a_contract_is_found(tmp_path: Path) -> None:
    """Unless it is for the answers in conversations that the service starts."""
    no_contract = SERVICE.format("//Stock").replace(" ([DEFAULT])", "")
    scripts = {
        "north": f"{SHOP} {TO_STOCK}",
        "south": f"CREATE DATABASE Stores;\nGO\nUSE Stores; {no_contract}",
    }
    (finding,) = (each for each in lint(loaded(tmp_path, **scripts), at=NOW) if each.code == "SSB030")
    assert (finding.where, finding.line) == ('south/Stores/service "//Stock"', 4)
    assert finding.message == ("has no contract, so it refuses the conversations that north/Sales can start with it")
    assert finding.remedy.startswith(
        "Add the contract that the senders name in BEGIN DIALOG, such as [DEFAULT]: USE [Stores]; ALTER SERVICE [//Stock] (ADD "
        "CONTRACT [DEFAULT]); or, if the service only starts conversations"
    )
    scripts["north"] = f"{SHOP.replace('ON QUEUE Q', 'ON QUEUE Q ([DEFAULT])')} {TO_STOCK}"
    scripts["south"] += f" {TO_SHOP}"
    assert [each.code for each in lint(loaded(tmp_path, **scripts), at=NOW) if each.code == "SSB030"] == []


def test_route_to_a_system_service_is_fine(tmp_path: Path) -> None:
    """Every database of SQL Server has it."""
    system = "http://schemas.microsoft.com/SQL/ServiceBroker/ServiceBroker"
    script = f"{STOCK} CREATE ROUTE S WITH SERVICE_NAME = '{system}', ADDRESS = 'LOCAL'"
    assert list(lint(loaded(tmp_path, south=script), at=NOW)) == []


def test_route_to_a_member_that_lacks_the_service(tmp_path: Path) -> None:
    whole = loaded(
        tmp_path,
        north=f"{SHOP} {TO_STOCK.replace('south', 'west')}",
        south=f"{STOCK} {TO_SHOP}",
        west="CREATE DATABASE Other;",
    )
    (finding,) = errors(whole)
    assert finding.where == 'west/msdb/service "//Stock"'
    assert finding.message == (
        "messages from north/Sales are dropped, because no enabled database of the instance has the service"
    )
    assert finding.remedy == "In north: USE [Sales]; ALTER ROUTE [Stock] WITH ADDRESS = N'TCP://south:4022';"


@pytest.mark.parametrize(
    "change", ["DROP ROUTE AutoCreatedLocal", "ALTER ROUTE AutoCreatedLocal WITH ADDRESS = N'TCP://hub:4022'"]
)
def test_services_of_one_database_need_a_route(change: str, tmp_path: Path) -> None:
    script = f"{SHOP} CREATE SERVICE [//Own] ON QUEUE Q ([DEFAULT]);\n{change};"
    (finding,) = (finding for finding in lint(loaded(tmp_path, north=script), at=NOW) if finding.code == "SSB025")
    assert finding.scripts


def test_mirrored_partners_keep_their_id() -> None:
    """NEW_BROKER would end the conversations of the pair, and ENABLE_BROKER would enable both."""
    sender = replace(
        north(),
        routes=(route(1, "TCP://south", service="Stock", broker=SALES, mirror="TCP://west"),),
        databases=(replace(north().databases[0], service_broker_guid=ELSEWHERE),),
    )
    principal = south("TCP://north", broker=SALES)
    mirror = replace(south("TCP://north", broker=SALES, enabled=False), addresses=("TCP://west",))
    found = lint(fleet(NORTH=sender, SOUTH=principal, WEST=mirror), at=NOW)
    assert [finding for finding in found if finding.code in ("SSB012", "SSB021")] == []
    assert not any("NEW_BROKER" in finding.remedy or "ENABLE_BROKER" in finding.remedy for finding in found)


def test_copy_with_the_same_id_is_not_enabled() -> None:
    """SQL Server would refuse to enable it: error 9772."""
    databases = south(broker=SALES).databases
    world = replace(
        south("TCP://north", broker=SALES),
        databases=(*databases, replace(databases[0], name="Copy", is_broker_enabled=False)),
        services=(*south().services, replace(south().services[0], database="Copy")),
    )
    found = {finding.code: finding for finding in lint(fleet(SOUTH=world), at=NOW)}
    assert found["SSB021"].scripts == ()
    assert "ENABLE_BROKER" not in found["SSB021"].remedy
    assert found["SSB013"].scripts[0][1].startswith("ALTER DATABASE [Copy] SET NEW_BROKER WITH ROLLBACK IMMEDIATE;")


def test_replicas_with_one_listener_are_a_group() -> None:
    replicas = [south("TCP://north", broker=SALES), south("TCP://north", broker=SALES, enabled=False)]
    listener = [replace(each, addresses=("TCP://listener",)) for each in replicas]
    sender = replace(
        north(),
        routes=(route(1, "TCP://listener", service="Stock"),),
        databases=(replace(north().databases[0], service_broker_guid=ELSEWHERE),),
    )
    group = fleet(NORTH=sender, ONE=listener[1], TWO=listener[0])
    assert group.roles == {"TWO": "primary", "ONE": "secondary"}
    assert group.at("TCP://listener:4022") == "TWO"
    assert trace(group, "Stock", instance="NORTH", database="Sales", at=NOW).end.instance == "TWO"
    assert [finding for finding in lint(group, at=NOW) if finding.severity != "info"] == []


def test_disabled_copy_is_not_hidden_by_its_own_routes() -> None:
    world = replace(
        south("LOCAL", "TCP://north", enabled=False),
        routes=(route(1, "LOCAL", table="Stores"), route(2, "LOCAL", service="Stock", table="Stores")),
    )
    assert [finding.code for finding in lint(fleet(SOUTH=world), at=NOW) if finding.code == "SSB002"] == []


def test_two_faults_of_one_conversation_have_one_remedy() -> None:
    """Neither change alone delivers it."""
    whole = fleet(
        NORTH=replace(north("LOCAL"), routes=(route(1, "TCP://south", service="Stock"),)),
        SOUTH=replace(south(), routes=(route(1, "LOCAL", table="Stores"),)),
    )
    lost = next(finding for finding in errors(whole) if finding.code == "SSB024")
    assert [instance for instance, _ in lost.scripts] == ["SOUTH", "SOUTH"]
    assert "USE [msdb]" in lost.remedy
    assert "USE [Stores]" in lost.remedy


def test_synthetic_ids_are_not_shown(tmp_path: Path) -> None:
    """They are assumptions; only ids that the source contains are in messages and remedies."""
    whole = loaded(tmp_path, north=f"{SHOP} {TO_STOCK}", south=STOCK)
    for finding in lint(whole, at=NOW):
        assert "BROKER_INSTANCE" not in finding.remedy


def test_state_of_objects_is_read_from_scripts(tmp_path: Path) -> None:
    """A stopped endpoint, a queue that is off, and a binding whose user has no certificate, each with its statement."""
    script = (
        "CREATE ENDPOINT B STATE = STOPPED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER;\nGO\n"
        f"{STOCK}\nCREATE QUEUE Off WITH STATUS = OFF; CREATE SERVICE [//Off] ON QUEUE Off ([DEFAULT]);\n"
        "CREATE USER Shop WITHOUT LOGIN;\nCREATE REMOTE SERVICE BINDING ToShop TO SERVICE N'//Shop' WITH USER = Shop;"
    )
    found = {finding.code: finding for finding in errors(loaded(tmp_path, south=script))}
    assert sorted(found) == ["SSB026", "SSB027", "SSB029"]
    assert found["SSB026"].remedy == "ALTER ENDPOINT [B] STATE = STARTED;"
    assert found["SSB027"].scripts
    assert found["SSB029"].message.startswith('the user "Shop" owns no certificate')
    lines = {code: script.splitlines()[(finding.line or 0) - 2] for code, finding in found.items()}
    assert lines["SSB026"].startswith("CREATE ENDPOINT B")
    assert lines["SSB027"].startswith("CREATE QUEUE Off")
    assert lines["SSB029"].startswith("CREATE REMOTE SERVICE BINDING")


ENDPOINT = (
    "CREATE ENDPOINT B STATE = STARTED AS TCP (LISTENER_PORT = {}) FOR SERVICE_BROKER (AUTHENTICATION = WINDOWS);\nGO\n"
)


def not_addressed(whole: Fleet, folder: Path, **scripts: tuple[int, str]) -> Fleet:
    """Returns a fleet with further instances, whose scripts state only the ports of their endpoints."""
    instances = dict(whole)
    for name, (port, script) in scripts.items():
        file = folder / f"{name}.sql"
        file.write_text(ENDPOINT.format(port) + script, encoding="utf-8")
        instances[name] = Catalog.load(file, now=NOW)
    return Fleet(instances)


def test_unknown_host_is_not_assumed_to_be_localhost(tmp_path: Path) -> None:
    """Only the ports are known, and the routes are right."""
    whole = not_addressed(
        Fleet({}),
        tmp_path,
        north=(4022, f"{SHOP} {TO_STOCK.replace('south:4022', 'south.corp.example:4023')}"),
        south=(4023, f"{STOCK} {TO_SHOP.replace('north', 'north.corp.example')}"),
    )
    found = lint(whole, at=NOW)
    assert [(finding.code, finding.instance, finding.scripts) for finding in found] == [
        ("SSB022", "north", ()),
        ("SSB022", "south", ()),
    ]
    assert found[0].remedy == (
        "The address of south is not known. If the route leads to south, specify the address: --address "
        "south=TCP://south.corp.example:4023, or -- ssbroker: addresses=TCP://south.corp.example:4023 in its script. Otherwise add the "
        "catalog of the instance to which it leads, or correct the route."
    )


@pytest.mark.parametrize("specified", [(), ("north",), ("one",), ("two",), ("north", "one"), ("one", "two")])
def test_no_remedy_rests_on_an_address_that_is_not_specified(specified: tuple[str, ...], tmp_path: Path) -> None:
    """Two copies share the load; whichever address is missing, their routes stay as they are."""
    balanced = " ".join(
        TO_STOCK.replace("ROUTE Stock", f"ROUTE {name}").replace("south:4022", f"{name}:{port}")
        for name, port in (("one", 4023), ("two", 4024))
    )
    scripts = {
        "north": (4022, f"{SHOP} {balanced}"),
        "one": (4023, f"{STOCK} {TO_SHOP}"),
        "two": (4024, f"{STOCK} {TO_SHOP}"),
    }
    annotated = {
        name: (port, f"{script}\n-- ssbroker: addresses=TCP://{name}:{port}")
        for name, (port, script) in scripts.items()
        if name in specified
    }
    found = lint(not_addressed(Fleet({}), tmp_path, **(scripts | annotated)), at=NOW)
    assert {finding.code for finding in found} <= {"SSB022", "SSB019"}
    assert [finding.remedy for finding in found if finding.scripts] == []
    assert {finding.severity for finding in found} == {"info"}


def test_port_of_another_instance_of_the_host_is_not_corrected(tmp_path: Path) -> None:
    """South may be the second instance of the host of north."""
    whole = not_addressed(
        loaded(tmp_path, north=f"{SHOP} {TO_STOCK.replace('south:4022', 'north:4023')}"),
        tmp_path,
        south=(4023, f"{STOCK} {TO_SHOP}"),
    )
    (finding,) = (finding for finding in lint(whole, at=NOW) if finding.code == "SSB022")
    assert (finding.severity, finding.scripts) == ("info", ())
    assert "addresses=TCP://north:4023" in finding.remedy


def test_route_to_an_unknown_address_is_not_dropped_for_another_one(tmp_path: Path) -> None:
    """The address may be that of hub, which is not specified."""
    both = f"{TO_SHOP} {TO_SHOP.replace('ROUTE Shop', 'ROUTE [By hub]').replace('north', 'hub')}"
    addressed = loaded(tmp_path, north=f"{SHOP} {TO_STOCK}", south=f"{STOCK} {both}")
    forwarder = "USE msdb; CREATE ROUTE Shop WITH SERVICE_NAME = N'//Shop', ADDRESS = N'TCP://north:4022';"
    whole = not_addressed(addressed, tmp_path, hub=(4022, forwarder))
    assert [finding.scripts for finding in errors(whole) if finding.code == "SSB017"] == [()]
    (alone,) = (finding for finding in errors(addressed) if finding.code == "SSB017")
    assert alone.remedy == "In south: USE [Stores]; DROP ROUTE [By hub];"


def test_remedy_names_no_broker_id_that_is_assumed(tmp_path: Path) -> None:
    """The database has one of the two ids, or neither."""
    routes = " ".join(
        f"CREATE ROUTE [{number}] WITH SERVICE_NAME = N'//Stock', BROKER_INSTANCE = N'{broker}', ADDRESS = N'LOCAL';"
        for number, broker in enumerate((ELSEWHERE, SALES))
    )
    for finding in lint(loaded(tmp_path, south=f"{STOCK} {routes}"), at=NOW):
        assert "BROKER_INSTANCE" not in finding.remedy
