"""The pieces that statements share: their subject, their owner, ON and OFF, and where they end."""

from __future__ import annotations

from ssbroker.ddl.cursor import STATEMENT_WORDS, Cursor


def skip_rest(cursor: Cursor) -> None:
    """Moves to where the statement ends: a semicolon, or a word that begins another statement."""
    depth = 0
    while not cursor.done and (depth or cursor.key not in STATEMENT_WORDS | {";"}):
        depth += (cursor.key == "(") - (cursor.key == ")")
        cursor.take()
    if depth:
        cursor.fail("the parentheses do not match")
    cursor.expect_whole()


def named(cursor: Cursor) -> str:
    """The name of what the statement is about."""
    name = cursor.name()
    cursor.subject = f"{cursor.subject} [{name}]"
    return name


def owner(cursor: Cursor) -> str | None:
    """The name after AUTHORIZATION, if that stands here."""
    return cursor.name() if cursor.accept("AUTHORIZATION") else None


def on_or_off(cursor: Cursor) -> bool:
    """What stands after an option's name: ON or OFF, with = or without."""
    cursor.accept("=")
    if cursor.key not in ("ON", "OFF"):
        cursor.fail("ON or OFF was expected")
    return cursor.take().key == "ON"
