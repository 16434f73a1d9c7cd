"""Statements that do not affect routing are skipped with a warning, and nothing inside them runs."""

from __future__ import annotations

import re
import warnings

import pytest

from ssbroker import ddl
from ssbroker.ddl.lexer import ScriptSource, batches
from ssbroker.ddl.parser import parse
from ssbroker.exceptions import DdlError, DdlWarning
from tests.ddl.scripts import NOW, names, refused, skipped

OTHER_STATEMENTS = [
    "PRINT 'CREATE ROUTE Inner WITH ADDRESS = ''LOCAL'''",
    "SET NOCOUNT ON",
    "SET QUOTED_IDENTIFIER ON",
    "DECLARE @h uniqueidentifier = NEWID(), @t nvarchar(max)",
    "SELECT CASE WHEN 1 = 1 THEN 2 ELSE 3 END AS [route] FROM sys.routes WHERE name IN (SELECT 'x')",
    "CREATE TABLE dbo.Routes (id int IDENTITY(1, 1), name sysname NULL DEFAULT ('x'))",
    "CREATE MESSAGE TYPE [//Type] VALIDATION = WELL_FORMED_XML",
    "CREATE CONTRACT [//Contract] ([//Type] SENT BY INITIATOR)",
    "CREATE REMOTE SERVICE BINDING b TO SERVICE '//A' WITH USER = u, ANONYMOUS = ON",
    "CREATE BROKER PRIORITY p FOR CONVERSATION SET (PRIORITY_LEVEL = 3)",
    "CREATE EVENT NOTIFICATION n ON SERVER FOR CREATE_DATABASE TO SERVICE '//A', 'current database'",
    "CREATE CERTIFICATE c WITH SUBJECT = 'c', START_DATE = '01/01/2026'",
    "CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'it''s'",
    "ALTER SERVICE MASTER KEY REGENERATE",
    "CREATE DATABASE AUDIT SPECIFICATION s FOR SERVER AUDIT a ADD (SELECT ON dbo.t BY public)",
    "CREATE DATABASE ENCRYPTION KEY WITH ALGORITHM = AES_256",
    "ALTER DATABASE SCOPED CONFIGURATION CLEAR PROCEDURE_CACHE",
    "DROP DATABASE SCOPED CREDENTIAL c",
    "ALTER AUTHORIZATION ON DATABASE::Sales TO sa",
    "ALTER TABLE t DROP CONSTRAINT c",
    "DROP TABLE IF EXISTS t, u",
    "GRANT CREATE ROUTE, ALTER ANY ROUTE, CREATE SERVICE TO u WITH GRANT OPTION",
    "DENY CREATE QUEUE TO [u]",
    "REVOKE GRANT OPTION FOR CREATE ROUTE FROM u CASCADE",
    "GRANT SEND ON SERVICE::[//A] TO public",
    "EXEC sp_executesql N'CREATE ROUTE Inner WITH ADDRESS = N''LOCAL'''",
    "EXEC ('DROP ROUTE AutoCreatedLocal')",
    "EXECUTE AS USER = 'u'",
    "INSERT INTO t EXEC p",
    "UPDATE t SET a = 1 WHERE b IN (SELECT 1)",
    "MERGE t USING u ON t.a = u.a WHEN MATCHED THEN UPDATE SET a = 1 WHEN NOT MATCHED THEN INSERT (a) VALUES (1)",
    "BEGIN TRANSACTION",
    "COMMIT TRAN",
    "BEGIN DISTRIBUTED TRANSACTION",
    "BEGIN DIALOG CONVERSATION @h FROM SERVICE [//A] TO SERVICE '//B' ON CONTRACT [//C] WITH ENCRYPTION = OFF",
    "BEGIN CONVERSATION TIMER (@h) TIMEOUT = 5",
    "SEND ON CONVERSATION @h MESSAGE TYPE [//Type] (N'<x/>')",
    "WAITFOR (RECEIVE TOP (1) * FROM dbo.Q), TIMEOUT 1000",
    "END CONVERSATION @h WITH CLEANUP",
    "BACKUP DATABASE Sales TO DISK = 'x.bak' WITH INIT",
    "RESTORE DATABASE Sales FROM DISK = 'x.bak' WITH NEW_BROKER, MOVE 'a' TO 'b'",
    "RAISERROR ('x', 16, 1) WITH NOWAIT",
    "SELECT 1 OPTION (USE HINT ('FORCE_DEFAULT_CARDINALITY_ESTIMATION'))",
    "label:",
    "GOTO label",
]

