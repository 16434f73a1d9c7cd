"""Findings about databases, broker ids and names."""

from __future__ import annotations

import unicodedata
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping

from ssbroker.diagnose.findings import Finding
from ssbroker.diagnose.setting import Setting, about, about_route, name
from ssbroker.diagnose.tables import LOCAL, DatabaseRow, Tables
from ssbroker.exceptions import DuplicateError
from ssbroker.wording import bracketed, literal


def broker_ids(setting: Setting) -> Iterator[Finding]:
    """Broker ids that occur twice."""
    holders: defaultdict[bytes, list[tuple[str, DatabaseRow]]] = defaultdict(list)
    for instance, rows in setting.rows.items():
        for database in rows.databases.values():
            if database.broker is not None and any(database.broker):  # zeros are none: `master` and `model` have them
                holders[database.broker].append((instance, database))
    for broker, found in holders.items():
        by_instance: defaultdict[str, list[DatabaseRow]] = defaultdict(list)
        for instance, database in found:
            by_instance[instance].append(database)
        for instance, databases in by_instance.items():
            if len(databases) > 1:
                yield about(
                    "SSB013",
                    f"broker id {uuid.UUID(bytes=broker)}",
                    f"is that of {_names(databases)}",
                    f"Give the copy an id of its own: ALTER DATABASE {bracketed(databases[-1].name)} SET NEW_BROKER;",
                    instance=instance,
                    database=databases[-1].name,
                    related=[f"{instance}/{database.name}" for database in databases],
                )
        if len(by_instance) > 1:
            enabled = sum(any(database.enabled for database in databases) for databases in by_instance.values())
            yield about(
                "SSB012",
                f"broker id {uuid.UUID(bytes=broker)}",
                f"is that of databases in {len(by_instance)} instances: {', '.join(sorted(by_instance))}",
                "Give the copy an id of its own: ALTER DATABASE <copy> SET NEW_BROKER; then renew the routes that name it.",
                related=[f"{instance}/{database.name}" for instance, database in found],
                severity="error" if enabled > 1 else "warning",
            )


def _names(databases: list[DatabaseRow]) -> str:
    return " and ".join(f"{name(row.name)} ({'enabled' if row.enabled else 'disabled'})" for row in databases)


def enabled_twice(error: DuplicateError, *, instance: str) -> Finding | None:
    """What it means that a catalog cannot be loaded, where the reason is one that a running instance has too.

    Args:
        error: What `Catalog` raised.
        instance: Whose catalog it is.

    Returns:
        The finding, where two enabled databases have one broker id (I7); None for other reasons.

    Examples:
        >>> enabled_twice(DuplicateError("a name occurs twice", column="databases.name"), instance="NORTH") is None
        True
    """
    if error.column != "databases.service_broker_guid":
        return None
    return about(
        "SSB013",
        f"broker id {error.value}",
        f"is that of two enabled databases, so the catalog cannot be used, and nothing else was looked at: {error}",
        "Give the copy an id of its own: ALTER DATABASE <copy> SET NEW_BROKER; then renew the routes that name it.",
        instance=instance,
        severity="error",
    )


def stale_ids(setting: Setting) -> Iterator[Finding]:
    """Routes with the id of a database that is no more, to an instance where the service has another one."""
    known = {row.broker for rows in setting.rows.values() for row in rows.databases.values()}
    for instance, rows in setting.rows.items():
        for route in rows.routes:
            if not setting.is_live(route) or route.service is None or route.broker is None or route.broker in known:
                continue
            there = instance if route.address == LOCAL else setting.fleet.at(route.address, seen_from=instance)
            if there is None:
                continue
            hosts = setting.rows[there].hosts.get(route.service, [])
            ids = [
                row.broker for row in map(setting.rows[there].databases.__getitem__, hosts) if row.broker is not None
            ]
            if ids:
                yield about_route(
                    "SSB014",
                    instance,
                    route,
                    f"names broker id {uuid.UUID(bytes=route.broker)}, which no database known here has; "
                    f"{name(route.service)} in {there} has {', '.join(str(uuid.UUID(bytes=broker)) for broker in ids)}",
                    f"USE {bracketed(route.database)}; ALTER ROUTE {bracketed(route.name)} WITH BROKER_INSTANCE = N'{uuid.UUID(bytes=ids[0])}';",
                    related=[f"{there}/{host}" for host in hosts],
                )


