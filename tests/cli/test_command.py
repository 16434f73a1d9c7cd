"""The command itself: help, version, shell completion, imports."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ssbroker.cli import app
from ssbroker.cli.app import add_http_address, repeat_option
from tests.cli.conftest import Run, conversations
from tests.cli.formats import write

COMMAND = str(Path(sys.executable).with_name("ssbroker"))


def run_process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, check=False, env={**os.environ, **environment})


@pytest.mark.parametrize("start", [[COMMAND], [sys.executable, "-m", "ssbroker"]], ids=["command", "module"])
def test_command_and_module_are_the_same(start: list[str]) -> None:
    done = run_process(*start, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"ssbroker {version('ssbroker')}\n", "")
    done = run_process(*start, "explain")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ssbroker: Missing argument 'CATALOG'; see 'ssbroker explain --help'\n"


@pytest.mark.parametrize("command", ["route", "reassemble", "explain"])
def test_help_shows_valid_examples(command: str) -> None:
    """Each example is on its own line, and its options exist."""
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"})
    assert done.exit_code == 0
    assert "Examples" in done.output
    examples = [line.strip() for line in done.output.splitlines() if line.strip().startswith(f"ssbroker {command} ")]
    assert len(examples) >= 3
    options = done.output.split("Examples")[0]
    for example in examples:
        assert all(word in options for word in example.split() if word.startswith("-"))


def test_no_arguments_show_the_help(run: Run) -> None:
    result = run()
    assert (result.status, result.err) == (0, "")
    assert all(command in result.out for command in ("route", "reassemble", "explain"))


def test_help_does_not_import_optional_packages() -> None:
    program = (
        "import sys; from ssbroker.cli import main; main(['route', '--help']); "
        "print([name for name in ('pyspark', 'sqlglot', 'pandas', 'polars', 'duckdb') if name in sys.modules])"
    )
    assert run_process(sys.executable, "-c", program).stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_completion(shell: str) -> None:
    shown = run_process(COMMAND, "--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert shown.returncode == 0
    assert "_SSBROKER_COMPLETE" in shown.stdout

    words = {"COMP_WORDS": "ssbroker route --tie", "COMP_CWORD": "2", "_TYPER_COMPLETE_ARGS": "ssbroker route --tie"}
    offered = run_process(
        COMMAND, _SSBROKER_COMPLETE=f"complete_{shell}", _TYPER_COMPLETE_FISH_ACTION="get-args", **words
    )
    assert "--tie-break" in offered.stdout


def test_one_option_takes_many_files(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = [write(conversations(5), tmp_path / f"{number}.csv") for number in range(3)]
    result = run("route", catalog, "--conversations", *given, "-o", tmp_path / "out.csv")
    assert result.status == 0
    assert "15 conversations" in result.out


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["--conversations=a", "b", "-q"], ["--conversations=a", "--conversations", "b", "-q"]),
        (["--conversations", "a", "-o", "b", "c"], ["--conversations", "a", "-o", "b", "c"]),
        (["--conversations"], ["--conversations"]),
    ],
)
def test_repeat_option(given: list[str], wanted: list[str]) -> None:
    assert repeat_option(given) == wanted


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (["serve", "f", "--http"], ["serve", "f", "--http", "127.0.0.1:9422"]),
        (["serve", "f", "--http", "--log", "json"], ["serve", "f", "--http", "127.0.0.1:9422", "--log", "json"]),
        (["serve", "f", "--http", "[::1]:80", "-h"], ["serve", "f", "--http", "[::1]:80", "-h"]),
        (["serve", "f", "--http="], ["serve", "f", "--http="]),
    ],
)
def test_http_without_a_value_is_the_default_address(given: list[str], wanted: list[str]) -> None:
    assert add_http_address(given) == wanted


def test_closed_pipe_is_not_an_error(catalog: Path) -> None:
    arguments = f"explain {catalog} --to-service //Stock --from Sales --json"
    done = run_process("/bin/sh", "-c", f"{COMMAND} {arguments} | head -c 1; sleep 0")
    assert (done.stdout, done.stderr) == ("{", "")
