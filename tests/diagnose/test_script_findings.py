"""Findings about the scripts that catalogs are loaded from, and the command that reports them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ssbroker.catalog.catalog import Catalog
from ssbroker.cli.app import main
from ssbroker.diagnose import Fleet
from ssbroker.diagnose import lint as find_problems
from ssbroker.exceptions import DdlError

BROKEN = """\
CREATE DATABASE Sales
GO
USE Sale
GO
USE Sales
CREATE ROUTE R WITH ADRESS = 'TCP://x'
CREATE QUEU Q
CREATE QUEUE Orders
GO
SET NOCOUNT ON
SET XACT_ABORT ON
WHILE @a = 1 DROP ROUTE AutoCreatedLocal
"""


def lint(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, object], str]:
    """Returns status, report and standard error of `ssbroker lint`."""
    status = main(["lint", *arguments, "--json"])
    out, err = capsys.readouterr()
    return status, json.loads(out), err


def found(report: dict[str, object]) -> list[tuple[str, str]]:
    """Returns code and place of each finding."""
    findings = report["findings"]
    assert isinstance(findings, list)
    return [(finding["code"], finding["object"]) for finding in findings if finding["code"] > "SSB100"]


def test_lint_reads_on_after_errors_and_reports_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "net.sql"
    script.write_text(BROKEN)
    status, report, err = lint(capsys, str(script))
    assert status == 1
    assert found(report) == [
        ("SSB101", "net.sql:3"),
        ("SSB101", "net.sql:6"),
        ("SSB102", "net.sql:7"),
        ("SSB103", "net.sql:12"),
    ]
    assert report["skipped_statements"] == {"SET": 2}
    assert err == ""
    script.write_text(f"{BROKEN}CREATE TABLE Orders (id int)\n")
    assert lint(capsys, str(script))[2] == (
        f"ssbroker: warning: {script}: skipped 1 statement not about routing: 1 CREATE TABLE\n"
    )
    script.write_text(BROKEN)
    main(["lint", str(script)])
    text = capsys.readouterr().out
    assert "error 911: the script creates no database 'Sale'; it creates Sales; did you mean Sales?" in text
    assert "did you mean ADDRESS?" in text
    assert "CREATE QUEU is not a statement of T-SQL; did you mean CREATE QUEUE?" in text
    assert "not executed, although it contains DROP ROUTE" in text


@pytest.mark.parametrize("text", ["", "SET NOCOUNT ON", "CREATE TABLE Orders (id int)\nGO\nUSE Sales\n"])
def test_script_without_service_broker_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    script = tmp_path / "net.sql"
    script.write_text(text)
    status, report, _ = lint(capsys, str(script))
    assert (status, found(report)) == (1, [("SSB104", "net.sql:1")])
    assert lint(capsys, str(script), "--lenient")[0] == 0


def test_verbose_lists_the_skipped_statements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "net.sql"
    script.write_text("CREATE DATABASE Sales\nALTER DATABASE Sales SET RECOVERY FULL\nPRINT 'x'\n")
    status, _, err = lint(capsys, str(script), "--verbose")
    assert status == 0
    assert err.splitlines() == [
        f"ssbroker: warning: {script}:2: ALTER DATABASE Sales SET RECOVERY FULL: skipped (not about Service Broker)",
        f"ssbroker: warning: {script}:3: PRINT '...': skipped (not about Service Broker)",
    ]


def test_lint_reads_on_after_a_file_in_another_encoding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a.sql").write_bytes("USE D\nGO\n-- pr\u00fcfen\nCREATE QUEUE Q1\n".encode("cp1252"))
    (folder / "b.sql").write_text("USE D\nGO\nCREATE QUEU Q2\n:r part.inc\n")
    (folder / "part.inc").write_bytes(b"\xfc")
    status, report, _ = lint(capsys, str(folder))
    assert (status, found(report)) == (1, [("SSB102", "b.sql:3"), ("SSB105", "a.sql:3"), ("SSB105", "part.inc:1")])
    main(["lint", str(folder)])
    text = capsys.readouterr().out
    assert "A script cannot be decoded" in text
    assert "not UTF-8 (byte 0xfc); save the script as UTF-8 or UTF-16, or specify the code page" in text
    assert lint(capsys, str(folder / "sub" / "a.sql"))[:2][0] == 1
    assert found(lint(capsys, str(folder / "sub" / "a.sql"))[1]) == [("SSB105", "a.sql:3")]
    with pytest.raises(DdlError, match=r"a\.sql:3: not UTF-8 \(byte 0xfc\); save the script as UTF-8 or UTF-16"):
        Catalog.load(folder / "sub")
    assert found(lint(capsys, str(folder / "sub"), "--encoding", "cp1252")[1]) == []


def test_lint_reports_a_missing_include_of_a_script_without_statements(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "net.sql"
    script.write_text(":r missing.sql\n")
    assert found(lint(capsys, str(script))[1]) == [("SSB101", "net.sql:1"), ("SSB104", "net.sql:1")]


def test_a_missing_include_after_connect_adds_no_instance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "net.sql"
    script.write_text(":setvar Db Sales\n:connect sql02\nUSE $(Db)\nGO\n:r missing.sql\nDROP ROUTE AutoCreatedLocal\n")
    status, report, _ = lint(capsys, str(script))
    assert (status, found(report)) == (1, [("SSB101", "net.sql:5")])
    findings = report["findings"]
    assert isinstance(findings, list)
    assert {finding["instance"] for finding in findings} == {"sql02"}


CONNECTED = """\
:setvar North "sql-north"
:connect $(North)
CREATE DATABASE Sales
GO
USE Sales
CREATE ROUTE Stock WITH SERVICE_NAME = '//Stock', ADDRESS = 'TCP://south:4022'
GO
:connect sql-south -U sa -P Hush
CREATE DATABASE Stores
GO
USE Stores
CREATE QUEUE Q
CREATE SERVICE [//Stock] ON QUEUE Q ([DEFAULT])
"""


def test_script_with_connect_is_a_fleet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "both.sql"
    script.write_text(CONNECTED)
    fleet = Fleet.load(script)
    assert list(fleet) == ["sql-north", "sql-south"]
    assert fleet["sql-south"].services.to_pylist() == [{"database": "Stores", "name": "//Stock"}]
    assert main(["trace", str(script), "--from", "sql-north/Sales", "--to-service", "//Stock"]) in (0, 1)
    assert "sql-north" in capsys.readouterr().out
    assert main(["compare", str(script), str(script)]) == 0
    capsys.readouterr()
    status, report, err = lint(capsys, str(script))
    assert status in (0, 1)
    assert found(report) == []
    assert "Hush" not in err + json.dumps(report)


def test_lint_reports_what_ends_a_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, html = tmp_path / "net.sql", tmp_path / "net.html"
    script.write_text("CREATE DATABASE Sales\nGO\nUSE Sales\nCREATE ROUTE [R WITH ADDRESS = 'LOCAL'\n")
    status, report, _ = lint(capsys, str(script), "--html", str(html))
    assert (status, found(report)) == (1, [("SSB101", "net.sql:4")])
    assert html.exists()


def test_script_that_creates_no_database_may_not_show_the_service(tmp_path: Path) -> None:
    """A script for maintenance changes one database; another one of the instance may have the service."""
    script = tmp_path / "change.sql"
    route = "CREATE ROUTE R WITH SERVICE_NAME = '//Stock', ADDRESS = 'LOCAL';"
    script.write_text(f"USE Sales\n{route}\n")
    (finding,) = find_problems(Fleet.load(script))
    assert (finding.code, finding.severity, finding.scripts) == ("SSB008", "warning", ())
    assert (
        finding.message
        == 'leads to LOCAL, but the script creates no database, and no database that it names has "//Stock"'
    )
    assert finding.remedy.startswith(
        "If another database of the instance has the service, the route is right: put this script and the script"
    )
    script.write_text(f"CREATE DATABASE Sales\nGO\nUSE Sales\n{route}\n")
    (finding,) = find_problems(Fleet.load(script))
    assert (finding.severity, finding.message) == (
        "error",
        'leads to LOCAL, but no database of this instance has "//Stock"',
    )


def test_altered_endpoint_has_an_unknown_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without STATE, ALTER ENDPOINT changes no state."""
    script = tmp_path / "change.sql"
    change = "ALTER ENDPOINT SB{} FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED)\n"
    route = "USE msdb\nCREATE ROUTE R WITH SERVICE_NAME = '//x', ADDRESS = 'TCP://x:4022'\n"
    for state, codes in (("", []), (" STATE = STARTED", []), (" STATE = STOPPED", ["SSB026"])):
        script.write_text(change.format(state) + route)
        _, report, _ = lint(capsys, str(script))
        findings = report["findings"]
        assert isinstance(findings, list)
        assert [each["code"] for each in findings if each["severity"] != "info"] == codes
        not_checked = report["not_checked"]
        assert isinstance(not_checked, list)
        assert ("the state of the endpoint" in not_checked) == (state == "")


def test_dropped_endpoint_is_an_outage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "net.sql"
    create = "CREATE ENDPOINT SSB STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER ()\nGO\n"
    route = "CREATE DATABASE Sales\nGO\nUSE Sales\nCREATE ROUTE R WITH SERVICE_NAME = '//x', ADDRESS = 'TCP://x:4022'\n"
    message = "the instance has no Service Broker endpoint, but exchanges messages with TCP://x:4022"
    for change, expected in (("", []), ("DROP ENDPOINT SSB\nGO\n", [("SSB026", "error", message)])):
        script.write_text(create + change + route)
        _, report, _ = lint(capsys, str(script))
        findings = report["findings"]
        assert isinstance(findings, list)
        assert [(each["code"], each["severity"], each["message"]) for each in findings] == expected
    script.write_text(create + "DROP ENDPOINT SSB\nGO\nALTER ENDPOINT SSB FOR SERVICE_BROKER ()\nGO\n" + route)
    _, report, _ = lint(capsys, str(script))
    findings = report["findings"]
    assert isinstance(findings, list)
    assert [each["code"] for each in findings] == ["SSB026", "SSB101"]


def test_restored_and_offline_databases_are_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "moved.sql"
    services = "USE {0}\nCREATE QUEUE Q\nCREATE SERVICE [//{0}] ON QUEUE Q ([DEFAULT])\nGO\n"
    script.write_text(
        "RESTORE DATABASE A FROM DISK = 'a.bak'\nCREATE DATABASE B\nGO\n"
        + services.format("A")
        + services.format("B")
        + "ALTER DATABASE B SET OFFLINE\n"
    )
    status, report, _ = lint(capsys, str(script))
    assert (status, found(report)) == (1, [("SSB106", "moved.sql:1"), ("SSB107", "moved.sql:12")])
    findings = report["findings"]
    assert isinstance(findings, list)
    assert "SSB021" not in {each["code"] for each in findings}
    assert main(["trace", str(script), "--to-service", "//B", "--from", "A"]) == 1
    assert "DELIVERED" not in capsys.readouterr().out
