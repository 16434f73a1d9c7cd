"""Worlds from a seed: fast, and the same on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tests.oracle.world import Conversation, World
from tests.worlds.fragments import Traffic, TrafficMaker
from tests.worlds.world_maker import Item, WorldMaker


@dataclass(frozen=True)
class SeededChooser:
    """Choices from a seeded generator."""

    random: Random

    def one_of(self, items: Sequence[Item]) -> Item:
        return items[int(self.random.random() * len(items))]

    def count(self, low: int, high: int) -> int:
        if high - low > 2**32:
            return self.random.randint(low, high)
        return low + int(self.random.random() * (high - low + 1))

    def chance(self, percent: int) -> bool:
        return self.random.random() * 100 < percent


def seeded_world(seed: int, *, conversations: int) -> tuple[World, list[Conversation]]:
    """Returns the world of a seed, with conversations to route."""
    maker = WorldMaker(SeededChooser(Random(seed)))
    world = maker.world()
    return world, [maker.conversation(number) for number in range(conversations)]


def seeded_traffic(seed: int, *, size: int = 3, theme: str | None = None) -> Traffic:
    """Returns the traffic of a seed."""
    return TrafficMaker(SeededChooser(Random(seed)), size=size, theme=theme).traffic()
