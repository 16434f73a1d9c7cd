"""What differs between two catalogs, and which difference changes a decision."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final, Literal, NamedTuple

from ssbroker.catalog import Catalog
from ssbroker.diagnose import tables
from ssbroker.diagnose.setting import name
from ssbroker.diagnose.sides import Pair
from ssbroker.diagnose.tables import BROKER_CONFIGURATION, LOCAL, MSDB, RouteRow, Tables

_FOR_ANY_SERVICE: Final = 5
_CREATED: Final = "database created"
_DROPPED: Final = "database dropped"


class Cause(NamedTuple):
    """Why a decision changes."""

    kind: str
    """Such as `route vanished`."""
    object: str
    """Such as `Sales/route "Orders"`."""


class _Difference(NamedTuple):
    cause: Cause
    table: str
    services: frozenset[str | None]


RouteKey = tuple[str, str, int]
"""Table, name, and the how many-eth of this name."""


class Differences:
    """All that differs between two catalogs of an instance, each at its moment."""

    def __init__(self, before: Catalog, after: Catalog, *, before_at: datetime, after_at: datetime) -> None:
        self.before: Final = tables.read(before)
        self.after: Final = tables.read(after)
        self._keys: Final = (_keyed(self.before), _keyed(self.after))
        self._by_id: Final = tuple({route.key: key for key, route in keyed.items()} for keyed in self._keys)
        self._routes: Final = dict(self._compare_routes(before_at, after_at))
        self._databases: Final = list(_compare_databases(self.before, self.after))
        self._one_sided: Final = {
            each.table: each.cause for each in self._databases if each.cause.kind in (_CREATED, _DROPPED)
        }
        self._instance: Final = list(_compare_instances(before, after))

    def route(self, pair: Pair, which: Literal[0, 1]) -> RouteKey | None:
        """The route that is taken before (0) or after (1), as both catalogs know it: route ids may be dealt out anew."""
        side = (pair.before, pair.after)[which]
        if side.route_id is None:
            return None
        own = pair.database or MSDB
        by_id, keyed = self._by_id[which], self._keys[which]
        key = by_id.get((own, side.route_id))
        # Who comes back to its instance (R41) is told by what only a message from outside can come to.
        again = pair.database is not None and (
            side.outcome in ("FORWARD", "DROPPED")
            or key is None
            or (side.outcome == "LOCAL" and keyed[key].address != LOCAL)
            or not _is_found(keyed[key], pair.service, side.match_step)
        )
        return by_id.get((MSDB, side.route_id)) if again else key

    def cause(self, pair: Pair, taken: list[RouteKey | None]) -> Cause:
        """The difference that changes the decision: that of a route that was or is taken, else the nearest that bears on it."""
        if pair.database in self._one_sided:
            return self._one_sided[pair.database]
        for key in taken:
            if key is not None and key in self._routes:
                return self._routes[key].cause
        near = [each for each in self._routes.values() if each.table in (pair.database or MSDB, MSDB)]
        near.sort(key=lambda each: each.table != (pair.database or MSDB))
        named = (each.cause for each in near if pair.service in each.services and pair.service is not None)
        hosted = (each.cause for each in self._databases if each.services & {pair.service, None})
        general = (each.cause for each in near if each.services & {None, BROKER_CONFIGURATION})
        for found in (named, hosted, general, self._instance):
            for cause in found:
                return cause
        return Cause("other", "")

    def _compare_routes(self, before_at: datetime, after_at: datetime) -> Iterator[tuple[RouteKey, _Difference]]:
        before, after = self._keys
        for key in before.keys() | after.keys():
            old, new = before.get(key), after.get(key)
            kind = _change(old, new, before_at, after_at)
            if kind is not None:
                services = frozenset(route.service for route in (old, new) if route is not None)
                yield key, _Difference(Cause(kind, f"{key[0]}/route {name(key[1])}"), key[0], services)


def _is_found(route: RouteRow, service: str | None, step: int | None) -> bool:
    """Whether a step of the search may have found the route for a service: those that name it at 1 to 3, those that name none at 5."""
    return route.service == (None if step == _FOR_ANY_SERVICE else service)


def _change(old: RouteRow | None, new: RouteRow | None, before_at: datetime, after_at: datetime) -> str | None:
    was = old is not None and (old.lifetime is None or old.lifetime > before_at)
    now = new is not None and (new.lifetime is None or new.lifetime > after_at)
    if not was and not now:
        return None
    if new is None:
        return "route vanished"
    if old is None:
        return "route appeared"
    if was != now:
        return "route expired" if was else "route prolonged"
    said = [(route.service, route.broker, route.address, route.mirror) for route in (old, new)]
    return "route changed" if said[0] != said[1] else None


def _keyed(rows: Tables) -> dict[RouteKey, RouteRow]:
    """Routes by table and name, which SQL Server keeps unique; where rows do not, in the order of their ids."""
    found: dict[RouteKey, RouteRow] = {}
    for route in sorted(rows.routes, key=lambda route: route.route_id):
        number = 0
        while (route.database, route.name, number) in found:
            number += 1
        found[route.database, route.name, number] = route
    return found


def _compare_databases(before: Tables, after: Tables) -> Iterator[_Difference]:
    for database in sorted(before.databases.keys() | after.databases.keys()):
        had, has = set(before.services.get(database, ())), set(after.services.get(database, ()))
        for service in sorted(had ^ has):
            kind = "service dropped" if service in had else "service created"
            yield _Difference(Cause(kind, f"{database}/service {name(service)}"), database, frozenset((service,)))
        old, new = before.databases.get(database), after.databases.get(database)
        either: frozenset[str | None] = frozenset((*had, *has, None))
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
