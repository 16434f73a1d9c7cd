"""Runs a parsed statement on an instance."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ssbroker.ddl import statements
from ssbroker.ddl.annotations import parse_list, parse_moment, parse_route_id
from ssbroker.ddl.instance import Endpoint, Instance, Route, canonical
from ssbroker.ddl.routes import AUTO_CREATED_LOCAL, check
from ssbroker.ddl.security_statements import SecurityStatement
from ssbroker.ddl.source import RefusalError
from ssbroker.ddl.statements import BrokerOption, Clauses, EndpointSettings, QueueName, Statement

_NOTHING_ABOUT_ROUTING: Final = "skipped, it says nothing about routing"
_ROUTE_KEYS: Final = frozenset({"route_id", "lifetime"})
_DATABASE_KEYS: Final = frozenset({"service_broker_guid"})
_ENDPOINT_KEYS: Final = frozenset({"addresses_only"})
_KEYS: Final[dict[type, frozenset[str]]] = {
    statements.CreateRoute: _ROUTE_KEYS,
    statements.AlterRoute: _ROUTE_KEYS,
    statements.UseDatabase: _DATABASE_KEYS,
    statements.CreateDatabase: _DATABASE_KEYS,
    statements.AlterDatabase: _DATABASE_KEYS,
    statements.CreateEndpoint: _ENDPOINT_KEYS,
    statements.AlterEndpoint: _ENDPOINT_KEYS,
}


def run(instance: Instance, statement: Statement, annotations: Mapping[str, str]) -> str | None:
    """Runs one statement.

    Args:
        instance: What it changes.
        statement: The statement.
        annotations: What its `-- ssbroker:` comments say.

    Returns:
        What was left out of account, for a warning.

    Raises:
        RefusalError: SQL Server would refuse the statement.
    """
    misplaced = annotations.keys() - _KEYS.get(type(statement), frozenset())
    if misplaced:
        raise RefusalError(f"the annotation {min(misplaced)} does not belong to this statement")
    if isinstance(statement, SecurityStatement):
        return _NOTHING_ABOUT_ROUTING
    match statement:
        case statements.CreateRoute() | statements.AlterRoute() | statements.DropRoute():
            _run_route(instance, statement, annotations)
        case statements.CreateQueue() | statements.AlterQueue() | statements.DropQueue():
            _run_queue(instance, statement)
        case statements.CreateService() | statements.AlterService() | statements.DropService():
            _run_service(instance, statement)
        case statements.CreateEndpoint() | statements.AlterEndpoint() | statements.DropEndpoint():
            return _run_endpoint(instance, statement, annotations)
        case statements.Skipped(holds):
            return f"skipped whole, with the {', '.join(holds)} in it" if holds else _NOTHING_ABOUT_ROUTING
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
            return _NOTHING_ABOUT_ROUTING
        case _:
            return _run_database(instance, statement, annotations.get("service_broker_guid"))
    return None


def _run_database(
    instance: Instance,
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
                _set_broker(instance, canonical(name), None, guid)
        case statements.CreateDatabase(name, attached, option):
            instance.create(name)
            _set_broker(instance, name, option, guid, attached=attached)
        case statements.AlterDatabase(named, option, new_name, ignored):
            name = instance.context() if named is None else canonical(named)
            if name in instance.dropped:
                raise RefusalError(f"the database {name} was dropped", 5011)
            _set_broker(instance, name, option, guid)
            if new_name is not None:
                instance.rename(name, new_name)
            return f"skipped {ignored}" if ignored else None
    return None


def _set_broker(
    instance: Instance, name: str, option: BrokerOption | None, guid: str | None, *, attached: bool = False
) -> None:
    database = instance.database(name)
    if option is not None:
        database.apply(option)
    if guid is not None:
        database.guid = None if guid == "unknown" else _guid(guid)
    if database.enabled and instance.has_enabled_twin(database):
        if not attached:
            raise RefusalError(f"the broker id of {name} is that of another enabled database", 9772)
        database.enabled = False


def _guid(text: str) -> bytes:
    try:
        return uuid.UUID(text).bytes
    except ValueError:
        raise RefusalError(f"the annotation service_broker_guid={text} is no GUID") from None


def _run_route(
    instance: Instance,
    statement: statements.CreateRoute | statements.AlterRoute | statements.DropRoute,
    annotations: Mapping[str, str],
) -> None:
    key = (instance.context(), statement.name)
    exists = key in instance.routes
    if isinstance(statement, statements.CreateRoute):
        if exists:
            hint = f": every database begins with it; leave it out, or DROP ROUTE {AUTO_CREATED_LOCAL} before"
            hint = hint if statement.name == AUTO_CREATED_LOCAL else ""
            raise RefusalError(f"the database {key[0]} has a route of this name{hint}")
        instance.routes[key] = _route(Route(""), statement.clauses, annotations, instance.now)
    elif not exists:
        near = [n for db, n in instance.routes if db == key[0] and n.casefold() == statement.name.casefold()]
        hint = f"; {near[0]} differs in case" if near else ""
        raise RefusalError(f"the database {key[0]} has no route of this name{hint}", 15151)
    elif isinstance(statement, statements.DropRoute):
        del instance.routes[key]
    else:
        instance.routes[key] = _route(instance.routes[key], statement.clauses, annotations, instance.now)


def _route(old: Route, named: Clauses, annotations: Mapping[str, str], now: datetime) -> Route:
    """The route with what is named, the rest as it was."""
    broker_instance = None if old.broker_instance is None else str(uuid.UUID(bytes=old.broker_instance))
    clauses = Clauses(
        service_name=old.service_name if named.service_name is None else named.service_name,
        broker_instance=broker_instance if named.broker_instance is None else named.broker_instance,
        lifetime=named.lifetime,
        address=(old.address or None) if named.address is None else named.address,
        mirror_address=old.mirror_address if named.mirror_address is None else named.mirror_address,
    )
    guid = check(clauses)
    lifetime = old.lifetime
    if "lifetime" in annotations:
        lifetime = parse_moment(annotations["lifetime"])
    elif named.lifetime is not None:
        try:
            lifetime = now + timedelta(seconds=named.lifetime)
        except OverflowError:
            raise RefusalError(f"LIFETIME = {named.lifetime} reaches beyond the year 9999", 9746) from None
    route_id = parse_route_id(annotations["route_id"]) if "route_id" in annotations else old.route_id
    return Route(clauses.address or "", clauses.service_name, guid, lifetime, clauses.mirror_address, route_id)


def _queue_key(instance: Instance, queue: QueueName) -> tuple[str, str, str]:
    """Queues play no part in routing; any case of a name means the same, as in SQL Server by default."""
    name = instance.context() if queue.database is None else canonical(queue.database)
    instance.database(name)
    return name, queue.schema.casefold(), queue.name.casefold()


def _run_queue(
    instance: Instance, statement: statements.CreateQueue | statements.AlterQueue | statements.DropQueue
) -> None:
    key = _queue_key(instance, statement.queue)
    if isinstance(statement, statements.CreateQueue):
        if key in instance.queues:
            raise RefusalError(f"the database {key[0]} has a queue of this name", 2714)
        instance.queues.add(key)
        return
    _require_queue(instance, key, statement.queue)
    if isinstance(statement, statements.DropQueue):
        users = [name for (_, name), queue in instance.services.items() if queue == key]
        if users:
            raise RefusalError(f"the service {users[0]} uses the queue")
        instance.queues.remove(key)


def _require_queue(instance: Instance, key: tuple[str, str, str], queue: QueueName) -> None:
    if key not in instance.queues:
        raise RefusalError(f"the database {key[0]} has no queue {queue.schema}.{queue.name}", 15151)


def _run_service(
    instance: Instance, statement: statements.CreateService | statements.AlterService | statements.DropService
) -> None:
    key = (instance.context(), statement.name)
    exists = key in instance.services
    if isinstance(statement, statements.CreateService) and exists:
        raise RefusalError(f"the database {key[0]} has a service of this name")
    if not isinstance(statement, statements.CreateService) and not exists:
        raise RefusalError(f"the database {key[0]} has no service of this name", 15151)
    if isinstance(statement, statements.DropService):
        del instance.services[key]
    elif statement.queue is not None:
        queue = _queue_key(instance, statement.queue)
        _require_queue(instance, queue, statement.queue)
        instance.services[key] = queue


def _run_endpoint(
    instance: Instance,
    statement: statements.CreateEndpoint | statements.AlterEndpoint | statements.DropEndpoint,
    annotations: Mapping[str, str],
) -> str | None:
    endpoint = instance.endpoint
    ours = endpoint is not None and endpoint.name == statement.name
    if isinstance(statement, statements.CreateEndpoint):
        if endpoint is not None:
            raise RefusalError(f"the instance has the Service Broker endpoint {endpoint.name}; one is allowed", 7862)
        endpoint = Endpoint(statement.name, statement.settings)
    elif isinstance(statement, statements.DropEndpoint):
        if ours:
            instance.endpoint = None
        return None if ours else "skipped, it is no endpoint that this script made for Service Broker"
    elif not ours and not statement.for_broker:
        return "skipped, it is no endpoint that this script made for Service Broker"
    else:
        if endpoint is not None and not ours:
            raise RefusalError(f"the Service Broker endpoint is {endpoint.name}", 15151)
        # An endpoint that the script did not make was there before it, on a port that it does not say.
        endpoint = endpoint or Endpoint(statement.name, EndpointSettings())
        said = {
            key: value
            for key in ("port", "ip", "forwarding")
            if (value := getattr(statement.settings, key)) is not None
        }
        endpoint = replace(endpoint, settings=replace(endpoint.settings, **said))
    if "addresses_only" in annotations:
        endpoint.addresses = tuple(filter(None, parse_list(annotations["addresses_only"])))
    instance.endpoint = endpoint
    return None
