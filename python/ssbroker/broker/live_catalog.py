"""The catalog and the routers of a running instance, rebuilt when its objects, addresses or pending route requests change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

import pyarrow as pa

from ssbroker import schemas
from ssbroker.broker.context import DatabaseContext, InstanceContext
from ssbroker.catalog.catalog import Catalog
from ssbroker.catalog.details import EndpointDetails, InstanceDetails, QueueDetails, ServiceDetails
from ssbroker.ddl.model import listener_addresses
from ssbroker.router import PendingRequest, Router, TieBreak
from ssbroker.store.objects import Objects

_READ_ATTEMPTS_MAX: Final = 100


class LiveCatalog:
    """The catalog and routers of a running instance. Thread-safe."""

    def __init__(
        self, instance: InstanceContext, *, pending_requests: Callable[[DatabaseContext, Objects], Iterable[str]]
    ) -> None:
        self._instance: Final = instance
        self._pending_requests: Final = pending_requests
        self._guard: Final = threading.RLock()
        self._version: Hashable = None
        self._catalog: Catalog | None = None
        self._addresses: tuple[str, ...] = ()
        self._routers: dict[tuple[TieBreak, PendingRequest], Router] = {}

    def add_addresses(self, addresses: Iterable[str] | None) -> None:
        """Adds addresses of the serving endpoint (R41); None removes all addresses when serving has ended."""
        with self._guard:
            self._addresses = () if addresses is None else tuple(dict.fromkeys([*self._addresses, *addresses]))
            self._version = None

    def catalog(self) -> Catalog:
        """Returns the current catalog."""
        return self._current()[0]

    def router(self, *, tie_break: TieBreak = "hash", pending_request: PendingRequest = "continue") -> Router:
        """Returns a router for the current catalog; its round-robin counters are kept until the catalog changes."""
        catalog, routers = self._current()
        key = (tie_break, pending_request)
        router = routers.get(key)
        if router is None:
            router = routers.setdefault(key, Router(catalog, tie_break=tie_break, pending_request=pending_request))
        return router

    def _current(self) -> tuple[Catalog, dict[tuple[TieBreak, PendingRequest], Router]]:
        databases = self._read()
        pending = sorted({name for each in databases for name in self._pending_requests(*each)})
        version = (tuple((database.name, objects.version) for database, objects in databases), *pending)
        with self._guard:
            if self._catalog is None or self._version != version:
                self._catalog = _catalog(databases, self._addresses, pending)
                self._routers = {}
                self._version = version
            return self._catalog, self._routers

    def _read(self) -> list[tuple[DatabaseContext, Objects]]:
        """Reads the databases. As they are read at different times, two may seem to be enabled with the same broker id; then reads all again."""
        for _ in range(_READ_ATTEMPTS_MAX):
            databases = self._instance.databases_list.readable()
            brokers = [objects.broker for _, objects in databases]
            enabled = [broker.service_broker_guid for broker in brokers if broker.is_broker_enabled]
            if len({*enabled}) == len(enabled):
                break
        return databases


def _catalog(
    databases: list[tuple[DatabaseContext, Objects]], served: Sequence[str], pending: Sequence[str]
) -> Catalog:
    routes: dict[str, list[object]] = {name: [] for name in schemas.ROUTES.names}
    for database, objects in databases:
        for route in objects.routes.values():
            for name, column in routes.items():
                column.append(database.name if name == "database" else getattr(route, name))
    endpoint = databases[0][1].endpoint
    return Catalog(
        pa.table(
            {name: pa.array(column, schemas.ROUTES.field(name).type) for name, column in routes.items()},
            schema=schemas.ROUTES,
        ),
        pa.table(
            {
                "name": [database.name for database, _ in databases],
                "service_broker_guid": [objects.broker.service_broker_guid for _, objects in databases],
                "is_broker_enabled": [objects.broker.is_delivering for _, objects in databases],
            },
            schema=schemas.DATABASES,
        ),
        pa.table(
            {
                "database": [database.name for database, objects in databases for _ in objects.services],
                "name": [name for _, objects in databases for name in objects.services],
            },
            schema=schemas.SERVICES,
        ),
        addresses=served or (() if endpoint is None else listener_addresses(endpoint.port, endpoint.ip)),
        message_forwarding=endpoint is not None and endpoint.is_message_forwarding_enabled,
        pending_requests=pending,
    ).with_details(_details(databases))


def _details(databases: list[tuple[DatabaseContext, Objects]]) -> InstanceDetails:
    """Returns the metadata of the instance that only the diagnostics use."""
    services: dict[tuple[str, str], ServiceDetails] = {}
    queues: dict[tuple[str, str], QueueDetails] = {}
    for database, objects in databases:
        names = {queue.queue_id: f"{queue.schema_name}.{queue.name}".casefold() for queue in objects.queues.values()}
        for service in objects.services.values():
            services[database.name, service.name] = ServiceDetails(
                queue=names[service.queue_id], accepts_conversations=bool(service.contracts)
            )
        for queue in objects.queues.values():
            queues[database.name, names[queue.queue_id]] = QueueDetails(
                schema=queue.schema_name,
                name=queue.name,
                is_enabled=queue.is_receive_enabled and queue.is_enqueue_enabled,
            )
    endpoint = databases[0][1].endpoint
    return InstanceDetails(
        services=services,
        queues=queues,
        endpoint=None if endpoint is None else EndpointDetails(name=endpoint.name, state=endpoint.state),
        mirroring_roles={
            database.name: objects.broker.mirroring_role
            for database, objects in databases
            if objects.broker.mirroring_role != "principal"
        },
    )
