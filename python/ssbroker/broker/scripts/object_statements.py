"""Runs the statements of scripts about routes, message types, contracts, queues, services and priorities."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Final, TypeAlias

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker import object_ddl
from ssbroker.broker.object_names import (
    bracketed_queue_name,
    check_not_similar,
    similar_name,
    similar_queue,
    similar_user,
)
from ssbroker.ddl import refusal_texts, statements
from ssbroker.ddl.annotations import parse_lifetime, parse_route_id
from ssbroker.ddl.model import INITIAL_ROUTE_EXISTS, collection_remark, initial_route_hint, is_initial_route
from ssbroker.ddl.route_validation import AUTO_CREATED_LOCAL
from ssbroker.ddl.script_notes import Remark
from ssbroker.ddl.system_objects import SYSTEM_CONTRACTS, SYSTEM_MESSAGE_TYPES, SYSTEM_SERVICES
from ssbroker.protocol.broker_errors import refusal
from ssbroker.store import object_changes as changes
from ssbroker.store.objects import Objects, Route, lazy_objects
from ssbroker.store.sqlite import Connection

RouteStatement: TypeAlias = statements.CreateRoute | statements.AlterRoute | statements.DropRoute
TypeStatement: TypeAlias = (
    statements.CreateMessageType
    | statements.AlterMessageType
    | statements.DropMessageType
    | statements.CreateContract
    | statements.DropContract
)
QueueStatement: TypeAlias = statements.CreateQueue | statements.AlterQueue | statements.DropQueue
ServiceStatement: TypeAlias = statements.CreateService | statements.AlterService | statements.DropService
PriorityStatement: TypeAlias = statements.CreatePriority | statements.AlterPriority | statements.DropPriority
ObjectStatement: TypeAlias = RouteStatement | TypeStatement | QueueStatement | ServiceStatement | PriorityStatement


def change_objects(
    connection: Connection,
    objects: Objects,
    statement: ObjectStatement,
    annotations: Mapping[str, str],
    *,
    now: datetime,
) -> Remark | None:
    """Executes a statement; returns what was not done, if anything."""
    if isinstance(statement, RouteStatement):
        return _change_route(connection, objects, statement, annotations, now)
    if isinstance(statement, TypeStatement):
        return _change_type(connection, objects, statement)
    if isinstance(statement, QueueStatement):
        _change_queue(connection, objects, statement)
    elif isinstance(statement, ServiceStatement):
        _change_service(connection, objects, statement)
    else:
        _change_priority(connection, objects, statement)
    return None


def _change_route(
    connection: Connection,
    objects: Objects,
    statement: RouteStatement,
    annotations: Mapping[str, str],
    now: datetime,
) -> Remark | None:
    name = statement.name
    match statement:
        case statements.CreateRoute(clauses=clauses):
            found = AUTO_CREATED_LOCAL if is_initial_route(statement) else name
            route = objects.routes.get(found)
            if route is not None and is_initial_route(statement) and _is_initial(route):
                return INITIAL_ROUTE_EXISTS
            if route is not None:
                raise refusal(f"{refusal_texts.already_exists('route', found)}{initial_route_hint(found)}")
            object_ddl.create_route(connection, objects, name=name, clauses=clauses, now=now)
        case statements.AlterRoute(clauses=clauses):
            name = similar_name(objects.routes, name)
            object_ddl.alter_route(connection, objects, name=name, clauses=clauses, now=now)
        case statements.DropRoute():
            object_ddl.drop_route(connection, objects, name=similar_name(objects.routes, name))
    if annotations and not isinstance(statement, statements.DropRoute):
        ends, number = annotations.get("lifetime"), annotations.get("route_id")
        object_ddl.annotate(
            connection,
            objects,
            name=name,
            lifetime=None if ends is None else epoch_microseconds(parse_lifetime(ends)),
            route_id=None if number is None else parse_route_id(number),
        )
    return None


def _is_initial(route: Route) -> bool:
    others = (route.remote_service_name, route.broker_instance, route.lifetime, route.mirror_address)
    return route.address.upper() == "LOCAL" and others == (None, None, None, None)


def _change_type(connection: Connection, objects: Objects, statement: TypeStatement) -> Remark | None:
    name = statement.name
    match statement:
        case statements.CreateMessageType(validation=validation):
            _refuse_system_name(name, SYSTEM_MESSAGE_TYPES, objects.message_types, kind="message type")
            object_ddl.create_message_type(connection, objects, name=name, validation=supported_validation(validation))
            return collection_remark(statement)
        case statements.AlterMessageType(validation=validation):
            _refuse_change(name, SYSTEM_MESSAGE_TYPES, kind="message type")
            object_ddl.alter_message_type(connection, objects, name=name, validation=supported_validation(validation))
            return collection_remark(statement)
        case statements.DropMessageType():
            _refuse_change(name, SYSTEM_MESSAGE_TYPES, kind="message type")
            object_ddl.drop_message_type(connection, objects, name=name)
        case statements.CreateContract(messages=messages):
            _refuse_system_name(name, SYSTEM_CONTRACTS, objects.contracts, kind="contract")
            objects = with_system_objects(connection, objects, types=[message_type for message_type, _ in messages])
            object_ddl.create_contract(connection, objects, name=name, messages=dict(messages))
        case statements.DropContract():
            _refuse_change(name, SYSTEM_CONTRACTS, kind="contract")
            object_ddl.drop_contract(connection, objects, name=name)
    return None


def supported_validation(name: str) -> str:
    """Returns the validation that an instance uses for a T-SQL validation; instances do not support schema collections."""
    return "WELL_FORMED_XML" if name == "VALID_XML" else name


def _refuse_system_name(name: str, system: Collection[str], known: Collection[str], *, kind: str) -> None:
    """Raises an error if a new object has the name of a system object that the database does not list."""
    if name in system and name not in known:
        raise refusal(refusal_texts.already_exists(kind, name))


def _refuse_change(name: str, system: Collection[str], *, kind: str) -> None:
    if name in system:
        raise refusal(refusal_texts.system_object(kind, name), 9663)


_SYSTEM_TYPE_IDS: Final = {name: number for number, name in enumerate(SYSTEM_MESSAGE_TYPES, start=1)}
_SYSTEM_CONTRACT_IDS: Final = {name: number for number, name in enumerate(SYSTEM_CONTRACTS, start=1)}


def with_system_objects(
    connection: Connection, objects: Objects, *, types: Iterable[str] = (), contracts: Iterable[str] = ()
) -> Objects:
    """Adds the named system message types and contracts, which every SQL Server database contains, when they are first used."""
    missing = [name for name in contracts if name in SYSTEM_CONTRACTS and name not in objects.contracts]
    needed = [*types, *(message_type for name in missing for message_type, _ in SYSTEM_CONTRACTS[name])]
    added = False
    for message_type in dict.fromkeys(needed):
        if message_type in SYSTEM_MESSAGE_TYPES and message_type not in objects.message_types:
            validation = object_ddl.VALIDATIONS[SYSTEM_MESSAGE_TYPES[message_type]]
            number = _SYSTEM_TYPE_IDS[message_type]
            changes.create_message_type(connection, name=message_type, validation=validation, message_type_id=number)
            added = True
    for name in dict.fromkeys(missing):
        messages = [
            object_ddl.contract_message(_SYSTEM_TYPE_IDS[message_type], sent_by)
            for message_type, sent_by in SYSTEM_CONTRACTS[name]
        ]
        changes.create_contract(
            connection, name=name, messages=messages, service_contract_id=_SYSTEM_CONTRACT_IDS[name]
        )
        added = True
    return lazy_objects(connection) if added else objects


def _change_queue(connection: Connection, objects: Objects, statement: QueueStatement) -> None:
    found = similar_queue(objects, statement.queue)
    name = bracketed_queue_name(*found)
    match statement:
        case statements.CreateQueue(settings=settings):
            object_ddl.create_queue(connection, objects, name=name, settings=settings)
        case statements.AlterQueue(settings=settings):
            object_ddl.alter_queue(connection, objects, name=name, settings=settings)
        case statements.DropQueue():
            object_ddl.drop_queue(connection, objects, name=name)


def _change_service(connection: Connection, objects: Objects, statement: ServiceStatement) -> None:
    name = statement.name
    match statement:
        case statements.CreateService(queue=queue, contracts=contracts, owner=owner):
            _refuse_system_name(name, SYSTEM_SERVICES, objects.services, kind="service")
            objects = with_system_objects(connection, objects, contracts=contracts)
            object_ddl.create_service(
                connection,
                objects,
                name=name,
                queue=bracketed_queue_name(*similar_queue(objects, queue)),
                contracts=contracts,
                owner=None if owner is None else similar_user(objects, owner),
            )
        case statements.AlterService(queue=moved, add_contracts=added, drop_contracts=dropped):
            objects = with_system_objects(connection, objects, contracts=(*added, *dropped))
            object_ddl.alter_service(
                connection,
                objects,
                name=name,
                queue=None if moved is None else bracketed_queue_name(*similar_queue(objects, moved)),
                add_contracts=added,
                drop_contracts=dropped,
            )
        case statements.DropService():
            object_ddl.drop_service(connection, objects, name=name)


def _change_priority(connection: Connection, objects: Objects, statement: PriorityStatement) -> None:
    name = statement.name
    match statement:
        case statements.CreatePriority(settings=settings):
            check_not_similar(objects.priorities, name, kind="broker priority")
            objects = with_system_objects(connection, objects, contracts=_contracts(settings))
            object_ddl.create_broker_priority(connection, objects, name=name, clauses=settings.options)
        case statements.AlterPriority(settings=settings):
            found = similar_name(objects.priorities, name)
            objects = with_system_objects(connection, objects, contracts=_contracts(settings))
            object_ddl.alter_broker_priority(connection, objects, name=found, clauses=settings.options)
        case statements.DropPriority():
            found = similar_name(objects.priorities, name)
            object_ddl.drop_broker_priority(connection, objects, name=found)


def _contracts(settings: statements.PrioritySettings) -> list[str]:
    return [str(value) for option, value in settings.options if option == "contract"]
