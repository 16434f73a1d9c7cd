"""The self-contained HTML report: findings, changes, a trace, traffic, the routing graph and the reachability of services."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import defaultdict
from datetime import datetime
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import pyarrow as pa

from ssbroker._arguments import utc_datetime
from ssbroker._arrow import ArrowArrayExportable, ArrowStreamExportable
from ssbroker._notebook import escaped
from ssbroker._text import count_of, restore_spaces, terminal_safe
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose.assumed_broker_ids import assumed_ids_of
from ssbroker.diagnose.catalog_rows import MSDB
from ssbroker.diagnose.compare import Comparison, not_compared_text, traffic_text
from ssbroker.diagnose.findings import CODES, Finding, Findings, by_remedy, severity_count
from ssbroker.diagnose.fleet import Fleet
from ssbroker.diagnose.html_graph import graph_data
from ssbroker.diagnose.html_traffic import changed_services, compared_flows, sankey, traffic_flows
from ssbroker.diagnose.lint import lint
from ssbroker.diagnose.reachability import Start, all_services, matrix
from ssbroker.diagnose.remedy_proofs import scripts_by_instance
from ssbroker.diagnose.return_paths import ReturnPaths, return_path_text
from ssbroker.diagnose.routing_graph import RoutingEnd, RoutingGraph
from ssbroker.diagnose.trace import (
    Trace,
    assumption_text,
    decision_text,
    end_text,
    return_failure,
    return_subject,
    sending_verb,
)

_LIBRARIES: Final = ("cytoscape.min.js", "dagre.min.js")
_LICENSES: Final = "LICENSES.txt"
_SHOWN_MAX: Final = 500
"""The maximum number of findings with one code, and of rows in a table."""
_OPEN_MAX: Final = 10
"""The number of findings with one code that are not folded."""
_CELLS_MAX: Final = 20_000
"""The maximum number of matrix cells to show."""
_COMPUTED_MAX: Final = 400_000
"""The maximum number of matrix cells (starting databases times services) to compute."""
_UNMERGED_MAX: Final = 60
"""Up to this number of services, each service has a separate column."""
_HEADING_MAX: Final = 40
"""The maximum number of characters in a column heading."""
_UNACKNOWLEDGED: Final = "UNACKNOWLEDGED"
"""The outcome of a conversation that is delivered, but to which acknowledgements or replies do not return."""
_OUTCOMES: Final = ("LOOP", "DROPPED", "DELAYED", _UNACKNOWLEDGED, "REFUSED", "ELSEWHERE", "DELIVERED")
"""The outcomes, the worst first."""
_SYMBOLS: Final = {
    "DELIVERED": "✓",
    _UNACKNOWLEDGED: "⇥",
    "REFUSED": "⊘",
    "DELAYED": "…",
    "DROPPED": "✗",
    "ELSEWHERE": "↗",
    "LOOP": "↻",
}
_NULLS: Final = {"database": "from other instances", "service": "any other service"}
"""The meaning of a missing value in a column."""
_POLICY: Final = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; style-src {styles}; script-src {scripts}"
)


def html_report(
    fleet: Fleet | Catalog,
    *,
    findings: Findings | None = None,
    comparison: Comparison | None = None,
    reachability_changes: pa.Table | None = None,
    trace: Trace | None = None,
    traffic: ArrowStreamExportable | ArrowArrayExportable | None = None,
    at: datetime | None = None,
    title: str = "Service Broker routing",
) -> str:
    """Returns an HTML page: the findings, an interactive graph of all routing decisions, and the reachability of services.

    The page is self-contained: it loads nothing from the network, and its content security policy forbids any loading.

    Args:
        fleet: A fleet, or the catalog of a single instance.
        findings: The findings to show; None to run `lint`.
        comparison: A comparison to show, if any. If it has traffic, Sankey diagrams show the traffic before and after the change.
        reachability_changes: The result of `reachability_changes`, to show with the comparison.
        trace: A trace to show, if any.
        traffic: Conversations with their decisions, to show as a Sankey diagram: any Arrow object with the columns
            `to_service_name`, `outcome`, `next_hop_address` and `target_database`, and optionally `reason` and
            `conversations` (the number of equal conversations that a row represents).
        at: The time at which route lifetimes are evaluated; None for the current time. A datetime must have a time zone.
        title: The title of the page.

    Returns:
        The page.

    Raises:
        SchemaError: `fleet` is neither a fleet nor a catalog, or a column of `traffic` is missing.
        InputError: `traffic` contains an unknown outcome.
        OptionError: `at` is not a datetime with a time zone.

    Examples:
        >>> from ssbroker.diagnose import html_report
        >>> from ssbroker import Catalog, schemas
        >>> page = html_report(Catalog(schemas.ROUTES.empty_table()))
        >>> page.startswith("<!doctype html>"), "default-src 'none'" in page
        (True, True)
    """
    whole_fleet, now = Fleet.of(fleet), utc_datetime(at, name="at")
    lint_findings = lint(whole_fleet, at=now) if findings is None else findings
    sections: list[_Section] = []
    if comparison is not None:
        sections.append(_Section("changes", "Changes", _changes(comparison, reachability_changes)))
    if trace is not None:
        sections.append(_Section("trace", "Trace", _trace(trace)))
    sections.append(_Section("findings", "Findings", _findings(lint_findings, is_fleet=len(whole_fleet) > 1)))
    if traffic is not None:
        diagram = sankey(traffic_flows(traffic), title="Conversations by service, outcome and destination")
        sections.append(_Section("traffic", "Traffic", f'<div class="scroll" tabindex="0">{diagram}</div>'))
    search = "" if trace is None else escaped(trace.to_service_name)
    sections.append(_Section("routes", "Routes", _GRAPH.format(options=_options(whole_fleet), search=search)))
    sections.append(_Section("matrix", "Reachability", _matrix(whole_fleet, now)))
    data = graph_data(whole_fleet, lint_findings, now=now)
    return _page(title, _summary(whole_fleet, lint_findings, comparison, now), sections, data=data)


class _Section(NamedTuple):
    anchor: str
    heading: str
    content: str


def _page(title: str, summary: str, sections: list[_Section], *, data: dict[str, Any]) -> str:
    style = _page_file("page.css")
    scripts = [*(_page_file(name) for name in _LIBRARIES), _page_file("page.js")]
    policy = _POLICY.format(styles=_hash(style), scripts=" ".join(map(_hash, scripts)))
    links = "".join(f'<a href="#{section.anchor}">{section.heading}</a>' for section in sections)
    body = "".join(
        f'<section id="{section.anchor}" aria-label="{section.heading}"><h2>{section.heading}</h2>{section.content}</section>'
        for section in sections
    )
    return "".join(
        (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">',
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escaped(title)}</title>',
            f'<style id="__________cytoscape_stylesheet">{style}</style></head><body>',  # stops Cytoscape from adding its own style
            f"<header><h1>{escaped(title)}</h1>{summary}</header><nav><div>{links}</div></nav><main>{body}</main>",
            "<footer><details><summary>Licences of the libraries in this page</summary>",
            f"<pre>{escaped(_page_file(_LICENSES))}</pre></details></footer>",
            f'<script type="application/json" id="data">{_json(data)}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body></html>\n",
        )
    )


@cache
def _page_file(name: str) -> str:
    """Returns the text of a file in the folder `page`."""
    return (files("ssbroker.diagnose") / "page" / name).read_text(encoding="utf-8")


@cache
def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _json(value: object) -> str:
    """Returns JSON for a script element: `<`, which occurs only in strings, is escaped, so that it cannot end the element."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _summary(fleet: Fleet, findings: Findings, comparison: Comparison | None, now: datetime) -> str:
    entries = []
    if comparison is not None:
        style = "warning" if comparison else "fine"
        entries.append(_count(count_of(len(comparison.changes), "change"), style))
        if comparison.conversations is not None:
            entries.append(_count(traffic_text(comparison, is_fleet=len(fleet) > 1), style))
    entries += [
        _count(severity_count(severity, number), severity) for severity, number in findings.counts.items() if number
    ] or [_count("0 findings", "fine")]
    databases = sum(catalog.databases.num_rows for catalog in fleet.values())
    routes = sum(catalog.routes.num_rows for catalog in fleet.values())
    sizes = f"{count_of(len(fleet), 'instance')}, {count_of(databases, 'database')}, {count_of(routes, 'route')}"
    return f'<p class="dim">{sizes}, as of {now:%Y-%m-%d %H:%M:%S} UTC</p><ul class="counts">{"".join(entries)}</ul>'