CALLS = {
    "EXEC sp_executesql N'CREATE ROUTE Inner WITH ADDRESS = N''LOCAL'''": "EXEC sp_executesql ...",
    "EXEC ('DROP ROUTE AutoCreatedLocal')": "EXEC ( ...",
}
"""The warnings of calls, which omit the arguments."""


def without_strings(statement: str) -> str:
    return re.sub(r"N?'(?:[^']|'')*'", "'...'", statement)


@pytest.mark.parametrize("statement", OTHER_STATEMENTS)
@pytest.mark.parametrize("before", ["USE Sales;", "USE Sales"])
@pytest.mark.parametrize("end", [";", "", " "])
def test_other_statement_is_skipped_and_the_next_one_runs(statement: str, before: str, end: str) -> None:
    script, messages = skipped(before, f"{statement}{end}", "CREATE ROUTE After WITH ADDRESS = 'LOCAL'")
    assert names(script) == ["AutoCreatedLocal", "After"]
    summary = CALLS.get(statement, without_strings(statement))
    shown = summary if len(summary) <= 60 else summary[:60] + "..."
    assert messages == [f"routes.sql:2: {shown}: skipped (does not affect routing)"]


@pytest.mark.parametrize("statement", [s for s in OTHER_STATEMENTS if s != "label:"])
def test_other_statement_on_the_same_line(statement: str) -> None:
    script, messages = skipped(f"USE Sales; PRINT 1 {statement} CREATE ROUTE After WITH ADDRESS = 'LOCAL'")
    assert names(script) == ["AutoCreatedLocal", "After"]
    assert messages[0].startswith("routes.sql:1: PRINT 1")


BLOCKS = [
    "IF 1 = 1 {inner}",
    "IF EXISTS (SELECT * FROM sys.routes WHERE name = 'x') {inner}",
    "IF NOT EXISTS (SELECT 1) AND CASE WHEN 1 = 1 THEN 1 END = 1 {inner}",
    "IF @a = 1 BEGIN {inner} END",
    "IF @a = 1 BEGIN; {inner}; {inner} END; ELSE BEGIN {inner} END",
    "IF @a = 1 PRINT 'a' ELSE {inner}",
    "IF @a = 1 PRINT 'a'; ELSE {inner}",
    "IF @a = 1 IF @b = 2 PRINT 'a' ELSE {inner} ELSE PRINT 'b'",
    "IF @a = 1 {inner} ELSE IF @b = 1 {inner} ELSE {inner}",
    "IF @a = 1 GRANT CREATE ROUTE TO u ELSE {inner}",
    "WHILE @a < 5 {inner}",
    "WHILE 1 = 1 BEGIN {inner}; IF @a = 1 BREAK; SET @a += 1 END",
    "BEGIN {inner} END",
    "BEGIN SELECT CASE WHEN 1 = 1 THEN (CASE 1 WHEN 1 THEN 2 END) END; {inner} END",
    "BEGIN BEGIN TRAN; {inner}; COMMIT; END CONVERSATION @h; BEGIN DIALOG @h FROM SERVICE a TO SERVICE 'b' END",
    "BEGIN TRY {inner} END TRY",
    "BEGIN CATCH {inner} END CATCH",
    "BEGIN {inner} -- ssbroker: route_id=1\nEND",
]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("before", ["", "PRINT 'x' ", "PRINT 'x'; ", "DROP TABLE IF EXISTS t "])
@pytest.mark.parametrize("end", ["", ";"])
def test_block_is_skipped_entirely(block: str, before: str, end: str) -> None:
    inner = "CREATE ROUTE Inner WITH ADDRESS = 'LOCAL'"
    script, messages = skipped(
        "USE Sales", before + block.format(inner=inner) + end, "CREATE ROUTE After WITH ADDRESS = 'LOCAL'"
    )
    assert names(script) == ["AutoCreatedLocal", "After"]
    assert [line for line in messages if line.endswith("skipped entirely, including CREATE ROUTE")] == messages[-1:]


