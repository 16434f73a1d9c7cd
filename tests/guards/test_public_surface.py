"""The public names of the package change only intentionally."""

from __future__ import annotations

import subprocess
import sys
from difflib import unified_diff

import pytest

import ssbroker
from tests.guards.public_surface import SNAPSHOT, text


def test_the_public_surface_equals_the_snapshot() -> None:
    recorded = SNAPSHOT.read_text(encoding="utf-8")
    changes = "\n".join(unified_diff(recorded.splitlines(), text().splitlines(), "recorded", "now", lineterm="", n=0))
    assert not changes, f"run `make format`, and note the change in CHANGELOG.md:\n{changes}"


def test_dir_shows_public_names_only() -> None:
    assert dir(ssbroker) == sorted([*ssbroker.__all__, "spark"])
    for module in (ssbroker.diagnose, ssbroker.spark, ssbroker.testing):
        assert dir(module) == sorted(module.__all__)


@pytest.mark.parametrize("name", ["spark", "diagnose", "testing", "exceptions", "schemas"])
def test_public_modules_need_no_import_of_their_own(name: str) -> None:
    code = f"import ssbroker; print(ssbroker.{name}.__name__)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == f"ssbroker.{name}"
