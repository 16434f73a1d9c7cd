from __future__ import annotations

from tests.guards.rules import RULES
from tests.guards.threats import THREATS
from tests.guards.traceability import DECISIONS, PAGE, naming_tests, page, rules_named

# Every number that the requirements use. A rule that is neither built nor waiting for a capability is missing.
NUMBERS = {
    *(
        f"R{n}"
        for n in (*range(1, 9), *range(11, 21), *range(21, 27), *range(31, 35), *range(41, 44), *range(51, 55), 61, 62)
    ),
    *(f"P{n}" for n in (*range(1, 4), *range(11, 19), *range(21, 27), *range(31, 35))),
    *(f"I{n}" for n in range(1, 9)),
}


def test_every_rule_is_in_the_table_once() -> None:
    numbers = [rule.number for rule in RULES]
    assert sorted(numbers) == sorted(NUMBERS)


def test_every_rule_that_is_built_has_a_test_that_names_it() -> None:
    tests = naming_tests()
    assert [rule.number for rule in RULES if rule.comes_with is None and not tests.get(rule.number)] == []


def test_every_decision_has_a_test_that_names_it() -> None:
    tests = naming_tests()
    for letter, decisions in DECISIONS.items():
        assert [f"{letter}{n}" for n in range(1, len(decisions) + 1)] == decisions
        assert [number for number in decisions if not tests.get(number)] == []


def test_every_threat_has_a_test_that_names_it() -> None:
    tests = naming_tests()
    assert [threat.number for threat in THREATS] == [f"T{n}" for n in range(1, 26)]
    assert [threat.number for threat in THREATS if not tests.get(threat.number)] == []


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make format`"


def test_how_a_test_names_a_rule() -> None:
    assert rules_named("test_r11_stops_before_r12", "") == {"R11", "R12"}
    assert rules_named("test_order", "R31 to R34; R41/R42, but no R99 and no XR11.") == {
        "R31",
        "R32",
        "R33",
        "R34",
        "R41",
        "R42",
    }
    assert rules_named("test_for11_bar3", "in R and in 11") == set()
    assert rules_named("test_everything", "R1 to R42") == set()
