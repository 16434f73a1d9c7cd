"""B3, B4, B24, B44: where a plain transaction meets a fork, a signal, a file that cannot be read, or what an application has left behind."""

from __future__ import annotations

import threading
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pyarrow as pa
import pytest

from ssbroker import BrokerError, LockTimeoutError, SchemaError, StorageError
from ssbroker.broker import transaction
from ssbroker.broker.database import Database
from ssbroker.broker.database import context_of as database_context
from ssbroker.broker.dialogs import begin_end
from ssbroker.broker.instance import Instance
from tests.broker.conftest import INITIATOR, QUEUE, TARGET


class Stopped(BaseException):
    """What Ctrl-C raises, without stopping the tests."""


def bodies(database: Database) -> list[object]:
    with database.transaction() as t:
        return list(t.receive(QUEUE)["message_body"].to_pylist())


def is_free(database: Database) -> bool:
    """Whether another process could write."""
    with closing(apsw.Connection(str(database.path))) as other:
        try:
            other.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            return False
    return True


def test_a_commit_that_a_fork_meets_leaves_its_connection_to_the_fork(
    established_dialog: tuple[Database, uuid.UUID],
) -> None:
    """It was closed at once, while nobody knew that it was in use, and the new process could wait for it for ever."""
    sales, dialog = established_dialog
    write_lock = database_context(sales).file.write_lock
    with sales.transaction() as t:
        kept = t._session.begin_fast()

    def forks() -> bool:
        write_lock.set_paused(True)
        return False

    kept.set_commit_hook(forks)
    with sales.transaction() as t:
        t.send(dialog, b"x")
    kept.set_commit_hook(None)
    assert (write_lock.connection_in_use(), write_lock.holder) == (None, None)
    write_lock.set_paused(False)
    with sales.transaction() as t:
        assert t._session.begin_fast() is kept
    assert bodies(sales) == [b"x"]


def test_a_commit_that_a_fork_meets_counts_rollbacks_anew(established_dialog: tuple[Database, uuid.UUID]) -> None:
    sales, dialog = established_dialog
    with sales.transaction() as t:
        t.send(dialog, b"x")
        t.send(dialog, b"y")
    for _ in range(2):
        with pytest.raises(KeyError), sales.transaction() as t:
            t.receive_one(QUEUE)
            raise KeyError
    with sales.transaction() as t:
        t.receive_one(QUEUE)
        database_context(sales).file.connections.pause()
    database_context(sales).file.connections.end_pause()
    counted = database_context(sales).file.query(
        lambda connection: connection.execute("SELECT max(rollbacks) FROM ssb_queues").get
    )
    assert counted == 0


@pytest.mark.parametrize("is_closed", [False, True])
def test_what_is_dropped_while_nobody_may_begin_is_undone(
    instance: Instance,
    established_dialog: tuple[Database, uuid.UUID],
    is_closed: bool,  # noqa: FBT001  # pytest gives it by name
) -> None:
    """While the process forks, or once the instance is closed; another process would wait for it for ever."""
    sales, dialog = established_dialog
    t = sales.transaction()
    t.__enter__()
    t.send(dialog, b"never")
    assert not is_free(sales)
    if is_closed:
        instance.close()
    else:
        database_context(sales).file.connections.pause()
    left = [t]
    del t
    with pytest.warns(ResourceWarning, match="dropped before it ended"):
        left.clear()
    assert is_free(sales)
    assert database_context(sales).file.write_lock.connection_in_use() is None


def test_a_file_that_cannot_be_read_is_left_as_it_is(established_dialog: tuple[Database, uuid.UUID]) -> None:
    """The lock is given back, and once the file can be read it is the same database."""
    sales, dialog = established_dialog
    with closing(apsw.Connection(str(sales.path))) as other:
        other.execute("ALTER TABLE ssb_database RENAME TO gone")
        with pytest.raises(StorageError, match="the tables do not match the schema version"), sales.transaction() as t:
            t.send(dialog, b"never")
        other.execute("ALTER TABLE gone RENAME TO ssb_database")
    with sales.transaction() as t:
        t.send(dialog, b"x")
    assert bodies(sales) == [b"x"]


