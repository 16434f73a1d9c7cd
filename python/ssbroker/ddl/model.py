"""A model of an instance, which the statements of a script change as they would change a running instance."""

from __future__ import annotations

import uuid
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from ipaddress import IPv6Address, ip_address
from typing import Any, Final, Literal

from ssbroker._arguments import is_service_name
from ssbroker._text import (
    bracketed,
    did_you_mean,
    may_be_misspelled,
    most_similar,
    restore_spaces,
    shown,
    string_literal,
)
from ssbroker.ddl import catalog_views, refusal_texts, statements
from ssbroker.ddl.annotations import parse_broker_id, parse_lifetime, parse_list, parse_route_id
from ssbroker.ddl.catalog_views import DatabaseObjects, DatabaseRow, EndpointRow, QueueRow, RouteRow, ServiceRow
from ssbroker.ddl.certificate_dates import parse_date
from ssbroker.ddl.errors import RefusalError
from ssbroker.ddl.expressions import Row, folded
from ssbroker.ddl.lexer import ScriptPosition
from ssbroker.ddl.route_validation import AUTO_CREATED_LOCAL, check
from ssbroker.ddl.script_notes import (
    NO_ENDPOINT,
    NOT_ABOUT_BROKER,
    OTHER_ENDPOINT,
    UNUSABLE_KEY,
    NoteKind,
    Remark,
    ScriptNote,
    skipped_remark,
)
from ssbroker.ddl.statements import (
    DEFAULT_LEVEL,
    LEVELS,
    READERS_MAX,
    BrokerOption,
    EndpointSettings,
    QueueName,
    QueueSettings,
    RouteClauses,
    SecurityStatement,
    Statement,
    merge_settings,
)
from ssbroker.ddl.system_objects import (
    SYSTEM_CONTRACTS,
    SYSTEM_DATABASES,
    SYSTEM_MESSAGE_TYPES,
    SYSTEM_SERVICES,
    canonical_name,
    refused_creation_text,
    taken_name_text,
)

FIRST_ROUTE_ID: Final = 65_536
"""The id of the first route of a database in SQL Server."""

ROUTE_ID_MAX: Final = 2**31 - 1

UNUSED_GUID: Final = bytes(16)
"""The broker id that SQL Server shows for `master` and `model`."""

UNNAMED_DATABASE: Final = "user"
"""The name of the database if a script does not name one."""

_SEVERAL_INSTANCES: Final = "; if the files are of several instances, read them with --fleet (Fleet.load in Python)"
_CHECK_ENABLED: Final = "SELECT is_broker_enabled FROM sys.databases WHERE name = "
_MISSPELLED_MIN: Final = 3
"""Names of fewer characters often differ by one letter on purpose."""


@dataclass(slots=True)
class DatabaseModel:
    """A row of sys.databases."""

    guid: bytes | None = None
    enabled: bool = True
    is_assumed: bool = False
    """Whether the script uses the database without creating it, so that the database may contain other objects."""
    is_awaited: bool = False
    """Whether another file, which has not run yet, creates the database."""
    master_password: str | None = field(default=None, repr=False)
    former_guids: tuple[bytes, ...] = ()
    """The broker ids that NEW_BROKER has replaced."""
    is_restored: bool = False
    """Whether the database was restored or attached, and no option has since enabled or disabled its broker."""
    is_offline: bool = False

    @property
    def is_delivering(self) -> bool:
        """Whether the broker is enabled and the database is available."""
        return self.enabled and not self.is_offline

    def apply(self, option: BrokerOption) -> None:
        """Applies a broker option (I4, I5 or I6). After NEW_BROKER, the broker id is unknown, but known to differ from the former one."""
        self.is_restored = False
        self.enabled = option != "DISABLE_BROKER"
        if option == "NEW_BROKER":
            self.former_guids += () if self.guid is None else (self.guid,)
            self.guid = None


@dataclass(slots=True)
class RouteModel:
    """A row of sys.routes; the id is None until it is assigned."""

    address: str
    service_name: str | None = None
    broker_instance: bytes | None = None
    lifetime: datetime | None = None
    mirror_address: str | None = None
    route_id: int | None = None


@dataclass(slots=True)
class EndpointModel:
    """The Service Broker endpoint; annotated `addresses` replace the addresses of the listener."""

    name: str
    settings: EndpointSettings
    addresses: tuple[str, ...] | None = None
    is_assumed: bool = False
    """Whether the script alters the endpoint without creating it, so that the endpoint may be started."""


def listener_addresses(port: int | None, ip: str | None) -> tuple[str, ...]:
    """Returns the addresses of a listener.

    A script does not know the host on which it will run, so a listener on all addresses has only the addresses of the
    loopback interface; an `addresses` annotation adds others.

    Example:
        >>> listener_addresses(4022, "10.0.0.5")
        ('TCP://10.0.0.5:4022',)
        >>> listener_addresses(4022, "ALL")
        ('TCP://localhost:4022', 'TCP://127.0.0.1:4022', 'TCP://[::1]:4022')
    """
    if port is None:
        return ()
    hosts = ["localhost", "127.0.0.1", "[::1]"]
    if ip not in (None, "ALL"):
        parsed = ip_address(str(ip))
        hosts = [f"[{parsed.compressed}]" if isinstance(parsed, IPv6Address) else str(parsed)]
    return tuple(f"TCP://{host}:{port}" for host in hosts)


@dataclass(slots=True)
class QueueModel:
    """A queue."""

    schema: str
    name: str
    settings: QueueSettings


@dataclass(slots=True)
class ServiceModel:
    """A service: the key of its queue, and the contracts that it accepts as a target."""

    queue: tuple[str, str, str]
    contracts: tuple[str, ...] = ()
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class PriorityModel:
    """A broker priority; the criterion None means any contract or service."""

    contract: str | None = None
    local_service: str | None = None
    remote_service: str | None = None
    level: int = DEFAULT_LEVEL

    @property
    def criteria(self) -> tuple[str | None, ...]:
        """The conversations to which the priority applies."""
        return self.contract, self.local_service, self.remote_service


