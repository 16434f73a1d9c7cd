"""Conditions and texts of EXEC are decided by what the script has made so far."""

from __future__ import annotations

import warnings
from typing import Final

import pytest

from ssbroker import ddl
from ssbroker.exceptions import DdlWarning
from tests.ddl.scripts import NOW, names, read, refused, skipped

MADE = """
CREATE DATABASE Sales
USE Sales
CREATE MESSAGE TYPE [//M]
CREATE CONTRACT [//C] ([//M] SENT BY ANY)
CREATE QUEUE Orders WITH STATUS = OFF
CREATE SERVICE [//S] ON QUEUE Orders ([//C])
CREATE ROUTE North WITH SERVICE_NAME = '//N', ADDRESS = 'TCP://north:4022'
CREATE USER Ann WITHOUT LOGIN
CREATE TABLE dbo.Settings (a int)
ALTER DATABASE Sales SET DISABLE_BROKER
CREATE ENDPOINT Broker AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER
DECLARE @two int = 1 + 1, @name sysname, @text nvarchar(20) = N'a' + 'b'
SET @name = 'nor' + 'th'
"""


def verdict(condition: str, *, made: str = MADE, after: str = "") -> str:
    """Returns which branch of IF a condition takes: yes, no, or neither."""
    route = "CREATE ROUTE {} WITH ADDRESS = 'LOCAL'"
    text = f"{made}\nIF {condition} {route.format('Yes')} ELSE {route.format('No')}{after}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DdlWarning)
        found = set(names(ddl.read(text, now=NOW)))
    return "yes" if "Yes" in found else "no" if "No" in found else "neither"


@pytest.mark.parametrize(
    "condition",
    [
        "1 = 1",
        "N'True' LIKE N'true'",
        "'x' IN ('a', 'X')",
        "'ab' LIKE '[a-c][^a]%' AND '[a]' LIKE '[[]_]' AND 'a-b' LIKE '%[-]b' AND 'w' NOT LIKE '[\\d]'",
        "'a.b' NOT LIKE 'a_' AND 'abcb' LIKE '%b' AND 'ab' LIKE '%%a%b%' AND 'axbx' NOT LIKE '%x%a%' AND '' LIKE '%'",
        f"'{'a' * 60}' NOT LIKE '{'%a' * 20}%b'",
        "NOT (1 = 2) AND (2 > 1 OR @unknown = 1)",
        "((1 = 1)) AND (((1 = 2) OR ((DB_ID('Sales')) IS NOT NULL)))",
        "((1) + (2)) = 3 AND (@name) NOT LIKE 'x%' AND (1) IN (1, 2) AND (SELECT 1) = 1",
        f"{'(' * 60}1{')' * 60} = 1 AND {'(' * 40}1 = 1{')' * 40}",
        "@two = 2 AND @text = 'AB' AND @name IS NOT NULL",
        "@two BETWEEN 1 AND 3",
        "DB_ID('SALES') IS NOT NULL",
        "DB_ID(N'Stock') IS NULL",
        "DB_ID('master') = 1 AND DB_ID('tempdb') IS NOT NULL",
        "DB_NAME() = 'sales'",
        "OBJECT_ID('dbo.ORDERS') IS NOT NULL",
        "OBJECT_ID(N'[dbo].[Orders]', 'SQ') > 0",
        "OBJECT_ID('Sales..Orders') IS NOT NULL",
        "OBJECT_ID('dbo.Settings', 'U') IS NOT NULL",
        "OBJECT_ID('tempdb..#x') IS NULL",
        "EXISTS (SELECT * FROM sys.routes WHERE name = 'NORTH')",
        "EXISTS (SELECT 1 FROM sys.routes r WHERE r.name = @name AND r.address LIKE 'tcp://n%')",
        "EXISTS (SELECT name FROM Sales.sys.routes WITH (NOLOCK) WHERE [remote_service_name] = N'//N')",
        "NOT EXISTS (SELECT * FROM sys.services WHERE name = '//s')",
        "EXISTS (SELECT * FROM sys.services WHERE name = '//S')",
        "EXISTS (SELECT * FROM sys.services WHERE name LIKE N'http://schemas.microsoft.com/%')",
        "EXISTS (SELECT * FROM sys.service_contracts WHERE name IN ('//C', '//D'))",
        "NOT EXISTS (SELECT * FROM sys.service_message_types WHERE name = '//m')",
        "EXISTS (SELECT * FROM sys.service_queues WHERE name = 'orders' AND is_receive_enabled = 0)",
        "(SELECT COUNT(*) FROM sys.service_queues WHERE is_ms_shipped = 0) = 1",
        "(SELECT is_broker_enabled FROM sys.databases WHERE name = 'Sales') = 0",
        "EXISTS (SELECT * FROM sys.services AS s JOIN sys.service_queues AS q ON q.object_id = s.service_queue_id WHERE q.name = 'Orders')",
        "EXISTS (SELECT * FROM sys.database_principals WHERE name = N'ann')",
        "NOT EXISTS (SELECT * FROM sys.symmetric_keys WHERE symmetric_key_id = 101)",
        "EXISTS (SELECT * FROM sys.service_broker_endpoints WHERE name = 'broker')",
        "IS_SRVROLEMEMBER(N'sysadmin') = 1",
        "EXISTS (SELECT * FROM sys.tables WHERE name = 'settings')",
        "EXISTS (SELECT * FROM master.dbo.sysdatabases WHERE ('[' + name + ']' = 'Sales' OR name = 'Sales'))",
        "@@TRANCOUNT = 0 AND @@ERROR = 0",
        "ISNULL(@name, 'x') = 'north' AND UPPER(@text) = 'AB' AND LEN('ab ') = 2",
        "CAST(@two AS nvarchar(5)) + 'x' = '2x' AND CONVERT(varchar(5), 3) = '3'",
        "QUOTENAME('a]b') = '[a]]b]' AND REPLACE('aXb', 'x', '-') = 'a-b'",
    ],
)
def test_condition_holds(condition: str) -> None:
    assert verdict(condition) == "yes"
    assert verdict(f"NOT ({condition})") == "no"


