"""A process at its limit of open files gets a clear error, and continues once files are closed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from ssbroker import Instance

FULL: Final = """
import os, resource, sys
from ssbroker import Instance
from ssbroker.exceptions import StorageError

folder, left = sys.argv[1], int(sys.argv[2])

def fill():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held = []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        for _ in range(left):
            os.close(held.pop())
    return held

def refused(call):
    held = fill()
    try:
        call()
    except StorageError as error:
        return "too many files are open in this process: raise its limit (ulimit -n)" in str(error)
    finally:
        for each in held:
            os.close(each)
    return False

Instance.open(folder, background=False).close()
assert refused(lambda: Instance.open(folder, background=False))
with Instance.open(folder, background=False) as instance:
    assert refused(lambda: instance.database("Sales"))
    assert refused(lambda: instance.create_database("Stock"))
    with instance.database("Sales").transaction() as t:
        t.connection.execute("CREATE TABLE works (again)")
    instance.create_database("Stock")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such limit")
@pytest.mark.parametrize("left", [0, 1, 2])
def test_too_many_open_files_are_reported_as_such(tmp_path: Path, left: int) -> None:
    """SQLite reports that it cannot open the file, and closes what it had opened."""
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        instance.create_database("Sales")
    subprocess.run([sys.executable, "-c", FULL, str(tmp_path / "shop"), str(left)], check=True, timeout=60)
