"""The version of a release must have a dated section in the changelog, and the tag must be of that version."""

from __future__ import annotations

import pytest

from tests.wheel.check_changelog import problem

UNRELEASED = "# Changelog\n\n## [Unreleased]\n\n- More.\n"
RELEASED = f"{UNRELEASED}\n## [0.2.0] - 2026-11-26\n\n- Some.\n\n## [0.1.0] - 2026-11-01\n"


@pytest.mark.parametrize(
    ("changelog", "version", "tag"),
    [
        (UNRELEASED, "0.1.0", None),
        (RELEASED, "0.2.0", None),
        (RELEASED, "0.3.0", None),
        (RELEASED, "0.2.0", "v0.2.0"),
        (RELEASED.partition("- More.\n")[2], "0.2.0", "v0.2.0"),
    ],
)
def test_versions_that_agree(changelog: str, version: str, tag: str | None) -> None:
    assert problem(changelog, version, tag) is None


@pytest.mark.parametrize(
    ("changelog", "version", "tag", "said"),
    [
        (UNRELEASED, "0.1.0", "v0.1.0", "has no section [0.1.0]"),
        (RELEASED, "0.3.0", "v0.3.0", "has no section [0.3.0]"),
        (RELEASED, "0.2.0", "v0.2.1", "the tag is v0.2.1"),
        (RELEASED, "0.1.0", "v0.1.0", "must be the newest"),
        (RELEASED.replace(" - 2026-11-26", ""), "0.2.0", None, "as ## [0.2.0] - YYYY-MM-DD"),
        ("# Changelog\n", "0.1.0", None, "neither"),
    ],
)
def test_versions_that_do_not(changelog: str, version: str, tag: str | None, said: str) -> None:
    found = problem(changelog, version, tag)
    assert found is not None
    assert said in found
