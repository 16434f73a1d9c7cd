"""Parses statements about databases."""

from __future__ import annotations

from typing import Final, cast

from ssbroker._text import did_you_mean
from ssbroker.ddl import statements
from ssbroker.ddl.statements import BrokerOption, Statement
from ssbroker.ddl.system_objects import SYSTEM_DATABASES, canonical_name
from ssbroker.ddl.token_cursor import STATEMENT_WORDS, TokenCursor, on_or_off, skip_rest, subject_name

_BROKER_OPTIONS: Final = frozenset({"ENABLE_BROKER", "DISABLE_BROKER", "NEW_BROKER", "ERROR_BROKER_CONVERSATIONS"})
# The words that may follow each of these words in CREATE DATABASE.
_FOLLOWERS: Final = {
    "FOR": frozenset({"ATTACH", "ATTACH_REBUILD_LOG"}),
    "SNAPSHOT": frozenset({"OF"}),
    "WITH": _BROKER_OPTIONS | {"FILESTREAM", "RESTRICTED_USER"},  # after FOR ATTACH; a new database allows more
}


def create_database(cursor: TokenCursor) -> Statement:
    """Parses CREATE DATABASE after the noun."""
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
            cursor.fail("expected the files in parentheses, such as (FILENAME = '...')")
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
    """Refuses an unknown word after FOR, SNAPSHOT or WITH, which decide about attaching the database and about its conversations."""
    expected = _FOLLOWERS.get(cursor.key, ())
    if expected and cursor.ahead(1).key not in expected:
        cursor.take()
        cursor.fail(f"expected {'one of ' if len(expected) > 1 else ''}{', '.join(sorted(expected))}")


def alter_database(cursor: TokenCursor) -> Statement:
    """Parses ALTER DATABASE after the noun."""
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
            _refuse_misspelled(cursor)
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


def _refuse_misspelled(cursor: TokenCursor) -> None:
    """Refuses an option whose name resembles an option of the broker; other options are not checked."""
    hint = did_you_mean(cursor.key, _BROKER_OPTIONS | {"HONOR_BROKER_PRIORITY"})
    if hint:
        cursor.fail(f"{cursor.key} is not an option of a database{hint}")


def _termination(cursor: TokenCursor) -> None:
    if cursor.accept("NO_WAIT") or cursor.accept("ROLLBACK", "IMMEDIATE"):
        return
    cursor.expect("ROLLBACK", "AFTER")
    cursor.integer()
    cursor.accept("SECONDS")


def drop_database(cursor: TokenCursor) -> Statement:
    """Parses DROP DATABASE after the noun."""
    if_exists = cursor.accept("IF", "EXISTS")
    names = [subject_name(cursor)]
    while cursor.accept(","):
        names.append(cursor.name())
    return statements.DropDatabase(tuple(names), if_exists)


def restore_database(cursor: TokenCursor) -> Statement:
    """Parses RESTORE DATABASE after the noun."""
    option = None
    name = None if cursor.key.startswith("@") else subject_name(cursor)
    while not (cursor.at_end or cursor.key == ";" or cursor.key in STATEMENT_WORDS - {"MOVE"}):
        if cursor.ahead(-1).key in ("WITH", ","):
            if cursor.key not in _BROKER_OPTIONS:
                _refuse_misspelled(cursor)
            elif option is not None:
                cursor.fail("only one broker option is allowed")
            else:
                option = cast("BrokerOption", cursor.key)
        cursor.take()
    cursor.expect_complete()
    if name is None or canonical_name(name) in SYSTEM_DATABASES:
        return statements.Skipped("RESTORE DATABASE")
    return statements.RestoreDatabase(name, option)


def restore_log(cursor: TokenCursor) -> Statement:
    """Parses RESTORE LOG after the noun. With a broker option, the statement ends a restore, as RESTORE DATABASE does; otherwise it is skipped."""
    restored = restore_database(cursor)
    has_option = isinstance(restored, statements.RestoreDatabase) and restored.option is not None
    return restored if has_option else statements.Skipped("RESTORE LOG")
