"""Statements that were cut off: a syntax error that says where, and nothing is done (N19, B37)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ssbroker.ddl.interpreter import read
from ssbroker.ddl.lexer import ScriptSource, Token, batches
from ssbroker.ddl.parser import parse
from ssbroker.ddl.parser_base import Reading
from ssbroker.exceptions import DdlError

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 20, tzinfo=UTC)


def scripts() -> list[str]:
    """The scripts of the documents and the examples."""
    pages = [page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").rglob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"```sql\n(.*?)```", page, re.DOTALL)]
    executed = [block for page in pages for block in re.findall(r'execute\(\s*"""(.*?)"""', page, re.DOTALL)]
    files = [file.read_text(encoding="utf-8") for file in sorted((ROOT / "examples").rglob("*.sql"))]
    return [*blocks, *executed, *files]


def tokens(text: str) -> list[Token]:
    return [token for batch in batches(ScriptSource(text, None)) for token in batch.tokens]


def statements(text: str, reading: Reading) -> list[str]:
    source = ScriptSource(text, None)
    return [
        source.text[parsed.start : parsed.end]
        for batch in batches(source)
        for parsed in parse(source, batch, reading=reading).statements
    ]


def refused(text: str, reading: Reading) -> str | None:
    """With which words a script is refused."""
    try:
        statements(text, reading)
    except DdlError as error:
        return str(error)
    return None


@pytest.mark.parametrize("reading", ["routing", "objects"])
def test_statements_of_the_documents_may_be_cut_anywhere(reading: Reading) -> None:
    """They are read, or refused with their line; nothing else is raised. Strings and names that are open are refused."""
    found = {statement for script in scripts() for statement in statements(script, reading)}
    assert len(found) > 50
    for statement in sorted(found):
        for token in tokens(statement):
            for cut in {token.start, token.end, *([token.end - 1] if token.kind in ("string", "name") else [])}:
                is_open = token.kind in ("string", "name") and token.start < cut < token.end and not token.key
                said = refused(statement[:cut], reading)
                assert said is not None or not (is_open and statement[token.start] in "'[\"")
                assert said is None or re.match(r"line \d+: ", said), statement[:cut]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CREATE ROUTE x WITH", "error 102: syntax error at the end of the batch: a clause was expected"),
        (
            "CREATE ENDPOINT e STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR",
            "what the endpoint is for was expected",
        ),
        ("ALTER ENDPOINT e FOR", "what the endpoint is for was expected"),
        ("CREATE DATABASE d ON", "the files were expected"),
        ("CREATE DATABASE d ON (FILENAME = 'a') LOG", "the rest of the statement was expected"),
        ("CREATE DATABASE d ON (FILENAME = 'a') LOG ON", "the files were expected"),
        ("CREATE DATABASE d ON (FILENAME = 'a') FOR", "the rest of the statement was expected"),
        ("CREATE DATABASE d ON (FILENAME = 'a') FOR ATTAC", "one of ATTACH, ATTACH_REBUILD_LOG was expected"),
        ("CREATE DATABASE d ON (FILENAME = 'a') FOR ATTACH WITH", "the rest of the statement was expected"),
        ("CREATE DATABASE d ON (FILENAME = 'a') FOR ATTACH WITH NEW_BROKE", "NEW_BROKER, RESTRICTED_USER was expected"),
        ("CREATE DATABASE d AS SNAPSHOT", "the rest of the statement was expected"),
        ("ALTER DATABASE d SET DISABLE_BROKER, RECOVERY (", "the parentheses do not match"),
        ("ALTER DATABASE d SET DISABLE_BROKER, RECOVERY =", "the rest of the statement was expected"),
        ("ALTER DATABASE d SET DISABLE_BROKER, RECOVERY SIMPLE WITH", "ROLLBACK was expected"),
        ("CREATE QUEUE q WITH", "the rest of the statement was expected"),
        ("IF 1 = 1 DROP ROUTE r ELSE", "a statement was expected"),
        ("IF 1 = 1", "a statement was expected after IF"),
        ("CREATE ROUTE x WITH ADDRESS = 'LOCAL", "error 105: the quotation mark ' is not closed"),
        ("CREATE ROUTE [x", "error 105: the quotation mark [ is not closed"),
    ],
)
def test_what_was_cut_off_is_told(text: str, expected: str) -> None:
    """At the end of the script, of a batch, and at a semicolon."""
    for ending in ("", "\nGO\nDROP ROUTE r", ";"):
        if ending and "is not closed" in expected:
            continue
        with pytest.raises(DdlError, match=re.escape("line 3: ")) as caught:
            read(f"-- a\nUSE d\n{text}{ending}", now=NOW)
        assert expected.replace(
            "at the end of the batch", "near ;" if ending == ";" else "at the end of the batch"
        ) in str(caught.value)


def test_options_of_a_database_that_is_made_are_not_judged() -> None:
    """There are more of them in each version."""
    script = read("CREATE DATABASE d COLLATE Latin1_General_BIN2 WITH ZONE_REDUNDANT = ON", now=NOW)
    assert "d" in script.databases["name"].to_pylist()
