"""Writes a catalog as a T-SQL script."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from ssbroker._arguments import EPOCH, utc_datetime
from ssbroker._well_known import LIFETIME_SECONDS_MAX, PORT
from ssbroker.ddl.annotations import WITHOUT_SQLCMD, annotation_comment, format_lifetime, format_list
from ssbroker.ddl.errors import RefusalError, refusal_text
from ssbroker.ddl.expressions import folded
from ssbroker.ddl.model import FIRST_ROUTE_ID, UNUSED_GUID, listener_addresses
from ssbroker.ddl.route_validation import AUTO_CREATED_LOCAL, check
from ssbroker.ddl.sqlcmd import REFERENCE
from ssbroker.ddl.statements import RouteClauses
from ssbroker.ddl.system_objects import SYSTEM_DATABASES, canonical_name
from ssbroker.ddl.token_cursor import check_name
from ssbroker.exceptions import DdlError


class _RouteRow(NamedTuple):
    """A row of `schemas.ROUTES`, with the lifetime in microseconds."""

    database: str
    name: str
    route_id: int
    service_name: str | None
    broker_instance: bytes | None
    lifetime_us: int | None
    address: str
    mirror_address: str | None

    @property
    def is_default(self) -> bool:
        """Whether the route equals the initial AutoCreatedLocal, except for name and id."""
        return self[3:] == (None, None, None, "LOCAL", None)


class _DatabaseRow(NamedTuple):
    """A row of `schemas.DATABASES`."""

    name: str
    service_broker_guid: bytes | None
    is_broker_enabled: bool


def _route_rows(routes: pa.Table) -> Iterator[_RouteRow]:
    microseconds = routes["lifetime"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    columns = [routes[name] for name in ("database", "name", "route_id", "remote_service_name", "broker_instance")]
    columns += [microseconds, routes["address"], routes["mirror_address"]]
    for values in zip(*(column.to_pylist() for column in columns), strict=True):
        yield _RouteRow(*values)


def _database_rows(databases: pa.Table) -> list[_DatabaseRow]:
    columns = [databases[name].to_pylist() for name in _DatabaseRow._fields]
    return [_DatabaseRow(*values) for values in zip(*columns, strict=True)]


def _databases_with_sequential_ids(routes: pa.Table) -> set[str]:
    """Returns the databases whose route ids equal the ids that a script assigns without annotations."""
    following: dict[str, int] = {}
    other = set()
    databases: list[Any] = routes["database"].to_pylist()
    for database, route_id in zip(databases, routes["route_id"].to_pylist(), strict=True):
        expected = following.get(database, FIRST_ROUTE_ID)
        if route_id != expected:
            other.add(database)
        following[database] = expected + 1
    return following.keys() - other


def _create_route_statement(route: _RouteRow, *, now: datetime, with_id: bool) -> str:
    """Returns the CREATE ROUTE statement, or refuses a route that CREATE ROUTE would refuse."""
    lifetime, seconds = _lifetime(route.lifetime_us, now)
    broker_instance = None if route.broker_instance is None else str(uuid.UUID(bytes=route.broker_instance)).upper()
    name = bracket(route.name)
    check(RouteClauses(route.service_name, broker_instance, seconds, route.address, route.mirror_address))
    values = {
        "SERVICE_NAME": _literal(route.service_name),
        "BROKER_INSTANCE": _literal(broker_instance),
        "LIFETIME": seconds,
        "ADDRESS": _literal(route.address),
        "MIRROR_ADDRESS": _literal(route.mirror_address),
    }
    clauses = ",\n".join(f"    {clause} = {value}" for clause, value in values.items() if value is not None)
    note = annotation_comment(
        route_id=str(route.route_id) if with_id else None,
        lifetime=None if lifetime is None else format_lifetime(lifetime),
    )
    return f"CREATE ROUTE {name} WITH\n{clauses};{note}\n"


def bracket(name: str) -> str:
    """Returns a name in brackets, or refuses an invalid name."""
    check_name(name)
    return "[" + name.replace("]", "]]") + "]"


def _lifetime(microseconds: int | None, now: datetime) -> tuple[datetime | None, int | None]:
    """Returns the time of expiry, and the seconds until then within the range of LIFETIME."""
    if microseconds is None:
        return None, None
    try:
        ends = EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise RefusalError(
            f"the lifetime ends outside the years 1 to 9999, {microseconds} microseconds after 1970"
        ) from None
    return ends, min(max((ends - now) // timedelta(seconds=1), 1), LIFETIME_SECONDS_MAX)


def _literal(text: str | None) -> str | None:
    if text is None:
        return None
    # T-SQL removes a backslash and the line end after it; doubling both keeps one of each.
    doubled = re.sub(r"\\(\r\n|\n|\r)", r"\\\\\1\1", text.replace("'", "''"))
    return f"N'{doubled}'"


_BATCH_STATEMENTS_MAX: Final = 500
_NETWORK_ADDRESS: Final = re.compile(r"TCP://(.+):([0-9]{1,5})")
_LISTENER_PORTS: Final = range(1024, 32_768)
_QUEUE: Final = "[dbo].[ServiceQueue]"
_HEADER: Final = """\
-- The Service Broker routing of an instance, written by ssbroker. Comments that start with "ssbroker:" hold what DDL
-- cannot express; ssbroker applies them when it loads the script. A routing catalog has no queues, contracts or security:
-- the queues below are placeholders. Review this script before you run it on SQL Server.
"""


class CatalogTables(Protocol):
    """The parts of a catalog that `write` reads."""

    @property
    def routes(self) -> pa.Table:
        """The routes (`schemas.ROUTES`)."""

    @property
    def databases(self) -> pa.Table:
        """All databases (`schemas.DATABASES`)."""

    @property
    def services(self) -> pa.Table:
        """The services (`schemas.SERVICES`)."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the instance."""

    @property
    def message_forwarding(self) -> bool:
        """Whether messages from other instances are forwarded."""

    @property
    def pending_requests(self) -> tuple[str, ...]:
        """The services for which a route request is pending."""


