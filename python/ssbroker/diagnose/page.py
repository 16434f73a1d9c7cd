"""One self-contained page for people who would rather look than read: no script from elsewhere, no network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from html import escape
from typing import Any, Final

from ssbroker import moment
from ssbroker.catalog import Catalog
from ssbroker.diagnose.codes import CODES
from ssbroker.diagnose.comparison import Comparison
from ssbroker.diagnose.findings import Finding, Findings
from ssbroker.diagnose.fleets import Fleet
from ssbroker.diagnose.graph import drawn
from ssbroker.diagnose.linting import lint
from ssbroker.diagnose.page_style import SCRIPT, STYLE
from ssbroker.diagnose.reaching import reachability

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
    whole, now = Fleet.of(fleet), moment.as_utc(at)
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
