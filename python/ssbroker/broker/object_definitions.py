"""Creates, alters and drops objects: message types, contracts, queues, services, routes, priorities."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, Literal, get_args

from ssbroker._arguments import epoch_microseconds, whole_number
from ssbroker.broker.principals import principal_id
from ssbroker.broker.validation import (
    check_object_name,
    existing,
    forget_conversations,
    procedure_key,
    queue_key,
    refusal,
    refuse_taken,
)
from ssbroker.ddl.lexer import RefusalError
from ssbroker.ddl.route_validation import AUTO_CREATED_LOCAL, check
from ssbroker.ddl.statements import Clauses, QueueSettings
from ssbroker.exceptions import OptionError
from ssbroker.protocol.config import DEFAULT, DIALOG_TIMER, END_DIALOG, ERROR
from ssbroker.store import object_changes
from ssbroker.store import object_changes as changes
from ssbroker.store.object_changes import FIRST_ID, Value
from ssbroker.store.objects import (
    ContractMessage,
    MessageType,
    MirroringRole,
    Objects,
    Priority,
    Role,
    Route,
    Validation,
)
from ssbroker.store.sqlite import Connection

ValidationName = Literal["NONE", "EMPTY", "WELL_FORMED_XML"]
"""What a message type demands of its messages' bodies."""
SentBy = Literal["INITIATOR", "TARGET", "ANY"]
"""Which side may send a message type under a contract."""

VALIDATIONS: Final[dict[str, Validation]] = {"NONE": "N", "EMPTY": "E", "WELL_FORMED_XML": "X"}


def create_message_type(connection: Connection, objects: Objects, *, name: str, validation: str) -> None:
    """Makes a message type."""
    check_object_name(name)
    refuse_taken(objects.message_types, name, kind="message type")
    changes.create_message_type(connection, name=name, validation=_validation(validation))


def alter_message_type(connection: Connection, objects: Objects, *, name: str, validation: str) -> None:
    """Changes what a message type demands, from the next message on."""
    kind = _own_type(objects, name)
    changes.alter(connection, "ssb_message_types", kind.message_type_id, {"validation": _validation(validation)})


def drop_message_type(connection: Connection, objects: Objects, *, name: str) -> None:
    """Removes a message type that no contract holds."""
    kind = _own_type(objects, name)
    users = [contract.name for contract in objects.contracts.values() if kind.message_type_id in contract.messages]
    if users:
        raise refusal(f"contract {users[0]!r} holds message type {name!r}")
    if changes.is_message_type_queued(connection, message_type_id=kind.message_type_id):
        raise refusal(f"messages of type {name!r} are in queues: receive them, or end their conversations")
    changes.drop(connection, "ssb_message_types", kind.message_type_id)


def create_contract(connection: Connection, objects: Objects, *, name: str, messages: Mapping[str, str]) -> None:
    """Makes a contract of message types, each with who may send it."""
    check_object_name(name)
    refuse_taken(objects.contracts, name, kind="contract")
    held = [_contract_message(objects, kind, sent_by) for kind, sent_by in messages.items()]
    if not any(message.is_sent_by_initiator for message in held):
        raise refusal(f"contract {name!r} needs a message type that is SENT BY INITIATOR or ANY", 8492)
    changes.create_contract(connection, name=name, messages=held)


def drop_contract(connection: Connection, objects: Objects, *, name: str) -> None:
    """Removes a contract that no service, priority or open conversation uses (B36)."""
    contract = existing(objects.contracts, name, kind="contract")
    number = contract.service_contract_id
    if number < FIRST_ID:
        raise refusal(f"contract {name!r} is the system's and stays as it is", 9663)
    users = [f"service {service.name!r}" for service in objects.services.values() if number in service.contracts]
    users += [
        f"broker priority {priority.name!r}"
        for priority in objects.priorities.values()
        if priority.service_contract_id == number
    ]
    if users:
        raise refusal(f"{users[0]} uses contract {name!r}")
    forget_conversations(connection, by="service_contract_id", number=number, used=f"contract {name!r}")
    changes.drop(connection, "ssb_contracts", number)


