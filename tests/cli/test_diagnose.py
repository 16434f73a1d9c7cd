"""`ssbroker lint`, `trace` and `compare`."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from ssbroker import Catalog, Instance
from ssbroker.cli.compare import print_comparison
from ssbroker.cli.lint import print_findings
from ssbroker.diagnose import (
    CODES,
    Change,
    Comparison,
    Finding,
    Findings,
    Fleet,
    compare,
    html_report,
    lint,
    not_checked,
    reachability_changes,
    trace,
)
from ssbroker.diagnose.findings import Subject
from tests.cli.conftest import NOW, NOW_TEXT, Run, conversations

NORTH = """-- ssbroker: addresses=TCP://north:4022
CREATE DATABASE Sales; -- ssbroker: service_broker_guid=5a1e5000-0000-4000-8000-000000000001
USE Sales; CREATE QUEUE Q; CREATE SERVICE [//Sales] ON QUEUE Q;
CREATE ROUTE Stock WITH SERVICE_NAME = N'//Stock', ADDRESS = N'TCP://south:4022';
CREATE ROUTE Soon WITH SERVICE_NAME = N'//Soon', LIFETIME = 3600, ADDRESS = N'TCP://south:4022'; -- ssbroker: lifetime=2026-11-20T22:00:00Z
"""
SOUTH = """-- ssbroker: addresses=TCP://south:4022
CREATE DATABASE Stores; -- ssbroker: service_broker_guid=570c4000-0000-4000-8000-000000000003
USE Stores; CREATE QUEUE Q; CREATE SERVICE [//Stock] ON QUEUE Q ([DEFAULT]); CREATE SERVICE [//Soon] ON QUEUE Q ([DEFAULT]);
"""
BACK = "CREATE ROUTE Back WITH SERVICE_NAME = N'//Sales', ADDRESS = N'TCP://north:4022';\n"
AT = ("--at", NOW_TEXT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two instances, of which SOUTH has no route for replies."""
    made = tmp_path / "fleet"
    made.mkdir()
    (made / "NORTH.sql").write_text(NORTH)
    (made / "SOUTH.sql").write_text(SOUTH)
    return made


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """The same with the missing route."""
    made = tmp_path / "planned"
    made.mkdir()
    (made / "NORTH.sql").write_text(NORTH)
    (made / "SOUTH.sql").write_text(SOUTH + BACK)
    return made


def test_lint_prints_each_code_with_its_findings(folder: Path, run: Run) -> None:
    found = run("lint", "--fleet", folder, *AT)
    assert (found.status, found.err) == (1, "")
    assert f"SSB017 error: {CODES['SSB017'].title}\n  {CODES['SSB017'].why}\n" in found.out
    assert (
        '  - SOUTH/Stores/database "Stores" (SOUTH.sql:2): accepts conversations for "//Soon" from NORTH/Sales'
        in found.out
    )
    assert "\n1 error, 1 warning\nNot checked, because the catalogs lack the information: " in found.out


def test_lint_as_json_equals_the_function(folder: Path, run: Run) -> None:
    found = run("lint", "--fleet", folder, *AT, "--json", "--level", "info")
    expected = lint(Fleet.load(folder, now=NOW), at=NOW)
    assert json.loads(found.out) == {
        "counts": expected.counts,
        "skipped_statements": {},
        "findings": expected.table.to_pylist(),
        "not_checked": list(not_checked(Fleet.load(folder))),
    }


def test_lint_of_several_catalogs_equals_lint_of_their_fleet(folder: Path, run: Run) -> None:
    by_folder = run("lint", "--fleet", folder, *AT, "--json")
    assert run("lint", folder / "NORTH.sql", folder / "SOUTH.sql", *AT, "--json") == by_folder


def test_lint_without_findings(folder: Path, run: Run) -> None:
    found = run("lint", "--fleet", folder, *AT, "--ignore", "SSB017", "--expires-within", "0")
    assert (found.status, found.err) == (0, "")
    assert found.out.startswith("No problems found.\nNot checked, because the catalogs lack the information: ")
    assert "conversations that are left open" in found.out
    assert "; SEND permissions; certificates of the owners of services; event notifications; " in found.out


def test_tables_without_msdb_are_not_checked_for_messages_from_outside(run: Run, tmp_path: Path) -> None:
    """Every SQL Server has msdb, so it is missing from the export."""
    exported = tmp_path / "NORTH"
    exported.mkdir()
    databases = "name,service_broker_guid,is_broker_enabled\nSales,5A1E5000-0000-4000-8000-000000000001,1\n"
    routes = "database,name,remote_service_name,address\nSales,AutoCreatedLocal,,LOCAL\n"
    (exported / "databases.csv").write_text(databases)
    (exported / "routes.csv").write_text(routes)
    hint = "export the rows of sys.routes in msdb too; AutoCreatedLocal is one of them, unless it was dropped"
    arriving = ("explain", exported, "--to-service", "//Sales", "--from-outside")
    assert (
        f"Not checked, because the catalogs lack the information: routes of msdb, for messages from other instances ({hint});"
        in run("lint", exported).out
    )
    explained = run(*arriving).out
    assert explained.endswith(
        "Effect: the sender keeps the message and resends it until it is acknowledged.\n\n"
        "Decision: DELAYED, dropped by this instance (step 7, no_route).\n"
        f"The tables contain no routes of msdb, by which messages from other instances are routed: {hint}.\n"
    )
    assert "routes of msdb" not in run("explain", exported, "--to-service", "//Sales", "--from", "Sales").out
    for name, rows in (
        ("routes.csv", f"{routes}msdb,AutoCreatedLocal,,LOCAL\n"),
        ("databases.csv", f"{databases}msdb,{'0' * 8}-0000-4000-8000-000000000004,1\n"),
    ):
        complete = shutil.copytree(exported, tmp_path / name)
        (complete / name).write_text(rows)
        assert "routes of msdb" not in run("lint", complete).out


def test_lifetimes_count_from_now_whatever_the_time_of_the_check(run: Run, tmp_path: Path) -> None:
    """Otherwise the routes of a script would never expire."""
    script = tmp_path / "net.sql"
    script.write_text(
        "USE Sales; CREATE ROUTE R WITH SERVICE_NAME = N'//Stock', LIFETIME = 60, ADDRESS = N'TCP://south';"
    )
    found = json.loads(run("lint", script, "--at", "2100-01-01", "--json").out)
    assert [each["code"] for each in found["findings"]] == ["SSB003"]


def test_lint_writes_sarif(folder: Path, run: Run, tmp_path: Path) -> None:
    found = run("lint", "--fleet", folder, *AT, "--sarif", tmp_path / "found.sarif")
    log = json.loads((tmp_path / "found.sarif").read_text())
    assert found.status == 1
    assert log["version"] == "2.1.0"
    (done,) = log["runs"]
    rules = done["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(CODES)
    assert [(each["ruleId"], each["level"]) for each in done["results"]] == [("SSB017", "error"), ("SSB004", "warning")]
    for each in done["results"]:
        assert rules[each["ruleIndex"]]["id"] == each["ruleId"]
        assert each["message"]["text"]
    places = [each["locations"][0]["physicalLocation"] for each in done["results"]]
    uris = [each["artifactLocation"]["uri"] for each in places]
    assert uris == [(folder / "SOUTH.sql").as_uri(), (folder / "NORTH.sql").as_uri()]
    lines = [each["region"]["startLine"] for each in places]
    assert "CREATE DATABASE Stores" in SOUTH.splitlines()[lines[0] - 1]
    assert "CREATE ROUTE Soon" in NORTH.splitlines()[lines[1] - 1]
    assert f'NORTH/Sales/route "Soon" (NORTH.sql:{lines[1]}): expires' in found.out


def test_sarif_names_the_script_of_a_folder(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance may consist of several scripts."""
    monkeypatch.chdir(tmp_path)
    net = tmp_path / "net"
    net.mkdir()
    (net / "1.sql").write_text("CREATE DATABASE Sales;")
    (net / "2 routes.sql").write_text("\nUSE Sales;\nCREATE ROUTE R WITH SERVICE_NAME = N'//X', ADDRESS = N'LOCAL';")
    run("lint", "net", "--sarif", "found.sarif")
    (result,) = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("net/2%20routes.sql", 3)


def test_script_in_a_subfolder_is_named_with_it(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two scripts of an instance may have the same name."""
    monkeypatch.chdir(tmp_path)
    for part, text in (
        ("Databases", "CREATE DATABASE Sales;"),
        ("Routes", "USE Sales;\nCREATE ROUTE R WITH SERVICE_NAME = N'//X', ADDRESS = N'LOCAL';"),
    ):
        (tmp_path / "fleet" / "net" / part).mkdir(parents=True)
        (tmp_path / "fleet" / "net" / part / "Sales #1.sql").write_text(text)
    for given in (("fleet/net",), ("--fleet", "fleet"), (str(tmp_path / "fleet" / "net"),)):
        found = run("lint", *given, "--sarif", "found.sarif")
        (result,) = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"]
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        folder = tmp_path.as_uri() + "/" if given[0].startswith("/") else ""
        assert uri == f"{folder}fleet/net/Routes/Sales%20%231.sql"
        assert f'net/Sales/route "R" ({Path("Routes", "Sales #1.sql")}:2): leads to LOCAL' in found.out


def test_sarif_uses_uris_and_lists_all_instances_of_a_loop(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fleet = tmp_path / "my fleet"
    fleet.mkdir()
    for name, other in (("A #1", "b"), ("B\u00fcro", "a")):
        own = "a" if other == "b" else "b"
        (fleet / f"{name}.sql").write_text(
            f"-- ssbroker: addresses=TCP://{own}\n"
            "CREATE ENDPOINT E STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED);\n"
            f"USE msdb; DROP ROUTE AutoCreatedLocal; CREATE ROUTE Out WITH ADDRESS = N'TCP://{other}';\n"
        )
    assert run("lint", "--fleet", "my fleet", *AT, "--sarif", "found.sarif").err == ""
    log = json.loads((tmp_path / "found.sarif").read_text())
    assert log["$schema"].endswith("/sarif-schema-2.1.0.json")
    (loop,) = (each for each in log["runs"][0]["results"] if each["ruleId"] == "SSB020")
    physical = [each["physicalLocation"] for each in loop["locations"]]
    assert [each["artifactLocation"]["uri"] for each in physical] == [
        "my%20fleet/A%20%231.sql",
        "my%20fleet/B%C3%BCro.sql",
    ]
    assert {each["region"]["startLine"] for each in physical} == {1}


def test_compare_refuses_to_take_turns(folder: Path, run: Run) -> None:
    refused = run("compare", "--fleet", folder, folder, "--conversations", "in.csv", "--tie-break", "round_robin")
    assert (refused.status, refused.out) == (2, "")
    assert refused.err.startswith("ssbroker: --tie-break: 'round_robin' is not allowed")


def test_lint_and_compare_write_html(folder: Path, planned: Path, run: Run, tmp_path: Path) -> None:
    run("lint", "--fleet", folder, *AT, "--html", tmp_path / "lint.html")
    run("compare", "--fleet", folder, planned, *AT, "--html", tmp_path / "compare.html")
    loaded = Fleet.load(folder, now=NOW), Fleet.load(planned, now=NOW)
    found = lint(loaded[0], at=NOW).at_least("warning")
    assert (tmp_path / "lint.html").read_text() == html_report(loaded[0], findings=found, at=NOW)
    compared, ends = compare(*loaded, at=NOW), reachability_changes(*loaded, at=NOW)
    page = html_report(loaded[1], comparison=compared, reachability_changes=ends, at=NOW)
    assert (tmp_path / "compare.html").read_text() == page
    assert "Conversations that end elsewhere" in page


def test_trace_writes_html(folder: Path, run: Run, tmp_path: Path) -> None:
    given = ("trace", "--fleet", folder, *AT, "--from", "NORTH/Sales", "--to-service", "//Stock")
    found = run(*given, "--html", tmp_path / "trace.html")
    assert found == run(*given)
    loaded = Fleet.load(folder, now=NOW)
    followed = trace(loaded, "//Stock", instance="NORTH", database="Sales", at=NOW)
    assert (tmp_path / "trace.html").read_text() == html_report(loaded, trace=followed, at=NOW)


def test_trace_prints_the_hops(folder: Path, run: Run) -> None:
    given = ("trace", "--fleet", folder, *AT, "--from", "NORTH/Sales", "--to-service", "//Stock")
    expected = trace(Fleet.load(folder, now=NOW), "//Stock", instance="NORTH", database="Sales", at=NOW)
    plain, as_json = run(*given), run(*given, "--json")
    shown, advice = plain.out.split("\nWhat to do\n")
    assert (plain.status, shown, plain.err) == (1, f"{expected}\n", "")
    reason, remedy = (line[4:] for line in advice.splitlines())
    code, cause = reason.split(": ", 1)
    assert json.loads(as_json.out) == expected.to_dict() | {"code": code, "cause": cause, "remedy": remedy}
    assert code == "SSB017"
    assert remedy.endswith("CREATE ROUTE [Sales] WITH SERVICE_NAME = N'//Sales', ADDRESS = N'TCP://north:4022';")


@pytest.mark.parametrize(
    ("service", "script", "advice"),
    [
        ("//stock", "", "BEGIN DIALOG ... TO SERVICE N'//Stock';"),
        (
            "//Stock",
            "ALTER QUEUE Q WITH STATUS = OFF;",
            "In SOUTH: USE [Stores]; ALTER QUEUE [dbo].[Q] WITH STATUS = ON;",
        ),
        (
            "//Stock",
            "ALTER SERVICE [//Stock] (DROP CONTRACT [DEFAULT]);",
            "ALTER SERVICE [//Stock] (ADD CONTRACT [DEFAULT]);",
        ),
        ("//Stock", "DROP SERVICE [//Stock];", "Create a route in msdb of this instance, or correct the routes"),
        ("//Nowhere", "", "USE <database>; CREATE SERVICE [//Nowhere] ON QUEUE <queue> (<contract>);"),
    ],
)
def test_trace_says_what_to_do(service: str, script: str, advice: str, planned: Path, run: Run) -> None:
    south = planned / "SOUTH.sql"
    south.write_text(south.read_text() + script)
    found = run("trace", "--fleet", planned, *AT, "--from", "NORTH", "--to-service", service)
    assert (found.status, found.err) == (1, "")
    assert advice in found.out.partition("\nWhat to do\n")[2]


def test_trace_gives_no_advice_on_a_conversation_that_arrives_or_twice(planned: Path, run: Run) -> None:
    tracing = ("trace", "--fleet", planned, *AT, "--from", "NORTH", "--to-service", "//Stock")
    delivered = run(*tracing)
    assert "What to do" not in delivered.out
    north = planned / "NORTH.sql"
    north.write_text(north.read_text().replace("south:4022", "elsewhere:4022"))
    lost = run(*tracing)
    assert lost.out.count("Add the catalog of the instance at this address") == 1
    assert "What to do" not in lost.out


def test_trace_suggests_the_similar_name(folder: Path, run: Run) -> None:
    for start, similar in (("NORTH/Sale", "Sales"), ("NORT/Sales", "NORTH")):
        found = run("trace", "--fleet", folder, "--from", start, "--to-service", "//Stock")
        assert found.err.endswith(f"; did you mean {similar}?\n")


def test_trace_of_a_reply(folder: Path, planned: Path, run: Run) -> None:
    arguments = ["--fleet", "--from", "SOUTH/Stores", "--to-service", "//Sales", "--from-target"]
    found = run("trace", planned, *arguments)
    assert (found.status, found.out.splitlines()[0]) == (0, 'SOUTH/Stores sends a reply to "//Sales".')
    assert "acknowledgement" not in found.out
    assert "SEND" not in found.out
    assert "Every reply names the broker id of the initiator's database: specify it" in found.out
    sales = "5a1e5000-0000-4000-8000-000000000001"
    assert "Every reply" not in run("trace", planned, *arguments, "--broker-instance", sales).out
    assert json.loads(run("trace", planned, *arguments, "--json").out)["is_initiator"] is False
    lost = run("trace", folder, *arguments)
    assert (lost.status, "=> DELAYED: waits in SOUTH" in lost.out, "What to do" in lost.out) == (1, True, True)
    refused = run("trace", folder, *arguments, "--from-service", "//Stock")
    assert (refused.status, "--from-service and --from-target cannot be used together" in refused.err) == (2, True)


def test_trace_of_one_instance_does_not_require_from(folder: Path, run: Run) -> None:
    found = run("trace", folder / "NORTH.sql", *AT, "--to-service", "//Stock", "--json")
    assert json.loads(found.out)["end"]["outcome"] == "ELSEWHERE"
    assert run("trace", folder / "NORTH.sql", *AT, "--to-service", "//Stock", "--from", "Sales", "--json") == found


def test_trace_from_an_instance_with_one_database(folder: Path, run: Run) -> None:
    given = ("trace", "--fleet", folder, *AT, "--to-service", "//Stock", "--from")
    found = run(*given, "NORTH")
    assert (found.status, found.err) == (1, "")
    assert found == run(*given, "NORTH/Sales")
    assert found == run(*given, "sales"), "SOUTH does not have this database"


def test_status_of_trace_is_0_if_the_message_is_delivered(planned: Path, run: Run) -> None:
    assert run("trace", "--fleet", planned, "--to-service", "//Stock", "--from", "NORTH").status == 0


def test_instance_folder_has_the_addresses_of_its_last_server(run: Run, tmp_path: Path) -> None:
    shop, stock = tmp_path / "shop", tmp_path / "stock"
    with (
        Instance.create(shop, name="shop") as one,
        Instance.create(stock, name="stock") as other,
        one.serve(port=0, allow_unencrypted=True) as here,
        other.serve(port=0, allow_unencrypted=True, addresses=["TCP://stock.example:4022"]),
    ):
        for instance, service, peer, address in (
            (one, "//Shop", "//Stock", "TCP://stock.example:4022"),
            (other, "//Stock", "//Shop", here.address),
        ):
            instance.execute(
                "CREATE DATABASE Sales\nGO\nUSE Sales; CREATE QUEUE Q; "
                f"CREATE SERVICE [{service}] ON QUEUE Q ([DEFAULT]); "
                f"CREATE ROUTE Peer WITH SERVICE_NAME = '{peer}', ADDRESS = '{address}';"
            )
    found = run("trace", shop, stock, "--from", "shop", "--to-service", "//Stock")
    assert (found.status, found.err) == (0, "")
    assert "=> DELIVERED to stock/Sales" in found.out


def test_loopback_addresses_of_instance_folders(run: Run, tmp_path: Path) -> None:
    """A route to a port of the same machine at which no instance listens leads nowhere; elsewhere, the recorded address is unknown."""
    folders = (tmp_path / "shop", tmp_path / "stock")
    with ExitStack() as stack:
        one, other = (stack.enter_context(Instance.create(each, name=each.name)) for each in folders)
        here, there = (stack.enter_context(each.serve(port=0, allow_unencrypted=True)).address for each in (one, other))
        for instance, service, peer, address in (
            (one, "//Shop", "//Stock", there),
            (other, "//Stock", "//Shop", "TCP://127.0.0.1:1"),
        ):
            instance.execute(
                "CREATE DATABASE Sales\nGO\nUSE Sales; CREATE QUEUE Q; "
                f"CREATE SERVICE [{service}] ON QUEUE Q ([DEFAULT]); "
                f"CREATE ROUTE Peer WITH SERVICE_NAME = '{peer}', ADDRESS = '{address}';"
            )
    recorded = run("lint", *folders)
    assert recorded.status == 1
    assert "SSB017 error" in recorded.out
    assert "whether routes lead to shop, stock" in recorded.out
    specified = run("lint", *folders, "--address", f"shop={here}", "--address", f"stock={there}")
    assert f"In stock: USE [Sales]; ALTER ROUTE [Peer] WITH ADDRESS = N'{here}';" in specified.out
    assert "whether routes lead to" not in specified.out
    other.close()
    with Instance.open(folders[1], background=False) as instance:
        instance.execute("USE Sales; ALTER ROUTE Peer WITH ADDRESS = 'TCP://shop.example:4022';")
    assert run("lint", *folders).status == 0


def test_specified_loopback_address_in_a_script_counts(run: Run, tmp_path: Path) -> None:
    for name, script in (("NORTH", NORTH), ("SOUTH", SOUTH + BACK)):
        local = script.replace("north:4022", "127.0.0.1:4022").replace("south:4022", "127.0.0.1:4023")
        (tmp_path / f"{name}.sql").write_text(local)
    found = run("lint", tmp_path / "NORTH.sql", tmp_path / "SOUTH.sql", *AT)
    assert "whether routes lead to" not in found.out


def test_addresses_are_specified_by_an_option(run: Run, tmp_path: Path) -> None:
    for name, script in (("NORTH", NORTH), ("SOUTH", SOUTH + BACK)):
        (tmp_path / f"{name}.sql").write_text(script.partition("\n")[2])
    paths = (tmp_path / "NORTH.sql", tmp_path / "SOUTH.sql")
    tracing = ("trace", *paths, "--from", "NORTH", "--to-service", "//Stock", *AT)
    specified = ("--address", "NORTH=TCP://north:4022", "--address", "south=TCP://south")
    assert (
        "specify the address: --address SOUTH=TCP://south:4022, or -- ssbroker: addresses=TCP://south:4022"
        in run(*tracing).out
    )
    assert run(*tracing, *specified).status == 0
    assert "address is not known" in run("lint", *paths, *AT).out
    assert "address is not known" not in run("lint", *paths, *specified, *AT).out
    assert run("compare", *paths, "--address", "SOUTH=TCP://south:4022", *AT).err == ""
    for option, problem in (
        ("EAST=TCP://east", "there is no instance 'EAST'; expected one of NORTH, SOUTH"),
        ("NORTH=north:4022", "'north:4022' is not a valid address; expected TCP://host[:port]"),
        ("TCP://north", "'TCP://north' is not valid; expected NAME=ADDRESS, such as stock=TCP://stock:4022"),
    ):
        for command in (tracing, ("lint", *paths), ("compare", *paths)):
            found = run(*command, "--address", option)
            assert (found.status, found.err) == (2, f"ssbroker: --address: {problem}\n")


def test_compare_without_traffic(folder: Path, planned: Path, run: Run) -> None:
    found = run("compare", "--fleet", folder, planned, *AT)
    assert (found.status, found.err) == (1, "")
    assert 'route appeared: SOUTH/Stores/route "Back"' in found.out
    assert "SOUTH/Stores for //Sales: DELAYED (service_not_found) -> REMOTE TCP://north:4022" in found.out
    assert found.out.endswith('Next expiry: 2026-11-20 22:00:00 UTC, NORTH/Sales/route 65538 "Soon"\n1 change.\n')
    assert (
        "  SOUTH/Stores for //Sales: DELAYED: waits in SOUTH (service_not_found) -> REFUSED by NORTH/Sales" in found.out
    )
    same = run("compare", "--fleet", folder, folder, *AT)
    assert same.status == 0
    assert same.out.endswith("No conversation changes.\n")


def test_compare_of_fleets_lists_lost_conversations_although_no_decision_changes(
    folder: Path, run: Run, tmp_path: Path
) -> None:
    disabled = shutil.copytree(folder, tmp_path / "disabled")
    with (disabled / "SOUTH.sql").open("a") as script:
        script.write("\nUSE Stores; ALTER QUEUE Q WITH STATUS = OFF;\n")
    found = run("compare", "--fleet", folder, disabled, *AT)
    assert (found.status, found.err) == (1, "")
    assert (
        "Conversations that are no longer delivered:\n  NORTH/Sales for //Soon: DELIVERED to SOUTH/Stores; "
        'return path to "//Sales": DELAYED: waits in SOUTH (service_not_found) -> DELAYED' in found.out
    )
    assert "No routing decision changes." in found.out
    (tmp_path / "day.csv").write_text("instance,database,to_service_name\nNORTH,Sales,//Soon\n")
    counted = run("compare", "--fleet", folder, disabled, *AT, "--conversations", tmp_path / "day.csv")
    assert "0 of 1 conversations change in the instance where they start." in counted.out
    as_json = json.loads(run("compare", "--fleet", folder, disabled, *AT, "--json").out)
    assert {row["effect"] for row in as_json["reachability_changes"]} == {"lost"}


def test_compare_of_fleets_lists_conversations_that_are_no_longer_acknowledged(
    folder: Path, planned: Path, run: Run, tmp_path: Path
) -> None:
    page = tmp_path / "changes.html"
    found = run("compare", "--fleet", planned, folder, *AT, "--html", page)
    assert (found.status, found.err) == (1, "")
    lost = 'DELIVERED to SOUTH/Stores; return path to "//Sales": DELAYED: waits in SOUTH (service_not_found)'
    assert (
        "Conversations that are no longer acknowledged or answered:\n"
        f"  NORTH/Sales for //Soon: DELIVERED to SOUTH/Stores -> {lost}\n"
        f"  NORTH/Sales for //Stock: DELIVERED to SOUTH/Stores -> {lost}\n"
    ) in found.out
    assert "unacknowledged" in page.read_text()
    back = run("compare", "--fleet", folder, planned, *AT)
    assert (
        f"now acknowledged and answered:\n  NORTH/Sales for //Soon: {lost} -> DELIVERED to SOUTH/Stores\n" in back.out
    )
    as_json = json.loads(run("compare", "--fleet", planned, folder, *AT, "--json").out)
    assert [row["effect"] for row in as_json["reachability_changes"]][:2] == ["unacknowledged"] * 2


def test_compare_of_fleets_says_if_every_conversation_ends_where_it_did(folder: Path, run: Run, tmp_path: Path) -> None:
    renamed = shutil.copytree(folder, tmp_path / "renamed")
    script = (renamed / "NORTH.sql").read_text()
    assert "CREATE ROUTE" in script
    (renamed / "NORTH.sql").write_text(script.replace("CREATE ROUTE ", "CREATE ROUTE New"))
    found = run("compare", "--fleet", folder, renamed, *AT)
    assert found.status == 1
    assert "After all hops, every conversation ends where it did before." in found.out


def test_lines_of_compare_for_one_service_name_their_broker_ids(run: Run, tmp_path: Path) -> None:
    script = (
        "CREATE DATABASE Sales; -- ssbroker: service_broker_guid=5a1e5000-0000-4000-8000-000000000001\n"
        "GO\nUSE Sales; CREATE QUEUE Q; CREATE SERVICE [//Orders] ON QUEUE Q ([DEFAULT]);\n"
        "CREATE ROUTE One WITH SERVICE_NAME = N'//Stock', ADDRESS = N'TCP://one';\n"
        "CREATE ROUTE Two WITH SERVICE_NAME = N'//Stock', ADDRESS = N'TCP://two', "
        "BROKER_INSTANCE = N'570c4000-0000-4000-8000-000000000003';\n"
    )
    for side, text in (
        ("before", script),
        ("after", script.replace("TCP://one", "TCP://new").replace("TCP://two", "TCP://2")),
    ):
        (tmp_path / f"{side}.sql").write_text(text)
    found = run("compare", tmp_path / "before.sql", tmp_path / "after.sql")
    lines = [line.strip() for line in found.out.splitlines() if line.startswith("  before/Sales for //Stock")]
    others = "no broker id, a different broker id, broker id 5a1e5000-0000-4000-8000-000000000001"
    known = "broker id 570c4000-0000-4000-8000-000000000003"
    assert lines == [
        f"before/Sales for //Stock with {others}: REMOTE TCP://one:4022 -> REMOTE TCP://new:4022",
        f"before/Sales for //Stock with {known}: REMOTE TCP://two:4022 -> REMOTE TCP://2:4022",
    ]
    changes = json.loads(run("compare", tmp_path / "before.sql", tmp_path / "after.sql", "--json").out)["changes"]
    assert [each["broker_ids"] for each in changes] == [others, known]


@pytest.mark.parametrize(
    ("cause", "route_after", "shown"),
    [
        (("other", ""), 'Sales/route "B"', ["another difference: NORTH ", 'by Sales/route "B" instead of no route']),
        (("forwarding turned on", ""), None, ["forwarding turned on: NORTH ", "DELAYED (no_route), in another step"]),
    ],
)
def test_compare_prints_causes_and_results_that_have_no_object_or_difference(
    capsys: pytest.CaptureFixture[str], cause: tuple[str, str], route_after: str | None, shown: list[str]
) -> None:
    change = Change(
        instance="NORTH",
        database="Sales",
        service="//Stock",
        broker_ids=None,
        kind="explanation",
        cause=cause[0],
        object=cause[1],
        before="DELAYED (no_route)",
        after="DELAYED (no_route)",
        route_before=None,
        route_after=route_after,
        conversations=None,
    )
    print_comparison(Comparison([change], conversations=None, destinations={}), (), Console(width=100))
    out = capsys.readouterr().out
    assert [text for text in shown if text not in out] == []


def test_compare_says_how_many_causes_and_loads_it_does_not_print(capsys: pytest.CaptureFixture[str]) -> None:
    changes = [
        Change(
            instance="NORTH",
            database="Sales",
            service="//Stock",
            broker_ids=None,
            kind="outcome",
            cause="route vanished",
            object=f'Sales/route "R{number}"',
            before="REMOTE TCP://south:4022",
            after="DELAYED (no_route)",
            route_before=None,
            route_after=None,
            conversations=1,
        )
        for number in range(16)
    ]
    destinations = {("NORTH", "//Stock", f"REMOTE TCP://host{number}:4022"): [1, 0] for number in range(17)}
    comparison = Comparison(changes, conversations=16, destinations=destinations)
    print_comparison(comparison, (), Console(width=100))
    causes, changed, loads = capsys.readouterr().out.split("\n\n")[:3]
    assert [text.splitlines()[-1] for text in (causes, changed, loads)] == [
        f"  and {number} more; --json lists all" for number in (1, 1, 2)
    ]


ENDPOINT = "CREATE ENDPOINT B STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (ENCRYPTION = REQUIRED);"


@pytest.mark.parametrize(
    ("before", "after", "subject"),
    [
        ("", ENDPOINT, "the state of the endpoint"),
        (ENDPOINT, "", "the state of the endpoint"),
        ("CREATE QUEUE P;", "CREATE QUEUE O WITH STATUS = OFF;", "the state of queues"),
        ("CREATE QUEUE O WITH STATUS = OFF;", "CREATE QUEUE P;", "the state of queues"),
        ("", "CREATE SERVICE [//New] ON QUEUE Q;", "whether services have a contract"),
    ],
)
def test_objects_of_one_side_are_among_what_is_not_compared(
    run: Run, tmp_path: Path, before: str, after: str, subject: str
) -> None:
    for side, text in (("before", before), ("after", after)):
        (tmp_path / side).mkdir()
        start = f"CREATE DATABASE Sales;\nGO\nUSE Sales; CREATE QUEUE Q; CREATE SERVICE [//Orders] ON QUEUE Q ([DEFAULT]); {text}"
        (tmp_path / side / "net.sql").write_text(start)
    found = run("compare", tmp_path / "before" / "net.sql", tmp_path / "after" / "net.sql", "--json")
    assert json.loads(found.out)["not_compared"] == [f"{subject} (in net)"]


def test_compare_says_what_differs_and_is_not_compared(run: Run, tmp_path: Path) -> None:
    script = (
        "CREATE ENDPOINT B STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER;\nGO\n"
        "CREATE DATABASE Sales;\nGO\nUSE Sales; CREATE QUEUE Q; CREATE SERVICE [//Orders] ON QUEUE Q ([DEFAULT]);"
    )
    changed = script.replace("STARTED", "STOPPED").replace("QUEUE Q;", "QUEUE Q WITH STATUS = OFF;")
    for side, text in (("before", script), ("after", changed.replace(" ([DEFAULT])", ""))):
        (tmp_path / side).mkdir()
        (tmp_path / side / "net.sql").write_text(text)
    given = (
        "compare",
        tmp_path / "before" / "net.sql",
        tmp_path / "after" / "net.sql",
        "--html",
        tmp_path / "page.html",
    )
    found = run(*given)
    subjects = [
        "the state of the endpoint (in net)",
        "the state of queues (in net)",
        "whether services have a contract (in net)",
    ]
    text = f"Not compared, but different: {'; '.join(subjects)}. Check these with lint and trace."
    assert found.status == 0
    assert " ".join(found.out.split()).endswith(f"No conversation changes. {text}")
    assert json.loads(run(*given, "--json").out)["not_compared"] == subjects
    assert text in (tmp_path / "page.html").read_text()


def test_compare_over_files_equals_the_function(catalog: Path, run: Run, tmp_path: Path) -> None:
    rows = conversations(500)
    for number, suffix in enumerate(("one", "two")):
        pq.write_table(rows.slice(250 * number, 250), tmp_path / f"{suffix}.parquet")
    other = tmp_path / "other"
    other.mkdir()
    for file in catalog.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    routes = pq.read_table(other / "routes.parquet")
    pq.write_table(
        routes.filter(pa.array([name != "Copyc" for name in routes["name"].to_pylist()])), other / "routes.parquet"
    )

    given = ("compare", catalog, other, *AT, "--conversations", tmp_path / "one.parquet", tmp_path / "two.parquet")
    found, as_json = run(*given), run(*given, "--json")

    sides = [Fleet({catalog.name: Catalog.load(each)}) for each in (catalog, other)]
    expected = compare(sides[0], sides[1], rows, at=NOW)
    assert expected.changes
    assert found.status == as_json.status == 1
    printed = json.loads(as_json.out)
    assert printed.pop("next_expiries") == []
    assert {**printed, "changes": sorted(map(str, printed["changes"]))} == {
        **expected.to_dict(),
        "changes": sorted(map(str, expected.to_dict()["changes"])),
    }
    assert f"{expected.changed_conversations} of 500 conversations change." in found.out
    assert f"route vanished: {catalog.name}/Sales/route" in found.out


def test_compare_one_catalog_at_two_times(folder: Path, run: Run) -> None:
    found = run("compare", folder / "NORTH.sql", folder / "NORTH.sql", "--before-at", NOW_TEXT, "--at", "2026-11-21")
    assert found.status == 1
    assert 'route expired: NORTH/Sales/route "Soon"' in found.out


def test_compare_reports_a_route_that_expires_earlier(folder: Path, planned: Path, run: Run, tmp_path: Path) -> None:
    limited = shutil.copytree(planned, tmp_path / "limited")
    script = (limited / "SOUTH.sql").read_text()
    (limited / "SOUTH.sql").write_text(script.replace("ADDRESS =", "LIFETIME = 86400, ADDRESS ="))
    page = tmp_path / "changes.html"
    found = run("compare", "--fleet", planned, limited, "--html", page)
    assert found.status == 1
    assert re.search(r'Expires earlier: SOUTH/Stores/route "Back" expires at .* UTC instead of never\n', found.out)
    assert "No conversation changes." in found.out
    assert "Expires earlier: SOUTH/Stores/route" in page.read_text()
    assert run("compare", "--fleet", limited, limited).status == 0
    assert run("compare", "--fleet", limited, planned).status == 0
    shorter = shutil.copytree(limited, tmp_path / "shorter")
    (shorter / "SOUTH.sql").write_text((limited / "SOUTH.sql").read_text().replace("86400", "3600"))
    as_json = json.loads(run("compare", "--fleet", limited, shorter, "--json").out)
    assert len(as_json["earlier_expiries"]) == 1


def test_compare_shows_mirror_addresses(run: Run, tmp_path: Path) -> None:
    route = "USE Sales; CREATE ROUTE R WITH SERVICE_NAME = N'//Stock', BROKER_INSTANCE = N'570c4000-0000-4000-8000-000000000003', ADDRESS = N'TCP://a:4022'"
    for name, mirror in (("one", ""), ("two", ", MIRROR_ADDRESS = N'TCP://m1:4022'")):
        (tmp_path / f"{name}.sql").write_text(f"{route}{mirror};")
    found = run("compare", tmp_path / "one.sql", tmp_path / "two.sql")
    assert "REMOTE TCP://a:4022 -> REMOTE TCP://a:4022, mirror TCP://m1:4022" in found.out


def test_compare_counts_lifetimes_from_now_whatever_its_times(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "net.sql"
    script.write_text(
        "USE Sales; CREATE ROUTE R WITH SERVICE_NAME = N'//Stock', LIFETIME = 60, ADDRESS = N'TCP://south';"
    )
    later = run("compare", script, script, "--at", "2100-01-01", "--before-at", "2099-01-01")
    assert (later.status, "No conversation changes." in later.out) == (0, True)
    earlier = run("compare", script, script, "--at", "2100-01-01", "--before-at", "2000-01-01")
    assert 'route expired: net/Sales/route "R"' in earlier.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lint", "nowhere.sql"), "ssbroker: nowhere.sql: no such file or folder\n"),
        (("lint", "--fleet", "nowhere"), "ssbroker: nowhere: no such folder; expected a folder of instances\n"),
        (
            ("lint", "{folder}/NORTH.sql", "--at", "noon"),
            "ssbroker: --at: 'noon' is not a valid time; expected a time such as 2026-11-20T21:00:00Z\n",
        ),
        (
            ("lint", "{folder}/NORTH.sql", "{folder}/NORTH.sql"),
            "ssbroker: {folder}/NORTH.sql: another file or folder describes the instance 'NORTH' too; rename one of them\n",
        ),
        (("lint", "{folder}", "--expires-within", "9" * 11), "ssbroker: Invalid value for '--expires-within': "),
        (
            ("trace", "--fleet", "{folder}", "--to-service", "//Stock"),
            "ssbroker: --from: specify where the conversation starts: expected one of NORTH/Sales, SOUTH/Stores\n",
        ),
        (
            ("trace", "--fleet", "{folder}", "--to-service", "//Stock", "--from", "/Sales"),
            "ssbroker: --from: '/Sales' is not valid; expected INSTANCE/DATABASE, or one of the two names without the slash\n",
        ),
        (
            ("compare", "{folder}/NORTH.sql", "{folder}/NORTH.sql", "--conversations", "{folder}/SOUTH.sql"),
            "ssbroker: {folder}/SOUTH.sql: ",
        ),
    ],
)
def test_wrong_use_is_one_line(folder: Path, run: Run, arguments: tuple[str, ...], message: str) -> None:
    result = run(*(argument.format(folder=folder) for argument in arguments))
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(message.format(folder=folder))
    assert result.err.count("\n") == 1


@pytest.mark.rule("I7")
def test_broker_id_enabled_twice_is_a_finding_and_other_instances_are_checked(run: Run, folder: Path) -> None:
    twice = folder / "TWICE"
    twice.mkdir()
    (twice / "routes.csv").write_text("database,name,address\nA,one,LOCAL\n")
    (twice / "databases.csv").write_text(
        "name,service_broker_guid,is_broker_enabled\n"
        "A,5a1e5000-0000-4000-8000-000000000007,true\nB,5a1e5000-0000-4000-8000-000000000007,true\n"
    )
    result = run("lint", "--fleet", folder, *AT, "--json")
    assert result.status == 1
    found = {
        (finding["code"], finding["severity"], finding["instance"]) for finding in json.loads(result.out)["findings"]
    }
    assert ("SSB013", "error", "TWICE") in found
    assert ("SSB017", "error", "NORTH") in found or ("SSB017", "error", "SOUTH") in found
    assert run("lint", twice, "--ignore", "SSB013", *AT).status == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("lint", "fleet/NORTH.sql", "--html", "fleet/NORTH.sql"),
        ("lint", "fleet/NORTH.sql", "--sarif", "fleet/../fleet/NORTH.sql"),
        ("lint", "--fleet", "fleet", "--sarif", "fleet/SOUTH.sql"),
        ("lint", "fleet", "--html", "fleet/new.sql"),
        ("compare", "fleet/NORTH.sql", "fleet/SOUTH.sql", "--html", "fleet/SOUTH.sql"),
        ("compare", "--fleet", "fleet", "fleet", "--html", "fleet/NORTH.sql"),
        ("trace", "--fleet", "fleet", "--to-service", "//Stock", "--html", "fleet/NORTH.sql"),
    ],
    ids=" ".join,
)
def test_report_cannot_overwrite_a_catalog(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(folder.parent)
    refused = run(*arguments)
    assert (refused.status, refused.out) == (2, "")
    assert "cannot be written: it is part of the catalog (fleet" in refused.err
    assert [(entry.name, entry.read_text()) for entry in sorted(folder.iterdir())] == [
        ("NORTH.sql", NORTH),
        ("SOUTH.sql", SOUTH),
    ]


def test_report_cannot_overwrite_another_report_or_an_input(folder: Path, run: Run, tmp_path: Path) -> None:
    twice = run("lint", folder / "NORTH.sql", "--html", tmp_path / "out", "--sarif", tmp_path / "out")
    assert (twice.status, "it is specified for two outputs" in twice.err) == (2, True)
    traffic = tmp_path / "day.parquet"
    pq.write_table(conversations(5), traffic)
    over = run("compare", folder, folder, "--conversations", traffic, "--html", traffic)
    assert (over.status, f"it is also an input ({traffic})" in over.err) == (2, True)


def test_conversations_of_an_instance_that_are_left_open_are_found(run: Run, tmp_path: Path) -> None:
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        database = instance.create_database("Sales")
        database.create_queue("Q")
        for name in ("//Shop", "//Stock"):
            database.create_service(name, queue="Q")
        with database.transaction() as t:
            for _ in range(100):
                t.begin_dialog("//Shop", "//Stock", encryption=False)
    found = run("lint", tmp_path / "shop")
    assert "SSB028 warning" in found.out
    assert re.search(
        r"shop/Sales/conversations STARTED_OUTBOUND: 100 conversations are left open, the oldest for \d+ (seconds?|minutes?): ",
        found.out,
    )


def test_queue_that_is_off_is_found_in_an_instance_folder(run: Run, tmp_path: Path) -> None:
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        instance.create_database("Sales")
        instance.execute(
            "USE Sales; CREATE QUEUE Orders WITH STATUS = OFF; CREATE SERVICE [//Orders] ON QUEUE Orders ([DEFAULT])"
        )
    found = run("lint", tmp_path / "shop")
    assert "SSB027 error" in found.out
    assert 'shop/Sales/queue "dbo.Orders": is disabled' in found.out
    assert "USE [Sales]; ALTER QUEUE [dbo].[Orders] WITH STATUS = ON;" in found.out


def test_names_of_instances_and_databases_are_found_in_another_case(folder: Path, run: Run, tmp_path: Path) -> None:
    traffic = tmp_path / "day.csv"
    outs = []
    for instance, database in (("NORTH", "Sales"), ("north", "sales")):
        start = f"{instance}/{database}"
        traced = run("trace", "--fleet", folder, "--to-service", "//Stock", "--from", start, *AT)
        traffic.write_text(
            f"instance,database,to_service_name,conversation_id\n{instance},{database},//Stock,6F9619FF-8B86-D011-B42D-00C04FC964FF\n"
        )
        compared = run("compare", "--fleet", folder, folder, *AT, "--conversations", traffic)
        outs.append((traced.status, traced.out, traced.err, compared.status, compared.out, compared.err))
    assert outs[0] == outs[1]
    assert "0 of 1 conversations change" in outs[0][4]


def test_compare_shows_the_skew_only_if_the_load_is_uneven(run: Run, tmp_path: Path) -> None:
    for name in ("before", "after"):
        (tmp_path / f"{name}.sql").write_text(
            f"CREATE DATABASE Sales; USE Sales; CREATE ROUTE A WITH SERVICE_NAME = '//S', ADDRESS = 'TCP://{name}'; "
            "CREATE ROUTE B WITH SERVICE_NAME = '//S', ADDRESS = 'TCP://b';"
        )
    for count, has_skew in ((1, False), (9, True)):
        rows = "".join(f"//S,{uuid.UUID(int=number)}\n" for number in range(count))
        (tmp_path / "day.csv").write_text(f"to_service_name,conversation_id\n{rows}")
        given = ("--conversations", tmp_path / "day.csv", "--tie-break", "first" if count == 1 else "hash")
        found = run("compare", tmp_path / "before.sql", tmp_path / "after.sql", *given, *AT)
        assert ("REMOTE TCP://before" in found.out, "Skew after" in found.out) == (True, has_skew)


def test_lint_derives_the_addresses_to_specify_from_routes(run: Run, tmp_path: Path) -> None:
    paths = (tmp_path / "NORTH.sql", tmp_path / "SOUTH.sql")
    for path, script in zip(paths, (NORTH, SOUTH), strict=True):
        path.write_text(script.partition("\n")[2])
    routes = run("lint", *paths, *AT).out.splitlines()[-2]
    option = "--address SOUTH=TCP://south:4022"
    assert routes == (
        "Not checked: whether routes lead to NORTH, SOUTH, whose address is not known (the routes for their services suggest "
        f"{option})."
    )
    assert "whether routes lead to NORTH, whose" in run("lint", *paths, *AT, *option.split()).out


def test_lint_says_what_it_did_not_check_beside_findings(folder: Path, run: Run, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.sql").write_text(
            f"CREATE DATABASE {name}; USE {name}; CREATE QUEUE Q; CREATE SERVICE [//{name}] ON QUEUE Q;"
        )
    routes, others = run("lint", tmp_path / "one.sql", tmp_path / "two.sql").out.splitlines()[-2:]
    assert routes == (
        "Not checked: whether routes lead to one, two, whose address is not known (--address NAME=TCP://host:port, or -- ssbroker: "
        "addresses=TCP://host:port in its script)."
    )
    assert others.startswith("Not checked, because the catalogs lack the information: ")
    shown = run("lint", "--fleet", folder, *AT)
    assert shown.status == 1
    assert "TRUSTWORTHY" in shown.out.splitlines()[-1]


def test_lint_prints_the_same_advice_for_several_findings_once(tmp_path: Path, run: Run) -> None:
    script = tmp_path / "net.sql"
    bad = "CREATE ROUTE {} WITH ADDRESS = N'ftp://';\nGO\n"
    script.write_text("".join(map(bad.format, "ABC")))
    advice = "Correct the statement, or add the script that creates what it needs."
    assert run("lint", script).out.count(advice) == 1
    assert f"\n    For these 3: {advice}\n" in run("lint", script).out
    script.write_text(bad.format("A"))
    assert f"\n    {advice}\n" in run("lint", script).out


def test_lint_refers_to_the_same_statements_of_another_code(tmp_path: Path, run: Run) -> None:
    """The misspelled route is the cause of two findings."""
    folder = tmp_path / "misspelled"
    folder.mkdir()
    (folder / "north.sql").write_text(
        "-- ssbroker: addresses=TCP://north:4022\n"
        "CREATE DATABASE Sales; USE Sales; CREATE QUEUE Q; CREATE SERVICE [//Sales] ON QUEUE Q;\n"
        "CREATE ROUTE Stock WITH SERVICE_NAME = N'//Stock', ADDRESS = N'TCP://south:4022';\n"
    )
    (folder / "south.sql").write_text(
        "-- ssbroker: addresses=TCP://south:4022\n"
        "CREATE DATABASE Stores; USE Stores; CREATE QUEUE Q; CREATE SERVICE [//Stock] ON QUEUE Q ([DEFAULT]);\n"
        "CREATE ROUTE Back WITH SERVICE_NAME = N'//sales', ADDRESS = N'TCP://north:4022';\n"
    )
    found = run("lint", "--fleet", folder).out
    statement = "In south: USE [Stores]; ALTER ROUTE [Back] WITH SERVICE_NAME = N'//Sales';"
    assert found.count(f"\n    {statement}\n") == 1
    assert "\n    The same statements as for SSB017 above.\n" in found


def test_lint_prints_the_same_remedy_once_although_another_finding_is_between(
    capsys: pytest.CaptureFixture[str],
) -> None:
    remedies = {"A": "Drop it.", "B": "Create it.", "C": "Drop it."}
    findings = [
        Finding(
            code="SSB002",
            severity="warning",
            instance="NORTH",
            database="Sales",
            subject=Subject("route", name),
            message="is never used",
            remedy=remedy,
        )
        for name, remedy in remedies.items()
    ]
    print_findings(Findings(findings), Console(width=100), folders=[], routes=None, unchecked=[])
    where = '  - NORTH/Sales/route "{}": is never used'.format
    shown = [where("A"), where("C"), "    For these 2: Drop it.", where("B"), "    Create it."]
    assert capsys.readouterr().out.splitlines()[2:7] == shown
    html = html_report(Fleet({}), findings=Findings(findings), at=NOW)
    assert (html.count("<pre>Drop it.</pre>"), html.count("For these 2 findings:")) == (1, 1)


def test_instance_of_a_conversation_is_named_with_its_row(folder: Path, run: Run, tmp_path: Path) -> None:
    traffic = tmp_path / "day.csv"
    arguments = ["compare", "--fleet", folder, folder, "--conversations", traffic]
    rows = ["instance,database,to_service_name"] + ["NORTH,Sales,//Stock"] * 40_000
    for value, problem in (("NORD", "'NORD' is not an instance"), ("", "null is not allowed here")):
        traffic.write_text("\n".join([*rows, f"{value},Sales,//Stock", ""]))
        expected = f"instance, row 40000: {problem}; expected one of NORTH, SOUTH (line 40002 of the file)"
        assert run(*arguments).err == f"ssbroker: {traffic}: {expected}\n"
    traffic.write_text("database,to_service_name\nSales,//Stock\n")
    assert f"{traffic}: instance: the column is missing; several instances are compared" in run(*arguments).err
