"""The instances and the routes between them as inline SVG."""

from __future__ import annotations

import math
from collections import Counter
from html import escape
from typing import Final, NamedTuple

from ssbroker.diagnose import tables
from ssbroker.diagnose.findings import Findings
from ssbroker.diagnose.fleets import Fleet
from ssbroker.diagnose.layout import Point, arranged
from ssbroker.diagnose.tables import LOCAL, TRANSPORT

SHOWN: Final = 150
"""More instances than these make no picture."""
_WIDTH: Final = 190
_HEIGHT: Final = 40
_BEND: Final = 18
_MARGIN: Final = 24
_LETTERS: Final = 26
_TIP: Final = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>'
)


class _Edges(NamedTuple):
    """How many routes lead from where to where."""

    inside: Counter[tuple[str, str]]
    outside: Counter[tuple[str, str]]
    """To addresses that no instance has."""


def drawn(fleet: Fleet, findings: Findings) -> str:
    """The picture; a sentence where there are too many instances for one.

    Args:
        fleet: The instances.
        findings: Of which each instance has the colour of its worst.

    Returns:
        SVG, or a paragraph.
    """
    edges = _edges(fleet)
    names = [*fleet, *dict.fromkeys(there for _, there in edges.outside)]
    if len(names) > SHOWN:
        return f"<p>{len(names):,} instances and addresses are too many for a picture; it is drawn for {SHOWN} at most.</p>"
    places = arranged(names, [*edges.inside, *edges.outside])
    worst = {finding.instance: finding.severity for finding in reversed(list(findings)) if finding.instance is not None}
    width, height = (
        max((place[side] for place in places.values()), default=0.0) + size + 2 * _MARGIN
        for side, size in ((0, _WIDTH), (1, _HEIGHT))
    )
    parts = [
        f'<svg role="img" aria-label="Instances and routes" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">',
        _TIP,
    ]
    for (here, there), count in sorted((edges.inside + edges.outside).items()):
        parts.append(_edge(_centre(places[here]), _centre(places[there]), count, f"{here} to {there}"))
    for name, place in places.items():
        style = f"instance {worst.get(name, 'fine')}" if name in fleet else "address"
        parts.append(_box(name, _centre(place), style))
    return "".join([*parts, "</svg>"])


def _edges(fleet: Fleet) -> _Edges:
    inside: Counter[tuple[str, str]] = Counter()
    outside: Counter[tuple[str, str]] = Counter()
    for instance, catalog in fleet.items():
        for route in tables.read(catalog).routes:
            if route.address in (LOCAL, TRANSPORT):
                continue
            there = fleet.at(route.address, seen_from=instance)
            if there is None:
                outside[instance, route.address] += 1
            elif there != instance:
                inside[instance, there] += 1
    return _Edges(inside, outside)


def _centre(place: Point) -> Point:
    return Point(place.x + _MARGIN + _WIDTH / 2, place.y + _MARGIN + _HEIGHT / 2)


def _edge(here: Point, there: Point, count: int, title: str) -> str:
    """A line from border to border, bent a little, so that there and back are two lines."""
    across, down = there.x - here.x, there.y - here.y
    length = max(1.0, math.hypot(across, down))
    middle = Point((here.x + there.x) / 2 - _BEND * down / length, (here.y + there.y) / 2 + _BEND * across / length)
    start, end = _border(here, middle), _border(there, middle)
    routes = f"{count:,} route{'' if count == 1 else 's'}"
    path = f"M{start.x:.1f} {start.y:.1f} Q{middle.x:.1f} {middle.y:.1f} {end.x:.1f} {end.y:.1f}"
    return f'<path class="edge" d="{path}" marker-end="url(#tip)"><title>{escape(title)}: {routes}</title></path>'


def _border(centre: Point, towards: Point) -> Point:
    """Where the line from the middle of a box to another point leaves the box."""
    across, down = towards.x - centre.x, towards.y - centre.y
    part = min((_WIDTH / 2) / abs(across) if across else math.inf, (_HEIGHT / 2) / abs(down) if down else math.inf, 1.0)
    return Point(centre.x + across * part, centre.y + down * part)


def _box(name: str, centre: Point, style: str) -> str:
    plain = name.removeprefix("TCP://")
    shown = plain if len(plain) <= _LETTERS else f"{plain[: _LETTERS - 1]}…"
    return (
        f'<g class="{style}"><title>{escape(name)}</title><rect x="{centre.x - _WIDTH / 2:.1f}" y="{centre.y - _HEIGHT / 2:.1f}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" rx="6"/><text x="{centre.x:.1f}" y="{centre.y + 4:.1f}">{escape(shown)}</text></g>'
    )
