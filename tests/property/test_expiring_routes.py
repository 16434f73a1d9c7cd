"""One router used at many times: before, at and after each expiry, and back again."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given

import ssbroker
from ssbroker.router import TieBreak
from tests.oracle.routing import Oracle
from tests.worlds.arrow import batch_of, catalog_of, decisions_of
from tests.worlds.expiring import EXPIRIES, TIMES, Case, cases, seeded_case

WORLDS = 400
CHUNKS = 4
CONVERSATIONS = 40


def check(case: Case) -> None:
    world, conversations, places = case
    catalog, batch = catalog_of(world), batch_of(conversations)
    for tie_break in get_args(TieBreak):
        router = ssbroker.Router(catalog, tie_break=tie_break)
        oracle = Oracle(world, now=TIMES[0], tie_break=tie_break)
        for place in places:
            oracle.now = TIMES[place]
            got = decisions_of(router.route(batch, now=oracle.now))
            for conversation, one in zip(conversations, got, strict=True):
                other = oracle.decide(conversation)
                assert one == other, f"{tie_break} at {places}\nrouter: {one}\noracle: {other}\n{conversation}\n{world}"


@pytest.mark.rule("R3")
@pytest.mark.parametrize("number", range(CHUNKS))
def test_every_decision_equals_the_oracle_at_any_time(number: int) -> None:
    """Nothing cached for one time is used at another, to the microsecond."""
    for seed in range(number * WORLDS // CHUNKS, (number + 1) * WORLDS // CHUNKS):
        check(seeded_case(seed, conversations=CONVERSATIONS))


@pytest.mark.rule("R3")
@given(case=cases())
def test_every_decision_equals_the_oracle_at_any_time_with_hypothesis(case: Case) -> None:
    """The same with Hypothesis."""
    check(case)


@pytest.mark.rule("R3")
def test_the_worlds_have_services_with_some_routes_expired() -> None:
    """With several broker ids left, with one and with none; time goes forward and back."""
    seen: Counter[int] = Counter()
    directions: Counter[bool] = Counter()
    for seed in range(100):
        world, _, places = seeded_case(seed, conversations=1)
        directions.update(after > before for before, after in pairwise(places) if after != before)
        for of in {(route.database, route.remote_service_name) for route in world.routes}:
            routes = [route for route in world.routes if (route.database, route.remote_service_name) == of]
            live = [route for route in routes if route.lifetime is None or route.lifetime > EXPIRIES[2]]
            if of[1] is not None and 0 < len(live) < len(routes):
                seen[min(len({route.broker_instance for route in live} - {None}), 2)] += 1
    assert min(seen[0], seen[1], seen[2]) >= 20
    assert min(directions.values()) >= 20