def _contract_message(objects: Objects, kind: str, sent_by: str) -> ContractMessage:
    if sent_by not in get_args(SentBy):
        raise OptionError(f"sent by: expected INITIATOR, TARGET or ANY, got {sent_by!r}")
    number = existing(objects.message_types, kind, kind="message type").message_type_id
    return ContractMessage(
        number,
        is_sent_by_initiator=sent_by in ("INITIATOR", "ANY"),
        is_sent_by_target=sent_by in ("TARGET", "ANY"),
    )


def _own_type(objects: Objects, name: str) -> MessageType:
    kind = existing(objects.message_types, name, kind="message type")
    if kind.message_type_id < FIRST_ID:
        raise refusal(f"message type {name!r} is the system's and stays as it is", 9663)
    return kind


def _validation(name: str) -> Validation:
    if name not in tuple(VALIDATIONS):
        raise OptionError(f"validation: expected NONE, EMPTY or WELL_FORMED_XML, got {name!r}")
    return VALIDATIONS[name]


READERS_MAX: Final = 32_767


def queue_values(settings: QueueSettings) -> dict[str, Value]:
    """What is said of a queue, by the names of the columns."""
    readers = settings.max_queue_readers
    if readers is not None and not 0 <= readers <= READERS_MAX:
        raise refusal(f"MAX_QUEUE_READERS = {readers} is outside the range 0 to {READERS_MAX}", 9607)
    if settings.procedure:
        procedure_key(settings.procedure)
    said: dict[str, Value] = {
        "is_receive_enabled": settings.status,
        "is_enqueue_enabled": settings.status,
        "is_retention_enabled": settings.retention,
        "is_activation_enabled": settings.activation,
        "activation_procedure": settings.procedure,
        "max_readers": readers,
        "is_poison_message_handling_enabled": settings.poison_message_handling,
    }
    values: dict[str, Value] = {column: value for column, value in said.items() if value is not None}
    if settings.procedure == "":  # ACTIVATION (DROP)
        values["activation_procedure"] = None
    return values


def activation_values(settings: QueueSettings, *, max_readers: int = 0) -> dict[str, Value]:
    """What is not said of a queue that has had no procedure, and is given one (B23); it has had `max_readers` all the same."""
    values: dict[str, Value] = {}
    if not settings.procedure:
        return values
    if settings.activation is None:
        values["is_activation_enabled"] = True
    if settings.max_queue_readers is None:
        values["max_readers"] = max_readers or 1
    return values


def create_queue(connection: Connection, objects: Objects, *, name: str, settings: QueueSettings) -> None:
    """Makes a queue."""
    schema, plain = key = queue_key(name)
    check_object_name(schema)
    check_object_name(plain)
    refuse_taken(objects.queues, key, kind="queue", number=2714)
    options = queue_values(settings) | activation_values(settings)
    changes.create_queue(connection, schema_name=schema, name=plain, options=options)


def alter_queue(connection: Connection, objects: Objects, *, name: str, settings: QueueSettings) -> None:
    """Changes a queue; turning it on forgets the rollbacks that turned it off (B24)."""
    queue = existing(objects.queues, queue_key(name), kind="queue")
    values = queue_values(settings)
    if queue.activation_procedure is None:
        values |= activation_values(settings, max_readers=queue.max_readers)
    if settings.status:
        values["rollbacks"] = 0
    changes.alter(connection, "ssb_queues", queue.queue_id, values)


def drop_queue(connection: Connection, objects: Objects, *, name: str) -> None:
    """Removes a queue that no service uses."""
    queue = existing(objects.queues, queue_key(name), kind="queue")
    users = objects.services_of(queue)
    if users:
        raise refusal(f"service {users[0].name!r} uses queue {name!r}")
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
    """Makes a service on a queue, with the contracts that it accepts as a target."""
    check_object_name(name)
    refuse_taken(objects.services, name, kind="service")
    on = existing(objects.queues, queue_key(queue), kind="queue")
    numbers, belongs = contract_ids(objects, contracts), principal_id(objects, owner)
    changes.create_service(connection, name=name, queue_id=on.queue_id, contracts=numbers, principal_id=belongs)