EXISTING: Final = "USE Sales\nGO\nCREATE TABLE dbo.Made (a int)\nCREATE SCHEMA app\nGO\nCREATE QUEUE app.Q\nGO\n"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("OBJECT_ID(N'dbo.Orders', N'U') IS NULL", "neither"),
        ("OBJECT_ID('dbo.Orders') IS NOT NULL", "neither"),
        ("OBJECT_ID('msdb.dbo.sysjobs') IS NOT NULL", "neither"),
        ("EXISTS (SELECT * FROM sys.views)", "neither"),
        ("EXISTS (SELECT * FROM sys.tables WHERE name = 'Orders')", "neither"),
        ("'Orders' IN (SELECT name FROM sys.objects)", "neither"),
        ("(SELECT COUNT(*) FROM sys.procedures) = 0", "neither"),
        ("EXISTS (SELECT * FROM sys.objects WHERE object_id = OBJECT_ID('dbo.p') AND type IN ('P', 'PC'))", "neither"),
        ("EXISTS (SELECT * FROM sys.schemas WHERE name = 'other')", "neither"),
        (
            "EXISTS (SELECT * FROM sys.tables t JOIN sys.schemas s ON s.schema_id = t.schema_id WHERE s.name = 'dbo')",
            "neither",
        ),
        ("DB_ID('Billing') IS NULL", "neither"),
        ("EXISTS (SELECT * FROM sys.databases WHERE name LIKE 'Bill%' AND database_id > 4)", "neither"),
        ("(SELECT COUNT(*) FROM sys.databases) = 5", "neither"),
        ("OBJECT_ID('dbo.Made', 'U') IS NOT NULL", "yes"),
        ("EXISTS (SELECT * FROM sys.tables WHERE name = 'made')", "yes"),
        ("'made' IN (SELECT name FROM sys.objects)", "yes"),
        ("OBJECT_ID('app.Q') IS NOT NULL AND OBJECT_ID('dbo.Q') IS NULL", "yes"),
        ("OBJECT_ID('dbo.Orders', 'SQ') IS NULL", "yes"),
        ("EXISTS (SELECT * FROM sys.objects WHERE object_id = OBJECT_ID('dbo.Q'))", "no"),
        ("EXISTS (SELECT * FROM sys.objects WHERE name = 'Orders' AND type = 'SQ')", "no"),
        ("EXISTS (SELECT * FROM sys.service_queues WHERE name = 'Orders')", "no"),
        ("EXISTS (SELECT * FROM sys.services WHERE name = '//Orders')", "no"),
        ("EXISTS (SELECT * FROM sys.schemas WHERE name = 'APP')", "yes"),
        ("DB_ID('sales') IS NOT NULL AND DB_ID() = DB_ID('Sales') AND DB_ID('msdb') = 4", "yes"),
        ("DB_ID('Later') IS NOT NULL AND EXISTS (SELECT * FROM sys.databases WHERE name = 'Altered')", "yes"),
        ("DB_ID('New') IS NULL AND NOT EXISTS (SELECT * FROM sys.databases WHERE name = 'Gone')", "yes"),
        ("DB_ID('Commented') IS NULL", "neither"),
        ("(SELECT COUNT(*) FROM sys.databases WHERE name = 'Sales') = 1", "yes"),
        ("EXISTS (SELECT * FROM sys.databases WHERE database_id = DB_ID() AND is_broker_enabled = 0)", "no"),
        (
            (
                "EXISTS (SELECT * FROM sys.service_queues AS q INNER JOIN sys.schemas AS s ON q.schema_id = s.schema_id "
                "AND QUOTENAME(s.name) = QUOTENAME('app') WHERE QUOTENAME(q.name) = QUOTENAME('q'))"
            ),
            "yes",
        ),
        (
            "EXISTS (SELECT * FROM sys.service_queues q, sys.schemas s WHERE q.schema_id = s.schema_id AND q.name = 'Q' AND s.name = 'dbo')",
            "no",
        ),
        (
            (
                "EXISTS (SELECT 1 FROM sys.services s JOIN sys.service_queues q ON s.service_queue_id = q.object_id "
                "JOIN sys.schemas c ON c.schema_id = q.schema_id WHERE s.name = '//None')"
            ),
            "no",
        ),
    ],
)
def test_a_database_that_the_script_only_uses_may_contain_other_objects(condition: str, expected: str) -> None:
    later = "\nGO\nUSE Later -- USE Commented\nALTER DATABASE Altered SET ENABLE_BROKER\nCREATE DATABASE New\nDROP DATABASE Gone"
    assert verdict(condition, made=EXISTING, after=later) == expected


