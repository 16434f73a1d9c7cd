"""The context that every check receives, and how it reports findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from ssbroker._text import quoted, restore_spaces, route_name
from ssbroker.diagnose.behaviour import picked
from ssbroker.diagnose.catalog_tables import RouteRow, Tables
from ssbroker.diagnose.findings import CODES, Finding, Severity
from ssbroker.diagnose.fleet import Fleet
from ssbroker.diagnose.reachability import RoutingGraph


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """A fleet at a moment."""

    fleet: Fleet
    now: datetime
    until: datetime
    """What expires before this is reported beforehand."""

    @cached_property
    def rows(self) -> dict[str, Tables]:
        """The rows of each instance."""
        return {name: behaviour.tables for name, behaviour in self.ways.behaviours.items()}

    @cached_property
    def taken(self) -> dict[str, set[tuple[str, int]]]:
        """The routes of each instance that some conversation takes."""
        return {name: picked(self.fleet[name], behaviour) for name, behaviour in self.ways.behaviours.items()}

    @cached_property
    def ways(self) -> RoutingGraph:
        """All ways through the fleet."""
        return RoutingGraph(self.fleet, now=self.now)

    def is_live(self, route: RouteRow) -> bool:
        """Whether the route is not expired."""
        return route.lifetime is None or route.lifetime > self.now


def about_route(
    code: str,
    instance: str,
    route: RouteRow,
    message: str,
    remedy: str,
    *,
    related: Sequence[RouteRow | str] = (),
    severity: Severity | None = None,
) -> Finding:
    """A finding about a route."""
    return Finding(
        code=code,
        severity=severity or CODES[code].severity,
        instance=instance,
        database=route.database,
        object=f"route {name(route.name)}",
        route_id=route.route_id,
        message=restore_spaces(message),
        remedy=restore_spaces(remedy),
        related=tuple(other if isinstance(other, str) else route_in_full(instance, other) for other in related),
    )


def about(
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
    """A finding about something else."""
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


def name(text: str) -> str:
    """A name in quotation marks, safe for a terminal."""
    return restore_spaces(quoted(text))


def route_in_full(instance: str, route: RouteRow) -> str:
    """A route by instance, table, number and name."""
    return f"{instance}/{route.database}/{restore_spaces(route_name({'route_id': route.route_id, 'name': route.name}))}"
