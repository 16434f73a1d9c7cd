"""One transaction: the application's own tables and its conversations together, or not at all (B2, B4, B5)."""

from __future__ import annotations

import gc
from contextlib import closing
from pathlib import Path
from typing import NoReturn

import apsw
import pytest

from ssbroker.broker.database import Database
from ssbroker.broker.database import context_of as database_context
from ssbroker.broker.instance import Instance
from ssbroker.exceptions import BrokerError, LockTimeoutError, StorageError
from tests.broker import dialog_calls
from tests.broker.conftest import INITIATOR, QUEUE, TARGET
from tests.broker.dialog_calls import begin, receive, said, send
from tests.internals import instance_of


class PlannedError(Exception):
    """The application's own."""


def test_tables_and_messages_are_committed_together(sales: Database) -> None:
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT)")
        t.connection.execute("INSERT INTO orders (what) VALUES ('chair')")
        t.send(t.begin_dialog(INITIATOR, TARGET), b"chair")
    with sales.transaction() as t:
        assert t.connection.execute("SELECT what FROM orders").fetchall() == [("chair",)]
        assert said(t.receive(QUEUE)) == [b"chair"]


def test_an_exception_undoes_everything(sales: Database) -> None:
    dialog = begin(sales, b"first")
    before = dialog_calls.contents(sales)
    with pytest.raises(PlannedError), sales.transaction() as t:
        t.connection.execute("CREATE TABLE orders (id INTEGER)")
        assert said(t.receive(QUEUE)) == [b"first"]
        t.send(dialog, b"second")
        t.send(t.begin_dialog(INITIATOR, TARGET), b"other")
        t.end_conversation(dialog)
        raise PlannedError
    after = dialog_calls.contents(sales)
    rollbacks = {name: rows for name, rows in after.items() if rows != before.get(name)}
    assert set(rollbacks) <= {"ssb_queues"}  # where the rollback is counted (B24)
    assert said(receive(sales)) == [b"first"]


def test_nothing_is_locked_before_the_first_use(sales: Database) -> None:
    with sales.transaction(), sales.transaction() as inner:
        inner.begin_dialog(INITIATOR, TARGET)


@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT",
        "commit transaction",
        "END",
        "ROLLBACK",
        "Rollback Transaction",
        "BEGIN IMMEDIATE",
        " ;; -- why not\n /* just\n now */ COMMIT;",
        "SELECT 1; COMMIT",
    ],
)
def test_an_applications_commit_or_rollback_is_refused_and_the_transaction_goes_on(sales: Database, sql: str) -> None:
    with sales.transaction() as t:
        dialog = t.begin_dialog(INITIATOR, TARGET)
        t.send(dialog, b"kept")
        for execute in (t.connection.execute, t.connection.cursor().execute):
            with pytest.raises(BrokerError, match="is not allowed in a broker transaction"):
                execute(sql).fetchall()
        t.send(dialog, b"too")
    assert said(receive(sales)) == [b"kept", b"too"]


def test_savepoints_are_the_applications(sales: Database) -> None:
    """What is rolled back to a savepoint is as if it had not been: the next message takes the number."""
    with sales.transaction() as t:
        dialog = t.begin_dialog(INITIATOR, TARGET)
        t.send(dialog, b"one")
        with pytest.raises(PlannedError), t.connection:
            t.send(dialog, b"undone")
            raise PlannedError
        t.connection.execute("SAVEPOINT mine")
        t.send(dialog, b"undone too")
        t.connection.execute("ROLLBACK TO mine")
        t.connection.execute("ROLLBACK TRANSACTION TO SAVEPOINT mine")
        t.connection.execute("RELEASE mine")
        t.send(dialog, b"two")
    table = receive(sales)
    assert said(table) == [b"one", b"two"]
    assert table["message_sequence_number"].to_pylist() == [0, 1]


