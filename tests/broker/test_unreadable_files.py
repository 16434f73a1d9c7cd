"""A database whose file becomes unreadable while the instance is open does not affect the others."""

from __future__ import annotations

import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.broker.overview import health_problems, overview_of
from ssbroker.exceptions import BrokerError, InputError, SsbrokerError, StorageError
from ssbroker.protocol.events import LOG_LINES_MAX
from tests.broker import sample_databases
from tests.broker.conftest import Clock
from tests.broker.sample_databases import ORDERS, STOCK, received, send


@pytest.fixture
def sales(instance: Instance) -> Database:
    return sample_databases.shop(instance)


@pytest.fixture
def stock(instance: Instance) -> Database:
    return sample_databases.stock(instance)


@pytest.fixture
def ledger(instance: Instance) -> Database:
    """Another database, with the greatest id."""
    database = instance.create_database("Ledger")
    database.create_queue(ORDERS)
    database.create_service("//Ledger", queue=ORDERS)
    return database


def move_away(database: Database) -> Path:
    """Moves a file away, like a lost disk; returns its new path."""
    path = database.path
    database_context(database).file.connections.close_idle()  # the next one must open it
    return path.rename(path.with_suffix(".move_away"))


def damage(database: Database, table: str) -> None:
    """Overwrites the pages of a table and its indexes; others stay valid."""
    with database_context(database).file.read() as connection:
        rows = connection.execute("SELECT rootpage FROM sqlite_schema WHERE tbl_name = ?", (table,))
        roots: list[int] = [root for (root,) in rows]
        page = int(connection.pragma("page_size"))
    database_context(database).file.checkpoint()
    database_context(database).file.connections.close_idle()
    with database.path.open("r+b") as file:
        for root in roots:
            file.seek((root - 1) * page)
            file.write(b"\xff" * page)


def states_of(instance: Instance) -> dict[str, str]:
    return {row["name"]: row["state_desc"] for row in instance.view("sys.databases").to_pylist()}


def test_other_databases_work_and_their_timed_work_is_done(
    instance: Instance, sales: Database, stock: Database, ledger: Database, caplog: pytest.LogCaptureFixture
) -> None:
    dialog = send(sales, b"one")
    move_away(ledger)
    send(sales, b"two", dialog=dialog)
    send(sales, b"three")
    instance.run_due()
    assert sorted(received(stock)) == [b"one", b"three", b"two"]
    with sales.transaction() as t:
        t.begin_conversation_timer(dialog, 5)
    assert instance.run_due() == instance_context(instance).clock() + timedelta(seconds=5)
    emitted = [line.getMessage() for line in caplog.records]
    assert emitted == [
        f"the database 'Ledger' is not available until its file can be used again: {ledger.path}: was moved or deleted while it was open, so changes would be lost; put it back, or open the instance again"
    ]


def test_the_unreadable_database_is_shown_as_such(instance: Instance, sales: Database, ledger: Database) -> None:
    move_away(ledger)
    assert instance.catalog().databases["name"].to_pylist() == ["msdb", "Sales"]
    assert states_of(instance) == {"msdb": "ONLINE", "Sales": "ONLINE", "Ledger": "RECOVERY_PENDING"}
    assert instance.view("sys.transmission_queue").num_rows == 0
    assert {row["database"] for row in overview_of(instance)["queues"]} == {"Sales"}
    assert list(health_problems(instance)) == ["endpoint", "database Ledger"]
    with pytest.raises(StorageError, match="was moved or deleted"):
        instance.database("Ledger")
    assert instance.database("Sales") is sales


def test_a_queue_that_is_not_found_may_be_in_an_unreadable_database(instance: Instance) -> None:
    jobs = instance.queue("Jobs")
    jobs.put(b"one")
    hidden = move_away(instance.database("Queues"))
    instance.catalog()
    with pytest.raises(
        InputError, match=r"^the queue 'Jobs' does not exist; it may be in a database that is not available: Queues$"
    ):
        instance.view("Jobs")
    with pytest.raises(InputError, match=r"^the queue 'Jobs' does not exist$"):
        instance.view("Jobs", "msdb")
    hidden.rename(hidden.with_suffix(".sqlite"))
    assert instance.view("Jobs")["message_body"].to_pylist() == [b"one"]


