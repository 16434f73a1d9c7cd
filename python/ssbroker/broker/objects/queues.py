"""Queues and services: what may be made, changed and dropped (facts 141, 142)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ssbroker.broker.objects.names import check_object_name
from ssbroker.broker.objects.principals import principal_id
from ssbroker.broker.objects.queue_names import procedure_key, queue_key
from ssbroker.broker.objects.refusals import existing, forget_conversations, refusal, refuse_taken
from ssbroker.ddl.statements import QueueSettings
from ssbroker.store import object_changes as changes
from ssbroker.store.object_changes import Value
from ssbroker.store.objects import Objects
from ssbroker.store.sqlite import Connection

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
