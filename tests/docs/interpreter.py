"""A Python process that runs what pages show; `driver.py` is what runs there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from tests.guards.repository import ROOT


def environment() -> dict[str, str]:
    """What a page's commands and programs find in theirs: this Python comes first, and output is plain."""
    return {
        **os.environ,
        "COLUMNS": "120",
        "NO_COLOR": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "TERM": "dumb",
    }


class Interpreter:
    """A process that keeps its names from block to block, until the page is turned.

    Args:
        folder: Where it is.
        noise: A file for what it, or a Java that it starts, writes on standard error; without one that is shown.
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
        """Run source; what it printed."""
        return self._ask("block", source)

    def program(self, arguments: list[str]) -> str:
        """Run a program, as `python` with these arguments does; what it printed."""
        return self._ask("program", arguments)

    def turn_page(self) -> None:
        """Forget all names, and stop Spark."""
        self._ask("page", "")

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _ask(self, kind: str, what: Any) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([kind, what]) + "\n")
        self._process.stdin.flush()
        printed, error = json.loads(self._process.stdout.readline())
        assert error is None, error
        return str(printed)
