"""Writes a catalog as a script."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from ssbroker._arguments import EPOCH, utc_datetime
from ssbroker.ddl import parser_objects
from ssbroker.ddl.interpreter import FIRST_ROUTE_ID, SYSTEM_DATABASES, canonical
from ssbroker.ddl.lexer import RefusalError, comment, format_list, format_moment, refusal_text
from ssbroker.ddl.parser_base import check_name
from ssbroker.ddl.route_validation import AUTO_CREATED_LOCAL, LIFETIME_SECONDS_MAX, check
from ssbroker.ddl.statements import Clauses
from ssbroker.exceptions import DdlError


class _RouteRow(NamedTuple):
    """A row of `schemas.ROUTES`, the lifetime in microseconds."""

    database: str
    name: str
    route_id: int
    service_name: str | None
    broker_instance: bytes | None
    lifetime_us: int | None
    address: str
    mirror_address: str | None

    @property
    def is_plain(self) -> bool:
        """Whether it says what AutoCreatedLocal says at first."""
        return self[3:] == (None, None, None, "LOCAL", None)


class _DatabaseRow(NamedTuple):
    """A row of `schemas.DATABASES`."""

    name: str
    service_broker_guid: bytes | None
    is_broker_enabled: bool


def route_rows(routes: pa.Table) -> Iterator[_RouteRow]:
    """The rows of `schemas.ROUTES`."""
    microseconds = routes["lifetime"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    columns = [routes[name] for name in ("database", "name", "route_id", "remote_service_name", "broker_instance")]
    columns += [microseconds, routes["address"], routes["mirror_address"]]
    for values in zip(*(column.to_pylist() for column in columns), strict=True):
        yield _RouteRow(*values)


def database_rows(databases: pa.Table) -> list[_DatabaseRow]:
    """The rows of `schemas.DATABASES`."""
    columns = [databases[name].to_pylist() for name in _DatabaseRow._fields]
    return [_DatabaseRow(*values) for values in zip(*columns, strict=True)]


def numbered_by_row(routes: pa.Table) -> set[str]:
    """The databases whose route ids are those that a script gives by itself (K23)."""
    following: dict[str, int] = {}
    other = set()
    databases: list[Any] = routes["database"].to_pylist()
    for database, route_id in zip(databases, routes["route_id"].to_pylist(), strict=True):
        expected = following.get(database, FIRST_ROUTE_ID)
        if route_id != expected:
            other.add(database)
        following[database] = expected + 1
    return following.keys() - other


def create_route(route: _RouteRow, *, now: datetime, with_id: bool) -> str:
    """The statement that makes a route.

    Raises:
        RefusalError: CREATE ROUTE would refuse it.
    """
    lifetime, seconds = _lifetime(route.lifetime_us, now)
    broker_instance = None if route.broker_instance is None else str(uuid.UUID(bytes=route.broker_instance)).upper()
    name = bracket(route.name)
    check(Clauses(route.service_name, broker_instance, seconds, route.address, route.mirror_address))
    said = {
        "SERVICE_NAME": _literal(route.service_name),
        "BROKER_INSTANCE": _literal(broker_instance),
        "LIFETIME": seconds,
        "ADDRESS": _literal(route.address),
        "MIRROR_ADDRESS": _literal(route.mirror_address),
    }
    clauses = ",\n".join(f"    {clause} = {value}" for clause, value in said.items() if value is not None)
    note = comment(
        route_id=str(route.route_id) if with_id else None,
        lifetime=None if lifetime is None else format_moment(lifetime),
    )
    return f"CREATE ROUTE {name} WITH\n{clauses};{note}\n"


def bracket(name: str) -> str:
    """The name in brackets.

    Raises:
        RefusalError: It is no name of an object.
    """
    check_name(name)
    return "[" + name.replace("]", "]]") + "]"


def _lifetime(microseconds: int | None, now: datetime) -> tuple[datetime | None, int | None]:
    """The moment of expiry, and the seconds until then as LIFETIME allows them."""
    if microseconds is None:
        return None, None
    try:
        ends = EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise RefusalError("the lifetime ends outside the years 1 to 9999") from None
    return ends, min(max((ends - now) // timedelta(seconds=1), 1), LIFETIME_SECONDS_MAX)


def _literal(text: str | None) -> str | None:
    if text is None:
        return None
    # A backslash before a line end would join the lines; doubled and with a second line end it stays.
    doubled = re.sub(r"\\(\r\n|\n|\r)", r"\\\\\1\1", text.replace("'", "''"))
    return f"N'{doubled}'"


_BATCH_STATEMENTS_MAX: Final = 500
_NETWORK_ADDRESS: Final = re.compile(r"TCP://(.+):([0-9]{1,5})")
_LISTENER_PORTS: Final = range(1024, 32_768)
_CONVENTIONAL_PORT: Final = 4022
_QUEUE: Final = "[dbo].[ServiceQueue]"
_HEADER: Final = """\
-- The Service Broker routing of an instance, written by ssbroker. Comments that begin with "ssbroker:" say what DDL
-- cannot; they are honoured when the script is loaded. Queues, contracts and security are not part of a routing
-- catalog: the queues below stand in for them. Review before you run this on SQL Server.
"""


class CatalogTables(Protocol):
    """What `write` needs of a catalog."""

    @property
    def routes(self) -> pa.Table:
        """In the schema `schemas.ROUTES`."""

    @property
    def databases(self) -> pa.Table:
        """In the schema `schemas.DATABASES`, all of them."""

    @property
    def services(self) -> pa.Table:
        """In the schema `schemas.SERVICES`."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The instance's own addresses."""

    @property
    def message_forwarding(self) -> bool:
        """Whether messages from outside are passed on."""

    @property
    def pending_requests(self) -> tuple[str, ...]:
        """The services for which a request for a route is pending."""