def _count(text: str, style: str) -> str:
    """Returns an entry of the summary; `text` begins with a number."""
    number, _, noun = text.partition(" ")
    return f'<li class="{style}"><b>{number}</b>{noun}</li>'


def _findings(lint_findings: Findings, *, is_fleet: bool) -> str:
    if not lint_findings:
        return "<p>No findings.</p>"
    by_code: defaultdict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in lint_findings:
        by_code[finding.severity, finding.code].append(finding)
    parts = [
        '<p class="tools"><input id="filter" type="search" placeholder="Filter: a code, an instance, a name" aria-label="Filter findings"></p>'
    ]
    for (severity, code), group in by_code.items():
        parts.append(
            f'<details open class="code {severity}"><summary><span class="badge">{severity}</span><b>{code}</b> '
            f"{escaped(CODES[code].title)} ({len(group):,})</summary>"
            f'<p class="dim">{escaped(CODES[code].why)}</p>{_collapsed_list([_findings_of_remedy(each, is_fleet=is_fleet) for each in by_remedy(group[:_SHOWN_MAX])])}{_omitted_count(len(group))}</details>'
        )
    return "".join(parts)


def _collapsed_list(items: list[str]) -> str:
    """Returns the first items, followed by the remaining items in a folded section."""
    more = items[_OPEN_MAX:]
    folded = f"<details><summary>{len(more):,} more</summary>{''.join(more)}</details>" if more else ""
    return "".join(items[:_OPEN_MAX]) + folded


