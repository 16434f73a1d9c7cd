"""`ssbroker sql` and `ssbroker status`, and an instance folder as a catalog."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import apsw
import pytest

from ssbroker import Catalog, Instance
from ssbroker.broker.database import database_context
from ssbroker.diagnose import Fleet
from ssbroker.exceptions import DdlError, StorageError
from tests.cli.conftest import Run

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
def script(tmp_path: Path) -> Path:
    path = tmp_path / "shop.sql"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An instance with one delivered and two undelivered messages."""
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        instance.execute(SCRIPT)
        with instance.database("Sales").transaction() as t:
            t.send(t.begin_dialog("//Shop", "//Orders"), b"here")
            lost = t.begin_dialog("//Shop", "//Nowhere")
            t.send(lost, b"one")
            t.send(lost, b"two")
        instance.database("Sales").create_queue("Closed", status=False)
    return tmp_path / "shop"


def test_sql_creates_and_changes_an_instance(run: Run, tmp_path: Path, script: Path) -> None:
    made = run("sql", tmp_path / "new", "--create", script)
    assert (made.status, made.out, made.err) == (0, f"{script}: done\n", "")
    more = tmp_path / "more.sql"
    more.write_text("CREATE QUEUE Second\nGRANT EXECUTE ON dbo.P TO public", encoding="utf-16")
    changed = run("sql", tmp_path / "new", more)
    assert changed.status == 0
    assert changed.err == (f"ssbroker: warning: {more}: skipped 1 statement not about Service Broker: 1 GRANT\n")
    with Instance.open(tmp_path / "new", background=False) as instance:
        assert instance.name == "new"
        assert {name for _, name in database_context(instance.database("Sales")).objects().queues} == {
            "Orders",
            "Second",
        }


def test_sql_create_with_an_empty_file_of_a_crash_and_with_an_existing_instance(
    run: Run, tmp_path: Path, script: Path
) -> None:
    """The empty file may also be that of another process which is creating the instance."""
    (tmp_path / "msdb.sqlite").touch()
    more = tmp_path / "more.sql"
    more.write_text("USE Sales; CREATE QUEUE Second;")
    for each in (script, more):
        made = run("sql", tmp_path, "--create", each)
        assert (made.status, made.out, made.err) == (0, f"{each}: done\n", "")


def test_a_missing_script_creates_no_instance(run: Run, tmp_path: Path, script: Path) -> None:
    result = run("sql", tmp_path / "new", "--create", script, tmp_path / "missing.sql")
    assert result.status == 2
    assert "missing.sql: " in result.err
    assert not (tmp_path / "new").exists()


