"""Parses statements about queues, services, message types, contracts, priorities and routes."""

from __future__ import annotations

from typing import Any, Final

from ssbroker._text import did_you_mean
from ssbroker.ddl import statements
from ssbroker.ddl.statements import PrioritySettings, QueueName, QueueSettings, RouteClauses, Statement
from ssbroker.ddl.token_cursor import TokenCursor, on_or_off, optional_owner, refuse_if_exists, skip_rest, subject_name

_VALIDATIONS: Final = ("NONE", "EMPTY", "WELL_FORMED_XML", "VALID_XML")
_SENDERS: Final = ("INITIATOR", "TARGET", "ANY")
_PRIORITY_OPTIONS: Final = {
    "CONTRACT_NAME": "contract",
    "LOCAL_SERVICE_NAME": "local_service",
    "REMOTE_SERVICE_NAME": "remote_service",
    "PRIORITY_LEVEL": "level",
}


def create_queue(cursor: TokenCursor) -> Statement:
    """Parses CREATE QUEUE after the noun."""
    queue = _subject_queue(cursor)
    settings = _queue_settings(cursor) if cursor.accept("WITH") else QueueSettings()
    if cursor.accept("ON"):  # a filegroup
        cursor.name()
    return statements.CreateQueue(queue, settings)


def alter_queue(cursor: TokenCursor) -> Statement:
    """Parses ALTER QUEUE after the noun."""
    queue = _subject_queue(cursor)
    if cursor.key in ("REBUILD", "REORGANIZE", "MOVE"):  # storage only
        kind = f"ALTER QUEUE {cursor.take().key}"
        cursor.accept("TO")
        skip_rest(cursor)
        return statements.Skipped(kind)
    cursor.expect("WITH")
    return statements.AlterQueue(queue, _queue_settings(cursor))


def drop_queue(cursor: TokenCursor) -> Statement:
    """Parses DROP QUEUE after the noun."""
    refuse_if_exists(cursor)
    return statements.DropQueue(_subject_queue(cursor))


def create_service(cursor: TokenCursor) -> Statement:
    """Parses CREATE SERVICE after the noun."""
    name, owner_name = subject_name(cursor), optional_owner(cursor)
    cursor.expect("ON", "QUEUE")
    queue = _queue_name(cursor, parts_max=2)
    contracts: list[str] = []
    if cursor.accept("("):
        contracts.append(cursor.name())
        while cursor.accept(","):
            contracts.append(cursor.name())
        cursor.expect(")")
    return statements.CreateService(name, queue, tuple(contracts), owner_name)


def alter_service(cursor: TokenCursor) -> Statement:
    """Parses ALTER SERVICE after the noun."""
    name = subject_name(cursor)
    queue = _queue_name(cursor, parts_max=2) if cursor.accept("ON", "QUEUE") else None
    contracts: dict[str, list[str]] = {"ADD": [], "DROP": []}
    if queue is None or cursor.key == "(":
        cursor.expect("(")
        while True:
            action = "ADD" if cursor.accept("ADD") else "DROP"
            if action == "DROP":
                cursor.expect("DROP")
            cursor.expect("CONTRACT")
            contracts[action].append(cursor.name())
            if not cursor.accept(","):
                break
        cursor.expect(")")
    return statements.AlterService(name, queue, tuple(contracts["ADD"]), tuple(contracts["DROP"]))


def create_message_type(cursor: TokenCursor) -> Statement:
    """Parses CREATE MESSAGE TYPE after the noun."""
    name = subject_name(cursor)
    optional_owner(cursor)
    return statements.CreateMessageType(name, *(_validation(cursor) if cursor.key == "VALIDATION" else ("NONE", None)))


def alter_message_type(cursor: TokenCursor) -> Statement:
    """Parses ALTER MESSAGE TYPE after the noun."""
    return statements.AlterMessageType(subject_name(cursor), *_validation(cursor))


def create_contract(cursor: TokenCursor) -> Statement:
    """Parses CREATE CONTRACT after the noun."""
    name = subject_name(cursor)
    optional_owner(cursor)
    messages: dict[str, str] = {}
    cursor.expect("(")
    while True:
        message_type = cursor.name()
        cursor.expect("SENT", "BY")
        if cursor.key not in _SENDERS:
            cursor.fail("expected INITIATOR, TARGET or ANY")
        if message_type in messages:
            raise cursor.error(f"the message type {message_type} is specified more than once")
        messages[message_type] = cursor.take().key
        if not cursor.accept(","):
            break
    cursor.expect(")")
    return statements.CreateContract(name, tuple(messages.items()))


def create_priority(cursor: TokenCursor) -> Statement:
    """Parses CREATE BROKER PRIORITY after the noun."""
    name = subject_name(cursor)
    cursor.expect("FOR", "CONVERSATION")
    return statements.CreatePriority(name, _priority_settings(cursor) if cursor.key == "SET" else PrioritySettings())


def alter_priority(cursor: TokenCursor) -> Statement:
    """Parses ALTER BROKER PRIORITY after the noun."""
    name = subject_name(cursor)
    cursor.expect("FOR", "CONVERSATION")
    return statements.AlterPriority(name, _priority_settings(cursor))


def _name_parts(cursor: TokenCursor, *, kind: str, parts_max: int) -> list[str]:
    parts = [cursor.name()]
    while cursor.accept("."):
        # `database..queue` means the default schema.
        parts.append("dbo" if len(parts) == 1 and cursor.key == "." else cursor.name())
    if len(parts) > parts_max:
        cursor.fail(f"the name of the {kind} has more than {parts_max} parts")
    return parts