@pytest.mark.parametrize(
    "guarded",
    [
        "IF DB_ID(N'X') IS NULL CREATE DATABASE X",
        "IF NOT EXISTS (SELECT * FROM sys.databases WHERE name = N'X') EXEC ('CREATE DATABASE X')",
        "IF DB_ID('X') IS NOT NULL BEGIN ALTER DATABASE X SET SINGLE_USER; DROP DATABASE X END\nGO\nCREATE DATABASE X",
        "USE Sales\nIF OBJECT_ID('dbo.Q') IS NULL CREATE QUEUE Q",
        "USE Sales\nIF EXISTS (SELECT * FROM sys.objects WHERE name = 'Q') DROP QUEUE Q",
        "USE Sales\nIF NOT EXISTS (SELECT * FROM sys.services WHERE name = 'S') CREATE ROUTE S WITH ADDRESS = 'LOCAL'",
        (
            "USE Sales\nIF OBJECT_ID('dbo.p') IS NOT NULL DROP PROCEDURE dbo.p\nGO\nCREATE PROCEDURE dbo.p AS SELECT 1\nGO\n"
            "IF OBJECT_ID('dbo.p') IS NOT NULL DROP ROUTE AutoCreatedLocal"
        ),
        "CREATE DATABASE New\nGO\nUSE New\nIF OBJECT_ID('dbo.T') IS NULL DROP ROUTE AutoCreatedLocal",
        "CREATE DATABASE Old\nALTER DATABASE Old MODIFY NAME = New\nUSE New\nIF OBJECT_ID('T') IS NULL CREATE QUEUE T2",
        "USE Sales\nIF OBJECT_ID('tempdb..#t') IS NOT NULL DROP QUEUE Q",
    ],
)
def test_common_guards_are_evaluated(guarded: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DdlWarning)
        script = ddl.read(f"{guarded}\nGO\nUSE Sales\nGO\nCREATE ROUTE R WITH ADDRESS = 'LOCAL'", now=NOW)
    assert [str(note) for note in script.notes if note.is_problem] == []


