"""The table of all statements by verb and nouns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ssbroker.ddl import parser_databases, parser_endpoints, parser_objects, parser_security, statements
from ssbroker.ddl.statements import Statement
from ssbroker.ddl.token_cursor import TokenCursor, drop_name, subject_name

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
        cursor.key in parser_security.PERMISSIONS and not parser_security.is_permission_on_service(cursor)
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


def _use(cursor: TokenCursor) -> Statement:
    return statements.UseDatabase(subject_name(cursor))


_GRAMMAR: Final[dict[str, Callable[[TokenCursor], Statement]]] = {
    "USE": _use,
    "CREATE ROUTE": parser_objects.create_route,
    "ALTER ROUTE": lambda cursor: statements.AlterRoute(subject_name(cursor), parser_objects.route_clauses(cursor)),
    "DROP ROUTE": lambda cursor: statements.DropRoute(drop_name(cursor)),
    "CREATE DATABASE": parser_databases.create_database,
    "ALTER DATABASE": parser_databases.alter_database,
    "DROP DATABASE": parser_databases.drop_database,
    "RESTORE DATABASE": parser_databases.restore_database,
    "RESTORE LOG": parser_databases.restore_log,
    "CREATE QUEUE": parser_objects.create_queue,
    "ALTER QUEUE": parser_objects.alter_queue,
    "DROP QUEUE": parser_objects.drop_queue,
    "CREATE SERVICE": parser_objects.create_service,
    "ALTER SERVICE": parser_objects.alter_service,
    "DROP SERVICE": lambda cursor: statements.DropService(drop_name(cursor)),
    "CREATE ENDPOINT": lambda cursor: parser_endpoints.create_endpoint(cursor, subject_name(cursor)),
    "ALTER ENDPOINT": lambda cursor: parser_endpoints.alter_endpoint(cursor, subject_name(cursor)),
    "DROP ENDPOINT": lambda cursor: statements.DropEndpoint(drop_name(cursor)),
    "CREATE MESSAGE TYPE": parser_objects.create_message_type,
    "ALTER MESSAGE TYPE": parser_objects.alter_message_type,
    "DROP MESSAGE TYPE": lambda cursor: statements.DropMessageType(drop_name(cursor)),
    "CREATE CONTRACT": parser_objects.create_contract,
    "DROP CONTRACT": lambda cursor: statements.DropContract(drop_name(cursor)),
    "CREATE BROKER PRIORITY": parser_objects.create_priority,
    "ALTER BROKER PRIORITY": parser_objects.alter_priority,
    "DROP BROKER PRIORITY": lambda cursor: statements.DropPriority(drop_name(cursor)),
    **parser_security.SECURITY_GRAMMAR,
}
_VERBS: Final = frozenset({"CREATE", "ALTER", "DROP", "RESTORE"}) | parser_security.SECURITY_VERBS