def alter_service(
    connection: Connection,
    objects: Objects,
    *,
    name: str,
    queue: str | None = None,
    add_contracts: Iterable[str] = (),
    drop_contracts: Iterable[str] = (),
) -> None:
    """Moves a service with its messages to another queue, and changes what it accepts from new conversations."""
    service = existing(objects.services, name, kind="service")
    added, dropped = contract_ids(objects, add_contracts), contract_ids(objects, drop_contracts)
    for number in added:
        if number in service.contracts:
            raise refusal(f"service {name!r} has contract {objects.contracts_by_id[number].name!r} already")
    for number in dropped:
        if number not in service.contracts:
            raise refusal(f"service {name!r} does not have contract {objects.contracts_by_id[number].name!r}", 15151)
    if queue is not None:
        on = existing(objects.queues, queue_key(queue), kind="queue")
        changes.move_service(connection, service_id=service.service_id, queue_id=on.queue_id)
    changes.add_contracts(connection, service_id=service.service_id, contracts=added)
    changes.drop_contracts_of_service(connection, service_id=service.service_id, contracts=dropped)


def drop_service(connection: Connection, objects: Objects, *, name: str) -> None:
    """Removes a service that no priority or open conversation uses (B36)."""
    service = existing(objects.services, name, kind="service")
    for priority in objects.priorities.values():
        if priority.local_service_id == service.service_id:
            raise refusal(f"broker priority {priority.name!r} uses service {name!r}")
    forget_conversations(connection, by="service_id", number=service.service_id, used=f"service {name!r}")
    changes.drop(connection, "ssb_services", service.service_id)


def contract_ids(objects: Objects, names: Iterable[str]) -> list[int]:
    """The ids of contracts, each once."""
    return [existing(objects.contracts, name, kind="contract").service_contract_id for name in dict.fromkeys(names)]


LEVELS: Final = range(1, 11)
DEFAULT_LEVEL: Final = 5
_COLUMNS: Final = {
    "contract": "service_contract_id",
    "local_service": "local_service_id",
    "remote_service": "remote_service_name",
}

Said = Iterable[tuple[str, str | int | None]]
"""What is said of a priority, as `PrioritySettings.options` has it."""


def create_broker_priority(connection: Connection, objects: Objects, *, name: str, said: Said) -> None:
    """Makes a priority for the conversations that begin from now on."""
    check_object_name(name)
    refuse_taken(objects.priorities, name, kind="broker priority")
    new = Priority(0, name, None, None, None, DEFAULT_LEVEL)
    changes.create_priority(connection, values={"name": name, **_priority_values(objects, new, said)})


def alter_broker_priority(connection: Connection, objects: Objects, *, name: str, said: Said) -> None:
    """Changes what is said of a priority; conversations keep what they began with (B19)."""
    priority = existing(objects.priorities, name, kind="broker priority")
    changes.alter(
        connection, "ssb_conversation_priorities", priority.priority_id, _priority_values(objects, priority, said)
    )


def drop_broker_priority(connection: Connection, objects: Objects, *, name: str) -> None:
    """Removes a priority."""
    priority = existing(objects.priorities, name, kind="broker priority")
    changes.drop(connection, "ssb_conversation_priorities", priority.priority_id)


def _priority_values(objects: Objects, before: Priority, said: Said) -> dict[str, Value]:
    """The columns as they will be: what is said, the rest as it was."""
    values: dict[str, Value] = {
        "service_contract_id": before.service_contract_id,
        "local_service_id": before.local_service_id,
        "remote_service_name": before.remote_service_name,
    }
    level: object = before.priority
    for what, value in said:
        if what == "level":
            level = DEFAULT_LEVEL if value is None else value
        elif value is None or what == "remote_service":
            values[_COLUMNS[what]] = value
        elif what == "contract":
            values[_COLUMNS[what]] = existing(objects.contracts, str(value), kind="contract").service_contract_id
        else:
            values[_COLUMNS[what]] = existing(objects.services, str(value), kind="service").service_id
    if level not in LEVELS:
        raise refusal(f"PRIORITY_LEVEL = {level} is outside the range 1 to 10", 9606)
    for other in objects.priorities.values():
        same = (other.service_contract_id, other.local_service_id, other.remote_service_name)
        if same == tuple(values.values()) and other.name != before.name:
            raise refusal(f"broker priority {other.name!r} is for the same conversations")
    return {**values, "priority": int(str(level))}