@pytest.mark.parametrize("guard", ["OBJECT_ID('dbo.Orders') IS NULL", "@@SERVERNAME <> N'SQL01'"])
def test_an_undecided_guard_of_the_whole_script_is_reported(guard: str) -> None:
    script, messages = skipped(
        "USE Sales",
        "GO",
        f"IF {guard} BEGIN RAISERROR('no', 16, 1) SET NOEXEC ON END",
        "GO",
        "DROP ROUTE AutoCreatedLocal",
    )
    assert "not executed, although it contains SET NOEXEC: its condition cannot be evaluated" in messages[0]
    assert names(script) == []


def test_databases_of_each_server_are_separate() -> None:
    guard = "IF DB_ID('Sales') IS NULL CREATE ROUTE R WITH ADDRESS = 'LOCAL'\nGO\n"
    text = f":connect A\nUSE Stock\n{guard}USE Sales\nGO\n:connect B\nUSE Stock\n{guard}"
    options = ddl.ScriptOptions(collects=True)
    a, b = ddl.read_servers([(text, None)], now=NOW, options=options).values()
    assert [len([note for note in one.notes if note.is_problem]) for one in (a, b)] == [0, 1]


@pytest.mark.parametrize("condition", ["NULL = NULL", "NULL <> 1", "@missing IS NOT NULL AND 1 = 2", "LEN(NULL) = 1"])
def test_null_does_not_hold(condition: str) -> None:
    assert verdict(condition) == "no"


@pytest.mark.parametrize(
    "condition",
    [
        "@unknown = 1",
        "SERVERPROPERTY('EngineEdition') = 5",
        "EXISTS (SELECT * FROM dbo.Orders)",
        "EXISTS (SELECT * FROM sys.server_principals WHERE name = 'x')",
        "EXISTS (SELECT * FROM sys.databases WHERE name = 'Sales' AND recovery_model = 1)",
        "@@SERVERNAME = 'x'",
        "(SELECT TOP 1 a FROM t ORDER BY a) = 1",
        "1 = 1 GROUP BY x",
    ],
)
def test_undecided_condition_takes_no_branch(condition: str) -> None:
    assert verdict(condition) == "neither"


