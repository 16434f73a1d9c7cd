"""Services that a database always routes to itself, whatever other databases hold."""

from __future__ import annotations

from typing import Final

from ssbroker.ddl.route_validation import CONFIGURATION_SERVICE
from ssbroker.store.objects import Objects, Route

_LOCAL: Final = "LOCAL"


def services_routed_locally(objects: Objects) -> frozenset[str]:
    """The services of a database that no route of it leads away from: who names its broker id and one of them finds it here.

    Every step that finds a route finds LOCAL then, if it is the sixth (R11 to R16), and *Locate* knows one enabled database of a broker
    id (R31, I7). So neither what stands in other databases nor the moment can change that.

    Args:
        objects: What stands in the database.

    Returns:
        The names of the services; none where the database delivers nothing, or asks for routes (R14).
    """
    routes = objects.routes.values()
    if not objects.broker.is_delivering or any(one.remote_service_name == CONFIGURATION_SERVICE for one in routes):
        return frozenset()
    leading_away = {one.remote_service_name for one in routes if not _is_local(one)}
    return frozenset() if None in leading_away else frozenset(objects.services.keys() - leading_away)


def _is_local(route: Route) -> bool:
    return route.mirror_address is None and route.address.upper() == _LOCAL
