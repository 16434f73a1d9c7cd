"""Where the instances of a fleet stand in a picture, the same every time: in columns along the way, or, where ways go in circles, in a ring."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

_SWEEPS: Final = 4
_ACROSS: Final = 300
_DOWN: Final = 62
_RING: Final = 36
_RING_LEAST: Final = 150


class Point(NamedTuple):
    """A place in a picture, from its left upper corner."""

    x: float
    y: float


def arranged(nodes: Iterable[str], edges: Iterable[tuple[str, str]]) -> dict[str, Point]:
    """A place for each node.

    Args:
        nodes: The nodes.
        edges: From which to which.

    Returns:
        The places; the least x and y are 0.

    Examples:
        >>> arranged(["A", "B", "C"], [("A", "B"), ("A", "C")])
        {'A': Point(x=0.0, y=31.0), 'B': Point(x=300.0, y=0.0), 'C': Point(x=300.0, y=62.0)}
    """
    names = sorted(set(nodes))
    after: dict[str, list[str]] = {name: [] for name in names}
    before: dict[str, list[str]] = {name: [] for name in names}
    for one, other in sorted(set(edges)):
        if one != other:
            after[one].append(other)
            before[other].append(one)
    columns = _columns(names, after, before)
    places = _ring(names) if columns is None else _in_columns(columns, after, before)
    left, top = (min((place[side] for place in places.values()), default=0.0) for side in (0, 1))
    return {name: Point(x - left, y - top) for name, (x, y) in places.items()}


def _columns(
    names: list[str], after: Mapping[str, list[str]], before: Mapping[str, list[str]]
) -> dict[str, int] | None:
    """The longest way to each node; None where there are circles."""
    left = {name: len(before[name]) for name in names}
    column = {name: 0 for name in names if left[name] == 0}
    ready = list(column)
    for name in ready:  # grows while it is walked
        for each in after[name]:
            column[each] = max(column.get(each, 0), column[name] + 1)
            left[each] -= 1
            if left[each] == 0:
                ready.append(each)
    return column if len(ready) == len(names) else None


def _in_columns(
    column: Mapping[str, int], after: Mapping[str, list[str]], before: Mapping[str, list[str]]
) -> dict[str, Point]:
    """Columns from left to right, each ordered so that few lines cross."""
    columns: defaultdict[int, list[str]] = defaultdict(list)
    for name, number in sorted(column.items()):
        columns[number].append(name)
    order = {name: float(number) for members in columns.values() for number, name in enumerate(members)}
    for sweep in range(_SWEEPS):
        near = before if sweep % 2 == 0 else after
        for number in sorted(columns, reverse=sweep % 2 == 1):
            columns[number].sort(key=lambda name: (_middle(name, near, order), name))
            order.update({name: float(place) for place, name in enumerate(columns[number])})
    return {
        name: Point(float(number * _ACROSS), (place - (len(members) - 1) / 2) * _DOWN)
        for number, members in sorted(columns.items())
        for place, name in enumerate(members)
    }


def _ring(names: list[str]) -> dict[str, Point]:
    radius = max(_RING_LEAST, _RING * len(names))
    turn = 2 * math.pi / len(names)
    return {
        name: Point(round(1.3 * radius * math.sin(turn * number), 1), round(-radius * math.cos(turn * number), 1))
        for number, name in enumerate(names)
    }


def _middle(name: str, near: Mapping[str, list[str]], order: Mapping[str, float]) -> float:
    neighbours = near[name]
    return sum(order[each] for each in neighbours) / len(neighbours) if neighbours else order[name]
