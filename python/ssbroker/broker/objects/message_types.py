"""Message types and contracts: what may be made, changed and dropped (facts 138 to 140)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

from ssbroker.broker.objects.names import check_object_name
from ssbroker.broker.objects.refusals import existing, forget_conversations, refusal, refuse_taken
from ssbroker.exceptions import OptionError
from ssbroker.store import object_changes as changes
from ssbroker.store.object_changes import FIRST_ID
from ssbroker.store.objects import ContractMessage, MessageType, Objects, Validation
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
    if changes.is_queued(connection, message_type_id=kind.message_type_id):
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
