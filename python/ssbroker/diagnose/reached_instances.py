"""The instances to which a route for a service leads, directly or through forwarders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ssbroker.diagnose.catalog_rows import LOCAL, MSDB, TRANSPORT, FleetRoute, Tables
from ssbroker.diagnose.fleet import Fleet


class ReachedInstances:
    """Follows routes by service name and broker id alone, because the broker ids of the databases may be unknown.

    `is_live` returns whether a route of a forwarder counts; by default, all routes count.
    """

    def __init__(
        self, fleet: Fleet, tables: Mapping[str, Tables], *, is_live: Callable[[FleetRoute], bool] = lambda _: True
    ) -> None:
        self._is_live: Final = is_live
        self._fleet: Final = fleet
        self._tables: Final = tables
        self._msdb_routes: Final[dict[str, dict[str | None, list[FleetRoute]]]] = {}

    def of(self, instance: str, route: FleetRoute, *, with_mirror: bool = False) -> list[str]:
        """Returns the first instances on the path of a route in which a database has the route's service."""
        addresses = (route.address, route.mirror) if with_mirror else (route.address,)
        pending = self._instances(instance, addresses)
        seen = set(pending)
        found: list[str] = []
        for each in pending:  # grows during iteration
            if self._tables[each].hosts.get(str(route.service)):
                found.append(each)
                continue
            following = self._instances(each, (forward.address for forward in self._forwards(each, route)))
            pending += [other for other in following if other not in seen]
            seen.update(following)
        return found

    def _forwards(self, instance: str, route: FleetRoute) -> list[FleetRoute]:
        """Returns the routes in the instance's `msdb` by which it may forward a message that was sent over `route`."""
        if instance not in self._msdb_routes:
            by_service: defaultdict[str | None, list[FleetRoute]] = defaultdict(list)
            for each in self._tables[instance].routes:
                if each.database == MSDB and self._is_live(each):
                    by_service[each.service].append(each)
            self._msdb_routes[instance] = by_service
        routes = self._msdb_routes[instance]
        for_service = [each for each in routes.get(route.service, ()) if each.broker in (None, route.broker)]
        return for_service or [each for each in routes.get(None, ()) if each.broker is None]

    def _instances(self, seen_from: str, addresses: Iterable[str | None]) -> list[str]:
        found = (
            seen_from if address == LOCAL else self._fleet.at(address, seen_from=seen_from)
            for address in addresses
            if address not in (None, TRANSPORT)
        )
        return list(dict.fromkeys(each for each in found if each is not None))
