"""Rows that do not fit the terminal as a table are shown as records; colours are omitted with NO_COLOR."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from ssbroker import Instance
from ssbroker.cli.terminal import rows_table

NAMES = ["name", "creation", "rows"]
SQL = "CREATE ROUTE Orders WITH SERVICE_NAME = '//shop/Orders', ADDRESS = 'TCP://orders.example:4022'"
ROWS = [[Text("Orders"), Text(SQL), Text("7")], [Text("Stock"), Text("one\ntwo"), Text("12")]]


def printed(width: int, *, is_terminal: bool = True) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, force_terminal=is_terminal, no_color=True, color_system=None).print(
        rows_table(NAMES, ROWS, title="Routes"), crop=False
    )
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_rows_that_fit_are_a_table() -> None:
    lines = printed(140)
    assert [line.strip() for line in lines[:2]] == ["Routes", f"name    {'creation':<{len(SQL)}}  rows"]
    assert lines[2] == f"Orders  {SQL}     7"


def test_rows_that_do_not_fit_are_records_with_whole_values() -> None:
    assert printed(80) == [
        "Routes",
        "-- 1 --",
        "name      Orders",
        f"creation  {SQL}",
        "rows      7",
        "-- 2 --",
        "name      Stock",
        "creation  one",
        "          two",
        "rows      12",
    ]


def test_a_file_has_no_width_unless_columns_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert printed(80, is_terminal=False) == printed(140)
    monkeypatch.setenv("COLUMNS", "80")
    assert printed(80, is_terminal=False) == printed(80)


def test_colours_are_omitted_with_no_color(tmp_path: Path) -> None:
    Instance.create(tmp_path / "shop", name="shop").close()
    arguments = [sys.executable, "-m", "ssbroker", "status", str(tmp_path / "shop")]

    def shown(**environment: str) -> str:
        kept = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        return subprocess.run(arguments, capture_output=True, text=True, check=True, env=kept | environment).stdout

    coloured, plain = shown(FORCE_COLOR="1", TERM="xterm"), shown(FORCE_COLOR="1", TERM="xterm", NO_COLOR="1")
    assert "\x1b[" in coloured
    assert "\x1b[3" not in plain
    assert "\x1b[" not in shown()