@pytest.mark.parametrize(
    "call",
    [
        "EXEC (N'CREATE ROUTE R WITH ADDRESS = ''LOCAL''')",
        "EXECUTE ('CREATE ROUTE ' + 'R' + ' WITH ADDRESS = ''LOCAL''')",
        "EXEC sp_executesql N'CREATE ROUTE R WITH ADDRESS = ''LOCAL'''",
        "EXEC sys.sp_executesql @stmt = N'CREATE ROUTE R WITH ADDRESS = ''LOCAL'''",
        "sp_executesql N'CREATE ROUTE R WITH ADDRESS = ''LOCAL'''",
        "DECLARE @a nvarchar(max) SET @a = N'CREATE ROUTE R ' SET @a += N'WITH ADDRESS = ''LOCAL''' EXEC (@a)",
        "DECLARE @a nvarchar(max) SELECT @a = N'CREATE ROUTE R WITH ADDRESS = ''LOCAL''' EXEC (@a)",
        "DECLARE @a nvarchar(99), @b nvarchar(9) SELECT @b = N'R'\nSELECT @a = N'CREATE ROUTE ' + @b + N' WITH ADDRESS = ''LOCAL'''\nEXEC (@a)",
        "DECLARE @a nvarchar(99), @b nvarchar(9)\nSELECT @b = N'R', @a = N'CREATE ROUTE R WITH ADDRESS = ''LOCAL'''\nEXEC (@a)",
        "DECLARE @a nvarchar(9) = 'R'; DECLARE @s nvarchar(99) = CONCAT('CREATE ROUTE ', @a, ' WITH ADDRESS = ''LOCAL'''); EXEC @r = sp_executesql @s",
        "EXEC (N'EXEC (N''CREATE ROUTE R WITH ADDRESS = ''''LOCAL'''''')')",
        "EXEC sp_executesql N'IF @n = 1 CREATE ROUTE R WITH ADDRESS = ''LOCAL''', N'@n int', @n = 1",
        "USE msdb EXEC Sales..sp_executesql N'CREATE ROUTE R WITH ADDRESS = ''LOCAL'''",
    ],
)
def test_text_of_exec_is_executed(call: str) -> None:
    assert names(read("USE Sales", "GO", call)) == ["AutoCreatedLocal", "R"]


@pytest.mark.parametrize(
    "before",
    [
        "SELECT 1 FROM dbo.T",
        "SELECT a FROM dbo.T UNION ALL\nSELECT a FROM dbo.U",
        "INSERT INTO dbo.T (a) VALUES (1)",
        "INSERT INTO dbo.T (a)\nSELECT a FROM dbo.U EXCEPT SELECT 1",
        "INSERT INTO dbo.T EXEC dbo.p",
        ";WITH x AS (SELECT 1 AS a)\nSELECT a FROM x",
        ";WITH x AS (SELECT a FROM dbo.T) DELETE FROM x",
        "UPDATE dbo.T\nSET a = 1",
        "CREATE TABLE #t (a int)",
        "DECLARE c CURSOR FOR\nSELECT a FROM dbo.T",
    ],
)
@pytest.mark.parametrize("assign", ["SET", "SELECT"])
def test_an_assignment_may_follow_any_statement_without_a_semicolon(before: str, assign: str) -> None:
    text = "CREATE ROUTE R WITH ADDRESS = ''LOCAL''"
    with pytest.warns(DdlWarning, match=r"skipped 1 statement not about routing: 1 [A-Z ]+$"):
        script = read("USE Sales", "DECLARE @a nvarchar(99)", before, f"{assign} @a = N'{text}'", "EXEC (@a)")
    assert names(script) == ["AutoCreatedLocal", "R"]


def test_options_that_are_not_about_service_broker_are_no_loss() -> None:
    with pytest.warns(
        DdlWarning, match="skipped 1 statement not about routing: 1 EXEC of dynamic SQL that is known only at run time"
    ):
        read("USE Sales", "EXEC ('ALTER DATABASE Sales SET RECOVERY ' + @model)", "DROP ROUTE AutoCreatedLocal")


def test_use_in_a_text_ends_with_the_text() -> None:
    script = read(
        "USE Sales", "EXEC ('USE msdb; DROP ROUTE AutoCreatedLocal')", "CREATE ROUTE R WITH ADDRESS = 'LOCAL'"
    )
    assert names(script) == ["AutoCreatedLocal", "R"]
    assert names(script, "msdb") == []