@dataclass(slots=True)
class CertificateModel:
    """A certificate."""

    owner: str | None
    has_key: bool


@dataclass(slots=True)
class BindingModel:
    """A remote service binding."""

    service: str
    user: str


ObjectKind = Literal["database", "route", "queue", "service", "binding", "endpoint"]
"""The kinds of objects for which the positions of statements are recorded."""
Key = tuple[str, str]
"""The database and the name of an object."""


@dataclass(frozen=True, slots=True)
class NamedDatabases:
    """The databases that scripts name anywhere, by name without case.

    Attributes:
        created: The databases that a script creates, restores or drops.
        used: The databases that a script uses or alters, with their names as written.
    """

    created: frozenset[str] = frozenset()
    used: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class InstanceModel:
    """The state that statements change; databases, routes and services are in order of creation.

    A database that the script uses but does not create is assumed to exist. If its name differs by one letter from the
    name of a created database, it counts as a typo, unless `lenient`. A script that creates a database before it uses
    one is complete: it shows everything that its databases contain.
    """

    now: datetime
    lenient: bool = False
    positions: dict[tuple[ObjectKind, str, str], ScriptPosition] = field(default_factory=dict)
    """The last CREATE or ALTER of each object, by kind, database (empty for an endpoint) and name (empty for a database)."""
    databases: dict[str, DatabaseModel] = field(default_factory=dict)
    routes: dict[Key, RouteModel] = field(default_factory=dict)
    services: dict[Key, ServiceModel] = field(default_factory=dict)
    queues: dict[tuple[str, str, str], QueueModel] = field(default_factory=dict)
    """The queues, by database, schema and name; schema and name without case."""
    message_types: dict[Key, str] = field(default_factory=dict)
    contracts: dict[Key, tuple[str, ...]] = field(default_factory=dict)
    """The message types of each contract."""
    priorities: dict[Key, PriorityModel] = field(default_factory=dict)
    users: dict[Key, None] = field(default_factory=dict)
    certificates: dict[Key, CertificateModel] = field(default_factory=dict)
    bindings: dict[Key, BindingModel] = field(default_factory=dict)
    endpoint: EndpointModel | None = None
    is_endpoint_dropped: bool = False
    """Whether the script dropped the endpoint; it may have created another one since."""
    addresses: list[str] = field(default_factory=list)
    pending_requests: list[str] = field(default_factory=list)
    current: str | None = None
    is_complete: bool = False
    dropped: set[str] = field(default_factory=set)
    named: NamedDatabases = field(default_factory=NamedDatabases)
    announced: list[str] | None = None
    """The databases that the files of a folder create, in any order; None for a single script."""

    def announce(self, names: Iterable[str]) -> None:
        """Announces, before the files of a folder run, which databases they create."""
        self.announced = list({folded(name): name for name in sorted(names)}.values())
        self.is_complete = bool(self.announced)

    def select_default_database(self) -> None:
        """Selects the default database, in which each file of a folder starts; none if it is not known before the first statement."""
        names = self._default_databases()
        self.current = names[0] if len(names) == 1 else None

    def finish_files(self) -> None:
        """Assumes that databases exist whose CREATE DATABASE did not run, for example because of its condition."""
        for database in self.databases.values():
            database.is_assumed |= database.is_awaited
            database.is_awaited = False

    def resolve(self, name: str) -> str:
        """Returns the name of the database that differs from the given name only in case, or else the given name."""
        name = canonical_name(name)
        if name in self.databases or name in SYSTEM_DATABASES:
            return name
        key = folded(name)
        return next((other for other in (*self.databases, *(self.announced or ())) if folded(other) == key), name)

    def use(self, name: str) -> None:
        """Makes a database the current database."""
        name = self.resolve(name)
        # Scripts often use master only to create databases and endpoints.
        if name not in SYSTEM_DATABASES - {"msdb"}:
            self.database(name)
        self.current = name

    def current_database(self) -> str:
        """Returns the current database. Before any USE, this is the only user database, which is created if there is none."""
        if self.current is None:
            names = self._default_databases() or [UNNAMED_DATABASE]
            if len(names) > 1:
                which = "script contains" if self.announced is None else "scripts create"
                raise RefusalError(f"select a database with USE first; the {which} the databases {', '.join(names)}")
            self.current = names[0]
        self.database(self.current)
        return self.current

    def database(self, name: str, *, number: int = 911) -> DatabaseModel:
        """Returns the database with this name; assumes that it exists, unless the script dropped it or the name seems misspelled."""
        name = self.resolve(name)
        if name in self.databases:
            return self.databases[name]
        if name in self.dropped:
            raise RefusalError(f"the database {shown(name)} was dropped", number)
        if name in (self.announced or ()):
            database = self._add(name)
            database.is_awaited = True
            return database
        meant = self._misspelled(name)
        if meant is not None:
            its = f"; it creates {', '.join(self.created_databases())}"
            raise RefusalError(f"the script creates no database {shown(name)}{its}; did you mean {meant}?", number)
        return self.assume_database(name)

    def _user_databases(self) -> list[str]:
        return [name for name in self.databases if name not in SYSTEM_DATABASES]

    def _default_databases(self) -> list[str]:
        """Returns the user databases; if there is only one, it is the default before any USE."""
        return self._user_databases() if self.announced is None else self.announced

    def created_databases(self) -> list[str]:
        """Returns the names of the user databases that the script creates."""
        return [
            name for name in self._user_databases() if name != UNNAMED_DATABASE and not self.databases[name].is_assumed
        ]

    def _misspelled(self, name: str) -> str | None:
        """Returns the created database whose name differs by one letter from the given name, and is probably meant; None if there is none."""
        if self.lenient or name in SYSTEM_DATABASES or len(name) < _MISSPELLED_MIN:
            return None
        key = folded(name)
        return next(
            (other for other in self.created_databases() if may_be_misspelled(key, folded(other))),
            None,
        )

    def assume_database(self, name: str) -> DatabaseModel:
        """Adds a database that exists before the script runs."""
        database = self._add(name)
        database.is_assumed = name != UNNAMED_DATABASE
        return database

    def add_unused(self, names: Iterable[str]) -> None:
        """Adds system databases without routes, whose brokers SQL Server never enables."""
        for name in map(canonical_name, names):
            if name not in self.databases:
                self.databases[name] = DatabaseModel(UNUSED_GUID, enabled=False)

    def create(self, name: str) -> DatabaseModel:
        """Creates a database, which must not exist."""
        awaited = self.databases.get(self.resolve(name))
        if awaited is not None and awaited.is_awaited:
            awaited.is_awaited = False
            return awaited
        if self.resolve(name) in self.databases or canonical_name(name) in SYSTEM_DATABASES:
            raise RefusalError(refused_creation_text(self.resolve(name)), 1801)
        self.is_complete |= all(other in SYSTEM_DATABASES for other in self.databases) and not self.dropped
        self.dropped.discard(name)
        return self._add(name)

    def restore(self, name: str) -> DatabaseModel:
        """Restores a database from a backup; its objects and broker id are not known."""
        name = self.resolve(name)
        self._drop_objects(name)
        self.dropped.discard(name)
        return self.assume_database(name)

    def _drop_objects(self, name: str) -> None:
        for field_name in _BY_DATABASE:
            objects: dict[Any, Any] = getattr(self, field_name)
            setattr(self, field_name, {key: one for key, one in objects.items() if key[0] != name})

    def _add(self, name: str) -> DatabaseModel:
        """Adds a database with its initial route."""
        database = self.databases[name] = DatabaseModel()
        if name != "master":
            self.routes[name, AUTO_CREATED_LOCAL] = RouteModel("LOCAL")
        return database

    def drop(self, name: str, *, if_exists: bool) -> None:
        """Drops a database and everything in it."""
        name = self.resolve(name)
        if name in SYSTEM_DATABASES:
            raise RefusalError(refusal_texts.system_database(name, "dropped"), 3708)
        if name == self.current:
            raise RefusalError(
                f"the database {shown(name)} is in use by this script; select another database with USE", 3702
            )
        meant = None if name in self.databases else self._misspelled(name)
        if (meant is not None or name in self.dropped) and not if_exists:
            hint = "" if meant is None else f"; did you mean {meant}?"
            raise RefusalError(f"the database {shown(name)} does not exist{hint}", 3701)
        self.databases.pop(name, None)
        self._drop_objects(name)
        self.dropped.add(name)

    def rename(self, name: str, new: str) -> None:
        """Renames a database; it keeps its position in all sequences."""
        if name in SYSTEM_DATABASES:
            raise RefusalError(refusal_texts.system_database(name, "renamed"), 3708)
        if canonical_name(new) in SYSTEM_DATABASES or self.resolve(new) in self.databases.keys() - {name}:
            raise RefusalError(taken_name_text(new), 1801)
        self.databases = {new if key == name else key: one for key, one in self.databases.items()}
        for service in self.services.values():
            service.queue = (new, *service.queue[1:]) if service.queue[0] == name else service.queue
        for field_name in _BY_DATABASE:
            objects: dict[Any, Any] = getattr(self, field_name)
            renamed = {(new, *key[1:]) if key[0] == name else key: one for key, one in objects.items()}
            setattr(self, field_name, renamed)
        self.positions = {(key[0], new if key[1] == name else key[1], key[2]): at for key, at in self.positions.items()}
        self.current = new if self.current == name else self.current
        self.dropped = (self.dropped | {name}) - {new}
        if self.announced is not None:
            self.announced = [new if one == name else one for one in self.announced]

    def broker_notes(self) -> Iterator[ScriptNote]:
        """Yields a note for each database whose broker may not deliver at the end of the script."""
        for name, database in self.databases.items():
            if database.is_offline:
                kind: NoteKind = "offline"
                text = "the database is OFFLINE at the end of the script, so its services are not found"
            elif database.is_restored and database.enabled:
                kind = "restored"
                text = (
                    "the database is restored or attached without ENABLE_BROKER: ssbroker assumes that its broker is enabled, but it may be disabled; "
                    f"check with {_CHECK_ENABLED}{restore_spaces(string_literal(name))};"
                )
            else:
                continue
            yield ScriptNote(
                kind, f"database {restore_spaces(bracketed(name))}", text, self.positions["database", name, ""]
            )

    def enabled_duplicate(self, database: DatabaseModel) -> str | None:
        """Returns the name of another enabled database that has the broker id of `database`; None if there is none (I7)."""
        others = (
            name
            for name, other in self.databases.items()
            if other.enabled and other.guid == database.guid and other is not database
        )
        return None if database.guid is None else next(others, None)

    def record_position(self, statement: Statement, at: ScriptPosition) -> None:
        """Records the position of a statement that has created or changed an object."""
        match statement:
            case statements.CreateRoute(name) | statements.AlterRoute(name):
                self.positions["route", self.current_database(), name] = at
            case statements.CreateService(name) | statements.AlterService(name):
                self.positions["service", self.current_database(), name] = at
            case statements.CreateQueue(queue) | statements.AlterQueue(queue):
                database, schema, name = _queue_key(self, queue)
                self.positions["queue", database, f"{schema}.{name}"] = at
            case statements.CreateBinding(name) | statements.AlterBinding(name):
                self.positions["binding", self.current_database(), name] = at
            case statements.CreateEndpoint(name) | statements.AlterEndpoint(name):
                self.positions["endpoint", "", self.endpoint.name if self.endpoint else name] = at
            case statements.CreateDatabase(name) | statements.RestoreDatabase(name):
                self.positions["database", self.resolve(name), ""] = at
            case statements.AlterDatabase(name, _, new_name):
                known = self.current_database() if name is None else self.resolve(name)
                self.positions["database", new_name or known, ""] = at
            case statements.UseDatabase(name):
                self.positions.setdefault(("database", self.resolve(name), ""), at)

    def rows(self, view: str, database: str | None) -> Iterable[Row] | None:
        """Returns the rows of a catalog view; None if the view is not about Service Broker."""
        rows = catalog_views.view_rows(
            view,
            databases=self._database_rows,
            endpoint=self._endpoint_row,
            objects=lambda: self._objects(self._viewed_database(database)),
        )
        if rows is None or view not in catalog_views.DATABASE_VIEWS or self.is_complete:
            return rows
        known = list(rows)
        return [*known, catalog_views.possible_row(known, "database_id", named={*self.named.created, *self.dropped})]

    def _database_rows(self) -> Iterator[DatabaseRow]:
        """Yields the databases that exist now, including those that the script will use without creating them."""
        for name, one in self.databases.items():
            if not one.is_awaited:
                is_enabled = one.is_delivering and not one.is_restored  # so that a condition runs ENABLE_BROKER
                yield DatabaseRow(name, is_enabled, None if one.guid is None else str(uuid.UUID(bytes=one.guid)))
        others = (*self.databases, *self.dropped, *SYSTEM_DATABASES, *(self.announced or ()))
        not_assumed = self.named.created.union(map(folded, others))
        for key, name in self.named.used.items():
            if key not in not_assumed:
                yield DatabaseRow(name, is_broker_enabled=True, service_broker_guid=None)

    def _endpoint_row(self) -> EndpointRow | None:
        one = self.endpoint
        return None if one is None else EndpointRow(one.name, one.settings.state, one.settings.port)

    def _viewed_database(self, database: str | None) -> str | None:
        """Returns the database whose views a condition reads, without adding the database; None if it is not known."""
        if database is not None:
            return self.resolve(database)
        if self.current is not None:
            return self.current
        names = self._default_databases()
        return names[0] if len(names) == 1 else None

    def _objects(self, name: str | None) -> DatabaseObjects:
        if name is None:
            return DatabaseObjects()
        # A database that has not been used yet has only its initial route.
        is_new = name not in self.databases and name not in self.dropped and name != "master"
        initial = [RouteRow(AUTO_CREATED_LOCAL, None, None, "LOCAL", None)] if is_new else []
        database = self.databases.get(name)
        return DatabaseObjects(
            routes=initial
            + [
                RouteRow(
                    key[1],
                    one.service_name,
                    None if one.broker_instance is None else str(uuid.UUID(bytes=one.broker_instance)),
                    one.address,
                    one.mirror_address,
                )
                for key, one in self.routes.items()
                if key[0] == name
            ],
            queues=[
                QueueRow(one.schema, one.name, one.settings.status is not False, one.settings.procedure or None)
                for key, one in self.queues.items()
                if key[0] == name
            ],
            services=[ServiceRow(key[1], *one.queue[1:]) for key, one in self.services.items() if key[0] == name],
            contracts=_names_in(self.contracts, name),
            message_types=_names_in(self.message_types, name),
            priorities=_names_in(self.priorities, name),
            bindings=_names_in(self.bindings, name),
            certificates=_names_in(self.certificates, name),
            users=_names_in(self.users, name),
            has_master_key=database is not None and database.master_password is not None,
        )


