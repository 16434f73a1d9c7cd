"""The input of the routing oracle: one instance with databases, services and routes, and conversations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from uuid import UUID

MSDB = "msdb"
FIRST_ASSIGNED_ROUTE_ID = 65536


@dataclass(frozen=True, kw_only=True)
class Route:
    """A row of `sys.routes`; None is an omitted name or broker id, or an unlimited lifetime."""

    database: str
    address: str
    route_id: int | None = None
    name: str = "route"
    remote_service_name: str | None = None
    broker_instance: UUID | None = None
    lifetime: datetime | None = None
    mirror_address: str | None = None


@dataclass(frozen=True, kw_only=True)
class Database:
    """A row of `sys.databases`; a broker id of None is unknown (R1)."""

    name: str
    service_broker_guid: UUID | None = None
    is_broker_enabled: bool = True


@dataclass(frozen=True, kw_only=True)
class Service:
    """A row of `sys.services`."""

    database: str
    name: str


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """A row of `sys.transmission_queue`; a database of None means that it arrived from outside the instance."""

    to_service_name: str
    database: str | None = None
    to_broker_instance: UUID | None = None
    is_initiator: bool = True
    conversation_id: UUID | None = None


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A row of the decisions."""

    outcome: str
    reason: str
    match_step: int | None = None
    route_id: int | None = None
    next_hop_address: str | None = None
    mirror_address: str | None = None
    target_database: str | None = None
    broker_instance: UUID | None = None


@dataclass(frozen=True, kw_only=True)
class World:
    """One instance with its databases, services, routes and addresses."""

    routes: tuple[Route, ...] = ()
    databases: tuple[Database, ...] = ()
    services: tuple[Service, ...] = ()
    addresses: tuple[str, ...] = ()
    message_forwarding: bool = False
    pending_requests: tuple[str, ...] = field(default=())

    @cached_property
    def instance_databases(self) -> tuple[Database, ...]:
        """The given databases, those that only routes name (enabled, with unknown id), and msdb."""
        databases = {database.name: database for database in self.databases}
        for route in self.routes:
            databases.setdefault(route.database, Database(name=route.database))
        databases.setdefault(MSDB, Database(name=MSDB))
        return tuple(databases.values())

    @cached_property
    def tables(self) -> dict[str, tuple[Route, ...]]:
        """R1: every database has its own routing table. Missing route ids follow the highest."""
        return {database.name: self._table(database.name) for database in self.instance_databases}

    def _table(self, database: str) -> tuple[Route, ...]:
        rows = [route for route in self.routes if route.database == database]
        given = [route.route_id for route in rows if route.route_id is not None]
        following = max([FIRST_ASSIGNED_ROUTE_ID - 1, *given]) + 1
        table = []
        for route in rows:
            if route.route_id is None:
                table.append(replace(route, route_id=following))
                following += 1
            else:
                table.append(route)
        return tuple(table)