def test_a_readable_again_database_keeps_its_settings(instance: Instance, sales: Database, ledger: Database) -> None:
    taken: list[bytes] = []
    ledger.activate(ORDERS, lambda database: taken.extend(received(database)))
    hidden = move_away(ledger)
    send(sales, b"one", to="//Ledger")
    instance.run_due()
    hidden.rename(ledger.path)
    instance.run_due()
    assert instance.database("Ledger") is ledger
    assert taken == [b"one"]


def test_a_database_detached_meanwhile_is_not_reported(
    instance: Instance, sales: Database, ledger: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with Instance.open(instance.folder, background=False) as other:
        other.detach_database("Ledger")
    with pytest.raises(StorageError):
        database_context(ledger).objects()
    assert [database.name for database, _ in instance_context(instance).databases_list.readable()] == ["msdb", "Sales"]
    assert instance.database("Sales") is sales
    assert not caplog.records


@pytest.mark.parametrize("table", ["ssb_transmission_queue", "ssb_queued_messages", "ssb_conversation_endpoints"])
def test_a_partly_damaged_file_does_not_affect_other_databases(instance: Instance, clock: Clock, table: str) -> None:
    """The damaged database is always the first to be processed."""
    first = sample_databases.stock(instance, "Archive")
    sales, stock = sample_databases.shop(instance), sample_databases.stock(instance)
    send(sales, b"to the archive", to=STOCK)
    first.activate(ORDERS, received)
    taken: list[bytes] = []
    stock.activate(ORDERS, lambda database: taken.extend(received(database)))
    damage(first, table)
    with sales.transaction() as t:
        dialog = t.begin_dialog(sample_databases.SHOP, STOCK, broker_instance=stock.service_broker_guid)
        t.send(dialog, b"one")
        t.begin_conversation_timer(dialog, 5)
    clock.advance(seconds=5)
    instance.run_due()
    assert taken[-1:] == [b"one"]
    assert sample_databases.received_types(sales, sample_databases.REPLIES) == ["DialogTimer"]


@pytest.mark.parametrize("table", ["ssb_transmission_queue", "ssb_queued_messages", "ssb_conversation_endpoints"])
def test_monitoring_reports_a_partly_damaged_file(
    instance: Instance, sales: Database, stock: Database, table: str
) -> None:
    """Readable state, such as the broker's, does not reveal the damage."""
    with stock.transaction() as t:
        t.send(t.begin_dialog(STOCK, "//nowhere"), b"one")
    damage(stock, table)
    send(sales, b"two", to="//nowhere")
    found = overview_of(instance)
    states = {row["name"]: row["state_desc"] for row in found["databases"]}
    assert states == {"msdb": "ONLINE", "Sales": "ONLINE", "Stock": "SUSPECT"}
    assert [row["problem"] for row in found["databases"] if row["problem"]] == [
        f"{stock.path}: database disk image is malformed"
    ]
    assert {row["database"] for row in found["queues"]} == {"Sales"}
    assert [row["messages"] for row in found["transmission_queue"]] == [1]
    emitted = health_problems(instance)
    assert emitted["database Stock"] == f"could not be read: {stock.path}: database disk image is malformed"
    assert database_context(stock).objects().broker.is_broker_enabled, "this page can be read"
    assert health_problems(instance) == emitted, "a successful read of another page does not clear the problem"
    assert "database Sales" not in emitted


def test_a_file_removed_from_its_folder_accepts_no_commits(instance: Instance, sales: Database) -> None:
    """Open handles can still read and write it, but it could not be found again."""
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE kept (number)")
    hidden = sales.path.rename(sales.path.with_suffix(".move_away"))
    with pytest.raises(StorageError, match="was moved or deleted"), sales.transaction() as t:
        t.connection.execute("INSERT INTO kept VALUES (1)")
    assert states_of(instance)["Sales"] == "RECOVERY_PENDING"
    assert "is missing or cannot be used" in health_problems(instance)["database Sales"]
    hidden.rename(sales.path)
    assert "database Sales" not in health_problems(instance)
    assert instance.database("Sales") is sales
    with sales.transaction() as t:
        assert t.connection.execute("SELECT count(*) FROM kept").get == 0


@pytest.mark.skipif(sys.platform == "win32", reason="open files cannot be replaced on Windows")
def test_a_replaced_file_accepts_no_commits(instance: Instance, sales: Database) -> None:
    """Like a manual restore: SQLite continues to write to the unlinked file, which is lost with the process."""
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE kept (number)")
    copy = sales.path.with_suffix(".copy")
    database_context(sales).file.query(lambda connection: connection.execute("VACUUM INTO ?", (str(copy),)))
    replaced = r"Sales\.sqlite: another file has replaced it .* close the instance in each process, remove the old file's -wal and -shm"
    with pytest.raises(StorageError, match=replaced), sales.transaction() as t:
        t.connection.execute("INSERT INTO kept VALUES (1)")
        copy.replace(sales.path)
    for use in (database_context(sales).objects, lambda: send(sales, b"")):
        with pytest.raises(StorageError, match=replaced):
            use()
    assert states_of(instance) == {"msdb": "ONLINE", "Sales": "RECOVERY_PENDING"}
    with pytest.raises(StorageError, match=replaced):
        instance.database("Sales")
    instance.close()
    for beside in ("-wal", "-shm"):
        sales.path.with_name(f"{sales.path.name}{beside}").unlink(missing_ok=True)
    with Instance.open(instance.folder, background=False) as again, again.database("Sales").transaction() as t:
        assert t.connection.execute("SELECT count(*) FROM kept").get == 0


def test_repeated_failures_do_not_fill_the_log(
    instance: Instance, stock: Database, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise each retry of each conversation would log a line until the file is repaired."""
    sample_databases.shop(instance)
    damage(stock, "ssb_conversation_endpoints")
    for _ in range(200):
        instance.run_due()
        clock.advance(seconds=0.1)
    assert 0 < len(caplog.records) <= 3 * LOG_LINES_MAX
    clock.advance(seconds=60)
    instance.run_due()
    assert [line for line in caplog.records if "more lines suppressed within a minute, from Stock" in line.getMessage()]


ALTERATIONS = (
    "PRAGMA user_version = 0",
    "PRAGMA user_version = 3",
    "PRAGMA user_version = -1",
    "PRAGMA foreign_keys = 0; DROP TABLE ssb_queues",
    "DROP TABLE ssb_transmission_queue",
    "DELETE FROM ssb_database",
)


@pytest.mark.parametrize("is_open", [True, False], ids=["while it is open", "before it is opened"])
@pytest.mark.parametrize("sql", ALTERATIONS)
def test_an_altered_file_is_reported_and_others_work(
    instance: Instance, clock: Clock, sql: str, *, is_open: bool
) -> None:
    """Applications can run any SQL on the file, also on the broker's tables."""
    altered, sales, stock = (
        sample_databases.stock(instance, "Altered"),
        sample_databases.shop(instance),
        sample_databases.stock(instance),
    )
    guid = stock.service_broker_guid
    if not is_open:
        instance.close()
    with closing(apsw.Connection(str(altered.path))) as connection:
        connection.execute(sql)
    if not is_open:
        instance = Instance.open(instance.folder, clock=clock, background=False)
        sales, stock = instance.database("Sales"), instance.database("Stock")
    with sales.transaction() as t:
        t.send(t.begin_dialog(sample_databases.SHOP, STOCK, broker_instance=guid), b"one")
    instance.run_due()
    assert received(stock) == [b"one"]
    assert states_of(instance)["Sales"] == "ONLINE"
    with pytest.raises(StorageError, match=r"Altered\.sqlite"):
        instance.view("sys.transmission_queue", database="Altered")
        instance.view("sys.service_queues", database="Altered")
        Instance.open(instance.folder, background=False).database("Altered")
    instance.close()


@pytest.mark.parametrize("script", ["USE Sales", "CREATE DATABASE Sales", "ALTER DATABASE Sales SET ENABLE_BROKER"])
def test_scripts_say_why_a_database_cannot_be_used(tmp_path: Path, script: str) -> None:
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        path = instance.create_database("Sales").path
    path.unlink()
    reason = "the database 'Sales' (already exists, but )?cannot be used: .*Sales.sqlite: no such file"
    with Instance.open(tmp_path / "shop", background=False) as instance:
        with pytest.raises(SsbrokerError, match=reason):
            instance.execute(script)
        with pytest.raises(BrokerError, match=reason):
            instance.create_database("Sales")
