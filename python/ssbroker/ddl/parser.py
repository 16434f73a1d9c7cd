"""Parses batches into statements, including control flow, by recursive descent."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from ssbroker.ddl import statements
from ssbroker.ddl.annotations import INSTANCE_ANNOTATION_KEYS
from ssbroker.ddl.lexer import ScriptBatch, ScriptSource, Token
from ssbroker.ddl.parser_statements import known_statement, parse_statement
from ssbroker.ddl.skipped_statements import is_call_without_exec, skip_condition, skip_other, skip_simple
from ssbroker.ddl.statements import Branch, ParsedStatement, Skipped, Statement, Tokens, walk
from ssbroker.ddl.token_cursor import STATEMENT_WORDS, TokenCursor, on_or_off
from ssbroker.exceptions import DdlError

_SHOWN_CHARACTERS_MAX: Final = 60
_DEPTH_MAX: Final = 100
_NOT_A_BLOCK: Final = ("TRAN", "TRANSACTION", "DISTRIBUTED", "DIALOG", "CONVERSATION")
_MODULES: Final = ("PROCEDURE", "PROC", "FUNCTION", "TRIGGER", "VIEW")
_TEXT_PROCEDURES: Final = frozenset(
    ["sp_foreachdb", "sp_ineachdb", "sp_msforeach_worker", "sp_msforeachdb", "sp_msforeachtable", "sp_prepexec"]
)
"""Procedures that execute the texts in their arguments."""
_RENAME_PARAMETERS: Final = (("@dbname", "@objname"), ("@newname",), ("@objtype",))
"""The names of the parameters of procedures that rename a database, in order."""
_REMOTE_NAME_PARTS: Final = 4
"""The parts of the name of a procedure on a linked server: server, database, schema, name."""
_STATEMENT_START: Final = re.compile(
    r"\b(CREATE|ALTER|DROP)\s+(ROUTE|QUEUE|SERVICE|CONTRACT|MESSAGE\s+TYPE|ENDPOINT|BROKER\s+PRIORITY|"
    r"REMOTE\s+SERVICE\s+BINDING|DATABASE)\b(?!\s+MASTER\b)",
    re.IGNORECASE,
)


_BROKER_OPTION: Final = re.compile(r"BROKER|\bMODIFY\s+NAME\b", re.IGNORECASE)
# The parts of an ALTER DATABASE that concerns Service Broker.
_ALTER_DATABASE: Final = "ALTER DATABASE ..."
_OPTION: Final = "... BROKER"


@dataclass(frozen=True, slots=True)
class ParsedBatch:
    """The statements of a batch, and the batch's annotations about the instance."""

    statements: list[ParsedStatement]
    instance_annotations: list[tuple[int, str, str]]
    """The position, key and value of each annotation."""


def parse(source: ScriptSource, batch: ScriptBatch, *, report: Callable[[DdlError], None] | None = None) -> ParsedBatch:
    """Parses the statements of a batch and assigns annotations to them.

    With `report`, parsing continues with the next statement after a syntax error.
    """
    parsed = list(_statements(source, batch, report))
    return ParsedBatch(parsed, list(_assign_annotations(source, batch, parsed)))


def fragments_in_text(text: str) -> tuple[str, ...]:
    """Returns the statements about Service Broker and databases that a text seems to contain, and parts of ALTER DATABASE.

    The parts are separate fragments, because a script may build an ALTER DATABASE from several texts.

    Examples:
        >>> fragments_in_text("USE Sales; create  route R WITH")
        ('CREATE ROUTE',)
    """
    found = (f"{match[1]} {' '.join(match[2].split())}".upper() for match in _STATEMENT_START.finditer(text))
    fragments = [_ALTER_DATABASE if verb == "ALTER DATABASE" else verb for verb in found]
    return tuple(dict.fromkeys(fragments + [_OPTION] * bool(_BROKER_OPTION.search(text))))


def statements_of(fragments: Iterable[str]) -> tuple[str, ...]:
    """Returns the statements that fragments make up.

    Examples:
        >>> statements_of([*fragments_in_text("ALTER DATABASE ["), *fragments_in_text("] SET NEW_BROKER")])
        ('ALTER DATABASE',)
        >>> statements_of(fragments_in_text("ALTER DATABASE Sales SET RECOVERY FULL"))
        ()
    """
    given = dict.fromkeys(fragments)
    left_out = {_OPTION} if _OPTION in given else {_ALTER_DATABASE}
    return tuple(dict.fromkeys(one.removesuffix(" ...") for one in given if one not in left_out))


