"""Reads a script into the tables of a catalog."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from ssbroker import moment, schemas
from ssbroker.ddl import endpoints
from ssbroker.ddl.annotations import parse_list
from ssbroker.ddl.instance import FIRST_ROUTE_ID, ROUTE_ID_MAX, Instance
from ssbroker.ddl.parse import ParsedBatch, parse
from ssbroker.ddl.run import run
from ssbroker.ddl.source import RefusalError, Source
from ssbroker.ddl.tokens import batches
from ssbroker.exceptions import DdlError, DdlWarning


@dataclass(frozen=True)
class Script:
    """What a script leaves behind: the arguments of `Catalog`."""

    routes: pa.Table
    """In the schema `schemas.ROUTES`, in the order of creation."""
    databases: pa.Table
    """In the schema `schemas.DATABASES`, all of them, msdb included."""
    services: pa.Table
    """In the schema `schemas.SERVICES`, in the order of creation."""
    addresses: tuple[str, ...]
    """The instance's own addresses, as far as the script says them."""
    message_forwarding: bool
    pending_requests: tuple[str, ...]


def read(text: str, *, now: datetime, file: str | None = None) -> Script:
    """Reads a script of DDL.

    What it makes is what it would leave on an instance that has the databases it uses and does not create, each with
    the route AutoCreatedLocal, the broker enabled and its id unknown, and nothing else. Statements that say nothing
    about routing are skipped, and so are IF, WHILE and BEGIN ... END with all they hold. `USE` of master puts nothing
    into it; statements before any `USE` belong to the one user database of the script, or to one named `user`.

    An endpoint's state and sizes say nothing about where things go. Its port and IP address give the instance's own
    addresses: with `LISTENER_IP = ALL` those of the loopback, because a script does not know its host. A comment such
    as `-- ssbroker: addresses=TCP://host:4022` names further ones; see `annotations` for all that comments may say.

    Args:
        text: The script.
        now: The time from which LIFETIME counts; without a zone it is UTC.
        file: The name of the script, for errors and warnings.

    Returns:
        The tables, addresses and options.

    Raises:
        DdlError: SQL Server would refuse a statement, or it cannot be read; with file, line and number.

    Warns:
        DdlWarning: A statement was skipped; with file, line and its first words.

    Examples:
        >>> from datetime import datetime
        >>> script = read("USE Sales; CREATE QUEUE Q; CREATE SERVICE [//A/B] ON QUEUE Q;", now=datetime(2026, 11, 20))
        >>> script.services.to_pylist()
        [{'database': 'Sales', 'name': '//A/B'}]
        >>> script.routes["name"].to_pylist()
        ['AutoCreatedLocal', 'AutoCreatedLocal']
    """
    return read_all([(text, file)], now=now)


def read_all(scripts: Iterable[tuple[str, str | None]], *, now: datetime) -> Script:
    """Reads scripts that run one after the other, as `read` does one; at the end of each its last batch ends.

    Args:
        scripts: The text and the file name of each.
        now: The time from which LIFETIME counts; without a zone it is UTC.

    Returns:
        What they leave behind together.

    Raises:
        DdlError: As `read`.

    Warns:
        DdlWarning: As `read`.

    Examples:
        >>> from datetime import datetime
        >>> scripts = [("USE Sales", "1.sql"), ("CREATE ROUTE Any WITH ADDRESS = 'LOCAL'", "2.sql")]
        >>> read_all(scripts, now=datetime(2026, 11, 20)).routes["name"].to_pylist()
        ['AutoCreatedLocal', 'Any', 'AutoCreatedLocal']
    """
    instance = Instance(moment.as_utc(now))
    for text, file in scripts:
        source = Source(text, file)
        for batch in batches(source):
            parsed = parse(source, batch)
            # The second run says all that further ones would: what it creates is there already.
            for turn in range(min(batch.count, 2)):
                _run_batch(source, instance, parsed, warn=turn == 0)
            _note(source, instance, parsed)
    instance.database("msdb")
    return _script(instance)


def _run_batch(source: Source, instance: Instance, batch: ParsedBatch, *, warn: bool) -> None:
    for parsed in batch.statements:
        try:
            skipped = run(instance, parsed.statement, parsed.annotations)
        except RefusalError as refusal:
            raise source.error(parsed.start, refusal.reason, subject=parsed.subject, number=refusal.number) from None
        if skipped is not None and warn:
            # The caller of `read`; a call of `read_all` itself names the module above it.
            warnings.warn(f"{source.place(parsed.start)}: {parsed.subject}: {skipped}", DdlWarning, stacklevel=4)


def _note(source: Source, instance: Instance, batch: ParsedBatch) -> None:
    for position, key, value in batch.instance:
        try:
            values = parse_list(value)
        except RefusalError as refusal:
            raise source.error(position, refusal.reason) from None
        if key == "addresses":
            instance.addresses.extend(filter(None, values))
        else:
            instance.pending_requests.extend(values)


def _script(instance: Instance) -> Script:
    endpoint = instance.endpoint
    listed: tuple[str, ...] = ()
    if endpoint is not None:
        settings = endpoint.settings
        listed = (
            endpoint.addresses if endpoint.addresses is not None else endpoints.addresses(settings.port, settings.ip)
        )
    return Script(
        routes=_routes(instance),
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
    )


def _routes(instance: Instance) -> pa.Table:
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


def _route_ids(instance: Instance) -> list[int]:
    """Ids that no annotation gave follow the highest of their database (K23)."""
    highest: dict[str, int] = {}
    for (database, _), route in instance.routes.items():
        highest[database] = max(highest.get(database, FIRST_ROUTE_ID - 1), route.route_id or 0)
    ids = []
    for (database, _), route in instance.routes.items():
        if route.route_id is None:
            if highest[database] == ROUTE_ID_MAX:
                raise DdlError(
                    f"the database {database}: no route id follows {ROUTE_ID_MAX}, so each needs its annotation"
                )
            highest[database] += 1
        ids.append(highest[database] if route.route_id is None else route.route_id)
    return ids
