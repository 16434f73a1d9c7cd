"""Each code is found where it is so, is not where it is nearly so, and is documented."""

from __future__ import annotations

import re

import pytest

from ssbroker.diagnose import CODES, lint
from tests.diagnose.cases import CASES, Case
from tests.guards.repository import ROOT
from tests.worlds.universe import NOW


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_a_code_is_found_where_it_is_so(case: Case) -> None:
    found = [finding for finding in lint(case.shows, at=NOW) if finding.code == case.code]
    assert sorted(finding.where for finding in found) == sorted(case.objects)
    for finding in found:
        assert finding.message
        assert finding.why == CODES[case.code].why
        assert finding.remedy


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_a_code_is_not_found_where_it_is_nearly_so(case: Case) -> None:
    assert [str(finding) for finding in lint(case.not_shown, at=NOW) if finding.code == case.code] == []


def test_every_code_has_its_case_and_its_entry_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "findings.md").read_text(encoding="utf-8")
    documented = dict(re.findall(r"^\| `(SSB\d{3})` \| `([a-z-]+)` \|", page, re.MULTILINE))
    assert documented == {code.code: code.name for code in CODES.values()}
    assert [case.code for case in CASES] == list(CODES)
    assert list(CODES) == [f"SSB{number:03}" for number in range(1, len(CODES) + 1)]
