"""Statements that do not affect routing are skipped with a warning, and nothing inside them runs."""

from __future__ import annotations

import re
import warnings

import pytest

from ssbroker import ddl
from ssbroker.ddl.lexer import ScriptSource, batches
from ssbroker.ddl.parser import parse
from ssbroker.exceptions import DdlError, DdlWarning
from tests.ddl.scripts import NOW, names, read, refused, skipped

OTHER_STATEMENTS = [
    "PRINT 'CREATE ROUTE Inner WITH ADDRESS = ''LOCAL'''",
    "SET NOCOUNT ON",
    "SET QUOTED_IDENTIFIER ON",
    "SELECT CASE WHEN 1 = 1 THEN 2 ELSE 3 END AS [route] FROM sys.routes WHERE name IN (SELECT 'x')",
    "CREATE TABLE dbo.Routes (id int IDENTITY(1, 1), name sysname NULL DEFAULT ('x'))",
    "CREATE EVENT NOTIFICATION n ON SERVER FOR CREATE_DATABASE TO SERVICE '//A', 'current database'",
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
    "EXECUTE AS USER = 'u'",
    "INSERT INTO t EXEC p",
    "UPDATE t SET a = 1 WHERE b IN (SELECT 1)",
    "MERGE t USING u ON t.a = u.a WHEN MATCHED THEN UPDATE SET a = 1 WHEN NOT MATCHED THEN INSERT (a) VALUES (1)",
    "BEGIN DIALOG CONVERSATION @h FROM SERVICE [//A] TO SERVICE '//B' ON CONTRACT [//C] WITH ENCRYPTION = OFF",
    "BEGIN CONVERSATION TIMER (@h) TIMEOUT = 5",
    "SEND ON CONVERSATION @h MESSAGE TYPE [//Type] (N'<x/>')",
    "WAITFOR (RECEIVE TOP (1) * FROM dbo.Q), TIMEOUT 1000",
    "END CONVERSATION @h WITH CLEANUP",
    "BACKUP DATABASE Sales TO DISK = 'x.bak' WITH INIT",
    "RESTORE LOG Sales FROM DISK = 'x.bak' WITH MOVE 'a' TO 'b'",
    "RAISERROR ('x', 16, 1) WITH NOWAIT",
    "SELECT 1 OPTION (USE HINT ('FORCE_DEFAULT_CARDINALITY_ESTIMATION'))",
]


def without_strings(statement: str) -> str:
    return re.sub(r"N?'(?:[^']|'')*'", "'...'", statement)


def reason(statement: str) -> str:
    """Returns why a statement is not executed."""
    if "EVENT NOTIFICATION" in statement:
        return "not executed: event notifications are not supported"
    if re.search(r"DIALOG|CONVERSATION|RECEIVE", statement):
        return "not executed: scripts do not send or receive messages"
    return "skipped (not about Service Broker)"


@pytest.mark.parametrize("statement", OTHER_STATEMENTS)
@pytest.mark.parametrize("before", ["USE Sales;", "USE Sales"])
@pytest.mark.parametrize("end", [";", "", " "])
def test_other_statement_is_skipped_and_the_next_one_runs(statement: str, before: str, end: str) -> None:
    script, messages = skipped(before, f"{statement}{end}", "CREATE ROUTE After WITH ADDRESS = 'LOCAL'")
    assert names(script) == ["AutoCreatedLocal", "After"]
    summary = without_strings(statement)
    shown = summary if len(summary) <= 60 else summary[:60] + "..."
    assert messages == [f"routes.sql:2: {shown}: {reason(statement)}"]


@pytest.mark.parametrize("statement", OTHER_STATEMENTS)
def test_other_statement_on_the_same_line(statement: str) -> None:
    script, messages = skipped(f"USE Sales; PRINT 1 {statement} CREATE ROUTE After WITH ADDRESS = 'LOCAL'")
    assert names(script) == ["AutoCreatedLocal", "After"]
    assert messages[0].startswith("routes.sql:1: PRINT 1")