def write(catalog: CatalogTables, *, now: datetime) -> str:
    r"""Writes a catalog as a script that `read` reads back unchanged and SQL Server can run.

    LIFETIME is the number of whole seconds that remain at `now`, at least 1 (also for an expired route) and at most
    what CREATE ROUTE allows; an annotation contains the exact time. Columns that are not in the schemas are not written.

    Raises:
        DdlError: The catalog contains an object that DDL cannot create; with the error number.

    Examples:
        >>> from datetime import UTC, datetime
        >>> from ssbroker.ddl import read
        >>> midnight = datetime(2026, 11, 20, tzinfo=UTC)
        >>> script = read("USE Sales; DROP ROUTE AutoCreatedLocal;", now=midnight)
        >>> print(write(script, now=midnight).partition("\n\n")[2], end="")
        CREATE DATABASE [Sales];
        GO
        USE [Sales];
        GO
        DROP ROUTE [AutoCreatedLocal];
        GO
        USE [msdb];
        GO
    """
    text = "".join(_Writer(catalog, utc_datetime(now)).script())
    is_empty = not any(f"\n{verb} " in text for verb in ("ALTER", "CREATE", "DROP")) and "-- ssbroker:" not in text
    if REFERENCE.search(text) is not None:
        text = WITHOUT_SQLCMD + text
    # The annotation states that the catalog contains only what every instance contains, and that nothing is missing
    # from the script.
    return f"{text}-- ssbroker: addresses=\n" if is_empty else text


