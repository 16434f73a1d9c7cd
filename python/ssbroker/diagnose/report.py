"""The self-contained HTML report, with the routing graph as SVG."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime
from html import escape
from typing import Any, Final, NamedTuple

from ssbroker._arguments import utc_datetime
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose import catalog_tables
from ssbroker.diagnose.catalog_tables import LOCAL, TRANSPORT
from ssbroker.diagnose.checks import lint
from ssbroker.diagnose.compare import Comparison
from ssbroker.diagnose.findings import CODES, Finding, Findings
from ssbroker.diagnose.fleet import Fleet
from ssbroker.diagnose.reachability import reachability

STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --error: #c62828; --warning: #b26a00; --info: #1565c0; --fine: #2e7d32; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 1300px; padding: 0 1.5rem 4rem; }
header { border-bottom: 1px solid var(--line); margin-bottom: 1rem; }
nav a { margin-right: 1.2rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.2rem; }
table { border-collapse: collapse; } td, th { border: 1px solid var(--line); padding: .25rem .5rem; text-align: left; vertical-align: top; }
.scroll, #graph { overflow: auto; max-width: 100%; }
code { font-size: .86em; opacity: .8; }
details { border-left: 4px solid; margin: .8rem 0; padding-left: .8rem; }
details.error { border-color: var(--error); } details.warning { border-color: var(--warning); } details.info { border-color: var(--info); }
summary { cursor: pointer; }
#filter { padding: .3rem .5rem; width: 24rem; max-width: 100%; }
svg { max-width: 100%; height: auto; } svg text { text-anchor: middle; font-size: 13px; fill: currentColor; }
svg rect { fill: Canvas; stroke: var(--fine); stroke-width: 1.5; }
svg .error rect { stroke: var(--error); stroke-width: 2.5; } svg .warning rect { stroke: var(--warning); } svg .info rect { stroke: var(--info); }
svg .address rect { stroke: #888; stroke-dasharray: 4 3; }
svg .edge { fill: none; stroke: #888; stroke-width: 1.4; } svg .edge:hover { stroke: var(--info); stroke-width: 3; } svg marker path { fill: #888; }
.matrix td { text-align: center; padding: .15rem .4rem; } .matrix th[scope=col] { vertical-align: bottom; height: 9rem; padding: .2rem; }
.matrix th[scope=col] span { writing-mode: vertical-rl; transform: rotate(180deg); max-height: 22rem; overflow: hidden; }
.delivered { color: var(--fine); } .delayed { color: var(--warning); } .elsewhere { color: var(--info); }
.dropped, .loop { color: var(--error); font-weight: bold; }
td.dropped, td.loop { background: #c6282822; } td.delayed { background: #b26a0018; }
.legend span { margin-right: 1rem; }
"""

SCRIPT: Final = """
const filter = document.getElementById("filter");
if (filter) filter.addEventListener("input", () => {
  const wanted = filter.value.toLowerCase();
  for (const block of document.querySelectorAll("#findings details")) {
    const named = block.querySelector("summary").textContent.toLowerCase().includes(wanted);
    let shown = 0;
    for (const row of block.querySelectorAll("tr.finding")) {
      row.hidden = !(named || row.textContent.toLowerCase().includes(wanted));
      shown += !row.hidden;
    }
    block.hidden = shown === 0;
  }
});
"""


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
        for route in catalog_tables.read(catalog).routes:
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


_CELLS: Final = 20_000
"""So many cells of the matrix a page shows."""
_ROWS: Final = 500
_WORST: Final = ("LOOP", "DROPPED", "DELAYED", "ELSEWHERE", "DELIVERED")
_SIGNS: Final = {"DELIVERED": "✓", "DELAYED": "…", "DROPPED": "✗", "ELSEWHERE": "↗", "LOOP": "↻"}


