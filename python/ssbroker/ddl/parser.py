"""Parses batches into statements by recursive descent, and skips statements that are not about Service Broker."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, cast

from ssbroker.ddl import parser_objects, statements
from ssbroker.ddl.lexer import INSTANCE_ANNOTATION_KEYS, ScriptBatch, ScriptSource
from ssbroker.ddl.parser_base import (
    STATEMENT_WORDS,
    StatementScope,
    TokenCursor,
    on_or_off,
    optional_owner,
    skip_rest,
    subject_name,
)
from ssbroker.ddl.statements import BrokerOption, Clauses, Skipped, Statement

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
    for verb in (f"{cursor.key} {nouns[0]}", f"{cursor.key} {nouns[0]} {nouns[1]}"):
        if verb in _GRAMMARS[cursor.scope] and nouns not in _OTHER_OBJECTS:
            return verb
    return None


def parse_statement(cursor: TokenCursor, verb: str) -> Statement:
    """Parses the statement that `known_statement` recognized."""
    cursor.subject = verb
    cursor.index += len(verb.split())
    return _GRAMMARS[cursor.scope][verb](cursor)


def _create_route(cursor: TokenCursor) -> Statement:
    name = subject_name(cursor)
    optional_owner(cursor)
    return statements.CreateRoute(name, _route_clauses(cursor))


def _route_clauses(cursor: TokenCursor) -> Clauses:
    cursor.expect("WITH")
    texts: dict[str, str] = {}
    lifetime: int | None = None
    while True:
        key = cursor.key
        if key not in ("SERVICE_NAME", "BROKER_INSTANCE", "LIFETIME", "ADDRESS", "MIRROR_ADDRESS"):
            cursor.fail("expected a clause: SERVICE_NAME, BROKER_INSTANCE, LIFETIME, ADDRESS or MIRROR_ADDRESS")
        if key.lower() in texts or (key == "LIFETIME" and lifetime is not None):
            raise cursor.error(f"{key} is specified more than once", number=1039)
        cursor.take()
        cursor.expect("=")
        if key == "LIFETIME":
            lifetime = cursor.integer()
        else:
            texts[key.lower()] = cursor.string()
        if not cursor.accept(","):
            return Clauses(lifetime=lifetime, **texts)


def _use(cursor: TokenCursor) -> Statement:
    return statements.UseDatabase(subject_name(cursor))


def _create_database(cursor: TokenCursor) -> Statement:
    name = subject_name(cursor)
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
                cursor.fail("only one broker option is allowed, after FOR ATTACH WITH")
            option = cast("BrokerOption", cursor.key)
        if depth == 0 and (attached or cursor.key != "WITH"):
            _check_follower(cursor)
        if cursor.key == "ON" and cursor.index + 1 == end and (cursor.index == start or is_log):
            cursor.take()
            cursor.fail("expected the files")
        is_log = cursor.key == "LOG"
        attached |= depth == 0 and cursor.key == "FOR"
        snapshot |= depth == 0 and cursor.key == "SNAPSHOT" and cursor.ahead(1).key == "OF"
        if cursor.accept("FILENAME", "="):
            files.append(cursor.string())
        else:
            cursor.take()
    # A snapshot is read-only, so it neither sends nor receives messages.
    return statements.Skipped() if snapshot else statements.CreateDatabase(name, attached, option, tuple(files))


def _check_follower(cursor: TokenCursor) -> None:
    """Refuses unknown words here: they decide whether the database is attached, and what happens to its conversations."""
    expected = _FOLLOWERS.get(cursor.key, ())
    if expected and cursor.ahead(1).key not in expected:
        cursor.take()
        cursor.fail(f"expected one of {', '.join(sorted(expected))}")


def _alter_database(cursor: TokenCursor) -> Statement:
    current = cursor.key == "CURRENT"
    name = None if current else subject_name(cursor)
    if current:
        cursor.subject = f"{cursor.subject} {cursor.take().key}"
    if cursor.accept("MODIFY", "NAME"):
        cursor.expect("=")
        return statements.AlterDatabase(name, None, cursor.name(), "")
    if not cursor.accept("SET"):
        if cursor.key not in ("ADD", "REMOVE", "MODIFY", "COLLATE", "PERFORM_CUTOVER"):
            cursor.fail("expected SET")
        cursor.take()
        skip_rest(cursor)
        return statements.Skipped()
    option, honor_priority, ignored = _set_options(cursor)
    if cursor.accept("WITH"):
        _termination(cursor)
    if option is None and honor_priority is None:
        return statements.Skipped()
    return statements.AlterDatabase(name, option, None, ", ".join(ignored), honor_priority)


def _set_options(cursor: TokenCursor) -> tuple[BrokerOption | None, bool | None, list[str]]:
    option: BrokerOption | None = None
    honor_priority: bool | None = None
    ignored = []
    while True:
        key = cursor.key
        if key in _BROKER_OPTIONS:
            if option is not None:
                raise cursor.error(f"{key} after {option}: only one broker option is allowed")
            option = cast("BrokerOption", cursor.take().key)
        elif cursor.scope == "objects" and cursor.accept("HONOR_BROKER_PRIORITY"):
            honor_priority = on_or_off(cursor)
        else:
            if cursor.token.kind != "word" or key in STATEMENT_WORDS:
                cursor.fail("expected an option")
            ignored.append(key)
            depth = 0
            while not cursor.at_end and (depth or cursor.key not in STATEMENT_WORDS | {";", ",", "WITH"}):
                depth += (cursor.key == "(") - (cursor.key == ")")
                cursor.take()
            if depth:
                cursor.fail("unbalanced parentheses")
            cursor.expect_complete()
        if not cursor.accept(","):
            return option, honor_priority, ignored


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


_ROUTING_GRAMMAR: Final[dict[str, Callable[[TokenCursor], Statement]]] = {
    "USE": _use,
    "CREATE ROUTE": _create_route,
    "ALTER ROUTE": lambda cursor: statements.AlterRoute(subject_name(cursor), _route_clauses(cursor)),
    "DROP ROUTE": lambda cursor: statements.DropRoute(subject_name(cursor)),
    "CREATE DATABASE": _create_database,
    "ALTER DATABASE": _alter_database,
    "DROP DATABASE": _drop_database,
    "CREATE QUEUE": parser_objects.create_queue,
    "ALTER QUEUE": parser_objects.alter_queue,
    "DROP QUEUE": parser_objects.drop_queue,
    "CREATE SERVICE": parser_objects.create_service,
    "ALTER SERVICE": parser_objects.alter_service,
    "DROP SERVICE": lambda cursor: statements.DropService(subject_name(cursor)),
    "CREATE ENDPOINT": lambda cursor: parser_objects.create_endpoint(cursor, subject_name(cursor)),
    "ALTER ENDPOINT": lambda cursor: parser_objects.alter_endpoint(cursor, subject_name(cursor)),
    "DROP ENDPOINT": lambda cursor: statements.DropEndpoint(subject_name(cursor)),
}
# Statements that do not affect routing, but are executed by a running instance.
_OBJECT_GRAMMAR: Final[dict[str, Callable[[TokenCursor], Statement]]] = {
    "CREATE MESSAGE TYPE": parser_objects.create_message_type,
    "ALTER MESSAGE TYPE": parser_objects.alter_message_type,
    "DROP MESSAGE TYPE": lambda cursor: statements.DropMessageType(subject_name(cursor)),
    "CREATE CONTRACT": parser_objects.create_contract,
    "DROP CONTRACT": lambda cursor: statements.DropContract(subject_name(cursor)),
    "CREATE BROKER PRIORITY": parser_objects.create_priority,
    "ALTER BROKER PRIORITY": parser_objects.alter_priority,
    "DROP BROKER PRIORITY": lambda cursor: statements.DropPriority(subject_name(cursor)),
}
_GRAMMARS: Final[dict[StatementScope, dict[str, Callable[[TokenCursor], Statement]]]] = {
    "routing": _ROUTING_GRAMMAR,
    "objects": {**_ROUTING_GRAMMAR, **_OBJECT_GRAMMAR, **parser_objects.SECURITY_GRAMMAR},
}
_VERBS: Final = frozenset({"CREATE", "ALTER", "DROP"}) | parser_objects.SECURITY_VERBS


# Reserved words that start a statement anywhere outside parentheses.
_STATEMENT_STARTERS: Final = frozenset(
    {
        "BACKUP",
        "BEGIN",
        "COMMIT",
        "CREATE",
        "DBCC",
        "DECLARE",
        "DENY",
        "GOTO",
        "KILL",
        "PRINT",
        "RAISERROR",
        "RECONFIGURE",
        "RESTORE",
        "RETURN",
        "REVOKE",
        "ROLLBACK",
        "TRUNCATE",
        "USE",
        "WAITFOR",
        "WHILE",
    }
)
# Words that start a statement if they are first on a line, unless the current statement may contain them.
_LINE_STARTERS: Final = {
    "ALTER": ("ALTER",),
    "DELETE": ("ALTER", "CREATE", "MERGE", "WITH"),
    "DROP": ("ALTER",),
    "EXEC": ("INSERT",),
    "EXECUTE": ("INSERT",),
    "INSERT": ("MERGE", "WITH"),
    "SELECT": ("CREATE", "DECLARE", "INSERT", "SELECT", "WITH"),
    "SEND": (),
    "SET": ("ALTER", "MERGE", "UPDATE"),
    "UPDATE": ("ALTER", "CREATE", "DECLARE", "MERGE", "SELECT", "WITH"),
}
_PERMISSIONS: Final = ("GRANT", "DENY", "REVOKE")
_NOT_A_BLOCK: Final = ("TRAN", "TRANSACTION", "DISTRIBUTED", "DIALOG", "CONVERSATION")
_MODULES: Final = ("PROCEDURE", "PROC", "FUNCTION", "TRIGGER", "VIEW")


def skip_statement(cursor: TokenCursor) -> tuple[str, ...]:
    """Moves past the statement at the cursor; returns the known statements inside it."""
    contained: list[str] = []
    _skip(cursor, contained)
    return tuple(dict.fromkeys(contained))


def _skip(cursor: TokenCursor, contained: list[str]) -> None:
    key = cursor.key
    if key in ("IF", "WHILE"):
        _skip_conditional(cursor, contained)
    elif _opens_block(cursor):
        _skip_block(cursor, contained)
    elif _reaches_batch_end(cursor):
        cursor.skip_to_end()
    elif key == ":" and cursor.is_first_on_line():
        _skip_line(cursor)
    elif (key == "END" and cursor.ahead(1).key != "CONVERSATION") or key == "ELSE":
        cursor.fail(f"{key} without {'BEGIN' if key == 'END' else 'IF'}")
    else:
        _skip_simple(cursor)


def _skip_simple(cursor: TokenCursor) -> None:
    head = cursor.take().key
    if head in ("BEGIN", "END"):
        cursor.take()
    permissions = head in _PERMISSIONS  # `GRANT CREATE ROUTE TO ...` is not a CREATE ROUTE
    depth = cases = 0
    while not cursor.at_end:
        key = cursor.key
        if depth == 0 and cases == 0 and not permissions:
            if key in (";", "ELSE", "END") or _starts_statement(cursor, head):
                break
        elif key == ";" and depth == 0:
            break
        depth += (key == "(") - (key == ")")
        cases += (key == "CASE") - (key == "END")
        permissions = permissions and not (depth == 0 and key in ("TO", "FROM"))
        cursor.take()
    if depth > 0:
        cursor.fail("unbalanced parentheses")


def _starts_statement(cursor: TokenCursor, head: str) -> bool:
    """Returns whether another statement starts here, after one that starts with `head`."""
    key, follower = cursor.key, cursor.ahead(1).key
    if key == "IF":
        return follower != "EXISTS" or cursor.ahead(2).key == "("  # not DROP TABLE IF EXISTS
    if key == "GRANT":
        return follower != "OPTION"
    if key in _STATEMENT_STARTERS or known_statement(cursor) is not None:
        return True
    return key in _LINE_STARTERS and head not in _LINE_STARTERS[key] and cursor.is_first_on_line()


def _opens_block(cursor: TokenCursor) -> bool:
    return cursor.key == "BEGIN" and cursor.ahead(1).key not in _NOT_A_BLOCK


def _skip_block(cursor: TokenCursor, contained: list[str]) -> None:
    depth = 0
    while True:
        if cursor.at_end:
            cursor.fail("expected END")
        verb = known_statement(cursor)
        if verb is not None:
            contained.append(verb)
        if cursor.key == "CASE" or _opens_block(cursor):
            depth += 1
        elif cursor.key == "END" and cursor.ahead(1).key != "CONVERSATION":
            depth -= 1
        cursor.take()
        if depth == 0:
            if cursor.key in ("TRY", "CATCH"):
                cursor.take()
            return


def _skip_conditional(cursor: TokenCursor, contained: list[str]) -> None:
    """Moves past IF with its ELSE, or WHILE, at any nesting depth; `heads` are the ones whose body has not been read yet."""
    heads: list[str] = []
    while True:
        while cursor.key in ("IF", "WHILE"):
            heads.append(cursor.take().key)
            _skip_condition(cursor, heads[-1])
        _skip_body(cursor, contained)
        while heads:
            if heads.pop() == "IF" and (cursor.accept(";", "ELSE") or cursor.accept("ELSE")):
                heads.append("ELSE")
                break
        if not heads:
            return


def _skip_condition(cursor: TokenCursor, head: str) -> None:
    """Moves to the first word that starts a statement."""
    depth = cases = 0
    while depth > 0 or cases > 0 or cursor.key not in STATEMENT_WORDS:
        if cursor.at_end or cursor.key == ";":
            cursor.fail(f"expected a statement after {head}")
        depth += (cursor.key == "(") - (cursor.key == ")")
        cases += (cursor.key == "CASE") - (cursor.key == "END")
        cursor.take()


def _skip_body(cursor: TokenCursor, contained: list[str]) -> None:
    if cursor.at_end or cursor.key == ";":
        cursor.fail("expected a statement")
    verb = known_statement(cursor)
    if verb is None:
        _skip(cursor, contained)
        return
    contained.append(verb)
    subject = cursor.subject
    parse_statement(cursor, verb)
    cursor.subject = subject


def _reaches_batch_end(cursor: TokenCursor) -> bool:
    """Returns whether the statement takes the rest of the batch: RETURN, or a procedure, function, trigger or view."""
    if cursor.key == "RETURN":
        return True
    if cursor.key not in ("CREATE", "ALTER"):
        return False
    noun = cursor.ahead(3).key if (cursor.ahead(1).key, cursor.ahead(2).key) == ("OR", "ALTER") else cursor.ahead(1).key
    return noun in _MODULES


def _skip_line(cursor: TokenCursor) -> None:
    """Moves past a sqlcmd command: `:setvar`, `:on error exit`."""
    cursor.take()
    while not cursor.at_end and not cursor.is_first_on_line():
        cursor.take()


_SHOWN_CHARACTERS_MAX: Final = 60


@dataclass(slots=True)
class ParsedStatement:
    """A statement with its position in the script."""

    statement: Statement
    subject: str
    start: int
    end: int
    annotations: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParsedBatch:
    """The statements of a batch, and its annotations about the instance."""

    statements: list[ParsedStatement]
    instance_annotations: list[tuple[int, str, str]]
    """Position, key and value of each."""


def parse(source: ScriptSource, batch: ScriptBatch, *, scope: StatementScope = "routing") -> ParsedBatch:
    """Parses the statements of a batch and assigns annotations to them."""
    statements = list(_statements(source, batch, scope))
    return ParsedBatch(statements, list(_assign_annotations(source, batch, statements)))


def _statements(source: ScriptSource, batch: ScriptBatch, scope: StatementScope) -> Iterator[ParsedStatement]:
    cursor = TokenCursor(source, batch.tokens, scope=scope)
    while not cursor.at_end:
        if cursor.accept(";"):
            continue
        cursor.begin_statement()
        verb = known_statement(cursor)
        statement = Skipped(skip_statement(cursor)) if verb is None else parse_statement(cursor, verb)
        if verb is not None and not _ends_here(cursor):
            cursor.fail("expected the end of the statement")
        subject = cursor.subject
        if subject is None or isinstance(statement, Skipped):
            subject = _shortened(cursor.summary())
        end = cursor.token.end if cursor.key == ";" else cursor.previous_end
        yield ParsedStatement(statement, subject, cursor.start, end)


def _ends_here(cursor: TokenCursor) -> bool:
    """Returns whether the statement ends here: at a semicolon, the batch end, a label, a sqlcmd command or another statement."""
    return cursor.at_end or cursor.key in STATEMENT_WORDS | {";", ":"} or cursor.ahead(1).key == ":"


def _assign_annotations(
    source: ScriptSource, batch: ScriptBatch, statements: list[ParsedStatement]
) -> Iterator[tuple[int, str, str]]:
    """Assigns annotations to the statement that surrounds or precedes them on the line; yields those about the instance."""
    starts = [parsed.start for parsed in statements]
    for note in batch.annotations:
        index = bisect_right(starts, note.start) - 1
        owner = statements[index] if index >= 0 else None
        if owner is not None and source.line(note.start) > source.line(owner.end - 1):
            owner = None
        for key, value in note.values:
            if owner is not None and isinstance(owner.statement, Skipped):
                continue
            if key in INSTANCE_ANNOTATION_KEYS:
                yield note.start, key, value
            elif owner is None:
                raise source.error(note.start, f"the annotation {key} does not follow a statement on its line")
            elif owner.annotations.setdefault(key, value) != value:
                raise source.error(
                    note.start, f"the annotation {key} is specified more than once", subject=owner.subject
                )


def _shortened(text: str) -> str:
    words = " ".join(text[: 10 * _SHOWN_CHARACTERS_MAX].split())
    return words if len(words) <= _SHOWN_CHARACTERS_MAX else words[:_SHOWN_CHARACTERS_MAX] + "..."
