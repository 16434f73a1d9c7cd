"""Worlds from Hypothesis, which shrinks failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.oracle.world import Conversation, World
from tests.worlds.fragments import Traffic, TrafficMaker
from tests.worlds.world_maker import Item, WorldMaker


@dataclass(frozen=True)
class DrawnChooser:
    """Choices that Hypothesis draws."""

    draw: st.DrawFn

    def one_of(self, items: Sequence[Item]) -> Item:
        return self.draw(st.sampled_from(items))

    def count(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def chance(self, percent: int) -> bool:
        # Reversed, so that rare cases shrink away.
        return self.draw(st.integers(0, 99)) >= 100 - percent


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, list[Conversation]]:
    """Returns worlds with a few conversations."""
    maker = WorldMaker(DrawnChooser(draw))
    world = maker.world()
    return world, [maker.conversation(number) for number in range(draw(st.integers(1, 8)))]


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    """Returns traffic of small worlds."""
    return TrafficMaker(DrawnChooser(draw), size=2).traffic()
