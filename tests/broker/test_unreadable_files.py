"""B42: a database whose file cannot be read any more while the instance is open keeps the others from nothing."""

from __future__ import annotations

import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

from ssbroker.broker.database import Database
from ssbroker.broker.database import context_of as database_context
from ssbroker.broker.instance import Instance
from ssbroker.broker.instance import context_of as instance_context
from ssbroker.broker.network.monitoring import overview_of, problems
from ssbroker.exceptions import StorageError
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
    """Another database, whose number is the greatest."""
    database = instance.create_database("Ledger")
    database.create_queue(ORDERS)
    database.create_service("//Ledger", queue=ORDERS)
    return database


def away(database: Database) -> Path:
    """Takes a file away, as a disk does that is gone; where to."""
    path = database.path
    database_context(database).file.connections.close_idle()  # the next one has to open it
    return path.rename(path.with_suffix(".away"))


def damage(database: Database, table: str) -> None:
    """Writes over the pages of a table and its indexes; the others stay whole."""
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


def test_the_others_send_and_receive_and_what_is_due_is_done(
    instance: Instance, sales: Database, stock: Database, ledger: Database, caplog: pytest.LogCaptureFixture
) -> None:
    dialog = send(sales, b"one")
    away(ledger)
    send(sales, b"two", dialog=dialog)
    send(sales, b"three")
    instance.run_due()
    assert sorted(received(stock)) == [b"one", b"three", b"two"]
    with sales.transaction() as t:
        t.begin_conversation_timer(dialog, 5)
    assert instance.run_due() == instance_context(instance).clock() + timedelta(seconds=5)
    told = [line.getMessage() for line in caplog.records]
    assert told == [
        f"the database 'Ledger' is not available: {ledger.path}: was moved or deleted; changes would be lost"
    ]


def test_it_is_shown_as_one_that_could_not_be_opened(instance: Instance, sales: Database, ledger: Database) -> None:
    away(ledger)
    assert instance.catalog().databases["name"].to_pylist() == ["msdb", "Sales"]
    assert states_of(instance) == {"msdb": "ONLINE", "Sales": "ONLINE", "Ledger": "RECOVERY_PENDING"}
    assert instance.view("sys.transmission_queue").num_rows == 0
    assert {row["database"] for row in overview_of(instance)["queues"]} == {"Sales"}
    assert list(problems(instance)) == ["endpoint", "database Ledger"]
    with pytest.raises(StorageError, match="was moved or deleted"):
        instance.database("Ledger")
    assert instance.database("Sales") is sales


def test_once_it_can_be_read_it_is_the_same_database_with_what_was_asked_of_it(
    instance: Instance, sales: Database, ledger: Database
) -> None:
    taken: list[bytes] = []
    ledger.activate(ORDERS, lambda database: taken.extend(received(database)))
    hidden = away(ledger)
    send(sales, b"one", to="//Ledger")
    instance.run_due()
    hidden.rename(ledger.path)
    instance.run_due()
    assert instance.database("Ledger") is ledger
    assert taken == [b"one"]


def test_where_it_was_taken_away_meanwhile_nobody_is_alarmed(
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
def test_of_a_file_that_is_damaged_in_one_place_the_rest_of_the_instance_does_not_hear(
    instance: Instance, clock: Clock, table: str
) -> None:
    """It comes before the others wherever they are taken in turn."""
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
def test_whoever_watches_hears_of_a_file_that_is_damaged_in_one_place_and_the_numbers_of_the_others(
    instance: Instance, sales: Database, stock: Database, table: str
) -> None:
    """What can be read of it, such as the broker's state, says nothing of what cannot."""
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
    told = problems(instance)
    assert told["database Stock"] == f"could not be read: {stock.path}: database disk image is malformed"
    assert database_context(stock).objects().broker.is_broker_enabled, "this much can be read"
    assert problems(instance) == told, "a read that succeeds is of another place"
    assert "database Sales" not in told


def test_a_file_that_has_gone_from_its_folder_takes_no_more_commits(instance: Instance, sales: Database) -> None:
    """All of it can still be read and written by what is open, and nobody would find it again."""
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE kept (number)")
    hidden = sales.path.rename(sales.path.with_suffix(".away"))
    with pytest.raises(StorageError, match="was moved or deleted"), sales.transaction() as t:
        t.connection.execute("INSERT INTO kept VALUES (1)")
    assert states_of(instance)["Sales"] == "RECOVERY_PENDING"
    assert "is not there" in problems(instance)["database Sales"]
    hidden.rename(sales.path)
    assert "database Sales" not in problems(instance)
    assert instance.database("Sales") is sales
    with sales.transaction() as t:
        assert t.connection.execute("SELECT count(*) FROM kept").get == 0


@pytest.mark.skipif(sys.platform == "win32", reason="nobody replaces an open file there")
def test_a_file_that_another_takes_the_place_of_takes_no_more_commits(instance: Instance, sales: Database) -> None:
    """As a restore by hand does it: SQLite writes on to the file that has no name any more, and it is lost with the process."""
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE kept (number)")
    copy = sales.path.with_suffix(".copy")
    database_context(sales).file.query(lambda connection: connection.execute("VACUUM INTO ?", (str(copy),)))
    replaced = r"Sales\.sqlite: another file has replaced it .* Close the instance in each process, remove the old file's -wal and -shm"
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


def test_what_fails_each_time_it_is_tried_does_not_fill_the_log(
    instance: Instance, stock: Database, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """One conversation that waits is tried often; so many of them would have a line each, for as long as nobody mends the file."""
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
def test_a_file_that_somebody_has_altered_is_told_of_and_the_others_go_on(
    instance: Instance, clock: Clock, sql: str, *, is_open: bool
) -> None:
    """An application writes to its own tables with SQL of its own; nobody keeps it from ours."""
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