def write(catalog: CatalogTables, *, now: datetime) -> str:
    r"""Writes a catalog as a script that `read` reads back unchanged and SQL Server can run.

    LIFETIME is the whole seconds that remain at `now`, at least 1 (so also for a route that has expired) and at most
    what CREATE ROUTE allows; an annotation holds the exact moment. Columns beyond those of the schemas are not written.

    Args:
        catalog: The catalog.
        now: The time from which LIFETIME counts; without a zone it is UTC.

    Returns:
        The script, with line feeds.

    Raises:
        DdlError: The catalog holds what DDL cannot make; with the number of the error.

    Examples:
        >>> from datetime import datetime
        >>> from ssbroker.ddl import read
        >>> midnight = datetime(2026, 11, 20)
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
    return "".join(_Writer(catalog, utc_datetime(now)).script())


class _Writer:
    """Follows the order of the rows, so that they are read back in it."""

    def __init__(self, catalog: CatalogTables, now: datetime) -> None:
        self._catalog = catalog
        self._now = now
        self._databases = database_rows(catalog.databases)
        self._index = {database.name: index for index, database in enumerate(self._databases)}
        self._numbered = numbered_by_row(catalog.routes)
        self._created = 0  # databases, in their order
        self._current: str | None = None
        self._open = 0  # statements since the last GO

    def script(self) -> Iterator[str]:
        yield _HEADER
        for name in self._catalog.pending_requests:
            yield comment(pending_requests=format_list((name,))).lstrip() + "\n"
        yield "\n"
        yield from self._endpoint()
        seen: set[tuple[str, str]] = set()
        for route in route_rows(self._catalog.routes):
            subject = f"CREATE ROUTE [{route.name}] in [{route.database}]"
            if (route.database, route.name) in seen:
                raise _error(RefusalError("the database has another route of this name"), subject)
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
        own, forwarding = tuple(self._catalog.addresses), self._catalog.message_forwarding
        if not own and not forwarding:
            return
        parts = [match for match in map(_NETWORK_ADDRESS.fullmatch, own) if match]
        port = next((int(part[2]) for part in parts if int(part[2]) in _LISTENER_PORTS), _CONVENTIONAL_PORT)
        ip = _single_ip(own)
        listens = parser_objects.addresses(port, ip)
        note = comment(addresses_only=None if listens == own else format_list(own))
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
        """Creates databases up to a number; only the last may keep the route that it begins with."""
        while self._created < count:
            database = self._databases[self._created]
            self._created += 1
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
        if canonical(name) != name:
            raise RefusalError(f"in a script any case of this name means {canonical(name)}", 1801)
        # The id of a disabled database is said where it is disabled: before that it might be a duplicate (I7).
        note = comment(service_broker_guid=guid) if enabled else ""
        yield self._go()
        if name not in SYSTEM_DATABASES:
            yield f"CREATE DATABASE {bracket(name)};{note}\nGO\n"
        elif name == "msdb":
            yield from self._use(name, note)
        elif enabled:
            # USE alone puts none of the others into the catalog.
            yield from self._use(name, comment(service_broker_guid=guid or "unknown"))
        if not enabled:
            note = comment(service_broker_guid=guid)
            yield f"ALTER DATABASE {bracket(name)} SET DISABLE_BROKER WITH ROLLBACK IMMEDIATE;{note}\nGO\n"

    def _route(self, route: _RouteRow) -> Iterator[str]:
        index = self._index[route.database]
        numbered = route.database in self._numbered
        if index >= self._created:
            keep = route.name == AUTO_CREATED_LOCAL and route.is_plain and numbered and route.database != "master"
            yield from self._create_databases(index + 1, keep_route=keep)
            if keep:
                return
        yield from self._use(route.database)
        yield from self._statement(create_route(route, now=self._now, with_id=not numbered))

    def _services(self) -> Iterator[str]:
        queued: set[str] = set()
        seen: set[tuple[str, str]] = set()
        columns = [self._catalog.services[name].to_pylist() for name in ("database", "name")]
        for database, name in zip(*columns, strict=True):
            subject = f"CREATE SERVICE [{name}] in [{database}]"
            if (database, name) in seen:
                raise _error(RefusalError("the database has this service already"), subject)
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


def _single_ip(own: tuple[str, ...]) -> str | None:
    """The IP address that is all that the instance is called by."""
    match = _NETWORK_ADDRESS.fullmatch(own[0]) if len(own) == 1 else None
    if match is None:
        return None
    host = match[1].strip("[]")
    try:
        return host if parser_objects.addresses(int(match[2]), host) == own else None
    except ValueError:
        return None


def _error(refusal: RefusalError, subject: str) -> DdlError:
    text = refusal_text(refusal.reason, subject=subject, number=refusal.number)
    return DdlError(text, number=refusal.number)
