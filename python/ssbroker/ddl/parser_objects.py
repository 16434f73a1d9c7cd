"""Grammar of statements about objects, security and endpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

from ssbroker.ddl import statements
from ssbroker.ddl.parser_base import TokenCursor, named, on_or_off, owner, skip_rest
from ssbroker.ddl.statements import (
    AlterEndpoint,
    CreateEndpoint,
    EndpointSettings,
    KeyFile,
    Owned,
    Permission,
    PrioritySettings,
    QueueName,
    QueueSettings,
    Skipped,
    Statement,
)

_SIDES: Final = ("INITIATOR", "TARGET", "ANY")
_PRIORITY_OPTIONS: Final = {
    "CONTRACT_NAME": "contract",
    "LOCAL_SERVICE_NAME": "local_service",
    "REMOTE_SERVICE_NAME": "remote_service",
    "PRIORITY_LEVEL": "level",
}


def create_queue(cursor: TokenCursor) -> Statement:
    """CREATE QUEUE after the verb."""
    queue = _queue_named(cursor)
    if cursor.reading == "routing":
        skip_rest(cursor)
        return statements.CreateQueue(queue)
    settings = _queue_settings(cursor) if cursor.accept("WITH") else QueueSettings()
    if cursor.accept("ON"):  # a file group
        cursor.name()
    return statements.CreateQueue(queue, settings)


def alter_queue(cursor: TokenCursor) -> Statement:
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


def drop_queue(cursor: TokenCursor) -> Statement:
    """DROP QUEUE after the verb."""
    return statements.DropQueue(_queue_named(cursor))


def create_service(cursor: TokenCursor) -> Statement:
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


def alter_service(cursor: TokenCursor) -> Statement:
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


def create_message_type(cursor: TokenCursor) -> Statement:
    """CREATE MESSAGE TYPE after the verb."""
    name = named(cursor)
    owner(cursor)
    return statements.CreateMessageType(name, _validation(cursor) if cursor.key == "VALIDATION" else "NONE")


def alter_message_type(cursor: TokenCursor) -> Statement:
    """ALTER MESSAGE TYPE after the verb."""
    return statements.AlterMessageType(named(cursor), _validation(cursor))


def create_contract(cursor: TokenCursor) -> Statement:
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


def create_priority(cursor: TokenCursor) -> Statement:
    """CREATE BROKER PRIORITY after the verb."""
    name = named(cursor)
    cursor.expect("FOR", "CONVERSATION")
    return statements.CreatePriority(name, _priority_settings(cursor) if cursor.key == "SET" else PrioritySettings())


def alter_priority(cursor: TokenCursor) -> Statement:
    """ALTER BROKER PRIORITY after the verb."""
    name = named(cursor)
    cursor.expect("FOR", "CONVERSATION")
    return statements.AlterPriority(name, _priority_settings(cursor))


def _parts(cursor: TokenCursor, *, kind: str, parts_max: int) -> list[str]:
    parts = [cursor.name()]
    while cursor.accept("."):
        # `database..queue` leaves the schema to the default.
        parts.append("dbo" if len(parts) == 1 and cursor.key == "." else cursor.name())
    if len(parts) > parts_max:
        cursor.fail(f"the name of the {kind} has more than {parts_max} parts")
    return parts


def _queue(cursor: TokenCursor, *, parts_max: int) -> QueueName:
    *prefix, name = _parts(cursor, kind="queue", parts_max=parts_max)
    schema = prefix.pop() if prefix else "dbo"
    return QueueName(prefix.pop() if prefix else None, schema, name)


def _queue_named(cursor: TokenCursor) -> QueueName:
    queue = _queue(cursor, parts_max=3)
    cursor.subject = f"{cursor.subject} [{queue.name}]"
    return queue


def _queue_settings(cursor: TokenCursor) -> QueueSettings:
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


def _activation(cursor: TokenCursor) -> dict[str, Any]:
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


def _validation(cursor: TokenCursor) -> str:
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


def _priority_settings(cursor: TokenCursor) -> PrioritySettings:
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


PERMISSIONS: Final[tuple[Permission, ...]] = ("GRANT", "DENY", "REVOKE")
# Those that there are on a service, each by its words.
_ON_SERVICES: Final = (("ALTER",), ("CONTROL",), ("SEND",), ("TAKE", "OWNERSHIP"), ("VIEW", "DEFINITION"))
_LIST_MAX: Final = 32  # words: all permissions of a service, with the commas, and a few more
_OWNED: Final[dict[str, Owned]] = {"SERVICE": "service", "CERTIFICATE": "certificate"}


def is_permission_on_service(cursor: TokenCursor) -> bool:
    """Whether a GRANT, DENY or REVOKE that begins here is about a service."""
    keys = [cursor.ahead(count).key for count in range(1, _LIST_MAX)]
    ends = [keys.index(word) for word in ("ON", "TO", "FROM", ";") if word in keys]
    return bool(ends) and keys[min(ends) : min(ends) + 4] == ["ON", "SERVICE", ":", ":"]


def _create_user(cursor: TokenCursor) -> Statement:
    name = named(cursor)
    if cursor.accept("WITHOUT", "LOGIN"):
        ignored = ""
    elif cursor.key in ("FOR", "FROM"):
        cursor.take()
        ignored = f"FOR {cursor.take().text}"
        cursor.name()
    else:
        ignored = ""
    if cursor.accept("WITH"):
        ignored = ignored or f"WITH {cursor.key}"
        skip_rest(cursor)
    return statements.CreateUser(name, ignored)


def _drop_user(cursor: TokenCursor) -> Statement:
    if_exists = cursor.accept("IF", "EXISTS")
    return statements.DropUser(named(cursor), if_exists)


def _create_master_key(cursor: TokenCursor) -> Statement:
    cursor.expect("ENCRYPTION")
    return statements.CreateMasterKey(_password(cursor))


def _alter_master_key(cursor: TokenCursor) -> Statement:
    if cursor.key not in ("ADD", "DROP"):
        cursor.fail("ADD or DROP was expected")
    is_added = cursor.take().key == "ADD"
    cursor.expect("ENCRYPTION", "BY", "SERVICE", "MASTER", "KEY")
    return statements.AlterMasterKey(is_added)


def _open_master_key(cursor: TokenCursor) -> Statement:
    cursor.expect("DECRYPTION")
    return statements.OpenMasterKey(_password(cursor))


def _create_certificate(cursor: TokenCursor) -> Statement:
    name, belongs = named(cursor), owner(cursor)
    said: dict[str, Any] = {}
    if cursor.accept("FROM"):
        cursor.expect("FILE", "=")
        said["file"] = cursor.string()
        if cursor.accept("WITH"):
            said["key"] = _private_key(cursor, "DECRYPTION")
    else:
        cursor.expect("WITH")
        seen: set[str] = set()
        while True:
            key = cursor.once(("SUBJECT", "START_DATE", "EXPIRY_DATE"), seen)
            cursor.expect("=")
            said[key.lower()] = cursor.string()
            if not cursor.accept(","):
                break
        if "subject" not in said:
            cursor.fail("SUBJECT = '...' was expected")
    if cursor.accept("ACTIVE"):
        said["is_active"] = _active(cursor)
    return statements.CreateCertificate(name, belongs, **said)


def _alter_certificate(cursor: TokenCursor) -> Statement:
    name = named(cursor)
    if cursor.accept("REMOVE", "PRIVATE", "KEY"):
        return statements.AlterCertificate(name, removes_key=True)
    cursor.expect("WITH")
    if cursor.accept("ACTIVE"):
        return statements.AlterCertificate(name, is_active=_active(cursor))
    return statements.AlterCertificate(name, key=_private_key(cursor, "DECRYPTION"))


def _backup_certificate(cursor: TokenCursor) -> Statement:
    name = named(cursor)
    cursor.expect("TO", "FILE", "=")
    file = cursor.string()
    key = _private_key(cursor, "ENCRYPTION") if cursor.accept("WITH") else None
    return statements.BackupCertificate(name, file, key)


def _active(cursor: TokenCursor) -> bool:
    cursor.expect("FOR", "BEGIN_DIALOG")
    return on_or_off(cursor)


def _private_key(cursor: TokenCursor, password: str) -> KeyFile:
    """PRIVATE KEY (FILE = '...', ... BY PASSWORD = '...')."""
    cursor.expect("PRIVATE", "KEY", "(")
    said: dict[str, str] = {}
    seen: set[str] = set()
    while True:
        key = cursor.once(("FILE", password), seen)
        if key == "FILE":
            cursor.expect("=")
            said["file"] = cursor.string()
        else:
            said["password"] = _password(cursor)
        if not cursor.accept(","):
            break
    if "file" not in said:
        cursor.fail("FILE = '...' was expected")
    cursor.expect(")")
    return KeyFile(**said)


def _password(cursor: TokenCursor) -> str:
    cursor.expect("BY", "PASSWORD", "=")
    return cursor.string()


def _create_binding(cursor: TokenCursor) -> Statement:
    cursor.expect("BINDING")
    name = named(cursor)
    owner(cursor)
    cursor.expect("TO", "SERVICE")
    service = cursor.string()
    said = _binding(cursor)
    if "user" not in said:
        cursor.fail("USER = ... was expected")
    return statements.CreateBinding(name, service, **said)


def _alter_binding(cursor: TokenCursor) -> Statement:
    cursor.expect("BINDING")
    name = named(cursor)
    return statements.AlterBinding(name, **_binding(cursor))


def _binding(cursor: TokenCursor) -> dict[str, Any]:
    said: dict[str, Any] = {}
    seen: set[str] = set()
    cursor.expect("WITH")
    while True:
        key = cursor.once(("USER", "ANONYMOUS"), seen)
        if key == "USER":
            cursor.expect("=")
            said["user"] = cursor.name()
        else:
            said["anonymous"] = on_or_off(cursor)
        if not cursor.accept(","):
            return said


def _drop_binding(cursor: TokenCursor) -> Statement:
    cursor.expect("BINDING")
    return statements.DropBinding(named(cursor))


def _permission(permission: Permission) -> Callable[[TokenCursor], Statement]:
    def read(cursor: TokenCursor) -> Statement:
        cursor.index -= 1  # back to the first of the permissions, by which the statement was known
        listed = _listed(cursor)
        cursor.expect("ON", "SERVICE", ":", ":")
        service = named(cursor)
        if permission != "REVOKE" or not cursor.accept("FROM"):
            cursor.expect("TO")
        users = [cursor.name()]
        while cursor.accept(","):
            users.append(cursor.name())
        if permission == "GRANT":
            cursor.accept("WITH", "GRANT", "OPTION")
        else:
            cursor.accept("CASCADE")
        if cursor.accept("AS"):
            cursor.name()
        meant = {"SEND", "CONTROL"} & set(listed)
        if not meant:
            return Skipped()
        ignored = ", ".join(each for each in listed if each not in meant)
        return statements.SetPermission(permission, service, tuple(users), "SEND" not in meant, ignored)

    return read


def _listed(cursor: TokenCursor) -> list[str]:
    listed: list[str] = []
    while True:
        found = next((words for words in _ON_SERVICES if cursor.accept(*words)), None)
        if found is None:
            cursor.fail(
                "a permission on a service was expected: SEND, CONTROL, ALTER, TAKE OWNERSHIP or VIEW DEFINITION"
            )
        listed.append(" ".join(found))
        if not cursor.accept(","):
            return listed


def _alter_authorization(cursor: TokenCursor) -> Statement:
    kind = _OWNED.get(cursor.ahead(1).key)
    if kind is None or not cursor.accept("ON", cursor.ahead(1).key, ":", ":"):
        skip_rest(cursor)
        return Skipped()
    name = named(cursor)
    cursor.expect("TO")
    return statements.SetOwner(kind, name, cursor.name())


GRAMMAR: Final[dict[str, Callable[[TokenCursor], Statement]]] = {
    "CREATE USER": _create_user,
    "DROP USER": _drop_user,
    "CREATE MASTER KEY": _create_master_key,
    "ALTER MASTER KEY": _alter_master_key,
    "OPEN MASTER KEY": _open_master_key,
    "CLOSE MASTER KEY": lambda _: Skipped(),
    "DROP MASTER KEY": lambda _: statements.DropMasterKey(),
    "CREATE CERTIFICATE": _create_certificate,
    "ALTER CERTIFICATE": _alter_certificate,
    "BACKUP CERTIFICATE": _backup_certificate,
    "DROP CERTIFICATE": lambda cursor: statements.DropCertificate(named(cursor)),
    "CREATE REMOTE SERVICE": _create_binding,
    "ALTER REMOTE SERVICE": _alter_binding,
    "DROP REMOTE SERVICE": _drop_binding,
    **{f"{verb} {words[0]}": _permission(verb) for verb in PERMISSIONS for words in _ON_SERVICES},
    "ALTER AUTHORIZATION": _alter_authorization,
}
"""What follows each verb and noun."""

VERBS: Final = frozenset(phrase.split(maxsplit=1)[0] for phrase in GRAMMAR)
"""The words with which these statements begin."""


PORT_MAX: Final = 65_535
_STATES: Final = ("STARTED", "STOPPED", "DISABLED")


def addresses(port: int | None, ip: str | None) -> tuple[str, ...]:
    """The addresses of a listener.

    A script names the port and may name an IP address; it does not know the host it will run on. So a listener on all
    addresses is known by those of the loopback alone, and further names come from an `addresses` annotation.

    Example:
        >>> addresses(4022, "10.0.0.5")
        ('TCP://10.0.0.5:4022',)
        >>> addresses(4022, "ALL")
        ('TCP://localhost:4022', 'TCP://127.0.0.1:4022', 'TCP://[::1]:4022')
    """
    if port is None:
        return ()
    hosts = ["localhost", "127.0.0.1", "[::1]"]
    if ip not in (None, "ALL"):
        parsed = ip_address(str(ip))
        hosts = [f"[{parsed.compressed}]" if isinstance(parsed, IPv6Address) else str(parsed)]
    return tuple(f"TCP://{host}:{port}" for host in hosts)


def create(cursor: TokenCursor, name: str) -> Statement:
    """CREATE ENDPOINT after the name."""
    protocol, kind, settings = _endpoint(cursor)
    if kind is None or protocol is None:
        cursor.fail("AS TCP (...) and FOR were expected")
    if kind != "SERVICE_BROKER":
        return Skipped()
    if settings.port is None:
        cursor.fail("AS TCP (LISTENER_PORT = ...) was expected")
    return CreateEndpoint(name, settings)


def alter(cursor: TokenCursor, name: str) -> Statement:
    """ALTER ENDPOINT after the name."""
    _, kind, settings = _endpoint(cursor)
    if kind not in (None, "SERVICE_BROKER"):
        return Skipped()
    return AlterEndpoint(name, settings, kind is not None)


def _endpoint(cursor: TokenCursor) -> tuple[str | None, str | None, EndpointSettings]:
    """The protocol, the kind after FOR, and the settings."""
    protocol = kind = None
    if cursor.accept("AUTHORIZATION"):
        cursor.name()
    settings = EndpointSettings(state=_state(cursor))
    if cursor.accept("AS"):
        protocol = cursor.take().key
        if protocol == "TCP":
            port, ip = _listener(cursor)
            settings = replace(settings, port=port, ip=ip)
        else:
            _parenthesised(cursor)
    if cursor.accept("FOR"):
        if cursor.token.kind != "word":
            cursor.fail("what the endpoint is for was expected, such as SERVICE_BROKER")
        kind = cursor.take().key
        if kind == "SERVICE_BROKER":
            settings = _broker(cursor, settings) if cursor.key == "(" else settings
            if protocol not in (None, "TCP"):
                cursor.fail("SERVICE_BROKER needs AS TCP")
        elif cursor.key == "(":
            _parenthesised(cursor)
    return protocol, kind, settings


def _state(cursor: TokenCursor) -> str | None:
    state = None
    while cursor.key in ("STATE", "AFFINITY"):
        key = cursor.take().key
        cursor.expect("=")
        if key == "STATE":
            if cursor.key not in _STATES:
                cursor.fail("STARTED, STOPPED or DISABLED was expected")
            state = cursor.key
        cursor.take()
        cursor.accept(",")
    return state


def _listener(cursor: TokenCursor) -> tuple[int | None, str | None]:
    port = ip = None
    seen: set[str] = set()
    cursor.expect("(")
    while True:
        key = _option(cursor, ("LISTENER_PORT", "LISTENER_IP"), seen)
        if key == "LISTENER_PORT":
            port = cursor.integer()
            if not 1 <= port <= PORT_MAX:
                raise cursor.error(f"LISTENER_PORT = {port} is no port")
        else:
            ip = "ALL" if cursor.accept("ALL") else _ip(cursor)
        if not cursor.accept(","):
            cursor.expect(")")
            return port, ip


def _ip(cursor: TokenCursor) -> str:
    cursor.expect("(")
    text = ""
    while not cursor.done and cursor.key != ")":
        text += cursor.take().text
    cursor.expect(")")
    try:
        return ip_address(text).compressed
    except ValueError:
        raise cursor.error(f"LISTENER_IP = ({text}) is no IP address") from None


def _broker(cursor: TokenCursor, settings: EndpointSettings) -> EndpointSettings:
    seen: set[str] = set()
    cursor.expect("(")
    while not cursor.accept(")"):
        key = _option(cursor, ("AUTHENTICATION", "ENCRYPTION", "MESSAGE_FORWARDING", "MESSAGE_FORWARD_SIZE"), seen)
        if key == "MESSAGE_FORWARDING":
            if cursor.key not in ("ENABLED", "DISABLED"):
                cursor.fail("ENABLED or DISABLED was expected")
            settings = replace(settings, forwarding=cursor.take().key == "ENABLED")
        elif key == "MESSAGE_FORWARD_SIZE":
            settings = replace(settings, forward_size=cursor.integer())
        else:
            while not cursor.done and cursor.key not in (",", ")"):
                cursor.take()
        if cursor.key != ")":
            cursor.expect(",")
    return settings


def _option(cursor: TokenCursor, keys: tuple[str, ...], seen: set[str]) -> str:
    key = cursor.once(keys, seen)
    cursor.expect("=")
    return key


def _parenthesised(cursor: TokenCursor) -> None:
    cursor.expect("(")
    depth = 1
    while depth:
        if cursor.done:
            cursor.fail("the parentheses do not match")
        depth += (cursor.key == "(") - (cursor.key == ")")
        cursor.take()
