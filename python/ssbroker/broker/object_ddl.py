"""Creates, alters and drops objects: message types, contracts, queues, services, routes, priorities."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, Literal, get_args

from ssbroker._arguments import epoch_microseconds, integer_argument
from ssbroker._text import quantity
from ssbroker._well_known import DEFAULT, DIALOG_TIMER, END_DIALOG, ERROR, WORK_QUEUE_CONTRACT
from ssbroker.broker.object_names import (
    check_not_existing,
    check_object_name,
    existing,
    plain_queue_name,
    procedure_key,
    queue_key,
)
from ssbroker.broker.security_ddl import principal_id
from ssbroker.ddl import refusal_texts
from ssbroker.ddl.errors import RefusalError
from ssbroker.ddl.route_validation import AUTO_CREATED_LOCAL, check
from ssbroker.ddl.statements import DEFAULT_LEVEL, LEVELS, READERS_MAX, QueueSettings, RouteClauses
from ssbroker.exceptions import OptionError
from ssbroker.protocol.broker_errors import refusal
from ssbroker.store import failures
from ssbroker.store import object_changes as changes
from ssbroker.store.object_changes import FIRST_ID, UsageColumn, Value
from ssbroker.store.objects import (
    ContractMessage,
    MessageType,
    MirroringState,
    Objects,
    Priority,
    Role,
    Route,
    Service,
    Validation,
)
from ssbroker.store.sqlite import Connection

ValidationName = Literal["NONE", "EMPTY", "WELL_FORMED_XML"]
"""The validation of message bodies."""
OnPoison = Literal["disable", "move"]
"""What happens to messages that fail five times in a row: their queue is disabled, or they are moved to another queue."""
SentBy = Literal["INITIATOR", "TARGET", "ANY"]
"""Which side of a conversation may send a message type."""

VALIDATIONS: Final[dict[str, Validation]] = {"NONE": "N", "EMPTY": "E", "WELL_FORMED_XML": "X"}


def create_message_type(connection: Connection, objects: Objects, *, name: str, validation: str) -> None:
    """Creates a message type."""
    check_object_name(name)
    check_not_existing(objects.message_types, name, kind="message type")
    changes.create_message_type(connection, name=name, validation=_validation(validation))


def alter_message_type(connection: Connection, objects: Objects, *, name: str, validation: str) -> None:
    """Changes the validation of a message type, for messages that arrive later."""
    message_type = _user_defined_type(objects, name)
    changes.alter(
        connection, "ssb_message_types", message_type.message_type_id, {"validation": _validation(validation)}
    )


def drop_message_type(connection: Connection, objects: Objects, *, name: str) -> None:
    """Drops a message type that is not in use."""
    message_type = _user_defined_type(objects, name)
    users = [
        contract.name for contract in objects.contracts.values() if message_type.message_type_id in contract.messages
    ]
    if users:
        raise refusal(refusal_texts.message_type_in_use(name, users))
    if changes.is_message_type_queued(connection, message_type_id=message_type.message_type_id):
        raise refusal(
            f"the message type {name!r} is used by messages in queues; receive the messages, or end their conversations"
        )
    changes.drop(connection, "ssb_message_types", message_type.message_type_id)


def create_contract(connection: Connection, objects: Objects, *, name: str, messages: Mapping[str, str]) -> None:
    """Creates a contract."""
    check_object_name(name)
    check_not_existing(objects.contracts, name, kind="contract")
    contents = []
    for message_type, sent_by in messages.items():
        if sent_by not in get_args(SentBy):
            raise OptionError(
                f"messages: expected INITIATOR, TARGET or ANY for {message_type!r:.80}, got {sent_by!r:.80}"
            )
        number = existing(objects.message_types, message_type, kind="message type").message_type_id
        contents.append(contract_message(number, sent_by))
    if not any(message.is_sent_by_initiator for message in contents):
        raise refusal(refusal_texts.nothing_to_send(name), 8492)
    changes.create_contract(connection, name=name, messages=contents)


def drop_contract(connection: Connection, objects: Objects, *, name: str) -> None:
    """Drops a contract that no service, priority or open conversation uses."""
    contract = existing(objects.contracts, name, kind="contract")
    number = contract.service_contract_id
    if number < FIRST_ID:
        raise refusal(refusal_texts.system_object("contract", name), 9663)
    services = [service.name for service in objects.services.values() if number in service.contracts]
    priorities = [priority.name for priority in objects.priorities.values() if priority.service_contract_id == number]
    if services or priorities:
        raise refusal(refusal_texts.contract_in_use(name, services=services, priorities=priorities))
    _remove_closed_conversations(connection, by="service_contract_id", number=number, used=f"the contract {name!r}")
    changes.drop(connection, "ssb_contracts", number)


def _remove_closed_conversations(
    connection: Connection, *, by: UsageColumn, number: int, used: str, remedy: str = ""
) -> None:
    """Removes the closed conversations that use an object to be dropped; raises an error if open conversations use it."""
    open_count = changes.count_open_conversations(connection, column=by, object_id=number)
    if open_count:
        raise refusal(
            f"{used} is used by {quantity(open_count, 'open conversation')}, listed in sys.conversation_endpoints with {by} {number}; "
            "first end them with Transaction.end_conversation(conversation_handle), with cleanup=True (WITH CLEANUP) "
            f"if the remote endpoint no longer answers{remedy}"
        )
    changes.remove_closed_conversations(connection, column=by, object_id=number)


def contract_message(message_type_id: int, sent_by: str) -> ContractMessage:
    """Returns the entry of a message type in a contract."""
    return ContractMessage(
        message_type_id,
        is_sent_by_initiator=sent_by in ("INITIATOR", "ANY"),
        is_sent_by_target=sent_by in ("TARGET", "ANY"),
    )


def _user_defined_type(objects: Objects, name: str) -> MessageType:
    message_type = existing(objects.message_types, name, kind="message type")
    if message_type.message_type_id < FIRST_ID:
        raise refusal(refusal_texts.system_object("message type", name), 9663)
    return message_type


def _validation(name: str) -> Validation:
    if name not in tuple(VALIDATIONS):
        raise OptionError(f"validation: expected NONE, EMPTY or WELL_FORMED_XML, got {name!r}")
    return VALIDATIONS[name]


def queue_values(settings: QueueSettings) -> dict[str, Value]:
    """Validates queue settings; returns the values of those that are not None, by column name."""
    readers = settings.max_queue_readers
    if readers is not None and not 0 <= readers <= READERS_MAX:
        raise refusal(f"MAX_QUEUE_READERS = {readers} is outside the range 0 to {READERS_MAX}", 9607)
    if settings.procedure:
        procedure_key(settings.procedure)
    given: dict[str, Value] = {
        "is_receive_enabled": settings.status,
        "is_enqueue_enabled": settings.status,
        "is_retention_enabled": settings.retention,
        "is_activation_enabled": settings.activation,
        "activation_procedure": settings.procedure,
        "max_readers": readers,
        "is_poison_message_handling_enabled": settings.poison_message_handling,
    }
    values: dict[str, Value] = {column: value for column, value in given.items() if value is not None}
    if settings.procedure == "":  # ACTIVATION (DROP)
        values["activation_procedure"] = None
    return values


def activation_values(settings: QueueSettings, *, max_readers: int = 0) -> dict[str, Value]:
    """Returns the defaults for a queue that gets its first procedure: activation on, and at least one reader."""
    values: dict[str, Value] = {}
    if not settings.procedure:
        return values
    if settings.activation is None:
        values["is_activation_enabled"] = True
    if settings.max_queue_readers is None:
        values["max_readers"] = max_readers or 1
    return values


def check_on_poison(on_poison: str | None, poison_queue: str | None) -> None:
    """Validates the options for poison messages, as far as is possible without knowing the queue."""
    if on_poison not in (None, *get_args(OnPoison)):
        raise OptionError(f'on_poison: expected "disable" or "move", got {on_poison!r:.80}')
    if on_poison != "move" and poison_queue is not None:
        raise OptionError(f'poison_queue: {poison_queue!r:.80} requires on_poison="move", got on_poison={on_poison!r}')


def poison_values(objects: Objects, name: str, on_poison: str | None, poison_queue: str | None) -> dict[str, Value]:
    """Validates the queue to which poison messages are moved, and returns the column value for it, or no value if `on_poison` is None."""
    check_on_poison(on_poison, poison_queue)
    if on_poison == "move" and poison_queue is None:
        raise OptionError('poison_queue: expected the name of a queue, because on_poison="move"; got None')
    if poison_queue is None:
        return {} if on_poison is None else {"poison_queue_id": None}
    if queue_key(poison_queue) == queue_key(name):
        raise OptionError(
            f"poison_queue: expected a queue other than {name!r} itself, because failed messages are moved out of it"
        )
    return {"poison_queue_id": existing(objects.queues, queue_key(poison_queue), kind="queue").queue_id}


def create_queue(
    connection: Connection,
    objects: Objects,
    *,
    name: str,
    settings: QueueSettings,
    on_poison: str | None = None,
    poison_queue: str | None = None,
) -> None:
    """Creates a queue."""
    schema, unqualified = key = queue_key(name)
    check_object_name(schema)
    check_object_name(unqualified)
    check_not_existing(objects.queues, key, kind="queue", number=2714)
    options = queue_values(settings) | activation_values(settings)
    options |= poison_values(objects, name, on_poison, poison_queue)
    changes.create_queue(connection, schema_name=schema, name=unqualified, options=options)


def alter_queue(
    connection: Connection,
    objects: Objects,
    *,
    name: str,
    settings: QueueSettings,
    on_poison: str | None = None,
    poison_queue: str | None = None,
) -> None:
    """Alters a queue; enabling it resets the rollback count, and forgets why it was disabled."""
    queue = existing(objects.queues, queue_key(name), kind="queue")
    values = queue_values(settings) | poison_values(objects, name, on_poison, poison_queue)
    if queue.activation_procedure is None:
        values |= activation_values(settings, max_readers=queue.max_readers)
    if settings.status:
        values["rollbacks"] = 0
        failures.forget_failure_of_queue(connection, queue.queue_id)
    changes.alter(connection, "ssb_queues", queue.queue_id, values)


def drop_queue(connection: Connection, objects: Objects, *, name: str) -> None:
    """Drops a queue that no service uses."""
    queue = existing(objects.queues, queue_key(name), kind="queue")
    users = objects.services_of(queue)
    if users:
        remedy = _work_queue_remedy(objects, users[0]) if len(users) == 1 else ""
        raise refusal(refusal_texts.queue_in_use(name, [user.name for user in users]) + remedy)
    sources = [plain_queue_name(one) for one in objects.queues.values() if one.poison_queue_id == queue.queue_id]
    if sources:
        raise refusal(
            f"the queue {name!r} cannot be dropped, because it receives the failed messages of {refusal_texts.named('queue', sources)}; "
            "first call Database.alter_queue for each of these queues, with another on_poison or poison_queue"
        )
    if failures.has_groups_moved_to(connection, queue.queue_id):
        raise refusal(
            f"the queue {name!r} contains failed messages that were moved from other queues; "
            "put these messages back with requeue, or end their conversations"
        )
    failures.forget_failure_of_queue(connection, queue.queue_id)  # another queue may get the same id
    changes.drop(connection, "ssb_queues", queue.queue_id)


def create_service(
    connection: Connection,
    objects: Objects,
    *,
    name: str,
    queue: str,
    contracts: Iterable[str],
    owner: str | None = None,
) -> None:
    """Creates a service on a queue, with the contracts that it accepts as a target."""
    check_object_name(name)
    check_not_existing(objects.services, name, kind="service")
    target_queue = existing(objects.queues, queue_key(queue), kind="queue")
    numbers, owner_id = contract_ids(objects, contracts), principal_id(objects, owner)
    changes.create_service(
        connection, name=name, queue_id=target_queue.queue_id, contracts=numbers, principal_id=owner_id
    )


def alter_service(
    connection: Connection,
    objects: Objects,
    *,
    name: str,
    queue: str | None = None,
    add_contracts: Iterable[str] = (),
    drop_contracts: Iterable[str] = (),
) -> None:
    """Moves a service and its messages to another queue, and changes its contracts."""
    service = existing(objects.services, name, kind="service")
    added, dropped = contract_ids(objects, add_contracts), contract_ids(objects, drop_contracts)
    for number in added:
        if number in service.contracts:
            raise refusal(refusal_texts.contract_added(name, objects.contracts_by_id[number].name))
    for number in dropped:
        if number not in service.contracts:
            raise refusal(refusal_texts.contract_lacking(name, objects.contracts_by_id[number].name), 15151)
    if queue is not None:
        target_queue = existing(objects.queues, queue_key(queue), kind="queue")
        changes.move_service(connection, service_id=service.service_id, queue_id=target_queue.queue_id)
    changes.add_contracts(connection, service_id=service.service_id, contracts=added)
    changes.drop_contracts_of_service(connection, service_id=service.service_id, contracts=dropped)


def drop_service(connection: Connection, objects: Objects, *, name: str) -> None:
    """Drops a service that no priority or open conversation uses."""
    service = existing(objects.services, name, kind="service")
    users = [one.name for one in objects.priorities.values() if one.local_service_id == service.service_id]
    if users:
        raise refusal(refusal_texts.service_in_use(name, users))
    _remove_closed_conversations(
        connection,
        by="service_id",
        number=service.service_id,
        used=f"the service {name!r}",
        remedy=_work_queue_remedy(objects, service),
    )
    changes.drop(connection, "ssb_services", service.service_id)


def _work_queue_remedy(objects: Objects, service: Service) -> str:
    """Returns how to drop a work queue, if the service belongs to one; otherwise an empty string."""
    contract = objects.contracts.get(WORK_QUEUE_CONTRACT)
    if contract is None or contract.service_contract_id not in service.contracts:
        return ""
    name = plain_queue_name(objects.queues_by_id[service.queue_id])
    return (
        f". Database.queue({name!r}).drop() drops a work queue with its service and the messages that `put` has added"
    )


def contract_ids(objects: Objects, names: Iterable[str]) -> list[int]:
    """Returns the ids of contracts, without duplicates."""
    return [existing(objects.contracts, name, kind="contract").service_contract_id for name in dict.fromkeys(names)]


_COLUMNS: Final = {
    "contract": "service_contract_id",
    "local_service": "local_service_id",
    "remote_service": "remote_service_name",
}

PriorityClauses = Iterable[tuple[str, str | int | None]]
"""The clauses of a priority, as in `PrioritySettings.options`."""


def create_broker_priority(connection: Connection, objects: Objects, *, name: str, clauses: PriorityClauses) -> None:
    """Creates a priority for new conversations."""
    check_object_name(name)
    check_not_existing(objects.priorities, name, kind="broker priority")
    new = Priority(0, name, None, None, None, DEFAULT_LEVEL)
    changes.create_priority(connection, values={"name": name, **_priority_values(objects, new, clauses)})


def alter_broker_priority(connection: Connection, objects: Objects, *, name: str, clauses: PriorityClauses) -> None:
    """Alters a priority; existing conversations keep their level."""
    priority = existing(objects.priorities, name, kind="broker priority")
    changes.alter(
        connection, "ssb_conversation_priorities", priority.priority_id, _priority_values(objects, priority, clauses)
    )


def drop_broker_priority(connection: Connection, objects: Objects, *, name: str) -> None:
    """Drops a priority."""
    priority = existing(objects.priorities, name, kind="broker priority")
    changes.drop(connection, "ssb_conversation_priorities", priority.priority_id)


def _priority_values(objects: Objects, before: Priority, clauses: PriorityClauses) -> dict[str, Value]:
    """Returns the new column values: values in the clauses replace the old ones."""
    values: dict[str, Value] = {
        "service_contract_id": before.service_contract_id,
        "local_service_id": before.local_service_id,
        "remote_service_name": before.remote_service_name,
    }
    level: object = before.priority
    for clause, value in clauses:
        if clause == "level":
            level = DEFAULT_LEVEL if value is None else value
        elif value is None or clause == "remote_service":
            values[_COLUMNS[clause]] = value
        elif clause == "contract":
            values[_COLUMNS[clause]] = existing(objects.contracts, str(value), kind="contract").service_contract_id
        else:
            values[_COLUMNS[clause]] = existing(objects.services, str(value), kind="service").service_id
    if level not in LEVELS:
        raise refusal(f"PRIORITY_LEVEL = {level} is outside the range 1 to 10", 9606)
    for other in objects.priorities.values():
        same = (other.service_contract_id, other.local_service_id, other.remote_service_name)
        if same == tuple(values.values()) and other.name != before.name:
            raise refusal(refusal_texts.same_priority(other.name))
    return {**values, "priority": int(str(level))}


_TEXTS: Final = ("service_name", "broker_instance", "address", "mirror_address")


def create_route(connection: Connection, objects: Objects, *, name: str, clauses: RouteClauses, now: datetime) -> None:
    """Creates a route; its lifetime starts at `now`."""
    check_object_name(name)
    check_not_existing(objects.routes, name, kind="route")
    changes.create_route(connection, values={"name": name, **_route_values(clauses, None, now)})


def alter_route(connection: Connection, objects: Objects, *, name: str, clauses: RouteClauses, now: datetime) -> None:
    """Alters the given settings of a route."""
    route = existing(objects.routes, name, kind="route")
    given = {field: value for field in _TEXTS if (value := getattr(clauses, field)) is not None}
    merged = RouteClauses(**{**route_clauses(route), **given}, lifetime=clauses.lifetime)
    changes.alter(connection, "ssb_routes", route.route_id, _route_values(merged, route.lifetime, now))


def annotate(
    connection: Connection, objects: Objects, *, name: str, lifetime: int | None, route_id: int | None
) -> None:
    """Sets the exact expiry time and id of a route from annotations; `objects` must include the route, even if it is new."""
    number = objects.routes[name].route_id
    if route_id is not None and route_id != number and changes.has_route(connection, route_id=route_id):
        raise refusal(f"the database already has a route with the id {route_id}")
    given: dict[str, Value] = {"lifetime": lifetime, "route_id": route_id}
    changes.alter(connection, "ssb_routes", number, {key: value for key, value in given.items() if value is not None})


def drop_route(connection: Connection, objects: Objects, *, name: str) -> None:
    """Drops a route; messages that used it wait in the transmission queue until another route matches."""
    changes.drop(connection, "ssb_routes", existing(objects.routes, name, kind="route").route_id)


def _route_values(clauses: RouteClauses, lifetime: int | None, now: datetime) -> dict[str, Value]:
    try:
        guid = check(clauses)
        if clauses.lifetime is not None:
            lifetime = epoch_microseconds(now + timedelta(seconds=clauses.lifetime))
    except RefusalError as refused:
        raise refusal(refused.reason, refused.number) from None
    except OverflowError:
        raise refusal(refusal_texts.lifetime_too_long(clauses.lifetime), 9746) from None
    return {
        "remote_service_name": clauses.service_name,
        "broker_instance": guid,
        "lifetime": lifetime,
        "address": clauses.address,
        "mirror_address": clauses.mirror_address,
    }


def route_clauses(route: Route) -> dict[str, str | None]:
    """Returns the clauses of a route as text."""
    guid = route.broker_instance
    return {
        "service_name": route.remote_service_name,
        "broker_instance": None if guid is None else str(uuid.UUID(bytes=guid)),
        "address": route.address,
        "mirror_address": route.mirror_address,
    }


_MESSAGE_TYPES: Final[dict[str, tuple[int, Validation]]] = {
    ERROR: (1, "X"),
    END_DIALOG: (2, "E"),
    DIALOG_TIMER: (3, "E"),
    DEFAULT: (4, "N"),
}
_CONTRACT_ID: Final = 1


def create_default_objects(connection: Connection) -> None:
    """Creates the system message types, the contract DEFAULT and the route AutoCreatedLocal."""
    for name, (number, validation) in _MESSAGE_TYPES.items():
        changes.create_message_type(connection, name=name, validation=validation, message_type_id=number)
    default_message = ContractMessage(_MESSAGE_TYPES[DEFAULT][0], is_sent_by_initiator=True, is_sent_by_target=True)
    changes.create_contract(connection, name=DEFAULT, messages=[default_message], service_contract_id=_CONTRACT_ID)
    changes.create_route(connection, values={"name": AUTO_CREATED_LOCAL, "address": "LOCAL"})


_NUMBER_MAX = 2**63 - 1


def set_mirroring_role(connection: Connection, objects: Objects, *, role: Role, number: int | None) -> None:
    """Sets the mirroring role and role sequence number of a database."""
    if role not in get_args(Role):
        raise OptionError(f'role: expected "principal" or "mirror", got {role!r:.80}')
    broker = objects.broker
    if number is None:
        is_failover = role == "principal" and broker.mirroring_role == "mirror"
        number = broker.mirroring_number + is_failover
    integer_argument(number, name="number", minimum=0, maximum=_NUMBER_MAX)
    if number < broker.mirroring_number:
        raise OptionError(
            f"number: {number} is less than the role sequence number of the database, {broker.mirroring_number}; omit the argument, or pass at least {broker.mirroring_number}"
        )
    changes.write_mirroring(connection, MirroringState(role, number))
    changes.bump_version(connection)