@pytest.mark.parametrize(
    "inner",
    [
        "USE HR",
        "ALTER DATABASE Sales SET DISABLE_BROKER WITH ROLLBACK IMMEDIATE",
        "DROP ROUTE AutoCreatedLocal",
        "CREATE QUEUE Q WITH STATUS = ON ON [DEFAULT]",
        "DROP DATABASE IF EXISTS HR",
    ],
)
def test_condition_ends_with_its_statement(inner: str) -> None:
    script, messages = skipped("USE Sales", f"IF @a = 1 {inner} CREATE ROUTE After WITH ADDRESS = 'LOCAL'")
    assert names(script) == ["AutoCreatedLocal", "After"]
    assert len(messages) == 1


def test_batch_may_start_with_a_procedure_call_without_exec() -> None:
    script, messages = skipped("sp_who 'active'", "USE Sales", "GO", "dbo.p @a = 1, @b = N'USE HR'")
    assert names(script) == ["AutoCreatedLocal"]
    assert [line.split(": ")[1] for line in messages] == ["sp_who '...'", "dbo.p ..."]


def test_warning_lists_each_contained_statement_once() -> None:
    _, messages = skipped("BEGIN DROP ROUTE A CREATE ROUTE A WITH ADDRESS = 'LOCAL' DROP ROUTE B USE C END")
    shown = "BEGIN DROP ROUTE A CREATE ROUTE A WITH ADDRESS = '...' DROP ..."
    assert messages == [f"routes.sql:1: {shown}: skipped entirely, including DROP ROUTE, CREATE ROUTE, USE"]


@pytest.mark.parametrize(
    "head",
    [
        "CREATE PROCEDURE p AS",
        "create proc p @a int = 1 WITH EXECUTE AS OWNER AS",
        "ALTER PROCEDURE p AS BEGIN",
        "CREATE OR ALTER PROCEDURE p AS",
        "CREATE FUNCTION f() RETURNS int AS BEGIN",
        "CREATE TRIGGER t ON dbo.t FOR INSERT AS",
        "ALTER VIEW v AS SELECT 1 AS a",
        "RETURN",
    ],
)
def test_module_and_return_take_the_rest_of_the_batch(head: str) -> None:
    script, messages = skipped(
        "USE Sales",
        "GO",
        head,
        "CREATE ROUTE Inner WITH ADDRESS = 'LOCAL'; END; DROP ROUTE AutoCreatedLocal",
        "GO",
        "CREATE ROUTE After WITH ADDRESS = 'LOCAL'",
    )
    assert names(script) == ["AutoCreatedLocal", "After"]
    assert len(messages) == 1
    assert messages[0].startswith(f"routes.sql:3: {head}")


def test_sqlcmd_commands_end_with_their_line() -> None:
    script, messages = skipped(
        ":setvar Name Sales", ":on error exit", "USE Sales", ":r other.sql", "CREATE ROUTE R WITH ADDRESS = 'LOCAL'"
    )
    assert names(script) == ["AutoCreatedLocal", "R"]
    assert [line.split(": ")[1] for line in messages] == [":setvar ...", ":on ...", ":r ..."]


def test_each_skipped_statement_has_a_warning() -> None:
    _, messages = skipped(
        "SET NOCOUNT ON",
        "DECLARE @a int",
        "SET @a = 1",
        "SELECT @a",
        "INSERT INTO t",
        "SELECT 1",
        "UPDATE t",
        "SET a = 1",
        "DELETE FROM t",
        "EXEC p",
        "DROP TABLE t",
        "ALTER TABLE t",
        "ALTER COLUMN c int",
        "PRINT 1 PRINT 2",
    )
    assert [line.split(": ")[1] for line in messages] == [
        "SET NOCOUNT ON",
        "DECLARE @a int",
        "SET @a = 1",
        "SELECT @a",
        "INSERT INTO t SELECT 1",
        "UPDATE t SET a = 1",
        "DELETE FROM t",
        "EXEC p",
        "DROP TABLE t",
        "ALTER TABLE t ALTER COLUMN c int",
        "PRINT 1",
        "PRINT 2",
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("BEGIN PRINT 'x'", "expected END"),
        ("BEGIN TRY PRINT 'x'; GO", "expected END"),
        ("PRINT 'x' END", "END without BEGIN"),
        ("PRINT 'x'; ELSE PRINT 'y'", "ELSE without IF"),
        ("IF 1 = 1", "expected a statement after IF"),
        ("IF 1 = 1; PRINT 'x'", "expected a statement after IF"),
        ("WHILE (1 = 1 PRINT 'x'", "expected a statement after WHILE"),
        ("SELECT (1", "unbalanced parentheses"),
        ("IF 1 = 1 CREATE ROUTE X WITH", "expected a clause"),
    ],
)
def test_unterminated_blocks_are_refused(line: str, reason: str) -> None:
    error = refused("USE Sales", "GO", line)
    assert (error.line, error.number) == (3, 102)
    assert reason in str(error)