def delivery_off(setting: Setting) -> Iterator[Finding]:
    """Disabled databases that have services."""
    for instance, rows in setting.rows.items():
        for database, services in rows.services.items():
            if not rows.databases[database].enabled:
                yield about(
                    "SSB021",
                    f"database {name(database)}",
                    f"is disabled and has {len(services)} service{'' if len(services) == 1 else 's'}",
                    f"ALTER DATABASE {bracketed(database)} SET ENABLE_BROKER;",
                    instance=instance,
                    database=database,
                    related=[f"service {name(service)}" for service in services[:10]],
                )


class NearServices:
    """The services of a fleet, to be found by names that are nearly theirs.

    Args:
        rows: The rows of each instance.
    """

    def __init__(self, rows: Mapping[str, Tables]) -> None:
        self._folded = _Folded()
        self.alike: defaultdict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
        """Services that are nearly the same, each with the instance and a database that have it."""
        for instance, each in rows.items():
            for service, databases in each.hosts.items():
                self.alike[self._folded[service]].setdefault(service, (instance, databases[0]))

    def of(self, meant: str) -> str | None:
        """In which way a service is nearly what is meant; None where none is, or one is just that."""
        near = self.alike.get(self._folded[meant], {})
        if not near or meant in near:
            return None
        service, where = next(iter(near.items()))
        return f"{'/'.join(where)} has {name(service)}, which differs by {_difference(meant, service)} only"

    def nearest(self, meant: str) -> str:
        """The service that `of` tells of."""
        return next(iter(self.alike[self._folded[meant]]))


def near_names(setting: Setting) -> Iterator[Finding]:
    """Names of routes, and of services, that are nearly those of a service."""
    services = NearServices(setting.rows)
    for instance, rows in setting.rows.items():
        for route in rows.routes:
            if route.service is not None and setting.is_live(route) and (differs := services.of(route.service)):
                yield about_route(
                    "SSB018",
                    instance,
                    route,
                    f"is for {name(route.service)}; {differs}",
                    f"USE {bracketed(route.database)}; ALTER ROUTE {bracketed(route.name)} WITH SERVICE_NAME = "
                    f"{literal(services.nearest(route.service))};",
                )
    for near in services.alike.values():
        first, *others = sorted(near)
        for service in others:
            instance, database = near[service]
            there = "/".join(near[first])
            yield about(
                "SSB018",
                f"service {name(service)}",
                f"differs from {name(first)} in {there} by {_difference(service, first)} only",
                "If both mean one service, make it anew under one name; names cannot be changed.",
                instance=instance,
                database=database,
                related=[f"{there}/service {name(first)}"],
            )


class _Folded(dict[str, str]):
    """Names without what makes them differ unseen, each worked out once: a fleet names a service in many routes."""

    def __missing__(self, text: str) -> str:
        self[text] = folded = _bare(unicodedata.normalize("NFKC", text).casefold())
        return folded


def _bare(text: str) -> str:
    """Without white space, and without the signs that show nothing."""
    return "".join(sign for sign in text if not sign.isspace() and unicodedata.category(sign) not in ("Cc", "Cf"))


def _difference(one: str, other: str) -> str:
    if one.casefold() == other.casefold():
        return "case"
    if _bare(one) == _bare(other):
        return "white space"
    if unicodedata.normalize("NFKC", one) == unicodedata.normalize("NFKC", other):
        return "Unicode form"
    return "case, white space or Unicode form"
