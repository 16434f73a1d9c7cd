"""What says nothing about routing is skipped with a warning, and nothing within it is run."""

from __future__ import annotations

import re
import warnings

import pytest

from ssbroker import ddl
from ssbroker.ddl.lexer import ScriptSource, batches
from ssbroker.ddl.parser import parse
from ssbroker.exceptions import DdlError, DdlWarning
from tests.unit.scripted import NOW, names, refused, skipped

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
"""What is told of statements of which no argument is."""


def without_strings(statement: str) -> str:
    return re.sub(r"N?'(?:[^']|'')*'", "'...'", statement)


@pytest.mark.parametrize("statement", OTHER_STATEMENTS)
@pytest.mark.parametrize("before", ["USE Sales;", "USE Sales"])
@pytest.mark.parametrize("end", [";", "", " "])
def test_another_statement_is_skipped_and_the_next_one_is_run(statement: str, before: str, end: str) -> None:
    script, said = skipped(before, f"{statement}{end}", "CREATE ROUTE After WITH ADDRESS = 'LOCAL'")
    assert names(script) == ["AutoCreatedLocal", "After"]
    told = CALLS.get(statement, without_strings(statement))
    shown = told if len(told) <= 60 else told[:60] + "..."
    assert said == [f"routes.sql:2: {shown}: skipped, it says nothing about routing"]


@pytest.mark.parametrize("statement", [s for s in OTHER_STATEMENTS if s != "label:"])
def test_another_statement_on_the_same_line_begins_by_itself(statement: str) -> None:
    script, said = skipped(f"USE Sales; PRINT 1 {statement} CREATE ROUTE After WITH ADDRESS = 'LOCAL'")
    assert names(script) == ["AutoCreatedLocal", "After"]
    assert said[0].startswith("routes.sql:1: PRINT 1")


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
def test_a_block_is_skipped_whole(block: str, before: str, end: str) -> None:
    inner = "CREATE ROUTE Inner WITH ADDRESS = 'LOCAL'"
    script, said = skipped(
        "USE Sales", before + block.format(inner=inner) + end, "CREATE ROUTE After WITH ADDRESS = 'LOCAL'"
    )
    assert names(script) == ["AutoCreatedLocal", "After"]
    assert [line for line in said if line.endswith("skipped whole, with the CREATE ROUTE in it")] == said[-1:]


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
def test_what_a_condition_holds_ends_where_it_ends(inner: str) -> None:
    script, said = skipped("USE Sales", f"IF @a = 1 {inner} CREATE ROUTE After WITH ADDRESS = 'LOCAL'")
    assert names(script) == ["AutoCreatedLocal", "After"]
    assert len(said) == 1


def test_a_procedure_may_be_run_by_its_name_alone_at_the_beginning_of_a_batch() -> None:
    script, said = skipped("sp_who 'active'", "USE Sales", "GO", "dbo.p @a = 1, @b = N'USE HR'")
    assert names(script) == ["AutoCreatedLocal"]
    assert [line.split(": ")[1] for line in said] == ["sp_who '...'", "dbo.p ..."]


def test_a_block_names_what_it_holds_once() -> None:
    _, said = skipped("BEGIN DROP ROUTE A CREATE ROUTE A WITH ADDRESS = 'LOCAL' DROP ROUTE B USE C END")
    shown = "BEGIN DROP ROUTE A CREATE ROUTE A WITH ADDRESS = '...' DROP ..."
    assert said == [f"routes.sql:1: {shown}: skipped whole, with the DROP ROUTE, CREATE ROUTE, USE in it"]


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
def test_a_module_and_return_reach_to_the_end_of_the_batch(head: str) -> None:
    script, said = skipped(
        "USE Sales",
        "GO",
        head,
        "CREATE ROUTE Inner WITH ADDRESS = 'LOCAL'; END; DROP ROUTE AutoCreatedLocal",
        "GO",
        "CREATE ROUTE After WITH ADDRESS = 'LOCAL'",
    )
    assert names(script) == ["AutoCreatedLocal", "After"]
    assert len(said) == 1
    assert said[0].startswith(f"routes.sql:3: {head}")


