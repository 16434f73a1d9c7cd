"""Each code is found in its case, not found in the similar one, and documented."""

from __future__ import annotations

import re

import pytest

from ssbroker.diagnose import CODES, lint
from tests.diagnose.finding_cases import CASES, Case
from tests.guards.repository import ROOT
from tests.worlds.universe import NOW


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_code_is_found_in_its_case(case: Case) -> None:
    found = [finding for finding in lint(case.positive, at=NOW) if finding.code == case.code]
    assert sorted(finding.where for finding in found) == sorted(case.objects)
    for finding in found:
        assert finding.message
        assert finding.why == CODES[case.code].why
        assert finding.remedy


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_code_is_not_found_in_the_similar_case(case: Case) -> None:
    assert [str(finding) for finding in lint(case.negative, at=NOW) if finding.code == case.code] == []


def test_every_code_has_a_case_and_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "findings.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\| `SSB\d{3}` \|.*", page, re.MULTILINE)
    assert documented == [
        f"| `{code.code}` | `{code.name}` | {code.severity} | {code.title}. {code.why} |" for code in CODES.values()
    ]
    routing = [code for code in CODES if code < "SSB100"]
    scripts = [code for code in CODES if code > "SSB100"]
    assert [case.code for case in CASES] == routing
    assert list(CODES) == routing + scripts
    assert routing == [f"SSB{number:03}" for number in range(1, len(routing) + 1)]
    assert scripts == [f"SSB{number}" for number in range(101, 101 + len(scripts))]
