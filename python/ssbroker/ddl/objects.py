"""The grammar of the statements about what stands in a database: queues, services, message types, contracts, priorities."""

from __future__ import annotations

from typing import Any, Final

from ssbroker.ddl import statements
from ssbroker.ddl.cursor import Cursor
from ssbroker.ddl.pieces import named, on_or_off, owner, skip_rest
from ssbroker.ddl.statements import PrioritySettings, QueueName, QueueSettings, Statement

_SIDES: Final = ("INITIATOR", "TARGET", "ANY")
_PRIORITY_OPTIONS: Final = {
    "CONTRACT_NAME": "contract",
    "LOCAL_SERVICE_NAME": "local_service",
    "REMOTE_SERVICE_NAME": "remote_service",
    "PRIORITY_LEVEL": "level",
}


def create_queue(cursor: Cursor) -> Statement:
    """CREATE QUEUE after the verb."""
    queue = _queue_named(cursor)
    if cursor.reading == "routing":
        skip_rest(cursor)
        return statements.CreateQueue(queue)
    settings = _queue_settings(cursor) if cursor.accept("WITH") else QueueSettings()
    if cursor.accept("ON"):  # a file group
        cursor.name()
    return statements.CreateQueue(queue, settings)


def alter_queue(cursor: Cursor) -> Statement:
    """ALTER QUEUE after the verb."""
    queue = _queue_named(cursor)
    if cursor.reading == "routing":
        cursor.accept("MOVE", "TO")
        skip_rest(cursor)
        return statements.AlterQueue(queue)
    if cursor.key in ("REBUILD", "REORGANIZE", "MOVE"):  # how it is stored
        cursor.take()
        cursor.accept("TO")
        skip_rest(cursor)
        return statements.Skipped()
    cursor.expect("WITH")
    return statements.AlterQueue(queue, _queue_settings(cursor))


def drop_queue(cursor: Cursor) -> Statement:
    """DROP QUEUE after the verb."""
    return statements.DropQueue(_queue_named(cursor))


def create_service(cursor: Cursor) -> Statement:
    """CREATE SERVICE after the verb."""
    name, belongs = named(cursor), owner(cursor)
    cursor.expect("ON", "QUEUE")
    queue = _queue(cursor, parts_max=2)
    contracts: list[str] = []
    if cursor.accept("("):
        contracts.append(cursor.name())
        while cursor.accept(","):
            contracts.append(cursor.name())
        cursor.expect(")")
    return statements.CreateService(name, queue, tuple(contracts), belongs)


def alter_service(cursor: Cursor) -> Statement:
    """ALTER SERVICE after the verb."""
    name = named(cursor)
    queue = _queue(cursor, parts_max=2) if cursor.accept("ON", "QUEUE") else None
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


def create_message_type(cursor: Cursor) -> Statement:
    """CREATE MESSAGE TYPE after the verb."""
    name = named(cursor)
    owner(cursor)
    return statements.CreateMessageType(name, _validation(cursor) if cursor.key == "VALIDATION" else "NONE")


def alter_message_type(cursor: Cursor) -> Statement:
    """ALTER MESSAGE TYPE after the verb."""
    return statements.AlterMessageType(named(cursor), _validation(cursor))


def create_contract(cursor: Cursor) -> Statement:
    """CREATE CONTRACT after the verb."""
    name = named(cursor)
    owner(cursor)
    messages: dict[str, str] = {}
    cursor.expect("(")
    while True:
        kind = cursor.name()
        cursor.expect("SENT", "BY")
        if cursor.key not in _SIDES:
            cursor.fail("INITIATOR, TARGET or ANY was expected")
        if kind in messages:
            raise cursor.error(f"the message type {kind} is given twice")
        messages[kind] = cursor.take().key
        if not cursor.accept(","):
            break
    cursor.expect(")")
    return statements.CreateContract(name, tuple(messages.items()))


def create_priority(cursor: Cursor) -> Statement:
    """CREATE BROKER PRIORITY after the verb."""
    name = named(cursor)
    cursor.expect("FOR", "CONVERSATION")
    return statements.CreatePriority(name, _priority_settings(cursor) if cursor.key == "SET" else PrioritySettings())


def alter_priority(cursor: Cursor) -> Statement:
    """ALTER BROKER PRIORITY after the verb."""
    name = named(cursor)
    cursor.expect("FOR", "CONVERSATION")
    return statements.AlterPriority(name, _priority_settings(cursor))


