"""`Instance.ensure`: determines the statements that make existing objects match a script, and what they have changed."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ssbroker.broker import object_ddl
from ssbroker.broker.object_names import bracketed_queue_name, similar_name, similar_queue
from ssbroker.broker.scripts.object_statements import supported_validation
from ssbroker.ddl import statements
from ssbroker.ddl.errors import RefusalError
from ssbroker.ddl.expressions import folded
from ssbroker.ddl.model import find_name
from ssbroker.ddl.route_validation import AUTO_CREATED_LOCAL
from ssbroker.ddl.statements import QueueName, QueueSettings, RouteClauses, Statement
from ssbroker.ddl.system_objects import SYSTEM_CONTRACTS, SYSTEM_MESSAGE_TYPES
from ssbroker.store.objects import BrokerEndpoint, Objects, Priority, Queue, Service

Action: TypeAlias = Literal["created", "altered", "dropped", "unchanged"]
"""What `Instance.ensure` did with an object; `unchanged` means that the object still differs from the script."""


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """What `Instance.ensure` did with one object.

    Attributes:
        action: `created`, `altered`, `dropped`, or `unchanged`: the object differs from the script, but no statement can change it.
        kind: The kind of the object, such as `queue`.
        name: The name of the object; for a queue, with its schema.
        database: The database of the object; None for a database or the endpoint.
        text: The properties that were changed, with their old and new values; or why the object is unchanged.

    Examples:
        >>> from ssbroker import ObjectChange
        >>> print(ObjectChange("altered", "queue", "[dbo].[Orders]", "Sales", "retention: off -> on"))
        altered queue [dbo].[Orders] in Sales: retention: off -> on
    """

    action: Action
    kind: str
    name: str
    database: str | None
    text: str = ""

    def __str__(self) -> str:
        place = "" if self.database is None else f" in {self.database}"
        named = f"{self.kind} {self.name}".rstrip()
        return f"{self.action} {named}{place}{self.text and ': '}{self.text}"


class Existing(NamedTuple):
    """The existing objects, read when needed."""

    databases: Callable[[], Iterable[str]]
    """The names of the databases."""
    endpoint: Callable[[], BrokerEndpoint | None]
    objects: Callable[[], Objects]
    """The objects of the database to which the statement applies."""
    now: int
    """The current time, in microseconds since 1970."""


class UnchangeableObject(NamedTuple):
    """An object that differs from the script but that no statement can change."""

    kind: str
    name: str
    text: str


def needed_statements(
    statement: Statement, annotations: Mapping[str, str], existing: Existing
) -> Iterator[Statement | UnchangeableObject]:
    """Yields the statements to run instead of a statement of the script: none if the objects already match."""
    if isinstance(statement, statements.CreateDatabase | statements.DropDatabase | statements.AlterDatabase):
        yield from _database(statement, existing.databases())
    elif isinstance(statement, statements.CreateEndpoint | statements.DropEndpoint):
        yield from _endpoint(statement, existing.endpoint())
    elif isinstance(statement, _DROP_STATEMENTS):
        if _exists(statement, existing.objects()):
            yield statement
    elif isinstance(statement, statements.AlterService):
        yield from _altered_service(statement, existing.objects())
    elif isinstance(statement, _CREATE_STATEMENTS) and _exists(statement, existing.objects()):
        yield from _as_created(statement, annotations, existing)
    else:
        yield statement


def _database(
    statement: statements.CreateDatabase | statements.DropDatabase | statements.AlterDatabase, names: Iterable[str]
) -> Iterator[Statement | UnchangeableObject]:
    match statement:
        case statements.CreateDatabase(name, is_attach):
            if find_name(name, names) is None:
                yield statement
            elif is_attach:
                yield UnchangeableObject(
                    "database", name, "the database exists, and ensure does not replace it with another file"
                )
        case statements.DropDatabase(dropped):
            there = tuple(name for name in dropped if find_name(name, names) is not None)
            if there:
                yield replace(statement, names=there)
        case statements.AlterDatabase(name, option, new_name):
            if option in _OPTIONS_RUN_ONCE:
                raise RefusalError(
                    f"ensure does not run SET {option}, because it changes the database each time; run it once with Instance.execute"
                )
            is_renamed = name is not None and new_name is not None and find_name(new_name, names) is not None
            if not is_renamed or find_name(str(name), names) is not None:
                yield statement


_OPTIONS_RUN_ONCE: Final = ("NEW_BROKER", "ERROR_BROKER_CONVERSATIONS")


def _altered_service(statement: statements.AlterService, objects: Objects) -> Iterator[Statement]:
    """Omits contracts that are already added or dropped, which ALTER SERVICE would refuse."""
    service = objects.services.get(statement.name)
    if service is None:
        yield statement
        return
    known = _contract_names(objects, service)
    added = tuple(name for name in statement.add_contracts if name not in known)
    dropped = tuple(name for name in statement.drop_contracts if name in known)
    if statement.queue is not None or added or dropped:
        yield replace(statement, add_contracts=added, drop_contracts=dropped)


_DROP_STATEMENTS: Final = (
    statements.DropMessageType,
    statements.DropContract,
    statements.DropQueue,
    statements.DropService,
    statements.DropRoute,
    statements.DropPriority,
    statements.DropUser,
    statements.DropBinding,
    statements.DropCertificate,
    statements.DropMasterKey,
)
_CREATE_STATEMENTS: Final = (
    statements.CreateMessageType,
    statements.CreateContract,
    statements.CreateQueue,
    statements.CreateService,
    statements.CreateRoute,
    statements.CreatePriority,
    statements.CreateUser,
    statements.CreateBinding,
    statements.CreateCertificate,
    statements.CreateMasterKey,
)


def _exists(statement: Any, objects: Objects) -> bool:
    """Returns whether the object of a CREATE or DROP exists; for some kinds, the comparison of names ignores case."""
    if isinstance(statement, statements.CreateMasterKey | statements.DropMasterKey):
        return objects.security.master_key is not None
    if isinstance(statement, statements.CreateQueue | statements.DropQueue):
        return _queue(objects, statement.queue) is not None
    if isinstance(statement, statements.CreateMessageType | statements.DropMessageType):
        return statement.name in objects.message_types
    if isinstance(statement, statements.CreateContract | statements.DropContract):
        return statement.name in objects.contracts
    if isinstance(statement, statements.CreateService | statements.DropService):
        return statement.name in objects.services
    known: Iterable[str] = objects.routes
    if isinstance(statement, statements.CreatePriority | statements.DropPriority):
        known = objects.priorities
    elif isinstance(statement, statements.CreateUser | statements.DropUser):
        known = objects.security.principals
    elif isinstance(statement, statements.CreateBinding | statements.DropBinding):
        known = objects.security.bindings
    elif isinstance(statement, statements.CreateCertificate | statements.DropCertificate):
        known = objects.security.certificates
    return find_name(statement.name, known) is not None


def _as_created(
    statement: Any, annotations: Mapping[str, str], existing: Existing
) -> Iterator[Statement | UnchangeableObject]:
    """Yields the statements that make an existing object match a CREATE statement."""
    objects = existing.objects()
    match statement:
        case statements.CreateMessageType():
            yield from _as_message_type(statement, objects)
        case statements.CreateContract(name, messages):
            if {*messages} != _contract_messages(objects, name):
                yield UnchangeableObject(
                    "contract",
                    name,
                    f"it has {_contract_text(_contract_messages(objects, name))}; T-SQL cannot alter contracts",
                )
        case statements.CreateQueue(name, settings):
            yield from _as_queue(name, settings, objects)
        case statements.CreateService():
            yield from _as_service(statement, objects)
        case statements.CreateRoute():
            yield from _as_route(statement, annotations, objects, existing.now)
        case statements.CreatePriority():
            yield from _as_priority(statement, objects)
        case _:
            yield from _as_created_security(statement, objects)


def _as_created_security(statement: Any, objects: Objects) -> Iterator[Statement]:
    if isinstance(statement, statements.CreateBinding):
        yield from _as_binding(statement, objects)
    elif isinstance(statement, statements.CreateCertificate):
        yield from _as_certificate(statement, objects)


def _as_message_type(statement: statements.CreateMessageType, objects: Objects) -> Iterator[Statement]:
    name, validation, collection = astuple(statement)
    if objects.message_types[name].validation != object_ddl.VALIDATIONS[supported_validation(validation)]:
        yield statements.AlterMessageType(name, validation, collection)


def _as_priority(statement: statements.CreatePriority, objects: Objects) -> Iterator[Statement]:
    priority = objects.priorities[similar_name(objects.priorities, statement.name)]
    given = {**_ANY, **{key: value for key, value in statement.settings.options if value is not None}}
    if given != _priority_properties(objects, priority):
        yield statements.AlterPriority(priority.name, statements.PrioritySettings(tuple(given.items())))


def _as_binding(statement: statements.CreateBinding, objects: Objects) -> Iterator[Statement]:
    known = objects.security.bindings
    binding = known[similar_name(known, statement.name)]
    user = objects.security.principal_names[binding.remote_principal_id]
    if binding.remote_service_name != statement.service:
        yield statements.DropBinding(binding.name)
        yield replace(statement, name=binding.name)
    elif (folded(statement.user), statement.anonymous) != (folded(user), binding.is_anonymous_on):
        yield statements.AlterBinding(binding.name, statement.user, statement.anonymous)


def _as_certificate(statement: statements.CreateCertificate, objects: Objects) -> Iterator[Statement]:
    known = objects.security.certificates
    certificate = known[similar_name(known, statement.name)]
    if certificate.is_active_for_begin_dialog != statement.is_active:
        yield statements.AlterCertificate(certificate.name, statement.is_active)
    owner = statement.owner
    if owner is not None and folded(owner) != folded(objects.security.principal_names[certificate.principal_id]):
        yield statements.SetOwner("certificate", certificate.name, owner)


def _endpoint(
    statement: statements.CreateEndpoint | statements.DropEndpoint, known: BrokerEndpoint | None
) -> Iterator[Statement | UnchangeableObject]:
    if isinstance(statement, statements.DropEndpoint):
        if known is not None:
            yield statement
    elif known is None:
        yield statement
    elif folded(known.name) != folded(statement.name):
        yield UnchangeableObject(
            "endpoint", known.name, f"its name is not {statement.name!r}, and an instance has only one endpoint"
        )
    else:
        yield statements.AlterEndpoint(known.name, statement.settings, has_for_clause=True)


def _as_queue(name: QueueName, settings: QueueSettings, objects: Objects) -> Iterator[Statement]:
    """Yields the statement that makes a queue match. Omitted clauses get their defaults, except STATUS: a disabled queue stays disabled."""
    queue = _queue(objects, name)
    wanted = {
        **_QUEUE_DEFAULTS,
        **object_ddl.queue_values(settings),
        **object_ddl.activation_values(settings),
    }
    if queue is None or all(getattr(queue, column) == value for column, value in wanted.items()):
        return
    procedure = wanted["activation_procedure"]
    yield statements.AlterQueue(
        replace(name, schema=queue.schema_name, name=queue.name),
        QueueSettings(
            None if settings.status is None or settings.status == queue.is_receive_enabled else settings.status,
            bool(wanted["is_retention_enabled"]),
            bool(wanted["is_activation_enabled"]),
            "" if procedure is None else str(procedure),
            int(str(wanted["max_readers"])),
            bool(wanted["is_poison_message_handling_enabled"]),
        ),
    )


_QUEUE_DEFAULTS: Final = {
    "is_retention_enabled": False,
    "is_activation_enabled": False,
    "activation_procedure": None,
    "max_readers": 0,
    "is_poison_message_handling_enabled": True,
}


def _as_service(statement: statements.CreateService, objects: Objects) -> Iterator[Statement]:
    service = objects.services[statement.name]
    known, wanted = _contract_names(objects, service), set(statement.contracts)
    queue = _queue(objects, statement.queue)
    is_moved = queue is None or queue.queue_id != service.queue_id
    if is_moved or known != wanted:
        yield statements.AlterService(
            service.name,
            statement.queue if is_moved else None,
            tuple(sorted(wanted - known)),
            tuple(sorted(known - wanted)),
        )
    if statement.owner is not None and folded(statement.owner) != folded(
        objects.security.principal_names[service.principal_id]
    ):
        yield statements.SetOwner("service", service.name, statement.owner)


def _as_route(
    statement: statements.CreateRoute, annotations: Mapping[str, str], objects: Objects, now: int
) -> Iterator[Statement]:
    """Yields the statements that make a route match. LIFETIME counts from the creation of the route or its renewal after expiry, not from each run."""
    route = objects.routes[similar_name(objects.routes, statement.name)]
    clauses = statement.clauses
    is_ended = route.lifetime is not None and route.lifetime <= now
    if clauses.lifetime is not None and route.lifetime is not None and not is_ended:
        clauses = replace(clauses, lifetime=None)
        keeps_lifetime = True
    else:
        keeps_lifetime = route.lifetime is None or clauses.lifetime is not None or "lifetime" in annotations
    before = object_ddl.route_clauses(route)
    given = {key: value for key in before if (value := getattr(clauses, key)) is not None}
    differing = {key: value for key, value in given.items() if not _is_same(key, value, before[key])}
    # ALTER ROUTE cannot remove a clause.
    if not keeps_lifetime or any(before[key] is not None and key not in given for key in before):
        yield statements.DropRoute(route.name)
        yield replace(statement, name=route.name)
    elif differing or clauses.lifetime is not None or annotations:
        yield statements.AlterRoute(route.name, RouteClauses(**differing, lifetime=clauses.lifetime))


def _is_same(key: str, value: str, before: str | None) -> bool:
    if key == "broker_instance":
        return before is not None and folded(value) == folded(before)
    return value == before


_ANY: Final[dict[str, str | int | None]] = {
    "contract": None,
    "local_service": None,
    "remote_service": None,
    "level": statements.DEFAULT_LEVEL,
}


def _queue(objects: Objects, name: QueueName) -> Queue | None:
    return objects.queues.get(similar_queue(objects, name))


def _contract_names(objects: Objects, service: Service) -> set[str]:
    """Returns the names of the contracts of a service."""
    return {objects.contracts_by_id[number].name for number in service.contracts}


def _contract_messages(objects: Objects, contract: str) -> set[tuple[str, str]]:
    """Returns the message types of a contract, each with the side that may send it."""
    senders = {(True, True): "ANY", (True, False): "INITIATOR", (False, True): "TARGET"}
    return {
        (objects.message_types_by_id[number].name, senders[rule.is_sent_by_initiator, rule.is_sent_by_target])
        for number, rule in objects.contracts[contract].messages.items()
    }


def _contract_text(messages: Iterable[tuple[str, str]]) -> str:
    """Returns the message types of a contract as T-SQL writes them."""
    return ", ".join(f"{message_type} SENT BY {sender}" for message_type, sender in sorted(messages))


def _priority_properties(objects: Objects, priority: Priority) -> dict[str, str | int | None]:
    """Returns the clauses of a broker priority."""
    contract, service = priority.service_contract_id, priority.local_service_id
    return {
        "contract": None if contract is None else objects.contracts_by_id[contract].name,
        "local_service": None if service is None else objects.services_by_id[service].name,
        "remote_service": priority.remote_service_name,
        "level": priority.priority,
    }


Described: TypeAlias = dict[tuple[str, str], dict[str, Any]]
"""The objects of a database by kind and name, each with its properties."""


def describe_database(objects: Objects) -> Described:
    """Returns the database and its objects, except system objects, with the properties that a script can change, but without object ids."""
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
            found["contract", contract] = {"messages": _contract_text(_contract_messages(objects, contract))}
    for queue in objects.queues.values():
        found["queue", bracketed_queue_name(queue.schema_name, queue.name)] = {
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
            "queue": bracketed_queue_name(of.schema_name, of.name),
            "contracts": ", ".join(sorted(_contract_names(objects, service))) or None,
            "owner": objects.security.principal_names[service.principal_id],
        }
    for route in objects.routes.values():
        found["route", route.name] = {**object_ddl.route_clauses(route), "lifetime": route.lifetime}
    for priority in objects.priorities.values():
        found["broker priority", priority.name] = _priority_properties(objects, priority)
    return {**found, **_describe_security(objects)}


def _describe_security(objects: Objects) -> Described:
    security = objects.security
    found: Described = {("user", name): {} for name in security.principals}
    if security.master_key is not None:
        found["master key", ""] = {}
    for certificate in security.certificates.values():
        found["certificate", certificate.name] = {
            "owner": security.principal_names[certificate.principal_id],
            "active for begin dialog": _on_off(certificate.is_active_for_begin_dialog),
            "private key": "present" if certificate.private_key is not None else None,
        }
    for binding in security.bindings.values():
        found["remote service binding", binding.name] = {
            "service": binding.remote_service_name,
            "user": security.principal_names[binding.remote_principal_id],
            "anonymous": _on_off(binding.is_anonymous_on),
        }
    for (service, principal), state in security.permissions.items():
        name = f"{objects.services_by_id[service].name} to {security.principal_names[principal]}"
        found[_PERMISSION, name] = {"state": "granted" if state == "G" else "denied"}
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


def object_changes(before: Described, after: Described, *, database: str | None) -> Iterator[ObjectChange]:
    """Yields the differences between objects, in the order of a script that creates them."""
    for (kind, name), properties in after.items():
        if not before and kind in ("route", "user") and name in (AUTO_CREATED_LOCAL, *_SYSTEM_PRINCIPALS):
            continue  # every new database has these
        if (
            kind == _PERMISSION
            and name.endswith(_TO_PUBLIC)
            and ("service", name.removesuffix(_TO_PUBLIC)) not in before
        ):
            continue  # every new service has this
        was = before.get((kind, name))
        shown = (database or "") if kind == "database" else name
        place = None if kind in INSTANCE_KINDS else database
        if was is None:
            yield ObjectChange("created", kind, shown, place)
        elif was != properties:
            text = ", ".join(
                f"{key}: {_value_text(was.get(key))} -> {_value_text(value)}"
                for key, value in properties.items()
                if was.get(key) != value
            )
            yield ObjectChange("altered", kind, shown, place, text)
    for kind, name in reversed(before):
        if (kind, name) not in after:
            yield ObjectChange("dropped", kind, name, None if kind in INSTANCE_KINDS else database)


def _value_text(value: object) -> str:
    return "(none)" if value is None else str(value)


INSTANCE_KINDS: Final = ("database", "endpoint")
"""The kinds of objects that no database contains."""
_TO_PUBLIC: Final = " to public"
_SYSTEM_PRINCIPALS: Final = ("public", "dbo")
_PERMISSION: Final = "SEND permission on"
_VALIDATION_NAMES: Final = {short: name for name, short in object_ddl.VALIDATIONS.items()}
