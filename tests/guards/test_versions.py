"""What is said of the oldest libraries that will do is the same everywhere, and an older one is refused with a word."""

from __future__ import annotations

import subprocess
import sys
import tomllib

from ssbroker.versions import PYARROW
from tests.guards.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_what_pip_is_asked_for_is_what_is_demanded() -> None:
    assert f"pyarrow>={PYARROW}" in PROJECT["dependencies"]


def test_pyarrow_that_would_end_the_process_is_refused_when_the_package_is_imported() -> None:
    source = "import pyarrow; pyarrow.__version__ = '24.0.0'; import ssbroker"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        "ssbroker.exceptions.MissingDependencyError: "
        "ssbroker needs pyarrow 25 or newer, and 24.0.0 is installed: pip install 'pyarrow>=25'"
    )
