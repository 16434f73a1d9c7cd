"""A Python process that runs the code of pages with `driver.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from tests.guards.repository import ROOT


def environment() -> dict[str, str]:
    """Returns the environment variables of a page's commands: this Python is first on the PATH, and output has no colours."""
    return {
        **os.environ,
        "COLUMNS": "120",
        "NO_COLOR": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "TERM": "dumb",
    }


class Interpreter:
    """A process that keeps names from block to block, until the next page.

    Args:
        folder: Its current folder.
        noise: A file for its standard error and that of the Java process it starts; None to show both.
    """

    def __init__(self, folder: Path, noise: IO[str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", ROOT / "tests" / "docs" / "driver.py"],
            cwd=folder,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            text=True,
        )

    def block(self, source: str) -> str:
        """Runs source; returns the output."""
        return self._ask("block", source)

    def program(self, arguments: list[str]) -> str:
        """Runs a program as `python` with these arguments does; returns the output."""
        return self._ask("program", arguments)

    def turn_page(self) -> None:
        """Deletes all names, and stops Spark."""
        self._ask("page", "")

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()

    def _ask(self, kind: str, what: Any) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([kind, what]) + "\n")
        self._process.stdin.flush()
        printed, error = json.loads(self._process.stdout.readline())
        assert error is None, error
        return str(printed)
