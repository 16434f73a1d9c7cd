"""The catalog and the router of a live instance, made anew only when something has changed."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker import schemas
from ssbroker.broker.database import Database
from ssbroker.catalog import Catalog
from ssbroker.ddl import endpoints
from ssbroker.routing import PendingRequest, Router, TieBreak
from ssbroker.store.objects import Objects

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance


_LOOKS_MAX: Final = 100


class Pictures:
    """What routing needs to know of an instance, for any number of threads."""

    def __init__(self, instance: Instance) -> None:
        self._instance: Final = instance
        self._guard: Final = threading.RLock()
        self._version: Hashable = None
        self._catalog: Catalog | None = None
        self._addresses: tuple[str, ...] = ()
        self._routers: dict[tuple[TieBreak, PendingRequest], Router] = {}

    def is_reached_at(self, addresses: Iterable[str] | None) -> None:
        """Adds addresses of the serving endpoint (R41); None is that nothing serves any more."""
        with self._guard:
            self._addresses = () if addresses is None else tuple(dict.fromkeys([*self._addresses, *addresses]))
            self._version = None

    def catalog(self) -> Catalog:
        """The catalog of now."""
        return self._current()[0]

    def router(self, *, tie_break: TieBreak, pending_request: PendingRequest) -> Router:
        """A router on the catalog of now; the turns of `round_robin` go on for as long as nothing changes."""
        catalog, routers = self._current()
        key = (tie_break, pending_request)
        router = routers.get(key)
        if router is None:
            router = routers.setdefault(key, Router(catalog, tie_break=tie_break, pending_request=pending_request))
        return router

    def _current(self) -> tuple[Catalog, dict[tuple[TieBreak, PendingRequest], Router]]:
        seen = self._look()
        dynamic_routing = self._instance.worker.dynamic_routing
        pending = sorted({name for each in seen for name in dynamic_routing.pending(*each)})
        version = (tuple((database.name, objects.version) for database, objects in seen), *pending)
        with self._guard:
            if self._catalog is None or self._version != version:
                self._catalog = _catalog(seen, self._addresses, pending)
                self._routers = {}
                self._version = version
            return self._catalog, self._routers

    def _look(self) -> list[tuple[Database, Objects]]:
        """The databases with what stands in them. Each is read at its own moment: an id may seem to move from one to another."""
        for _ in range(_LOOKS_MAX):
            seen = self._instance.seen()
            brokers = [objects.broker for _, objects in seen]
            enabled = [broker.service_broker_guid for broker in brokers if broker.is_broker_enabled]
            if len({*enabled}) == len(enabled):
                break
        return seen


def _catalog(seen: list[tuple[Database, Objects]], served: Sequence[str], pending: Sequence[str]) -> Catalog:
    routes: dict[str, list[object]] = {name: [] for name in schemas.ROUTES.names}
    for database, objects in seen:
        for route in objects.routes.values():
            for name, column in routes.items():
                column.append(database.name if name == "database" else getattr(route, name))
    endpoint = seen[0][1].endpoint
    return Catalog(
        pa.table(
            {name: pa.array(column, schemas.ROUTES.field(name).type) for name, column in routes.items()},
            schema=schemas.ROUTES,
        ),
        pa.table(
            {
                "name": [database.name for database, _ in seen],
                "service_broker_guid": [objects.broker.service_broker_guid for _, objects in seen],
                "is_broker_enabled": [objects.broker.is_delivering for _, objects in seen],
            },
            schema=schemas.DATABASES,
        ),
        pa.table(
            {
                "database": [database.name for database, objects in seen for _ in objects.services],
                "name": [name for _, objects in seen for name in objects.services],
            },
            schema=schemas.SERVICES,
        ),
        addresses=served or (() if endpoint is None else endpoints.addresses(endpoint.port, endpoint.ip)),
        message_forwarding=endpoint is not None and endpoint.is_message_forwarding_enabled,
        pending_requests=pending,
    )
