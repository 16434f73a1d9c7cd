"""The data of the graph in the HTML report: every routing decision of a fleet, with its explanation."""

from __future__ import annotations

import base64
import gzip
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from ssbroker._text import terminal_safe
from ssbroker.diagnose.all_decisions import Behaviour, PossibleDecision, RouteLookup, used_route
from ssbroker.diagnose.catalog_rows import MSDB, FleetRoute
from ssbroker.diagnose.findings import Findings
from ssbroker.diagnose.fleet import Fleet
from ssbroker.router import Router

DECISIONS_MAX: Final = 20_000
"""The maximum number of decisions on a page, the worst outcomes first."""
EXPLANATIONS_MAX: Final = 5_000
"""The maximum number of decisions with a complete explanation."""
_WORST_FIRST: Final = ("DROPPED", "DELAYED", "FORWARD", "REMOTE", "LOCAL")


class GraphDecision(NamedTuple):
    """A possible routing decision for the conversations of one class."""

    instance: str
    database: str | None
    """The database in which the conversations start; None if they arrive from other instances."""
    service: str | None
    """The service; None represents every service that the instance does not know."""
    broker_id: str | None
    """The broker id that the conversations name, if the decision depends on it."""
    outcome: str
    reason: str
    step: int | None
    route: str | None
    """The name of the route."""
    route_table: str | None
    """The database that contains the route."""
    hop: str | None
    """The address of the next hop; for LOCAL, the target database."""
    hop_instance: str | None
    """The instance of the fleet that has the address of the next hop."""
    explanation: int | None = None
    """The number of the explanation, if the page contains it."""


def graph_data(fleet: Fleet, findings: Findings, *, now: datetime) -> dict[str, Any]:
    """Returns the instances and decisions as values for JSON; decisions are lists with the fields of `GraphDecision`."""
    worst = {finding.instance: finding.severity for finding in reversed(list(findings)) if finding.instance is not None}
    possible: list[tuple[str, RouteLookup, GraphDecision]] = []
    for name in fleet:
        possible += _decisions(fleet, name, now)
    possible.sort(key=lambda each: _WORST_FIRST.index(each[2].outcome))
    shown = possible[:DECISIONS_MAX]
    explanations: dict[tuple[str, RouteLookup], int] = {}
    for name, lookup, _ in shown:
        if len(explanations) == EXPLANATIONS_MAX:
            break
        explanations.setdefault((name, lookup), len(explanations))
    return {
        "instances": [
            {
                "name": terminal_safe(name),
                "severity": worst.get(name, "fine"),
                "addresses": list(catalog.addresses),
                "databases": catalog.databases.num_rows,
                "routes": catalog.routes.num_rows,
            }
            for name, catalog in fleet.items()
        ],
        "fields": GraphDecision._fields,
        "decisions": [
            [
                terminal_safe(value) if isinstance(value, str) else value
                for value in decision._replace(explanation=explanations.get((name, lookup)))
            ]
            for name, lookup, decision in shown
        ],
        "omitted": len(possible) - len(shown),
        "explanations": _compressed_json(list(_explanations(fleet, explanations, now))),
    }


def _compressed_json(texts: list[str]) -> str:
    """Returns texts as JSON, compressed (to about a twentieth) and encoded in Base64."""
    return base64.b64encode(gzip.compress(json.dumps(texts, ensure_ascii=False).encode(), mtime=0)).decode()


def _explanations(fleet: Fleet, lookups: dict[tuple[str, RouteLookup], int], now: datetime) -> Iterator[str]:
    """Yields the text of each explanation in order."""
    routers = {name: Router(fleet[name], tie_break="first") for name in dict.fromkeys(name for name, _ in lookups)}
    for name, (database, service, broker, is_initiator) in lookups:
        yield str(
            routers[name].explain(
                service, to_broker_instance=broker, database=database, is_initiator=is_initiator, now=now
            )
        )


def _decisions(fleet: Fleet, name: str, now: datetime) -> Iterator[tuple[str, RouteLookup, GraphDecision]]:
    """Yields every decision of an instance: from each database and from other instances, for each known service and any unknown service."""
    behaviour = Behaviour(fleet[name], now=now, with_routes=True)
    rows = behaviour.tables
    routes = {route.key: route for route in rows.routes}
    starts = [database for database in rows.databases if database != MSDB or rows.services.get(MSDB)]
    for database in (*starts, *([None] if fleet[name].addresses or fleet[name].message_forwarding else [])):
        names = [*sorted(behaviour.known_names[database or MSDB]), behaviour.unknown_name]
        lookups = [RouteLookup(database, service) for service in names]
        used: set[tuple[str, int]] = set()
        for lookup, decision, route in _possible_decisions(behaviour, routes, lookups):
            if route is not None:
                used.add(route.key)
            yield name, lookup, _decision(fleet, name, behaviour, lookup, decision, route)
        # Lookups for routes that only conversations with the routes' broker id use.
        by_id = [
            RouteLookup(database, route.service, route.broker)
            for route in rows.routes
            if route.database == (database or MSDB) and route.service and route.broker and route.key not in used
        ]
        for lookup, decision, route in _possible_decisions(behaviour, routes, by_id):
            yield name, lookup, _decision(fleet, name, behaviour, lookup, decision, route)


def _possible_decisions(
    behaviour: Behaviour, routes: Mapping[tuple[str, int], FleetRoute], lookups: Sequence[RouteLookup]
) -> Iterator[tuple[RouteLookup, PossibleDecision, FleetRoute | None]]:
    """Yields each possible decision for each lookup, with its route."""
    for lookup, decisions in zip(lookups, behaviour.decisions_for(lookups), strict=True):
        for decision in decisions:
            yield lookup, decision, used_route(routes, lookup.database, lookup.service, decision)


def _decision(
    fleet: Fleet,
    name: str,
    behaviour: Behaviour,
    lookup: RouteLookup,
    decision: PossibleDecision,
    route: FleetRoute | None,
) -> GraphDecision:
    hop = decision.target_database if decision.outcome == "LOCAL" else decision.next_hop
    return GraphDecision(
        instance=name,
        database=lookup.database,
        service=None if lookup.service == behaviour.unknown_name else lookup.service,
        broker_id=None if lookup.broker is None else str(uuid.UUID(bytes=lookup.broker)).upper(),
        outcome=decision.outcome,
        reason=decision.reason,
        step=decision.match_step,
        route=None if route is None else route.name,
        route_table=None if route is None else route.database,
        hop=hop,
        hop_instance=None if decision.next_hop is None else fleet.at(decision.next_hop, seen_from=name),
    )
