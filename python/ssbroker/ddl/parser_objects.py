"""Parses statements about Service Broker objects, security and endpoints."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, Final

from ssbroker._text import did_you_mean
from ssbroker._well_known import PORT_MAX
from ssbroker.ddl import statements
from ssbroker.ddl.parser_base import (
    TokenCursor,
    drop_name,
    on_or_off,
    optional_owner,
    refuse_if_exists,
    skip_rest,
    subject_name,
)
from ssbroker.ddl.statements import (
    AlterEndpoint,
    CreateEndpoint,
    EndpointSettings,
    GivenKey,
    OwnedKind,
    Permission,
    PrioritySettings,
    QueueName,
    QueueSettings,
    Skipped,
    Statement,
)

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
            # The database is ignored: functions are registered with the process.
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
    """A part of a name, in brackets where it could be read as more than one."""
    return f"[{name.replace(']', ']]')}]" if set(name) & set(".[]") else name


def _validation(cursor: TokenCursor) -> tuple[str, str | None]:
    """Parses VALIDATION; returns it with the schema collection of VALID_XML."""
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


PERMISSIONS: Final[tuple[Permission, ...]] = ("GRANT", "DENY", "REVOKE")
# The permissions on a service.
_ON_SERVICES: Final = (("ALTER",), ("CONTROL",), ("SEND",), ("TAKE", "OWNERSHIP"), ("VIEW", "DEFINITION"))
_PERMISSION_WORDS_MAX: Final = 32  # tokens: all permissions of a service with commas, and some more
_OWNED: Final[dict[str, OwnedKind]] = {"SERVICE": "service", "CERTIFICATE": "certificate"}


def is_permission_on_service(cursor: TokenCursor) -> bool:
    """Returns whether the GRANT, DENY or REVOKE at the cursor is about a service."""
    keys = [cursor.ahead(count).key for count in range(1, _PERMISSION_WORDS_MAX)]
    ends = [keys.index(word) for word in ("ON", "TO", "FROM", ";") if word in keys]
    return bool(ends) and keys[min(ends) : min(ends) + 4] == ["ON", "SERVICE", ":", ":"]


def _create_user(cursor: TokenCursor) -> Statement:
    name = subject_name(cursor)
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
    return statements.DropUser(subject_name(cursor), if_exists)


def _create_master_key(cursor: TokenCursor) -> Statement:
    cursor.expect("ENCRYPTION")
    return statements.CreateMasterKey(_password(cursor))


def _alter_master_key(cursor: TokenCursor) -> Statement:
    if cursor.key not in ("ADD", "DROP"):
        cursor.fail("expected ADD or DROP")
    is_added = cursor.take().key == "ADD"
    cursor.expect("ENCRYPTION", "BY", "SERVICE", "MASTER", "KEY")
    return statements.AlterMasterKey(is_added)


def _open_master_key(cursor: TokenCursor) -> Statement:
    cursor.expect("DECRYPTION")
    return statements.OpenMasterKey(_password(cursor))


def _create_certificate(cursor: TokenCursor) -> Statement:
    name, owner_name = subject_name(cursor), optional_owner(cursor)
    options: dict[str, Any] = {}
    if cursor.accept("FROM"):
        options.update(_certificate_source(cursor))
    else:
        if cursor.accept("ENCRYPTION"):
            _password(cursor)
            options["has_own_password"] = True
        cursor.expect("WITH")
        seen: set[str] = set()
        while True:
            key = cursor.unique_option(("SUBJECT", "START_DATE", "EXPIRY_DATE"), seen)
            cursor.expect("=")
            options[key.lower()] = cursor.string()
            if not cursor.accept(","):
                break
        if "subject" not in options:
            cursor.fail("expected SUBJECT = '...'")
    if cursor.accept("ACTIVE"):
        options["is_active"] = _active_for_begin_dialog(cursor)
    return statements.CreateCertificate(name, owner_name, **options)


def _certificate_source(cursor: TokenCursor) -> dict[str, Any]:
    """Parses what follows FROM in CREATE CERTIFICATE."""
    if cursor.accept("ASSEMBLY"):
        cursor.name()
        return {"unsupported_source": "an assembly"}
    options: dict[str, Any] = {}
    if cursor.accept("BINARY", "="):
        options["binary"] = _binary(cursor)
    else:
        options["unsupported_source"] = "an executable file" if cursor.accept("EXECUTABLE") else ""
        cursor.expect("FILE", "=")
        options["file"] = cursor.string()
    if cursor.accept("WITH"):
        if cursor.accept("FORMAT", "="):
            cursor.string()
            cursor.expect(",")
            options["unsupported_source"] = "a PFX file"
        options["key"] = _private_key(cursor, "DECRYPTION")
    return options


def _binary(cursor: TokenCursor) -> bytes:
    """Parses a binary constant."""
    text = cursor.token.text
    if cursor.token.kind != "word" or _BINARY.fullmatch(text) is None:
        cursor.fail("expected a binary constant, 0x...")
    cursor.take()
    digits = text[2:]
    return bytes.fromhex(f"0{digits}" if len(digits) % 2 else digits)


_BINARY: Final = re.compile(r"0[xX][0-9a-fA-F]*")


def _alter_certificate(cursor: TokenCursor) -> Statement:
    name = subject_name(cursor)
    if cursor.accept("REMOVE", "PRIVATE", "KEY"):
        return statements.AlterCertificate(name, removes_key=True)
    cursor.expect("WITH")
    if cursor.accept("ACTIVE"):
        return statements.AlterCertificate(name, is_active=_active_for_begin_dialog(cursor))
    return statements.AlterCertificate(name, key=_private_key(cursor, "DECRYPTION", needs_source=False))


def _backup_certificate(cursor: TokenCursor) -> Statement:
    name = subject_name(cursor)
    cursor.expect("TO", "FILE", "=")
    file = cursor.string()
    key = _private_key(cursor, "ENCRYPTION") if cursor.accept("WITH") else None
    return statements.BackupCertificate(name, file, key)


def _active_for_begin_dialog(cursor: TokenCursor) -> bool:
    cursor.expect("FOR", "BEGIN_DIALOG")
    return on_or_off(cursor)


def _private_key(cursor: TokenCursor, password: str, *, needs_source: bool = True) -> GivenKey:
    """Parses PRIVATE KEY (FILE = '...', ... BY PASSWORD = '...'); `password` names that of the file or constant."""
    cursor.expect("PRIVATE", "KEY", "(")
    options: dict[str, Any] = {}
    seen: set[str] = set()
    while True:
        key = cursor.unique_option(("FILE", "BINARY", "DECRYPTION", "ENCRYPTION"), seen)
        if key in ("FILE", "BINARY"):
            cursor.expect("=")
            options[key.lower()] = cursor.string() if key == "FILE" else _binary(cursor)
        elif key == password:
            options["password"] = _password(cursor)
        else:
            _password(cursor)
            options["has_own_password"] = key == "ENCRYPTION"
        if not cursor.accept(","):
            break
    if needs_source and not seen & {"FILE", "BINARY"}:
        cursor.fail("expected FILE = '...'")
    cursor.expect(")")
    return GivenKey(**options)


def _password(cursor: TokenCursor) -> str:
    cursor.expect("BY", "PASSWORD", "=")
    return cursor.string()


def _create_binding(cursor: TokenCursor) -> Statement:
    name = subject_name(cursor)
    optional_owner(cursor)
    cursor.expect("TO", "SERVICE")
    service = cursor.string()
    options = _binding_options(cursor)
    if "user" not in options:
        cursor.fail("expected USER = ...")
    return statements.CreateBinding(name, service, **options)


def _alter_binding(cursor: TokenCursor) -> Statement:
    name = subject_name(cursor)
    return statements.AlterBinding(name, **_binding_options(cursor))


def _binding_options(cursor: TokenCursor) -> dict[str, Any]:
    options: dict[str, Any] = {}
    seen: set[str] = set()
    cursor.expect("WITH")
    while True:
        key = cursor.unique_option(("USER", "ANONYMOUS"), seen)
        if key == "USER":
            cursor.expect("=")
            options["user"] = cursor.name()
        else:
            options["anonymous"] = on_or_off(cursor)
        if not cursor.accept(","):
            return options


def _incomplete_binding(cursor: TokenCursor) -> Statement:
    cursor.fail("expected BINDING")


def _permission(permission: Permission) -> Callable[[TokenCursor], Statement]:
    def read(cursor: TokenCursor) -> Statement:
        cursor.index -= 1  # back to the first permission, which is part of the verb
        permissions = _permissions(cursor)
        cursor.expect("ON", "SERVICE", ":", ":")
        service = subject_name(cursor)
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
        relevant = {"SEND", "CONTROL"} & set(permissions)
        if not relevant:
            return Skipped(f"{permission} ON SERVICE")
        ignored = ", ".join(each for each in permissions if each not in relevant)
        return statements.SetPermission(permission, service, tuple(users), "SEND" not in relevant, ignored)

    return read


def _permissions(cursor: TokenCursor) -> list[str]:
    permissions: list[str] = []
    while True:
        found = next((words for words in _ON_SERVICES if cursor.accept(*words)), None)
        if found is None:
            cursor.fail("expected a permission on a service: SEND, CONTROL, ALTER, TAKE OWNERSHIP or VIEW DEFINITION")
        permissions.append(" ".join(found))
        if not cursor.accept(","):
            return permissions


def _alter_authorization(cursor: TokenCursor) -> Statement:
    kind = _OWNED.get(cursor.ahead(1).key)
    if kind is None or not cursor.accept("ON", cursor.ahead(1).key, ":", ":"):
        skip_rest(cursor)
        return Skipped("ALTER AUTHORIZATION")
    name = subject_name(cursor)
    cursor.expect("TO")
    return statements.SetOwner(kind, name, cursor.name())


SECURITY_GRAMMAR: Final[dict[str, Callable[[TokenCursor], Statement]]] = {
    "CREATE USER": _create_user,
    "DROP USER": _drop_user,
    "CREATE MASTER KEY": _create_master_key,
    "ALTER MASTER KEY": _alter_master_key,
    "OPEN MASTER KEY": _open_master_key,
    "CLOSE MASTER KEY": lambda _: Skipped("CLOSE MASTER KEY"),
    "DROP MASTER KEY": lambda _: statements.DropMasterKey(),
    "CREATE CERTIFICATE": _create_certificate,
    "ALTER CERTIFICATE": _alter_certificate,
    "BACKUP CERTIFICATE": _backup_certificate,
    "DROP CERTIFICATE": lambda cursor: statements.DropCertificate(drop_name(cursor)),
    "CREATE REMOTE SERVICE": _incomplete_binding,
    "ALTER REMOTE SERVICE": _incomplete_binding,
    "DROP REMOTE SERVICE": _incomplete_binding,
    "CREATE REMOTE SERVICE BINDING": _create_binding,
    "ALTER REMOTE SERVICE BINDING": _alter_binding,
    "DROP REMOTE SERVICE BINDING": lambda cursor: statements.DropBinding(drop_name(cursor)),
    **{f"{verb} {words[0]}": _permission(verb) for verb in PERMISSIONS for words in _ON_SERVICES},
    "ALTER AUTHORIZATION": _alter_authorization,
}
"""The parser of each statement about security, by verb and noun."""

SECURITY_VERBS: Final = frozenset(phrase.split(maxsplit=1)[0] for phrase in SECURITY_GRAMMAR)
"""The first words of these statements."""


_STATES: Final = ("STARTED", "STOPPED", "DISABLED")


def listener_addresses(port: int | None, ip: str | None) -> tuple[str, ...]:
    """Returns the addresses of a listener.

    A script does not know the host that it will run on, so a listener on all addresses has only those of the loopback
    interface; others come from an `addresses` annotation.

    Example:
        >>> listener_addresses(4022, "10.0.0.5")
        ('TCP://10.0.0.5:4022',)
        >>> listener_addresses(4022, "ALL")
        ('TCP://localhost:4022', 'TCP://127.0.0.1:4022', 'TCP://[::1]:4022')
    """
    if port is None:
        return ()
    hosts = ["localhost", "127.0.0.1", "[::1]"]
    if ip not in (None, "ALL"):
        parsed = ip_address(str(ip))
        hosts = [f"[{parsed.compressed}]" if isinstance(parsed, IPv6Address) else str(parsed)]
    return tuple(f"TCP://{host}:{port}" for host in hosts)


def create_endpoint(cursor: TokenCursor, name: str) -> Statement:
    """Parses CREATE ENDPOINT after the name."""
    protocol, kind, settings = _endpoint_settings(cursor)
    if kind is None or protocol is None:
        cursor.fail("expected AS TCP (...) and FOR")
    if kind != "SERVICE_BROKER":
        return Skipped("CREATE ENDPOINT")
    if settings.port is None:
        cursor.fail("expected AS TCP (LISTENER_PORT = ...)")
    return CreateEndpoint(name, settings)


def alter_endpoint(cursor: TokenCursor, name: str) -> Statement:
    """Parses ALTER ENDPOINT after the name."""
    _, kind, settings = _endpoint_settings(cursor)
    if kind not in (None, "SERVICE_BROKER"):
        return Skipped("ALTER ENDPOINT")
    return AlterEndpoint(name, settings, kind is not None)


def _endpoint_settings(cursor: TokenCursor) -> tuple[str | None, str | None, EndpointSettings]:
    """Returns the protocol, the kind after FOR, and the settings."""
    protocol = kind = None
    if cursor.accept("AUTHORIZATION"):
        cursor.name()
    settings = EndpointSettings(state=_endpoint_state(cursor))
    if cursor.accept("AS"):
        protocol = cursor.take().key
        if protocol == "TCP":
            port, ip = _listener(cursor)
            settings = replace(settings, port=port, ip=ip)
        else:
            _skip_parentheses(cursor)
    if cursor.accept("FOR"):
        if cursor.token.kind != "word":
            cursor.fail("expected the purpose of the endpoint, such as SERVICE_BROKER")
        kind = cursor.take().key
        if kind == "SERVICE_BROKER":
            settings = _broker_options(cursor, settings) if cursor.key == "(" else settings
            if protocol not in (None, "TCP"):
                cursor.fail("SERVICE_BROKER requires AS TCP")
        elif cursor.key == "(":
            _skip_parentheses(cursor)
    return protocol, kind, settings


def _endpoint_state(cursor: TokenCursor) -> str | None:
    state = None
    while cursor.key in ("STATE", "AFFINITY"):
        key = cursor.take().key
        cursor.expect("=")
        if key == "STATE":
            if cursor.key not in _STATES:
                cursor.fail("expected STARTED, STOPPED or DISABLED")
            state = cursor.key
        cursor.take()
        cursor.accept(",")
    return state


def _listener(cursor: TokenCursor) -> tuple[int | None, str | None]:
    port = ip = None
    seen: set[str] = set()
    cursor.expect("(")
    while True:
        key = _endpoint_option(cursor, ("LISTENER_PORT", "LISTENER_IP"), seen)
        if key == "LISTENER_PORT":
            port = cursor.integer()
            if not 1 <= port <= PORT_MAX:
                raise cursor.error(f"LISTENER_PORT = {port} is not a valid port; expected 1 to {PORT_MAX}")
        else:
            ip = "ALL" if cursor.accept("ALL") else _ip(cursor)
        if not cursor.accept(","):
            cursor.expect(")")
            return port, ip


def _ip(cursor: TokenCursor) -> str:
    cursor.expect("(")
    text = ""
    while not cursor.at_end and cursor.key != ")":
        text += cursor.take().text
    cursor.expect(")")
    address, colon, mask = text.partition(":") if "." in text.partition(":")[0] else (text, "", "")
    try:
        if colon:
            ip_network(f"{address}/{mask}", strict=False)
        return ip_address(address).compressed
    except ValueError:
        what = "IP address with a subnet mask" if colon else "IP address"
        raise cursor.error(f"LISTENER_IP = ({text}) is not a valid {what}") from None


def _broker_options(cursor: TokenCursor, settings: EndpointSettings) -> EndpointSettings:
    seen: set[str] = set()
    cursor.expect("(")
    while not cursor.accept(")"):
        key = _endpoint_option(
            cursor, ("AUTHENTICATION", "ENCRYPTION", "MESSAGE_FORWARDING", "MESSAGE_FORWARD_SIZE"), seen
        )
        if key == "MESSAGE_FORWARDING":
            if cursor.key not in ("ENABLED", "DISABLED"):
                cursor.fail("expected ENABLED or DISABLED")
            settings = replace(settings, forwarding=cursor.take().key == "ENABLED")
        elif key == "MESSAGE_FORWARD_SIZE":
            settings = replace(settings, forward_size=cursor.integer())
        else:
            while not cursor.at_end and cursor.key not in (",", ")"):
                cursor.take()
        if cursor.key != ")":
            cursor.expect(",")
    return settings


def _endpoint_option(cursor: TokenCursor, keys: tuple[str, ...], seen: set[str]) -> str:
    key = cursor.unique_option(keys, seen)
    cursor.expect("=")
    return key


def _skip_parentheses(cursor: TokenCursor) -> None:
    cursor.expect("(")
    depth = 1
    while depth:
        if cursor.at_end:
            cursor.fail("unbalanced parentheses")
        depth += (cursor.key == "(") - (cursor.key == ")")
        cursor.take()