def test_use_in_a_text_ends_with_the_text_after_an_error_too() -> None:
    with pytest.warns(DdlWarning, match="CATCH handled the error"):
        script = read(
            "USE Sales",
            "BEGIN TRY EXEC ('USE msdb; DROP ROUTE Unknown') END TRY BEGIN CATCH END CATCH",
            "CREATE ROUTE R WITH ADDRESS = 'LOCAL'",
        )
    assert names(script) == ["AutoCreatedLocal", "R"]


@pytest.mark.parametrize(
    ("line", "held"),
    [
        ("EXEC ('CREATE ROUTE R WITH ADDRESS = ''' + @unknown + '''')", "CREATE ROUTE"),
        ("DECLARE @s nvarchar(9) = N'CREATE QUEUE ' + dbo.f() EXEC (@s)", "CREATE QUEUE"),
        ("EXEC ('DROP SERVICE s') AT OtherServer", "DROP SERVICE"),
        ("EXEC (\"CREATE ROUTE R WITH ADDRESS = 'LOCAL'\")", "CREATE ROUTE"),
        ('DECLARE @s nvarchar(99) SET @s = "DROP QUEUE q" EXEC (@s)', "DROP QUEUE"),
        ("EXEC [SQL02].Sales.sys.sp_executesql N'CREATE ROUTE R WITH ADDRESS = ''LOCAL'''", "CREATE ROUTE"),
        ("EXEC @r = SQL02.master..sp_executesql @stmt = N'ALTER DATABASE Sales SET DISABLE_BROKER'", "ALTER DATABASE"),
        ("EXEC SQL02.master.dbo.sp_MSforeachdb N'USE [?]; DROP QUEUE q'", "DROP QUEUE"),
        ("IF EXISTS (SELECT * FROM SQL02.Sales.sys.routes) DROP ROUTE AutoCreatedLocal", "DROP ROUTE"),
        ("EXEC ('ALTER DATABASE [' + @n + '] SET DISABLE_BROKER')", "ALTER DATABASE"),
        ("WHILE 1 = 1 EXEC ('ALTER DATABASE [' + @n + '] SET ENABLE_BROKER')", "ALTER DATABASE"),
        (
            "DECLARE @s nvarchar(99) = 'ALTER DATABASE ' + QUOTENAME(@n) SET @s += ' SET NEW_BROKER' EXEC (@s)",
            "ALTER DATABASE",
        ),
        ("DECLARE @k sysname = 'ROUTE ' EXEC ('DROP ' + @k + QUOTENAME(@n))", "DROP ROUTE"),
        ("WHILE 1 = 1 EXEC ('CREATE CONTRACT c')", "CREATE CONTRACT"),
        ("EXEC sp_MSforeachdb N'USE [?]; CREATE ROUTE R WITH ADDRESS = ''LOCAL'''", "CREATE ROUTE"),
        ("EXEC master.sys.sp_msforeachdb @command1 = 'PRINT 1', @command2 = 'DROP QUEUE q'", "DROP QUEUE"),
        ("DECLARE @s nvarchar(99) = N'CREATE QUEUE [?]' EXEC sp_MSforeachtable @s", "CREATE QUEUE"),
        ("IF @a = 1 EXEC sp_ineachdb 'DROP SERVICE s'", "DROP SERVICE"),
    ],
)
def test_undecided_text_is_not_executed(line: str, held: str) -> None:
    with pytest.warns(DdlWarning, match=f"not executed, although it contains {held}: "):
        script = read("USE Sales", line, "DROP ROUTE AutoCreatedLocal")
    assert names(script) == []


def test_what_runs_on_a_linked_server_does_not_concern_the_script() -> None:
    _, messages = skipped(
        "USE Sales", "GO", "CREATE PROCEDURE dbo.Install AS CREATE QUEUE Q", "GO", "EXEC SQL02.Sales.dbo.Install"
    )
    assert messages[1] == "routes.sql:5: EXEC SQL02.Sales.dbo.Install: skipped (not about Service Broker)"
    _, messages = skipped("USE Sales", "EXEC SQL02.master.sys.sp_executesql N'DROP QUEUE q'")
    assert messages[0].endswith("not executed, although it contains DROP QUEUE: it runs on a linked server")


