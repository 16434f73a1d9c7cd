"""Why a statement about an object is refused: the texts that scripts and the broker share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ssbroker._text import shortened_list, shown
from ssbroker._well_known import SERVICE_NAME_MAX

_NAMES_MAX: Final = 10
"""The most names of one kind that a text lists."""

DBO_CAN_SEND: Final = "dbo can always send, so the permission cannot be granted, denied or revoked"
MASTER_KEY_PASSWORD_REQUIRED: Final = "the password of the master key must not be empty"  # noqa: S105 - not a password
CREATE_MASTER_KEY: Final = "CREATE MASTER KEY ENCRYPTION BY PASSWORD = '...'"
MASTER_KEY_CLOSED: Final = "the master key is not open; first use OPEN MASTER KEY DECRYPTION BY PASSWORD = '...'"


def invalid_service_name(name: str) -> str:
    """Returns why a conversation or a remote service binding cannot name a service like this."""
    return (
        f"{name!r:.80} is not a valid service name; expected 1 to {SERVICE_NAME_MAX} characters, without NUL or unpaired "
        "surrogates"
    )


def named(kind: str, names: Iterable[str]) -> str:
    """Returns objects of one kind with their names.

    Examples:
        >>> named("service", ["A"]), named("broker priority", ["B", "C"])
        ("the service 'A'", "the broker priorities 'B', 'C'")
    """
    given = list(names)
    listed = shortened_list(map(shown, given), _NAMES_MAX)
    return f"{_these(kind, given)} {', '.join(listed)}"


def _these(kind: str, names: Sequence[str]) -> str:
    """Returns the kind of some objects, such as `the services`."""
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s"
    return f"the {kind if len(names) == 1 else plural}"


def _all_named(**names: Sequence[str]) -> str:
    return " and ".join(named(kind.replace("_", " "), given) for kind, given in names.items() if given)


def does_not_exist(kind: str, name: str, database: str | None = None) -> str:
    """Returns the message that an object does not exist, in the database if it is given."""
    return f"the {kind} {shown(name)} does not exist{_place(database)}"


def already_exists(kind: str, name: str, database: str | None = None) -> str:
    """Returns the message that an object exists already, in the database if it is given."""
    return f"the {kind} {shown(name)} already exists{_place(database)}"


def _place(database: str | None, preposition: str = "in") -> str:
    return "" if database is None else f" {preposition} the database {shown(database)}"


def _the_database(name: str | None) -> str:
    return "the database" if name is None else f"the database {shown(name)}"


def message_type_in_use(name: str, contracts: Sequence[str]) -> str:
    """Returns which contracts use a message type."""
    return (
        f"the message type {shown(name)} is used by {named('contract', contracts)}; "
        f"drop {_these('contract', contracts)} first"
    )


def contract_in_use(name: str, *, services: Sequence[str], priorities: Sequence[str]) -> str:
    """Returns which services and broker priorities use a contract."""
    users = _all_named(service=services, broker_priority=priorities)
    these = (
        "these objects"
        if services and priorities
        else _these("service", services)
        if services
        else _these("broker priority", priorities)
    )
    return f"the contract {shown(name)} is used by {users}; change or drop {these} first"


def queue_in_use(name: str, services: Sequence[str]) -> str:
    """Returns which services use a queue."""
    these = _these("service", services)
    return (
        f"the queue {shown(name)} is used by {named('service', services)}; "
        f"drop {these}, or move {these} to another queue with ALTER SERVICE"
    )


def service_in_use(name: str, priorities: Sequence[str]) -> str:
    """Returns which broker priorities use a service."""
    return (
        f"the service {shown(name)} is used by {named('broker priority', priorities)}; "
        f"drop {_these('broker priority', priorities)} first"
    )


def user_in_use(name: str, *, services: Sequence[str], certificates: Sequence[str], bindings: Sequence[str]) -> str:
    """Returns what a user owns, and the remote service bindings that name the user."""
    owned = _all_named(service=services, certificate=certificates)
    bound = _all_named(remote_service_binding=bindings)
    facts = [f"owns {owned}"] * bool(owned) + [f"is the user of {bound}"] * bool(bound)
    number = len(services) + len(certificates) + len(bindings)
    these, rest = ("this object", "it") if number == 1 else ("these objects", "them")
    return f"the user {shown(name)} {' and '.join(facts)}; first assign {these} to another user, or drop {rest}"


def system_database(name: str, change: str) -> str:
    """Returns the message that a system database cannot be changed in a way, such as `dropped`."""
    return f"{shown(name)} is a system database, which cannot be {change}"


def system_object(kind: str, name: str) -> str:
    """Returns the message that a message type or contract of the system cannot be changed."""
    change = "dropped" if kind == "contract" else "altered or dropped"
    return f"the {kind} {shown(name)} is a system {kind}, which cannot be {change}"


def nothing_to_send(contract: str) -> str:
    """Returns the message that the initiator of a dialog could not send anything under a contract."""
    return f"the contract {shown(contract)} needs at least one message type that is SENT BY INITIATOR or ANY"


def contract_added(service: str, contract: str) -> str:
    """Returns the message that a service accepts a contract already."""
    return f"the service {shown(service)} already has the contract {shown(contract)}"


def contract_lacking(service: str, contract: str) -> str:
    """Returns the message that a service does not accept a contract."""
    return f"the service {shown(service)} does not have the contract {shown(contract)}"


def same_priority(other: str) -> str:
    """Returns which broker priority applies to the same conversations."""
    return (
        f"the broker priority {shown(other)} already has the same contract, local service and remote service; "
        f"alter {shown(other)}, or choose other criteria"
    )


def lifetime_too_long(seconds: int | None) -> str:
    """Returns the message that a route would expire too late."""
    return f"LIFETIME = {seconds} ends after the year 9999; use a smaller value, or omit the clause"


def permanent_user(name: str) -> str:
    """Returns the message that a user cannot be dropped."""
    return f"the user {shown(name)} exists in every database and cannot be dropped"


def owned_by_public(kind: str, name: str) -> str:
    """Returns the message that public cannot own an object."""
    return f"the {kind} {shown(name)} cannot be owned by public; specify another user of the database"


def binding_exists(service: str, binding: str) -> str:
    """Returns which remote service binding a service has."""
    return (
        f"the service {shown(service)} already has the remote service binding {shown(binding)}; "
        "alter this binding, or drop it first"
    )


def no_remote_user(user: str) -> str:
    """Returns the message that a user cannot be the user of a remote service binding."""
    return f"a remote service binding needs a user other than public and dbo, got {shown(user)}"


def master_key_exists(database: str | None = None) -> str:
    """Returns the message that a database has a master key."""
    return f"{_the_database(database)} already has a master key; open it with OPEN MASTER KEY, or drop it first"


def master_key_missing(database: str | None = None) -> str:
    """Returns the message that a database has no master key."""
    return f"{_the_database(database)} has no master key; first use {CREATE_MASTER_KEY}"


def master_key_missing_for_key(database: str | None = None) -> str:
    """Returns the message that a database has no master key to encrypt a private key."""
    return f"{_the_database(database)} has no master key to encrypt the private key with; first use {CREATE_MASTER_KEY}"


def wrong_master_key_password(database: str | None = None) -> str:
    """Returns the message that a password does not open the master key of a database."""
    return f"the password of the master key{_place(database, 'of')} is wrong"


def master_key_in_use(certificates: Sequence[str]) -> str:
    """Returns the certificates whose private keys a master key encrypts."""
    keys = "key" if len(certificates) == 1 else "keys"
    return (
        f"the master key encrypts the private {keys} of {named('certificate', certificates)}; "
        f"first use ALTER CERTIFICATE ... REMOVE PRIVATE KEY, or drop {_these('certificate', certificates)}"
    )


def same_broker_id(name: str, enabled: str) -> str:
    """Returns the message that the broker of a database cannot be enabled, because of another enabled database."""
    return (
        f"the database {shown(name)} has the same broker id as the database {shown(enabled)}, which is enabled; "
        "use NEW_BROKER for one of the two"
    )


def endpoint_exists(name: str) -> str:
    """Returns the message that an instance has a Service Broker endpoint."""
    return f"the instance already has the Service Broker endpoint {shown(name)}; only one is allowed: alter {shown(name)}, or drop it first"


def other_endpoint(name: str, existing: str | None) -> str:
    """Returns the message that the Service Broker endpoint of an instance has a different name, or does not exist."""
    remedy = (
        "create it first with CREATE ENDPOINT"
        if existing is None
        else f"the endpoint of the instance is {shown(existing)}"
    )
    return f"the Service Broker endpoint {shown(name)} does not exist; {remedy}"
