"""The shell of `ssbroker sql`, in a pseudo-terminal."""

from __future__ import annotations

import re
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker import Instance
from ssbroker.cli.sql_input import is_complete, pieces
from ssbroker.cli.sql_shell import COMMANDS, Shell
from ssbroker.ddl import STRICT
from tests.cli.conftest import Run
from tests.cli.terminal import Terminal

SCRIPT = """
CREATE DATABASE Sales
GO
USE Sales
CREATE QUEUE Orders
CREATE SERVICE [//Orders] ON QUEUE Orders ([DEFAULT])
CREATE SERVICE [//Shop] ON QUEUE Orders
CREATE ROUTE Stock WITH SERVICE_NAME = '//Stock', ADDRESS = 'TCP://stock:4022'
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An instance with one delivered and one undelivered message."""
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        instance.execute(SCRIPT)
        with instance.database("Sales").transaction() as t:
            t.send(t.begin_dialog("//Shop", "//Orders"), b"here")
            t.send(t.begin_dialog("//Shop", "//Nowhere"), b"one")
    return tmp_path / "shop"


@pytest.fixture
def shell(folder: Path) -> Iterator[Terminal]:
    """A shell in a terminal of 80 columns, at its first prompt."""
    with opened(folder) as terminal:
        yield terminal


def opened(folder: Path, *options: str, prompt: str = "shop/Sales> ", **environment: str) -> Terminal:
    """Opens a shell and waits for its prompt."""
    terminal = Terminal("sql", folder, *options, columns=80, folder=folder.parent, **environment)
    terminal.wait(lambda lines: bool(lines) and lines[-1] == prompt.rstrip())
    return terminal


def test_queries_and_statements(shell: Terminal) -> None:
    assert shell.send("SELECT to_service_name AS service FROM transmission_queue;") == [
        "service",
        "//Nowhere",
        "(1 row)",
    ]
    assert shell.send("CREATE QUEUE Second;") == ["done"]
    assert shell.send("select name from service_queues order by name; select 2 as two;") == [
        "name",
        "Orders",
        "Second",
        "(2 rows)",
        "two",
        "  2",
        "(1 row)",
    ]


def test_a_statement_has_lines_until_a_semicolon_or_go(shell: Terminal) -> None:
    assert shell.send("CREATE QUEUE", prompt="          > ") == []
    assert shell.send("Second") == []
    assert shell.send("GO") == ["done"]
    assert shell.send("IF DB_ID('Sales') IS NOT NULL BEGIN") == []
    assert shell.send("CREATE QUEUE Third;") == []
    assert shell.send("CREATE QUEUE Fourth; END;") == ["done"]
    assert shell.send("SELECT count(*) AS queues FROM service_queues;")[1] == "     4"


def test_errors_do_not_end_the_shell(shell: Terminal) -> None:
    assert shell.send("SELECT * FROM sys.routs;") == [
        "error: sys.routs: there is no view or queue with this name; did you mean",
        "sys.routes?",
    ]
    assert shell.send("CREATE QUEUE Orders;") == [
        "error: CREATE QUEUE [Orders]: error 2714: the queue 'dbo.Orders' already exists"
    ]
    assert shell.send("SELECT 'a' FROM") == []
    assert shell.send("WHERE;")[:3] == ['error: Parser Error: syntax error at or near "WHERE"', "", "LINE 2: WHERE"]
    assert shell.send(r"\dz") == [r"error: \dz: no such command; did you mean \d?; \? shows the commands"]
    assert shell.send("RECEIVE * FROM Orders;")[0].startswith("error: messages are sent and received in Python")
    assert shell.send("SELECT 1 AS one;") == ["one", "  1", "(1 row)"]


def test_the_first_error_stops_the_statements_after_it(shell: Terminal) -> None:
    shown = shell.send("CREATE QUEUE Second; SELECT 'a'::INT; CREATE QUEUE Third;")
    assert shown[:2] == ["done", "error: Conversion Error: Could not convert string 'a' to INT32"]
    assert shell.send("SELECT name FROM service_queues ORDER BY name;")[1:3] == ["Orders", "Second"]


