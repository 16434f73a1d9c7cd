"""Real processes that are started, listened to, killed at any moment and started again."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.guards.repository import ROOT

DEADLINE_SECONDS: Final = 60.0
READY: Final = "ready"


class Node:
    """A process of a fleet, through all its lives.

    It says what it does on its standard output, a line of words each: `ready PORT` once it serves, and whatever else `heard` takes. Only
    whole lines count, since the last one of a process that was killed may be torn. It ends by itself when its standard input ends.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        errors: Path,
        heard: Callable[[list[str]], None] = lambda _: None,
        ready: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.name: Final = name
        self.lives = 0
        self.peak_kib = 0
        self._command: Final = [*command]
        self._errors: Final = errors
        self._heard: Final = heard
        self._ready: Final = ready
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._is_ready: Final = threading.Event()

    def start(self, *, timeout: float = DEADLINE_SECONDS) -> None:
        """Begins a life, and returns once it is ready.

        Raises:
            TimeoutError: It never was; the text says what it wrote.
        """
        self._is_ready.clear()
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        self.lives += 1
        self._reader = threading.Thread(target=self._read, args=(self._process,), name=self.name, daemon=True)
        self._reader.start()
        deadline = time.monotonic() + timeout
        while not self._is_ready.wait(0.05):
            if self._process.poll() is not None:
                self._reader.join(DEADLINE_SECONDS)
                if self._is_ready.is_set():
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise TimeoutError(f"{self.name} is not ready: {self.complaints() or 'it said nothing'}")

    def kill(self) -> bool:
        """Ends it as a crash would (SIGKILL), and returns once all that it had said is heard; whether it was still at work."""
        process = self._alive()
        self._look()
        process.send_signal(signal.SIGKILL)
        return self._gone(process) == -signal.SIGKILL

    def stop(self, *, timeout: float = DEADLINE_SECONDS) -> int:
        """Asks it to end (its standard input ends, and SIGTERM), and says with which status it did."""
        process = self._alive()
        self._look()
        process.terminate()
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return self._gone(process)

    @property
    def is_alive(self) -> bool:
        """Whether it is at work."""
        return self._process is not None and self._process.poll() is None

    def complaints(self) -> str:
        """What it wrote on standard error, in all its lives."""
        return self._errors.read_text(encoding="utf-8", errors="replace") if self._errors.exists() else ""

    def _alive(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    def _gone(self, process: subprocess.Popen[bytes]) -> int:
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        status = process.wait(DEADLINE_SECONDS)
        if self._reader is not None:
            self._reader.join(DEADLINE_SECONDS)
        return status

    def _look(self) -> None:
        """Notes the most memory that this life has taken so far, where the system tells it."""
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{self._alive().pid}/status").read_text(encoding="ascii", errors="replace")
            peaks = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
            self.peak_kib = max([self.peak_kib, *peaks])

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as said:
            for line in said:
                if not line.endswith(b"\n"):
                    return
                words = line.decode().split()
                if words[:1] == [READY]:
                    self._ready(int(words[1]))
                    self._is_ready.set()
                else:
                    self._heard(words)
