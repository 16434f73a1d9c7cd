"""Tests the tests: the random worlds that the router is tested with detect every bug planted in the routing oracle."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from tests.oracle.routing import Conversation, Decision, Oracle, World
from tests.property.planted import BUGS
from tests.property.test_router_against_oracle import CONVERSATIONS, WORLDS
from tests.worlds.seeded import seeded_world
from tests.worlds.universe import NOW

WORLDS_NEEDED = 3
OPTIONS = (("hash", "continue"), ("first", "delay"), ("round_robin", "continue"))


@cache
def world_of(seed: int) -> tuple[World, list[Conversation]]:
    return seeded_world(seed, conversations=CONVERSATIONS)


def decided_by(oracle: type[Oracle], seed: int, tie_break: str, pending_request: str) -> list[Decision]:
    world, conversations = world_of(seed)
    oracle_in_world = oracle(world, now=NOW, tie_break=tie_break, pending_request=pending_request)
    return [oracle_in_world.decide(conversation) for conversation in conversations]


@cache
def correct_results(seed: int, tie_break: str, pending_request: str) -> list[Decision]:
    return decided_by(Oracle, seed, tie_break, pending_request)


def detects(bug: type[Oracle], seed: int) -> bool:
    return any(decided_by(bug, seed, *options) != correct_results(seed, *options) for options in OPTIONS)


@pytest.mark.rule("R51")
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_planted_bug_is_detected(bug: type[Oracle]) -> None:
    """In several worlds."""
    detected = 0
    for seed in range(WORLDS):
        detected += detects(bug, seed)
        if detected == WORLDS_NEEDED:
            return
    pytest.fail(f"only {detected} of {WORLDS} worlds detect this bug: {bug.__doc__}")


def test_the_unchanged_rules_are_not_a_bug() -> None:
    class Unchanged(Oracle):
        pass

    assert not any(detects(Unchanged, seed) for seed in range(100))


def test_every_bug_names_the_rule_that_it_violates() -> None:
    assert len(BUGS) > 80
    assert all(bug.__doc__ and bug.__doc__[0] == "R" and bug.__doc__[1].isdigit() for bug in BUGS)


def test_the_worlds_have_every_decision() -> None:
    """Each outcome with each reason, and LOCAL, REMOTE and FORWARD from every step that can yield them."""
    ends = Counter(
        (decision.outcome, decision.reason, decision.match_step)
        for seed in range(300)
        for options in OPTIONS
        for decision in correct_results(seed, *options)
    )
    expected = {
        ("LOCAL", "reply", 0),
        ("DROPPED", "service_not_found", 0),
        ("DELAYED", "sender_disabled", None),
        ("DELAYED", "route_requested", 4),
        ("DELAYED", "no_route", 7),
        ("LOCAL", "matched", 6),
        ("DELAYED", "service_not_found", 6),
        ("DROPPED", "service_not_found", 6),
    }
    for step in (1, 2, 3, 5):
        expected |= {(outcome, "matched", step) for outcome in ("LOCAL", "REMOTE", "FORWARD")}
        expected |= {("DROPPED", reason, step) for reason in ("forwarding_disabled", "routing_loop")}
        expected |= {
            (outcome, reason, step)
            for outcome in ("DELAYED", "DROPPED")
            for reason in ("service_not_found", "address_unusable")
        }
    assert set(ends) == expected
