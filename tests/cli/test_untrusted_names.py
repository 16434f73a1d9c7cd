"""Names with markup or terminal escapes, from scripts, traffic and other instances, are printed as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssbroker import Instance
from tests.cli.conftest import Run

MARKUP = "x[/red]"
CONTROL = "x\x1b[2J\x9b\x07"
ESCAPED = r"x\x1b[2J\x9b\x07"
NAMES = pytest.mark.parametrize(("name", "shown"), [(MARKUP, MARKUP), (CONTROL, ESCAPED)], ids=["markup", "control"])


def script_with_name(path: Path, name: str, *, more: str = "") -> Path:
    """Returns a catalog in which every object has this name."""
    bracketed = f"[{name.replace(']', ']]')}]"
    path.write_text(
        f"CREATE DATABASE {bracketed};\nGO\nUSE {bracketed};\nCREATE QUEUE Q;\nCREATE SERVICE {bracketed} ON QUEUE Q;\n"
        f"CREATE ROUTE {bracketed} WITH SERVICE_NAME = N'{name}', ADDRESS = N'LOCAL';\n"
        f"CREATE ROUTE Lost WITH SERVICE_NAME = N'//Lost', ADDRESS = N'LOCAL';\n{more}",
        encoding="utf-8",
    )
    return path


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    """The path of a file of conversations."""
    return tmp_path / "day.csv"


@NAMES
def test_names_are_escaped_in_every_command(run: Run, tmp_path: Path, traffic: Path, name: str, shown: str) -> None:
    first = script_with_name(tmp_path / "a.sql", name)
    second = script_with_name(tmp_path / "b.sql", name, more="ALTER DATABASE CURRENT SET DISABLE_BROKER;\n")
    traffic.write_text(
        f"conversation_id,database,to_service_name\n00000000-0000-0000-0000-000000000001,{name},{name}\n",
        encoding="utf-8",
    )
    results = [
        run("route", first, "--conversations", traffic, "-o", tmp_path / "out.csv"),
        run("compare", first, second),
        run("compare", first, second, "--conversations", traffic),
        run("lint", first),
        run("trace", first, "--to-service", name),
        run("stuck", first, "--queue", traffic),
        run("explain", first, "--to-service", name),
    ]
    assert [result.status for result in results] == [0, 1, 1, 1, 1, 1, 0]
    for result in results:
        assert result.err == ""
        assert shown in result.out
        assert all(line.isprintable() for line in result.out.splitlines())


@NAMES
def test_instance_names_are_escaped(run: Run, tmp_path: Path, name: str, shown: str) -> None:
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        database = instance.create_database("Sales")
        database.create_queue("Q")
        database.create_service("//Shop", queue="Q")
        with database.transaction() as t:
            t.send(t.begin_dialog("//Shop", name), b"waits")
    for arguments in (("status",), ("sql", "--query", "SELECT to_service_name FROM sys.transmission_queue")):
        result = run(arguments[0], tmp_path / "shop", *arguments[1:])
        assert (result.status, result.err) == (0, "")
        assert shown in result.out
        assert all(line.isprintable() for line in result.out.splitlines())


def test_error_message_is_escaped(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.sql").write_text(f"CREATE ROUTE [{CONTROL}] WITH ADDRESS = 'nowhere';")
    refused = run("trace", tmp_path / "bad.sql", "--to-service", "//Orders")
    assert (refused.status, f"[{ESCAPED}]" in refused.err, refused.err.count("\n")) == (2, True, 1)
    assert refused.err.strip().isprintable()
