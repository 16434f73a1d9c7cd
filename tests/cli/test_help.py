"""The help fits 80 and 140 columns, with whole names and an example for each command, and costs little."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest

from ssbroker.cli.app import _COMMANDS
from tests.cli.help_snapshot import WIDTHS, help_texts, snapshot, text


@pytest.mark.parametrize("width", WIDTHS)
def test_the_help_equals_the_snapshot(width: int) -> None:
    recorded = snapshot(width).read_text(encoding="utf-8")
    assert text(width) == recorded, "run `python -m tests.cli.help_snapshot --write` and read the difference"


@pytest.mark.parametrize("width", WIDTHS)
def test_lines_fit_and_names_are_whole(width: int) -> None:
    for command, shown in help_texts(width):
        lines = shown.splitlines()
        assert [line for line in lines if len(line) > width] == [], command
        assert re.findall(r"<\w+>|\]\.\.\.|[│╭\x1b]|\[bold|…", shown) == [], command
        assert lines[lines.index("Examples:") :], command
        assert any(line.startswith(f"  {command} ") for line in lines), command


def test_every_option_with_a_value_names_it() -> None:
    for command, shown in help_texts(140):
        for option, text_ in re.findall(r"^  (?:-\w, )?(--[\w-]+)(?:, --[\w-]+)?(.*)$", shown, re.MULTILINE):
            if "Default:" in text_ and "progress" not in option:
                assert re.match(r" [A-Zj]", text_), f"{command} {option}"


@pytest.mark.parametrize("command", _COMMANDS)
def test_the_list_of_commands_has_the_first_line_of_each_help(command: str) -> None:
    function = getattr(importlib.import_module(f"ssbroker.cli.{command}"), command)
    assert function.__doc__.partition("\n")[0] == _COMMANDS[command]


def imported(*arguments: str) -> set[str]:
    program = (
        f"import sys; sys.argv[1:] = {list(arguments)!r}\nfrom ssbroker.__main__ import main\nmain()\n"
        "print([name for name in ('typer', 'rich', 'pyarrow', 'numpy', 'ssbroker.ddl', 'ssbroker.broker') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names: set[str] = set(re.findall(r"'([\w.]+)'", done.stdout.splitlines()[-1]))
    return names


def test_the_version_and_the_list_of_commands_import_little() -> None:
    assert imported("--version") == set()
    assert imported("--help") <= {"typer", "rich"}


def test_the_default_of_a_number_of_seconds_is_shown() -> None:
    shown = dict(help_texts(140))["ssbroker watch"]
    assert "--interval SECONDS            Seconds between updates. Default: 1.\n" in shown
