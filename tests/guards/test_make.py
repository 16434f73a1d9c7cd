"""`make` reports missing tools before it does anything, and has every target that the documents use."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.guards.repository import ROOT

BASIC_TOOLS = ["make", "sh", "sed", "grep", "head", "dirname", "find", "expand", "ls"]
FAKE_TOOLS = {
    "cargo": "echo 'cargo 1.95.0 (0123456 2026-01-01)'",
    "cc": "true",
    "java": "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2",
    "python3": "exit 0",
    "chromium": "true",
}


def machine(folder: Path, **tools: str | None) -> dict[str, str]:
    """Creates an environment whose PATH contains the basic tools and the given ones; None omits a tool."""
    for name in BASIC_TOOLS:
        found = shutil.which(name)
        assert found, name
        (folder / name).symlink_to(found)
    for name, script in {**FAKE_TOOLS, **tools}.items():
        if script is not None:
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_make_test_skips_the_tests_that_need_a_browser_if_it_is_missing(tmp_path: Path) -> None:
    environment = machine(tmp_path, chromium=None)
    for target in ("tools", "tools-with-java"):
        assert run(environment, "make", target).returncode == 0
    recipe = run(environment, "make", "--dry-run", "test").stdout
    check = next(line for line in recipe.splitlines() if "check-tools browser" in line)
    done = run(environment, "sh", "-c", f'{check.rstrip(chr(92))} echo "skipped: $SSBROKER_WITHOUT_BROWSER"')
    assert done.stdout == "skipping the tests that need a browser\nskipped: 1\n"
    assert "missing: Chromium" in done.stderr


def test_a_machine_with_all_tools_passes(tmp_path: Path) -> None:
    done = run(machine(tmp_path), "scripts/check-tools", "python", "rust", "java", "browser")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("tool", "script", "message"),
    [
        ("python3", None, "missing: Python 3.11 or newer with venv"),
        ("python3", "exit 1", "missing: Python 3.11 or newer with venv"),
        ("cargo", None, "missing: cargo (the Rust toolchain"),
        ("cargo", "echo 'cargo 1.70.0 (0123456 2023-01-01)'", "missing: a newer Rust: found cargo 1.70.0"),
        ("cargo", "exit 1", "missing: a newer Rust: found a cargo that fails"),
        ("cc", None, "missing: cc, the linker that Rust uses"),
        ("java", None, "missing: Java 17 or newer, required by Spark"),
        ("java", "echo 'java version \"1.8.0_401\"' >&2", "missing: Java 17 or newer"),
        ("java", "echo 'Unable to locate a Java Runtime.' >&2; exit 1", "missing: Java 17 or newer"),
    ],
)
@pytest.mark.parametrize("target", ["demo", "test"])
def test_make_stops_first_and_reports_a_missing_tool(
    target: str, tool: str, script: str | None, message: str, tmp_path: Path
) -> None:
    before = {path.name for path in ROOT.iterdir()}
    done = run(machine(tmp_path, **{tool: script}), "make", target)
    assert done.returncode != 0
    assert done.stderr.startswith(message)
    assert "building" not in done.stdout
    assert {path.name for path in ROOT.iterdir()} == before


def test_all_missing_tools_are_reported_together(tmp_path: Path) -> None:
    done = run(machine(tmp_path, python3=None, cargo=None, java=None), "make", "demo")
    assert done.stderr.count("missing: ") == 3


def test_java_home_precedes_the_path(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    environment = machine(tmp_path / "bin", java="echo 'openjdk version \"21.0.2\"' >&2")
    old = tmp_path / "old" / "bin"
    old.mkdir(parents=True)
    (old / "java").write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    (old / "java").chmod(0o755)
    assert run(environment, "scripts/check-tools", "java").returncode == 0
    assert run({**environment, "JAVA_HOME": str(old.parent)}, "scripts/check-tools", "java").returncode == 1


def test_help_lists_every_target() -> None:
    # Not as a child of the `make` that runs this test, which would print its directory.
    done = run({"PATH": os.environ["PATH"]}, "make", "help")
    targets = [line.split()[1] for line in done.stdout.splitlines()]
    assert targets == [
        "help",
        "demo",
        "test",
        "build",
        "docs",
        "pictures",
        "format",
        "lint",
        "compat",
        "wheels",
        "release-check",
        "rules",
        "bench",
        "fuzz",
        "ci",
        "clean",
    ]


def test_the_ci_ends_with_the_tests() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines[-1] == "make test"
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