def test_a_transaction_over_several_inputs_is_refused(shell: Terminal) -> None:
    for statement in (
        "BEGIN TRANSACTION",
        "BEGIN TRAN changes",
        "SAVE TRANSACTION half",
        "COMMIT",
        "ROLLBACK TRANSACTION",
        "CREATE QUEUE Second; BEGIN TRANSACTION",
    ):
        shown = " ".join(shell.send(f"{statement};"))
        assert re.fullmatch(
            "error: (BEGIN TRANSACTION|SAVE TRANSACTION|COMMIT|ROLLBACK): the shell commits each input immediately, and "
            "cannot undo it later; to apply statements completely or not at all, enter them on one line",
            shown,
        ), statement
    assert shell.send("BEGIN TRANSACTION; CREATE QUEUE Third; COMMIT;") == ["done"]
    assert shell.send("BEGIN TRAN; DROP QUEUE Third; ROLLBACK;")[0].startswith("error: ROLLBACK: ROLLBACK cannot undo")
    assert shell.send("SELECT name FROM service_queues ORDER BY name;")[1:3] == ["Orders", "Third"]


def test_an_object_of_another_database_is_found(folder: Path) -> None:
    with Instance.open(folder, background=False) as instance:
        instance.execute(
            "CREATE DATABASE Stock\nGO\nUSE Stock\nCREATE QUEUE Parts\nCREATE SERVICE [//Parts] ON QUEUE Parts"
        )
    with opened(folder, prompt="shop> ") as shell:
        shell.send("USE Sales;", prompt="shop/Sales> ")
        for statement in (
            "ALTER QUEUE parts WITH STATUS = ON;",
            "DROP QUEUE Parts;",
            "CREATE SERVICE [//S] ON QUEUE Parts;",
        ):
            shown = " ".join(shell.send(statement))
            assert shown.endswith("does not exist; it exists in the database 'Stock'"), shown
        assert " ".join(shell.send("DROP SERVICE [//Parts];")).endswith("; it exists in the database 'Stock'")
        assert not " ".join(shell.send("DROP QUEUE Nowhere;")).endswith("'Stock'")


def test_use_lasts_and_is_in_the_prompt(folder: Path) -> None:
    with opened(folder) as shell:
        assert shell.send("CREATE DATABASE Stock;", prompt="shop/Sales> ") == ["done"]
        assert shell.send("USE stock;", prompt="shop/Stock> ") == ["done"]
        assert shell.send("CREATE QUEUE Parts;", prompt="shop/Stock> ") == ["done"]
        shown = shell.send("FROM service_queues SELECT database ORDER BY ALL;", prompt="shop/Stock> ")
        assert shown[1:3] == ["Sales", "Stock"]
        assert shell.send("USE msdb; DROP DATABASE Stock;", prompt="shop/msdb> ") == ["done"]


def test_commands_show_queues_services_routes_and_what_waits(shell: Terminal) -> None:
    queues = shell.send(r"\dq")
    assert queues[:2] == ["Queues", "database  queue       state  ready  oldest"]
    assert queues[2].startswith("Sales     dbo.Orders  on         1  0:00:")
    assert shell.send(r"\ds") == [
        "database  service   queue       contracts",
        "Sales     //Orders  dbo.Orders  DEFAULT",
        "Sales     //Shop    dbo.Orders",
    ]
    assert shell.send(r"\dr")[-1] == "Sales     Stock             //Stock  TCP://stock:4022"
    waiting = shell.send(r"\dw")
    assert waiting[2].startswith("Sales     //Nowhere         1              1  0:00:")
    assert (
        "  USE <database>; CREATE SERVICE [//Nowhere] ON QUEUE <queue> (<contract>);" in waiting
    )  # whole, on its line
    assert shell.send(r"\l")[0] == "Databases"
    assert shell.send(r"\dc")[0] == "Conversations"
    assert "dbo.Orders                           queue" in shell.send(r"\d")
    assert shell.send(r"\d ORDERS")[:3] == [
        "column                   type",
        "database                 string",
        "status                   uint8",
    ]
    assert any(line.startswith(r"  \dw ") for line in shell.send(r"\?"))
    assert shell.send("help") == shell.send(r"\?")