def test_warning_without_a_file_names_the_line_and_points_to_the_caller() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ddl.read("USE Sales\nPRINT 1", now=NOW)
    assert [(str(w.message), w.category, w.filename) for w in caught] == [
        ("line 2: PRINT 1: skipped (does not affect routing)", DdlWarning, __file__)
    ]


@pytest.mark.parametrize(
    ("script", "contained"),
    [
        ("IF 1 = 1 " * 5000 + "CREATE QUEUE Q", "CREATE QUEUE"),
        ("WHILE 1 = 1 " * 5000 + "CREATE QUEUE Q", "CREATE QUEUE"),
        ("IF 1 = 1 PRINT 'a' ELSE " * 5000 + "CREATE QUEUE Q", "CREATE QUEUE"),
        ("IF 1 = 1 " * 5000 + "PRINT 'a' " + "ELSE DROP QUEUE Q " * 5000, "DROP QUEUE"),
    ],
)
def test_conditions_nest_to_any_depth(script: str, contained: str) -> None:
    read_script, messages = skipped(f"USE Sales; {script}; CREATE ROUTE After WITH ADDRESS = 'LOCAL'")
    assert names(read_script) == ["AutoCreatedLocal", "After"]
    assert len(messages) == 1
    assert messages[0].endswith(f"skipped entirely, including {contained}")


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE LOGIN Ann WITH PASSWORD = '{}'",
        "CREATE LOGIN Ann WITH PASSWORD='{}' MUST_CHANGE",
        "CREATE LOGIN Ann WITH PASSWORD = {} HASHED",
        "CREATE CREDENTIAL c WITH IDENTITY = 'x', SECRET = N'{}'",
        "OPEN SYMMETRIC KEY k DECRYPTION BY PASSWORD = '{}'",
        "ALTER LOGIN Ann WITH OLD_PASSWORD = '{}'",
        "CREATE LOGIN Ann WITH /* was '{}' */ CHECK_POLICY = OFF",
        "CREATE SYMMETRIC KEY k WITH KEY_SOURCE = '{}'",
        "SELECT * FROM OPENROWSET('SQLNCLI', 's';'sa';'{}', 'SELECT 1')",
        'EXEC sp_addlogin "Ann", "{}"',
        "EXEC sp_addlogin Ann, {}",
        "EXECUTE @done = master..sp_addlogin Ann, {}",
        "EXEC sp_password @new = N'{}'",
        "IF 1 = 1 EXEC sp_addlogin Ann, {}",
        ":connect server -U sa -P {}",
    ],
)
def test_warning_contains_no_password(statement: str) -> None:
    _, messages = skipped("USE Sales", statement.format("0xHush"))
    assert "Hush" not in messages[0]
    assert f": {statement.partition(' ')[0]}" in messages[0]


def test_warning_of_a_call_without_exec_has_no_arguments() -> None:
    _, messages = skipped(
        "sp_addlogin Ann, Hush", "GO", "sp_addlogin 'Ann', 'Hush'", "GO", "master.dbo.sp_addlogin 'Hush'"
    )
    assert [one.rpartition(": ")[0] for one in messages] == [
        "routes.sql:1: sp_addlogin Ann ...",
        "routes.sql:3: sp_addlogin '...' ...",
        "routes.sql:5: master.dbo.sp_addlogin ...",
    ]


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE MASTER KEY '{}'",
        "CREATE MASTER KEY ENCRYPTION BY '{}'",
        "CREATE MASTER KEY ENCRYPTION BY PASSWORD {}",
        "OPEN MASTER KEY DECRYPTION BY PASSWORD == '{}'",
        "ALTER CERTIFICATE c WITH PRIVATE KEY (FILE = 'c', DECRYPTION BY \"{}\")",
        "BACKUP CERTIFICATE c TO FILE = 'c' WITH PRIVATE KEY (FILE = 'k', '{}')",
    ],
)
def test_syntax_error_contains_no_password(statement: str) -> None:
    source = ScriptSource(statement.format("Hush"), "keys.sql")
    with pytest.raises(DdlError, match="syntax error near") as caught:
        [parse(source, batch, scope="objects") for batch in batches(source)]
    assert "Hush" not in str(caught.value)
