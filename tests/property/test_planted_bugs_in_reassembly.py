"""Tests the tests: the random traffic that the reassembler is tested with detects every bug planted in the reassembly oracle."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from tests.oracle.reassembly import Oracle
from tests.property.planted_in_reassembly import BUGS
from tests.property.test_reassembly_against_oracle import WORLDS
from tests.worlds.fragments import Traffic
from tests.worlds.seeded import seeded_traffic

WORLDS_NEEDED = 3


def charge_of(extra: Mapping[str, Any]) -> int:
    """Any charge is valid, because both sides use the oracle."""
    return 5 + len(extra["note"] or "")


@cache
def traffic_of(seed: int) -> Traffic:
    return seeded_traffic(seed).charged(charge_of)


def results(oracle: type[Oracle], seed: int) -> list[Any]:
    """Returns all results, step by step."""
    traffic = traffic_of(seed)
    oracle_in_world = oracle(traffic.limits, in_order=traffic.in_order)
    seen: list[Any] = []
    for _, step, fragments in traffic.pushes():
        seen += [
            oracle_in_world.push(fragments),
            oracle_in_world.pending(),
            oracle_in_world.pending_bytes,
            oracle_in_world.pending_messages,
        ]
        if step.forget is not None:
            conversation, is_initiator, sequence = step.forget
            seen.append(oracle_in_world.forget(conversation.bytes, is_initiator=is_initiator, sequence=sequence))
    return seen


@cache
def correct_results(seed: int) -> list[Any]:
    return results(Oracle, seed)


@pytest.mark.rule("P11", "P12", "P13", "P14", "P15", "P16", "P18", "P21", "P22", "P23", "P26")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bug_is_detected(bug: type[Oracle]) -> None:
    """In several worlds."""
    detected = 0
    for seed in range(WORLDS):
        detected += results(bug, seed) != correct_results(seed)
        if detected == WORLDS_NEEDED:
            return
    pytest.fail(f"only {detected} of {WORLDS} worlds detect this bug: {bug.__doc__}")


def test_the_unchanged_rules_are_not_a_bug() -> None:
    class Unchanged(Oracle):
        pass

    assert not any(results(Unchanged, seed) != correct_results(seed) for seed in range(200))


def test_every_bug_names_the_rule_that_it_violates() -> None:
    assert len(BUGS) >= 80
    assert all(bug.__doc__ and bug.__doc__[0] == "P" and bug.__doc__[1].isdigit() for bug in BUGS)
