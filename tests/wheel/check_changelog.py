"""Checks that CHANGELOG.md describes the version. Run: check_changelog.py VERSION, with the tag in GITHUB_REF_NAME if GITHUB_REF_TYPE is `tag`.

The newest section must be that of the version: `## [VERSION] - unreleased`, or with a date if the version is tagged.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

SECTION = re.compile(r"^## \[(?P<version>[^]]+)\] - (?P<date>\d{4}-\d{2}-\d{2}|unreleased)$", re.MULTILINE)


def problem(changelog: str, version: str, tag: str | None) -> str | None:
    """Returns what is wrong; `tag` is that of the release, if there is one."""
    if tag is not None and tag != f"v{version}":
        return f"the tag is {tag}, and Cargo.toml specifies version {version}: tag v{version}, or change the version"
    newest = SECTION.search(changelog)
    if newest is None or newest["version"] != version:
        expected = "YYYY-MM-DD" if tag else "unreleased"
        return f"CHANGELOG.md: the first section must be that of {version}: write ## [{version}] - {expected}"
    if tag is not None and newest["date"] == "unreleased":
        return f"CHANGELOG.md: the section of {version} needs the date of the release: ## [{version}] - YYYY-MM-DD"
    return None


if __name__ == "__main__":
    text = Path(__file__).parents[2].joinpath("CHANGELOG.md").read_text(encoding="utf-8")
    is_tagged = os.environ.get("GITHUB_REF_TYPE") == "tag"
    if found := problem(text, sys.argv[1], os.environ["GITHUB_REF_NAME"] if is_tagged else None):
        sys.exit(found)