def _statements(
    source: ScriptSource, batch: ScriptBatch, report: Callable[[DdlError], None] | None
) -> Iterator[ParsedStatement]:
    cursor = TokenCursor(source, batch.tokens)
    while not cursor.at_end:
        if cursor.accept(";"):
            continue
        first = cursor.index
        try:
            yield _statement(cursor, 0)
        except DdlError as error:
            if report is None:
                raise
            report(error)
            _move_to_next(cursor, first)


_RESUME: Final = frozenset(
    {"ALTER", "BEGIN", "CREATE", "DECLARE", "DROP", "EXEC", "EXECUTE", "GRANT", "IF", "PRINT", "USE"}
)


def _move_to_next(cursor: TokenCursor, first: int) -> None:
    """Moves past a statement with a syntax error: past a semicolon, or to a line whose first word starts a statement."""
    cursor.index = max(cursor.index, first + 1)
    while not cursor.at_end and not (cursor.is_first_on_line() and cursor.key in _RESUME):
        if cursor.take().key == ";":
            return


def _statement(cursor: TokenCursor, depth: int) -> ParsedStatement:
    """Parses the statement at the cursor."""
    cursor.begin_statement()
    first, start = cursor.index, cursor.start
    verb = known_statement(cursor)
    statement = _control_flow(cursor, depth) if verb is None else parse_statement(cursor, verb)
    if verb is not None and not _ends_here(cursor, depth):
        cursor.fail("expected the end of the statement")
    subject = cursor.subject
    if verb is None or subject is None or isinstance(statement, Skipped):
        cursor.begin_statement(first)
        subject = _shortened(cursor.summary())
    if isinstance(statement, statements.AlterDatabase):
        verb = "ALTER DATABASE"  # also if a procedure renames the database
    end = cursor.token.end if cursor.key == ";" else cursor.previous_end
    return ParsedStatement(statement, subject, start, end, None if isinstance(statement, Skipped) else verb)


def _ends_here(cursor: TokenCursor, depth: int) -> bool:
    """Returns whether the statement ends here: at a semicolon, the batch end, a label or another statement."""
    ends = STATEMENT_WORDS | ({";", "ELSE"} if depth else {";"})
    return cursor.at_end or cursor.key in ends or cursor.is_label()


def _control_flow(cursor: TokenCursor, depth: int) -> Statement:
    """Parses control flow, variables, calls and transactions; skips any other statement."""
    key, follower = cursor.key, cursor.ahead(1).key
    if depth > _DEPTH_MAX:
        raise cursor.error(f"the statements are nested in more than {_DEPTH_MAX} levels", number=191)
    if cursor.is_label():
        name = cursor.take().text
        cursor.expect(":")
        return statements.Label(name)
    if (key == "END" and follower != "CONVERSATION") or key == "ELSE":
        cursor.fail(f"{key} without {'BEGIN' if key == 'END' else 'IF'}")
    if key == "BEGIN" and follower not in _NOT_A_BLOCK:
        return _block(cursor, depth)
    if _is_transaction(key, follower):
        return _transaction(cursor)
    if key in ("CREATE", "ALTER") and _module_name(cursor) is not None:
        return _module(cursor, depth)
    is_call = key in ("EXEC", "EXECUTE") and follower not in ("AS", "ON")
    if is_call or is_call_without_exec(cursor):
        return _procedure_call(cursor)
    parse_flow = _FLOW.get(key)
    return _skip(cursor) if parse_flow is None else parse_flow(cursor, depth)


def _skip(cursor: TokenCursor) -> Statement:
    """Moves past any other statement, and finds statements in texts that it may assign to variables."""
    first = cursor.index
    skipped = skip_other(cursor)
    if not isinstance(skipped, Skipped) or not skipped.changed_variables:
        return skipped
    texts = (token.text for token in cursor.tokens_since(first) if token.kind == "string")
    return replace(skipped, holds=fragments_in_text(" ".join(texts)))


