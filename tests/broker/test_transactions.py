"""One transaction: changes of application tables and conversations are committed together or not at all."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import apsw
import pytest

from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance
from ssbroker.broker.transaction import Transaction
from ssbroker.exceptions import BrokerError, LockTimeoutError, StorageError
from tests.broker import dialog_calls
from tests.broker.conftest import INITIATOR, QUEUE, TARGET
from tests.broker.dialog_calls import begin, contents_of, receive, send
from tests.internals import instance_of


class PlannedError(Exception):
    """An error of the application."""


def test_tables_and_messages_are_committed_together(sales: Database) -> None:
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT)")
        t.connection.execute("INSERT INTO orders (what) VALUES ('chair')")
        t.send(t.begin_dialog(INITIATOR, TARGET), b"chair")
    with sales.transaction() as t:
        assert t.connection.execute("SELECT what FROM orders").fetchall() == [("chair",)]
        assert contents_of(t.receive(QUEUE)) == [b"chair"]


def test_an_exception_undoes_everything(sales: Database) -> None:
    dialog = begin(sales, b"first")
    before = dialog_calls.contents(sales)
    with pytest.raises(PlannedError), sales.transaction() as t:
        t.connection.execute("CREATE TABLE orders (id INTEGER)")
        assert contents_of(t.receive(QUEUE)) == [b"first"]
        t.send(dialog, b"second")
        t.send(t.begin_dialog(INITIATOR, TARGET), b"other")
        t.end_conversation(dialog)
        raise PlannedError
    after = dialog_calls.contents(sales)
    rollbacks = {name: rows for name, rows in after.items() if rows != before.get(name)}
    assert set(rollbacks) <= {"ssb_queues"}  # the rollback count
    assert contents_of(receive(sales)) == [b"first"]


def test_the_lock_is_acquired_at_the_first_use(sales: Database) -> None:
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
def test_an_application_cannot_commit_or_roll_back_by_sql(sales: Database, sql: str) -> None:
    with sales.transaction() as t:
        dialog = t.begin_dialog(INITIATOR, TARGET)
        t.send(dialog, b"kept")
        for execute in (t.connection.execute, t.connection.cursor().execute):
            with pytest.raises(BrokerError, match="is not allowed in a broker transaction"):
                execute(sql).fetchall()
        t.send(dialog, b"too")
    assert contents_of(receive(sales)) == [b"kept", b"too"]


@pytest.mark.parametrize(
    "sql",
    [
        "PRAGMA user_version = 3",
        "pragma main.User_Version=3",
        "-- mine\nPRAGMA user_version(3)",
        "PRAGMA application_id = 7",
        'PRAGMA "main".user_version=5',
        "PRAGMA [user_version]=5",
        "PRAGMA/**/user_version/**/=5",
        "PRAGMA main . 'user_version' = 5",
    ],
)
def test_an_application_cannot_change_the_version_of_the_file(instance: Instance, sales: Database, sql: str) -> None:
    """The file could not be opened again."""
    with sales.transaction() as t:
        with pytest.raises(BrokerError, match=r"PRAGMA (user_version|application_id) cannot be set"):
            t.connection.execute(sql)
        assert t.connection.execute("PRAGMA user_version").get > 0
    with Instance.open(instance.folder, background=False) as other:
        assert other.database("Sales").queue("Jobs").name == "Jobs"


def test_an_application_can_use_savepoints(sales: Database) -> None:
    """After a rollback to a savepoint, the next message gets the number again."""
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
    assert contents_of(table) == [b"one", b"two"]
    assert table["message_sequence_number"].to_pylist() == [0, 1]


def test_a_rejected_call_keeps_previous_changes(sales: Database) -> None:
    with sales.transaction() as t:
        dialog = t.begin_dialog(INITIATOR, TARGET)
        t.send(dialog, b"before")
        inside = dialog_calls.contents(sales, t.connection)
        with pytest.raises(BrokerError, match="8428"):
            t.send(dialog, b"x", message_type="//Unknown")
        assert dialog_calls.contents(sales, t.connection) == inside
        t.send(dialog, b"after")
    assert contents_of(receive(sales)) == [b"before", b"after"]


@pytest.mark.parametrize("sql", ["INSERT INTO orders (what) VALUES ('chair') RETURNING id", "SELECT 1 UNION SELECT 2"])
def test_an_unfinished_cursor_does_not_prevent_a_commit(sales: Database, sql: str) -> None:
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT)")
    with sales.transaction() as t:
        cursor = t.connection.execute(sql)
        assert cursor.fetchone() == (1,)
        t.send(t.begin_dialog(INITIATOR, TARGET), b"chair")
    with pytest.raises(apsw.CursorClosedError):
        cursor.fetchone()
    assert contents_of(receive(sales)) == [b"chair"]


def test_the_error_names_an_open_blob(sales: Database) -> None:
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE orders (what BLOB)")
        t.connection.execute("INSERT INTO orders VALUES (zeroblob(10))")
    with pytest.raises(StorageError, match="close it before the transaction ends") as emitted, sales.transaction() as t:
        blob = t.connection.blob_open("main", "orders", "what", 1, True)  # apsw takes it by position
        blob.write(b"chair")
    assert not isinstance(emitted.value, LockTimeoutError)
    with sales.transaction() as t:
        assert t.connection.execute("SELECT what FROM orders").get == bytes(10)


def test_connection_settings_end_with_the_transaction(sales: Database) -> None:
    with sales.transaction() as t:
        t.connection.row_trace = lambda _cursor, row: row[0]
        assert t.connection.execute("SELECT 7").get == 7
    begin(sales, b"chair")
    assert contents_of(receive(sales)) == [b"chair"]


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
def test_connection_state_of_sqlite_ends_with_the_transaction(sales: Database, sql: str) -> None:
    for _ in range(2):
        with sales.transaction() as t:
            t.connection.execute("CREATE TABLE IF NOT EXISTS invoices (number)")
            t.connection.execute(sql)
        with sales.transaction() as t:
            t.connection.execute("INSERT INTO invoices VALUES (1)")
            t.send(t.begin_dialog(INITIATOR, TARGET), b"two chairs")
    assert instance_of(sales).view(QUEUE, database=sales.name).num_rows == 2


def test_connection_callbacks_end_with_the_transaction(sales: Database) -> None:
    def reject(*_: object) -> NoReturn:
        raise AssertionError

    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE invoices (number)")
        t.connection.set_update_hook(reject)
        t.connection.cursor_factory = reject
    with sales.transaction() as t:
        t.connection.execute("INSERT INTO invoices VALUES (1)")


def dict_row(cursor: apsw.Cursor, row: tuple[object, ...]) -> dict[str, object]:
    return {name: value for (name, *_), value in zip(cursor.get_description(), row, strict=True)}


def fail(*_: object) -> NoReturn:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("row_trace", dict_row),
        ("row_trace", fail),
        ("exec_trace", fail),
        ("cursor_factory", fail),
        ("convert_binding", fail),
        ("convert_jsonb", fail),
    ],
)
def test_connection_settings_do_not_affect_calls(sales: Database, setting: str, value: object) -> None:
    """They apply to the statements of the application, not to those of ssbroker on the same connection."""
    if not hasattr(apsw.Connection, setting):
        pytest.skip(f"this version of apsw has no {setting}")
    jobs = sales.queue("Jobs")
    jobs.put(b"zero")
    dialog = begin(sales, b"chair")
    with jobs.take(timeout=0) as job, job.transaction() as t:
        setattr(t.connection, setting, value)
        t.send(dialog, b"table")
        t.send(t.begin_dialog(INITIATOR, TARGET), bytes([0x0C]))  # which could be JSONB
        assert contents_of(t.receive(QUEUE)) == [b"chair", b"table"]
        jobs.put(b"one", transaction=t)
        t.end_conversation(dialog)
        assert getattr(t.connection, setting) is value
    assert contents_of(receive(sales)) == [bytes([0x0C])]
    assert jobs.count() == 1


@pytest.mark.parametrize(
    "install",
    [
        lambda connection: setattr(connection, "authorizer", fail),
        lambda connection: connection.set_progress_handler(fail, 1),
        lambda connection: connection.set_update_hook(fail),
        lambda connection: connection.set_rollback_hook(fail),
        lambda connection: connection.set_wal_hook(fail),
        lambda connection: connection.set_profile(fail),
        lambda connection: connection.trace_v2(apsw.SQLITE_TRACE_STMT, fail),
    ],
)
def test_a_hook_that_fails_undoes_only_its_transaction(
    sales: Database, install: Callable[[apsw.Connection], object]
) -> None:
    """Hooks of SQLite itself apply to all statements; an error is that of the hook, in native calls too."""
    dialog = begin(sales, b"chair")
    with suppress(StorageError, ZeroDivisionError, apsw.Error), sales.transaction() as t:
        install(t.connection)
        with suppress(StorageError):
            t.send(dialog, b"table")
            t.send(t.begin_dialog(INITIATOR, TARGET), b"shelf")
        raise ZeroDivisionError
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE invoices (number)")
        t.send(dialog, b"lamp")
    assert contents_of(receive(sales)) == [b"chair", b"lamp"]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM ssb_database",
        '/* mine */ insert or replace into main."SSB_queues" DEFAULT VALUES',
        "DELETE FROM [main] . [ssb_database]",
        "DROP TABLE IF EXISTS 'main'.ssb_queued_messages",
        "UPDATE OR IGNORE ssb_services SET name = 'x'",
        "CREATE TABLE IF NOT EXISTS ssb_orders (id INTEGER PRIMARY KEY)",
        "CREATE INDEX ssb_mine ON invoices (number)",
        "ALTER TABLE ssb_database ADD COLUMN mine",
        "DROP TABLE IF EXISTS ssb_queued_messages",
        "WITH old AS (SELECT 1) DELETE FROM ssb_queued_messages",
        "with recursive n(i) as (select 1) insert or ignore into main.ssb_services (name) select i from n",
        "WITH n AS (SELECT 1) /* mine */ UPDATE OR REPLACE 'ssb_services' SET name = 'x'",
        "CREATE TRIGGER mine AFTER INSERT ON invoices BEGIN DELETE FROM ssb_queued_messages; END",
        "CREATE TEMP TRIGGER IF NOT EXISTS mine AFTER INSERT ON invoices BEGIN SELECT 1; REPLACE INTO ssb_queues VALUES (1); END",
    ],
)
def test_statements_that_would_break_the_file_are_refused(sales: Database, sql: str) -> None:
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE invoices (number)")
        with pytest.raises(BrokerError, match=r"names that begin with 'ssb_', such as '(?i:ssb_)"):
            t.connection.execute(sql)
        t.connection.execute("INSERT INTO invoices SELECT queue_id FROM ssb_queues")
        t.connection.execute("WITH ids AS (SELECT queue_id FROM ssb_queues) DELETE FROM invoices WHERE number IN ids")
        t.connection.execute("INSERT INTO invoices VALUES ('DELETE FROM ssb_queues')")
        t.connection.execute("UPDATE invoices SET number = 'ssb_'")
    begin(sales, b"chair")
    assert contents_of(receive(sales)) == [b"chair"]


def test_statements_may_have_many_comments(sales: Database) -> None:
    """Deciding about such a statement once took time that doubled with each comment, or grew with the square of their number."""
    comments = "/* a comment */ -- another\n" * 50
    with sales.transaction() as t:
        assert t.connection.execute(f"{comments} SELECT 1").get == 1
        for sql in (
            "COMMIT",
            "PRAGMA user_version = 3",
            "DELETE FROM ssb_queues",
            "WITH n AS (SELECT 1) DELETE FROM ssb_queues",
        ):
            with pytest.raises(BrokerError, match=r"is not allowed|cannot be set"):
                t.connection.execute(f"{comments}{sql.replace(' ', f' {comments}', 1)}")
        nested = "INSERT/*" * 100_000
        assert t.connection.execute(f"WITH n AS (SELECT 2) SELECT * FROM n /* {nested} ssb_").get == 2
        text = "it's /* -- no comment"
        assert t.connection.execute("/* '*/ SELECT 'it''s /* -- no comment' -- '").get == text


def test_closing_the_connection_undoes_only_its_transaction(sales: Database) -> None:
    for is_used_after in (False, True):
        with pytest.raises(StorageError, match="no changes were saved"), sales.transaction() as t:
            dialog = t.begin_dialog(INITIATOR, TARGET)
            t.connection.close(force=True)
            if is_used_after:
                t.send(dialog, b"two chairs")
    with sales.transaction() as t:
        t.send(t.begin_dialog(INITIATOR, TARGET), b"a table")
    assert contents_of(receive(sales)) == [b"a table"]


def test_a_lock_timeout_raises(instance: Instance, sales: Database) -> None:
    begin(sales, b"x")
    with Instance.open(instance.folder, background=False, lock_timeout=0.02) as other, sales.transaction() as t:
        assert contents_of(t.receive(QUEUE)) == [b"x"]
        with pytest.raises(LockTimeoutError), other.database("Sales").transaction() as second:
            second.begin_dialog(INITIATOR, TARGET)
    assert receive(sales).num_rows == 0


def test_a_busy_attached_file_is_not_reported_as_the_databases_file(sales: Database, tmp_path: Path) -> None:
    """The holder of the write lock does not wait; an application's own file waits only if configured to."""
    path = tmp_path / "theirs.sqlite"
    with closing(apsw.Connection(str(path))) as writes, closing(apsw.Connection(str(path))) as finds_it_busy:
        writes.execute("BEGIN IMMEDIATE")
        with pytest.raises(apsw.BusyError, match="database is locked"), sales.transaction() as t:
            t.send(t.begin_dialog(INITIATOR, TARGET), b"lost")
            finds_it_busy.execute("BEGIN IMMEDIATE")
    assert receive(sales).num_rows == 0


