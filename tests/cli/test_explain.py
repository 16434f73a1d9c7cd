"""`ssbroker explain`."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from ssbroker import Catalog, Router
from ssbroker.cli import explain as command
from tests.cli.conftest import COPIES, NOW, NOW_TEXT, Run

ID = str(uuid.UUID(int=99))


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (["--from", "Sales"], {"database": "Sales"}),
        (["--from", "network/Sales"], {"database": "Sales"}),
        (["--from", "sales"], {"database": "Sales"}),
        (["--from", "Network/SALES"], {"database": "Sales"}),
        (
            ["--from", "Sales", "--broker-instance", COPIES[1]],
            {"database": "Sales", "to_broker_instance": COPIES[1]},
        ),
        (["--from-outside"], {"database": None}),
        (
            ["--from-outside", "--from-target", "--broker-instance", COPIES[1]],
            {"database": None, "is_initiator": False, "to_broker_instance": COPIES[1]},
        ),
        (["--from", "Sales", "--conversation-id", ID], {"database": "Sales", "conversation_id": ID}),
    ],
)
def test_prints_the_explanation(catalog: Path, run: Run, options: list[str], arguments: dict[str, Any]) -> None:
    explanation = Router(Catalog.load(catalog)).explain("//Copied", now=NOW, **arguments)
    given = (catalog, "--to-service", "//Copied", "--at", NOW_TEXT, *options)

    plain, as_json = run("explain", *given), run("explain", *given, "--json")

    assert (plain.status, plain.out, plain.err) == (0, f"{explanation}\n", "")
    assert json.loads(as_json.out) == explanation.to_dict() | {"notes": []}


def test_router_options(catalog: Path, run: Run) -> None:
    explanation = Router(Catalog.load(catalog), tie_break="first", pending_request="delay").explain(
        "//Copied", database="Sales", now=NOW
    )
    options = ("--tie-break", "first", "--pending-request", "delay", "--from", "Sales", "--at", NOW_TEXT)
    assert run("explain", catalog, "--to-service", "//Copied", *options).out == f"{explanation}\n"


def test_only_user_database_is_the_default(tmp_path: Path, run: Run) -> None:
    (tmp_path / "routes.csv").write_text("name,remote_service_name,address\nA,//A,TCP://a\n")
    result = run("explain", tmp_path / "routes.csv", "--to-service", "//A", "--json")
    assert json.loads(result.out)["conversation"]["database"] == "user"


def test_database_is_required_if_there_are_several(catalog: Path, run: Run) -> None:
    result = run("explain", catalog, "--to-service", "//Stock")
    assert (result.status, result.out) == (2, "")
    assert result.err == ("ssbroker: specify --from or --from-outside: the catalog has the databases Billing, Sales\n")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--from", "Nowhere"], "'Nowhere' is not a database"),
        (["--from", "NORTH/Sales"], "contains the tables of the instance 'network', not those of 'NORTH'"),
        (["--from", "Sales", "--from-outside"], "--from and --from-outside cannot be used together"),
        (
            ["--from", "Sales", "--broker-instance", "12"],
            "'12' is not a valid GUID; expected 36 characters (braces allowed)\n",
        ),
        (["--from", "Sales", "--conversation-id", "12"], "--conversation-id: '12' is not a valid GUID"),
    ],
)
def test_bad_input_is_one_line(catalog: Path, run: Run, options: list[str], wanted: str) -> None:
    result = run("explain", catalog, "--to-service", "//Stock", *options)
    assert (result.status, result.out) == (2, "")
    assert wanted in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("name", ["", " ", "x" * 257])
def test_an_invalid_service_name_is_an_option_error(catalog: Path, run: Run, name: str) -> None:
    result = run("explain", catalog, "--to-service", name, "--from", "Sales")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    problem = f"{name!r:.80} is not a valid service name; expected 1 to 256 characters, not only spaces"
    assert result.err == f"ssbroker: --to-service: {problem}\n"
    assert run("trace", catalog, "--to-service", name, "--from", "Sales").err == result.err
    from_service = run("trace", catalog, "--to-service", "//Stock", "--from", "Sales", "--from-service", name)
    assert from_service.err == result.err.replace("--to-service", "--from-service")


def test_colours_do_not_change_the_text() -> None:
    text = "Decision: REMOTE, to TCP://a:4022 (was DELAYED, was DROPPED).\n"
    coloured = command._coloured(text)
    assert coloured.plain == text
    assert {span.style for span in coloured.spans} >= {"bold", "green", "yellow", "red", "cyan"}


def test_explain_reads_scripts_with_variables(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "net.sql"
    script.write_text("USE Sales\nCREATE ROUTE R WITH SERVICE_NAME = '//S', ADDRESS = 'TCP://$(Host):4022'\n")
    found = run("explain", script, "--to-service", "//S", "-v", "Host=north")
    assert (found.status, "TCP://north:4022" in found.out) == (0, True)
    assert run("explain", script, "--to-service", "//S").status == 2


def test_delivery_to_a_service_without_a_contract(tmp_path: Path, run: Run) -> None:
    script = tmp_path / "shop.sql"
    script.write_text("CREATE DATABASE Sales; USE Sales; CREATE QUEUE Q; CREATE SERVICE [//Own] ON QUEUE Q;")
    found = run("explain", script, "--to-service", "//Own")
    assert "//Own has no contract, so it refuses every" in found.out
    (note,) = json.loads(run("explain", script, "--to-service", "//Own", "--json").out)["notes"]
    assert (
        note
        == "The service //Own has no contract, so it refuses every conversation that is started with it (error -8408)."
    )


def test_delivery_to_a_service_with_a_disabled_queue(tmp_path: Path, run: Run) -> None:
    script = tmp_path / "shop.sql"
    script.write_text(
        "CREATE DATABASE Sales; USE Sales; CREATE QUEUE Q WITH STATUS = OFF; CREATE SERVICE [//Own] ON QUEUE Q ([DEFAULT]);"
    )
    note = (
        "The queue of the service //Own is disabled, so the message waits in the transmission queue of Sales until the queue is "
        "enabled: USE [Sales]; ALTER QUEUE [dbo].[Q] WITH STATUS = ON;"
    )
    assert run("explain", script, "--to-service", "//Own").out.endswith(f"\n{note}\n")
    assert json.loads(run("explain", script, "--to-service", "//Own", "--json").out)["notes"] == [note]
    script.write_text(script.read_text() + " ALTER QUEUE Q WITH STATUS = ON;")
    assert "disabled" not in run("explain", script, "--to-service", "//Own").out


def test_reply_that_a_database_sends(tmp_path: Path, run: Run) -> None:
    script = tmp_path / "shop.sql"
    script.write_text("CREATE DATABASE Stock; USE Stock; CREATE ROUTE R WITH ADDRESS = 'TCP://sales:4022';")
    arguments = ("explain", script, "--to-service", "//Sales", "--from-target")
    found = run(*arguments)
    assert 'Routing table: sys.routes of "Stock", because this database sends the reply\n' in found.out
    note = "Every reply names the broker id of the initiator's database: specify it with --broker-instance"
    assert note in " ".join(found.out.split())
    known = run(*arguments, "--broker-instance", "5a1e5000-0000-4000-8000-000000000001")
    assert (known.status, note in " ".join(known.out.split())) == (0, False)


PARTLY_REFUSED = """CREATE DATABASE Sales
GO
USE Sales
CREATE ROUTE Stock WITH SERVICE_NAME = '//Stock', ADDRESS = 'TCP://stock:4022'
GO
GRANT SEND ON SERVICE::[//Other] TO public
CREATE ROUTE Bad WITH SERVICE_NAME = '//Bad', ADDRESS = 'somewhere'
CREATE QUEU Q
"""


@pytest.mark.parametrize("command", ["explain", "trace", "stuck", "compare", "route"])
def test_lenient_answers_from_the_other_statements(tmp_path: Path, run: Run, command: str) -> None:
    script, rows = tmp_path / "net.sql", tmp_path / "in.csv"
    script.write_text(PARTLY_REFUSED)
    rows.write_text("to_service_name\n//Stock\n")
    arguments: dict[str, list[object]] = {
        "explain": [script, "--to-service", "//Stock"],
        "trace": [script, "--to-service", "//Stock"],
        "stuck": [script, "--queue", rows],
        "compare": [script, script],
        "route": [script, "--conversations", rows, "-o", tmp_path / "out.csv"],
    }
    options = arguments[command]

    strict, lenient = run(command, *options), run(command, *options, "--lenient")

    assert (strict.status, strict.out) == (2, "")
    assert strict.err.startswith(f"ssbroker: {script}:6: GRANT SEND [//Other]: error 15151: ")
    assert strict.err.endswith(
        "; ssbroker lint lists all such statements; to skip them with a warning, use --lenient\n"
    )
    expected = ["stock:4022", "No conversation changes."][command == "compare"]
    assert expected in (lenient.out if command != "route" else (tmp_path / "out.csv").read_text())
    refused, address, unknown = lenient.err.splitlines()[:3]
    assert refused.startswith(f"ssbroker: warning: {script}:6: GRANT SEND [//Other]: error 15151: ")
    assert refused.endswith("; the statement was skipped")
    assert "error 9744: ADDRESS 'somewhere' is not a valid address" in address
    assert f"{script}:8: CREATE QUEU Q: skipped: CREATE QUEU is not a statement of T-SQL" in unknown


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("USE Sales\nCREATE ROUTE [R", "error 105: "),
        ("USE Sales\n/* CREATE ROUTE R", "error 113: "),
        ("USE $(Database)", "Database"),
    ],
)
def test_lenient_does_not_skip_a_whole_script(tmp_path: Path, run: Run, text: str, problem: str) -> None:
    script = tmp_path / "net.sql"
    script.write_text(text)
    given = ("explain", script, "--to-service", "//Stock")
    assert run(*given, "--lenient") == (refused := run(*given))
    assert (refused.status, problem in refused.err, "--lenient" in refused.err) == (2, True, False)