def _if(cursor: TokenCursor, depth: int) -> Statement:
    branches: list[Branch] = []
    while True:
        condition = _condition(cursor)
        branches.append(Branch(condition, _body(cursor, depth)))
        if not (cursor.accept(";", "ELSE") or cursor.accept("ELSE")):
            return statements.If(tuple(branches))
        if cursor.key != "IF":
            return statements.If(tuple(branches), _body(cursor, depth))


def _while(cursor: TokenCursor, depth: int) -> Statement:
    condition = _condition(cursor)
    return statements.While(condition, _body(cursor, depth))


def _stop(cursor: TokenCursor, depth: int) -> Statement:
    is_throw = cursor.key == "THROW"
    if depth or is_throw or cursor.has_label_ahead():
        skip_simple(cursor)
    else:
        cursor.skip_to_end()  # nothing after it runs
    return statements.ReturnOrThrow(is_throw)


def _goto(cursor: TokenCursor, _depth: int) -> Statement:
    cursor.take()
    return statements.Goto(cursor.name())


def _condition(cursor: TokenCursor) -> Tokens:
    head = cursor.take().key
    first = cursor.index
    skip_condition(cursor, head)
    return cursor.tokens_since(first)


def _body(cursor: TokenCursor, depth: int) -> tuple[ParsedStatement, ...]:
    """Parses the statement after a condition, or after ELSE."""
    if cursor.at_end or cursor.key == ";":
        cursor.fail("expected a statement")
    first = cursor.first
    parsed = _statement(cursor, depth + 1)
    cursor.begin_statement(first)
    return (parsed,)


def _block(cursor: TokenCursor, depth: int) -> Statement:
    first = cursor.index
    cursor.take()
    part = cursor.take().key if cursor.key in ("TRY", "CATCH") else ""
    body = _until_end(cursor, part, first, depth)
    handler: tuple[ParsedStatement, ...] | None = None
    if part == "TRY" and (cursor.accept(";", "BEGIN", "CATCH") or cursor.accept("BEGIN", "CATCH")):
        handler = _until_end(cursor, "CATCH", first, depth)
    return statements.Block((), body) if part == "CATCH" else statements.Block(body, handler)


def _until_end(cursor: TokenCursor, part: str, first: int, depth: int) -> tuple[ParsedStatement, ...]:
    body: list[ParsedStatement] = []
    while True:
        if cursor.accept(";"):
            continue
        if cursor.at_end:
            cursor.begin_statement(first)
            cursor.fail("expected END")
        if cursor.key == "END" and cursor.ahead(1).key != "CONVERSATION":
            cursor.take()
            if part and cursor.key == part:
                cursor.take()
            cursor.begin_statement(first)
            return tuple(body)
        body.append(_statement(cursor, depth + 1))


def _is_transaction(key: str, follower: str) -> bool:
    return (key in ("BEGIN", "SAVE") and follower in ("TRAN", "TRANSACTION", "DISTRIBUTED")) or key in (
        "COMMIT",
        "ROLLBACK",
    )


def _transaction(cursor: TokenCursor) -> Statement:
    action = cursor.key
    skip_simple(cursor)
    match action:
        case "BEGIN":
            return statements.TransactionControl("BEGIN")
        case "COMMIT":
            return statements.TransactionControl("COMMIT")
        case "SAVE":
            return statements.TransactionControl("SAVE")
        case _:
            return statements.TransactionControl("ROLLBACK")


def _module_name(cursor: TokenCursor) -> int | None:
    """Returns how far ahead the name of the procedure, function, trigger or view is; None if this is a different statement."""
    noun = 3 if (cursor.ahead(1).key, cursor.ahead(2).key) == ("OR", "ALTER") else 1
    return noun + 1 if cursor.ahead(noun).key in _MODULES else None


def _module(cursor: TokenCursor, depth: int) -> Statement:
    """Moves to the end of the batch, which is the body of the module."""
    before = [token.key for token in cursor.tokens_since(0)]
    verb = cursor.key
    cursor.index += _module_name(cursor) or 0
    noun = cursor.ahead(-1).key
    kind = f"{verb} {noun}"
    name = cursor.token.text
    while cursor.ahead(1).key == ".":
        cursor.index += 2
        name = cursor.token.text
    contained, misplaced = _module_body(cursor, is_query=noun in ("FUNCTION", "VIEW"))
    if depth or not (set(before) <= {";"} or before[:2] == ["CREATE", "SCHEMA"]):
        cursor.subject = f"{kind} [{name}]"
        if depth:
            reason = f"{kind} cannot be part of another statement; execute it as text, with EXEC ('{kind} ...')"
            raise cursor.error(reason, number=156)
        raise cursor.error(f"{kind} must be the first statement of a batch; write GO before it", number=111)
    return statements.DefineModule(kind, name, contained, misplaced)


