"""Reads scripts into catalog tables by running their statements on a model of an instance."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

import pyarrow as pa

from ssbroker import schemas
from ssbroker._arguments import utc_datetime
from ssbroker.ddl import parser_objects, statements
from ssbroker.ddl.lexer import RefusalError, ScriptSource, batches, parse_lifetime, parse_list, parse_route_id
from ssbroker.ddl.parser import ParsedBatch, parse
from ssbroker.ddl.route_validation import AUTO_CREATED_LOCAL, check
from ssbroker.ddl.statements import BrokerOption, Clauses, EndpointSettings, QueueName, SecurityStatement, Statement
from ssbroker.exceptions import DdlError, DdlWarning

SYSTEM_DATABASES: Final = frozenset({"master", "model", "msdb", "tempdb"})
"""The databases that every instance has. Only their names are case-insensitive."""

FIRST_ROUTE_ID: Final = 65_536
"""The id of the first route of a database in SQL Server."""

ROUTE_ID_MAX: Final = 2**31 - 1

UNNAMED_DATABASE: Final = "user"
"""The name of the database if a script does not name one."""


@dataclass(slots=True)
class DatabaseModel:
    """A row of sys.databases."""

    guid: bytes | None = None
    enabled: bool = True

    def apply(self, option: BrokerOption) -> None:
        """Applies I4, I5 or I6; the broker id is unknown after NEW_BROKER."""
        self.enabled = option != "DISABLE_BROKER"
        if option == "NEW_BROKER":
            self.guid = None


@dataclass(slots=True)
class RouteModel:
    """A row of sys.routes; the id None is not assigned yet."""

    address: str
    service_name: str | None = None
    broker_instance: bytes | None = None
    lifetime: datetime | None = None
    mirror_address: str | None = None
    route_id: int | None = None


@dataclass(slots=True)
class EndpointModel:
    """The Service Broker endpoint; annotated `addresses` replace those of the listener."""

    name: str
    settings: EndpointSettings
    addresses: tuple[str, ...] | None = None


class ScriptPosition(NamedTuple):
    """Where a statement of a script starts."""

    file: str | None
    """The script; None if it was passed as text."""
    line: int
    """The line, counted from 1."""


ObjectKind = Literal["database", "route", "queue", "service", "endpoint"]
"""The kinds of objects whose statements a script records."""


@dataclass(slots=True)
class InstanceModel:
    """The state that statements change; databases, routes and services are in order of creation."""

    now: datetime
    positions: dict[tuple[ObjectKind, str, str], ScriptPosition] = field(default_factory=dict)
    """The last CREATE or ALTER of each object, by kind, database (empty for an endpoint) and name (empty for a database)."""
    databases: dict[str, DatabaseModel] = field(default_factory=dict)
    routes: dict[tuple[str, str], RouteModel] = field(default_factory=dict)
    services: dict[tuple[str, str], tuple[str, str, str]] = field(default_factory=dict)
    """The queue of each (database, service)."""
    queues: set[tuple[str, str, str]] = field(default_factory=set)
    endpoint: EndpointModel | None = None
    addresses: list[str] = field(default_factory=list)
    pending_requests: list[str] = field(default_factory=list)
    current: str | None = None
    dropped: set[str] = field(default_factory=set)

    def use(self, name: str) -> None:
        """Makes a database the current one; creates it unless the script dropped it."""
        name = canonical_name(name)
        # Scripts often use master only to create databases and endpoints.
        if name not in SYSTEM_DATABASES - {"msdb"}:
            self.database(name)
        self.current = name

    def current_database(self) -> str:
        """Returns the current database; before any USE, the only user database, which is created if there is none."""
        if self.current is None:
            users = [name for name in self.databases if name not in SYSTEM_DATABASES] or [UNNAMED_DATABASE]
            if len(users) > 1:
                raise RefusalError(f"USE is required to select one of the databases {', '.join(users)}")
            self.current = users[0]
        self.database(self.current)
        return self.current

    def database(self, name: str) -> DatabaseModel:
        """Returns the database of that name; creates it unless the script dropped it."""
        if name in self.databases:
            return self.databases[name]
        if name in self.dropped:
            raise RefusalError(f"the database {name} was dropped", 911)
        for other in self.databases:
            if other.casefold() == name.casefold():
                raise RefusalError(
                    f"the database {name} differs only in case from {other}; names are case-sensitive", 911
                )
        return self.add(name)

    def create(self, name: str) -> DatabaseModel:
        """Creates a database, which must not exist."""
        if name in self.databases or canonical_name(name) in SYSTEM_DATABASES:
            raise RefusalError(f"the database {name} already exists", 1801)
        self.dropped.discard(name)
        return self.add(name)

    def add(self, name: str) -> DatabaseModel:
        """Adds a database with its initial route."""
        database = self.databases[name] = DatabaseModel()
        if name != "master":
            self.routes[name, AUTO_CREATED_LOCAL] = RouteModel("LOCAL")
        return database

    def drop(self, name: str, *, if_exists: bool) -> None:
        """Drops a database and everything in it."""
        name = canonical_name(name)
        if name in SYSTEM_DATABASES:
            raise RefusalError(f"{name} is a system database and cannot be dropped", 3708)
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
        """Renames a database; it keeps its position in all orders."""
        if SYSTEM_DATABASES & {name, canonical_name(new)}:
            raise RefusalError("a system database cannot be renamed", 3708)
        if new in self.databases:
            raise RefusalError(f"the database {new} already exists", 1801)
        self.databases = {new if key == name else key: value for key, value in self.databases.items()}
        self.routes = {(new if key[0] == name else key[0], key[1]): value for key, value in self.routes.items()}
        self.services = {
            (new if key[0] == name else key[0], key[1]): (new if queue[0] == name else queue[0], *queue[1:])
            for key, queue in self.services.items()
        }
        self.queues = {(new if key[0] == name else key[0], *key[1:]) for key in self.queues}
        self.positions = {(key[0], new if key[1] == name else key[1], key[2]): at for key, at in self.positions.items()}
        self.current = new if self.current == name else self.current
        self.dropped = (self.dropped | {name}) - {new}

    def has_enabled_duplicate(self, database: DatabaseModel) -> bool:
        """Returns whether another enabled database has the same broker id (I7)."""
        return any(
            other.enabled and other.guid == database.guid and other is not database
            for other in self.databases.values()
            if database.guid is not None
        )

    def record_position(self, statement: Statement, at: ScriptPosition) -> None:
        """Records the statement that created or changed an object, after it ran."""
        match statement:
            case statements.CreateRoute(name) | statements.AlterRoute(name):
                self.positions["route", self.current_database(), name] = at
            case statements.CreateService(name) | statements.AlterService(name):
                self.positions["service", self.current_database(), name] = at
            case statements.CreateQueue(queue) | statements.AlterQueue(queue):
                database, schema, name = _queue_key(self, queue)
                self.positions["queue", database, f"{schema}.{name}"] = at
            case statements.CreateEndpoint(name) | statements.AlterEndpoint(name):
                self.positions["endpoint", "", name] = at
            case statements.CreateDatabase(name):
                self.positions["database", name, ""] = at
            case statements.AlterDatabase(name, _, new_name):
                self.positions["database", new_name or name or self.current_database(), ""] = at
            case statements.UseDatabase(name):
                self.positions.setdefault(("database", canonical_name(name), ""), at)


def canonical_name(name: str) -> str:
    """Returns the name of a system database in lower case, any other name unchanged."""
    return name.lower() if name.isascii() and name.lower() in SYSTEM_DATABASES else name


_NO_EFFECT_ON_ROUTING: Final = "skipped (does not affect routing)"
_ROUTE_KEYS: Final = frozenset({"route_id", "lifetime"})
_DATABASE_KEYS: Final = frozenset({"service_broker_guid"})
_ENDPOINT_KEYS: Final = frozenset({"addresses_only"})
_ANNOTATION_KEYS: Final[dict[type, frozenset[str]]] = {
    statements.CreateRoute: _ROUTE_KEYS,
    statements.AlterRoute: _ROUTE_KEYS,
    statements.UseDatabase: _DATABASE_KEYS,
    statements.CreateDatabase: _DATABASE_KEYS,
    statements.AlterDatabase: _DATABASE_KEYS,
    statements.CreateEndpoint: _ENDPOINT_KEYS,
    statements.AlterEndpoint: _ENDPOINT_KEYS,
}


def run(instance: InstanceModel, statement: Statement, annotations: Mapping[str, str]) -> str | None:
    """Runs one statement with its annotations; returns a warning about what was ignored.

    Raises:
        RefusalError: SQL Server would refuse the statement.
    """
    misplaced = annotations.keys() - _ANNOTATION_KEYS.get(type(statement), frozenset())
    if misplaced:
        raise RefusalError(f"the annotation {min(misplaced)} does not apply to this statement")
    if isinstance(statement, SecurityStatement):
        return _NO_EFFECT_ON_ROUTING
    match statement:
        case statements.CreateRoute() | statements.AlterRoute() | statements.DropRoute():
            _run_route(instance, statement, annotations)
        case statements.CreateQueue() | statements.AlterQueue() | statements.DropQueue():
            _run_queue(instance, statement)
        case statements.CreateService() | statements.AlterService() | statements.DropService():
            _run_service(instance, statement)
        case statements.CreateEndpoint() | statements.AlterEndpoint() | statements.DropEndpoint():
            return _run_endpoint(instance, statement, annotations)
        case statements.Skipped(contained):
            return f"skipped entirely, including {', '.join(contained)}" if contained else _NO_EFFECT_ON_ROUTING
        case (
            statements.CreateMessageType()
            | statements.AlterMessageType()
            | statements.DropMessageType()
            | statements.CreateContract()
            | statements.DropContract()
            | statements.CreatePriority()
            | statements.AlterPriority()
            | statements.DropPriority()
        ):
            return _NO_EFFECT_ON_ROUTING
        case _:
            return _run_database(instance, statement, annotations.get("service_broker_guid"))
    return None


def _run_database(
    instance: InstanceModel,
    statement: statements.UseDatabase | statements.CreateDatabase | statements.AlterDatabase | statements.DropDatabase,
    guid: str | None,
) -> str | None:
    match statement:
        case statements.DropDatabase(names, if_exists):
            for name in names:
                instance.drop(name, if_exists=if_exists)
        case statements.UseDatabase(name):
            instance.use(name)
            if guid is not None:
                _set_broker(instance, canonical_name(name), None, guid)
        case statements.CreateDatabase(name, attached, option):
            instance.create(name)
            _set_broker(instance, name, option, guid, attached=attached)
        case statements.AlterDatabase(given, option, new_name, ignored):
            name = instance.current_database() if given is None else canonical_name(given)
            if name in instance.dropped:
                raise RefusalError(f"the database {name} was dropped", 5011)
            _set_broker(instance, name, option, guid)
            if new_name is not None:
                instance.rename(name, new_name)
            return f"skipped {ignored}" if ignored else None
    return None


def _set_broker(
    instance: InstanceModel, name: str, option: BrokerOption | None, guid: str | None, *, attached: bool = False
) -> None:
    database = instance.database(name)
    if option is not None:
        database.apply(option)
    if guid is not None:
        database.guid = None if guid == "unknown" else _guid(guid)
    if database.enabled and instance.has_enabled_duplicate(database):
        if not attached:
            raise RefusalError(f"another enabled database has the broker id of {name}", 9772)
        database.enabled = False


def _guid(text: str) -> bytes:
    try:
        return uuid.UUID(text).bytes
    except ValueError:
        raise RefusalError(f"the annotation service_broker_guid={text} is not a valid GUID") from None


def _run_route(
    instance: InstanceModel,
    statement: statements.CreateRoute | statements.AlterRoute | statements.DropRoute,
    annotations: Mapping[str, str],
) -> None:
    key = (instance.current_database(), statement.name)
    exists = key in instance.routes
    if isinstance(statement, statements.CreateRoute):
        if exists:
            hint = f"; every database is created with it: remove this statement, or run DROP ROUTE {AUTO_CREATED_LOCAL} before it"
            hint = hint if statement.name == AUTO_CREATED_LOCAL else ""
            raise RefusalError(f"the database {key[0]} already has a route of this name{hint}")
        instance.routes[key] = _route(RouteModel(""), statement.clauses, annotations, instance.now)
    elif not exists:
        near = [n for db, n in instance.routes if db == key[0] and n.casefold() == statement.name.casefold()]
        hint = f"; {near[0]} differs only in case" if near else ""
        raise RefusalError(f"the database {key[0]} has no route of this name{hint}", 15151)
    elif isinstance(statement, statements.DropRoute):
        del instance.routes[key]
    else:
        instance.routes[key] = _route(instance.routes[key], statement.clauses, annotations, instance.now)


def _route(old: RouteModel, given: Clauses, annotations: Mapping[str, str], now: datetime) -> RouteModel:
    """Returns the route with the given clauses, and the old values for all others."""
    broker_instance = None if old.broker_instance is None else str(uuid.UUID(bytes=old.broker_instance))
    clauses = Clauses(
        service_name=old.service_name if given.service_name is None else given.service_name,
        broker_instance=broker_instance if given.broker_instance is None else given.broker_instance,
        lifetime=given.lifetime,
        address=(old.address or None) if given.address is None else given.address,
        mirror_address=old.mirror_address if given.mirror_address is None else given.mirror_address,
    )
    guid = check(clauses)
    lifetime = old.lifetime
    if "lifetime" in annotations:
        lifetime = parse_lifetime(annotations["lifetime"])
    elif given.lifetime is not None:
        try:
            lifetime = now + timedelta(seconds=given.lifetime)
        except OverflowError:
            raise RefusalError(f"LIFETIME = {given.lifetime} ends after the year 9999", 9746) from None
    route_id = parse_route_id(annotations["route_id"]) if "route_id" in annotations else old.route_id
    return RouteModel(clauses.address or "", clauses.service_name, guid, lifetime, clauses.mirror_address, route_id)


def _queue_key(instance: InstanceModel, queue: QueueName) -> tuple[str, str, str]:
    """Returns the key of a queue; its name is case-insensitive, as in SQL Server by default, because queues do not affect routing."""
    name = instance.current_database() if queue.database is None else canonical_name(queue.database)
    instance.database(name)
    return name, queue.schema.casefold(), queue.name.casefold()


def _run_queue(
    instance: InstanceModel, statement: statements.CreateQueue | statements.AlterQueue | statements.DropQueue
) -> None:
    key = _queue_key(instance, statement.queue)
    if isinstance(statement, statements.CreateQueue):
        if key in instance.queues:
            raise RefusalError(f"the database {key[0]} already has a queue of this name", 2714)
        instance.queues.add(key)
        return
    _require_queue(instance, key, statement.queue)
    if isinstance(statement, statements.DropQueue):
        users = [name for (_, name), queue in instance.services.items() if queue == key]
        if users:
            raise RefusalError(f"the service {users[0]} still uses the queue")
        instance.queues.remove(key)


def _require_queue(instance: InstanceModel, key: tuple[str, str, str], queue: QueueName) -> None:
    if key not in instance.queues:
        raise RefusalError(f"the database {key[0]} has no queue {queue.schema}.{queue.name}", 15151)


def _run_service(
    instance: InstanceModel, statement: statements.CreateService | statements.AlterService | statements.DropService
) -> None:
    key = (instance.current_database(), statement.name)
    exists = key in instance.services
    if isinstance(statement, statements.CreateService) and exists:
        raise RefusalError(f"the database {key[0]} already has a service of this name")
    if not isinstance(statement, statements.CreateService) and not exists:
        raise RefusalError(f"the database {key[0]} has no service of this name", 15151)
    if isinstance(statement, statements.DropService):
        del instance.services[key]
    elif statement.queue is not None:
        queue = _queue_key(instance, statement.queue)
        _require_queue(instance, queue, statement.queue)
        instance.services[key] = queue


def _run_endpoint(
    instance: InstanceModel,
    statement: statements.CreateEndpoint | statements.AlterEndpoint | statements.DropEndpoint,
    annotations: Mapping[str, str],
) -> str | None:
    endpoint = instance.endpoint
    is_known = endpoint is not None and endpoint.name == statement.name
    if isinstance(statement, statements.CreateEndpoint):
        if endpoint is not None:
            raise RefusalError(
                f"the instance already has the Service Broker endpoint {endpoint.name}; only one is allowed", 7862
            )
        endpoint = EndpointModel(statement.name, statement.settings)
    elif isinstance(statement, statements.DropEndpoint):
        if is_known:
            instance.endpoint = None
        return None if is_known else "skipped (not a Service Broker endpoint created by this script)"
    elif not is_known and not statement.for_broker:
        return "skipped (not a Service Broker endpoint created by this script)"
    else:
        if endpoint is not None and not is_known:
            raise RefusalError(f"the name of the Service Broker endpoint is {endpoint.name}", 15151)
        # An endpoint that the script did not create exists already, on an unknown port.
        endpoint = endpoint or EndpointModel(statement.name, EndpointSettings())
        changed = {
            key: value
            for key in ("port", "ip", "forwarding")
            if (value := getattr(statement.settings, key)) is not None
        }
        endpoint = replace(endpoint, settings=replace(endpoint.settings, **changed))
    if "addresses_only" in annotations:
        endpoint.addresses = tuple(filter(None, parse_list(annotations["addresses_only"])))
    instance.endpoint = endpoint
    return None


@dataclass(frozen=True)
class ScriptTables:
    """The result of running a script: the arguments of `Catalog`."""

    routes: pa.Table
    """In the schema `schemas.ROUTES`, in order of creation."""
    databases: pa.Table
    """In the schema `schemas.DATABASES`, all databases including msdb."""
    services: pa.Table
    """In the schema `schemas.SERVICES`, in order of creation."""
    addresses: tuple[str, ...]
    """The instance's own addresses, as far as the script specifies them."""
    message_forwarding: bool
    pending_requests: tuple[str, ...]
    positions: Mapping[tuple[ObjectKind, str, str], ScriptPosition] = field(default_factory=dict, compare=False)
    """As in `InstanceModel`."""


