"""An instance as a script makes it, statement by statement: databases, their broker ids, and what stands in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from ssbroker.ddl.routes import AUTO_CREATED_LOCAL
from ssbroker.ddl.source import RefusalError
from ssbroker.ddl.statements import BrokerOption, EndpointSettings

SYSTEM_DATABASES: Final = frozenset({"master", "model", "msdb", "tempdb"})
"""Databases that every instance has. Their names are read in any case; those of others compare byte by byte."""

FIRST_ROUTE_ID: Final = 65_536
"""The id that SQL Server gives to the first route of a database."""

ROUTE_ID_MAX: Final = 2**31 - 1

UNNAMED_DATABASE: Final = "user"
"""The database of a script that names none."""


@dataclass(slots=True)
class Database:
    """A row of sys.databases."""

    guid: bytes | None = None
    enabled: bool = True

    def apply(self, option: BrokerOption) -> None:
        """Applies I4, I5 or I6; a new broker id is not known."""
        self.enabled = option != "DISABLE_BROKER"
        if option == "NEW_BROKER":
            self.guid = None


@dataclass(slots=True)
class Route:
    """A row of sys.routes; an id of None is not assigned yet."""

    address: str
    service_name: str | None = None
    broker_instance: bytes | None = None
    lifetime: datetime | None = None
    mirror_address: str | None = None
    route_id: int | None = None


@dataclass(slots=True)
class Endpoint:
    """The endpoint for Service Broker; `addresses` is the annotated list that stands instead of the listener's."""

    name: str
    settings: EndpointSettings
    addresses: tuple[str, ...] | None = None


@dataclass(slots=True)
class Instance:
    """The state that statements change. Databases, routes and services are in the order of their creation."""

    now: datetime
    databases: dict[str, Database] = field(default_factory=dict)
    routes: dict[tuple[str, str], Route] = field(default_factory=dict)
    services: dict[tuple[str, str], tuple[str, str, str]] = field(default_factory=dict)
    """The queue of each (database, service)."""
    queues: set[tuple[str, str, str]] = field(default_factory=set)
    endpoint: Endpoint | None = None
    addresses: list[str] = field(default_factory=list)
    pending_requests: list[str] = field(default_factory=list)
    current: str | None = None
    dropped: set[str] = field(default_factory=set)

    def use(self, name: str) -> None:
        """Makes a database the current one. One that the script neither created nor dropped was there before it."""
        name = canonical(name)
        # Scripts pass through master to create databases and endpoints; that alone puts nothing into it.
        if name not in SYSTEM_DATABASES - {"msdb"}:
            self.database(name)
        self.current = name

    def context(self) -> str:
        """The current database. Before any USE it is the one user database, or a new one where there is none."""
        if self.current is None:
            users = [name for name in self.databases if name not in SYSTEM_DATABASES] or [UNNAMED_DATABASE]
            if len(users) > 1:
                raise RefusalError(f"no USE says which database is meant: {', '.join(users)}")
            self.current = users[0]
        self.database(self.current)
        return self.current

    def database(self, name: str) -> Database:
        """The database of that name, which exists unless the script dropped it."""
        if name in self.databases:
            return self.databases[name]
        if name in self.dropped:
            raise RefusalError(f"the database {name} was dropped", 911)
        for other in self.databases:
            if other.casefold() == name.casefold():
                raise RefusalError(
                    f"the database {name} differs only in case from {other}; names compare byte by byte", 911
                )
        return self.add(name)

    def create(self, name: str) -> Database:
        """A new database."""
        if name in self.databases or canonical(name) in SYSTEM_DATABASES:
            raise RefusalError(f"the database {name} exists", 1801)
        self.dropped.discard(name)
        return self.add(name)

    def add(self, name: str) -> Database:
        """Puts in a database with the route that it begins with."""
        database = self.databases[name] = Database()
        if name != "master":
            self.routes[name, AUTO_CREATED_LOCAL] = Route("LOCAL")
        return database

    def drop(self, name: str, *, if_exists: bool) -> None:
        """Drops a database with all that stands in it."""
        name = canonical(name)
        if name in SYSTEM_DATABASES:
            raise RefusalError(f"{name} is a system database", 3708)
        if name == self.current:
            raise RefusalError(f"the database {name} is in use by this script", 3702)
        if name in self.dropped and not if_exists:
            raise RefusalError(f"the database {name} does not exist", 3701)
        self.databases.pop(name, None)
        self.routes = {key: route for key, route in self.routes.items() if key[0] != name}
        self.services = {key: queue for key, queue in self.services.items() if key[0] != name}
        self.queues = {key for key in self.queues if key[0] != name}
        self.dropped.add(name)

    def rename(self, name: str, new: str) -> None:
        """Gives a database another name; its place in all orders stays."""
        if SYSTEM_DATABASES & {name, canonical(new)}:
            raise RefusalError("a system database keeps its name", 3708)
        if new in self.databases:
            raise RefusalError(f"the database {new} exists", 1801)
        self.databases = {new if key == name else key: value for key, value in self.databases.items()}
        self.routes = {(new if key[0] == name else key[0], key[1]): value for key, value in self.routes.items()}
        self.services = {
            (new if key[0] == name else key[0], key[1]): (new if queue[0] == name else queue[0], *queue[1:])
            for key, queue in self.services.items()
        }
        self.queues = {(new if key[0] == name else key[0], *key[1:]) for key in self.queues}
        self.current = new if self.current == name else self.current
        self.dropped = (self.dropped | {name}) - {new}

    def has_enabled_twin(self, database: Database) -> bool:
        """Whether another enabled database has the same broker id (I7)."""
        return any(
            other.enabled and other.guid == database.guid and other is not database
            for other in self.databases.values()
            if database.guid is not None
        )


def canonical(name: str) -> str:
    """The name of a system database in lower case, any other as it is."""
    return name.lower() if name.isascii() and name.lower() in SYSTEM_DATABASES else name
