"""The table of all statements by verb and nouns, and the grammar of those about databases and routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from ssbroker.ddl import parser_objects, statements
from ssbroker.ddl.parser_base import (
    STATEMENT_WORDS,
    TokenCursor,
    drop_name,
    on_or_off,
    optional_owner,
    skip_rest,
    subject_name,
)
from ssbroker.ddl.statements import BrokerOption, RouteClauses, Statement
from ssbroker.ddl.system_objects import SYSTEM_DATABASES, canonical_name

_BROKER_OPTIONS: Final = frozenset({"ENABLE_BROKER", "DISABLE_BROKER", "NEW_BROKER", "ERROR_BROKER_CONVERSATIONS"})
# The words that may follow these in CREATE DATABASE.
_FOLLOWERS: Final = {
    "FOR": frozenset({"ATTACH", "ATTACH_REBUILD_LOG"}),
    "SNAPSHOT": frozenset({"OF"}),
    "WITH": _BROKER_OPTIONS | {"FILESTREAM", "RESTRICTED_USER"},  # after FOR ATTACH; a new database allows more
}
# These start like statements about databases and services, but are about other objects.
_OTHER_OBJECTS: Final = frozenset(
    {
        ("DATABASE", "AUDIT", "SPECIFICATION"),
        ("DATABASE", "ENCRYPTION", "KEY"),
        ("DATABASE", "SCOPED", "CONFIGURATION"),
        ("DATABASE", "SCOPED", "CREDENTIAL"),
        ("SERVICE", "MASTER", "KEY"),
    }
)


def known_statement(cursor: TokenCursor) -> str | None:
    """Returns the verb and noun of the known statement that starts here, or None."""
    if cursor.key == "USE":
        return "USE"
    if cursor.key not in _VERBS or (
        cursor.key in parser_objects.PERMISSIONS and not parser_objects.is_permission_on_service(cursor)
    ):
        return None
    nouns = (cursor.ahead(1).key, cursor.ahead(2).key, cursor.ahead(3).key)
    for count in (1, 3, 2):
        verb = " ".join([cursor.key, *nouns[:count]])
        if verb in _GRAMMAR and nouns not in _OTHER_OBJECTS:
            return verb
    return None


def parse_statement(cursor: TokenCursor, verb: str) -> Statement:
    """Parses the statement that `known_statement` recognized."""
    cursor.subject = verb
    cursor.index += len(verb.split())
    return _GRAMMAR[verb](cursor)


_ROUTE_CLAUSES: Final = ("SERVICE_NAME", "BROKER_INSTANCE", "LIFETIME", "ADDRESS", "MIRROR_ADDRESS")


def _create_route(cursor: TokenCursor) -> Statement:
    name = subject_name(cursor)
    optional_owner(cursor)
    return statements.CreateRoute(name, _route_clauses(cursor))


def _route_clauses(cursor: TokenCursor) -> RouteClauses:
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


def _use(cursor: TokenCursor) -> Statement:
    return statements.UseDatabase(subject_name(cursor))


def _create_database(cursor: TokenCursor) -> Statement:
    name = subject_name(cursor)
    start, depth = cursor.index, 0
    skip_rest(cursor)
    end, cursor.index = cursor.index, start
    is_attach = snapshot = is_log = False
    files: list[str] = []
    option: BrokerOption | None = None
    while cursor.index < end:
        depth += (cursor.key == "(") - (cursor.key == ")")
        if depth == 0 and cursor.key in _BROKER_OPTIONS:
            if option is not None or not is_attach:
                cursor.fail("only one broker option is allowed, after FOR ATTACH WITH")
            option = cast("BrokerOption", cursor.key)
        if depth == 0 and (is_attach or cursor.key != "WITH"):
            _check_follower(cursor)
        if cursor.key == "ON" and cursor.index + 1 == end and (cursor.index == start or is_log):
            cursor.take()
            cursor.fail("expected the files")
        is_log = cursor.key == "LOG"
        is_attach |= depth == 0 and cursor.key == "FOR"
        snapshot |= depth == 0 and cursor.key == "SNAPSHOT" and cursor.ahead(1).key == "OF"
        if cursor.accept("FILENAME", "="):
            files.append(cursor.string())
        else:
            cursor.take()
    # A snapshot is read-only, so it neither sends nor receives messages.
    return (
        statements.Skipped("CREATE DATABASE AS SNAPSHOT")
        if snapshot
        else statements.CreateDatabase(name, is_attach, option, tuple(files))
    )


def _check_follower(cursor: TokenCursor) -> None:
    """Refuses unknown words here: they decide whether the database is attached, and what happens to its conversations."""
    expected = _FOLLOWERS.get(cursor.key, ())
    if expected and cursor.ahead(1).key not in expected:
        cursor.take()
        cursor.fail(f"expected {'one of ' if len(expected) > 1 else ''}{', '.join(sorted(expected))}")


def _alter_database(cursor: TokenCursor) -> Statement:
    current = cursor.key == "CURRENT"
    name = None if current else subject_name(cursor)
    if current:
        cursor.subject = f"{cursor.subject} {cursor.take().key}"
    if cursor.accept("MODIFY", "NAME"):
        cursor.expect("=")
        return statements.AlterDatabase(name, None, cursor.name())
    if not cursor.accept("SET"):
        if cursor.key not in ("ADD", "REMOVE", "MODIFY", "COLLATE", "PERFORM_CUTOVER"):
            cursor.fail("expected SET")
        kind = f"ALTER DATABASE {cursor.take().key}"
        skip_rest(cursor)
        return statements.Skipped(kind)
    option, honor_priority, others = _set_options(cursor)
    if cursor.accept("WITH"):
        _termination(cursor)
    is_online = next((key == "ONLINE" for key in others if key in ("ONLINE", "OFFLINE")), None)
    if option is None and honor_priority is None and is_online is None:
        return statements.Skipped("ALTER DATABASE SET")
    return statements.AlterDatabase(name, option, None, tuple(others), honor_priority, is_online)


def _set_options(cursor: TokenCursor) -> tuple[BrokerOption | None, bool | None, list[str]]:
    option: BrokerOption | None = None
    honor_priority: bool | None = None
    others = []
    while True:
        key = cursor.key
        if key in _BROKER_OPTIONS:
            if option is not None:
                raise cursor.error(f"{key} after {option}: only one broker option is allowed")
            option = cast("BrokerOption", cursor.take().key)
        elif cursor.accept("HONOR_BROKER_PRIORITY"):
            honor_priority = on_or_off(cursor)
        else:
            if cursor.token.kind != "word" or key in STATEMENT_WORDS:
                cursor.fail("expected an option")
            others.append(key)
            depth = 0
            ends = STATEMENT_WORDS | {";", ",", "WITH"}
            while not cursor.at_end and (depth or not (cursor.key in ends or cursor.is_label())):
                depth += (cursor.key == "(") - (cursor.key == ")")
                cursor.take()
            if depth:
                cursor.fail("unbalanced parentheses")
            cursor.expect_complete()
        if not cursor.accept(","):
            return option, honor_priority, others


def _termination(cursor: TokenCursor) -> None:
    if cursor.accept("NO_WAIT") or cursor.accept("ROLLBACK", "IMMEDIATE"):
        return
    cursor.expect("ROLLBACK", "AFTER")
    cursor.integer()
    cursor.accept("SECONDS")


def _drop_database(cursor: TokenCursor) -> Statement:
    if_exists = cursor.accept("IF", "EXISTS")
    names = [subject_name(cursor)]
    while cursor.accept(","):
        names.append(cursor.name())
    return statements.DropDatabase(tuple(names), if_exists)


def _restore_database(cursor: TokenCursor) -> Statement:
    first, option = cursor.index, None
    name = None if cursor.key.startswith("@") else subject_name(cursor)
    while not (cursor.at_end or cursor.key == ";" or cursor.key in STATEMENT_WORDS - {"MOVE"}):
        if cursor.key in _BROKER_OPTIONS and cursor.ahead(-1).key in ("WITH", ","):
            if option is not None:
                cursor.fail("only one broker option is allowed")
            option = cast("BrokerOption", cursor.key)
        cursor.take()
    if cursor.index == first + 1:
        cursor.fail("expected FROM or WITH")
    cursor.expect_complete()
    if name is None or canonical_name(name) in SYSTEM_DATABASES:
        return statements.Skipped("RESTORE DATABASE")
    return statements.RestoreDatabase(name, option)


_GRAMMAR: Final[dict[str, Callable[[TokenCursor], Statement]]] = {
    "USE": _use,
    "CREATE ROUTE": _create_route,
    "ALTER ROUTE": lambda cursor: statements.AlterRoute(subject_name(cursor), _route_clauses(cursor)),
    "DROP ROUTE": lambda cursor: statements.DropRoute(drop_name(cursor)),
    "CREATE DATABASE": _create_database,
    "ALTER DATABASE": _alter_database,
    "DROP DATABASE": _drop_database,
    "RESTORE DATABASE": _restore_database,
    "CREATE QUEUE": parser_objects.create_queue,
    "ALTER QUEUE": parser_objects.alter_queue,
    "DROP QUEUE": parser_objects.drop_queue,
    "CREATE SERVICE": parser_objects.create_service,
    "ALTER SERVICE": parser_objects.alter_service,
    "DROP SERVICE": lambda cursor: statements.DropService(drop_name(cursor)),
    "CREATE ENDPOINT": lambda cursor: parser_objects.create_endpoint(cursor, subject_name(cursor)),
    "ALTER ENDPOINT": lambda cursor: parser_objects.alter_endpoint(cursor, subject_name(cursor)),
    "DROP ENDPOINT": lambda cursor: statements.DropEndpoint(drop_name(cursor)),
    "CREATE MESSAGE TYPE": parser_objects.create_message_type,
    "ALTER MESSAGE TYPE": parser_objects.alter_message_type,
    "DROP MESSAGE TYPE": lambda cursor: statements.DropMessageType(drop_name(cursor)),
    "CREATE CONTRACT": parser_objects.create_contract,
    "DROP CONTRACT": lambda cursor: statements.DropContract(drop_name(cursor)),
    "CREATE BROKER PRIORITY": parser_objects.create_priority,
    "ALTER BROKER PRIORITY": parser_objects.alter_priority,
    "DROP BROKER PRIORITY": lambda cursor: statements.DropPriority(drop_name(cursor)),
    **parser_objects.SECURITY_GRAMMAR,
}
_VERBS: Final = frozenset({"CREATE", "ALTER", "DROP", "RESTORE"}) | parser_objects.SECURITY_VERBS
