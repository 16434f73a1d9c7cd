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
from ssbroker.diagnose.compare import Comparison
from ssbroker.diagnose.findings import CODES, Finding, Findings
from ssbroker.diagnose.fleet import LOCAL, TRANSPORT, Fleet, read
from ssbroker.diagnose.lint import lint
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
.delivered { color: var(--fine); } .delayed { color: var(--warning); } .refused { color: #888; } .elsewhere { color: var(--info); }
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
_COLUMN_WIDTH: Final = 300
_ROW_HEIGHT: Final = 62
_RING_SPACING: Final = 36
_RING_RADIUS_MIN: Final = 150


class Point(NamedTuple):
    """A position in the graph; the origin is the upper left corner."""

    x: float
    y: float


def layout(nodes: Iterable[str], edges: Iterable[tuple[str, str]]) -> dict[str, Point]:
    """Returns a position for each node; the least x and y are 0.

    Examples:
        >>> layout(["A", "B", "C"], [("A", "B"), ("A", "C")])
        {'A': Point(x=0.0, y=31.0), 'B': Point(x=300.0, y=0.0), 'C': Point(x=300.0, y=62.0)}
    """
    names = sorted(set(nodes))
    successors: dict[str, list[str]] = {name: [] for name in names}
    predecessors: dict[str, list[str]] = {name: [] for name in names}
    for source, destination in sorted(set(edges)):
        if source != destination:
            successors[source].append(destination)
            predecessors[destination].append(source)
    columns = _columns(names, successors, predecessors)
    places = _ring_layout(names) if columns is None else _column_layout(columns, successors, predecessors)
    left, top = (min((place[side] for place in places.values()), default=0.0) for side in (0, 1))
    return {name: Point(x - left, y - top) for name, (x, y) in places.items()}


def _columns(
    names: list[str], successors: Mapping[str, list[str]], predecessors: Mapping[str, list[str]]
) -> dict[str, int] | None:
    """Returns the length of the longest path to each node; None if there are cycles."""
    unvisited = {name: len(predecessors[name]) for name in names}
    column = {name: 0 for name in names if unvisited[name] == 0}
    ready = list(column)
    for name in ready:  # grows during iteration
        for each in successors[name]:
            column[each] = max(column.get(each, 0), column[name] + 1)
            unvisited[each] -= 1
            if unvisited[each] == 0:
                ready.append(each)
    return column if len(ready) == len(names) else None


def _column_layout(
    column: Mapping[str, int], successors: Mapping[str, list[str]], predecessors: Mapping[str, list[str]]
) -> dict[str, Point]:
    """Arranges columns from left to right, each ordered to reduce crossing edges."""
    columns: defaultdict[int, list[str]] = defaultdict(list)
    for name, number in sorted(column.items()):
        columns[number].append(name)
    order = {name: float(number) for members in columns.values() for number, name in enumerate(members)}
    for sweep in range(_SWEEPS):
        adjacent = predecessors if sweep % 2 == 0 else successors
        for number in sorted(columns, reverse=sweep % 2 == 1):
            columns[number].sort(key=lambda name: (_mean_position(name, adjacent, order), name))
            order.update({name: float(place) for place, name in enumerate(columns[number])})
    return {
        name: Point(float(number * _COLUMN_WIDTH), (place - (len(members) - 1) / 2) * _ROW_HEIGHT)
        for number, members in sorted(columns.items())
        for place, name in enumerate(members)
    }


def _ring_layout(names: list[str]) -> dict[str, Point]:
    radius = max(_RING_RADIUS_MIN, _RING_SPACING * len(names))
    turn = 2 * math.pi / len(names)
    return {
        name: Point(round(1.3 * radius * math.sin(turn * number), 1), round(-radius * math.cos(turn * number), 1))
        for number, name in enumerate(names)
    }


def _mean_position(name: str, adjacent: Mapping[str, list[str]], order: Mapping[str, float]) -> float:
    adjacent_nodes = adjacent[name]
    return sum(order[each] for each in adjacent_nodes) / len(adjacent_nodes) if adjacent_nodes else order[name]


GRAPH_NODES_MAX: Final = 150
"""Larger graphs are not drawn."""
_BOX_WIDTH: Final = 190
_BOX_HEIGHT: Final = 40
_BEND: Final = 18
_MARGIN: Final = 24
_LABEL_CHARACTERS_MAX: Final = 26
_ARROWHEAD: Final = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 z"/></marker></defs>'
)


class _Edges(NamedTuple):
    """The number of routes from each node to each other."""

    inside: Counter[tuple[str, str]]
    outside: Counter[tuple[str, str]]
    """To addresses that no instance has."""