_BY_DATABASE: Final = (
    "routes",
    "services",
    "queues",
    "message_types",
    "contracts",
    "priorities",
    "users",
    "certificates",
    "bindings",
)


def _names_in(objects: Mapping[Key, object], database: str) -> list[str]:
    return [name for other, name in objects if other == database]


def find_name(name: str, names: Iterable[str]) -> str | None:
    """Returns the name itself if it is in `names`, or else the only name in `names` that differs from it only in case.

    Examples:
        >>> find_name("north", ["North", "South"]), find_name("West", ["North"])
        ('North', None)
    """
    if isinstance(names, Container) and name in names:
        return name
    key = folded(name)
    similar = [other for other in names if folded(other) == key]
    if name in similar:
        return name
    return similar[0] if len(similar) == 1 else None


def run(instance: InstanceModel, statement: Statement, annotations: Mapping[str, str]) -> Remark | None:
    """Runs one statement with its annotations; returns what was not done, or done differently; None if the statement was done as written.

    Raises:
        RefusalError: SQL Server would refuse the statement.
    """
    match statement:
        case statements.CreateRoute() | statements.AlterRoute() | statements.DropRoute():
            return _run_route(instance, statement, annotations)
        case statements.CreateQueue() | statements.AlterQueue() | statements.DropQueue():
            _run_queue(instance, statement)
        case statements.CreateService() | statements.AlterService() | statements.DropService():
            _run_service(instance, statement)
        case statements.CreateEndpoint() | statements.AlterEndpoint() | statements.DropEndpoint():
            return _run_endpoint(instance, statement, annotations)
        case statements.CreateMessageType() | statements.AlterMessageType() | statements.DropMessageType():
            return _run_message_type(instance, statement)
        case statements.CreateContract() | statements.DropContract():
            _run_contract(instance, statement)
        case statements.CreatePriority() | statements.AlterPriority() | statements.DropPriority():
            _run_priority(instance, statement)
        case (
            statements.UseDatabase()
            | statements.CreateDatabase()
            | statements.AlterDatabase()
            | statements.DropDatabase()
            | statements.RestoreDatabase()
        ):
            return _run_database(instance, statement, annotations.get("service_broker_guid"))
        case _ if isinstance(statement, SecurityStatement):
            return _run_security(instance, statement)
        case _:
            raise AssertionError(statement)
    return None