def _findings_of_remedy(same: list[Finding], *, is_fleet: bool) -> str:
    """Returns findings that have the same remedy, followed by this remedy."""
    heading = "" if len(same) == 1 else f'<p class="dim">For these {len(same)} findings:</p>'
    return f'<div class="finding">{"".join(map(_finding, same))}{heading}{_remedy(same[0], is_fleet=is_fleet)}</div>'


def _finding(finding: Finding) -> str:
    position = ""
    if finding.line is not None:
        name = PurePath(finding.file).name if finding.file else ""
        position = f' <span class="dim" title="{escaped(finding.file or "")}">{escaped(name)}:{finding.line}</span>'
    return f'<div class="where">{escaped(finding.where)}{position}</div><p>{escaped(finding.message)}</p>'


def _remedy(finding: Finding, *, is_fleet: bool) -> str:
    """Returns the statements to copy and execute (in a fleet, for each instance), or the advice."""
    if not finding.scripts:
        return f'<div class="remedy"><pre>{escaped(finding.remedy)}</pre></div>'
    return "".join(
        (f'<p class="dim">In {escaped(instance)}:</p>' if is_fleet else "")
        + f'<div class="remedy"><pre>{escaped(script)}</pre>'
        '<button type="button" class="copy">Copy</button></div>'
        for instance, script in scripts_by_instance(finding.scripts)
    )


