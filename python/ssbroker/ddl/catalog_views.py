"""The catalog views about Service Broker that the conditions of a script may read."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from ssbroker.ddl.expressions import UNDECIDED, BinaryName, PossibleRow, Row, Undecided, Value, folded
from ssbroker.ddl.system_objects import SYSTEM_CONTRACTS, SYSTEM_MESSAGE_TYPES, SYSTEM_SERVICES

FIRST_USER_ID: Final = 65_536
_MASTER_KEY_NAME: Final = "##MS_DatabaseMasterKey##"
_FIRST_DATABASE_ID: Final = 5
SYSTEM_DATABASE_IDS: Final = {"master": 1, "tempdb": 2, "model": 3, "msdb": 4}


DATABASE_VIEWS: Final = ("databases", "sysdatabases")
"""The views of the databases of an instance."""


class DatabaseRow(NamedTuple):
    """A database; the broker id is None if it is not known."""

    name: str
    is_broker_enabled: bool
    service_broker_guid: str | None


class RouteRow(NamedTuple):
    """A route."""

    name: str
    service_name: str | None
    broker_instance: str | None
    address: str | None
    mirror_address: str | None


class QueueRow(NamedTuple):
    """A queue."""

    schema: str
    name: str
    is_enabled: bool
    procedure: str | None


class ServiceRow(NamedTuple):
    """A service with its queue."""

    name: str
    schema: str
    queue: str


@dataclass(frozen=True, kw_only=True)
class DatabaseObjects:
    """The objects of a database that views show, except system objects."""

    routes: Iterable[RouteRow] = ()
    queues: Iterable[QueueRow] = ()
    services: Iterable[ServiceRow] = ()
    contracts: Iterable[str] = ()
    message_types: Iterable[str] = ()
    priorities: Iterable[str] = ()
    bindings: Iterable[str] = ()
    certificates: Iterable[str] = ()
    users: Iterable[str] = ()
    has_master_key: bool = False


class EndpointRow(NamedTuple):
    """The Service Broker endpoint."""

    name: str
    state: str | None
    port: int | None


def object_id(*names: str) -> int:
    """Returns the id of an object: a hash of its name, so that all views show the same id."""
    return zlib.crc32(folded(".".join(names)).encode()) & 0x7FFFFFFF


def possible_row(known: Iterable[Row], id_column: str, *, named: Iterable[str] = ()) -> PossibleRow:
    """Returns the row that a view may have besides the known rows, from which its name, id and type differ.

    Args:
        known: The known rows. If they have types, no other object has one of these types.
        id_column: The column of the id.
        named: Other names from which the name differs.
    """
    rows = list(known)
    row = PossibleRow()
    for column in ("name", id_column, "type", "type_desc"):
        values = [value for each in rows if isinstance(value := each.get(column), str | int)]
        values += named if column == "name" else ()
        row[column] = Undecided(other_than=frozenset(folded(one) if isinstance(one, str) else one for one in values))
    return row


def _schemas(objects: DatabaseObjects) -> Iterator[Row]:
    for name in dict.fromkeys(["dbo", "guest", "INFORMATION_SCHEMA", "sys", *(one.schema for one in objects.queues)]):
        yield {"name": name, "schema_id": object_id(name)}


def _databases(databases: Iterable[DatabaseRow]) -> Iterator[Row]:
    """Yields `sys.databases`, with the system databases."""
    given = list(databases)
    names = {one.name for one in given}
    given += [DatabaseRow(name, name in ("msdb", "tempdb"), None) for name in SYSTEM_DATABASE_IDS if name not in names]
    number = _FIRST_DATABASE_ID
    for one in given:
        yield {
            "name": one.name,
            "database_id": SYSTEM_DATABASE_IDS.get(one.name, number),
            "dbid": SYSTEM_DATABASE_IDS.get(one.name, number),
            "is_broker_enabled": int(one.is_broker_enabled),
            "service_broker_guid": one.service_broker_guid or UNDECIDED,
            "state": 0,
            "state_desc": "ONLINE",
        }
        number += one.name not in SYSTEM_DATABASE_IDS


def _endpoints(endpoint: EndpointRow | None) -> Iterator[Row]:
    """Yields the Service Broker endpoint of `sys.endpoints`."""
    if endpoint is not None:
        yield {
            "name": endpoint.name,
            "endpoint_id": FIRST_USER_ID,
            "type": 3,
            "type_desc": "SERVICE_BROKER",
            "protocol": 2,
            "protocol_desc": "TCP",
            "port": UNDECIDED if endpoint.port is None else endpoint.port,
            "state_desc": UNDECIDED if endpoint.state is None else endpoint.state,
        }


def view_rows(
    view: str,
    *,
    databases: Callable[[], Iterable[DatabaseRow]],
    endpoint: Callable[[], EndpointRow | None],
    objects: Callable[[], DatabaseObjects],
) -> Iterable[Row] | None:
    """Returns the rows of a view, given its name in lower case; None if the view is not about Service Broker.

    Args:
        view: The name of the view.
        databases: Returns the databases of the instance.
        endpoint: Returns the endpoint of the instance.
        objects: Returns the objects of the database whose view is read.
    """
    if view in DATABASE_VIEWS:
        return _databases(databases())
    if view in ("endpoints", "tcp_endpoints", "service_broker_endpoints"):
        return _endpoints(endpoint())
    make = _VIEWS.get(view)
    return None if make is None else make(objects())


def _routes(objects: DatabaseObjects) -> Iterator[Row]:
    for one in objects.routes:
        yield {
            "name": one.name,
            "remote_service_name": None if one.service_name is None else BinaryName(one.service_name),
            "broker_instance": one.broker_instance,
            "address": one.address,
            "mirror_address": one.mirror_address,
        }


def _queues(objects: DatabaseObjects) -> Iterator[Row]:
    system = [QueueRow("dbo", name, is_enabled=True, procedure=None) for name in SYSTEM_SERVICES.values()]
    for one in [*objects.queues, *system]:
        yield {
            "name": one.name,
            "object_id": object_id(one.schema, one.name),
            "schema_id": object_id(one.schema),
            "type": "SQ",
            "type_desc": "SERVICE_QUEUE",
            "is_ms_shipped": int(one in system),
            "is_receive_enabled": int(one.is_enabled),
            "is_enqueue_enabled": int(one.is_enabled),
            "activation_procedure": one.procedure,
        }


def _services(objects: DatabaseObjects) -> Iterator[Row]:
    system = [ServiceRow(name, "dbo", queue) for name, queue in SYSTEM_SERVICES.items()]
    for one in [*objects.services, *system]:
        yield {
            "name": BinaryName(one.name),
            "service_id": object_id(one.name) + FIRST_USER_ID,
            "service_queue_id": object_id(one.schema, one.queue),
        }


def _binary_names(kind: str, system: Iterable[str]) -> Callable[[Iterable[str]], Iterator[Row]]:
    def rows(names: Iterable[str]) -> Iterator[Row]:
        for name in [*system, *names]:
            yield {"name": BinaryName(name), kind: object_id(name)}

    return rows


def _names(names: Iterable[str], **more: Value) -> Iterator[Row]:
    for name in names:
        yield {"name": name, **more}


_contracts: Final = _binary_names("service_contract_id", SYSTEM_CONTRACTS)
_message_types: Final = _binary_names("message_type_id", SYSTEM_MESSAGE_TYPES)


def _symmetric_keys(objects: DatabaseObjects) -> Iterator[Row]:
    if objects.has_master_key:
        yield {"name": _MASTER_KEY_NAME, "symmetric_key_id": 101}


def _users(objects: DatabaseObjects) -> Iterator[Row]:
    yield from _names(["public"], type="R")
    yield from _names(["dbo", "guest", *objects.users], type="S")


_VIEWS: Final[dict[str, Callable[[DatabaseObjects], Iterable[Row]]]] = {
    "certificates": lambda objects: _names(objects.certificates),
    "conversation_priorities": lambda objects: _names(objects.priorities),
    "database_principals": _users,
    "remote_service_bindings": lambda objects: _names(objects.bindings),
    "routes": _routes,
    "schemas": _schemas,
    "service_contracts": lambda objects: _contracts(objects.contracts),
    "service_message_types": lambda objects: _message_types(objects.message_types),
    "service_queues": _queues,
    "services": _services,
    "symmetric_keys": _symmetric_keys,
    "sysusers": _users,
}