def read(text: str, *, now: datetime, file: str | None = None) -> ScriptTables:
    """Reads a DDL script.

    The script runs on a model of an instance. Databases that it uses but does not create exist already, with the route
    AutoCreatedLocal, the broker enabled and an unknown broker id. Statements that do not affect routing are skipped, and
    so are IF, WHILE and BEGIN ... END with everything inside. `USE master` alone does not add the database; statements
    before any `USE` belong to the only user database of the script, or to one named `user`.

    The port and IP address of an endpoint give the instance's own addresses: with `LISTENER_IP = ALL`, those of the
    loopback interface, because a script does not know its host. A comment such as
    `-- ssbroker: addresses=TCP://host:4022` adds others.

    LIFETIME counts from `now`, which is UTC if it has no time zone. Errors and warnings name `file`.

    Raises:
        DdlError: SQL Server would refuse a statement, or it cannot be parsed; with file, line and error number.

    Warns:
        DdlWarning: A statement was skipped; with file, line and the first words.

    Examples:
        >>> from datetime import datetime
        >>> script = read("USE Sales; CREATE QUEUE Q; CREATE SERVICE [//A/B] ON QUEUE Q;", now=datetime(2026, 11, 20))
        >>> script.services.to_pylist()
        [{'database': 'Sales', 'name': '//A/B'}]
        >>> script.routes["name"].to_pylist()
        ['AutoCreatedLocal', 'AutoCreatedLocal']
    """
    return read_all([(text, file)], now=now)