def test_a_refused_call_leaves_what_was_done_before(sales: Database) -> None:
    with sales.transaction() as t:
        dialog = t.begin_dialog(INITIATOR, TARGET)
        t.send(dialog, b"before")
        inside = dialog_calls.contents(sales, t.connection)
        with pytest.raises(BrokerError, match="8428"):
            t.send(dialog, b"x", message_type="//Unknown")
        assert dialog_calls.contents(sales, t.connection) == inside
        t.send(dialog, b"after")
    assert said(receive(sales)) == [b"before", b"after"]


@pytest.mark.parametrize("sql", ["INSERT INTO orders (what) VALUES ('chair') RETURNING id", "SELECT 1 UNION SELECT 2"])
def test_a_cursor_that_is_not_read_to_its_end_keeps_nothing_from_being_committed(sales: Database, sql: str) -> None:
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT)")
    with sales.transaction() as t:
        cursor = t.connection.execute(sql)
        assert cursor.fetchone() == (1,)
        t.send(t.begin_dialog(INITIATOR, TARGET), b"chair")
    with pytest.raises(apsw.CursorClosedError):
        cursor.fetchone()
    assert said(receive(sales)) == [b"chair"]


def test_a_blob_that_is_still_open_is_named_as_what_it_is(sales: Database) -> None:
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE orders (what BLOB)")
        t.connection.execute("INSERT INTO orders VALUES (zeroblob(10))")
    with pytest.raises(StorageError, match="close it before the transaction ends") as told, sales.transaction() as t:
        blob = t.connection.blob_open("main", "orders", "what", 1, True)  # apsw takes it by position
        blob.write(b"chair")
    assert not isinstance(told.value, LockTimeoutError)
    with sales.transaction() as t:
        assert t.connection.execute("SELECT what FROM orders").get == bytes(10)


def test_what_an_application_sets_on_the_connection_ends_with_the_transaction(sales: Database) -> None:
    with sales.transaction() as t:
        t.connection.row_trace = lambda _cursor, row: row[0]
        assert t.connection.execute("SELECT 7").get == 7
    begin(sales, b"chair")
    assert said(receive(sales)) == [b"chair"]


@pytest.mark.parametrize(
    "sql",
    [
        "PRAGMA query_only = 1",
        "PRAGMA locking_mode = EXCLUSIVE",
        "ATTACH ':memory:' AS other",
        "CREATE TEMP TABLE mine (number)",
        "/* mine */ create\n temporary view mine AS SELECT 1",
    ],
)
def test_what_sqlite_keeps_for_the_connection_ends_with_the_transaction(sales: Database, sql: str) -> None:
    for _ in range(2):
        with sales.transaction() as t:
            t.connection.execute("CREATE TABLE IF NOT EXISTS invoices (number)")
            t.connection.execute(sql)
        with sales.transaction() as t:
            t.connection.execute("INSERT INTO invoices VALUES (1)")
            t.send(t.begin_dialog(INITIATOR, TARGET), b"two chairs")
    assert instance_of(sales).view(QUEUE, database=sales.name).num_rows == 2


def test_what_is_called_for_the_connection_ends_with_the_transaction(sales: Database) -> None:
    def refuses(*_: object) -> NoReturn:
        raise AssertionError

    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE invoices (number)")
        t.connection.set_update_hook(refuses)
        t.connection.cursor_factory = refuses
    with sales.transaction() as t:
        t.connection.execute("INSERT INTO invoices VALUES (1)")


def test_a_connection_that_the_application_closes_undoes_its_transaction_only(sales: Database) -> None:
    for is_used_after in (False, True):
        with pytest.raises(StorageError, match="no changes were saved"), sales.transaction() as t:
            dialog = t.begin_dialog(INITIATOR, TARGET)
            t.connection.close()
            if is_used_after:
                t.send(dialog, b"two chairs")
    with sales.transaction() as t:
        t.send(t.begin_dialog(INITIATOR, TARGET), b"a table")
    assert said(receive(sales)) == [b"a table"]


