"""The newest section of the changelog is that of the version, and has a date when the version is tagged."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.wheel.check_changelog import problem

ROOT = Path(__file__).parents[2]
UNRELEASED = "# Changelog\n\n## [0.2.0] - unreleased\n\n- More.\n\n## [0.1.0] - 2026-11-01\n\n- Some.\n"
RELEASED = UNRELEASED.replace("unreleased", "2026-11-26")


def test_changelog_of_this_version() -> None:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]
    assert problem((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version, None) is None


@pytest.mark.parametrize(
    ("changelog", "version", "tag"),
    [
        (UNRELEASED, "0.2.0", None),
        (RELEASED, "0.2.0", None),
        (RELEASED, "0.2.0", "v0.2.0"),
        (RELEASED.partition("\n## [0.1.0]")[0], "0.2.0", "v0.2.0"),
    ],
)
def test_versions_that_agree(changelog: str, version: str, tag: str | None) -> None:
    assert problem(changelog, version, tag) is None


@pytest.mark.parametrize(
    ("changelog", "version", "tag", "said"),
    [
        (UNRELEASED, "0.2.0", "v0.2.0", "needs the date of the release: ## [0.2.0] - YYYY-MM-DD"),
        (RELEASED, "0.3.0", None, "write ## [0.3.0] - unreleased"),
        (RELEASED, "0.3.0", "v0.3.0", "write ## [0.3.0] - YYYY-MM-DD"),
        (RELEASED, "0.2.0", "v0.2.1", "the tag is v0.2.1"),
        (RELEASED, "0.1.0", "v0.1.0", "the first section must be that of 0.1.0"),
        (RELEASED.replace(" - 2026-11-26", ""), "0.2.0", None, "write ## [0.2.0] - unreleased"),
        ("# Changelog\n", "0.1.0", None, "write ## [0.1.0] - unreleased"),
    ],
)
def test_versions_that_do_not(changelog: str, version: str, tag: str | None, said: str) -> None:
    found = problem(changelog, version, tag)
    assert found is not None
    assert said in found