def _trace(trace: Trace) -> str:
    parts = [
        f"<p>{escaped(trace.instance)}/{escaped(trace.database)} {sending_verb(trace)} <b>{escaped(trace.to_service_name)}</b>.</p>",
        _path(trace),
    ]
    for acknowledgement in trace.acknowledgements:
        subject = f"{return_subject(acknowledgement, trace)} to {acknowledgement.to_service_name}"
        parts.append(f"<h3>{escaped(subject)}</h3>{_path(acknowledgement)}")
        if not acknowledgement.returned_to(trace):
            parts.append(f'<p class="dropped">{return_failure(acknowledgement, trace)}</p>')
    if trace.assumed_ids:
        parts.append(f"<p>Assumed: {escaped(restore_spaces(assumption_text(trace.assumed_ids)))}.</p>")
    return "".join(parts)


def _path(trace: Trace) -> str:
    hops = "".join(
        f"<li><details><summary>{escaped(hop.instance)}, sys.routes of {escaped(hop.database or MSDB)}: "
        f'<b class="{hop.decision["outcome"].lower()}">{escaped(restore_spaces(decision_text(hop)))}</b></summary>'
        f'<pre class="steps">{escaped(hop.explanation)}</pre></details></li>'
        for hop in trace.hops
    )
    others = "".join(
        f"<p>Or, with another choice between equal routes: {_end(end)}</p>"
        for end in trace.possible
        if end != trace.end
    )
    return f'<ol class="hops">{hops}</ol><p>{_end(trace.end)}</p>{others}'


def _end(end: RoutingEnd) -> str:
    return f'<b class="{end.outcome.lower()}">{escaped(restore_spaces(end_text(end)))}</b>'


class _Cell(NamedTuple):
    outcomes: tuple[str, ...]
    """The outcomes, the worst first."""
    details: str


