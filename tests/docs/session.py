"""A page that is being tested: its folder, a shell, and a Python process that keeps names from block to block."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.docs.interpreter import Interpreter, environment


class Session:
    """A page's folder, with the files that its blocks have written."""

    def __init__(self, folder: Path, interpreter: Interpreter | None = None) -> None:
        self._folder = folder
        self._environment = environment()
        self._given = interpreter
        self._own: Interpreter | None = None
        self._groups: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._own is not None:
            self._own.close()
        for group in self._groups:
            with suppress(ProcessLookupError):  # the page has ended what it began
                os.killpg(group, signal.SIGKILL)

    def python(self, source: str) -> str:
        """Runs a block in the page's process; returns the output."""
        if self._given is None and self._own is None:
            self._own = Interpreter(self._folder)
        interpreter = self._given or self._own
        assert interpreter is not None
        return interpreter.block(source)

    def shell(self, command: str) -> str:
        """Runs a command in the page's folder; returns its standard output, then its standard error.

        Background processes run until the page ends. If the page has a process of its own, Python programs run in it too.
        """
        if self._given is not None and command.startswith("python "):
            return self._given.program(shlex.split(command)[1:])
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
        """Writes a file into the page's folder."""
        (self._folder / name).write_text(text, encoding="utf-8")


def same(printed: str, shown: str) -> bool:
    """Returns whether the output is the one that a page shows; `...` in the page matches anything within a line."""
    lines, patterns = _lines(printed), [_pattern(line) for line in _lines(shown)]
    return len(lines) == len(patterns) and all(
        pattern.fullmatch(line) for pattern, line in zip(patterns, lines, strict=True)
    )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in line.split("...")))