def test_who_cannot_get_the_lock_is_told(instance: Instance, sales: Database) -> None:
    begin(sales, b"x")
    with Instance.open(instance.folder, background=False, lock_timeout=0.02) as other, sales.transaction() as t:
        assert said(t.receive(QUEUE)) == [b"x"]
        with pytest.raises(LockTimeoutError), other.database("Sales").transaction() as second:
            second.begin_dialog(INITIATOR, TARGET)
    assert receive(sales).num_rows == 0


def test_what_is_busy_beside_the_transaction_is_not_told_as_its_own_file(sales: Database, tmp_path: Path) -> None:
    """Who has the write lock waits for nobody; a file of the application's own does not wait unless it is told to."""
    path = tmp_path / "theirs.sqlite"
    with closing(apsw.Connection(str(path))) as writes, closing(apsw.Connection(str(path))) as finds_it_busy:
        writes.execute("BEGIN IMMEDIATE")
        with pytest.raises(apsw.BusyError, match="database is locked"), sales.transaction() as t:
            t.send(t.begin_dialog(INITIATOR, TARGET), b"lost")
            finds_it_busy.execute("BEGIN IMMEDIATE")
    assert receive(sales).num_rows == 0


def test_who_would_wait_for_a_transaction_of_its_own_is_told_so_at_once(sales: Database) -> None:
    database_context(sales).file.lock_timeout = float("inf")
    dialog = begin(sales, b"x")
    with sales.transaction() as t:
        t.send(dialog, b"y")
        for waits in (lambda: sales.create_queue("Late"), lambda: sales.set_broker("NEW_BROKER"), lambda: begin(sales)):
            with pytest.raises(LockTimeoutError, match="its own open transaction"):
                waits()
    assert said(receive(sales)) == [b"x", b"y"]


def test_a_transaction_is_used_inside_of_its_block(sales: Database) -> None:
    transaction = sales.transaction()
    with pytest.raises(BrokerError, match="inside its `with` block"):
        transaction.begin_dialog(INITIATOR, TARGET)
    with transaction:
        pass
    for use in (lambda: transaction.receive(QUEUE), lambda: transaction.connection, transaction.__enter__):
        with pytest.raises(BrokerError):
            use()


@pytest.mark.parametrize("circle", ["by itself", "in a circle"])
def test_a_transaction_that_is_dropped_before_its_end_is_undone(sales: Database, circle: str) -> None:
    """Who enters it by hand and loses it cannot end it any more: nobody could write to the file again."""

    def lose() -> None:
        lost = [sales.transaction().__enter__()]
        lost[0].send(lost[0].begin_dialog(INITIATOR, TARGET), b"lost")
        lost[0].connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        if circle == "in a circle":
            lost.append(lost)  # type: ignore[arg-type]

    def collect() -> None:
        lose()
        gc.collect()

    with pytest.warns(ResourceWarning, match="use it in a `with` block"):
        collect()
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        assert t.receive(QUEUE).num_rows == 0


def test_a_call_that_fails_on_its_way_undoes_the_transaction(sales: Database) -> None:
    """As a full disk would: what it had written by then never stands alone, even where the application goes on."""
    dialog = begin(sales, b"first")
    before = dialog_calls.contents(sales)
    with pytest.raises(StorageError, match="no changes were saved"), sales.transaction() as t:
        t.connection.execute(
            "CREATE TEMP TRIGGER full BEFORE INSERT ON ssb_queued_messages BEGIN SELECT raise(FAIL, 'full'); END"
        )
        with pytest.raises(apsw.ConstraintError):
            t.send(dialog, b"lost")
        with pytest.raises(StorageError, match="no changes were saved"):
            t.send(dialog, b"no more")
    assert dialog_calls.contents(sales) == before
    send(sales, dialog, b"second")
    assert said(receive(sales)) == [b"first", b"second"]


def test_what_the_application_writes_with_its_own_statements_is_checked_by_sqlite_alone(sales: Database) -> None:
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        t.connection.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(apsw.ConstraintError):
            t.connection.execute("INSERT INTO orders VALUES (1)")
        t.connection.execute("INSERT INTO orders VALUES (2)")
    with sales.transaction() as t:
        assert t.connection.execute("SELECT count(*) FROM orders").get == 2
