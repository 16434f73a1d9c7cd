"""Unreachable paths, and names that are not UTF-8: exit status 2, one line, no traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Run

TOO_LONG = "x" * 300
NOT_UTF8 = os.fsdecode(b"//\xff")


def refused(run: Run, *arguments: object) -> str:
    """Runs a command that must be refused; returns the error message."""
    result = run(*arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("ssbroker: ")
    assert result.err.count("\n") == 1
    return result.err


@pytest.fixture
def conversation_file(tmp_path: Path) -> Path:
    """A file with one conversation."""
    file = tmp_path / "in.csv"
    file.write_text("database,to_service_name,conversation_id\nSales,//Stock,00000000-0000-0000-0000-000000000001\n")
    return file


@pytest.mark.parametrize(
    "command",
    [
        ["explain", f"{TOO_LONG}.sql", "--to-service", "//Stock"],
        ["explain", f"{TOO_LONG}/net", "--to-service", "//Stock"],
        ["route", f"{TOO_LONG}.csv", "--conversations", "in.csv", "-o", "out.csv"],
        ["route", "network", "--conversations", f"{TOO_LONG}.csv", "-o", "out.csv"],
        ["route", "network", "--conversations", f"{TOO_LONG}*.csv", "-o", "out.csv"],
        ["route", "network", "--conversations", "in.csv", "-o", f"{TOO_LONG}.csv"],
        ["reassemble", f"{TOO_LONG}.csv", "-o", "out.csv"],
        ["reassemble", "in.csv", "-o", "out.csv", "--state", TOO_LONG],
        ["reassemble", "in.csv", "-o", "out.csv", "--session-keys", f"{TOO_LONG}.csv"],
        ["lint", f"{TOO_LONG}.sql"],
        ["lint", "--fleet", TOO_LONG],
        ["lint", "network", "--sarif", TOO_LONG],
        ["compare", f"{TOO_LONG}.sql", "network"],
        ["trace", f"{TOO_LONG}.sql", "--to-service", "//Stock"],
        ["stuck", "network", "--queue", f"{TOO_LONG}.csv"],
        ["status", TOO_LONG],
        ["sql", TOO_LONG, "--query", "SELECT * FROM sys.databases"],
    ],
    ids=" ".join,
)
def test_unreachable_path(
    catalog: Path, conversation_file: Path, run: Run, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(catalog.parent)
    assert "File name too long" in refused(run, *command)
    assert sorted(entry.name for entry in catalog.parent.iterdir()) == sorted([catalog.name, conversation_file.name])


@pytest.mark.parametrize(
    "command",
    [
        ["explain", "network", "--to-service", NOT_UTF8, "--from", "Sales"],
        ["explain", "network", "--to-service", "//Stock", "--from", NOT_UTF8],
        ["explain", "network", "--to-service", "//Stock", "--from-outside", "--broker-instance", NOT_UTF8],
        ["trace", "network", "--from", "network/Sales", "--to-service", NOT_UTF8],
        ["sql", "shop", "--create", "--query", f"SELECT '{NOT_UTF8}'"],
    ],
    ids=[1, 2, 3, 4, 5],
)
def test_name_that_is_not_utf8(catalog: Path, run: Run, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    monkeypatch.chdir(catalog.parent)
    assert r"\udcff" in refused(run, *command)


@pytest.mark.skipif(os.name == "nt", reason="file names are UTF-16 there")
def test_file_name_that_is_not_utf8(catalog: Path, conversation_file: Path, run: Run) -> None:
    renamed = conversation_file.rename(os.fsdecode(os.fsencode(conversation_file.parent) + b"/\xff.csv"))
    message = refused(run, "route", catalog, "--conversations", renamed, "-o", catalog.parent / "out.csv")
    assert r"\udcff.csv' is not valid UTF-8; expected names in UTF-8" in message
    assert sorted(entry.name for entry in catalog.parent.iterdir()) == sorted([catalog.name, renamed.name])


@pytest.mark.parametrize(
    ("mark", "name"),
    [("_delta_log/0.json", "Delta"), ("metadata/v1.metadata.json", "Iceberg")],
    ids=["Delta", "Iceberg"],
)
@pytest.mark.parametrize("given", ["table/day=1", "table/**/*.csv", "table/day=1/in.csv"])
def test_tables_with_removed_files(
    catalog: Path, conversation_file: Path, run: Run, mark: str, name: str, given: str
) -> None:
    folder = catalog.parent
    for file in (f"table/{mark}", "table/day=1/in.csv"):
        (folder / file).parent.mkdir(parents=True)
    (folder / "table" / mark).touch()
    conversation_file.rename(folder / "table" / "day=1" / "in.csv")
    wanted = f"{folder / 'table'}: this folder is a {name} table"
    output = ("-o", folder / "out.csv")
    assert wanted in refused(run, "route", catalog, "--conversations", folder / given, *output)
    assert wanted in refused(run, "reassemble", folder / given, *output)
    assert wanted in refused(run, "compare", catalog, catalog, "--conversations", folder / given)


def test_a_table_is_recognised_from_a_folder_inside_it(
    catalog: Path, conversation_file: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = catalog.parent / "table"
    for folder in ("_delta_log", "day=1"):
        (table / folder).mkdir(parents=True)
    conversation_file.rename(table / "day=1" / "in.csv")
    monkeypatch.chdir(table / "day=1")
    message = refused(run, "route", catalog, "--conversations", "in.csv", "-o", catalog.parent / "out.csv")
    assert f"{table}: this folder is a Delta table" in message