@pytest.mark.filterwarnings("ignore:.*dropped before it ended:ResourceWarning")
def test_a_call_that_is_interrupted_before_it_begins_leaves_the_transaction_as_it_was(
    established_dialog: tuple[Database, uuid.UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application may catch what the handler of a signal has raised, and go on: nothing that it was told is done may be lost."""
    sales, dialog = established_dialog

    def interrupted(*_arguments: object) -> None:
        raise Stopped

    with sales.transaction() as t:
        t.send(dialog, b"one")
        with monkeypatch.context() as patched:
            patched.setattr(transaction, "Work", interrupted)
            with pytest.raises(Stopped):
                t.begin_dialog(INITIATOR, TARGET)
        assert not is_free(sales)
        t.send(dialog, b"two")
    assert bodies(sales) == [b"one", b"two"]


def test_a_call_that_is_interrupted_midway_rolls_back_its_transaction(
    established_dialog: tuple[Database, uuid.UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    sales, dialog = established_dialog

    def interrupted(*_arguments: object, **_options: object) -> None:
        raise Stopped

    with pytest.raises(StorageError, match="no changes were saved"), sales.transaction() as t:
        t.send(dialog, b"never")
        with monkeypatch.context() as patched:
            patched.setattr(begin_end, "begin", interrupted)
            with pytest.raises(Stopped):
                t.begin_dialog(INITIATOR, TARGET)
        assert is_free(sales)
        with pytest.raises(StorageError, match="no changes were saved"):
            t.send(dialog, b"never")
    assert bodies(sales) == []


def test_the_name_of_a_queue_is_read_as_ever(instance: Instance, sales: Database) -> None:
    """A dot parts schema and name; a queue whose own name has one is written in brackets."""
    instance.execute("USE Sales; CREATE QUEUE [dbo].[a.b]; CREATE SERVICE [//Dotted] ON QUEUE [dbo].[a.b] ([DEFAULT]);")
    with sales.transaction() as t:
        dialog = t.begin_dialog(INITIATOR, "//Dotted")
        t.send(dialog, b"x")
    with sales.transaction() as t, pytest.raises(BrokerError, match="15151"):
        t.receive("a.b")
    with sales.transaction() as t:
        t.send(dialog, b"y")
        assert t.receive("[dbo].[a.b]").num_rows == 2


def test_a_transaction_that_began_plain_waits_for_other_files_too(
    established_dialog: tuple[Database, uuid.UUID], tmp_path: Path
) -> None:
    sales, dialog = established_dialog
    beside = tmp_path / "beside.sqlite"
    with closing(apsw.Connection(str(beside))) as other:
        other.set_busy_timeout(10_000)  # its COMMIT may meet a look of the one that waits
        other.execute("CREATE TABLE things (thing); BEGIN IMMEDIATE")
        lets_go = threading.Timer(0.2, other.execute, ["COMMIT"])
        lets_go.start()
        with sales.transaction() as t:
            t.send(dialog, b"x")
            t.connection.execute("ATTACH ? AS beside", (str(beside),))
            t.connection.execute("INSERT INTO beside.things VALUES (1)")
        lets_go.join()
        assert other.execute("SELECT thing FROM things").get == 1


def test_what_an_application_has_set_on_a_connection_goes_with_its_transaction(
    established_dialog: tuple[Database, uuid.UUID],
) -> None:
    sales, dialog = established_dialog

    def fails(*_told: object) -> None:
        raise ZeroDivisionError

    def profiled(connection: apsw.Connection) -> None:
        connection.set_profile(fails)

    def traced(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, fails)

    for install in (profiled, traced):
        with sales.transaction() as t:
            install(t.connection)
        with sales.transaction() as t:
            t.send(dialog, b"x")
        assert bodies(sales) == [b"x"]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({}),
        pa.table({"conversation_handle": pa.array([], pa.int64()), "message_body": pa.array([], pa.binary())}),
        pa.table({"conversation_handle": pa.array([], pa.binary(16))}),
        pa.table({"conversation_handle": pa.array([], pa.binary(16)), "message_body": pa.array([], pa.int8())}),
    ],
)
def test_a_table_without_rows_has_the_columns_of_one_with_rows(sales: Database, table: pa.Table) -> None:
    with sales.transaction() as t, pytest.raises(SchemaError, match="expected"):
        t.send_batch(table)


@pytest.mark.parametrize("is_heard", [False, True])
def test_handles_may_be_uuids(
    instance: Instance,
    established_dialog: tuple[Database, uuid.UUID],
    is_heard: bool,  # noqa: FBT001  # pytest gives it by name
) -> None:
    """In an Arrow column of that type, whether anybody hears of each message or not."""
    sales, dialog = established_dialog
    handles: Any = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([dialog.bytes], pa.binary(16)))
    leave = instance.subscribe(lambda _event: None) if is_heard else None
    with sales.transaction() as t:
        t.send_batch(pa.table({"conversation_handle": handles, "message_body": pa.array([b"x"], pa.binary())}))
    if leave is not None:
        leave()
    assert bodies(sales) == [b"x"]


def test_whoever_asks_for_the_lock_of_its_own_transaction_is_told(
    established_dialog: tuple[Database, uuid.UUID],
) -> None:
    sales, dialog = established_dialog
    with sales.transaction() as t:
        t.send(dialog, b"x")
        with pytest.raises(LockTimeoutError, match="its own open transaction"), sales.transaction() as inner:
            inner.send(dialog, b"never")
    assert bodies(sales) == [b"x"]
