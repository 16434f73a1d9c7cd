"""Truncated statements raise a syntax error that names the place, and nothing runs."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ssbroker.ddl.lexer import ScriptSource, Token, batches
from ssbroker.ddl.parser import parse
from ssbroker.ddl.reader import read
from ssbroker.exceptions import DdlError

ROOT = Path(__file__).parents[2]
NOW = datetime(2026, 11, 20, tzinfo=UTC)


def scripts() -> list[str]:
    """Returns the scripts in the documents and the examples."""
    pages = [page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").rglob("*.md"))]
    blocks = [block for page in pages for block in re.findall(r"```sql\n(.*?)```", page, re.DOTALL)]
    executed = [
        block for page in pages for block in re.findall(r'(?<!connection\.)execute\(\s*"""(.*?)"""', page, re.DOTALL)
    ]
    files = [file.read_text(encoding="utf-8") for file in sorted((ROOT / "examples").rglob("*.sql"))]
    return [*blocks, *executed, *files]


def tokens(text: str) -> list[Token]:
    return [token for batch in batches(ScriptSource(text, None)) for token in batch.tokens]


def statements(text: str) -> list[str]:
    source = ScriptSource(text, None)
    return [
        source.text[parsed.start : parsed.end]
        for batch in batches(source)
        for parsed in parse(source, batch).statements
    ]


def refused(text: str) -> str | None:
    """Returns the message of the error that a script raises."""
    try:
        statements(text)
    except DdlError as error:
        return str(error)
    return None


def test_statements_of_the_documents_truncated_anywhere() -> None:
    """They are read, or refused with their line. Unclosed strings and names are refused."""
    found = {statement for script in scripts() for statement in statements(script)}
    assert len(found) > 50
    for statement in sorted(found):
        for token in tokens(statement):
            for cut in {token.start, token.end, *([token.end - 1] if token.kind in ("string", "name") else [])}:
                is_open = token.kind in ("string", "name") and token.start < cut < token.end and not token.key
                message = refused(statement[:cut])
                assert message is not None or not (is_open and statement[token.start] in "'[\"")
                assert message is None or re.match(r"line \d+: ", message), statement[:cut]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CREATE ROUTE x WITH", "error 102: syntax error at the end of the batch: expected a clause"),
        (
            "CREATE ENDPOINT e STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR",
            "expected the purpose of the endpoint",
        ),
        ("ALTER ENDPOINT e FOR", "expected the purpose of the endpoint"),
        ("CREATE DATABASE d ON", "expected the files"),
        ("CREATE DATABASE d ON (FILENAME = 'a') LOG", "expected the rest of the statement"),
        ("CREATE DATABASE d ON (FILENAME = 'a') LOG ON", "expected the files"),
        ("CREATE DATABASE d ON (FILENAME = 'a') FOR", "expected the rest of the statement"),
        ("CREATE DATABASE d ON (FILENAME = 'a') FOR ATTAC", "expected one of ATTACH, ATTACH_REBUILD_LOG"),
        ("CREATE DATABASE d ON (FILENAME = 'a') FOR ATTACH WITH", "expected the rest of the statement"),
        ("CREATE DATABASE d ON (FILENAME = 'a') FOR ATTACH WITH NEW_BROKE", "NEW_BROKER, RESTRICTED_USER"),
        ("CREATE DATABASE d AS SNAPSHOT", "expected the rest of the statement"),
        ("ALTER DATABASE d SET DISABLE_BROKER, RECOVERY (", "unbalanced parentheses"),
        ("ALTER DATABASE d SET DISABLE_BROKER, RECOVERY =", "expected the rest of the statement"),
        ("ALTER DATABASE d SET DISABLE_BROKER, RECOVERY SIMPLE WITH", "expected ROLLBACK"),
        ("CREATE QUEUE q WITH", "expected STATUS, RETENTION, ACTIVATION or POISON_MESSAGE_HANDLING"),
        ("IF 1 = 1 DROP ROUTE r ELSE", "expected a statement"),
        ("IF 1 = 1", "expected a statement after IF"),
        ("CREATE ROUTE x WITH ADDRESS = 'LOCAL", "error 105: unclosed quotation mark '"),
        ("CREATE ROUTE [x", "error 105: unclosed name: [ without a closing ]"),
    ],
)
def test_error_of_truncated_statement(text: str, expected: str) -> None:
    """The statement ends at the end of the script, of the batch, or at a semicolon."""
    for ending in ("", "\nGO\nDROP ROUTE r", ";"):
        if ending and "unclosed " in expected:
            continue
        with pytest.raises(DdlError, match=re.escape("line 3: ")) as caught:
            read(f"-- a\nUSE d\n{text}{ending}", now=NOW)
        assert expected.replace(
            "at the end of the batch", "near ;" if ending == ";" else "at the end of the batch"
        ) in str(caught.value)


def test_options_of_a_new_database_are_not_validated() -> None:
    """Each version of SQL Server adds more of them."""
    script = read("CREATE DATABASE d COLLATE Latin1_General_BIN2 WITH ZONE_REDUNDANT = ON", now=NOW)
    assert "d" in script.databases["name"].to_pylist()