def test_the_page_lists_the_commands() -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "command-line.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `\\")]
    assert set(re.findall(r"\\\S(?:\w)?", " ".join(rows).replace("`", " "))) == set(COMMANDS)


def test_records_of_rows(shell: Terminal) -> None:
    assert shell.send("SELECT repeat('a', 90) AS a, 1 AS b;") == [
        "-- 1 --",
        f"a  {'a' * 77}",
        "a" * 13,
        "b  1",
        "(1 row)",
    ]
    assert shell.send(r"\x") == ["Rows are shown as records."]
    assert shell.send("SELECT 1 AS a;") == ["-- 1 --", "a  1", "(1 row)"]
    assert shell.send(r"\dq")[:3] == ["Queues", "-- 1 --", "database  Sales"]
    shell.send(r"\x")
    assert shell.send("SELECT 1 AS a;") == ["a", "1", "(1 row)"]
    assert shell.send("SELECT range AS n FROM range(2000);")[-2:] == [
        "999",
        "(1,000 of 2,000 rows; LIMIT and OFFSET select other rows)",
    ]


def test_rows_as_json(folder: Path) -> None:
    with opened(folder, "--json") as shell:
        assert shell.send("SELECT 1 AS a;") == ["[", "  {", '    "a": 1', "  }", "]"]


def test_a_script_of_the_shell(shell: Terminal, folder: Path) -> None:
    (folder.parent / "more.sql").write_text("CREATE QUEUE Second\nCREATE QUEUE Orders\n")
    assert shell.send(r"\i more.sql") == [
        "error: more.sql:2: CREATE QUEUE [Orders]: error 2714: the queue 'dbo.Orders'",
        "already exists",
    ]
    (folder.parent / "more.sql").write_text("CREATE QUEUE Second\n")
    assert shell.send(r"\i more.sql") == ["more.sql: done"]
    assert shell.send(r"\i none.sql") == ["error: none.sql: cannot be read: No such file or directory"]
    assert shell.send(r"\i ~nobody-has-this-name/a.sql") == [
        "error: ~nobody-has-this-name/a.sql: cannot be read: No such file or directory"
    ]


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        (r"\ds", r"\ds"),
        ("DROP ROU", "DROP ROUTE"),
        ("drop rou", "drop route"),
        ("DROP ROUTE St", "DROP ROUTE Stock"),
        ("DROP SERVICE //O", "DROP SERVICE [//Orders]"),
        ("DROP SERVICE [//o", "DROP SERVICE [//Orders]"),
        ("CREATE ROUTE a WITH SERVICE_NAME = '//S", "CREATE ROUTE a WITH SERVICE_NAME = '//Shop'"),
        ("SELECT * FROM transm", "SELECT * FROM transmission_queue"),
        ("SELECT * FROM dbo.o", "SELECT * FROM dbo.Orders"),
        ("SELECT * FROM routes WHERE remote_s", "SELECT * FROM routes WHERE remote_service_name"),
        ("SUMMARIZE transm", "SUMMARIZE transmission_queue"),
        ("SHOW transm", "SHOW transmission_queue"),
        ("DROP CONTRACT DE", "DROP CONTRACT DEFAULT"),
        ("USE Sa", "USE Sales"),
        (r"\d transm", r"\d transmission_queue"),
        ("SELECT 'it''s' FROM sys.dm_broker_fo", "SELECT 'it''s' FROM sys.dm_broker_forwarded_messages"),
    ],
)
def test_tab_completes_names_and_keywords(shell: Terminal, typed: str, completed: str) -> None:
    shell.press(f"{typed}\t")
    shell.wait(lambda lines: f"shop/Sales> {completed}" in lines)  # a menu may be below it


