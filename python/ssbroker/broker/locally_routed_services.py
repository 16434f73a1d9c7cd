"""The services of a database whose messages stay in it, whatever other databases contain."""

from __future__ import annotations

from typing import Final

from ssbroker._well_known import CONFIGURATION_SERVICE
from ssbroker.store.objects import Objects, Route

_LOCAL: Final = "LOCAL"


def services_routed_locally(objects: Objects) -> frozenset[str]:
    """Returns the services of a database that have no route to another instance, so that messages with its broker id stay in it.

    For these, every routing step that finds a route finds LOCAL (R11 to R16), and *Locate* finds exactly one enabled database with the
    broker id (R31, I7). So neither other databases nor the time can change the result.
    """
    routes = objects.routes.values()
    if not objects.broker.is_delivering or any(one.remote_service_name == CONFIGURATION_SERVICE for one in routes):
        return frozenset()
    routed_services = {one.remote_service_name for one in routes if not _is_local(one)}
    return frozenset() if None in routed_services else frozenset(objects.services.keys() - routed_services)


def _is_local(route: Route) -> bool:
    return route.mirror_address is None and route.address.upper() == _LOCAL
