"""Real processes that are started, monitored, killed at any time and restarted."""

from __future__ import annotations

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
    """A process of a fleet, with all its restarts.

    It says what it does on its standard output, a line of words each: `ready PORT` once it serves, and whatever else `heard` takes. Only
    whole lines count, since the last one of a process that was killed may be torn.

    Attributes:
        lives: How often it was started.
        base_kib: The memory that it had taken when it was ready.
        peak_kib: The most that it took in any life, as it was when it ended.
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
        self.base_kib = 0
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
                self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
        self.lives += 1
        self._reader = threading.Thread(target=self._read, args=(self._process,), name=self.name, daemon=True)
        self._reader.start()
        deadline = time.monotonic() + timeout
        while not self._is_ready.wait(0.05):
            is_over = self._process.poll() is not None
            if is_over:
                self._reader.join(DEADLINE_SECONDS)
            if not self._is_ready.is_set() and (is_over or time.monotonic() > deadline):
                self.kill()
                raise TimeoutError(f"{self.name} is not ready: {self.complaints() or 'it said nothing'}")
        self.base_kib = max(self.base_kib, self._peak())

    def kill(self) -> bool:
        """Kills it like a crash (SIGKILL), and returns once its output is read; the result is whether it was still running."""
        process = self._alive()
        self.peak_kib = max(self.peak_kib, self._peak())
        process.send_signal(signal.SIGKILL)
        return self._gone(process) == -signal.SIGKILL

    def stop(self, *, timeout: float = DEADLINE_SECONDS) -> int:
        """Terminates it (SIGTERM), and returns its exit status."""
        process = self._alive()
        self.peak_kib = max(self.peak_kib, self._peak())
        process.terminate()
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return self._gone(process)

    @property
    def is_alive(self) -> bool:
        """Whether it is running."""
        return self._process is not None and self._process.poll() is None

    def complaints(self) -> str:
        """Its standard error over all restarts."""
        return self._errors.read_text(encoding="utf-8", errors="replace") if self._errors.exists() else ""

    def _alive(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    def _gone(self, process: subprocess.Popen[bytes]) -> int:
        status = process.wait(DEADLINE_SECONDS)
        if self._reader is not None:
            self._reader.join(DEADLINE_SECONDS)
        return status

    def _peak(self) -> int:
        """The most memory that this life has taken so far, in KiB; 0 where the system does not tell."""
        try:
            status = Path(f"/proc/{self._alive().pid}/status").read_text(encoding="ascii", errors="replace")
        except OSError:
            return 0
        return max((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), default=0)

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