def read_all(scripts: Iterable[tuple[str, str | None]], *, now: datetime) -> ScriptTables:
    """Reads scripts, given as text and file name, that run one after the other; otherwise like `read`.

    Examples:
        >>> from datetime import datetime
        >>> scripts = [("USE Sales", "1.sql"), ("CREATE ROUTE Any WITH ADDRESS = 'LOCAL'", "2.sql")]
        >>> read_all(scripts, now=datetime(2026, 11, 20)).routes["name"].to_pylist()
        ['AutoCreatedLocal', 'Any', 'AutoCreatedLocal']
    """
    instance = InstanceModel(utc_datetime(now))
    for text, file in scripts:
        source = ScriptSource(text, file)
        for batch in batches(source):
            parsed = parse(source, batch)
            # Further runs fail like the second one: what it creates exists already.
            for repeat in range(min(batch.count, 2)):
                _run_batch(source, instance, parsed, warn=repeat == 0)
            _apply_instance_annotations(source, instance, parsed)
    instance.database("msdb")
    return _script_tables(instance)


def _run_batch(source: ScriptSource, instance: InstanceModel, batch: ParsedBatch, *, warn: bool) -> None:
    for parsed in batch.statements:
        try:
            skipped = run(instance, parsed.statement, parsed.annotations)
        except RefusalError as refusal:
            raise source.error(parsed.start, refusal.reason, subject=parsed.subject, number=refusal.number) from None
        instance.record_position(parsed.statement, ScriptPosition(source.file, source.line(parsed.start)))
        if skipped is not None and warn:
            # Points to the caller of `read`; for `read_all`, to the module above the caller.
            warnings.warn(f"{source.location(parsed.start)}: {parsed.subject}: {skipped}", DdlWarning, stacklevel=4)


