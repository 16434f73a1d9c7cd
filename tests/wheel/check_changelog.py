"""CHANGELOG.md and the version agree. Run: check_changelog.py VERSION, with the tag in GITHUB_REF_NAME if GITHUB_REF_TYPE is `tag`.

Before a version is tagged, its changes may still be in [Unreleased]; a tagged version needs a section with its date.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

SECTION = re.compile(r"^## \[([^]]+)\](?: - (\d{4}-\d{2}-\d{2}))?$", re.MULTILINE)


def problem(changelog: str, version: str, tag: str | None) -> str | None:
    """Returns what is wrong; `tag` is that of the release, if there is one."""
    sections: list[tuple[str, str]] = SECTION.findall(changelog)
    names = [name for name, _ in sections]
    if tag is not None and tag != f"v{version}":
        return f"the tag is {tag}, and Cargo.toml states version {version}: tag v{version}, or change the version"
    if version in names:
        newest = next(name for name in names if name != "Unreleased")
        if version != newest or not dict(sections)[version]:
            return f"CHANGELOG.md: the section of {version} must be the newest, as ## [{version}] - YYYY-MM-DD"
        return None
    if tag is not None:
        return f"CHANGELOG.md has no section [{version}]: write ## [{version}] - YYYY-MM-DD below ## [Unreleased]"
    if "Unreleased" not in names:
        return f"CHANGELOG.md has neither a section [{version}] nor [Unreleased]"
    return None


if __name__ == "__main__":
    text = Path(__file__).parents[2].joinpath("CHANGELOG.md").read_text(encoding="utf-8")
    is_tagged = os.environ.get("GITHUB_REF_TYPE") == "tag"
    if found := problem(text, sys.argv[1], os.environ["GITHUB_REF_NAME"] if is_tagged else None):
        sys.exit(found)