def graph_svg(fleet: Fleet, findings: Findings) -> str:
    """Returns the graph as SVG, with each instance in the colour of its most severe finding; a paragraph if it is too large."""
    edges = _count_edges(fleet)
    names = [*fleet, *dict.fromkeys(destination for _, destination in edges.outside)]
    if len(names) > GRAPH_NODES_MAX:
        return f"<p>The graph is omitted: it has {len(names):,} instances and addresses, and at most {GRAPH_NODES_MAX} can be drawn.</p>"
    places = layout(names, [*edges.inside, *edges.outside])
    worst = {finding.instance: finding.severity for finding in reversed(list(findings)) if finding.instance is not None}
    width, height = (
        max((place[side] for place in places.values()), default=0.0) + size + 2 * _MARGIN
        for side, size in ((0, _BOX_WIDTH), (1, _BOX_HEIGHT))
    )
    parts = [
        f'<svg role="img" aria-label="Instances and routes" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}">',
        _ARROWHEAD,
    ]
    for (source, destination), count in sorted((edges.inside + edges.outside).items()):
        parts.append(_edge(_centre(places[source]), _centre(places[destination]), count, f"{source} to {destination}"))
    for name, place in places.items():
        style = f"instance {worst.get(name, 'fine')}" if name in fleet else "address"
        parts.append(_box(name, _centre(place), style))
    return "".join([*parts, "</svg>"])


def _count_edges(fleet: Fleet) -> _Edges:
    inside: Counter[tuple[str, str]] = Counter()
    outside: Counter[tuple[str, str]] = Counter()
    for instance, catalog in fleet.items():
        for route in read(catalog).routes:
            if route.address in (LOCAL, TRANSPORT):
                continue
            destination = fleet.at(route.address, seen_from=instance)
            if destination is None:
                outside[instance, route.address] += 1
            elif destination != instance:
                inside[instance, destination] += 1
    return _Edges(inside, outside)


def _centre(place: Point) -> Point:
    return Point(place.x + _MARGIN + _BOX_WIDTH / 2, place.y + _MARGIN + _BOX_HEIGHT / 2)


def _edge(source: Point, destination: Point, count: int, title: str) -> str:
    """Returns a curved line from border to border, so that both directions of a pair are visible."""
    dx, dy = destination.x - source.x, destination.y - source.y
    length = max(1.0, math.hypot(dx, dy))
    middle = Point(
        (source.x + destination.x) / 2 - _BEND * dy / length, (source.y + destination.y) / 2 + _BEND * dx / length
    )
    start, end = _border(source, middle), _border(destination, middle)
    routes = f"{count:,} route{'' if count == 1 else 's'}"
    path = f"M{start.x:.1f} {start.y:.1f} Q{middle.x:.1f} {middle.y:.1f} {end.x:.1f} {end.y:.1f}"
    return f'<path class="edge" d="{path}" marker-end="url(#tip)"><title>{escape(title)}: {routes}</title></path>'


def _border(centre: Point, towards: Point) -> Point:
    """Returns where the line from the centre of a box to another point crosses its border."""
    dx, dy = towards.x - centre.x, towards.y - centre.y
    fraction = min((_BOX_WIDTH / 2) / abs(dx) if dx else math.inf, (_BOX_HEIGHT / 2) / abs(dy) if dy else math.inf, 1.0)
    return Point(centre.x + dx * fraction, centre.y + dy * fraction)


def _box(name: str, centre: Point, style: str) -> str:
    address = name.removeprefix("TCP://")
    label = address if len(address) <= _LABEL_CHARACTERS_MAX else f"{address[: _LABEL_CHARACTERS_MAX - 1]}…"
    return (
        f'<g class="{style}"><title>{escape(name)}</title><rect x="{centre.x - _BOX_WIDTH / 2:.1f}" y="{centre.y - _BOX_HEIGHT / 2:.1f}" '
        f'width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6"/><text x="{centre.x:.1f}" y="{centre.y + 4:.1f}">{escape(label)}</text></g>'
    )


_CELLS_MAX: Final = 20_000
"""The maximum number of cells of the matrix."""
_ROWS_MAX: Final = 500
_OUTCOMES: Final = ("LOOP", "DROPPED", "DELAYED", "REFUSED", "ELSEWHERE", "DELIVERED")
_SYMBOLS: Final = {"DELIVERED": "✓", "REFUSED": "⊘", "DELAYED": "…", "DROPPED": "✗", "ELSEWHERE": "↗", "LOOP": "↻"}


