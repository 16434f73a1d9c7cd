"""A process that runs `ssbroker serve`."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

DEADLINE: Final = 60.0


class ServeProcess:
    """A process that serves until the end of a `with` block; its log is JSON."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._lines: Final[queue.SimpleQueue[str | None]] = queue.SimpleQueue()
        self.records: Final[list[dict[str, Any]]] = []
        self.process: Final = subprocess.Popen(
            [sys.executable, "-m", "ssbroker", "serve", str(folder), "--log", "json", *options],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self._reader: Final = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def serving(self) -> dict[str, Any]:
        """The record of the start."""
        return self.wait_for_record("serving ")

    def wait_for_record(self, prefix: str) -> dict[str, Any]:
        """Waits for the first record whose message starts with `prefix`."""
        for known in self.records:
            if known["message"].startswith(prefix):
                return known
        while (line := self._lines.get(timeout=DEADLINE)) is not None:
            assert line.startswith("{"), line
            self.records.append(json.loads(line))
            if self.records[-1]["message"].startswith(prefix):
                return self.records[-1]
        raise AssertionError(f"the process ended with {self.process.wait(DEADLINE)}, and never logged {prefix!r}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal, waits for the end, and returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE)

    def __enter__(self) -> Self:
        assert self.serving
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        if self.process.stderr is not None:
            self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put(None)