def test_sql_reports_the_failing_statement(run: Run, folder: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.sql"
    wrong.write_text("CREATE QUEUE New\nCREATE QUEUE Orders\n")
    result = run("sql", folder, wrong)
    assert (result.status, result.out) == (2, "")
    assert (
        result.err == f"ssbroker: {wrong}:2: CREATE QUEUE [Orders]: error 2714: the queue 'dbo.Orders' already exists\n"
    )


def test_sql_reports_the_statement_of_a_storage_error(run: Run, folder: Path, tmp_path: Path) -> None:
    script, missing = tmp_path / "attach.sql", tmp_path / "none.sqlite"
    script.write_text(f"CREATE QUEUE New\nCREATE DATABASE Other ON (FILENAME = '{missing}') FOR ATTACH\n")
    result = run("sql", folder, script)
    assert (result.status, result.out) == (2, "")
    assert result.err == f"ssbroker: {script}:2: CREATE DATABASE [Other]: {missing}: no such file\n"
    with Instance.open(folder, background=False) as instance, pytest.raises(StorageError, match=r"^line 2: ") as caught:
        instance.execute(script.read_text())
    assert caught.value.file == str(missing)


def test_sql_queries_views_and_queues(run: Run, folder: Path) -> None:
    result = run(
        "sql",
        folder,
        "--json",
        "--query",
        """SELECT s.name AS service, q.message_body, q.status, e.state_desc
        FROM dbo.Orders q JOIN sys.conversation_endpoints e ON e.conversation_handle = q.conversation_handle
        JOIN "sys"."services" s ON s.service_id = e.service_id
        WHERE q.conversation_handle <> '00000000-0000-0000-0000-000000000000'""",
    )
    assert (result.status, result.err) == (0, "")
    assert json.loads(result.out) == [
        {"service": "//Orders", "message_body": "0x68657265", "status": 1, "state_desc": "CONVERSING"}
    ]
    shown = run("sql", folder, "--query", "SELECT name, service_broker_guid FROM sys.databases ORDER BY name")
    with Instance.open(folder, background=False) as instance:
        assert str(instance.database("Sales").service_broker_guid) in shown.out


@pytest.mark.parametrize("name", ["dbo.Orders", "DBO.orders", "Orders", "ORDERS", '"dbo"."orders"'])
def test_queues_may_be_named_in_any_case_and_without_schema(run: Run, folder: Path, name: str) -> None:
    result = run("sql", folder, "--json", "--query", f"SELECT message_body FROM {name} AS q")
    assert (result.status, json.loads(result.out)) == (0, [{"message_body": "0x68657265"}])


@pytest.mark.parametrize(
    ("query", "row"),
    [
        ("SELECT DISTINCT [name] FROM [sys].[routes] WHERE [name] = N'Stock'", {"name": "Stock"}),
        (
            "SELECT [r].[name], [address] FROM [routes] AS [r] WHERE r.[name] = N'Stock'",
            {"address": "TCP://stock:4022"},
        ),
        ("SELECT[name]FROM[sys].[routes]WHERE[name]='Stock'", {"name": "Stock"}),
        ("SELECT count(*) AS [in, all] FROM [sys].[routes] WHERE [name] = 'Stock'", {"in, all": 1}),
        ('SELECT 1 AS [a]]b"c]', {'a]b"c': 1}),
        ("""SELECT '[name]' AS a, 1 AS "[b]" -- [c]\n/* [d] */""", {"a": "[name]", "[b]": 1}),
        ("SELECT [1, 2] AS a, ['x'] AS b, [3] AS c", {"a": [1, 2], "b": ["x"], "c": [3]}),
        ("SELECT [x + 1 for x in [1, 2]] AS a, [] AS b", {"a": [2, 3], "b": []}),
        (
            "SELECT [NULL] AS a, [true] AS b, [1.5e3] AS c, [1 + 1] AS d",
            {"c": [1500.0], "d": [2]},
        ),
        (
            "SELECT 1 IN [i] AS a, 'abc' [1:2] AS b, 3 [a name] FROM (SELECT 1 AS i)",
            {"a": True, "b": "ab", "a name": 3},
        ),
        ("SELECT name[1] AS a, (name)[i] AS b FROM routes, (SELECT 2 AS i) WHERE name = 'Stock'", {"a": "S", "b": "t"}),
        ('SELECT message_body FROM [dbo].[A]]B"C]', None),
    ],
)
def test_names_may_be_in_brackets(run: Run, folder: Path, query: str, row: dict[str, object] | None) -> None:
    with Instance.open(folder, background=False) as instance:
        instance.execute('CREATE QUEUE [A]]B"C]')
    result = run("sql", folder, "--json", "--query", query)
    assert (result.status, result.err) == (0, "")
    found = json.loads(result.out)
    assert found == [] if row is None else found[0].items() >= row.items()


NESTED = (
    "SELECT [NULL, 'é'] AS names, {'id': '6f9619ff-8b86-d011-b42d-00c04fc964ff'::UUID, 'body': ['\\x01'::BLOB]} AS row, "
    "MAP {1: TIMESTAMP '2026-11-20 12:00'} AS times"
)


def test_lists_and_structs_are_json(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    row = {
        "names": [None, "é"],
        "row": {"id": "6f9619ff-8b86-d011-b42d-00c04fc964ff", "body": ["0x01"]},
        "times": {"1": "2026-11-20T12:00:00"},
    }
    assert json.loads(run("sql", folder, "--json", "--query", NESTED).out) == [row]
    header, cells = run("sql", folder, "--query", NESTED).out.splitlines()
    places = [header.index(name) for name in row]
    shown = [cells[start:end] for start, end in zip(places, [*places[1:], None], strict=True)]
    assert list(map(json.loads, shown)) == list(row.values())


@pytest.mark.parametrize("name", ["sys.routes", "SYS.Routes", "routes"])
def test_views_may_be_named_in_any_case_and_without_schema(run: Run, folder: Path, name: str) -> None:
    result = run("sql", folder, "--json", "--query", f"SELECT DISTINCT name FROM {name}")
    assert "AutoCreatedLocal" in [row["name"] for row in json.loads(result.out)]


@pytest.mark.parametrize(
    ("query", "column"),
    [
        ("DESCRIBE sys.routes", "column_name"),
        ("DESCRIBE TABLE [sys].[routes]", "column_name"),
        ("DESCRIBE FROM sys.routes", "column_name"),
        ("SHOW routes", "column_name"),
        ("summarize dbo.orders", "column_name"),
        ("TABLE sys.routes", "remote_service_name"),
        ("PIVOT sys.routes ON database USING count(*)", "remote_service_name"),
        ("UNPIVOT sys.routes ON name", "remote_service_name"),
    ],
)
def test_words_other_than_from_may_precede_a_view(run: Run, folder: Path, query: str, column: str) -> None:
    result = run("sql", folder, "--json", "--query", query)
    assert (result.status, result.err) == (0, "")
    assert column in json.loads(result.out)[0]


@pytest.mark.parametrize(
    ("name", "question"),
    [("sys.route", "sys.routes"), ("dbo.Order", "dbo.Orders"), ("transmision_queue", "sys.transmission_queue")],
)
def test_a_name_that_does_not_exist_is_reported_with_a_similar_one(
    run: Run, folder: Path, name: str, question: str
) -> None:
    result = run("sql", folder, "--query", f"SELECT * FROM {name}")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.endswith(f"; did you mean {question}?\n")


@pytest.mark.parametrize("query", ["SHOW TABLES", "show all tables;"])
def test_show_tables_lists_views_and_queues(run: Run, folder: Path, query: str) -> None:
    result = run("sql", folder, "--json", "--query", query)
    rows = json.loads(result.out)
    assert {"name": "sys.routes", "kind": "view"} in rows
    assert "queue" in {row["kind"] for row in rows}


def test_names_of_the_query_itself_come_first(run: Run, folder: Path) -> None:
    result = run("sql", folder, "--json", "--query", "WITH routes AS (SELECT 7 AS a) SELECT a FROM routes")
    assert json.loads(result.out) == [{"a": 7}]


def test_duplicate_column_names_are_numbered(run: Run, folder: Path) -> None:
    result = run("sql", folder, "--query", "SELECT 1 AS a, 2 AS a, 3 AS a_1, 4 AS a")
    assert [line.split() for line in result.out.splitlines()] == [["a", "a_2", "a_1", "a_3"], ["1", "2", "3", "4"]]
    as_json = run("sql", folder, "--query", "SELECT 1 AS a, 2 AS a", "--json")
    assert json.loads(as_json.out) == [{"a": 1, "a_1": 2}]


def test_each_query_has_its_result(run: Run, folder: Path) -> None:
    queries = "CREATE TEMP TABLE t AS SELECT 5 AS a; SELECT a FROM t; SHOW TABLES; SELECT name FROM sys.services"
    result = run("sql", folder, "--query", queries)
    first, second, third = (part.split() for part in result.out.split("\n\n"))
    assert (result.status, first, second[:2], third[0]) == (0, ["a", "5"], ["name", "kind"], "name")
    as_json = run("sql", folder, "--json", "--query", "CREATE TEMP TABLE t AS SELECT 5 AS a; SELECT a FROM t;")
    assert json.loads(as_json.out) == [{"a": 5}]


def test_json_has_the_rows_of_one_query(run: Run, folder: Path) -> None:
    result = run("sql", folder, "--json", "--query", "SELECT 1 AS a; SELECT 2 AS b")
    assert (result.status, result.out) == (2, "")
    assert "--query: --json prints the rows of one query, got 2 queries; run each query separately" in result.err


def test_nan_and_infinity_are_text_in_json(run: Run, folder: Path) -> None:
    result = run(
        "sql", folder, "--query", "SELECT 'nan'::DOUBLE AS none, 'inf'::DOUBLE AS much, 0.5::DOUBLE AS half", "--json"
    )
    assert json.loads(result.out, parse_constant=pytest.fail) == [{"none": "nan", "much": "inf", "half": 0.5}]


@pytest.mark.parametrize("select", ["", " ", ";", "-- no query"])
def test_an_empty_query_is_refused(run: Run, folder: Path, select: str) -> None:
    result = run("sql", folder, "--query", select)
    assert result.status == 2
    assert result.err == "ssbroker: --query: expected a query, such as SELECT * FROM sys.routes\n"


@pytest.mark.parametrize(
    "select", ["SELECT", "SELECT * FROM sys.nothing", "COPY (SELECT 1) TO 'x.csv'", "FROM nothing"]
)
def test_sql_with_invalid_query(run: Run, folder: Path, select: str) -> None:
    result = run("sql", folder, "--query", select)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert run("sql", folder).status == 2


@pytest.mark.parametrize("command", ["status", "lint"])
def test_unavailable_database_is_one_line(run: Run, folder: Path, command: str) -> None:
    """Although `lint` opens the instance twice."""
    with Instance.open(folder, background=False) as instance:
        instance.create_database("Lost")
    (folder / "Lost.sqlite").unlink()
    found = run(command, folder)
    assert found.err == (
        "ssbroker: warning: the database 'Lost' is not available until its file can be used again: "
        f"{folder / 'Lost.sqlite'}: no such file\n"
    )
    what = {
        "status": f"database Lost: {folder / 'Lost.sqlite'}: no such file\n",
        "lint": "; the database shop/Lost, whose file cannot be used.\n",
    }
    assert what[command] in found.out


def test_missing_files_are_one_line(run: Run, tmp_path: Path, script: Path, folder: Path) -> None:
    for arguments in (
        ("sql", tmp_path / "no", script),
        ("sql", folder, tmp_path / "no.sql"),
        ("status", tmp_path / "no"),
    ):
        result = run(*arguments)
        assert (result.status, result.out) == (2, "")
        assert result.err.count("\n") == 1
        assert result.err.startswith("ssbroker: ")
    assert not (tmp_path / "no").exists()


def test_status_shows_undelivered_messages(run: Run, folder: Path) -> None:
    result = run("status", folder)
    assert (result.status, result.err) == (0, "")
    lines = [" ".join(line.split()) for line in result.out.splitlines()]
    assert lines[0] == "Instance shop"
    assert "Sales dbo.Closed off 0" in lines
    assert any(line.startswith("Sales dbo.Orders on 1 0:") for line in lines)
    assert any(line.startswith("Sales CO CONVERSING 3 0:00:") for line in lines)
    assert any(line.startswith("Sales //Nowhere 2 1 0:00:") for line in lines)


def test_status_counts_messages_apart_that_cannot_be_received_now(run: Run, folder: Path) -> None:
    with Instance.open(folder, background=False) as instance:
        queue = instance.database("Sales").queue("Jobs")
        for _ in range(4):
            queue.put(b"one")
        queue.put(b"tomorrow", at=datetime.now(UTC) + timedelta(days=1))
        with queue.take(), queue.take() as job:
            job.retry(after=600)
            shown = run("status", folder).out
    rows = [line.split() for line in shown.splitlines()]
    assert ["database", "queue", "state", "ready", "oldest", "waiting", "leased"] in rows
    assert next(row[3:4] + row[5:] for row in rows if row[1:2] == ["dbo.Jobs"]) == ["2", "2", "1"]


def test_status_does_not_wrap_advice(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that statements can be copied."""
    monkeypatch.setenv("COLUMNS", "80")
    found = json.loads(run("status", folder, "--json").out)["transmission_queue"]
    shown = run("status", folder).out.splitlines()
    for row in found:
        reason = row["transmission_status"].replace("FOLDER", str(folder))
        assert f"`ssbroker explain {folder} --to-service {row['to_service_name']} --from {row['database']}`" in reason
        assert f"to {row['to_service_name']}, from {row['database']}: {reason}" in shown
        status = reason.partition(":")[0]
        assert [line.split()[-1] for line in shown if line.split()[1:2] == [row["to_service_name"]]] == [status]


def test_status_as_json(run: Run, folder: Path) -> None:
    found = json.loads(run("status", folder, "--json").out)
    assert found["instance"] == "shop"
    assert [row["name"] for row in found["databases"]] == ["msdb", "Sales"]
    assert 0 <= found["queues"][1].pop("oldest_seconds") < 600
    assert found["moved"] == []
    assert found["queues"][1] == {
        "database": "Sales",
        "queue": "dbo.Orders",
        "is_receive_enabled": True,
        "is_enqueue_enabled": True,
        "ready": 1,
        "waiting": 0,
        "leased": 0,
        "incomplete": 0,
        "retained": 0,
        "problem": None,
    }
    (conversations,) = found["conversations"]
    assert 0 <= conversations.pop("oldest_seconds") < 600
    assert conversations == {"database": "Sales", "state": "CO", "state_desc": "CONVERSING", "count": 3}
    (waiting,) = found["transmission_queue"]
    assert (waiting["to_service_name"], waiting["messages"], waiting["conversations"]) == ("//Nowhere", 2, 1)
    assert "9796" in waiting["transmission_status"]


def test_status_says_why_a_queue_is_off(run: Run, folder: Path) -> None:
    with Instance.open(folder) as instance:
        queue = instance.database("Sales").queue("Jobs", retry_after=0)
        queue.put(b"poison")
        for _ in range(5):
            with pytest.raises(ZeroDivisionError), queue.take(timeout=0):
                raise ZeroDivisionError
    shown = run("status", folder).out
    assert "Sales dbo.Jobs off 1 0:00:" in " ".join(shown.split())
    (line,) = (
        line
        for line in shown.splitlines()
        if line.startswith("queue dbo.Jobs, in Sales: Poison message handling disabled the queue at ")
    )
    assert " UTC. The last failure, with a message of the conversation " in line
    assert ": ZeroDivisionError" in line
    script = folder.parent / "on.sql"
    script.write_text(line.partition("To enable the queue again: ")[2])
    assert run("sql", folder, script).status == 0
    assert "queue dbo.Jobs" not in run("status", folder).out


def test_moved_messages_are_put_back(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    with Instance.create(folder, name="shop", background=False) as instance:
        queue = instance.create_database("Sales").queue("Jobs", on_poison="move", retry_after=0)
        for body in (b"one", b"two"):
            queue.put(body)
        for _ in range(10):
            with pytest.raises(ZeroDivisionError), queue.take(timeout=0):
                raise ZeroDivisionError
        handles = [
            UUID(bytes=each) for each in instance.view("sys.dm_broker_failures")["conversation_handle"].to_pylist()
        ]
    (line,) = (line for line in run("status", folder).out.splitlines() if "moved to" in line)
    assert line.endswith(f". To put the messages back: `ssbroker requeue {folder} Sales dbo.Jobs`")
    assert run("requeue", folder, "Sales", "Jobs_failed").out == (
        "0 messages put back into Jobs_failed; messages were moved from other queues: dbo.Jobs\n"
    )
    first = run("requeue", folder, "Sales", "dbo.Jobs", "--conversation-handle", handles[1])
    assert (first.status, first.out) == (0, "1 message put back into dbo.Jobs\n")
    assert run("requeue", folder, "Sales", "Jobs", "--json").out == '{"messages": 1}\n'
    assert run("requeue", folder, "Sales", "Jobs").out == "0 messages put back into Jobs\n"
    with Instance.open(folder, background=False) as instance:
        assert instance.view("Jobs").num_rows == 2
    for arguments, problem in (
        (("sales", "Jobs"), "the instance has no database 'sales'; it has msdb, Sales; did you mean Sales?"),
        (
            ("Sales", "Job"),
            "15151: the queue 'dbo.Job' does not exist in the database 'Sales'; did you mean 'dbo.Jobs'?",
        ),
        (("Sales", "Jobs", "--conversation-handle", "x"), "--conversation-handle: 'x' is not a valid GUID"),
    ):
        found = run("requeue", folder, *arguments)
        assert (found.status, found.err.startswith(f"ssbroker: {problem}")) == (2, True), found.err


def test_status_with_a_damaged_database(run: Run, folder: Path) -> None:
    with closing(apsw.Connection(str(folder / "Sales.sqlite"))) as connection:
        connection.execute("DROP TABLE ssb_transmission_queue")
    result = run("status", folder)
    assert result.status == 1
    assert "Sales file cannot be read" in " ".join(result.out.split())
    assert f"database Sales: {folder / 'Sales.sqlite'}: the tables do not match the schema version" in result.out


def test_status_with_a_missing_database(run: Run, folder: Path) -> None:
    (folder / "Sales.sqlite").rename(folder / "Sales.gone")
    result = run("status", folder)
    assert result.status == 1
    assert "Sales file cannot be read" in " ".join(result.out.split())
    assert f"database Sales: {folder / 'Sales.sqlite'}: no such file" in result.out
    exported = run("status", folder, "--json")
    assert exported.status == 1
    (problem,) = [row["problem"] for row in json.loads(exported.out)["databases"] if row["name"] == "Sales"]
    assert f"{folder / 'Sales.sqlite'}: no such file" in problem


def test_status_of_an_empty_instance(run: Run, tmp_path: Path) -> None:
    Instance.create(tmp_path / "empty", name="empty", background=False).close()
    result = run("status", tmp_path / "empty")
    assert result.status == 0
    assert "The transmission queue is empty." in result.out


def test_instance_folder_is_a_catalog(run: Run, folder: Path) -> None:
    result = run("explain", folder, "--to-service", "//Stock", "--json")
    assert result.status == 0
    assert json.loads(result.out)["decision"]["next_hop_address"] == "TCP://stock:4022"


def test_folder_of_instances_is_a_fleet(run: Run, folder: Path) -> None:
    result = run("lint", "--fleet", folder.parent, "--level", "error", "--json")
    assert result.status in (0, 1)
    assert Fleet.load(folder.parent).keys() == {folder.name}


def test_variables_of_the_environment_are_used_last(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("Db", "Other")
    monkeypatch.setenv("PORT", "4022")
    script = tmp_path / "net.sql"
    script.write_text(
        ":setvar Host h\nCREATE DATABASE $(Db)\nGO\nUSE $(Db)\nGO\n"
        "CREATE ROUTE R WITH ADDRESS = N'TCP://$(Host):$(Port)'\n"
    )
    for given, database in (((), "Other"), (("-v", "DB=Sales"), "Sales")):
        result = run("explain", script, "--from", database, "--to-service", "//a", "--json", *given)
        assert json.loads(result.out)["decision"]["next_hop_address"] == "TCP://h:4022"
    with pytest.raises(DdlError, match=r"the sqlcmd variable \$\(Db\) is not defined"):
        Catalog.load(script)


def test_sql_options_for_scripts(tmp_path: Path, run: Run) -> None:
    folder, script = tmp_path / "shop", tmp_path / "publish.sql"
    script.write_bytes("CREATE DATABASE [$(Db)]\nGO\nUSE [$(Db)]\nCREATE QUEUE Größe\nPRINT 'x'\n".encode("cp1252"))
    refused = run("sql", folder, "--create", script, "--encoding", "cp1252")
    assert (refused.status, "the sqlcmd variable $(Db) is not defined" in refused.err) == (2, True)
    made = run("sql", folder, script, "--encoding", "cp1252", "-v", "Db=Sales", "--verbose")
    assert (made.status, made.out) == (0, f"{script}: done\n")
    assert made.err == f"ssbroker: warning: {script}:5: PRINT '...': skipped (not about Service Broker)\n"
    undecided = tmp_path / "undecided.sql"
    undecided.write_text("USE Sales\nIF @a = 1 CREATE QUEUE Q\n")
    left_out = run("sql", folder, undecided)
    assert (left_out.status, left_out.out) == (1, f"{undecided}: 1 statement not executed\n")
    assert "not executed, although it contains CREATE QUEUE" in left_out.err
    assert run("sql", folder, undecided, "--lenient").status == 0
    empty = tmp_path / "empty.sql"
    empty.write_text("hello world\n")
    assert run("sql", folder, empty).status == 2
    assert run("sql", folder, empty, "--lenient").status == 0
    refused = run("sql", folder, script, "-v", "Db")
    assert refused.status == 2
    assert "-v: expected NAME=VALUE, got 'Db'" in refused.err


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM sys.routes",
        "INSERT INTO sys.routes VALUES (1)",
        "UPDATE routes SET name = 'x'",
        "TRUNCATE dbo.Orders",
    ],
)
def test_views_and_queues_are_read_only(run: Run, folder: Path, statement: str) -> None:
    """The error does not say that there is no such view, and suggest the same name."""
    result = run("sql", folder, "--query", statement)
    assert result.status == 2
    assert result.err == "ssbroker: --query: views and queues are read-only: expected a SELECT statement\n"


@pytest.mark.parametrize(
    ("query", "instead"),
    [
        ("SELECT TOP 1 name FROM sys.routes", "LIMIT at the end instead of TOP"),
        ("SELECT name FROM sys.routes WITH (NOLOCK)", "no WITH (NOLOCK)"),
        ("SELECT getdate() AS t", "now() instead of GETDATE()"),
        ("SELECT ISNULL(name, '') FROM sys.routes", "coalesce() instead of ISNULL()"),
    ],
)
def test_error_of_t_sql_says_what_to_write_instead(run: Run, folder: Path, query: str, instead: str) -> None:
    result = run("sql", folder, "--query", query)
    assert result.status == 2
    assert result.err.endswith(f"Queries are in DuckDB's SQL: {instead}\n")