BLOCKS = [
    "IF @a = 1 {inner}",
    "IF EXISTS (SELECT * FROM dbo.Orders WHERE name = 'x') {inner}",
    "IF NOT EXISTS (SELECT * FROM t) AND CASE WHEN 1 = 1 THEN 1 END = 1 {inner}",
    "IF @a = 1 BEGIN {inner} END",
    "IF @a = 1 BEGIN; {inner}; {inner} END; ELSE BEGIN {inner} END",
    "IF @a = 1 PRINT 'a' ELSE {inner}",
    "IF @a = 1 PRINT 'a'; ELSE {inner}",
    "IF @a = 1 IF @b = 2 PRINT 'a' ELSE {inner} ELSE PRINT 'b'",
    "IF @a = 1 {inner} ELSE IF @b = 1 {inner} ELSE {inner}",
    "IF @a = 1 GRANT CREATE ROUTE TO u ELSE {inner}",
    "WHILE @a < 5 {inner}",
    "WHILE 1 = 1 BEGIN {inner}; IF @a = 1 BREAK; SET @a += 1 END",
]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("before", ["", "PRINT 'x' ", "PRINT 'x'; ", "DROP TABLE IF EXISTS t "])
@pytest.mark.parametrize("end", ["", ";"])
def test_undecided_block_is_not_executed(block: str, before: str, end: str) -> None:
    inner = "CREATE ROUTE Inner WITH ADDRESS = 'LOCAL'"
    script, messages = skipped(
        "USE Sales", before + block.format(inner=inner) + end, "CREATE ROUTE After WITH ADDRESS = 'LOCAL'"
    )
    assert names(script) == ["AutoCreatedLocal", "After"]
    assert "not executed, although it contains CREATE ROUTE: " in messages[-1]
    assert script.notes[-1].is_problem


@pytest.mark.parametrize(
    "block",
    [
        "BEGIN {inner} END",
        "BEGIN {inner} -- ssbroker: route_id=1\nEND",
        "BEGIN TRY {inner} END TRY",
        "BEGIN TRY {inner} END TRY BEGIN CATCH DROP ROUTE Inner END CATCH",
        "BEGIN TRAN; {inner}; COMMIT",
        "BEGIN BEGIN TRAN; {inner}; COMMIT END",
        "IF 1 = 1 {inner}",
        "IF 1 = 2 DROP ROUTE AutoCreatedLocal ELSE {inner}",
    ],
)
def test_decided_block_is_executed(block: str) -> None:
    script = read("USE Sales", block.format(inner="CREATE ROUTE Inner WITH ADDRESS = 'LOCAL'"))
    assert names(script) == ["AutoCreatedLocal", "Inner"]
    assert script.notes == ()


def test_catch_is_not_executed() -> None:
    script = read("USE Sales", "BEGIN CATCH DROP ROUTE AutoCreatedLocal END CATCH")
    assert names(script) == ["AutoCreatedLocal"]


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


@pytest.mark.parametrize(
    "call",
    [
        "sp_configure 'show advanced options', 1",
        "sp_reconfigure",
        "sp_grant",
        "sp_revoke 'a'",
        "usp_Receive",
        "usp_Receive Orders",
        "Receiver",
        "updates;",
        "Backups N'x', @p = NULL, @q = DEFAULT",
        "RestoreDb Sales, 'x.bak'",
        "CreateIt -1, +2.5, 0xFF, $1, @v OUTPUT",
        "CreateIt @a = 1, @b = @c OUT WITH RECOMPILE",
        "master..sp_execute1 Orders",
        "[Selects] Orders",
        "dbo.Grants",
        "sp_executes\nRECONFIGURE",
        "Insertion\nEXEC p",
    ],
)
def test_a_call_may_have_a_name_like_a_statement(call: str) -> None:
    script, messages = skipped("USE Sales", "GO", call, "GO", "CREATE ROUTE After WITH ADDRESS = 'LOCAL'")
    assert names(script) == ["AutoCreatedLocal", "After"]
    assert {note.kind for note in script.notes} == {"skipped"}
    assert script.notes[0].statement == "EXEC"
    assert messages[0].endswith("skipped (not about Service Broker)")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("CREAT QUEUE Q", "no statement of T-SQL starts with CREAT; did you mean CREATE?"),
        ("CRATE ROUTE R WITH ADDRESS = 'LOCAL'", "no statement of T-SQL starts with CRATE; did you mean CREATE?"),
        ("USEE Sales", "did you mean USE?; to call a procedure with this name, write EXEC USEE"),
        ("DROPP QUEUE dbo.Q", "did you mean DROP?"),
        ("GRANTS SEND ON SERVICE::S TO U", "did you mean GRANT?"),
        ("WHERE 1 = 1", "no statement of T-SQL starts with WHERE"),
        ("Hello world", "no statement of T-SQL starts with Hello"),
        ("1", "no statement of T-SQL starts with 1"),
        ("PRINT 1 CREAT QUEUE Q", ""),
        ("PRINT 1; CREAT QUEUE Q", "no statement of T-SQL starts with CREAT; did you mean CREATE?"),
        (
            "PRINT 1; usp_Receive 1",
            "only the first statement of a batch calls a procedure without EXEC; write EXEC usp_Receive",
        ),
    ],
)
def test_what_cannot_be_a_call_is_refused(text: str, reason: str) -> None:
    if not reason:  # a part of the expression, as far as a reader can tell that skips PRINT
        skipped(text)
        return
    error = refused(text)
    assert error.number == 102
    assert reason in str(error)


