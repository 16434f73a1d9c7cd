"""The grammar of the statements that say something about routing, by recursive descent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from ssbroker.ddl import endpoints, statements
from ssbroker.ddl.cursor import STATEMENT_WORDS, Cursor
from ssbroker.ddl.statements import BrokerOption, Clauses, QueueName, Statement

_BROKER_OPTIONS: Final = frozenset({"ENABLE_BROKER", "DISABLE_BROKER", "NEW_BROKER", "ERROR_BROKER_CONVERSATIONS"})
# These begin like statements about databases and services, and are about something else.
_OTHER_OBJECTS: Final = frozenset(
    {
        ("DATABASE", "AUDIT", "SPECIFICATION"),
        ("DATABASE", "ENCRYPTION", "KEY"),
        ("DATABASE", "SCOPED", "CONFIGURATION"),
        ("DATABASE", "SCOPED", "CREDENTIAL"),
        ("SERVICE", "MASTER", "KEY"),
    }
)


def known(cursor: Cursor) -> str | None:
    """The verb and noun of the known statement that begins here, None where there is none."""
    if cursor.key == "USE":
        return "USE"
    if cursor.key not in ("CREATE", "ALTER", "DROP"):
        return None
    verb = f"{cursor.key} {cursor.ahead(1).key}"
    if verb not in _GRAMMAR or (cursor.ahead(1).key, cursor.ahead(2).key, cursor.ahead(3).key) in _OTHER_OBJECTS:
        return None
    return verb


def parse_known(cursor: Cursor, verb: str) -> Statement:
    """The statement that `known` saw."""
    cursor.subject = verb
    cursor.index += len(verb.split())
    return _GRAMMAR[verb](cursor)


def skip_rest(cursor: Cursor) -> None:
    """Moves to where the statement ends: a semicolon, or a word that begins another statement."""
    depth = 0
    while not cursor.done and (depth or cursor.key not in STATEMENT_WORDS | {";"}):
        depth += (cursor.key == "(") - (cursor.key == ")")
        cursor.take()
    if depth:
        cursor.fail("the parentheses do not match")


def _named(cursor: Cursor) -> str:
    name = cursor.name()
    cursor.subject = f"{cursor.subject} [{name}]"
    return name


def _owner(cursor: Cursor) -> None:
    if cursor.accept("AUTHORIZATION"):
        cursor.name()


def _create_route(cursor: Cursor) -> Statement:
    name = _named(cursor)
    _owner(cursor)
    return statements.CreateRoute(name, _clauses(cursor))


def _clauses(cursor: Cursor) -> Clauses:
    cursor.expect("WITH")
    texts: dict[str, str] = {}
    lifetime: int | None = None
    while True:
        key = cursor.key
        if key not in ("SERVICE_NAME", "BROKER_INSTANCE", "LIFETIME", "ADDRESS", "MIRROR_ADDRESS"):
            cursor.fail("a clause was expected: SERVICE_NAME, BROKER_INSTANCE, LIFETIME, ADDRESS or MIRROR_ADDRESS")
        if key.lower() in texts or (key == "LIFETIME" and lifetime is not None):
            raise cursor.error(f"{key} is given twice", number=1039)
        cursor.take()
        cursor.expect("=")
        if key == "LIFETIME":
            lifetime = cursor.integer()
        else:
            texts[key.lower()] = cursor.string()
        if not cursor.accept(","):
            return Clauses(lifetime=lifetime, **texts)


def _use(cursor: Cursor) -> Statement:
    return statements.UseDatabase(_named(cursor))


def _create_database(cursor: Cursor) -> Statement:
    name = _named(cursor)
    start, depth = cursor.index, 0
    skip_rest(cursor)
    end, cursor.index = cursor.index, start
    attached = snapshot = False
    option: BrokerOption | None = None
    while cursor.index < end:
        depth += (cursor.key == "(") - (cursor.key == ")")
        if depth == 0 and cursor.key in _BROKER_OPTIONS:
            if option is not None or not attached:
                cursor.fail("one broker option is allowed, after FOR ATTACH WITH")
            option = cast("BrokerOption", cursor.key)
        attached |= depth == 0 and cursor.key == "FOR" and cursor.ahead(1).key.startswith("ATTACH")
        snapshot |= depth == 0 and cursor.key == "SNAPSHOT" and cursor.ahead(1).key == "OF"
        cursor.take()
    # A snapshot is read-only: nothing is sent from it and nothing delivered to it.
    return statements.Skipped() if snapshot else statements.CreateDatabase(name, attached, option)


def _alter_database(cursor: Cursor) -> Statement:
    current = cursor.key == "CURRENT"
    name = None if current else _named(cursor)
    if current:
        cursor.subject = f"{cursor.subject} {cursor.take().key}"
    if cursor.accept("MODIFY", "NAME"):
        cursor.expect("=")
        return statements.AlterDatabase(name, None, cursor.name(), "")
    if not cursor.accept("SET"):
        if cursor.key not in ("ADD", "REMOVE", "MODIFY", "COLLATE", "PERFORM_CUTOVER"):
            cursor.fail("SET was expected")
        cursor.take()
        skip_rest(cursor)
        return statements.Skipped()
    option, ignored = _set_options(cursor)
    if cursor.accept("WITH"):
        _termination(cursor)
    return statements.AlterDatabase(name, option, None, ", ".join(ignored)) if option else statements.Skipped()


def _set_options(cursor: Cursor) -> tuple[BrokerOption | None, list[str]]:
    option: BrokerOption | None = None
    ignored = []
    while True:
        key = cursor.key
        if key in _BROKER_OPTIONS:
            if option is not None:
                raise cursor.error(f"{key} after {option}: one broker option is allowed")
            option = cast("BrokerOption", cursor.take().key)
        else:
            if cursor.token.kind != "word" or key in STATEMENT_WORDS:
                cursor.fail("an option was expected")
            ignored.append(key)
            depth = 0
            while not cursor.done and (depth or cursor.key not in STATEMENT_WORDS | {";", ",", "WITH"}):
                depth += (cursor.key == "(") - (cursor.key == ")")
                cursor.take()
        if not cursor.accept(","):
            return option, ignored


def _termination(cursor: Cursor) -> None:
    if cursor.accept("NO_WAIT") or cursor.accept("ROLLBACK", "IMMEDIATE"):
        return
    cursor.expect("ROLLBACK", "AFTER")
    cursor.integer()
    cursor.accept("SECONDS")


def _drop_database(cursor: Cursor) -> Statement:
    if_exists = cursor.accept("IF", "EXISTS")
    names = [_named(cursor)]
    while cursor.accept(","):
        names.append(cursor.name())
    return statements.DropDatabase(tuple(names), if_exists)


def _queue(cursor: Cursor, *, parts_max: int) -> QueueName:
    parts = [cursor.name()]
    while cursor.accept("."):
        # `database..queue` leaves the schema to the default.
        parts.append("dbo" if len(parts) == 1 and cursor.key == "." else cursor.name())
    if len(parts) > parts_max:
        cursor.fail(f"the name of the queue has more than {parts_max} parts")
    *prefix, name = parts
    schema = prefix.pop() if prefix else "dbo"
    return QueueName(prefix.pop() if prefix else None, schema, name)


def _queue_statement(kind: Callable[[QueueName], Statement], *, options: bool) -> Callable[[Cursor], Statement]:
    def parse(cursor: Cursor) -> Statement:
        queue = _queue(cursor, parts_max=3)
        cursor.subject = f"{cursor.subject} [{queue.name}]"
        if options:
            cursor.accept("MOVE", "TO")
            skip_rest(cursor)
        return kind(queue)

    return parse


def _create_service(cursor: Cursor) -> Statement:
    name = _named(cursor)
    _owner(cursor)
    cursor.expect("ON", "QUEUE")
    queue = _queue(cursor, parts_max=2)
    if cursor.accept("("):
        cursor.name()
        while cursor.accept(","):
            cursor.name()
        cursor.expect(")")
    return statements.CreateService(name, queue)


def _alter_service(cursor: Cursor) -> Statement:
    name = _named(cursor)
    queue = _queue(cursor, parts_max=2) if cursor.accept("ON", "QUEUE") else None
    if queue is None or cursor.key == "(":
        cursor.expect("(")
        while True:
            if not cursor.accept("ADD"):
                cursor.expect("DROP")
            cursor.expect("CONTRACT")
            cursor.name()
            if not cursor.accept(","):
                break
        cursor.expect(")")
    return statements.AlterService(name, queue)


_GRAMMAR: Final[dict[str, Callable[[Cursor], Statement]]] = {
    "USE": _use,
    "CREATE ROUTE": _create_route,
    "ALTER ROUTE": lambda cursor: statements.AlterRoute(_named(cursor), _clauses(cursor)),
    "DROP ROUTE": lambda cursor: statements.DropRoute(_named(cursor)),
    "CREATE DATABASE": _create_database,
    "ALTER DATABASE": _alter_database,
    "DROP DATABASE": _drop_database,
    "CREATE QUEUE": _queue_statement(statements.CreateQueue, options=True),
    "ALTER QUEUE": _queue_statement(statements.AlterQueue, options=True),
    "DROP QUEUE": _queue_statement(statements.DropQueue, options=False),
    "CREATE SERVICE": _create_service,
    "ALTER SERVICE": _alter_service,
    "DROP SERVICE": lambda cursor: statements.DropService(_named(cursor)),
    "CREATE ENDPOINT": lambda cursor: endpoints.create(cursor, _named(cursor)),
    "ALTER ENDPOINT": lambda cursor: endpoints.alter(cursor, _named(cursor)),
    "DROP ENDPOINT": lambda cursor: statements.DropEndpoint(_named(cursor)),
}
