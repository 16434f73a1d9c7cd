"""Possible remedies: scripts for instances, and the statements in them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from copy import copy
from itertools import tee
from typing import Final, NamedTuple

from ssbroker._text import bracketed, restore_spaces, string_literal
from ssbroker.diagnose.catalog_rows import LOCAL, FleetRoute, Tables
from ssbroker.diagnose.scripts_on_copies import drop_route_named


class Step(NamedTuple):
    """A script for one instance."""

    instance: str
    script: str


Candidate = tuple[Step, ...]
"""A possible remedy."""


class RouteDestination(NamedTuple):
    """The destination of a route that reaches a database."""

    address: str
    mirror: str | None = None
    broker: bytes | None = None
    """The broker id, which a mirrored route requires."""

    @property
    def clauses(self) -> str:
        """The clauses of ALTER ROUTE."""
        addresses = ("ADDRESS", self.address), ("MIRROR_ADDRESS", self.mirror)
        clauses = [f"{name} = {string_literal(value)}" for name, value in addresses if value is not None]
        return ", ".join(clauses if self.broker is None else [broker_clause(self.broker), *clauses])


TO_LOCAL: Final = RouteDestination(LOCAL)


class Candidates:
    """The possible remedies of a problem, the best first. Each is created when it is first needed, because only a few are tried."""

    def __init__(self, instance: str, given: Iterable[str | Candidate]) -> None:
        made = (_restored((Step(instance, each),) if isinstance(each, str) else each) for each in given)
        (self._from_first,) = tee(made, 1)

    def __iter__(self) -> Iterator[Candidate]:
        return copy(self._from_first)


def _restored(candidate: Candidate) -> Candidate:
    return tuple(Step(instance, restore_spaces(script)) for instance, script in candidate)


def broker_clause(broker: bytes) -> str:
    """Returns the clause of a route that names a broker id."""
    return f"BROKER_INSTANCE = N'{uuid.UUID(bytes=broker)}'"


def service_clause(service: str) -> str:
    """Returns the clause of a route that names a service."""
    return f"SERVICE_NAME = {string_literal(service)}"


def alter_route(route: FleetRoute, clauses: str) -> str:
    """Returns the statements that change a route."""
    return f"USE {bracketed(route.database)}; ALTER ROUTE {bracketed(route.name)} WITH {clauses};"


def drop_route(route: FleetRoute) -> str:
    """Returns the statements that drop a route."""
    return drop_route_named(route.database, route.name)


def new_route(
    tables: Tables,
    database: str,
    *,
    service: str | None,
    reserved: set[str],
    destination: RouteDestination = TO_LOCAL,
) -> str:
    """Returns the statements that create a route, with a name that does not occur in the routing table.

    `reserved` contains the names of the routes that the same candidate creates in this table; the new name is added to it.
    """
    taken = tables.route_names.get(database, set()) | reserved
    address = destination.address
    wanted = "AutoCreatedLocal" if service is None and address == LOCAL else (service or "AllServices").strip("/")
    wanted = wanted.rpartition("/")[2] or "Route"
    name, number = wanted, 1
    while name.casefold() in taken:
        number += 1
        name = f"{wanted} {number}"
    reserved.add(name.casefold())
    clauses = "" if service is None else f"{service_clause(service)}, "
    return f"USE {bracketed(database)}; CREATE ROUTE {bracketed(name)} WITH {clauses}{destination.clauses};"


def local_routes(instance: str, tables: Tables, database: str, services: Iterable[str | None]) -> Candidate:
    """Returns the steps that create a route to LOCAL for each service; None means a route for all services."""
    reserved: set[str] = set()
    return tuple(Step(instance, new_route(tables, database, service=each, reserved=reserved)) for each in services)