def html_report(
    fleet: Fleet | Catalog,
    *,
    findings: Findings | None = None,
    comparison: Comparison | None = None,
    at: datetime | None = None,
    title: str = "Service Broker routing",
) -> str:
    """A page with the graph of instances and routes, the findings, what reaches what, and what changes.

    Args:
        fleet: The instances, or one.
        findings: What was found; looked for if left out.
        comparison: What changes, where two were compared.
        at: The moment at which routes expire, None for the current time. Without a zone it is UTC.
        title: What stands above it.

    Returns:
        The page.

    Raises:
        SchemaError: `fleet` is neither a fleet nor a catalog.
        OptionError: `at` is no datetime.

    Examples:
        >>> from ssbroker import Catalog, schemas
        >>> page = html_report(Catalog(schemas.ROUTES.empty_table()))
        >>> page.startswith("<!doctype html>"), "http" in page
        (True, False)
    """
    whole, now = Fleet.of(fleet), utc_datetime(at)
    found = lint(whole, at=now) if findings is None else findings
    sections = [
        ("graph", "Instances and routes", drawn(whole, found)),
        ("findings", "Findings", _findings(found)),
        ("matrix", "What reaches what", _matrix(whole, now)),
    ]
    if comparison is not None:
        sections.append(("changes", "What changes", _changes(comparison)))
    links = "".join(f'<a href="#{anchor}">{escape(heading)}</a>' for anchor, heading, _ in sections)
    body = "".join(
        f'<section id="{anchor}"><h2>{escape(heading)}</h2>{content}</section>' for anchor, heading, content in sections
    )
    counts = ", ".join(
        f"{number:,} {severity}{'' if number == 1 or severity == 'info' else 's'}"
        for severity, number in found.counts.items()
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<header><h1>{escape(title)}</h1><p>{len(whole):,} instance{'' if len(whole) == 1 else 's'}, "
        f"as of {now:%Y-%m-%d %H:%M:%S} UTC: {counts}</p><nav>{links}</nav></header><main>{body}</main>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _findings(found: Findings) -> str:
    if not found:
        return "<p>Nothing is found.</p>"
    by_code: defaultdict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in found:
        by_code[finding.code, finding.severity].append(finding)
    parts = [
        '<p><input id="filter" type="search" placeholder="Filter: a code, an instance, a name" aria-label="Filter"></p>'
    ]
    for (code, severity), group in by_code.items():
        rows = "".join(
            f'<tr class="finding"><td>{escape(each.where)}</td><td>{escape(each.message)}<br><code>{escape(each.remedy)}</code></td></tr>'
            for each in group[:_ROWS]
        )
        parts.append(
            f'<details open class="{severity}"><summary><b>{code}</b> {severity}: {escape(CODES[code].title)} ({len(group):,})</summary>'
            f"<p>{escape(CODES[code].why)}</p><table>{rows}</table>{_more(len(group))}</details>"
        )
    return "".join(parts)


def _matrix(fleet: Fleet, now: datetime) -> str:
    rows = reachability(fleet, at=now).to_pylist() if _size(fleet) <= _CELLS else None
    if rows is None:
        return "<p>The matrix is too large for a page; <code>ssbroker.diagnose.reachability</code> gives it as a table.</p>"
    if not rows:
        return "<p>No database begins a conversation for a service that is known.</p>"
    cells: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        cells[f"{row['instance']}/{row['database']}", row["service"]].append(row)
    services = sorted({service for _, service in cells})
    head = "".join(
        f'<th scope="col" title="{escape(service)}"><span>{escape(service)}</span></th>' for service in services
    )
    lines = [
        f'<tr><th scope="row">{escape(start)}</th>{"".join(_cell(start, service, cells[start, service]) for service in services)}</tr>'
        for start in sorted({start for start, _ in cells})
    ]
    legend = " ".join(f'<span class="{name.lower()}">{_SIGNS[name]} {name.lower()}</span>' for name in reversed(_WORST))
    return f'<p class="legend">{legend}</p><div class="scroll"><table class="matrix"><tr><th></th>{head}</tr>{"".join(lines)}</table></div>'


def _cell(start: str, service: str, rows: list[dict[str, Any]]) -> str:
    """The worst that may happen gives the colour, all that may happen the signs; both stand in words behind them."""
    worst = min((row["outcome"] for row in rows), key=_WORST.index)
    signs = "".join(_SIGNS[name] for name in _WORST if any(row["outcome"] == name for row in rows))
    told = "; ".join(
        " ".join(
            str(row[name])
            for name in ("outcome", "at_instance", "target_database", "next_hop_address", "reason")
            if row[name]
        )
        for row in rows
    )
    return f'<td class="{worst.lower()}" title="{escape(f"{start} to {service}: {told}")}">{signs}</td>'


def _size(fleet: Fleet) -> int:
    services: set[str] = set()
    starts = 0
    for catalog in fleet.values():
        services.update(map(str, catalog.services["name"].to_pylist()))
        services.update(map(str, filter(None, catalog.routes["remote_service_name"].to_pylist())))
        starts += catalog.databases.num_rows
    return starts * len(services)


def _changes(comparison: Comparison) -> str:
    if not comparison:
        return "<p>Nothing changes.</p>"
    counted = comparison.conversations is not None
    said = (
        f"{comparison.changed_conversations:,} of {comparison.conversations:,} conversations change." if counted else ""
    )
    names = ("cause", "object", "instance", "database", "service", "kind", "before", "after", "conversations")
    changes = _table(names, comparison.table.to_pylist()[:_ROWS])
    load = comparison.load.to_pylist()[:_ROWS]
    copies = _table(tuple(load[0]), load) if load else ""
    return f"<p>{said}</p>{changes}{_more(len(comparison.changes))}" + (
        f"<h3>Load of each copy</h3>{copies}" if copies else ""
    )


def _table(names: Iterable[str], rows: list[dict[str, Any]]) -> str:
    chosen = list(names)
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in chosen)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(_shown(row[name]))}</td>' for name in chosen)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{lines}</table></div>'


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def _more(count: int) -> str:
    return f"<p>and {count - _ROWS:,} more</p>" if count > _ROWS else ""