def test_waiting_for_the_own_transaction_raises_immediately(sales: Database) -> None:
    database_context(sales).file.lock_timeout = float("inf")
    dialog = begin(sales, b"x")
    with sales.transaction() as t:
        t.send(dialog, b"y")
        for waits in (lambda: sales.create_queue("Late"), lambda: sales.set_broker("NEW_BROKER"), lambda: begin(sales)):
            with pytest.raises(LockTimeoutError, match="its own open transaction"):
                waits()
    assert contents_of(receive(sales)) == [b"x", b"y"]


@contextmanager
def request_transaction(database: Database) -> Iterator[Transaction]:
    """A dependency as web frameworks run it: each step in any thread of a pool."""
    with database.transaction() as t:
        yield t


def test_a_thread_that_has_entered_a_suspended_generator_waits(sales: Database) -> None:
    dialog = begin(sales, b"x")
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        request = request_transaction(sales)
        t = first.submit(request.__enter__).result()
        second.submit(t.send, dialog, b"y").result()
        waiting = first.submit(begin, sales, b"z")
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        second.submit(request.__exit__, None, None, None).result()
        waiting.result(timeout=10)
    with sales.transaction() as t:
        assert sorted(contents_of(t.receive(QUEUE, groups=None))) == [b"x", b"y", b"z"]


