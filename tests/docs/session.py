"""One page being tried: a folder, a shell and one Python process that keeps its names from block to block."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

# Runs each line of its input, a JSON text of source, in one namespace, and answers with what was printed or raised.
_DRIVER: Final = """
import contextlib, io, json, os, sys, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
names = {"__name__": "__main__"}
for line in sys.stdin:
    printed, error = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(json.loads(line), "<page>", "exec"), names)
    except BaseException:
        error = traceback.format_exc()
    answers.write(json.dumps([printed.getvalue(), error]) + "\\n")
    answers.flush()
answers.close()
"""


class Session:
    """A page's folder, with what its blocks have left there."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        binaries = Path(sys.executable).parent
        self._environment = {
            **os.environ,
            "COLUMNS": "120",
            "NO_COLOR": "1",
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "PYSPARK_PYTHON": sys.executable,
            "TERM": "dumb",
        }
        self._python: subprocess.Popen[str] | None = None
        self._groups: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._python is not None:
            self._python.communicate()
        for group in self._groups:
            with suppress(ProcessLookupError):  # the page has ended what it began
                os.killpg(group, signal.SIGKILL)

    def python(self, source: str) -> str:
        """Run a block in the page's process; what it printed."""
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", _DRIVER],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps(source) + "\n")
        self._python.stdin.flush()
        printed, error = json.loads(self._python.stdout.readline())
        assert error is None, error
        return str(printed)

    def shell(self, command: str) -> str:
        """Run a command in the page's folder; what it printed on standard output, then on standard error.

        What it leaves in the background runs on, until the page ends.
        """
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            started = subprocess.Popen(
                ["sh", "-c", command],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            if " & " in command:
                self._groups.append(started.pid)
            status = started.wait()
            out.seek(0)
            err.seek(0)
            return out.read() if status == 0 else out.read() + err.read() + f"exit status {status}\n"

    def write(self, name: str, text: str) -> None:
        """Leave a file in the page's folder."""
        (self._folder / name).write_text(text, encoding="utf-8")


def same(printed: str, shown: str) -> bool:
    """Whether a page shows what was printed; `...` in the page stands for anything within a line."""
    lines, patterns = _lines(printed), [_pattern(line) for line in _lines(shown)]
    return len(lines) == len(patterns) and all(
        pattern.fullmatch(line) for pattern, line in zip(patterns, lines, strict=True)
    )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in line.split("...")))
