"""`docs/reference/rules.md` states every rule, and names code that exists."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.guards.repository import ROOT, committed_files, name_of
from tests.guards.rules import RULES

PAGE = (ROOT / "docs" / "reference" / "rules.md").read_text(encoding="utf-8")
ANCHORS = set(re.findall(r'<a id="(\w+)"></a>', PAGE))
CODE = re.compile(r"^\*Code:\* (.*)\.$", re.MULTILINE)


def places() -> Iterator[tuple[str, str]]:
    """Each file that the page names, relative to the repository, with a name that it must define."""
    for line in CODE.findall(PAGE):
        for place in line.split("; "):
            file, *names = re.findall(r"`([^`]+)`", place)
            path = file if file.startswith("rust/") else f"python/ssbroker/{file}"
            yield from ((path, name) for name in names)


def test_every_rule_is_on_the_page_in_the_words_of_the_table() -> None:
    lines = [f'<a id="{rule.number.lower()}"></a>**{rule.number}.** {rule.summary}.\n' for rule in RULES]
    assert [line for line in lines if line not in PAGE] == []


def test_every_rule_names_its_code() -> None:
    assert len(CODE.findall(PAGE)) == len(RULES)


@pytest.mark.parametrize(("path", "name"), sorted(set(places())))
def test_the_code_that_a_rule_names_exists(path: str, name: str) -> None:
    source = (ROOT / path).read_text(encoding="utf-8")
    defined = rf"\b(?:def|class|fn|struct|enum|const) {name}\b|^{name}\b.* ="
    assert re.search(defined, source, re.MULTILINE), f"{path} defines no {name}: correct docs/reference/rules.md"


def test_links_to_rules_lead_to_an_anchor() -> None:
    found = {
        (name_of(path), anchor)
        for path in committed_files()
        if path.suffix == ".md"
        for anchor in re.findall(r"rules\.md#([\w-]+)", path.read_text(encoding="utf-8"))
    }
    assert {each for each in found if each[1] not in ANCHORS} == set()
