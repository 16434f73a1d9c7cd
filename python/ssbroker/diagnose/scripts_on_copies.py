"""Applies T-SQL to a copy of a catalog, to determine what a remedy would do."""

from __future__ import annotations

import re
import uuid
import warnings
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from ssbroker import ddl
from ssbroker._text import bracketed, restore_spaces
from ssbroker.catalog.catalog import Catalog
from ssbroker.catalog.details import EndpointDetails, InstanceDetails
from ssbroker.ddl.errors import RefusalError
from ssbroker.ddl.route_validation import check
from ssbroker.ddl.statements import RouteClauses
from ssbroker.exceptions import DdlError, DdlWarning

UNKNOWN_ENDPOINT: Final = "<endpoint>"
"""The name used for an endpoint whose name the catalog does not contain."""
_QUEUE: Final = re.compile(r"USE \[((?:[^\]]|\]\])+)\]; ALTER QUEUE \[((?:[^\]]|\]\])+)\]\.\[((?:[^\]]|\]\])+)\]")


class ScriptOnCopies:
    """Runs scripts on copies of one catalog."""

    def __init__(self, catalog: Catalog, *, now: datetime) -> None:
        self._catalog = catalog
        written, self._unwritable = _writable(catalog)
        endpoint = catalog.details.endpoint
        text = written.to_ddl(now=now)
        if endpoint is not None:
            text = text.replace("[ServiceBrokerEndpoint]", bracketed(endpoint.name), 1)
        self._start = ddl.ScriptStart(text, now=now)

    def __call__(self, script: str) -> Catalog:
        """Returns the catalog after a script.

        Raises:
            DdlError: SQL Server would refuse a statement, or the script changes a route that CREATE ROUTE would refuse.
            InputError: The result is not a valid catalog.
        """
        kept: list[bool] = []
        for row in self._unwritable.select(["database", "name"]).to_pylist():
            dropped = drop_route_named(row["database"], row["name"])
            kept.append(dropped not in script)
            script = script.replace(dropped, f"USE {bracketed(row['database'])};", 1)
            if f"ALTER ROUTE {bracketed(row['name'])}" in script:
                raise DdlError(f"the route {row['name']} is not valid")
        unwritable = self._unwritable.filter(pa.array(kept, pa.bool_()))
        queues = "".join(
            f"USE {bracketed(database)}; CREATE QUEUE {bracketed(schema)}.{bracketed(queue)};\n"
            for database, schema, queue in _queues_in(script)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DdlWarning)
            tables = self._start.tables_after(queues, script)
        routes = pa.concat_tables([tables.routes, unwritable.select(tables.routes.column_names)])
        return self._catalog.replace(
            routes=routes,
            databases=tables.databases,
            services=tables.services,
            message_forwarding=tables.message_forwarding,
        ).with_details(_details_after(self._catalog.details, script))


def drop_route_named(database: str, name: str) -> str:
    """Returns the statements that drop the route with a name."""
    return restore_spaces(f"USE {bracketed(database)}; DROP ROUTE {bracketed(name)};")


def _queues_in(script: str) -> list[tuple[str, str, str]]:
    found = ([name.replace("]]", "]") for name in names] for names in _QUEUE.findall(script))
    return [(database, schema, queue) for database, schema, queue in found]


def _writable(catalog: Catalog) -> tuple[Catalog, pa.Table]:
    """Splits off the routes that CREATE ROUTE would refuse, so that the catalog without them can be written as a script."""
    seen: set[tuple[str, str]] = set()
    valid: list[bool] = []
    rows: list[dict[str, Any]] = catalog.routes.to_pylist()
    for row in rows:
        key = row["database"], row["name"]
        broker = row["broker_instance"]
        guid = None if broker is None else str(uuid.UUID(bytes=broker))
        try:
            check(RouteClauses(row["remote_service_name"], guid, None, row["address"], row["mirror_address"]))
            valid.append(key not in seen)
        except RefusalError:
            valid.append(False)
        seen.add(key)
    mask = pa.array(valid, pa.bool_())
    flipped = pa.array([not each for each in valid], pa.bool_())
    if all(valid):
        return catalog, catalog.routes.slice(0, 0)
    return catalog.replace(routes=catalog.routes.filter(mask)), catalog.routes.filter(flipped)


def _details_after(details: InstanceDetails, script: str) -> InstanceDetails:
    """Returns the details after ALTER QUEUE ... STATUS = ON, and ALTER or CREATE ENDPOINT ... STATE = STARTED."""
    queues = dict(details.queues)
    for database, schema, queue in _queues_in(script):
        key = database, f"{schema}.{queue}".casefold()
        if key in queues and "STATUS = ON" in script:
            queues[key] = replace(queues[key], is_enabled=True)
    endpoint = details.endpoint
    if "STATE = STARTED" in script:
        endpoint = EndpointDetails(name=UNKNOWN_ENDPOINT if endpoint is None else endpoint.name, state="STARTED")
    return replace(details, queues=queues, endpoint=endpoint)
