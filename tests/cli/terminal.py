"""A terminal that runs the command, and its screen."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pexpect
import pyte

_LINES = 400
_TIMEOUT = 60.0


class Terminal:
    """`ssbroker` with arguments in a pseudo-terminal of a size; the lines that are shown.

    Args:
        arguments: The arguments of the command.
        columns: The width.
        folder: The current folder.
        environment: More environment variables.
    """

    def __init__(self, *arguments: object, columns: int, folder: Path, **environment: str) -> None:
        self._screen = pyte.Screen(columns, _LINES)
        self._stream = pyte.ByteStream(self._screen)
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self._process: Any = pexpect.spawn(
            sys.executable,
            ["-m", "ssbroker", *map(str, arguments)],
            cwd=str(folder),
            env=kept | {"TERM": "xterm-256color", "XDG_STATE_HOME": str(folder / "state"), **environment},
            dimensions=(_LINES, columns),
            timeout=_TIMEOUT,
        )
        # Answers questions about the position of the cursor.
        self._screen.write_process_input = self._process.send  # type: ignore[method-assign]
        self.output = b""
        """Everything written, with its control sequences."""

    def lines(self) -> list[str]:
        """Returns the lines of the screen, without empty ones at its end."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip().splitlines()

    def wait(self, is_there: Callable[[list[str]], bool]) -> list[str]:
        """Reads until the screen is as wanted; returns its lines."""
        while not is_there(self.lines()):
            try:
                self._read(self._process.read_nonblocking(65_536, _TIMEOUT))
            except (pexpect.EOF, pexpect.TIMEOUT) as error:
                raise AssertionError("\n".join(self.lines())) from error
        return self.lines()

    def send(self, text: str, *, prompt: str = "> ") -> list[str]:
        """Types a line, waits for the next prompt, and returns the lines between."""
        before = len(self.lines())
        self.press(f"{text}\r")
        lines = self.wait(lambda lines: len(lines) > before and f"{lines[-1]} ".endswith(prompt))
        return lines[before:-1]

    def press(self, text: str) -> None:
        """Types keys."""
        self._process.send(text)

    def end(self) -> int:
        """Waits for the end; returns the exit status."""
        while True:
            try:
                self._read(self._process.read_nonblocking(65_536, _TIMEOUT))
            except pexpect.EOF:
                break
        self._process.close()
        return int(self._process.exitstatus if self._process.exitstatus is not None else -self._process.signalstatus)

    def kill(self, number: int) -> None:
        """Sends a signal."""
        self._process.kill(number)

    def _read(self, data: bytes) -> None:
        self.output += data
        self._stream.feed(data)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.isalive():  # close() would wait only for tenths of a second
            self._process.kill(signal.SIGKILL)
            self._process.wait()
        self._process.close()