class _Writer:
    """Writes statements in the order of the rows, so that reading the script preserves the order."""

    def __init__(self, catalog: CatalogTables, now: datetime) -> None:
        self._catalog = catalog
        self._now = now
        self._databases = _database_rows(catalog.databases)
        self._index = {database.name: index for index, database in enumerate(self._databases)}
        self._sequential = _databases_with_sequential_ids(catalog.routes)
        used = {*catalog.routes["database"].to_pylist(), *catalog.services["database"].to_pylist()}
        self._unused = {
            row.name
            for row in self._databases
            if row[1:] == (UNUSED_GUID, False) and row.name in SYSTEM_DATABASES - {"msdb", *used}
        }
        """The system databases that need no statements, and that SQL Server would refuse to alter."""
        self._created = 0  # the number of databases created so far
        self._current: str | None = None
        self._open = 0  # statements since the last GO

    def script(self) -> Iterator[str]:
        yield _HEADER
        for name in self._catalog.pending_requests:
            yield annotation_comment(pending_requests=format_list((name,))).lstrip() + "\n"
        yield "\n"
        yield from self._endpoint()
        seen: set[tuple[str, str]] = set()
        for route in _route_rows(self._catalog.routes):
            subject = f"CREATE ROUTE [{route.name}] in [{route.database}]"
            if (route.database, route.name) in seen:
                raise _error(
                    RefusalError("the database has another route with this name; rename one of the two routes"), subject
                )
            seen.add((route.database, route.name))
            try:
                yield from self._route(route)
            except RefusalError as refusal:
                raise _error(refusal, subject) from None
        yield from self._create_databases(len(self._databases))
        yield from self._services()
        yield self._go()

    def _statement(self, text: str) -> Iterator[str]:
        yield text
        self._open += 1
        if self._open >= _BATCH_STATEMENTS_MAX:
            yield self._go()

    def _go(self) -> str:
        go = "GO\n" if self._open else ""
        self._open = 0
        return go

    def _use(self, database: str, note: str = "") -> Iterator[str]:
        if self._current != database or note:
            yield self._go()
            yield f"USE {bracket(database)};{note}\nGO\n"
            self._current = database

    def _endpoint(self) -> Iterator[str]:
        addresses, forwarding = tuple(self._catalog.addresses), self._catalog.message_forwarding
        if not addresses and not forwarding:
            return
        parts = [match for match in map(_NETWORK_ADDRESS.fullmatch, addresses) if match]
        port = next((int(part[2]) for part in parts if int(part[2]) in _LISTENER_PORTS), PORT)
        ip = _single_ip(addresses)
        expected = listener_addresses(port, ip)
        note = annotation_comment(addresses_only=None if expected == addresses else format_list(addresses))
        listener = "ALL" if ip is None else f"('{ip}')" if ":" in ip else f"({ip})"
        state = "ENABLED" if forwarding else "DISABLED"
        yield from self._use("master")
        yield from self._statement(
            "CREATE ENDPOINT [ServiceBrokerEndpoint]\n"
            "    STATE = STARTED\n"
            f"    AS TCP (LISTENER_PORT = {port}, LISTENER_IP = {listener})\n"
            f"    FOR SERVICE_BROKER (AUTHENTICATION = WINDOWS, MESSAGE_FORWARDING = {state});{note}\n"
        )
        yield self._go()

    def _create_databases(self, count: int, *, keep_route: bool = False) -> Iterator[str]:
        """Creates databases up to a number; only the last database may keep its initial route."""
        while self._created < count:
            database = self._databases[self._created]
            self._created += 1
            if database.name in self._unused:
                yield f"{self._go()}{annotation_comment(unused=database.name).lstrip()}\nGO\n"
                continue
            try:
                yield from self._create_database(database)
            except RefusalError as refusal:
                raise _error(refusal, f"CREATE DATABASE [{database.name}]") from None
            if database.name != "master" and not (keep_route and self._created == count):
                yield from self._use(database.name)
                yield from self._statement(f"DROP ROUTE {bracket(AUTO_CREATED_LOCAL)};\n")

    def _create_database(self, database: _DatabaseRow) -> Iterator[str]:
        name, enabled = database.name, database.is_broker_enabled
        guid = None if database.service_broker_guid is None else str(uuid.UUID(bytes=database.service_broker_guid))
        if canonical_name(name) != name:
            raise RefusalError(
                f"names of system databases are case-insensitive in scripts, so this name means {canonical_name(name)}; rename the database",
                1801,
            )
        same = next((other for other in self._index if other != name and folded(other) == folded(name)), None)
        if same is not None:
            raise RefusalError(
                f"names of databases are case-insensitive in scripts, and the catalog also contains {same}; rename one of the two databases",
                1801,
            )
        # The broker id of a disabled database is annotated where the database is disabled, because earlier it might be
        # a duplicate (I7).
        note = annotation_comment(service_broker_guid=guid) if enabled else ""
        yield self._go()
        if name not in SYSTEM_DATABASES:
            yield f"CREATE DATABASE {bracket(name)};{note}\nGO\n"
        elif name == "msdb":
            yield from self._use(name, note)
        elif enabled:
            # USE alone does not add the other system databases to the catalog.
            yield from self._use(name, annotation_comment(service_broker_guid=guid or "unknown"))
        if not enabled:
            note = annotation_comment(service_broker_guid=guid)
            yield f"ALTER DATABASE {bracket(name)} SET DISABLE_BROKER WITH ROLLBACK IMMEDIATE;{note}\nGO\n"

    def _route(self, route: _RouteRow) -> Iterator[str]:
        index = self._index[route.database]
        is_sequential = route.database in self._sequential
        if index >= self._created:
            keep = (
                route.name == AUTO_CREATED_LOCAL and route.is_default and is_sequential and route.database != "master"
            )
            yield from self._create_databases(index + 1, keep_route=keep)
            if keep:
                return
        yield from self._use(route.database)
        yield from self._statement(_create_route_statement(route, now=self._now, with_id=not is_sequential))

    def _services(self) -> Iterator[str]:
        queued: set[str] = set()
        seen: set[tuple[str, str]] = set()
        columns = [self._catalog.services[name].to_pylist() for name in ("database", "name")]
        for database, name in zip(*columns, strict=True):
            subject = f"CREATE SERVICE [{name}] in [{database}]"
            if (database, name) in seen:
                raise _error(RefusalError("the database already has this service; remove one of the two rows"), subject)
            seen.add((database, name))
            try:
                statement = f"CREATE SERVICE {bracket(name)} ON QUEUE {_QUEUE} ([DEFAULT]);\n"
            except RefusalError as refusal:
                raise _error(refusal, subject) from None
            yield from self._use(database)
            if database not in queued:
                queued.add(database)
                yield from self._statement(f"CREATE QUEUE {_QUEUE};\n")
            yield from self._statement(statement)


def _single_ip(addresses: tuple[str, ...]) -> str | None:
    """Returns the IP address if it is the instance's only address; otherwise None."""
    match = _NETWORK_ADDRESS.fullmatch(addresses[0]) if len(addresses) == 1 else None
    if match is None:
        return None
    host = match[1].strip("[]")
    try:
        return host if listener_addresses(int(match[2]), host) == addresses else None
    except ValueError:
        return None


def _error(refusal: RefusalError, subject: str) -> DdlError:
    text = refusal_text(refusal.reason, subject=subject, number=refusal.number)
    return DdlError(text, number=refusal.number)