def _run_database(
    instance: InstanceModel,
    statement: statements.UseDatabase
    | statements.CreateDatabase
    | statements.AlterDatabase
    | statements.DropDatabase
    | statements.RestoreDatabase,
    guid: str | None,
) -> Remark | None:
    match statement:
        case statements.DropDatabase(names, if_exists):
            for name in names:
                instance.drop(name, if_exists=if_exists)
        case statements.UseDatabase(name):
            is_known = instance.resolve(name) in instance.databases
            instance.use(name)
            if guid is not None:
                _set_broker(instance, instance.resolve(name), None, guid)
            return None if is_known else _similar_database(instance, name)
        case statements.CreateDatabase(name, is_attach, option):
            instance.create(name).is_restored = is_attach
            name = instance.resolve(name)
            _set_broker(instance, name, option, guid, is_attach=is_attach)
        case statements.RestoreDatabase(name, option):
            instance.restore(name).is_restored = True
            _set_broker(instance, instance.resolve(name), option, guid)
        case statements.AlterDatabase():
            return _alter_database(instance, statement, guid)
    return None


def _alter_database(instance: InstanceModel, statement: statements.AlterDatabase, guid: str | None) -> Remark | None:
    name = instance.current_database() if statement.name is None else instance.resolve(statement.name)
    if statement.is_only_availability and name not in instance.databases:
        return NOT_ABOUT_BROKER
    database = instance.database(name, number=5011)
    _set_broker(instance, name, statement.option, guid)
    if statement.is_online is not None:
        database.is_offline = not statement.is_online
    if statement.new_name is not None:
        instance.rename(name, statement.new_name)
    return skipped_remark(", ".join(each for each in statement.other_options if each not in ("ONLINE", "OFFLINE")))


