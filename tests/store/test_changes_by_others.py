"""Checking for commits of others waits for a file like every other access."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from ssbroker.store import sqlite
from ssbroker.store.database_file import DatabaseFile
from tests.store.numbered_rows import MIGRATIONS, write

RECOVERS: Final = """
import fcntl, sys
with open(sys.argv[1], "r+b", buffering=0) as index:
    fcntl.lockf(index, fcntl.LOCK_EX, 8, 120)
    header = index.read(96)
    index.seek(0)
    index.write(bytes(96))
    print("recovers", flush=True)
    sys.stdin.readline()
    index.seek(0)
    index.write(header)
"""
"""Does what SQLite does who finds the log's index half written by a process that was killed: nobody reads until it is done."""


@pytest.mark.skipif(sys.platform == "win32", reason="locks are others there")
def test_a_check_waits_even_long_after_the_first_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file.sqlite"
    with closing(DatabaseFile.create(path, MIGRATIONS, lock_timeout=60.0)) as file:
        watch = file.watch()
        assert watch.has_changed()
        write(file, 1)
        command = [sys.executable, "-c", RECOVERS, f"{path}-shm"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == b"recovers\n"
            an_hour_on = SimpleNamespace(
                monotonic=lambda: time.monotonic() + 3600.0, sleep=lambda _: other.communicate()
            )
            monkeypatch.setattr(sqlite, "time", an_hour_on)
            assert watch.has_changed()
            assert other.returncode == 0, "it was waited for"
        watch.close()