def _queue_name(cursor: TokenCursor, *, parts_max: int) -> QueueName:
    *prefix, name = _name_parts(cursor, kind="queue", parts_max=parts_max)
    schema = prefix.pop() if prefix else "dbo"
    return QueueName(prefix.pop() if prefix else None, schema, name)


def _subject_queue(cursor: TokenCursor) -> QueueName:
    queue = _queue_name(cursor, parts_max=3)
    cursor.subject = f"{cursor.subject} [{queue.name}]"
    return queue


def _queue_settings(cursor: TokenCursor) -> QueueSettings:
    options: dict[str, Any] = {}
    seen: set[str] = set()
    while True:
        key = cursor.unique_option(("STATUS", "RETENTION", "ACTIVATION", "POISON_MESSAGE_HANDLING"), seen)
        if key == "ACTIVATION":
            options.update(_activation(cursor))
        elif key == "POISON_MESSAGE_HANDLING":
            cursor.expect("(", "STATUS")
            options["poison_message_handling"] = on_or_off(cursor)
            cursor.expect(")")
        else:
            options[key.lower()] = on_or_off(cursor)
        # The comma between options is optional.
        if not cursor.accept(",") and cursor.key not in (
            "STATUS",
            "RETENTION",
            "ACTIVATION",
            "POISON_MESSAGE_HANDLING",
        ):
            return QueueSettings(**options)


def _activation(cursor: TokenCursor) -> dict[str, Any]:
    options: dict[str, Any] = {}
    seen: set[str] = set()
    cursor.expect("(")
    if cursor.accept("DROP"):
        cursor.expect(")")
        return {"activation": False, "procedure": "", "max_queue_readers": 0}
    while True:
        key = cursor.unique_option(("STATUS", "PROCEDURE_NAME", "MAX_QUEUE_READERS", "EXECUTE"), seen)
        if key == "STATUS":
            options["activation"] = on_or_off(cursor)
        elif key == "PROCEDURE_NAME":
            cursor.expect("=")
            # The database in the name is ignored, because functions are registered for the whole process.
            *_, schema, name = "", *_name_parts(cursor, kind="procedure", parts_max=3)
            options["procedure"] = f"{_as_part(schema)}.{_as_part(name)}" if schema else _as_part(name)
        elif key == "MAX_QUEUE_READERS":
            cursor.expect("=")
            options["max_queue_readers"] = cursor.integer()
        else:
            cursor.expect("AS")
            cursor.take()  # SELF, OWNER or a user name: ignored, because a process has one user
        if not cursor.accept(","):
            cursor.expect(")")
            return options


def _as_part(name: str) -> str:
    """Returns a part of a name, in brackets if it could be read as several parts."""
    return f"[{name.replace(']', ']]')}]" if set(name) & set(".[]") else name


def _validation(cursor: TokenCursor) -> tuple[str, str | None]:
    """Parses VALIDATION; returns the keyword and the schema collection of VALID_XML."""
    cursor.expect("VALIDATION", "=")
    if cursor.key not in _VALIDATIONS:
        cursor.fail(f"expected NONE, EMPTY, WELL_FORMED_XML or VALID_XML{did_you_mean(cursor.key, _VALIDATIONS)}")
    validation = cursor.take().key
    if validation != "VALID_XML":
        return validation, None
    cursor.expect("WITH", "SCHEMA", "COLLECTION")
    collection = cursor.name()
    while cursor.accept("."):
        collection = f"{collection}.{cursor.name()}"
    return validation, collection


def _priority_settings(cursor: TokenCursor) -> PrioritySettings:
    options: list[tuple[str, str | int | None]] = []
    seen: set[str] = set()
    cursor.expect("SET", "(")
    while not cursor.accept(")"):
        key = cursor.unique_option(tuple(_PRIORITY_OPTIONS), seen)
        cursor.expect("=")
        if cursor.accept("DEFAULT" if key == "PRIORITY_LEVEL" else "ANY"):
            value: str | int | None = None
        elif key == "PRIORITY_LEVEL":
            value = cursor.integer()
        else:
            value = cursor.string() if key == "REMOTE_SERVICE_NAME" else cursor.name()
        options.append((_PRIORITY_OPTIONS[key], value))
        cursor.accept(",")
    return PrioritySettings(tuple(options))


_ROUTE_CLAUSES: Final = ("SERVICE_NAME", "BROKER_INSTANCE", "LIFETIME", "ADDRESS", "MIRROR_ADDRESS")


def create_route(cursor: TokenCursor) -> Statement:
    """Parses CREATE ROUTE after the noun."""
    name = subject_name(cursor)
    optional_owner(cursor)
    return statements.CreateRoute(name, route_clauses(cursor))


def route_clauses(cursor: TokenCursor) -> RouteClauses:
    """Parses the clauses of a route."""
    cursor.expect("WITH")
    texts: dict[str, str] = {}
    lifetime: int | None = None
    seen: set[str] = set()
    while True:
        key = cursor.unique_option(_ROUTE_CLAUSES, seen, what="a clause: ")
        cursor.expect("=")
        if key == "LIFETIME":
            lifetime = cursor.integer()
        else:
            texts[key.lower()] = cursor.string()
        if not cursor.accept(","):
            return RouteClauses(lifetime=lifetime, **texts)
