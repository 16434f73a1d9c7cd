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

    It reports on its standard output, in lines of words: `ready PORT` once it serves, and lines for `on_report`.
    Incomplete lines are ignored, since a kill may truncate the last one.

    Attributes:
        starts: Number of starts.
        base_kib: Memory when it was ready.
        peak_kib: Maximum memory over all starts, measured when it ended.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        errors: Path,
        on_report: Callable[[list[str]], None] = lambda _: None,
        on_ready: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.name: Final = name
        self.starts = 0
        self.base_kib = 0
        self.peak_kib = 0
        self._command: Final = [*command]
        self._errors: Final = errors
        self._on_report: Final = on_report
        self._on_ready: Final = on_ready
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._is_ready: Final = threading.Event()

    def start(self, *, timeout: float = DEADLINE_SECONDS) -> None:
        """Starts the process and waits until it is ready.

        Raises:
            TimeoutError: It did not become ready; the message contains its error output.
        """
        self._is_ready.clear()
        with self._errors.open("ab") as errors:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
        self.starts += 1
        self._reader = threading.Thread(target=self._read, args=(self._process,), name=self.name, daemon=True)
        self._reader.start()
        deadline = time.monotonic() + timeout
        while not self._is_ready.wait(0.05):
            has_exited = self._process.poll() is not None
            if has_exited:
                self._reader.join(DEADLINE_SECONDS)
            if not self._is_ready.is_set() and (has_exited or time.monotonic() > deadline):
                self.kill()
                raise TimeoutError(f"{self.name} is not ready: {self.error_output() or 'no output'}")
        self.base_kib = max(self.base_kib, self._peak())

    def kill(self) -> bool:
        """Kills it like a crash (SIGKILL) and reads its remaining output; returns whether it was still running."""
        process = self._running()
        self.peak_kib = max(self.peak_kib, self._peak())
        process.send_signal(signal.SIGKILL)
        return self._wait_for_exit(process) == -signal.SIGKILL

    def stop(self, *, timeout: float = DEADLINE_SECONDS) -> int:
        """Terminates it (SIGTERM) and returns its exit status."""
        process = self._running()
        self.peak_kib = max(self.peak_kib, self._peak())
        process.terminate()
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return self._wait_for_exit(process)

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def error_output(self) -> str:
        """Returns its standard error over all restarts."""
        return self._errors.read_text(encoding="utf-8", errors="replace") if self._errors.exists() else ""

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was never started"
        return self._process

    def _wait_for_exit(self, process: subprocess.Popen[bytes]) -> int:
        status = process.wait(DEADLINE_SECONDS)
        if self._reader is not None:
            self._reader.join(DEADLINE_SECONDS)
        return status

    def _peak(self) -> int:
        """Returns its peak memory since its last start, in KiB; 0 if the system does not report it."""
        try:
            status = Path(f"/proc/{self._running().pid}/status").read_text(encoding="ascii", errors="replace")
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
                    self._on_ready(int(words[1]))
                    self._is_ready.set()
                else:
                    self._on_report(words)