def _similar_database(instance: InstanceModel, name: str) -> Remark | None:
    """Returns the remark that a database was assumed to exist, if the script creates a database with a similar name; otherwise None."""
    is_noted = not instance.lenient and name not in SYSTEM_DATABASES
    similar = most_similar(name, instance.created_databases()) if is_noted else None
    if similar is None or folded(similar) == folded(name):
        return None
    return Remark(
        "existing",
        f"assumed to be an existing database, because the script does not create it; did you mean {similar}?",
    )


def _set_broker(
    instance: InstanceModel, name: str, option: BrokerOption | None, guid: str | None, *, is_attach: bool = False
) -> None:
    database = instance.database(name)
    before = replace(database)
    if option is not None:
        database.apply(option)
    if guid is not None:
        database.guid = parse_broker_id(guid)
    duplicate = instance.enabled_duplicate(database) if database.enabled else None
    if duplicate is not None:
        if not is_attach:
            database.enabled, database.guid = before.enabled, before.guid
            database.former_guids = before.former_guids
            raise RefusalError(refusal_texts.same_broker_id(name, duplicate), 9772)
        database.enabled = False


def _missing(instance: InstanceModel, database: str, kind: str, name: str, names: Iterable[str] = ()) -> RefusalError:
    """Returns the error that an object does not exist."""
    hint = did_you_mean(name, names)
    if instance.databases[database].is_assumed and not hint:
        hint = "; if another script creates it, load the scripts together, as a folder"
    return RefusalError(f"{refusal_texts.does_not_exist(kind, name, database)}{hint}", 15151)


def _find(instance: InstanceModel, objects: Mapping[Key, object], database: str, name: str, *, kind: str) -> Key:
    """Returns the key of an object, ignoring case; its database may contain objects that the script does not create."""
    known = _names_in(objects, database)
    found = find_name(name, known)
    if found is None and not instance.databases[database].is_assumed:
        raise _missing(instance, database, kind, name, known)
    return database, name if found is None else found


def _run_route(
    instance: InstanceModel,
    statement: statements.CreateRoute | statements.AlterRoute | statements.DropRoute,
    annotations: Mapping[str, str],
) -> Remark | None:
    database = instance.current_database()
    if isinstance(statement, statements.CreateRoute):
        found = AUTO_CREATED_LOCAL if is_initial_route(statement) else statement.name
        if (database, found) in instance.routes:
            if is_initial_route(statement) and instance.routes[database, found] == RouteModel("LOCAL"):
                return INITIAL_ROUTE_EXISTS
            raise RefusalError(f"{refusal_texts.already_exists('route', found, database)}{initial_route_hint(found)}")
        new = _route(RouteModel(""), statement.clauses, annotations, instance.now)
        instance.routes[database, statement.name] = new
        return None
    key = (database, statement.name)
    if key not in instance.routes:
        known = _names_in(instance.routes, database)
        similar = find_name(statement.name, known)
        if similar is None:
            raise _missing(instance, database, "route", statement.name, known)
        key = (database, similar)
    if isinstance(statement, statements.DropRoute):
        del instance.routes[key]
    else:
        instance.routes[key] = _route(instance.routes[key], statement.clauses, annotations, instance.now)
    return None


INITIAL_ROUTE_EXISTS: Final = Remark(
    "existing", f"skipped, because every database is created with the same route {AUTO_CREATED_LOCAL}"
)


def is_initial_route(statement: statements.CreateRoute) -> bool:
    """Returns whether a statement creates the initial route of every database, as SSMS and SSDT write it."""
    return folded(statement.name) == folded(AUTO_CREATED_LOCAL) and statement.clauses in (
        RouteClauses(address="LOCAL"),
        RouteClauses(address="local"),
        RouteClauses(address="Local"),
    )


def initial_route_hint(name: str) -> str:
    """Returns what to do if the existing route is the initial route of every database."""
    if name != AUTO_CREATED_LOCAL:
        return ""
    return f"; every database is created with this route: use ALTER ROUTE {AUTO_CREATED_LOCAL}, or drop it first"