def test_a_call_without_exec_of_a_procedure_with_statements_about_service_broker_is_reported() -> None:
    for call in ("dbo.CreateIt", "CreateIt 1"):
        _, messages = skipped("CREATE PROCEDURE CreateIt @a int = 0 AS CREATE QUEUE Q", "GO", call)
        assert messages[1].endswith("not executed, although it contains CREATE QUEUE: procedures are not executed")


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        (
            "CREATE EVENT NOTIFICATION n ON SERVER FOR CREATE_DATABASE TO SERVICE 'A', 'current database'",
            "CREATE EVENT NOTIFICATION",
        ),
        ("DROP EVENT NOTIFICATION n ON QUEUE q", "DROP EVENT NOTIFICATION"),
        ("CREATE EVENT SESSION s ON SERVER ADD EVENT x", "CREATE EVENT SESSION"),
        ("CREATE XML SCHEMA COLLECTION c AS N'<x/>'", "CREATE XML SCHEMA COLLECTION"),
        ("CREATE UNIQUE NONCLUSTERED INDEX i ON t (a)", "CREATE UNIQUE NONCLUSTERED INDEX"),
        ("OPEN SYMMETRIC KEY k DECRYPTION BY PASSWORD = 'p'", "OPEN"),
        ("DROP SYMMETRIC KEY k", "DROP SYMMETRIC KEY"),
        ("CREATE TABLE Audit (a int)", "CREATE TABLE"),
        ("GET CONVERSATION GROUP @g FROM q", "GET CONVERSATION"),
        ("MOVE CONVERSATION @h TO @g", "MOVE CONVERSATION"),
        ("WAITFOR (RECEIVE * FROM q), TIMEOUT 5", "WAITFOR (RECEIVE)"),
        ("WAITFOR (GET CONVERSATION GROUP @g FROM q)", "WAITFOR (GET CONVERSATION)"),
        ("WAITFOR DELAY '00:00:01'", "WAITFOR"),
    ],
)
def test_statements_are_counted_by_their_whole_kind(statement: str, kind: str) -> None:
    script, _ = skipped("USE Sales", statement)
    assert [note.statement for note in script.notes if note.kind != "empty"] == [kind]


def test_event_notifications_concern_service_broker() -> None:
    text = (
        "CREATE EVENT NOTIFICATION n ON DATABASE FOR DROP_TABLE TO SERVICE 'A', '570c4000-0000-4000-8000-000000000003'"
    )
    for script in (text, f"IF @a = 1 {text}"):
        with pytest.warns(DdlWarning, match="not executed: event notifications are not supported"):
            notes = ddl.read(script, now=NOW).notes
        assert [(note.kind, note.is_problem) for note in notes] == [("unsupported", False)]


def test_messages_are_not_sent() -> None:
    dialog = "BEGIN DIALOG @h FROM SERVICE a TO SERVICE 'b'; SEND ON CONVERSATION @h ('x');"
    with pytest.warns(DdlWarning) as caught:
        ddl.read(f"USE Sales; CREATE QUEUE Q; {dialog} WHILE 1 = 1 BEGIN {dialog} END; PRINT 1", now=NOW)
    assert [str(each.message) for each in caught] == [
        "skipped 1 statement not about routing: 1 PRINT",
        (
            "did not execute 4 statements to send or receive messages (2 BEGIN DIALOG, 2 SEND): scripts define objects; to send and "
            "receive, use a transaction in Python"
        ),
    ]


def test_note_lists_each_contained_statement_once() -> None:
    _, messages = skipped("IF @a = 1 BEGIN DROP ROUTE A CREATE ROUTE A WITH ADDRESS = 'LOCAL' DROP ROUTE B USE C END")
    shown = "IF @a = 1 BEGIN DROP ROUTE A CREATE ROUTE A WITH ADDRESS = '..."
    holds = "not executed, although it contains DROP ROUTE, CREATE ROUTE, USE: its condition cannot be evaluated from the script"
    assert messages == [f"routes.sql:1: {shown}: {holds}"]


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
    inner = "CREATE ROUTE Inner WITH ADDRESS = 'LOCAL'; END; DROP ROUTE AutoCreatedLocal"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = read("USE Sales", "GO", head, inner, "GO", "CREATE ROUTE After WITH ADDRESS = 'LOCAL'")
    messages = [str(note) for note in script.notes]
    assert names(script) == ["AutoCreatedLocal", "After"]
    assert len(messages) == (head != "RETURN")
    assert all(message.startswith(f"routes.sql:3: {head}") for message in messages)


