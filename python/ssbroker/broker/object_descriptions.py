"""Describes the objects of a database by their names, without ids, so that they can be compared."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from ssbroker.broker import object_ddl
from ssbroker.broker.object_names import queue_text
from ssbroker.ddl.system_objects import SYSTEM_CONTRACTS, SYSTEM_MESSAGE_TYPES
from ssbroker.store.objects import BrokerEndpoint, Objects, Priority, Service


def contract_names(objects: Objects, service: Service) -> set[str]:
    """Returns the names of the contracts of a service."""
    return {objects.contracts_by_id[number].name for number in service.contracts}


def contract_messages(objects: Objects, contract: str) -> set[tuple[str, str]]:
    """Returns the message types of a contract, each with who sends it."""
    senders = {(True, True): "ANY", (True, False): "INITIATOR", (False, True): "TARGET"}
    return {
        (objects.message_types_by_id[number].name, senders[rule.is_sent_by_initiator, rule.is_sent_by_target])
        for number, rule in objects.contracts[contract].messages.items()
    }


def contract_text(messages: Iterable[tuple[str, str]]) -> str:
    """Returns the message types of a contract as T-SQL writes them."""
    return ", ".join(f"{message_type} SENT BY {sender}" for message_type, sender in sorted(messages))


def priority_properties(objects: Objects, priority: Priority) -> dict[str, str | int | None]:
    """Returns the clauses of a broker priority."""
    contract, service = priority.service_contract_id, priority.local_service_id
    return {
        "contract": None if contract is None else objects.contracts_by_id[contract].name,
        "local_service": None if service is None else objects.services_by_id[service].name,
        "remote_service": priority.remote_service_name,
        "level": priority.priority,
    }


def principal_name(objects: Objects, principal_id: int) -> str:
    """Returns the name of a principal."""
    return next(one.name for one in objects.security.principals.values() if one.principal_id == principal_id)


Described: TypeAlias = dict[tuple[str, str], dict[str, Any]]
"""The objects of a database by kind and name, each with its properties."""


def describe_database(objects: Objects) -> Described:
    """Returns what a script can change of a database, without ids."""
    found: Described = {
        ("database", ""): {
            "broker": "enabled" if objects.broker.is_broker_enabled else "disabled",
            "broker id": str(uuid.UUID(bytes=objects.broker.service_broker_guid)),
            "honor broker priority": _on_off(objects.broker.is_honor_broker_priority_on),
        }
    }
    for message_type in objects.message_types.values():
        if message_type.name not in SYSTEM_MESSAGE_TYPES:
            found["message type", message_type.name] = {"validation": _VALIDATION_NAMES[message_type.validation]}
    for contract in objects.contracts:
        if contract not in SYSTEM_CONTRACTS:
            found["contract", contract] = {"messages": contract_text(contract_messages(objects, contract))}
    for queue in objects.queues.values():
        found["queue", queue_text(queue.schema_name, queue.name)] = {
            "status": _on_off(queue.is_receive_enabled),
            "retention": _on_off(queue.is_retention_enabled),
            "activation": _on_off(queue.is_activation_enabled),
            "procedure": queue.activation_procedure,
            "max_queue_readers": queue.max_readers,
            "poison_message_handling": _on_off(queue.is_poison_message_handling_enabled),
        }
    for service in objects.services.values():
        of = objects.queues_by_id[service.queue_id]
        found["service", service.name] = {
            "queue": queue_text(of.schema_name, of.name),
            "contracts": ", ".join(sorted(contract_names(objects, service))) or None,
            "owner": principal_name(objects, service.principal_id),
        }
    for route in objects.routes.values():
        found["route", route.name] = {**object_ddl.route_clauses(route), "lifetime": route.lifetime}
    for priority in objects.priorities.values():
        found["broker priority", priority.name] = priority_properties(objects, priority)
    return {**found, **_describe_security(objects)}


def _describe_security(objects: Objects) -> Described:
    security = objects.security
    found: Described = {("user", name): {} for name in security.principals}
    if security.master_key is not None:
        found["master key", ""] = {}
    for certificate in security.certificates.values():
        found["certificate", certificate.name] = {
            "owner": principal_name(objects, certificate.principal_id),
            "active for begin dialog": _on_off(certificate.is_active_for_begin_dialog),
            "private key": "present" if certificate.private_key is not None else None,
        }
    for binding in security.bindings.values():
        found["remote service binding", binding.name] = {
            "service": binding.remote_service_name,
            "user": principal_name(objects, binding.remote_principal_id),
            "anonymous": _on_off(binding.is_anonymous_on),
        }
    for (service, principal), state in security.permissions.items():
        name = f"{objects.services_by_id[service].name} to {principal_name(objects, principal)}"
        found[PERMISSION, name] = {"state": "granted" if state == "G" else "denied"}
    return found


def describe_endpoint(endpoint: BrokerEndpoint | None) -> Described:
    """Returns the endpoint of an instance."""
    if endpoint is None:
        return {}
    return {
        ("endpoint", endpoint.name): {
            "state": endpoint.state,
            "port": endpoint.port,
            "ip": endpoint.ip,
            "forwarding": _on_off(endpoint.is_message_forwarding_enabled),
            "forward size": endpoint.message_forwarding_size,
        }
    }


def _on_off(is_on: object) -> str:
    return "on" if is_on else "off"


PERMISSION: Final = "SEND permission on"
_VALIDATION_NAMES: Final = {short: name for name, short in object_ddl.VALIDATIONS.items()}