def _module_body(cursor: TokenCursor, *, is_query: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Moves to the end of the batch; returns the known statements in it, and those that probably belong after the module.

    The latter are the statements after the END that closes the body. With `is_query`, for a view or function, whose body
    cannot contain such statements outside of blocks, they are all statements outside of blocks.
    """
    contained: list[str] = []
    misplaced: list[str] = []
    has_ended, is_block, blocks = is_query, False, 0
    while not cursor.at_end:
        key, follower = cursor.key, cursor.ahead(1).key
        known = known_statement(cursor)
        if known is not None and known != "USE":
            contained.append(known)
            misplaced += [known] * (has_ended and blocks == 0)
        if cursor.token.kind == "string":
            contained.extend(fragments_in_text(cursor.token.text))
        if key == "CASE" or (key == "BEGIN" and follower not in _NOT_A_BLOCK):
            is_block |= blocks == 0 and cursor.ahead(-1).key == "AS"
            blocks += 1
        elif key == "END" and follower != "CONVERSATION":
            blocks -= 1
            has_ended |= is_block and blocks == 0
        cursor.take()
    return tuple(dict.fromkeys(contained)), tuple(dict.fromkeys(misplaced))


def _assignment(cursor: TokenCursor, _depth: int) -> Statement:
    """Parses DECLARE, SET or SELECT of variables, and SET NOEXEC; skips other statements that start with these words."""
    if cursor.accept("SET", "NOEXEC"):
        return statements.SetNoexec(on_or_off(cursor))
    first = cursor.index
    head = cursor.key
    skipped = _skip(cursor)
    tokens = cursor.tokens_since(first)[1:]
    assignments: list[tuple[str, str, Tokens | None]] = []
    for part in _comma_separated(tokens):
        name = part[0].text if part and part[0].key.startswith("@") else ""
        operator = next((at for at, token in enumerate(part) if token.key == "="), None)
        if not name or any(token.key in ("TABLE", "CURSOR") for token in part[:3]):
            return skipped
        if operator is None:
            if head != "DECLARE":
                return skipped
            assignments.append((name, "=", None))
            continue
        if head != "DECLARE" and operator > 2:  # noqa: PLR2004 - a name and a sign such as +
            return skipped
        sign = part[operator - 1].key if head != "DECLARE" and operator == 2 else ""  # noqa: PLR2004
        if any(token.key == "FROM" for token in _outside_parentheses(part)):
            return skipped
        assignments.append((name, f"{sign}=", part[operator + 1 :]))
    return statements.Assign(tuple(assignments)) if assignments else skipped


def _comma_separated(tokens: Tokens) -> Iterator[Tokens]:
    """Yields the parts of a list between commas outside parentheses."""
    depth = start = 0
    for index, token in enumerate(tokens):
        depth += (token.key == "(") - (token.key == ")")
        if token.key == "," and depth == 0:
            yield tokens[start:index]
            start = index + 1
    if start < len(tokens):
        yield tokens[start:]


def _outside_parentheses(tokens: Tokens) -> Iterator[Token]:
    depth = 0
    for token in tokens:
        depth += (token.key == "(") - (token.key == ")")
        if depth == 0:
            yield token


def _procedure_call(cursor: TokenCursor) -> Statement:
    """Parses the call of a procedure, or the execution of a text."""
    first = cursor.index
    skip_simple(cursor)
    tokens = cursor.tokens_since(first)
    if tokens[0].key in ("EXEC", "EXECUTE"):
        tokens = tokens[1:]
    if tokens and tokens[0].key == "(":
        closing = _closing_parenthesis(tokens)
        if closing is None:
            cursor.fail("unbalanced parentheses")
        is_remote = any(token.key == "AT" for token in tokens[closing:])
        return statements.ExecuteText(tokens[1:closing], is_remote=is_remote)
    if len(tokens) > 1 and tokens[0].key.startswith("@") and tokens[1].key == "=":
        tokens = tokens[2:]
    parts = [token.text for token in tokens[:1]]
    rest = tokens[1:]
    while rest[:1] and rest[0].key == ".":
        following = rest[1] if len(rest) > 1 else None
        is_empty = following is None or following.key == "."
        parts.append("" if is_empty or following is None else following.text)
        rest = rest[1:] if is_empty else rest[2:]
    name = parts[-1] if parts else ""
    is_remote = len(parts) == _REMOTE_NAME_PARTS
    arguments = [_split_argument_name(part) for part in _comma_separated(rest)]
    renamed = None if is_remote else _renamed_database(name.lower(), arguments)
    if renamed is not None:
        return renamed
    if name.lower() != "sp_executesql":
        changed = tuple(token.text for token in rest if token.key.startswith("@"))
        is_output = any(token.key in ("OUT", "OUTPUT") for token in rest)
        texts = rest if name.lower() in _TEXT_PROCEDURES else ()
        return statements.CallProcedure(name, changed if is_output else (), texts, is_remote)
    database = parts[-3] if len(parts) > 2 and parts[-3] else None  # noqa: PLR2004 - database, schema, name
    text, *others = arguments or [(None, ())]
    declarations = others[0][1] if others else ()
    return statements.ExecuteText(text[1], database, declarations, tuple(others[1:]), is_remote)


def _renamed_database(procedure: str, arguments: list[tuple[str | None, Tokens]]) -> statements.AlterDatabase | None:
    """Returns the statement for a call that renames a database; None for other calls, and for names that are not literals."""
    values = [value[0].text for _, value in arguments if len(value) == 1 and not value[0].key.startswith("@")]
    is_positional = all(
        name is None or name.lower() in known for (name, _), known in zip(arguments, _RENAME_PARAMETERS, strict=False)
    )
    kinds = {"sp_renamedb": [], "sp_rename": ["DATABASE"]}
    if not is_positional or len(values) < len(arguments) or kinds.get(procedure) != [one.upper() for one in values[2:]]:
        return None
    return statements.AlterDatabase(values[0], None, values[1]) if len(values) > 1 else None


def _closing_parenthesis(tokens: Tokens) -> int | None:
    depth = 0
    for index, token in enumerate(tokens):
        depth += (token.key == "(") - (token.key == ")")
        if depth == 0:
            return index
    return None


def _split_argument_name(part: Tokens) -> tuple[str | None, Tokens]:
    """Splits an argument into its name, if it has one, and its value."""
    if len(part) > 1 and part[0].key.startswith("@") and part[1].key == "=":
        return part[0].text, part[2:]
    return None, part


def _assign_annotations(
    source: ScriptSource, batch: ScriptBatch, parsed_statements: list[ParsedStatement]
) -> Iterator[tuple[int, str, str]]:
    """Assigns annotations to the statement that surrounds them or precedes them on the line; yields annotations about the instance."""
    owners = list(walk(parsed_statements))
    starts = [parsed.start for parsed in owners]
    for note in batch.annotations:
        index = bisect_right(starts, note.start) - 1
        owner = owners[index] if index >= 0 else None
        if owner is not None and source.line(note.start) > source.line(owner.end - 1):
            owner = None
        for key, value in note.values:
            if owner is not None and isinstance(owner.statement, Skipped):
                continue
            if key in INSTANCE_ANNOTATION_KEYS:
                yield note.start, key, value
            elif owner is None:
                raise source.error(note.start, f"the annotation {key} does not follow a statement on the same line")
            elif (first := owner.annotations.setdefault(key, value)) != value:
                raise source.error(
                    note.start,
                    f"the annotation {key} has two values, {first!r:.80} and {value!r:.80}; keep one",
                    subject=owner.subject,
                )


def _shortened(text: str) -> str:
    words = " ".join(text[: 10 * _SHOWN_CHARACTERS_MAX].split())
    return words if len(words) <= _SHOWN_CHARACTERS_MAX else words[:_SHOWN_CHARACTERS_MAX] + "..."


_FLOW: Final[dict[str, Callable[[TokenCursor, int], Statement]]] = {
    "DECLARE": _assignment,
    "GOTO": _goto,
    "IF": _if,
    "RETURN": _stop,
    "SELECT": _assignment,
    "SET": _assignment,
    "THROW": _stop,
    "WHILE": _while,
}
