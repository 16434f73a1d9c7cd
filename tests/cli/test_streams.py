"""A command runs to its end and keeps its exit status, whether or not its output is read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ssbroker import Instance
from ssbroker.broker.database import database_context
from tests.cli.conftest import Run
from tests.cli.test_command import COMMAND

pytestmark = pytest.mark.skipif(os.name == "nt", reason="requires a Unix shell and devices")
SCRIPT_WITH_FINDING = "USE Sales; CREATE ROUTE Orders WITH SERVICE_NAME = '//Orders', ADDRESS = 'LOCAL';\n"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Runs a shell command."""
    return subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, check=False)


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """A catalog with a finding."""
    path = tmp_path / "net.sql"
    path.write_text(SCRIPT_WITH_FINDING)
    return path


@pytest.mark.parametrize(
    ("arguments", "status", "streams"),
    [
        ("explain {net} --to-service //Orders", 0, "| true"),
        ("lint {net}", 1, "| true"),
        ("lint {net} --ignore SSB008", 0, "| true"),
        ("lint {net} --json", 1, ">&-"),
        ("lint nosuch.sql", 2, "2>&1 | true"),
        ("lint nosuch.sql", 2, ">&- 2>&-"),
    ],
)
def test_closed_streams_do_not_change_the_exit_status(
    net: Path, tmp_path: Path, arguments: str, status: int, streams: str
) -> None:
    command = f"{COMMAND} {arguments.format(net=net)}"
    redirected, _, pipe = streams.partition("|")
    done = shell(f"(sleep 0.01; {command} {redirected}; echo $? > {tmp_path}/status) {'| ' if pipe else ''}{pipe}")
    assert (tmp_path / "status").read_text() == f"{status}\n"
    assert "Traceback" not in done.stdout + done.stderr


def test_characters_missing_in_the_encoding_are_escaped(net: Path) -> None:
    """On Windows, the encoding of a pipe is that of the region."""
    command = [COMMAND, "explain", str(net), "--to-service", "//注文/größe", "--json"]
    done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": "latin-1"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout.decode("latin-1"))["conversation"]["to_service_name"] == "//注文/größe"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_full_disk_for_standard_output_is_one_line(net: Path) -> None:
    done = shell(f"{COMMAND} lint {net} > /dev/full")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ssbroker: standard output: cannot be written: No space left on device\n"
    assert shell(f"{COMMAND} lint nosuch.sql 2> /dev/full").returncode == 2


def test_all_scripts_run_if_the_pipe_is_closed(tmp_path: Path) -> None:
    """`head` ends after the first line."""
    for number in (1, 2, 3):
        lines = ["USE Sales", "GO", *(f"PRINT 'skipped {each}'" for each in range(40)), f"CREATE QUEUE Q{number}"]
        (tmp_path / f"{number}.sql").write_text("\n".join(lines))
    (tmp_path / "0.sql").write_text("CREATE DATABASE Sales")
    scripts = " ".join(str(tmp_path / f"{number}.sql") for number in range(4))
    done = shell(f"({COMMAND} sql {tmp_path}/shop --create {scripts} 2>&1; echo $? > {tmp_path}/status) | head -n 1")
    assert (done.stdout, done.stderr) == (f"{tmp_path}/0.sql: done\n", "")
    assert (tmp_path / "status").read_text() == "0\n"
    with Instance.open(tmp_path / "shop", background=False) as instance:
        assert {name for _, name in database_context(instance.database("Sales")).objects().queues} == {"Q1", "Q2", "Q3"}


def test_interrupted_sql_reports_completed_batches(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from ssbroker.broker import scripts  # noqa: PLC0415 - to be patched

    def interrupt(*_: object, **_options: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "1.sql").write_text("CREATE DATABASE Sales")
    monkeypatch.setattr(scripts, "execute", interrupt)
    stopped = run("sql", tmp_path / "shop", "--create", tmp_path / "1.sql")
    assert (stopped.status, stopped.err) == (130, "ssbroker: interrupted; completed batches are saved\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_error_is_written_although_the_streams_are_never_closed(unbuffered: str) -> None:
    """Spark keeps references to them, and the process ends without flushing them."""
    code = """if True:
        import importlib, os, sys
        app = importlib.import_module("ssbroker.cli.app")
        kept, run = [], app._run
        def keep_and_run(arguments):
            kept.append(sys.stderr)
            return run(arguments)
        app._run = keep_and_run
        os._exit(app.main(["lint", "nosuch.sql"]))
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (2, "ssbroker: nosuch.sql: no such file or folder\n")