def test_commands_of_sqlcmd_are_a_line_each() -> None:
    script, said = skipped(
        ":setvar Name Sales", ":on error exit", "USE Sales", ":r other.sql", "CREATE ROUTE R WITH ADDRESS = 'LOCAL'"
    )
    assert names(script) == ["AutoCreatedLocal", "R"]
    assert [line.split(": ")[1] for line in said] == [":setvar ...", ":on ...", ":r ..."]


def test_each_skipped_statement_has_its_warning() -> None:
    _, said = skipped(
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
    assert [line.split(": ")[1] for line in said] == [
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
    ("line", "says"),
    [
        ("BEGIN PRINT 'x'", "END was expected"),
        ("BEGIN TRY PRINT 'x'; GO", "END was expected"),
        ("PRINT 'x' END", "END without its BEGIN"),
        ("PRINT 'x'; ELSE PRINT 'y'", "ELSE without its IF"),
        ("IF 1 = 1", "a statement was expected after IF"),
        ("IF 1 = 1; PRINT 'x'", "a statement was expected after IF"),
        ("WHILE (1 = 1 PRINT 'x'", "a statement was expected after WHILE"),
        ("SELECT (1", "the parentheses do not match"),
        ("IF 1 = 1 CREATE ROUTE X WITH", "a clause was expected"),
    ],
)
def test_what_does_not_say_how_far_it_reaches_is_refused(line: str, says: str) -> None:
    error = refused("USE Sales", "GO", line)
    assert (error.line, error.number) == (3, 102)
    assert says in str(error)


def test_a_warning_without_a_file_names_the_line_and_points_at_the_caller() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ddl.read("USE Sales\nPRINT 1", now=NOW)
    assert [(str(w.message), w.category, w.filename) for w in caught] == [
        ("line 2: PRINT 1: skipped, it says nothing about routing", DdlWarning, __file__)
    ]


@pytest.mark.parametrize(
    ("script", "holds"),
    [
        ("IF 1 = 1 " * 5000 + "CREATE QUEUE Q", "CREATE QUEUE"),
        ("WHILE 1 = 1 " * 5000 + "CREATE QUEUE Q", "CREATE QUEUE"),
        ("IF 1 = 1 PRINT 'a' ELSE " * 5000 + "CREATE QUEUE Q", "CREATE QUEUE"),
        ("IF 1 = 1 " * 5000 + "PRINT 'a' " + "ELSE DROP QUEUE Q " * 5000, "DROP QUEUE"),
    ],
)
def test_conditions_may_stand_in_each_other_as_deep_as_they_like(script: str, holds: str) -> None:
    read_script, said = skipped(f"USE Sales; {script}; CREATE ROUTE After WITH ADDRESS = 'LOCAL'")
    assert names(read_script) == ["AutoCreatedLocal", "After"]
    assert len(said) == 1
    assert said[0].endswith(f"skipped whole, with the {holds} in it")


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
def test_a_warning_tells_no_password(statement: str) -> None:
    _, said = skipped("USE Sales", statement.format("0xHush"))
    assert "Hush" not in said[0]
    assert f": {statement.partition(' ')[0]}" in said[0]


def test_a_call_without_exec_tells_no_argument() -> None:
    _, said = skipped("sp_addlogin Ann, Hush", "GO", "sp_addlogin 'Ann', 'Hush'", "GO", "master.dbo.sp_addlogin 'Hush'")
    assert [one.rpartition(": ")[0] for one in said] == [
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
def test_a_syntax_error_tells_no_password(statement: str) -> None:
    source = ScriptSource(statement.format("Hush"), "keys.sql")
    with pytest.raises(DdlError, match="syntax error near") as told:
        [parse(source, batch, reading="objects") for batch in batches(source)]
    assert "Hush" not in str(told.value)