def _matrix(fleet: Fleet, now: datetime) -> str:
    if _matrix_size(fleet) > _COMPUTED_MAX:
        return "<p>The matrix is too large for this page; <code>ssbroker.diagnose.reachability</code> returns the matrix as a table.</p>"
    rows: defaultdict[str, defaultdict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    graph = RoutingGraph(assumed_ids_of(fleet).fleet, now=now)
    returns = ReturnPaths(graph)
    for row in matrix(graph, sorted(all_services(graph))).to_pylist():
        row["shown"] = row["outcome"]
        if row["outcome"] == "DELIVERED":
            end = RoutingEnd("DELIVERED", row["at_instance"], row["target_database"])
            if failing := returns.failures(Start(row["instance"], row["database"]), frozenset((end,))):
                row |= {"shown": _UNACKNOWLEDGED, "reason": return_path_text(failing)}
        rows[row["service"]][f"{row['instance']}/{row['database']}"].append(row)
    if not rows:
        return "<p>There is no database or no known service.</p>"
    starts = sorted({start for column in rows.values() for start in column})
    columns = {service: tuple(map(_cell, (rows[service][start] for start in starts))) for service in sorted(rows)}
    merged: defaultdict[Any, list[str]] = defaultdict(list)
    for service, cells in columns.items():
        merged[cells if len(columns) > _UNMERGED_MAX else service].append(service)
    groups = sorted(
        merged.values(), key=lambda group: min(_OUTCOMES.index(cell.outcomes[0]) for cell in columns[group[0]])
    )
    shown = groups[: max(1, _CELLS_MAX // len(starts))]
    if len(groups) == len(shown) and len(columns) <= _UNMERGED_MAX:
        shown = sorted(groups)
    head = "".join(
        f'<th scope="col" title="{escaped(", ".join(group))}"><span>{escaped(_shortened(_group_name(group)))}</span></th>'
        for group in shown
    )
    numbers: dict[str, int] = {}
    body = "".join(
        f'<tr><th scope="row" title="{escaped(start)}">{escaped(start)}</th>'
        + "".join(_cell_html(columns[group[0]][number], numbers) for group in shown)
        + "</tr>"
        for number, start in enumerate(starts)
    )
    legend = " ".join(
        f'<span class="{name.lower()}">{_SYMBOLS[name]} {name.lower()}</span>' for name in reversed(_OUTCOMES)
    )
    omitted = sum(map(len, groups[len(shown) :]))
    rest = (
        f"<p>{count_of(omitted, 'more service')}; <code>ssbroker.diagnose.reachability</code> returns all services.</p>"
        if omitted
        else ""
    )
    return (
        "<p>Rows: where conversations start. Columns: their target service. Choose a cell for details.</p>"
        f'<p class="legend">{legend}</p><output id="cell" class="dim"></output>'
        f'<div class="scroll"><table class="matrix"><tr><th></th>{head}</tr>{body}</table></div>{rest}'
        f'<script type="application/json" id="endings">{_json([terminal_safe(details) for details in numbers])}</script>'
    )


def _group_name(services: list[str]) -> str:
    return services[0] if len(services) == 1 else f"{services[0]} and {len(services) - 1:,} more"


def _cell(rows: list[dict[str, Any]]) -> _Cell:
    outcomes = tuple(name for name in _OUTCOMES if any(row["shown"] == name for row in rows))
    details = "; ".join(
        " ".join(
            str(row[name])
            for name in ("outcome", "at_instance", "target_database", "next_hop_address", "reason")
            if row[name]
        )
        for row in rows
    )
    return _Cell(outcomes, details)


def _cell_html(cell: _Cell, numbers: dict[str, int]) -> str:
    """Returns a cell: coloured by the worst outcome, with a symbol for each possible outcome, and the number of its details."""
    symbols = "".join(_SYMBOLS[name] for name in cell.outcomes)
    number = numbers.setdefault(cell.details, len(numbers))
    return f'<td class="{cell.outcomes[0].lower()}" data-end="{number}">{symbols}</td>'


def _shortened(name: str) -> str:
    """Returns the end of a long name, because names differ most at the end."""
    return name if len(name) <= _HEADING_MAX else f"…{name[1 - _HEADING_MAX :]}"


def _matrix_size(fleet: Fleet) -> int:
    services: set[str] = set()
    starts = 0
    for catalog in fleet.values():
        services.update(map(str, catalog.services["name"].to_pylist()))
        services.update(map(str, filter(None, catalog.routes["remote_service_name"].to_pylist())))
        starts += catalog.databases.num_rows
    return starts * len(services)


def _changes(comparison: Comparison, ends: pa.Table | None) -> str:
    parts = [f"<p>{escaped(not_compared_text(comparison))}</p>"] if comparison.not_compared else []
    if ends is not None and ends.num_rows:
        rows = ends.slice(length=_SHOWN_MAX).to_pylist()
        table = f"{_table(_shown_columns(ends.column_names, rows), rows)}{_omitted_count(ends.num_rows)}"
        parts.append(f"<h3>Conversations that end elsewhere</h3>{table}")
    parts += [f"<p>Expires earlier: {escaped(each)}</p>" for each in comparison.earlier_expiries]
    if not comparison.changes:
        nothing = "No routing decision changes." if ends is not None and ends.num_rows else "No changes."
        return "".join([f"<p>{nothing}</p>", *parts])
    if comparison.conversations is not None:
        parts.append(f"<p>{traffic_text(comparison, is_fleet=ends is not None)}.</p>")
    causes = comparison.causes.to_pylist()
    names = ["cause", "instance", "object", "kind", "changes", "conversations"]
    parts.append(f"<h3>Causes</h3>{_table(_shown_columns(names, causes), causes)}{_omitted_count(len(causes))}")
    changes = comparison.table.slice(length=_SHOWN_MAX).to_pylist()
    names = [
        "conversations",
        "instance",
        "database",
        "service",
        "broker_ids",
        "before",
        "after",
        "cause",
        "object",
        "kind",
    ]
    parts.append(
        f"<h3>What changes</h3>{_table(_shown_columns(names, changes), changes)}{_omitted_count(len(comparison.changes))}"
    )
    if comparison.conversations:
        before, after = compared_flows(comparison.destinations)
        changed = changed_services(before, after)
        diagrams = "".join(
            f'<div><h3>{heading}</h3><div class="scroll" tabindex="0">{sankey(flows, title=f"Traffic: {heading}", first=changed)}</div></div>'
            for heading, flows in (("Before", before), ("After", after))
        )
        parts.append(f'<div class="sides">{diagrams}</div><p class="dim">Services that change come first.</p>')
    load = comparison.load.to_pylist()
    if load:
        table = f"{_table(list(load[0]), load)}{_omitted_count(len(load))}"
        parts.append(f"<details><summary>Load of each copy of a service ({len(load):,})</summary>{table}</details>")
    return "".join(parts)


def _shown_columns(names: list[str], rows: list[dict[str, Any]]) -> list[str]:
    """Returns the columns; omits `conversations` and `broker_ids` if they are empty in all rows."""
    optional = ("conversations", "broker_ids")
    return [name for name in names if name not in optional or any(row[name] is not None for row in rows)]


def _table(columns: list[str], rows: list[dict[str, Any]]) -> str:
    names = {name: escaped(name.replace("_", " ")) for name in columns}
    head = "".join(f"<th>{name}</th>" for name in names.values())
    lines = "".join(
        f"<tr>{''.join(_table_cell(row[name], name, heading) for name, heading in names.items())}</tr>"
        for row in rows[:_SHOWN_MAX]
    )
    return f'<div class="scroll" tabindex="0"><table class="records"><tr>{head}</tr>{lines}</table></div>'


def _table_cell(value: object, name: str, heading: str) -> str:
    style = ' class="number"' if isinstance(value, (int, float)) else ""
    if isinstance(value, float):
        shown = f"{value:,.2f}"
    else:
        shown = f"{value:,}" if isinstance(value, int) else escaped(_NULLS.get(name, "") if value is None else value)
    return f'<td{style} data-name="{heading}">{shown}</td>'


def _omitted_count(count: int) -> str:
    return f"<p>and {count - _SHOWN_MAX:,} more</p>" if count > _SHOWN_MAX else ""


def _options(fleet: Fleet) -> str:
    return "".join(f'<option value="{number}">{escaped(name)}</option>' for number, name in enumerate(fleet))


_OUTCOME_BOXES: Final = "".join(
    f'<label class="{name.lower()}"><input type="checkbox" value="{name}" checked>{name}</label>'
    for name in ("LOCAL", "REMOTE", "FORWARD", "DELAYED", "DROPPED")
)
_GRAPH: Final = (
    "<p>Instances, their databases, the target services of conversations and their next hops. An arrow to a next hop names the route "
    "and the step of the search that found it.</p>"
    '<div class="tools"><input id="search" type="search" placeholder="Search: a service, a route, an address" aria-label="Search the graph" '
    'value="{search}">'
    '<select id="instance" aria-label="Instance"><option value="">All instances</option>{options}</select></div>'
    f'<div class="tools" id="outcomes" role="group" aria-label="Outcomes">{_OUTCOME_BOXES}</div>'
    '<div class="tools"><button type="button" id="larger" aria-label="Zoom in">+</button>'
    '<button type="button" id="smaller" aria-label="Zoom out">&minus;</button><button type="button" id="whole">Fit</button>'
    '<button type="button" id="reset">Reset</button><span class="dim" id="shown"></span></div>'
    '<p class="dim" id="note"></p><noscript><p>The graph needs JavaScript.</p></noscript>'
    '<div class="drawing"><div id="graph" tabindex="0" role="application" aria-label="Routing graph; the arrow keys move between nodes"></div>'
    '<div id="details" aria-live="polite" tabindex="0"></div></div>'
    '<details id="decisions"><summary>As a table</summary><div class="scroll" tabindex="0"><table><thead><tr><th>instance</th><th>database</th>'
    '<th>service</th><th>outcome</th><th>next hop</th><th>route</th><th>step</th></tr></thead><tbody></tbody></table></div><p id="rest"></p></details>'
)