def test_the_error_of_a_thread_that_waits_for_its_own_generator_names_it(sales: Database) -> None:
    database_context(sales).file.lock_timeout = 0.1
    with (
        request_transaction(sales) as t,
        pytest.raises(LockTimeoutError, match="A generator that began its transaction in thread 'MainThread'"),
    ):
        t.send(t.begin_dialog(INITIATOR, TARGET), b"y")
        begin(sales)


def test_a_thread_can_put_while_the_generator_of_another_request_is_suspended(sales: Database) -> None:
    queue = sales.queue("Jobs")
    with ThreadPoolExecutor(1) as thread:
        request = request_transaction(sales)
        thread.submit(request.__enter__).result()
        thread.submit(queue.put, b"of another request").result()
        thread.submit(request.__exit__, None, None, None).result()
    assert queue.count() == 1


def test_a_transaction_can_only_be_used_inside_its_block(sales: Database) -> None:
    transaction = sales.transaction()
    with pytest.raises(BrokerError, match="inside its `with` block"):
        transaction.begin_dialog(INITIATOR, TARGET)
    with transaction:
        pass
    for use in (lambda: transaction.receive(QUEUE), lambda: transaction.connection, transaction.__enter__):
        with pytest.raises(BrokerError):
            use()


@pytest.mark.parametrize("circle", ["by itself", "in a circle"])
def test_a_garbage_collected_transaction_is_rolled_back(sales: Database, circle: str) -> None:
    """A transaction entered manually and lost can no longer be ended: the file could never be written again."""

    def lose_transaction() -> None:
        lost = [sales.transaction().__enter__()]
        lost[0].send(lost[0].begin_dialog(INITIATOR, TARGET), b"lost")
        lost[0].connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        if circle == "in a circle":
            lost.append(lost)  # type: ignore[arg-type]

    def collect() -> None:
        lose_transaction()
        gc.collect()

    with pytest.warns(ResourceWarning, match="use it in a `with` block"):
        collect()
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        assert t.receive(QUEUE).num_rows == 0


