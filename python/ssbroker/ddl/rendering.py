"""The pieces of a script: names, strings, moments, and the rows of a catalog's tables."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa

from ssbroker import moment
from ssbroker.ddl.annotations import comment, format_moment
from ssbroker.ddl.cursor import check_name
from ssbroker.ddl.instance import FIRST_ROUTE_ID
from ssbroker.ddl.routes import LIFETIME_SECONDS_MAX, check
from ssbroker.ddl.source import RefusalError
from ssbroker.ddl.statements import Clauses


class RouteRow(NamedTuple):
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


class DatabaseRow(NamedTuple):
    """A row of `schemas.DATABASES`."""

    name: str
    service_broker_guid: bytes | None
    is_broker_enabled: bool


def route_rows(routes: pa.Table) -> Iterator[RouteRow]:
    """The rows of `schemas.ROUTES`."""
    microseconds = routes["lifetime"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    columns = [routes[name] for name in ("database", "name", "route_id", "remote_service_name", "broker_instance")]
    columns += [microseconds, routes["address"], routes["mirror_address"]]
    for values in zip(*(column.to_pylist() for column in columns), strict=True):
        yield RouteRow(*values)


def database_rows(databases: pa.Table) -> list[DatabaseRow]:
    """The rows of `schemas.DATABASES`."""
    columns = [databases[name].to_pylist() for name in DatabaseRow._fields]
    return [DatabaseRow(*values) for values in zip(*columns, strict=True)]


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


def create_route(route: RouteRow, *, now: datetime, with_id: bool) -> str:
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
        ends = moment.EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise RefusalError("the lifetime ends outside the years 1 to 9999") from None
    return ends, min(max((ends - now) // timedelta(seconds=1), 1), LIFETIME_SECONDS_MAX)


def _literal(text: str | None) -> str | None:
    if text is None:
        return None
    # A backslash before a line end would join the lines; doubled and with a second line end it stays.
    doubled = re.sub(r"\\(\r\n|\n|\r)", r"\\\\\1\1", text.replace("'", "''"))
    return f"N'{doubled}'"
