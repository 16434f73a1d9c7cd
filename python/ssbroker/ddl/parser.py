"""Parses scripts into statements by recursive descent; skips statements that are not about Service Broker."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, cast

from ssbroker.ddl import parser_objects, statements
from ssbroker.ddl.lexer import INSTANCE_KEYS, ScriptBatch, ScriptSource
from ssbroker.ddl.parser_base import STATEMENT_WORDS, Reading, TokenCursor, named, on_or_off, owner, skip_rest
from ssbroker.ddl.statements import BrokerOption, Clauses, Skipped, Statement

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


def known(cursor: TokenCursor) -> str | None:
    """The verb and noun of the known statement that begins here, None where there is none."""
    if cursor.key == "USE":
        return "USE"
    if cursor.key not in _VERBS or (
        cursor.key in parser_objects.PERMISSIONS and not parser_objects.is_permission_on_service(cursor)
    ):
        return None
    nouns = (cursor.ahead(1).key, cursor.ahead(2).key, cursor.ahead(3).key)
    for verb in (f"{cursor.key} {nouns[0]}", f"{cursor.key} {nouns[0]} {nouns[1]}"):
        if verb in _GRAMMARS[cursor.reading] and nouns not in _OTHER_OBJECTS:
            return verb
    return None


def parse_known(cursor: TokenCursor, verb: str) -> Statement:
    """The statement that `known` saw."""
    cursor.subject = verb
    cursor.index += len(verb.split())
    return _GRAMMARS[cursor.reading][verb](cursor)


def _create_route(cursor: TokenCursor) -> Statement:
    name = named(cursor)
    owner(cursor)
    return statements.CreateRoute(name, _clauses(cursor))


def _clauses(cursor: TokenCursor) -> Clauses:
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


def _use(cursor: TokenCursor) -> Statement:
    return statements.UseDatabase(named(cursor))


def _create_database(cursor: TokenCursor) -> Statement:
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


def _check_follower(cursor: TokenCursor) -> None:
    """What follows decides whether a database is made or taken in, and what becomes of its conversations."""
    expected = _FOLLOWERS.get(cursor.key, ())
    if expected and cursor.ahead(1).key not in expected:
        cursor.take()
        cursor.fail(f"one of {', '.join(sorted(expected))} was expected")


def _alter_database(cursor: TokenCursor) -> Statement:
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


def _set_options(cursor: TokenCursor) -> tuple[BrokerOption | None, bool | None, list[str]]:
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


def _termination(cursor: TokenCursor) -> None:
    if cursor.accept("NO_WAIT") or cursor.accept("ROLLBACK", "IMMEDIATE"):
        return
    cursor.expect("ROLLBACK", "AFTER")
    cursor.integer()
    cursor.accept("SECONDS")


def _drop_database(cursor: TokenCursor) -> Statement:
    if_exists = cursor.accept("IF", "EXISTS")
    names = [named(cursor)]
    while cursor.accept(","):
        names.append(cursor.name())
    return statements.DropDatabase(tuple(names), if_exists)


_ROUTING: Final[dict[str, Callable[[TokenCursor], Statement]]] = {
    "USE": _use,
    "CREATE ROUTE": _create_route,
    "ALTER ROUTE": lambda cursor: statements.AlterRoute(named(cursor), _clauses(cursor)),
    "DROP ROUTE": lambda cursor: statements.DropRoute(named(cursor)),
    "CREATE DATABASE": _create_database,
    "ALTER DATABASE": _alter_database,
    "DROP DATABASE": _drop_database,
    "CREATE QUEUE": parser_objects.create_queue,
    "ALTER QUEUE": parser_objects.alter_queue,
    "DROP QUEUE": parser_objects.drop_queue,
    "CREATE SERVICE": parser_objects.create_service,
    "ALTER SERVICE": parser_objects.alter_service,
    "DROP SERVICE": lambda cursor: statements.DropService(named(cursor)),
    "CREATE ENDPOINT": lambda cursor: parser_objects.create(cursor, named(cursor)),
    "ALTER ENDPOINT": lambda cursor: parser_objects.alter(cursor, named(cursor)),
    "DROP ENDPOINT": lambda cursor: statements.DropEndpoint(named(cursor)),
}
# What says nothing about routing, and something to a running instance.
_OBJECTS: Final[dict[str, Callable[[TokenCursor], Statement]]] = {
    "CREATE MESSAGE TYPE": parser_objects.create_message_type,
    "ALTER MESSAGE TYPE": parser_objects.alter_message_type,
    "DROP MESSAGE TYPE": lambda cursor: statements.DropMessageType(named(cursor)),
    "CREATE CONTRACT": parser_objects.create_contract,
    "DROP CONTRACT": lambda cursor: statements.DropContract(named(cursor)),
    "CREATE BROKER PRIORITY": parser_objects.create_priority,
    "ALTER BROKER PRIORITY": parser_objects.alter_priority,
    "DROP BROKER PRIORITY": lambda cursor: statements.DropPriority(named(cursor)),
}
_GRAMMARS: Final[dict[Reading, dict[str, Callable[[TokenCursor], Statement]]]] = {
    "routing": _ROUTING,
    "objects": {**_ROUTING, **_OBJECTS, **parser_objects.GRAMMAR},
}
_VERBS: Final = frozenset({"CREATE", "ALTER", "DROP"}) | parser_objects.VERBS


# Reserved words that begin a statement wherever they stand outside parentheses.
_STARTERS: Final = frozenset(
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
# Words that begin a statement where they stand first on a line, unless the statement before may go on with them.
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


def skip(cursor: TokenCursor) -> tuple[str, ...]:
    """Moves past the statement at the cursor; the known statements within it."""
    holds: list[str] = []
    _skip(cursor, holds)
    return tuple(dict.fromkeys(holds))


def _skip(cursor: TokenCursor, holds: list[str]) -> None:
    key = cursor.key
    if key in ("IF", "WHILE"):
        _skip_conditional(cursor, holds)
    elif _opens_block(cursor):
        _skip_block(cursor, holds)
    elif _reaches_batch_end(cursor):
        cursor.to_end()
    elif key == ":" and cursor.first_on_line():
        _skip_line(cursor)
    elif (key == "END" and cursor.ahead(1).key != "CONVERSATION") or key == "ELSE":
        cursor.fail(f"{key} without its {'BEGIN' if key == 'END' else 'IF'}")
    else:
        _skip_plain(cursor)


def _skip_plain(cursor: TokenCursor) -> None:
    head = cursor.take().key
    if head in ("BEGIN", "END"):
        cursor.take()
    permissions = head in _PERMISSIONS  # `GRANT CREATE ROUTE TO ...` begins no CREATE ROUTE
    depth = cases = 0
    while not cursor.done:
        key = cursor.key
        if depth == 0 and cases == 0 and not permissions:
            if key in (";", "ELSE", "END") or _begins(cursor, head):
                break
        elif key == ";" and depth == 0:
            break
        depth += (key == "(") - (key == ")")
        cases += (key == "CASE") - (key == "END")
        permissions = permissions and not (depth == 0 and key in ("TO", "FROM"))
        cursor.take()
    if depth > 0:
        cursor.fail("the parentheses do not match")


def _begins(cursor: TokenCursor, head: str) -> bool:
    """Whether another statement begins here, after one that began with `head`."""
    key, follower = cursor.key, cursor.ahead(1).key
    if key == "IF":
        return follower != "EXISTS" or cursor.ahead(2).key == "("  # not DROP TABLE IF EXISTS
    if key == "GRANT":
        return follower != "OPTION"
    if key in _STARTERS or known(cursor) is not None:
        return True
    return key in _LINE_STARTERS and head not in _LINE_STARTERS[key] and cursor.first_on_line()


def _opens_block(cursor: TokenCursor) -> bool:
    return cursor.key == "BEGIN" and cursor.ahead(1).key not in _NOT_A_BLOCK


def _skip_block(cursor: TokenCursor, holds: list[str]) -> None:
    depth = 0
    while True:
        if cursor.done:
            cursor.fail("END was expected")
        verb = known(cursor)
        if verb is not None:
            holds.append(verb)
        if cursor.key == "CASE" or _opens_block(cursor):
            depth += 1
        elif cursor.key == "END" and cursor.ahead(1).key != "CONVERSATION":
            depth -= 1
        cursor.take()
        if depth == 0:
            if cursor.key in ("TRY", "CATCH"):
                cursor.take()
            return


def _skip_conditional(cursor: TokenCursor, holds: list[str]) -> None:
    """IF with its ELSE, or WHILE, however deep they stand in each other: `heads` are those whose statement is still to come."""
    heads: list[str] = []
    while True:
        while cursor.key in ("IF", "WHILE"):
            heads.append(cursor.take().key)
            _skip_condition(cursor, heads[-1])
        _skip_inner(cursor, holds)
        while heads:
            if heads.pop() == "IF" and (cursor.accept(";", "ELSE") or cursor.accept("ELSE")):
                heads.append("ELSE")
                break
        if not heads:
            return


def _skip_condition(cursor: TokenCursor, head: str) -> None:
    """It reaches to the first word that begins a statement."""
    depth = cases = 0
    while depth > 0 or cases > 0 or cursor.key not in STATEMENT_WORDS:
        if cursor.done or cursor.key == ";":
            cursor.fail(f"a statement was expected after {head}")
        depth += (cursor.key == "(") - (cursor.key == ")")
        cases += (cursor.key == "CASE") - (cursor.key == "END")
        cursor.take()


def _skip_inner(cursor: TokenCursor, holds: list[str]) -> None:
    if cursor.done or cursor.key == ";":
        cursor.fail("a statement was expected")
    verb = known(cursor)
    if verb is None:
        _skip(cursor, holds)
        return
    holds.append(verb)
    subject = cursor.subject
    parse_known(cursor, verb)
    cursor.subject = subject


def _reaches_batch_end(cursor: TokenCursor) -> bool:
    """RETURN ends the batch; a procedure, function, trigger or view is all of its batch."""
    if cursor.key == "RETURN":
        return True
    if cursor.key not in ("CREATE", "ALTER"):
        return False
    noun = cursor.ahead(3).key if (cursor.ahead(1).key, cursor.ahead(2).key) == ("OR", "ALTER") else cursor.ahead(1).key
    return noun in _MODULES


def _skip_line(cursor: TokenCursor) -> None:
    """A command of sqlcmd: `:setvar`, `:on error exit`."""
    cursor.take()
    while not cursor.done and not cursor.first_on_line():
        cursor.take()


_SHOWN_CHARACTERS_MAX: Final = 60


@dataclass(slots=True)
class ParsedStatement:
    """A statement in its place."""

    statement: Statement
    subject: str
    start: int
    end: int
    annotations: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParsedBatch:
    """The statements of a batch, and the annotations of the instance."""

    statements: list[ParsedStatement]
    instance: list[tuple[int, str, str]]
    """Position, key and value."""


def parse(source: ScriptSource, batch: ScriptBatch, *, reading: Reading = "routing") -> ParsedBatch:
    """The statements of a batch."""
    statements = list(_statements(source, batch, reading))
    return ParsedBatch(statements, list(_attach(source, batch, statements)))


def _statements(source: ScriptSource, batch: ScriptBatch, reading: Reading) -> Iterator[ParsedStatement]:
    cursor = TokenCursor(source, batch.tokens, reading=reading)
    while not cursor.done:
        if cursor.accept(";"):
            continue
        cursor.begin()
        verb = known(cursor)
        statement = Skipped(skip(cursor)) if verb is None else parse_known(cursor, verb)
        if verb is not None and not _may_follow(cursor):
            cursor.fail("the statement should end here")
        subject = cursor.subject
        if subject is None or isinstance(statement, Skipped):
            subject = _first_words(cursor.said())
        end = cursor.token.end if cursor.key == ";" else cursor.end
        yield ParsedStatement(statement, subject, cursor.start, end)


def _may_follow(cursor: TokenCursor) -> bool:
    """Whether a statement may end here: at its semicolon, the end, a label, a command of sqlcmd or another statement."""
    return cursor.done or cursor.key in STATEMENT_WORDS | {";", ":"} or cursor.ahead(1).key == ":"


def _attach(
    source: ScriptSource, batch: ScriptBatch, statements: list[ParsedStatement]
) -> Iterator[tuple[int, str, str]]:
    """Gives each annotation to the statement around it or before it on its line; the rest is the instance's."""
    starts = [parsed.start for parsed in statements]
    for note in batch.annotations:
        index = bisect_right(starts, note.start) - 1
        owner = statements[index] if index >= 0 else None
        if owner is not None and source.line(note.start) > source.line(owner.end - 1):
            owner = None
        for key, value in note.values:
            if owner is not None and isinstance(owner.statement, Skipped):
                continue
            if key in INSTANCE_KEYS:
                yield note.start, key, value
            elif owner is None:
                raise source.error(note.start, f"the annotation {key} stands at the end of no statement")
            elif owner.annotations.setdefault(key, value) != value:
                raise source.error(note.start, f"the annotation {key} is given twice", subject=owner.subject)


def _first_words(text: str) -> str:
    words = " ".join(text[: 10 * _SHOWN_CHARACTERS_MAX].split())
    return words if len(words) <= _SHOWN_CHARACTERS_MAX else words[:_SHOWN_CHARACTERS_MAX] + "..."