def test_a_call_with_text_at_the_start_of_a_batch_needs_no_exec() -> None:
    with pytest.warns(DdlWarning, match="not executed, although it contains CREATE ROUTE: procedures are not executed"):
        script = read("USE Sales", "DROP ROUTE AutoCreatedLocal", "GO", "sp_MSforeachdb 'CREATE ROUTE R'")
    assert names(script) == []


@pytest.mark.parametrize(
    ("line", "held"),
    [
        (
            "DECLARE @s nvarchar(max) = N'' SELECT @s += N'CREATE ROUTE ' + name FROM dbo.Hosts EXEC (@s)",
            "CREATE ROUTE",
        ),
        ("SELECT @s = @s + N'DROP ROUTE ' + name FROM sys.routes a, sys.routes b EXEC sp_executesql @s", "DROP ROUTE"),
        ("SELECT TOP (1) @s = 'CREATE ROUTE ' + name, @n = 1 FROM dbo.Hosts EXEC (@s)", "CREATE ROUTE"),
        ("SELECT @s += 'ALTER DATABASE ' + name + ' SET NEW_BROKER;' FROM a EXEC (@s)", "ALTER DATABASE"),
        ("SELECT @s = STRING_AGG('CREATE QUEUE ' + name, ';') FROM dbo.Hosts EXEC (@s)", "CREATE QUEUE"),
        ("INSERT @t SELECT 'CREATE ROUTE ' + name FROM dbo.Hosts; SELECT @s += x FROM @t EXEC (@s)", "CREATE ROUTE"),
        (
            "DECLARE c CURSOR FOR SELECT 'DROP QUEUE ' + name FROM dbo.Old FETCH NEXT FROM c INTO @s WHILE 1 = 1 EXEC (@s)",
            "DROP QUEUE",
        ),
        ("IF @a = 1 BEGIN SELECT @s = 'CREATE ROUTE ' + name FROM dbo.Hosts EXEC (@s) END", "CREATE ROUTE"),
    ],
)
def test_text_from_a_table_is_not_executed(line: str, held: str) -> None:
    _, messages = skipped("USE Sales", line)
    assert any(f"not executed, although it contains {held}: " in each for each in messages)


def test_exec_after_inserted_values_is_a_statement_of_its_own() -> None:
    insert = "INSERT dbo.Log (n, text) VALUES (1, N'x')"
    script, _ = skipped("USE Sales", f"{insert} EXEC (N'CREATE ROUTE R WITH ADDRESS = ''LOCAL''')")
    assert names(script) == ["AutoCreatedLocal", "R"]
    script, _ = skipped("USE Sales", "INSERT dbo.Log (n) EXEC dbo.Numbers CREATE ROUTE R WITH ADDRESS = 'LOCAL'")
    assert names(script) == ["AutoCreatedLocal", "R"]


@pytest.mark.parametrize("end", ["EXEC (@s)", "GO\nEXEC (@s)"])
def test_text_from_a_table_about_other_objects_is_skipped(end: str) -> None:
    name = "CREATE TABLE" if end.startswith("EXEC") else "CREATE ROUTE"
    script, _ = skipped("USE Sales", f"SELECT @s += '{name} ' + name FROM dbo.Hosts", end)
    assert all(note.kind in ("skipped", "empty") for note in script.notes)


