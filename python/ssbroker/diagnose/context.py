"""The input of all checks, and helpers that create findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from ssbroker._text import quoted, restore_spaces, route_name
from ssbroker.diagnose.behaviour import used_routes_of
from ssbroker.diagnose.findings import CODES, Finding, Severity
from ssbroker.diagnose.fleet import Fleet, RouteRow, Tables
from ssbroker.diagnose.reachability import RoutingGraph


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """A fleet at a point in time."""

    fleet: Fleet
    now: datetime
    until: datetime
    """Routes that expire before this time are reported in advance."""

    @cached_property
    def tables(self) -> dict[str, Tables]:
        """The tables of each instance."""
        return {name: behaviour.tables for name, behaviour in self.graph.behaviours.items()}

    @cached_property
    def used_routes(self) -> dict[str, set[tuple[str, int]]]:
        """The routes of each instance that some conversation uses."""
        return {name: used_routes_of(self.fleet[name], behaviour) for name, behaviour in self.graph.behaviours.items()}

    @cached_property
    def graph(self) -> RoutingGraph:
        """All routing paths through the fleet."""
        return RoutingGraph(self.fleet, now=self.now)

    def is_live(self, route: RouteRow) -> bool:
        """Returns whether the route has not expired."""
        return route.lifetime is None or route.lifetime > self.now


def route_finding(
    code: str,
    instance: str,
    route: RouteRow,
    message: str,
    remedy: str,
    *,
    related: Sequence[RouteRow | str] = (),
    severity: Severity | None = None,
) -> Finding:
    """Creates a finding about a route."""
    return Finding(
        code=code,
        severity=severity or CODES[code].severity,
        instance=instance,
        database=route.database,
        object=f"route {quoted_name(route.name)}",
        route_id=route.route_id,
        message=restore_spaces(message),
        remedy=restore_spaces(remedy),
        related=tuple(other if isinstance(other, str) else qualified_route(instance, other) for other in related),
    )


def finding_about(
    code: str,
    what: str,
    message: str,
    remedy: str,
    *,
    instance: str | None = None,
    database: str | None = None,
    related: Sequence[str] = (),
    severity: Severity | None = None,
) -> Finding:
    """Creates a finding about another object."""
    return Finding(
        code=code,
        severity=severity or CODES[code].severity,
        instance=instance,
        database=database,
        object=what,
        message=restore_spaces(message),
        remedy=restore_spaces(remedy),
        related=tuple(related),
    )


def quoted_name(text: str) -> str:
    """Returns a name in quotation marks, safe for a terminal."""
    return restore_spaces(quoted(text))


def qualified_route(instance: str, route: RouteRow) -> str:
    """Returns instance, database, id and name of a route."""
    return f"{instance}/{route.database}/{restore_spaces(route_name({'route_id': route.route_id, 'name': route.name}))}"
