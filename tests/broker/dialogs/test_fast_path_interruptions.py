"""The fast path with forks, signals, unreadable files and connection settings of applications."""

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
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.dialogs import dialog_lifecycle
from ssbroker.broker.instance import Instance
from tests.broker.conftest import INITIATOR, QUEUE, TARGET


class Stopped(BaseException):
    """Like KeyboardInterrupt, without stopping the tests."""


def bodies(database: Database) -> list[object]:
    with database.transaction() as t:
        return list(t.receive(QUEUE)["message_body"].to_pylist())


def is_free(database: Database) -> bool:
    """Returns whether another process could write."""
    with closing(apsw.Connection(str(database.path))) as other:
        try:
            other.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            return False
    return True


def test_a_commit_during_a_fork_does_not_close_its_connection(
    established_dialog: tuple[Database, uuid.UUID],
) -> None:
    """A closed connection in use could block the new process forever."""
    sales, dialog = established_dialog
    write_lock = database_context(sales).file.write_lock
    with sales.transaction() as t:
        kept = t._session.begin_fast()

    def pause_for_fork() -> bool:
        write_lock.set_paused(True)
        return False

    kept.set_commit_hook(pause_for_fork)
    with sales.transaction() as t:
        t.send(dialog, b"x")
    kept.set_commit_hook(None)
    assert (write_lock.connection_in_use(), write_lock.holder) == (None, None)
    write_lock.set_paused(False)
    with sales.transaction() as t:
        assert t._session.begin_fast() is kept
    assert bodies(sales) == [b"x"]


def test_a_commit_during_a_fork_resets_the_rollback_count(established_dialog: tuple[Database, uuid.UUID]) -> None:
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
def test_a_transaction_dropped_during_a_fork_is_rolled_back(
    instance: Instance,
    established_dialog: tuple[Database, uuid.UUID],
    is_closed: bool,  # noqa: FBT001  # pytest gives it by name
) -> None:
    """Otherwise other processes would wait for its lock forever."""
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
    with pytest.warns(ResourceWarning, match="deleted before it ended"):
        left.clear()
    assert is_free(sales)
    assert database_context(sales).file.write_lock.connection_in_use() is None


def test_an_unreadable_file_is_not_changed(established_dialog: tuple[Database, uuid.UUID]) -> None:
    """The lock is released, and the file can be used once it is readable again."""
    sales, dialog = established_dialog
    with closing(apsw.Connection(str(sales.path))) as other:
        other.execute("ALTER TABLE ssb_database RENAME TO gone")
        with pytest.raises(StorageError, match="the tables do not match the schema version"), sales.transaction() as t:
            t.send(dialog, b"never")
        other.execute("ALTER TABLE gone RENAME TO ssb_database")
    with sales.transaction() as t:
        t.send(dialog, b"x")
    assert bodies(sales) == [b"x"]


@pytest.mark.filterwarnings("ignore:.*deleted before it ended:ResourceWarning")
def test_a_call_interrupted_before_its_start_has_no_effect(
    established_dialog: tuple[Database, uuid.UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application may catch the exception of a signal handler and continue: no confirmed call may be lost."""
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


def test_a_call_interrupted_midway_rolls_back_its_transaction(
    established_dialog: tuple[Database, uuid.UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    sales, dialog = established_dialog

    def interrupted(*_arguments: object, **_options: object) -> None:
        raise Stopped

    with pytest.raises(StorageError, match="no changes were saved"), sales.transaction() as t:
        t.send(dialog, b"never")
        with monkeypatch.context() as patched:
            patched.setattr(dialog_lifecycle, "begin", interrupted)
            with pytest.raises(Stopped):
                t.begin_dialog(INITIATOR, TARGET)
        assert is_free(sales)
        with pytest.raises(StorageError, match="no changes were saved"):
            t.send(dialog, b"never")
    assert bodies(sales) == []


def test_queue_names_are_parsed_as_elsewhere(instance: Instance, sales: Database) -> None:
    """A dot separates schema and name; a name that contains one is bracketed."""
    instance.execute("USE Sales; CREATE QUEUE [dbo].[a.b]; CREATE SERVICE [//Dotted] ON QUEUE [dbo].[a.b] ([DEFAULT]);")
    with sales.transaction() as t:
        dialog = t.begin_dialog(INITIATOR, "//Dotted")
        t.send(dialog, b"x")
    with sales.transaction() as t, pytest.raises(BrokerError, match="15151"):
        t.receive("a.b")
    with sales.transaction() as t:
        t.send(dialog, b"y")
        assert t.receive("[dbo].[a.b]").num_rows == 2


def test_a_fast_transaction_also_waits_for_attached_files(
    established_dialog: tuple[Database, uuid.UUID], tmp_path: Path
) -> None:
    sales, dialog = established_dialog
    attached_file = tmp_path / "beside.sqlite"
    with closing(apsw.Connection(str(attached_file))) as other:
        other.set_busy_timeout(10_000)  # its COMMIT may coincide with a check by the waiting transaction
        other.execute("CREATE TABLE things (thing); BEGIN IMMEDIATE")
        delayed_commit = threading.Timer(0.2, other.execute, ["COMMIT"])
        delayed_commit.start()
        with sales.transaction() as t:
            t.send(dialog, b"x")
            t.connection.execute("ATTACH ? AS beside", (str(attached_file),))
            t.connection.execute("INSERT INTO beside.things VALUES (1)")
        delayed_commit.join()
        assert other.execute("SELECT thing FROM things").get == 1


def test_connection_settings_end_with_the_transaction(
    established_dialog: tuple[Database, uuid.UUID],
) -> None:
    sales, dialog = established_dialog

    def fail(*_told: object) -> None:
        raise ZeroDivisionError

    def set_profile(connection: apsw.Connection) -> None:
        connection.set_profile(fail)

    def set_trace(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, fail)

    for install in (set_profile, set_trace):
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
def test_an_empty_table_has_all_columns(sales: Database, table: pa.Table) -> None:
    with sales.transaction() as t, pytest.raises(SchemaError, match="expected"):
        t.send_batch(table)


@pytest.mark.parametrize("has_subscriber", [False, True])
def test_handles_may_be_uuids(
    instance: Instance,
    established_dialog: tuple[Database, uuid.UUID],
    has_subscriber: bool,  # noqa: FBT001  # pytest gives it by name
) -> None:
    """In an Arrow column of the UUID type, with and without subscribers."""
    sales, dialog = established_dialog
    handles: Any = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([dialog.bytes], pa.binary(16)))
    unsubscribe = instance.subscribe(lambda _event: None) if has_subscriber else None
    with sales.transaction() as t:
        t.send_batch(pa.table({"conversation_handle": handles, "message_body": pa.array([b"x"], pa.binary())}))
    if unsubscribe is not None:
        unsubscribe()
    assert bodies(sales) == [b"x"]


def test_waiting_for_the_own_transaction_raises(
    established_dialog: tuple[Database, uuid.UUID],
) -> None:
    sales, dialog = established_dialog
    with sales.transaction() as t:
        t.send(dialog, b"x")
        with pytest.raises(LockTimeoutError, match="its own open transaction"), sales.transaction() as inner:
            inner.send(dialog, b"never")
    assert bodies(sales) == [b"x"]