def _apply_instance_annotations(source: ScriptSource, instance: InstanceModel, batch: ParsedBatch) -> None:
    for position, key, value in batch.instance_annotations:
        try:
            values = parse_list(value)
        except RefusalError as refusal:
            raise source.error(position, refusal.reason) from None
        if key == "addresses":
            instance.addresses.extend(filter(None, values))
        else:
            instance.pending_requests.extend(values)


def _script_tables(instance: InstanceModel) -> ScriptTables:
    endpoint = instance.endpoint
    listed: tuple[str, ...] = ()
    if endpoint is not None:
        settings = endpoint.settings
        listed = (
            endpoint.addresses
            if endpoint.addresses is not None
            else parser_objects.listener_addresses(settings.port, settings.ip)
        )
    return ScriptTables(
        routes=_routes_table(instance),
        databases=pa.Table.from_pydict(
            {
                "name": list(instance.databases),
                "service_broker_guid": [database.guid for database in instance.databases.values()],
                "is_broker_enabled": [database.enabled for database in instance.databases.values()],
            },
            schema=schemas.DATABASES,
        ),
        services=pa.Table.from_pydict(
            {
                "database": [database for database, _ in instance.services],
                "name": [name for _, name in instance.services],
            },
            schema=schemas.SERVICES,
        ),
        addresses=tuple(dict.fromkeys([*listed, *instance.addresses])),
        message_forwarding=endpoint is not None and bool(endpoint.settings.forwarding),
        pending_requests=tuple(instance.pending_requests),
        positions=instance.positions,
    )


