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
        (
            ["--from", "Sales", "--broker-instance", COPIES[1]],
            {"database": "Sales", "to_broker_instance": COPIES[1]},
        ),
        (["--from-outside"], {"database": None}),
        (["--from-outside", "--from-target"], {"database": None, "is_initiator": False}),
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
        (["--from", "Sales", "--broker-instance", "12"], "--broker-instance: '12' is not a valid GUID"),
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
