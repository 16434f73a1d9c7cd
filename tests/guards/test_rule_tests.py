from __future__ import annotations

import ast

from tests.guards.rule_tests import KNOWN, marker_numbers, rules_to_tests
from tests.guards.rules import RULES
from tests.guards.threats import THREATS

# Every number of docs/reference/rules.md.
NUMBERS = {
    *(
        f"R{n}"
        for n in (*range(1, 9), *range(11, 21), *range(21, 27), *range(31, 35), *range(41, 44), *range(51, 55), 61, 62)
    ),
    *(f"P{n}" for n in (*range(1, 4), *range(11, 19), *range(21, 27), *range(31, 35))),
    *(f"I{n}" for n in range(1, 9)),
}


def test_every_rule_is_in_the_table_once() -> None:
    assert sorted(rule.number for rule in RULES) == sorted(NUMBERS)


def test_every_rule_and_threat_has_a_test() -> None:
    tests = rules_to_tests()
    assert [each.number for each in (*RULES, *THREATS) if not tests[each.number]] == []


def test_markers_name_only_rules_and_threats_that_exist() -> None:
    assert {number: tests for number, tests in rules_to_tests().items() if number not in KNOWN} == {}


def test_how_a_test_names_its_rules() -> None:
    source = '@pytest.mark.rule("R11", "R12")\n@pytest.mark.threat("T4")\n@pytest.mark.slow\ndef test_x(): ...\n'
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    assert marker_numbers(node) == ["R11", "R12", "T4"]