def test_a_call_that_fails_midway_undoes_the_transaction(sales: Database) -> None:
    """Like a full disk: partial writes of a call are never committed, even if the application continues."""
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
    assert contents_of(receive(sales)) == [b"first", b"second"]


def test_application_statements_are_checked_by_sqlite_only(sales: Database) -> None:
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        t.connection.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(apsw.ConstraintError):
            t.connection.execute("INSERT INTO orders VALUES (1)")
        t.connection.execute("INSERT INTO orders VALUES (2)")
    with sales.transaction() as t:
        assert t.connection.execute("SELECT count(*) FROM orders").get == 2


def _kept_connection(sales: Database, kind: str) -> apsw.Connection:
    if kind == "read":
        with sales.read() as connection:
            connection.execute("SELECT 1").fetchall()
            return connection
    with suppress(ZeroDivisionError), sales.transaction() as t:
        connection = t.connection
        connection.execute("SELECT 1").fetchall()
        if kind == "rolled back":
            raise ZeroDivisionError
    return connection


@pytest.mark.parametrize("kind", ["committed", "rolled back", "read"])
def test_a_connection_is_usable_only_in_its_block(sales: Database, kind: str) -> None:
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE stock (article TEXT)")
    kept = _kept_connection(sales, kind)
    for sql in ("INSERT INTO stock VALUES ('chair')", "BEGIN IMMEDIATE", "SELECT 1"):
        with pytest.raises(BrokerError, match="use a connection only inside its block"):
            kept.execute(sql)
        with pytest.raises(BrokerError, match="use a connection only inside its block"):
            kept.cursor().execute(sql)
    with pytest.raises(BrokerError, match="use a connection only inside its block"):
        kept.blob_open("main", "stock", "article", 1, True)
    with pytest.raises(BrokerError, match="cannot be closed, because ssbroker uses it again after the block"):
        kept.close()
    for _ in range(2):
        with sales.transaction() as t:
            t.connection.execute("INSERT INTO stock VALUES ('table')")
            dialog = t.begin_dialog(INITIATOR, TARGET)
            t.send(dialog, b"two chairs")
        with sales.read() as connection:
            assert connection.execute("SELECT DISTINCT article FROM stock").fetchall() == [("table",)]
        with sales.transaction() as t:
            assert t.receive_one(QUEUE) is not None
        sales.create_queue("Another", exist_ok=True)
        with pytest.raises(BrokerError, match="use a connection only inside its block"):
            kept.execute("SELECT 1")


