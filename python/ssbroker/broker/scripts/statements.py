"""What the statements about objects do to a database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TypeAlias

from ssbroker import moment
from ssbroker.broker.objects import message_types, priorities, queues, routes
from ssbroker.broker.objects.queue_names import queue_text
from ssbroker.ddl import statements
from ssbroker.ddl.annotations import parse_moment, parse_route_id
from ssbroker.ddl.source import RefusalError
from ssbroker.ddl.statements import QueueName
from ssbroker.store.objects import Objects
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


def change(
    connection: Connection,
    objects: Objects,
    statement: ObjectStatement,
    annotations: Mapping[str, str],
    *,
    now: datetime,
) -> None:
    """Does what a statement says.

    Args:
        connection: The database, locked.
        objects: What stands in it.
        statement: The statement.
        annotations: What its `-- ssbroker:` comments say.
        now: The time from which LIFETIME counts.

    Raises:
        BrokerError: The statement is refused.
        RefusalError: An annotation is wrong, or the statement asks for what an instance does not have.
    """
    if not isinstance(statement, RouteStatement) and annotations:
        raise RefusalError(f"the annotation {min(annotations)} does not belong to this statement")
    if isinstance(statement, RouteStatement):
        _change_route(connection, objects, statement, annotations, now)
    elif isinstance(statement, TypeStatement):
        _change_type(connection, objects, statement)
    elif isinstance(statement, QueueStatement):
        _change_queue(connection, objects, statement)
    elif isinstance(statement, ServiceStatement):
        _change_service(connection, objects, statement)
    else:
        _change_priority(connection, objects, statement)


def _change_route(
    connection: Connection,
    objects: Objects,
    statement: RouteStatement,
    annotations: Mapping[str, str],
    now: datetime,
) -> None:
    name = statement.name
    match statement:
        case statements.CreateRoute(clauses=clauses):
            routes.create_route(connection, objects, name=name, clauses=clauses, now=now)
        case statements.AlterRoute(clauses=clauses):
            routes.alter_route(connection, objects, name=name, clauses=clauses, now=now)
        case statements.DropRoute():
            routes.drop_route(connection, objects, name=name)
    if annotations and not isinstance(statement, statements.DropRoute):
        ends, number = annotations.get("lifetime"), annotations.get("route_id")
        routes.annotate(
            connection,
            objects,
            name=name,
            lifetime=None if ends is None else moment.microseconds(parse_moment(ends)),
            route_id=None if number is None else parse_route_id(number),
        )


def _change_type(connection: Connection, objects: Objects, statement: TypeStatement) -> None:
    name = statement.name
    match statement:
        case statements.CreateMessageType(validation=validation):
            message_types.create_message_type(connection, objects, name=name, validation=_validation(validation))
        case statements.AlterMessageType(validation=validation):
            message_types.alter_message_type(connection, objects, name=name, validation=_validation(validation))
        case statements.DropMessageType():
            message_types.drop_message_type(connection, objects, name=name)
        case statements.CreateContract(messages=messages):
            message_types.create_contract(connection, objects, name=name, messages=dict(messages))
        case statements.DropContract():
            message_types.drop_contract(connection, objects, name=name)


def _validation(name: str) -> str:
    if name not in message_types.VALIDATIONS:
        raise RefusalError(
            f"VALIDATION = {name}: an instance has no schema collections; WELL_FORMED_XML is what it can judge"
        )
    return name


def _change_queue(connection: Connection, objects: Objects, statement: QueueStatement) -> None:
    name = _text_of(statement.queue)
    match statement:
        case statements.CreateQueue(settings=settings):
            queues.create_queue(connection, objects, name=name, settings=settings)
        case statements.AlterQueue(settings=settings):
            queues.alter_queue(connection, objects, name=name, settings=settings)
        case statements.DropQueue():
            queues.drop_queue(connection, objects, name=name)


def _change_service(connection: Connection, objects: Objects, statement: ServiceStatement) -> None:
    name = statement.name
    match statement:
        case statements.CreateService(queue=queue, contracts=contracts, owner=owner):
            queues.create_service(
                connection, objects, name=name, queue=_text_of(queue), contracts=contracts, owner=owner
            )
        case statements.AlterService(queue=moved, add_contracts=added, drop_contracts=dropped):
            queues.alter_service(
                connection,
                objects,
                name=name,
                queue=None if moved is None else _text_of(moved),
                add_contracts=added,
                drop_contracts=dropped,
            )
        case statements.DropService():
            queues.drop_service(connection, objects, name=name)


def _change_priority(connection: Connection, objects: Objects, statement: PriorityStatement) -> None:
    name = statement.name
    match statement:
        case statements.CreatePriority(settings=settings):
            priorities.create_broker_priority(connection, objects, name=name, said=settings.said)
        case statements.AlterPriority(settings=settings):
            priorities.alter_broker_priority(connection, objects, name=name, said=settings.said)
        case statements.DropPriority():
            priorities.drop_broker_priority(connection, objects, name=name)


def _text_of(queue: QueueName) -> str:
    return queue_text(queue.schema, queue.name)