def _route(old: RouteModel, given: RouteClauses, annotations: Mapping[str, str], now: datetime) -> RouteModel:
    """Returns the route with the given clauses; all other values stay unchanged."""
    broker_instance = None if old.broker_instance is None else str(uuid.UUID(bytes=old.broker_instance))
    clauses = RouteClauses(
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
            raise RefusalError(refusal_texts.lifetime_too_long(given.lifetime), 9746) from None
    route_id = parse_route_id(annotations["route_id"]) if "route_id" in annotations else old.route_id
    return RouteModel(clauses.address or "", clauses.service_name, guid, lifetime, clauses.mirror_address, route_id)


def _queue_key(instance: InstanceModel, queue: QueueName) -> tuple[str, str, str]:
    """Returns the key of a queue; case is ignored in names of queues and schemas."""
    name = instance.current_database() if queue.database is None else instance.resolve(queue.database)
    instance.database(name)
    return name, folded(queue.schema), folded(queue.name)


def _run_queue(
    instance: InstanceModel, statement: statements.CreateQueue | statements.AlterQueue | statements.DropQueue
) -> None:
    key = _queue_key(instance, statement.queue)
    if isinstance(statement, statements.CreateQueue):
        if key in instance.queues:
            known = f"{instance.queues[key].schema}.{instance.queues[key].name}"
            raise RefusalError(refusal_texts.already_exists("queue", known, key[0]), 2714)
        _check_readers(statement.settings)
        instance.queues[key] = QueueModel(statement.queue.schema, statement.queue.name, statement.settings)
        return
    _require_queue(instance, key, statement.queue)
    if isinstance(statement, statements.DropQueue):
        dependents = [name for (_, name), service in instance.services.items() if service.queue == key]
        if dependents:
            queue_name = f"{statement.queue.schema}.{statement.queue.name}"
            raise RefusalError(refusal_texts.queue_in_use(queue_name, dependents))
        del instance.queues[key]
        return
    _check_readers(statement.settings)
    queue = instance.queues[key]
    queue.settings = merge_settings(queue.settings, statement.settings)


def _check_readers(settings: QueueSettings) -> None:
    readers = settings.max_queue_readers
    if readers is not None and not 0 <= readers <= READERS_MAX:
        raise RefusalError(f"MAX_QUEUE_READERS = {readers} is outside the range 0 to {READERS_MAX}", 9607)


def _require_queue(instance: InstanceModel, key: tuple[str, str, str], queue: QueueName) -> None:
    if key not in instance.queues:
        known = [f"{one.schema}.{one.name}" for other, one in instance.queues.items() if other[0] == key[0]]
        raise _missing(instance, key[0], "queue", f"{queue.schema}.{queue.name}", known)


def _run_service(
    instance: InstanceModel, statement: statements.CreateService | statements.AlterService | statements.DropService
) -> None:
    database = instance.current_database()
    key = (database, statement.name)
    if isinstance(statement, statements.CreateService):
        _create_service(instance, statement, key)
        return
    if key not in instance.services:
        raise _missing(instance, database, "service", statement.name, _names_in(instance.services, database))
    if isinstance(statement, statements.AlterService):
        _alter_service(instance, statement, key)
        return
    users = [
        name
        for (other, name), priority in instance.priorities.items()
        if other == database and priority.local_service == statement.name
    ]
    if users:
        raise RefusalError(refusal_texts.service_in_use(statement.name, users))
    del instance.services[key]


def _create_service(instance: InstanceModel, statement: statements.CreateService, key: Key) -> None:
    database = key[0]
    if key in instance.services or statement.name in SYSTEM_SERVICES:
        raise RefusalError(refusal_texts.already_exists("service", statement.name, database))
    queue = _queue_key(instance, statement.queue)
    _require_queue(instance, queue, statement.queue)
    for contract in statement.contracts:
        _require_contract(instance, database, contract)
    owner = None if statement.owner is None else _user(instance, database, statement.owner)
    instance.services[key] = ServiceModel(queue, tuple(dict.fromkeys(statement.contracts)), owner)


def _alter_service(instance: InstanceModel, statement: statements.AlterService, key: Key) -> None:
    database, service = key[0], instance.services[key]
    for contract in (*statement.add_contracts, *statement.drop_contracts):
        _require_contract(instance, database, contract)
    for contract in statement.add_contracts:
        if contract in service.contracts:
            raise RefusalError(refusal_texts.contract_added(key[1], contract))
    for contract in statement.drop_contracts:
        if contract not in service.contracts and not instance.databases[database].is_assumed:
            raise RefusalError(refusal_texts.contract_lacking(key[1], contract), 15151)
    if statement.queue is not None:
        queue = _queue_key(instance, statement.queue)
        _require_queue(instance, queue, statement.queue)
        service.queue = queue
    kept = tuple(one for one in service.contracts if one not in statement.drop_contracts)
    service.contracts = kept + tuple(dict.fromkeys(statement.add_contracts))


def _require_contract(instance: InstanceModel, database: str, name: str) -> None:
    is_known = (database, name) in instance.contracts or name in SYSTEM_CONTRACTS
    if not is_known and not instance.databases[database].is_assumed:
        raise _missing(instance, database, "contract", name, _names_in(instance.contracts, database))


def _run_message_type(
    instance: InstanceModel,
    statement: statements.CreateMessageType | statements.AlterMessageType | statements.DropMessageType,
) -> Remark | None:
    database = instance.current_database()
    key = (database, statement.name)
    is_system = statement.name in SYSTEM_MESSAGE_TYPES
    if isinstance(statement, statements.CreateMessageType):
        if key in instance.message_types or is_system:
            raise RefusalError(refusal_texts.already_exists("message type", statement.name, database))
        instance.message_types[key] = statement.validation
        return collection_remark(statement)
    if is_system:
        raise RefusalError(refusal_texts.system_object("message type", statement.name), 9663)
    if key not in instance.message_types and not instance.databases[database].is_assumed:
        raise _missing(instance, database, "message type", statement.name, _names_in(instance.message_types, database))
    if isinstance(statement, statements.AlterMessageType):
        instance.message_types[key] = statement.validation
        return collection_remark(statement)
    dependents = [name for (other, name), kinds in instance.contracts.items() if other == database and key[1] in kinds]
    if dependents:
        raise RefusalError(refusal_texts.message_type_in_use(statement.name, dependents))
    instance.message_types.pop(key, None)
    return None


def collection_remark(statement: statements.CreateMessageType | statements.AlterMessageType) -> Remark | None:
    """Returns the remark that messages are not validated against the schema collection, if the statement names one; otherwise None."""
    if statement.collection is None:
        return None
    return Remark(
        "ignored", f"the schema collection {statement.collection} is ignored; messages only have to be well-formed XML"
    )


def _run_contract(instance: InstanceModel, statement: statements.CreateContract | statements.DropContract) -> None:
    database = instance.current_database()
    key = (database, statement.name)
    is_system = statement.name in SYSTEM_CONTRACTS
    if isinstance(statement, statements.CreateContract):
        if key in instance.contracts or is_system:
            raise RefusalError(refusal_texts.already_exists("contract", statement.name, database))
        for message_type, _ in statement.messages:
            is_known = (database, message_type) in instance.message_types or message_type in SYSTEM_MESSAGE_TYPES
            if not is_known and not instance.databases[database].is_assumed:
                raise _missing(
                    instance, database, "message type", message_type, _names_in(instance.message_types, database)
                )
        if all(sender == "TARGET" for _, sender in statement.messages):
            raise RefusalError(refusal_texts.nothing_to_send(statement.name), 8492)
        instance.contracts[key] = tuple(message_type for message_type, _ in statement.messages)
        return
    _require_contract(instance, database, statement.name)
    if is_system:
        raise RefusalError(refusal_texts.system_object("contract", statement.name), 9663)
    services = [
        name for (other, name), one in instance.services.items() if other == database and key[1] in one.contracts
    ]
    priorities = [
        name for (other, name), one in instance.priorities.items() if other == database and one.contract == key[1]
    ]
    if services or priorities:
        raise RefusalError(refusal_texts.contract_in_use(statement.name, services=services, priorities=priorities))
    instance.contracts.pop(key, None)


def _run_priority(
    instance: InstanceModel, statement: statements.CreatePriority | statements.AlterPriority | statements.DropPriority
) -> None:
    database = instance.current_database()
    if isinstance(statement, statements.CreatePriority):
        found = find_name(statement.name, _names_in(instance.priorities, database))
        if found is not None:
            raise RefusalError(refusal_texts.already_exists("broker priority", found, database))
        key, before = (database, statement.name), PriorityModel()
    else:
        key = _find(instance, instance.priorities, database, statement.name, kind="broker priority")
        before = instance.priorities.get(key, PriorityModel())
    if isinstance(statement, statements.DropPriority):
        instance.priorities.pop(key, None)
        return
    values: dict[str, Any] = {}
    for option, value in statement.settings.options:
        if option == "contract" and value is not None:
            _require_contract(instance, database, str(value))
        if option == "local_service" and value is not None and (database, str(value)) not in instance.services:
            raise _missing(instance, database, "service", str(value), _names_in(instance.services, database))
        values[option] = DEFAULT_LEVEL if option == "level" and value is None else value
    new = replace(before, **values)
    if new.level not in LEVELS:
        raise RefusalError(f"PRIORITY_LEVEL = {new.level} is outside the range 1 to 10", 9606)
    for other, priority in instance.priorities.items():
        if other[0] == database and other != key and priority.criteria == new.criteria:
            raise RefusalError(refusal_texts.same_priority(other[1]))
    instance.priorities[key] = new


def _run_security(instance: InstanceModel, statement: SecurityStatement) -> Remark | None:
    """Runs a statement about users, keys and certificates; files are not read. Returns what was not done; None if everything was done."""
    database = instance.current_database()
    match statement:
        case statements.CreateUser(name, ignored):
            known = _names_in(instance.users, database)
            if folded(name) in ("public", "dbo") or find_name(name, known) is not None:
                raise RefusalError(refusal_texts.already_exists("user", name, database), 15023)
            instance.users[database, name] = None
            return skipped_remark(ignored)
        case statements.DropUser(name):
            _drop_user(instance, database, name)
        case statements.CreateBinding() | statements.AlterBinding() | statements.DropBinding():
            _run_binding(instance, statement, database)
        case statements.SetPermission():
            return _set_permission(instance, statement, database)
        case statements.SetOwner(kind, name, user):
            _set_owner(instance, database, kind, name, user)
        case _ if isinstance(statement, statements.CertificateStatement):
            return _run_certificate(instance, statement, database)
        case _:
            _run_master_key(instance, statement, database)
    return None


def _user(instance: InstanceModel, database: str, name: str) -> str:
    if folded(name) in ("public", "dbo"):
        return folded(name)
    return _find(instance, instance.users, database, name, kind="user")[1]


def _drop_user(instance: InstanceModel, database: str, name: str) -> None:
    user = _user(instance, database, name)
    if user in ("public", "dbo"):
        raise RefusalError(refusal_texts.permanent_user(user), 15150)
    services = [key[1] for key, one in instance.services.items() if key[0] == database and one.owner == user]
    certificates = [key[1] for key, one in instance.certificates.items() if key[0] == database and one.owner == user]
    bindings = [key[1] for key, one in instance.bindings.items() if key[0] == database and one.user == user]
    if services or certificates or bindings:
        text = refusal_texts.user_in_use(user, services=services, certificates=certificates, bindings=bindings)
        raise RefusalError(text, 15138)
    instance.users.pop((database, user), None)


def _run_binding(
    instance: InstanceModel,
    statement: statements.CreateBinding | statements.AlterBinding | statements.DropBinding,
    database: str,
) -> None:
    known = _names_in(instance.bindings, database)
    if isinstance(statement, statements.CreateBinding):
        found = find_name(statement.name, known)
        if found is not None:
            raise RefusalError(refusal_texts.already_exists("remote service binding", found, database))
        if not is_service_name(statement.service):
            raise RefusalError(refusal_texts.invalid_service_name(statement.service), 8412)
        for (other, name), one in instance.bindings.items():
            if other == database and one.service == statement.service:
                raise RefusalError(refusal_texts.binding_exists(statement.service, name), 9619)
        user = _remote_user(instance, database, statement.user)
        instance.bindings[database, statement.name] = BindingModel(statement.service, user)
        return
    key = _find(instance, instance.bindings, database, statement.name, kind="remote service binding")
    if isinstance(statement, statements.DropBinding):
        instance.bindings.pop(key, None)
    elif statement.user is not None:
        user = _remote_user(instance, database, statement.user)
        if key in instance.bindings:
            instance.bindings[key].user = user


def _remote_user(instance: InstanceModel, database: str, name: str) -> str:
    user = _user(instance, database, name)
    if user in ("public", "dbo"):
        raise RefusalError(refusal_texts.no_remote_user(name))
    return user


def _set_permission(instance: InstanceModel, statement: statements.SetPermission, database: str) -> Remark | None:
    key = (database, statement.service)
    if key not in instance.services and not instance.databases[database].is_assumed:
        raise _missing(instance, database, "service", statement.service, _names_in(instance.services, database))
    for name in statement.users:
        if _user(instance, database, name) == "dbo":
            raise RefusalError(refusal_texts.DBO_CAN_SEND, 15151)
    return skipped_remark(statement.ignored)


def _set_owner(instance: InstanceModel, database: str, kind: statements.OwnedKind, name: str, user: str) -> None:
    is_assumed = instance.databases[database].is_assumed
    certificate: CertificateModel | None = None
    service: ServiceModel | None = None
    if kind == "service":
        service = instance.services.get((database, name))
        if service is None and not is_assumed:
            raise _missing(instance, database, kind, name, _names_in(instance.services, database))
    else:
        key = _find(instance, instance.certificates, database, name, kind=kind)
        certificate = instance.certificates.get(key)
    owner = _user(instance, database, user)
    if owner == "public":
        raise RefusalError(refusal_texts.owned_by_public(kind, name))
    if service is not None:
        service.owner = owner
    if certificate is not None:
        certificate.owner = owner


def _run_certificate(
    instance: InstanceModel, statement: statements.CertificateStatement, database: str
) -> Remark | None:
    if isinstance(statement, statements.CreateCertificate):
        _create_certificate(instance, statement, database)
        return UNUSABLE_KEY if statement.has_unusable_key else None
    found = _find(instance, instance.certificates, database, statement.name, kind="certificate")
    certificate = instance.certificates.get(found)
    if isinstance(statement, statements.DropCertificate):
        instance.certificates.pop(found, None)
    elif isinstance(statement, statements.AlterCertificate) and certificate is not None:
        if statement.removes_key:
            certificate.has_key = False
        elif statement.key is not None:
            certificate.has_key = not statement.key.has_own_password
    key = statement.key if isinstance(statement, statements.AlterCertificate) else None
    return UNUSABLE_KEY if key is not None and key.has_own_password else None


def _create_certificate(instance: InstanceModel, statement: statements.CreateCertificate, database: str) -> None:
    begins, ends = parse_date(statement.start_date), parse_date(statement.expiry_date)
    if begins is not None and ends is not None and ends <= begins:
        raise RefusalError(
            f"the certificate {shown(statement.name)}: EXPIRY_DATE ({ends:%Y-%m-%d %H:%M:%S} UTC) must be later than START_DATE "
            f"({begins:%Y-%m-%d %H:%M:%S} UTC); correct one of them",
            15297,
        )
    found = find_name(statement.name, _names_in(instance.certificates, database))
    if found is not None:
        raise RefusalError(refusal_texts.already_exists("certificate", found, database), 15232)
    owner = None if statement.owner is None else _user(instance, database, statement.owner)
    if owner == "public":
        raise RefusalError(refusal_texts.owned_by_public("certificate", statement.name))
    has_key = (statement.is_self_signed or statement.key is not None) and not statement.has_unusable_key
    one = instance.databases[database]
    if has_key and one.master_password is None and not one.is_assumed:
        raise RefusalError(refusal_texts.master_key_missing_for_key(database), 15581)
    instance.certificates[database, statement.name] = CertificateModel(owner, has_key)


def _run_master_key(instance: InstanceModel, statement: Statement, database: str) -> None:
    one = instance.databases[database]
    if isinstance(statement, statements.CreateMasterKey):
        if one.master_password is not None:
            raise RefusalError(refusal_texts.master_key_exists(database), 15578)
        if not statement.password:
            raise RefusalError(refusal_texts.MASTER_KEY_PASSWORD_REQUIRED, 15118)
        one.master_password = statement.password
        return
    if isinstance(statement, statements.OpenMasterKey) and not statement.password:
        raise RefusalError(refusal_texts.MASTER_KEY_PASSWORD_REQUIRED, 15118)
    if one.master_password is None:
        if not one.is_assumed:
            raise RefusalError(refusal_texts.master_key_missing(database), 15151)
        return
    if isinstance(statement, statements.OpenMasterKey) and statement.password != one.master_password:
        raise RefusalError(refusal_texts.wrong_master_key_password(database), 15313)
    if isinstance(statement, statements.DropMasterKey):
        keyed = [key[1] for key, each in instance.certificates.items() if key[0] == database and each.has_key]
        if keyed:
            raise RefusalError(refusal_texts.master_key_in_use(keyed), 15580)
        one.master_password = None


def _run_endpoint(
    instance: InstanceModel,
    statement: statements.CreateEndpoint | statements.AlterEndpoint | statements.DropEndpoint,
    annotations: Mapping[str, str],
) -> Remark | None:
    endpoint = instance.endpoint
    is_known = endpoint is not None and folded(endpoint.name) == folded(statement.name)
    if isinstance(statement, statements.CreateEndpoint):
        if endpoint is not None:
            hint = "" if instance.announced is None else _SEVERAL_INSTANCES
            raise RefusalError(
                f"{refusal_texts.endpoint_exists(endpoint.name)}{hint}",
                7862,
            )
        endpoint = EndpointModel(statement.name, statement.settings)
    elif isinstance(statement, statements.DropEndpoint):
        if is_known:
            instance.endpoint, instance.is_endpoint_dropped = None, True
        return None if is_known else NO_ENDPOINT if endpoint is None else OTHER_ENDPOINT
    elif not is_known and not statement.has_for_clause:
        return NO_ENDPOINT if endpoint is None else OTHER_ENDPOINT
    else:
        if endpoint is not None and not is_known:
            raise RefusalError(refusal_texts.other_endpoint(statement.name, endpoint.name), 15151)
        if endpoint is None and (instance.is_complete or instance.is_endpoint_dropped) and not instance.lenient:
            raise RefusalError(refusal_texts.other_endpoint(statement.name, None), 15151)
        # An endpoint that the script did not create exists already, on an unknown port.
        endpoint = endpoint or EndpointModel(statement.name, EndpointSettings(), is_assumed=True)
        endpoint = replace(endpoint, settings=merge_settings(endpoint.settings, statement.settings))
    if "addresses_only" in annotations:
        endpoint.addresses = tuple(filter(None, parse_list(annotations["addresses_only"])))
    instance.endpoint = endpoint
    return None