def _parts(cursor: Cursor, *, kind: str, parts_max: int) -> list[str]:
    parts = [cursor.name()]
    while cursor.accept("."):
        # `database..queue` leaves the schema to the default.
        parts.append("dbo" if len(parts) == 1 and cursor.key == "." else cursor.name())
    if len(parts) > parts_max:
        cursor.fail(f"the name of the {kind} has more than {parts_max} parts")
    return parts


def _queue(cursor: Cursor, *, parts_max: int) -> QueueName:
    *prefix, name = _parts(cursor, kind="queue", parts_max=parts_max)
    schema = prefix.pop() if prefix else "dbo"
    return QueueName(prefix.pop() if prefix else None, schema, name)


def _queue_named(cursor: Cursor) -> QueueName:
    queue = _queue(cursor, parts_max=3)
    cursor.subject = f"{cursor.subject} [{queue.name}]"
    return queue


def _queue_settings(cursor: Cursor) -> QueueSettings:
    said: dict[str, Any] = {}
    seen: set[str] = set()
    while True:
        key = cursor.once(("STATUS", "RETENTION", "ACTIVATION", "POISON_MESSAGE_HANDLING"), seen)
        if key == "ACTIVATION":
            said.update(_activation(cursor))
        elif key == "POISON_MESSAGE_HANDLING":
            cursor.expect("(", "STATUS")
            said["poison_message_handling"] = on_or_off(cursor)
            cursor.expect(")")
        else:
            said[key.lower()] = on_or_off(cursor)
        # T-SQL lets the comma between options be left out.
        if not cursor.accept(",") and cursor.key not in (
            "STATUS",
            "RETENTION",
            "ACTIVATION",
            "POISON_MESSAGE_HANDLING",
        ):
            return QueueSettings(**said)


def _activation(cursor: Cursor) -> dict[str, Any]:
    said: dict[str, Any] = {}
    seen: set[str] = set()
    cursor.expect("(")
    if cursor.accept("DROP"):
        cursor.expect(")")
        return {"activation": False, "procedure": "", "max_queue_readers": 0}
    while True:
        key = cursor.once(("STATUS", "PROCEDURE_NAME", "MAX_QUEUE_READERS", "EXECUTE"), seen)
        if key == "STATUS":
            said["activation"] = on_or_off(cursor)
        elif key == "PROCEDURE_NAME":
            cursor.expect("=")
            # Its database says nothing: functions are registered with the process.
            *_, schema, name = "", *_parts(cursor, kind="procedure", parts_max=3)
            said["procedure"] = f"{_as_part(schema)}.{_as_part(name)}" if schema else _as_part(name)
        elif key == "MAX_QUEUE_READERS":
            cursor.expect("=")
            said["max_queue_readers"] = cursor.integer()
        else:
            cursor.expect("AS")
            cursor.take()  # SELF, OWNER or the name of a user: a process has one user
        if not cursor.accept(","):
            cursor.expect(")")
            return said


def _as_part(name: str) -> str:
    """A part of a name, in brackets where it could be read as more than one."""
    return f"[{name.replace(']', ']]')}]" if set(name) & set(".[]") else name


def _validation(cursor: Cursor) -> str:
    cursor.expect("VALIDATION", "=")
    if cursor.key not in ("NONE", "EMPTY", "WELL_FORMED_XML", "VALID_XML"):
        cursor.fail("NONE, EMPTY, WELL_FORMED_XML or VALID_XML was expected")
    validation = cursor.take().key
    if validation == "VALID_XML":
        cursor.expect("WITH", "SCHEMA", "COLLECTION")
        cursor.name()
        while cursor.accept("."):
            cursor.name()
    return validation


def _priority_settings(cursor: Cursor) -> PrioritySettings:
    said: list[tuple[str, str | int | None]] = []
    seen: set[str] = set()
    cursor.expect("SET", "(")
    while not cursor.accept(")"):
        key = cursor.once(tuple(_PRIORITY_OPTIONS), seen)
        cursor.expect("=")
        if cursor.accept("DEFAULT" if key == "PRIORITY_LEVEL" else "ANY"):
            value: str | int | None = None
        elif key == "PRIORITY_LEVEL":
            value = cursor.integer()
        else:
            value = cursor.string() if key == "REMOTE_SERVICE_NAME" else cursor.name()
        said.append((_PRIORITY_OPTIONS[key], value))
        cursor.accept(",")
    return PrioritySettings(tuple(said))