def test_history_has_statements_of_earlier_shells_without_passwords(folder: Path) -> None:
    with opened(folder) as shell:
        shell.send("SELECT 41 + 1 AS answer;")
        shell.send("CREATE MASTER KEY ENCRYPTION BY PASSWORD = 'pa55-W0rd';")
        shell.press("\x1b[A")  # the arrow up
        shell.wait(lambda lines: "pa55-W0rd" in lines[-1])  # the same shell remembers it
        shell.press("\x03")
        shell.send("PRINT 'MasterKeyPwd: pa55-W0rd';")
        shell.press("\x04")
        assert shell.end() == 0
    history = folder.parent / "state" / "ssbroker" / "sql_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "SELECT 41" in history.read_text()
    assert "pa55" not in history.read_text()
    with opened(folder) as shell:
        shell.press("\x1b[A")
        shell.wait(lambda lines: lines[-1] == "shop/Sales> SELECT 41 + 1 AS answer;")


@pytest.mark.parametrize("last", ["quit\r", "EXIT;\r", "\\q\r", "\x04", "SELECT '\x03\x04"])
def test_ends_of_the_shell(shell: Terminal, last: str) -> None:
    shell.press(last)
    assert shell.end() == 0


def test_sigterm_ends_the_shell_and_ctrl_c_does_not(shell: Terminal) -> None:
    shell.press("SELECT 1\x03")
    shell.wait(lambda lines: lines[-1] == "shop/Sales>" and lines[-2].endswith("SELECT 1"))
    shell.kill(signal.SIGTERM)
    assert shell.end() == 128 + signal.SIGTERM


def test_colours_are_omitted_with_no_color(folder: Path) -> None:
    def output(**environment: str) -> bytes:
        with opened(folder, **environment) as shell:
            shell.send("SELECT 'a' AS text FROM nothing;")
            return shell.output

    assert b"\x1b[31m" in output()  # the error
    for colour in (b"\x1b[31m", b"\x1b[32m", b";32m"):
        assert colour not in output(NO_COLOR="1")


def test_a_file_instead_of_a_terminal_gets_no_shell(run: Run, folder: Path) -> None:
    result = run("sql", folder)
    assert (result.status, result.out) == (2, "")
    assert (
        result.err
        == "ssbroker: nothing to run: pass scripts or --query, or start the shell by running the command in a terminal\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        (r"\dq", True),
        ("quit", True),
        ("SELECT 1", False),
        ("SELECT 1;", True),
        ("SELECT 1; -- why", True),
        ("SELECT 1 -- ;", False),
        ("SELECT ';", False),
        ("SELECT [a;", False),
        ("/* SELECT 1;", False),
        ("CREATE QUEUE a\ngo", True),
        ("CREATE QUEUE a\nGO 2", True),
        ("SELECT go;", True),
        ("GO", True),
        ("BEGIN DIALOG @h FROM SERVICE a TO SERVICE 'b';", True),
        ("BEGIN TRANSACTION; COMMIT;", True),
        ("BEGIN TRY DROP QUEUE a; END TRY", False),
        ("BEGIN TRY DROP QUEUE a; END TRY BEGIN CATCH END CATCH;", True),
        ("SELECT CASE WHEN 1 = 1 THEN 2 END;", True),
        ("END CONVERSATION @h;", True),
    ],
)
def test_where_statements_end(text: str, expected: object) -> None:
    assert is_complete(text) is expected


def test_pieces_of_a_pasted_text() -> None:
    text = (
        "USE a\nGO\nCREATE QUEUE b; CREATE QUEUE c;\nSELECT 1;\nGO\nWITH d AS (SELECT 2) SELECT * FROM d;\nDROP QUEUE b"
    )
    assert list(pieces(text)) == [
        ("USE a", False),
        ("CREATE QUEUE b; CREATE QUEUE c;", False),
        ("SELECT 1", True),
        ("WITH d AS (SELECT 2) SELECT * FROM d", True),
        ("DROP QUEUE b", False),
    ]
    script = "CREATE QUEUE a -- SELECT 1\nGO 2\n"
    assert list(pieces(script)) == [(script, False)]
    assert list(pieces(" ; -- nothing")) == []


def test_an_error_of_the_system_without_a_file_has_one_prefix(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ssbroker.cli.sql_shell.run_queries", fail)
    with Instance.open(folder, background=False) as instance:
        Shell(instance, STRICT).execute("SELECT 1")
    assert capsys.readouterr().out == "error: No space left on device\n"