_TEXTS: Final = ("service_name", "broker_instance", "address", "mirror_address")


def create_route(connection: Connection, objects: Objects, *, name: str, clauses: Clauses, now: datetime) -> None:
    """Makes a route; its lifetime counts from `now`."""
    check_object_name(name)
    refuse_taken(objects.routes, name, kind="route")
    changes.create_route(connection, values={"name": name, **_route_values(clauses, None, now)})


def alter_route(connection: Connection, objects: Objects, *, name: str, clauses: Clauses, now: datetime) -> None:
    """Changes what is named of a route; the rest stays (fact 40)."""
    route = existing(objects.routes, name, kind="route")
    said = {field: value for field in _TEXTS if (value := getattr(clauses, field)) is not None}
    whole = Clauses(**{**_texts(route), **said}, lifetime=clauses.lifetime)
    changes.alter(connection, "ssb_routes", route.route_id, _route_values(whole, route.lifetime, now))


def annotate(
    connection: Connection, objects: Objects, *, name: str, lifetime: int | None, route_id: int | None
) -> None:
    """Gives a route an exact moment of expiry and an id, where they are said; `objects` sees the route, be it new."""
    number = objects.routes[name].route_id
    if route_id is not None and route_id != number and changes.has_route(connection, route_id=route_id):
        raise refusal(f"the database has a route with the id {route_id}")
    said: dict[str, Value] = {"lifetime": lifetime, "route_id": route_id}
    changes.alter(connection, "ssb_routes", number, {key: value for key, value in said.items() if value is not None})


def drop_route(connection: Connection, objects: Objects, *, name: str) -> None:
    """Removes a route; what it led waits in the transmission queue until another leads it (fact 41)."""
    changes.drop(connection, "ssb_routes", existing(objects.routes, name, kind="route").route_id)


def _route_values(clauses: Clauses, lifetime: int | None, now: datetime) -> dict[str, Value]:
    try:
        guid = check(clauses)
        if clauses.lifetime is not None:
            lifetime = epoch_microseconds(now + timedelta(seconds=clauses.lifetime))
    except RefusalError as refused:
        raise refusal(refused.reason, refused.number) from None
    except OverflowError:
        raise refusal(f"LIFETIME = {clauses.lifetime} reaches beyond the year 9999", 9746) from None
    return {
        "remote_service_name": clauses.service_name,
        "broker_instance": guid,
        "lifetime": lifetime,
        "address": clauses.address,
        "mirror_address": clauses.mirror_address,
    }


def _texts(route: Route) -> dict[str, str | None]:
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


def create(connection: Connection) -> None:
    """Writes the system's message types, contract DEFAULT and route AutoCreatedLocal (facts 49, 130, 140)."""
    for name, (number, validation) in _MESSAGE_TYPES.items():
        changes.create_message_type(connection, name=name, validation=validation, message_type_id=number)
    anyone = ContractMessage(_MESSAGE_TYPES[DEFAULT][0], is_sent_by_initiator=True, is_sent_by_target=True)
    changes.create_contract(connection, name=DEFAULT, messages=[anyone], service_contract_id=_CONTRACT_ID)
    changes.create_route(connection, values={"name": AUTO_CREATED_LOCAL, "address": "LOCAL"})


_NUMBER_MAX = 2**63 - 1


def set_role(connection: Connection, objects: Objects, *, role: Role, number: int | None) -> None:
    """Makes a database the principal or the mirror of its pair."""
    if role not in get_args(Role):
        raise OptionError(f'role: expected "principal" or "mirror"; got {role!r:.80}')
    broker = objects.broker
    if number is None:
        takes_over = role == "principal" and broker.mirroring_role == "mirror"
        number = broker.mirroring_number + takes_over
    whole_number(number, name="number", minimum=broker.mirroring_number, maximum=_NUMBER_MAX)
    object_changes.write_mirroring(connection, MirroringRole(role, number))
    changes.bump_version(connection)