@pytest.mark.parametrize(
    ("module", "noun"),
    [
        (
            "CREATE PROCEDURE dbo.Act AS BEGIN WAITFOR (RECEIVE * FROM Q), TIMEOUT 9; END CONVERSATION @h END",
            "procedure",
        ),
        (
            "CREATE OR ALTER PROC p @a int AS BEGIN TRY SELECT CASE 1 WHEN 1 THEN 2 END END TRY BEGIN CATCH END CATCH;",
            "procedure",
        ),
        ("ALTER TRIGGER t ON T FOR INSERT AS\nBEGIN IF 1 = 1 BEGIN BEGIN TRAN; COMMIT END END\n", "trigger"),
        ("CREATE VIEW v AS SELECT 1 AS a", "view"),
        ("CREATE FUNCTION f() RETURNS TABLE AS RETURN (SELECT 1 AS a)", "function"),
        ("CREATE FUNCTION f() RETURNS int AS BEGIN RETURN 1 END", "function"),
    ],
)
def test_statements_after_a_module_without_go_are_reported(module: str, noun: str) -> None:
    route = "CREATE ROUTE R WITH ADDRESS = 'LOCAL'"
    script, messages = skipped("USE Sales", "GO", module, route)
    assert names(script) == ["AutoCreatedLocal"]
    assert messages[0].endswith(
        f"not executed, although CREATE ROUTE follows: up to GO, everything is part of the {noun}; write GO before CREATE ROUTE"
    )
    assert [note.is_problem for note in script.notes if note.kind != "empty"] == [True]
    script, messages = skipped("USE Sales", "GO", module, "GO", route)
    assert names(script) == ["AutoCreatedLocal", "R"]
    assert messages[0].endswith("skipped (not about Service Broker)")


@pytest.mark.parametrize(
    "module",
    [
        "CREATE PROCEDURE p AS BEGIN CREATE ROUTE R WITH ADDRESS = 'LOCAL' END",
        "CREATE PROCEDURE p AS IF 1 = 1 BEGIN PRINT 1 END CREATE ROUTE R WITH ADDRESS = 'LOCAL'",
        "CREATE PROCEDURE p AS BEGIN TRY PRINT 1 END TRY BEGIN CATCH ALTER QUEUE Q WITH STATUS = ON END CATCH",
    ],
)
def test_statements_in_a_procedure_are_not_reported(module: str) -> None:
    _, messages = skipped("USE Sales", "GO", module)
    assert messages == [f"routes.sql:3: {messages[0].split(': ')[1]}: skipped (not about Service Broker)"]


@pytest.mark.parametrize(
    "module", ["PROCEDURE p AS SELECT 1", "VIEW v AS SELECT 1 AS a", "OR ALTER TRIGGER t ON T AS PRINT 1"]
)
def test_a_module_is_the_first_statement_of_a_batch(module: str) -> None:
    error = refused("USE Sales", "CREATE QUEUE Q", f"CREATE {module}", "DROP ROUTE AutoCreatedLocal", "GO")
    assert (error.line, error.number) == (3, 111)
    assert "must be the first statement of a batch; write GO before it" in str(error)
    error = refused("IF 1 = 1", f"CREATE {module}")
    assert (error.line, error.number) == (2, 156)
    skipped("USE Sales", "GO", f";CREATE {module}", "GO")
    skipped("USE Sales", "GO", "CREATE SCHEMA s", "CREATE VIEW v AS SELECT 1 AS a")


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


def test_warning_counts_statements_and_points_to_the_caller() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ddl.read("USE Sales\nPRINT 1\nDROP ROUTE AutoCreatedLocal", now=NOW)
    assert [(str(w.message), w.category, w.filename) for w in caught] == [
        ("skipped 1 statement not about routing: 1 PRINT", DdlWarning, __file__)
    ]


@pytest.mark.parametrize("script", ["IF 1 = 1 ", "WHILE 1 = 1 ", "BEGIN "])
def test_statements_nest_in_at_most_a_hundred_levels(script: str) -> None:
    error = refused(f"USE Sales; {script * 5000} CREATE QUEUE Q")
    assert (error.line, error.number) == (1, 191)
    assert "nested in more than 100 levels" in str(error)


def test_else_if_repeats_any_number_of_times() -> None:
    script = read("USE Sales; " + "IF 1 = 2 PRINT 'a' ELSE " * 5000 + "CREATE ROUTE Last WITH ADDRESS = 'LOCAL'")
    assert names(script) == ["AutoCreatedLocal", "Last"]


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
        "IF @a = 1 EXEC sp_addlogin Ann, {}",
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
        [parse(source, batch) for batch in batches(source)]
    assert "Hush" not in str(caught.value)