def _routes_table(instance: InstanceModel) -> pa.Table:
    routes = instance.routes.values()
    columns: dict[str, list[Any]] = {
        "database": [database for database, _ in instance.routes],
        "name": [name for _, name in instance.routes],
        "route_id": _route_ids(instance),
        "remote_service_name": [route.service_name for route in routes],
        "broker_instance": [route.broker_instance for route in routes],
        "lifetime": [route.lifetime for route in routes],
        "address": [route.address for route in routes],
        "mirror_address": [route.mirror_address for route in routes],
    }
    return pa.Table.from_pydict(columns, schema=schemas.ROUTES)


def _route_ids(instance: InstanceModel) -> list[int]:
    """Returns the route ids; those without annotation continue from the highest of their database."""
    highest: dict[str, int] = {}
    for (database, _), route in instance.routes.items():
        highest[database] = max(highest.get(database, FIRST_ROUTE_ID - 1), route.route_id or 0)
    ids = []
    for (database, _), route in instance.routes.items():
        if route.route_id is None:
            if highest[database] == ROUTE_ID_MAX:
                raise DdlError(
                    f"the database {database}: no route id is left after {ROUTE_ID_MAX}; annotate each route with its route_id"
                )
            highest[database] += 1
        ids.append(highest[database] if route.route_id is None else route.route_id)
    return ids