def test_procedure_with_statements_about_service_broker_is_not_executed() -> None:
    procedure = "CREATE PROCEDURE dbo.Install AS EXEC ('DROP QUEUE q')\nCREATE ROUTE R WITH ADDRESS = 'LOCAL'"
    with pytest.warns(DdlWarning) as caught:
        script = read("USE Sales", "GO", procedure, "GO", "EXEC Install", "DROP ROUTE AutoCreatedLocal")
    why = "not executed, although it contains DROP QUEUE, CREATE ROUTE: procedures are not executed"
    assert str(caught[0].message) == f"routes.sql:6: EXEC Install: {why}"
    assert names(script) == []


def test_error_in_a_text_names_the_exec_and_shows_no_password() -> None:
    error = refused("USE Sales", "DECLARE @p sysname = 'Hush'", "", "EXEC ('CREATE QUEUE q WITH ' + @p)")
    assert (error.file, error.line, error.number) == ("routes.sql", 4, 102)
    assert str(error).startswith("routes.sql:4: in dynamic SQL of EXEC: CREATE QUEUE [q]: error 102: ")
    assert "Hush" not in str(error)


def test_variables_last_for_a_batch() -> None:
    with pytest.warns(DdlWarning, match="not executed"):
        read(
            "USE Sales",
            "DECLARE @s nvarchar(9) = 'DROP ROUTE AutoCreatedLocal'",
            "GO",
            "IF @s = '' DROP ROUTE AutoCreatedLocal",
        )


def test_rollback_cannot_undo() -> None:
    error = refused("USE Sales BEGIN TRAN CREATE ROUTE R WITH ADDRESS = 'LOCAL'", "GO", "ROLLBACK")
    assert (error.line, "ROLLBACK cannot undo" in str(error)) == (3, True)


def test_throw_ends_the_script() -> None:
    assert "the script ends here with THROW" in str(refused("USE Sales", "IF 1 = 1 THROW 50000, 'x', 1"))


@pytest.mark.parametrize(
    "again", ["THROW", "RAISERROR ('x', 16, 1)", "IF @@TRANCOUNT > 0 ROLLBACK", "PRINT 'x'; THROW"]
)
def test_catch_may_raise_the_error_again(again: str) -> None:
    error = refused(
        "USE Sales", f"BEGIN TRY BEGIN TRAN CREATE QUEUE q DROP ROUTE X END TRY BEGIN CATCH {again} END CATCH"
    )
    assert error.number == 15151


def test_catch_may_handle_the_error() -> None:
    with pytest.warns(DdlWarning, match=r"routes\.sql:2: DROP ROUTE \[X\]: .*; CATCH handled the error"):
        script = read(
            "USE Sales",
            "BEGIN TRY DROP ROUTE X END TRY BEGIN CATCH IF ERROR_NUMBER() = 15151 DROP ROUTE AutoCreatedLocal END CATCH",
        )
    assert names(script) == []


@pytest.mark.parametrize(
    "lines",
    [
        "DECLARE @a nvarchar(max) = 'xxxxxxxx'\n" + "SET @a = @a + @a\n" * 60 + "EXEC (@a)",
        "DECLARE @a nvarchar(max) = 'xxxxxxxx'\n" + "SET @a += @a\n" * 60 + "EXEC (@a)",
        "DECLARE @a nvarchar(max) = 'xxxxxxxx'\n" + "SET @a = REPLACE(@a, 'x', @a)\n" * 60 + "EXEC (@a)",
        f"DECLARE @a int = {'9' * 5000} IF @a = 1 PRINT 'x'",
    ],
)
def test_values_do_not_grow_without_limit(lines: str) -> None:
    with pytest.warns(DdlWarning, match="skipped 1 statement"):
        assert names(read("USE Sales", lines, "DROP ROUTE AutoCreatedLocal")) == []


def test_texts_do_not_run_without_limit() -> None:
    call = "EXEC sp_executesql @s, N'@s nvarchar(max)', @s"
    doubled = f"{call} {call}".replace("'", "''")
    error = refused("USE Sales", f"EXEC sp_executesql N'{doubled}', N'@s nvarchar(max)', N'{doubled}'")
    assert error.number == 217
