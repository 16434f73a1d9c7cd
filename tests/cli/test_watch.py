"""`ssbroker watch`: the state of an instance as it changes, as tables, in a terminal, and as JSON."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from ssbroker import Instance
from ssbroker.cli import watch
from ssbroker.web.observer import Observer
from tests.cli.conftest import Run
from tests.cli.terminal import Terminal
from tests.web.shop import HOSTILE, Clock, create_shop


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_shop(tmp_path / "shop", background=False).close()
    return tmp_path / "shop"


@contextmanager
def watching(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process, which Ctrl-C ends."""
    command = [sys.executable, "-m", "ssbroker", "watch", str(folder), *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        yield process
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        assert (process.returncode, errors) == (0, "")


def test_states_as_json(folder: Path) -> None:
    with watching(folder, "--interval", "0.05", "--json") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        with Instance.open(folder) as instance:
            started = time.monotonic()
            instance.database("Sales").queue("Jobs").put(b"one")
            while json.loads(line := process.stdout.readline())["queues"] == first["queues"]:
                pass
            while not (
                jobs := [row for row in json.loads(line)["queues"] if row["queue"] == "dbo.Jobs" and row["ready"]]
            ):
                line = process.stdout.readline()
        assert jobs[0]["ready"] == 1
        assert 0 <= jobs[0]["oldest_seconds"] <= time.monotonic() - started + 1
        assert {row["to_service_name"] for row in first["transmission_queue"]} == {
            "//bank/Payments",
            f"//nobody/{HOSTILE}",
        }


def test_states_as_tables(run: Run, folder: Path) -> None:
    """Each state of a watch that does not write to a terminal is complete."""
    (undelivered,) = (line for line in run("status", folder).out.splitlines() if line.startswith("to //nobody/"))
    assert len(undelivered) > 100
    with watching(folder, "--interval", "0.2") as process:
        assert process.stdout is not None
        lines: list[str] = []
        while sum(line.startswith("Instance shop at ") for line in lines) < 3:
            lines.append(process.stdout.readline().removesuffix("\n"))
            assert lines[-1] or len(lines) < 1000
    for line in (undelivered, "  likely cause: at the last attempt, no route led to the service"):
        assert lines.count(line) == 2
    assert "No process serves the instance." in lines


def screen(folder: Path, *, width: int, height: int, states: int = 1) -> list[str]:
    """Returns what a terminal shows after a number of states."""
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    with Instance.open(folder, background=False) as instance:
        clock = Clock()
        observer = Observer(instance, clock=clock)
        for _ in range(states):
            clock.seconds += 10
            state = observer.state()
        parts = list(
            watch.state_parts(state, observer.history(), instance.folder, before=state, table=watch._FittingTable)
        )
    console.print(watch._Screen(parts), end="")
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("width", [80, 140])
def test_a_screen_shows_what_waits_and_each_queue_in_one_line(folder: Path, width: int) -> None:
    lines = screen(folder, width=width, height=60, states=3)
    assert max(map(len, lines)) <= width
    assert any(re.match(r"Sales +//bank/Payments +3 +1 +0:00:", line) for line in lines)
    (intake,) = (line for line in lines if " dbo.Intake " in line)
    assert re.match(r"Sales +dbo\.Intake +on +4 +███ +0:00:\d\d$", intake)
    assert not any(
        "…" in line for line in lines if " on " in line and HOSTILE[:10] not in line
    )  # only long names are cut
    (archive,) = (line for line in lines if " dbo.Archive " in line)
    assert re.match(r"Sales +dbo\.Archive +off +0 +▁▁▁", archive)
    assert "Poison message handling disabled the queue at " in " ".join(" ".join(lines).split())
    assert "\u202e" not in "".join(lines)


def test_statements_on_a_screen_start_a_line_and_are_not_broken_at_words(folder: Path) -> None:
    lines = screen(folder, width=80, height=200)
    (number,) = (number for number, line in enumerate(lines) if line.startswith("  USE [Sales]; CREATE ROUTE <name>"))
    assert len(lines[number]) == 80
    assert (lines[number] + lines[number + 1]).endswith("ADDRESS = N'TCP://<host>:4022';")


def test_a_screen_that_is_too_low_says_how_many_lines_are_missing(folder: Path) -> None:
    whole, low = (
        [re.sub(r"0:00:\d\d", "0:00:00", line) for line in screen(folder, width=80, height=height)]
        for height in (200, 10)
    )
    assert low[:9] == [whole[0][:20] + low[0][20:], *whole[1:9]]
    assert low[9] == f"{len(whole) - 9} more lines: enlarge the terminal, or run ssbroker status"
    assert len(low) == 10


def test_a_state_says_how_many_rows_it_omits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = screen(folder, width=140, height=200)
    assert not any("not shown" in line for line in whole)
    monkeypatch.setattr("ssbroker.web.observer.ROWS_MAX", 1)
    cut = screen(folder, width=140, height=200)
    first = next(number for number, line in enumerate(cut) if line == "Queues")
    queues = sum(" dbo." in line and not line.startswith("queue ") for line in whole)
    assert cut[first + 3] == f"{queues - 1} more rows not shown; ssbroker status shows all."


def test_the_change_since_the_last_state_is_shown(folder: Path) -> None:
    with Instance.open(folder, background=False) as instance:
        clock = Clock()
        observer = Observer(instance, clock=clock)
        before = observer.state()
        clock.seconds += 10
        jobs = instance.database("Sales").queue("Jobs")
        for _ in range(3):
            jobs.put(b"one")
        with instance.database("Sales").transaction() as t:
            t.receive("Intake")
        first = observer.state()
        clock.seconds += 10
        for _ in range(2):
            jobs.put(b"one")
        parts = list(watch.state_parts(observer.state(), observer.history(), instance.folder, before=first))
        emptied = list(watch.state_parts(first, observer.history(), instance.folder, before=before))
    out = io.StringIO()
    for part in [*parts, *emptied]:
        Console(file=out, width=200).print(part)
    assert re.search(r"dbo\.Jobs +on +5 +\+2 ", out.getvalue())
    assert re.search(r"dbo\.Intake +on +0 +-4 ", out.getvalue())


def test_a_watch_ends_when_nobody_reads_it(folder: Path) -> None:
    command = f"{sys.executable} -m ssbroker watch {folder} --json --interval 0.1 | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True, timeout=120)
    assert (json.loads(done.stdout)["instance"], done.stderr) == ("shop", "")


def test_states_on_a_terminal_without_control_sequences(folder: Path) -> None:
    with Terminal("watch", folder, "--interval", "0.2", columns=100, folder=folder, TERM="dumb") as terminal:
        terminal.wait(lambda lines: sum(line.startswith("Instance shop at ") for line in lines) > 1)
        terminal.kill(signal.SIGINT)
        assert terminal.end() == 0
    assert b"\x1b" not in terminal.output


def test_bars_in_ascii() -> None:
    """For a terminal whose encoding has no bars."""
    assert watch.depth_bars([(0.0, 0, None), (1.0, 1, 0), (2.0, None, None), (3.0, 100, 0)], is_ascii=True) == "_. @"


def test_a_folder_without_an_instance(run: Run, tmp_path: Path) -> None:
    result = run("watch", tmp_path / "none")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