@contextmanager
def endless_statement(connection: apsw.Connection) -> Iterator[list[BaseException | None]]:
    """Another thread executes a statement that never ends; provides its error after the block."""
    started = threading.Event()
    errors: list[BaseException | None] = []

    def first(*_: object) -> int:
        started.set()
        return 1

    connection.create_scalar_function("first", first, 0)

    def execute() -> None:
        numbers = "WITH RECURSIVE n(x) AS (SELECT first() UNION ALL SELECT x + 1 FROM n)"
        try:
            connection.execute(f"{numbers} SELECT count(*) FROM n").fetchall()
        except apsw.InterruptError as error:
            errors.append(error)

    thread = threading.Thread(target=execute)
    thread.start()
    assert started.wait(60)
    try:
        yield errors
    finally:
        thread.join(60)
        assert not thread.is_alive()


def test_a_statement_of_another_thread_does_not_outlast_the_block(sales: Database) -> None:
    """It is interrupted, the transaction is rolled back, and the next one can begin."""
    with ExitStack() as stack:
        with (
            pytest.raises(BrokerError, match="because another thread was still executing a statement"),
            sales.transaction() as t,
        ):
            t.connection.execute("CREATE TABLE chairs (id INTEGER PRIMARY KEY)")
            errors = stack.enter_context(endless_statement(t.connection))
        with sales.transaction() as t:
            t.connection.execute("CREATE TABLE chairs (id INTEGER PRIMARY KEY)")
    assert len(errors) == 1


def test_the_error_of_a_block_is_kept_if_another_thread_executes_a_statement(sales: Database) -> None:
    with ExitStack() as stack, pytest.raises(ValueError, match="no chairs"), sales.transaction() as t:
        stack.enter_context(endless_statement(t.connection))
        raise ValueError("no chairs")
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE chairs (id INTEGER PRIMARY KEY)")
    with ExitStack() as stack, sales.read() as connection:
        stack.enter_context(endless_statement(connection))
