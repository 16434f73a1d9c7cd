"""The differences between two catalogs of an instance, and the difference that changes a decision."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final, Literal, NamedTuple

from ssbroker._text import quoted_name
from ssbroker._well_known import CONFIGURATION_SERVICE
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose.all_decisions import used_route
from ssbroker.diagnose.catalog_rows import MSDB, FleetRoute, Tables, read_tables
from ssbroker.diagnose.decision_pairs import DecisionPair

_CREATED: Final = "database created"
_DROPPED: Final = "database dropped"


class Cause(NamedTuple):
    """The difference that changes a decision."""

    kind: str
    """The kind, such as `route vanished`."""
    object: str
    """The object, such as `Sales/route "Orders"`."""


class _Difference(NamedTuple):
    cause: Cause
    table: str
    services: frozenset[str | None]


RouteKey = tuple[str, str, int]
"""The database of a route, the name of the route, and a number that distinguishes routes with the same name."""


class Differences:
    """The differences between two catalogs of an instance, each evaluated at its own time."""

    def __init__(self, before: Catalog, after: Catalog, *, before_at: datetime, after_at: datetime) -> None:
        self.before: Final = read_tables(before)
        self.after: Final = read_tables(after)
        self._routes_by_key: Final = (_by_key(self.before), _by_key(self.after))
        self._keys_by_id: Final = tuple(
            {route.key: key for key, route in by_key.items()} for by_key in self._routes_by_key
        )
        self._routes_by_id: Final = tuple(
            {route.key: route for route in by_key.values()} for by_key in self._routes_by_key
        )
        self._routes: Final = dict(self._compare_routes(before_at, after_at))
        self._databases: Final = list(_compare_databases(self.before, self.after))
        self._database_causes: Final = {
            each.table: each.cause for each in self._databases if each.cause.kind in (_CREATED, _DROPPED)
        }
        self._instance_causes: Final = list(_compare_instances(before, after))

    @property
    def common_routes(self) -> Iterator[tuple[RouteKey, FleetRoute, FleetRoute]]:
        """The routes that both catalogs have, with their keys."""
        before, after = self._routes_by_key
        return ((key, before[key], after[key]) for key in before if key in after)

    def route(self, pair: DecisionPair, which: Literal[0, 1]) -> RouteKey | None:
        """Returns the key of the route that is used before (0) or after (1) the change; None if no route is used.

        Unlike route ids, keys are the same in both catalogs.
        """
        used = used_route(self._routes_by_id[which], pair.database, pair.service, (pair.before, pair.after)[which])
        return None if used is None else self._keys_by_id[which][used.key]

    def cause(self, pair: DecisionPair, taken: list[RouteKey | None]) -> Cause:
        """Returns the difference that changes the decision: the difference in one of the `taken` routes, else the most closely related difference."""
        if pair.database in self._database_causes:
            return self._database_causes[pair.database]
        for key in taken:
            if key is not None and key in self._routes:
                return self._routes[key].cause
        nearby = [each for each in self._routes.values() if each.table in (pair.database or MSDB, MSDB)]
        nearby.sort(key=lambda each: each.table != (pair.database or MSDB))
        for_service = (each.cause for each in nearby if pair.service in each.services and pair.service is not None)
        hosted = (each.cause for each in self._databases if each.services & {pair.service, None})
        general = (each.cause for each in nearby if each.services & {None, CONFIGURATION_SERVICE})
        for found in (for_service, hosted, general, self._instance_causes):
            for cause in found:
                return cause
        return Cause("other", "")

    def _compare_routes(self, before_at: datetime, after_at: datetime) -> Iterator[tuple[RouteKey, _Difference]]:
        before, after = self._routes_by_key
        for key in before.keys() | after.keys():
            old, new = before.get(key), after.get(key)
            kind = _route_change(old, new, before_at, after_at)
            if kind is not None:
                services = frozenset(route.service for route in (old, new) if route is not None)
                yield key, _Difference(Cause(kind, f"{key[0]}/route {quoted_name(key[1])}"), key[0], services)


def _route_change(
    old: FleetRoute | None, new: FleetRoute | None, before_at: datetime, after_at: datetime
) -> str | None:
    was_live = old is not None and old.is_live(before_at)
    is_live = new is not None and new.is_live(after_at)
    if not was_live and not is_live:
        return None
    if new is None:
        return "route vanished"
    if old is None:
        return "route appeared"
    if was_live != is_live:
        return "route expired" if was_live else "route prolonged"
    values = [(route.service, route.broker, route.address, route.mirror) for route in (old, new)]
    return "route changed" if values[0] != values[1] else None


def _by_key(rows: Tables) -> dict[RouteKey, FleetRoute]:
    """Returns the routes by key. SQL Server keeps names unique; duplicate names in a catalog are numbered by route id."""
    found: dict[RouteKey, FleetRoute] = {}
    for route in sorted(rows.routes, key=lambda route: route.route_id):
        number = 0
        while (route.database, route.name, number) in found:
            number += 1
        found[route.database, route.name, number] = route
    return found


def _compare_databases(before: Tables, after: Tables) -> Iterator[_Difference]:
    for database in sorted(before.databases.keys() | after.databases.keys()):
        old_services, new_services = set(before.services.get(database, ())), set(after.services.get(database, ()))
        for service in sorted(old_services ^ new_services):
            kind = "service dropped" if service in old_services else "service created"
            yield _Difference(
                Cause(kind, f"{database}/service {quoted_name(service)}"), database, frozenset((service,))
            )
        old, new = before.databases.get(database), after.databases.get(database)
        either: frozenset[str | None] = frozenset((*old_services, *new_services, None))
        if old is None or new is None:
            yield _Difference(Cause(_DROPPED if new is None else _CREATED, database), database, either)
        elif old.enabled != new.enabled:
            yield _Difference(
                Cause("delivery turned on" if new.enabled else "delivery turned off", database), database, either
            )
        elif old.broker != new.broker:
            yield _Difference(Cause("broker id changed", database), database, either)


def _compare_instances(before: Catalog, after: Catalog) -> Iterator[Cause]:
    if before.message_forwarding != after.message_forwarding:
        yield Cause("forwarding turned on" if after.message_forwarding else "forwarding turned off", "")
    if set(before.addresses) != set(after.addresses):
        yield Cause("own addresses changed", ", ".join(sorted(set(before.addresses) ^ set(after.addresses))))
    if set(before.pending_requests) != set(after.pending_requests):
        yield Cause(
            "pending requests changed", ", ".join(sorted(set(before.pending_requests) ^ set(after.pending_requests)))
        )
