"""A process whose output goes to a file, and that is ready once it has written a line."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def logged_process(
    command: Sequence[str | Path], *, log: Path, until: str, variables: Mapping[str, str], folder: Path | None = None
) -> Iterator[re.Match[str]]:
    """Runs a command until the end of the context; yields the first match of the pattern `until` in its output."""
    with (
        log.open("wb") as written,
        subprocess.Popen(command, cwd=folder, env=variables, stdout=written, stderr=written) as process,
    ):
        try:
            while (found := re.search(until, log.read_text())) is None:
                if process.poll() is not None:
                    raise ChildProcessError(f"{command[0]} ended: {log.read_text()}")
                time.sleep(0.1)
            yield found
        finally:
            process.terminate()
