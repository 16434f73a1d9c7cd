"""The command itself: help, version, completion, and how quickly it starts."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ssbroker.cli import app
from ssbroker.cli.app import spread
from tests.cli.conftest import Run, conversations
from tests.cli.formats import write

COMMAND = str(Path(sys.executable).with_name("ssbroker"))


def call(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(arguments, capture_output=True, text=True, check=False, env={**os.environ, **environment})


@pytest.mark.parametrize("start", [[COMMAND], [sys.executable, "-m", "ssbroker"]], ids=["command", "module"])
def test_the_command_and_the_module_are_one(start: list[str]) -> None:
    done = call(*start, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"ssbroker {version('ssbroker')}\n", "")
    done = call(*start, "explain")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ssbroker: Missing option '--catalog'; see 'ssbroker explain --help'\n"


@pytest.mark.parametrize("command", ["route", "reassemble", "explain"])
def test_the_help_shows_examples_that_are_right(command: str) -> None:
    """Each example stands on a line of its own, and its options are the command's."""
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"})
    assert done.exit_code == 0
    assert "Examples" in done.output
    examples = [line.strip() for line in done.output.splitlines() if line.strip().startswith(f"ssbroker {command} ")]
    assert len(examples) >= 3
    options = done.output.split("Examples")[0]
    for example in examples:
        assert all(word in options for word in example.split() if word.startswith("-"))


def test_without_arguments_it_shows_the_help(run: Run) -> None:
    result = run()
    assert (result.status, result.err) == (0, "")
    assert all(command in result.out for command in ("route", "reassemble", "explain"))


def test_the_help_needs_neither_spark_nor_a_parser() -> None:
    program = (
        "import sys; from ssbroker.cli import main; main(['route', '--help']); "
        "print([name for name in ('pyspark', 'sqlglot', 'pandas', 'polars', 'duckdb') if name in sys.modules])"
    )
    assert call(sys.executable, "-c", program).stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_learns_the_options(shell: str) -> None:
    shown = call(COMMAND, "--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert shown.returncode == 0
    assert "_SSBROKER_COMPLETE" in shown.stdout

    words = {"COMP_WORDS": "ssbroker route --tie", "COMP_CWORD": "2", "_TYPER_COMPLETE_ARGS": "ssbroker route --tie"}
    offered = call(COMMAND, _SSBROKER_COMPLETE=f"complete_{shell}", _TYPER_COMPLETE_FISH_ACTION="get-args", **words)
    assert "--tie-break" in offered.stdout


def test_one_option_takes_many_files(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = [write(conversations(5), tmp_path / f"{number}.csv") for number in range(3)]
    result = run("route", "--conversations", *given, "--catalog", catalog, "-o", tmp_path / "out.csv")
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
def test_only_files_after_the_option_are_its_own(given: list[str], wanted: list[str]) -> None:
    assert spread(given) == wanted


def test_a_reader_that_has_seen_enough_is_no_error(catalog: Path) -> None:
    arguments = f"explain --catalog {catalog} --to-service //Stock --database Sales --json"
    done = call("/bin/sh", "-c", f"{COMMAND} {arguments} | head -c 1; sleep 0")
    assert (done.stdout, done.stderr) == ("{", "")
