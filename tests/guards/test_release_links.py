"""A release has links that work on PyPI, which shows README.md without the other files."""

from __future__ import annotations

import re
import tomllib

import pytest

from scripts.release_links import absolute_links, with_urls
from tests.guards.repository import ROOT

URL = "https://host.example/owner/name"
LINK = re.compile(r"\]\(([^)]+)\)")


def test_every_link_of_the_readme_becomes_absolute_and_leads_to_a_file() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links = LINK.findall(absolute_links(readme, url=URL, tag="v1.2.0"))
    assert len(links) == len(LINK.findall(readme)) > 5
    for link in links:
        file = re.fullmatch(rf"{URL}/(?:blob|raw)/v1\.2\.0/([^#]+)(#.*)?", link)
        assert file, link
        assert (ROOT / file[1]).is_file(), link


def test_the_project_gets_urls() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(with_urls(pyproject, url=URL, tag="v1.2.0"))["project"]
    assert project["urls"]["Source"] == URL
    assert project["urls"]["Changelog"] == f"{URL}/blob/v1.2.0/CHANGELOG.md"
    assert {**project, "urls": {}} == {**tomllib.loads(pyproject)["project"], "urls": {}}
    with pytest.raises(SystemExit):
        with_urls(with_urls(pyproject, url=URL, tag="v1.2.0"), url=URL, tag="v1.2.0")


def test_the_release_workflow_makes_the_links_before_every_build() -> None:
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    jobs = dict(re.findall(r"^  (wheels|sdist):\n(.*?)(?=^  \w+:\n)", workflow, re.MULTILINE | re.DOTALL))
    for steps in jobs.values():
        assert steps.index("scripts/release_links.py") < steps.index(
            "maturin build" if "matrix" in steps else "maturin sdist"
        )
    assert len(jobs) == 2
