"""Worlds in which most routes expire, one after the other or several together."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random

from hypothesis import strategies as st

from tests.oracle.world import Conversation, Route, World
from tests.worlds.seeded import SeededChooser
from tests.worlds.strategies import DrawnChooser
from tests.worlds.universe import NOW, TICK
from tests.worlds.world_maker import WorldMaker

EXPIRIES = tuple(NOW + number * TICK for number in range(5))
TIMES = (NOW - TICK, *EXPIRIES, NOW + timedelta(days=1))
"""Before, at and after each expiry."""


class ExpiringWorldMaker(WorldMaker):
    """Creates worlds with larger tables of expiring routes, and times at which to route."""

    routes_max = 18

    def time_indexes(self) -> list[int]:
        """Returns indexes into `TIMES`; time may also go back."""
        return [self.chooser.count(0, len(TIMES) - 1) for _ in range(self.chooser.count(2, 6))]

    def _route(self, database: str, number: int, route_id: int | None) -> Route:
        route = super()._route(database, number, route_id)
        return replace(route, lifetime=self.chooser.one_of(EXPIRIES) if self.chooser.chance(80) else None)


Case = tuple[World, list[Conversation], list[int]]


def seeded_case(seed: int, *, conversations: int) -> Case:
    """Returns the world, the conversations and the times of a seed."""
    return _case(ExpiringWorldMaker(SeededChooser(Random(seed))), conversations)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Returns the same from Hypothesis."""
    return _case(ExpiringWorldMaker(DrawnChooser(draw)), draw(st.integers(1, 8)))


def _case(maker: ExpiringWorldMaker, conversations: int) -> Case:
    return maker.world(), [maker.conversation(number) for number in range(conversations)], maker.time_indexes()
