"""Broker priorities: what may be made, changed and dropped (fact 147)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ssbroker.broker.objects.names import check_object_name
from ssbroker.broker.objects.refusals import existing, refusal, refuse_taken
from ssbroker.store import object_changes as changes
from ssbroker.store.object_changes import Value
from ssbroker.store.objects import Objects, Priority
from ssbroker.store.sqlite import Connection

LEVELS: Final = range(1, 11)
DEFAULT_LEVEL: Final = 5
_COLUMNS: Final = {
    "contract": "service_contract_id",
    "local_service": "local_service_id",
    "remote_service": "remote_service_name",
}

Said = Iterable[tuple[str, str | int | None]]
"""What is said of a priority, as `PrioritySettings.said` has it."""


def create_broker_priority(connection: Connection, objects: Objects, *, name: str, said: Said) -> None:
    """Makes a priority for the conversations that begin from now on."""
    check_object_name(name)
    refuse_taken(objects.priorities, name, kind="broker priority")
    new = Priority(0, name, None, None, None, DEFAULT_LEVEL)
    changes.create_priority(connection, values={"name": name, **_values(objects, new, said)})


def alter_broker_priority(connection: Connection, objects: Objects, *, name: str, said: Said) -> None:
    """Changes what is said of a priority; conversations keep what they began with (B19)."""
    priority = existing(objects.priorities, name, kind="broker priority")
    changes.alter(connection, "ssb_conversation_priorities", priority.priority_id, _values(objects, priority, said))


def drop_broker_priority(connection: Connection, objects: Objects, *, name: str) -> None:
    """Removes a priority."""
    priority = existing(objects.priorities, name, kind="broker priority")
    changes.drop(connection, "ssb_conversation_priorities", priority.priority_id)


def _values(objects: Objects, before: Priority, said: Said) -> dict[str, Value]:
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