def html_report(
    fleet: Fleet | Catalog,
    *,
    findings: Findings | None = None,
    comparison: Comparison | None = None,
    at: datetime | None = None,
    title: str = "Service Broker routing",
) -> str:
    """Returns an HTML page with the routing graph, the findings, the reachability matrix, and optionally a comparison.

    The page is self-contained: it loads nothing from the network.

    Args:
        fleet: A fleet, or the catalog of a single instance.
        findings: The findings to show; None to run `lint`.
        comparison: The comparison to show, if any.
        at: The time at which route lifetimes are evaluated; None for the current time. A datetime without a time zone is UTC.
        title: The title of the page.

    Returns:
        The page.

    Raises:
        SchemaError: `fleet` is neither a fleet nor a catalog.
        OptionError: `at` is not a datetime.

    Examples:
        >>> from ssbroker import Catalog, schemas
        >>> page = html_report(Catalog(schemas.ROUTES.empty_table()))
        >>> page.startswith("<!doctype html>"), "http" in page
        (True, False)
    """
    whole_fleet, now = Fleet.of(fleet), utc_datetime(at)
    lint_findings = lint(whole_fleet, at=now) if findings is None else findings
    sections = [
        ("graph", "Instances and routes", graph_svg(whole_fleet, lint_findings)),
        ("findings", "Findings", _findings(lint_findings)),
        ("matrix", "Reachability", _matrix(whole_fleet, now)),
    ]
    if comparison is not None:
        sections.append(("changes", "Changes", _changes(comparison)))
    links = "".join(f'<a href="#{anchor}">{escape(heading)}</a>' for anchor, heading, _ in sections)
    body = "".join(
        f'<section id="{anchor}"><h2>{escape(heading)}</h2>{content}</section>' for anchor, heading, content in sections
    )
    counts = ", ".join(
        f"{number:,} {severity}{'' if number == 1 or severity == 'info' else 's'}"
        for severity, number in lint_findings.counts.items()
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<header><h1>{escape(title)}</h1><p>{len(whole_fleet):,} instance{'' if len(whole_fleet) == 1 else 's'}, "
        f"as of {now:%Y-%m-%d %H:%M:%S} UTC: {counts}</p><nav>{links}</nav></header><main>{body}</main>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _findings(lint_findings: Findings) -> str:
    if not lint_findings:
        return "<p>No findings.</p>"
    by_code: defaultdict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in lint_findings:
        by_code[finding.code, finding.severity].append(finding)
    parts = [
        '<p><input id="filter" type="search" placeholder="Filter: a code, an instance, a name" aria-label="Filter"></p>'
    ]
    for (code, severity), group in by_code.items():
        rows = "".join(
            f'<tr class="finding"><td>{escape(each.where)}</td><td>{escape(each.message)}<br><code>{escape(each.remedy)}</code></td></tr>'
            for each in group[:_ROWS_MAX]
        )
        parts.append(
            f'<details open class="{severity}"><summary><b>{code}</b> {severity}: {escape(CODES[code].title)} ({len(group):,})</summary>'
            f"<p>{escape(CODES[code].why)}</p><table>{rows}</table>{_omitted_count(len(group))}</details>"
        )
    return "".join(parts)


def _matrix(fleet: Fleet, now: datetime) -> str:
    rows = reachability(fleet, at=now).to_pylist() if _matrix_size(fleet) <= _CELLS_MAX else None
    if rows is None:
        return "<p>The matrix is too large for this page; <code>ssbroker.diagnose.reachability</code> returns it as a table.</p>"
    if not rows:
        return "<p>There is no database or no known service.</p>"
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
    legend = " ".join(
        f'<span class="{name.lower()}">{_SYMBOLS[name]} {name.lower()}</span>' for name in reversed(_OUTCOMES)
    )
    return f'<p class="legend">{legend}</p><div class="scroll"><table class="matrix"><tr><th></th>{head}</tr>{"".join(lines)}</table></div>'


def _cell(start: str, service: str, rows: list[dict[str, Any]]) -> str:
    """Returns a cell: coloured by the worst outcome, with a symbol for each possible outcome, and all details as tooltip."""
    worst = min((row["outcome"] for row in rows), key=_OUTCOMES.index)
    symbols = "".join(_SYMBOLS[name] for name in _OUTCOMES if any(row["outcome"] == name for row in rows))
    details = "; ".join(
        " ".join(
            str(row[name])
            for name in ("outcome", "at_instance", "target_database", "next_hop_address", "reason")
            if row[name]
        )
        for row in rows
    )
    return f'<td class="{worst.lower()}" title="{escape(f"{start} to {service}: {details}")}">{symbols}</td>'


def _matrix_size(fleet: Fleet) -> int:
    services: set[str] = set()
    starts = 0
    for catalog in fleet.values():
        services.update(map(str, catalog.services["name"].to_pylist()))
        services.update(map(str, filter(None, catalog.routes["remote_service_name"].to_pylist())))
        starts += catalog.databases.num_rows
    return starts * len(services)


def _changes(comparison: Comparison) -> str:
    if not comparison:
        return "<p>No changes.</p>"
    has_traffic = comparison.conversations is not None
    summary = (
        f"{comparison.changed_conversations:,} of {comparison.conversations:,} conversations change."
        if has_traffic
        else ""
    )
    names = ("cause", "object", "instance", "database", "service", "kind", "before", "after", "conversations")
    changes = _table(names, comparison.table.to_pylist()[:_ROWS_MAX])
    load = comparison.load.to_pylist()[:_ROWS_MAX]
    copies = _table(tuple(load[0]), load) if load else ""
    return f"<p>{summary}</p>{changes}{_omitted_count(len(comparison.changes))}" + (
        f"<h3>Load of each copy</h3>{copies}" if copies else ""
    )


def _table(names: Iterable[str], rows: list[dict[str, Any]]) -> str:
    columns = list(names)
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in columns)
    lines = "".join(
        f"<tr>{''.join(f'<td>{escape(_cell_text(row[name]))}</td>' for name in columns)}</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{lines}</table></div>'


def _cell_text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def _omitted_count(count: int) -> str:
    return f"<p>and {count - _ROWS_MAX:,} more</p>" if count > _ROWS_MAX else ""
