"""The grammar of the statements that say something about routing, by recursive descent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from ssbroker.ddl import endpoints, objects, security, statements
from ssbroker.ddl.cursor import STATEMENT_WORDS, Cursor, Reading
from ssbroker.ddl.pieces import named, on_or_off, owner, skip_rest
from ssbroker.ddl.statements import BrokerOption, Clauses, Statement

_BROKER_OPTIONS: Final = frozenset({"ENABLE_BROKER", "DISABLE_BROKER", "NEW_BROKER", "ERROR_BROKER_CONVERSATIONS"})
# What may follow these words in CREATE DATABASE.
_FOLLOWERS: Final = {
    "FOR": frozenset({"ATTACH", "ATTACH_REBUILD_LOG"}),
    "SNAPSHOT": frozenset({"OF"}),
    "WITH": _BROKER_OPTIONS | {"FILESTREAM", "RESTRICTED_USER"},  # after FOR ATTACH; a database that is made takes more
}
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
    if cursor.key not in _VERBS or (
        cursor.key in security.PERMISSIONS and not security.is_permission_on_service(cursor)
    ):
        return None
    nouns = (cursor.ahead(1).key, cursor.ahead(2).key, cursor.ahead(3).key)
    for verb in (f"{cursor.key} {nouns[0]}", f"{cursor.key} {nouns[0]} {nouns[1]}"):
        if verb in _GRAMMARS[cursor.reading] and nouns not in _OTHER_OBJECTS:
            return verb
    return None


def parse_known(cursor: Cursor, verb: str) -> Statement:
    """The statement that `known` saw."""
    cursor.subject = verb
    cursor.index += len(verb.split())
    return _GRAMMARS[cursor.reading][verb](cursor)


def _create_route(cursor: Cursor) -> Statement:
    name = named(cursor)
    owner(cursor)
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
    return statements.UseDatabase(named(cursor))


def _create_database(cursor: Cursor) -> Statement:
    name = named(cursor)
    start, depth = cursor.index, 0
    skip_rest(cursor)
    end, cursor.index = cursor.index, start
    attached = snapshot = is_log = False
    files: list[str] = []
    option: BrokerOption | None = None
    while cursor.index < end:
        depth += (cursor.key == "(") - (cursor.key == ")")
        if depth == 0 and cursor.key in _BROKER_OPTIONS:
            if option is not None or not attached:
                cursor.fail("one broker option is allowed, after FOR ATTACH WITH")
            option = cast("BrokerOption", cursor.key)
        if depth == 0 and (attached or cursor.key != "WITH"):
            _check_follower(cursor)
        if cursor.key == "ON" and cursor.index + 1 == end and (cursor.index == start or is_log):
            cursor.take()
            cursor.fail("the files were expected")
        is_log = cursor.key == "LOG"
        attached |= depth == 0 and cursor.key == "FOR"
        snapshot |= depth == 0 and cursor.key == "SNAPSHOT" and cursor.ahead(1).key == "OF"
        if cursor.accept("FILENAME", "="):
            files.append(cursor.string())
        else:
            cursor.take()
    # A snapshot is read-only: nothing is sent from it and nothing delivered to it.
    return statements.Skipped() if snapshot else statements.CreateDatabase(name, attached, option, tuple(files))


def _check_follower(cursor: Cursor) -> None:
    """What follows decides whether a database is made or taken in, and what becomes of its conversations."""
    expected = _FOLLOWERS.get(cursor.key, ())
    if expected and cursor.ahead(1).key not in expected:
        cursor.take()
        cursor.fail(f"one of {', '.join(sorted(expected))} was expected")


def _alter_database(cursor: Cursor) -> Statement:
    current = cursor.key == "CURRENT"
    name = None if current else named(cursor)
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
    option, honor, ignored = _set_options(cursor)
    if cursor.accept("WITH"):
        _termination(cursor)
    if option is None and honor is None:
        return statements.Skipped()
    return statements.AlterDatabase(name, option, None, ", ".join(ignored), honor)


def _set_options(cursor: Cursor) -> tuple[BrokerOption | None, bool | None, list[str]]:
    option: BrokerOption | None = None
    honor: bool | None = None
    ignored = []
    while True:
        key = cursor.key
        if key in _BROKER_OPTIONS:
            if option is not None:
                raise cursor.error(f"{key} after {option}: one broker option is allowed")
            option = cast("BrokerOption", cursor.take().key)
        elif cursor.reading == "objects" and cursor.accept("HONOR_BROKER_PRIORITY"):
            honor = on_or_off(cursor)
        else:
            if cursor.token.kind != "word" or key in STATEMENT_WORDS:
                cursor.fail("an option was expected")
            ignored.append(key)
            depth = 0
            while not cursor.done and (depth or cursor.key not in STATEMENT_WORDS | {";", ",", "WITH"}):
                depth += (cursor.key == "(") - (cursor.key == ")")
                cursor.take()
            if depth:
                cursor.fail("the parentheses do not match")
            cursor.expect_whole()
        if not cursor.accept(","):
            return option, honor, ignored


def _termination(cursor: Cursor) -> None:
    if cursor.accept("NO_WAIT") or cursor.accept("ROLLBACK", "IMMEDIATE"):
        return
    cursor.expect("ROLLBACK", "AFTER")
    cursor.integer()
    cursor.accept("SECONDS")


def _drop_database(cursor: Cursor) -> Statement:
    if_exists = cursor.accept("IF", "EXISTS")
    names = [named(cursor)]
    while cursor.accept(","):
        names.append(cursor.name())
    return statements.DropDatabase(tuple(names), if_exists)


_ROUTING: Final[dict[str, Callable[[Cursor], Statement]]] = {
    "USE": _use,
    "CREATE ROUTE": _create_route,
    "ALTER ROUTE": lambda cursor: statements.AlterRoute(named(cursor), _clauses(cursor)),
    "DROP ROUTE": lambda cursor: statements.DropRoute(named(cursor)),
    "CREATE DATABASE": _create_database,
    "ALTER DATABASE": _alter_database,
    "DROP DATABASE": _drop_database,
    "CREATE QUEUE": objects.create_queue,
    "ALTER QUEUE": objects.alter_queue,
    "DROP QUEUE": objects.drop_queue,
    "CREATE SERVICE": objects.create_service,
    "ALTER SERVICE": objects.alter_service,
    "DROP SERVICE": lambda cursor: statements.DropService(named(cursor)),
    "CREATE ENDPOINT": lambda cursor: endpoints.create(cursor, named(cursor)),
    "ALTER ENDPOINT": lambda cursor: endpoints.alter(cursor, named(cursor)),
    "DROP ENDPOINT": lambda cursor: statements.DropEndpoint(named(cursor)),
}
# What says nothing about routing, and something to a running instance.
_OBJECTS: Final[dict[str, Callable[[Cursor], Statement]]] = {
    "CREATE MESSAGE TYPE": objects.create_message_type,
    "ALTER MESSAGE TYPE": objects.alter_message_type,
    "DROP MESSAGE TYPE": lambda cursor: statements.DropMessageType(named(cursor)),
    "CREATE CONTRACT": objects.create_contract,
    "DROP CONTRACT": lambda cursor: statements.DropContract(named(cursor)),
    "CREATE BROKER PRIORITY": objects.create_priority,
    "ALTER BROKER PRIORITY": objects.alter_priority,
    "DROP BROKER PRIORITY": lambda cursor: statements.DropPriority(named(cursor)),
}
_GRAMMARS: Final[dict[Reading, dict[str, Callable[[Cursor], Statement]]]] = {
    "routing": _ROUTING,
    "objects": {**_ROUTING, **_OBJECTS, **security.GRAMMAR},
}
_VERBS: Final = frozenset({"CREATE", "ALTER", "DROP"}) | security.VERBS
