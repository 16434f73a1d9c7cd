"""The native fast path needs no Python code, and notifies all waiters and counters."""

from __future__ import annotations

import functools
import random
import threading
import uuid
import warnings
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest

from ssbroker import SsbrokerError, StorageError
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.broker.transaction import Transaction
from tests.broker.conftest import INITIATOR, QUEUE, TARGET
from tests.broker.dialogs.test_fast_path_model import rows


def forbid_slow_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object) -> NoReturn:
        raise AssertionError("the fast path was not taken")

    monkeypatch.setattr(Transaction, "_begin", fails)


def test_the_fast_path_needs_no_python_code(
    established_dialog: tuple[Database, uuid.UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    sales, dialog = established_dialog
    forbid_slow_path(monkeypatch)
    for number in range(3):
        with sales.transaction() as t:
            t.send(dialog, b"body %d" % number)
        with sales.transaction() as t:
            assert t.receive(QUEUE)["message_body"].to_pylist() == [b"body %d" % number]
    with sales.transaction() as t:
        t.send(dialog, b"")
        message = t.receive_one(QUEUE)
        assert message is not None
        assert message.message_body == b""


def test_messages_to_other_databases_wait_and_are_delivered(
    instance: Instance, established_dialog: tuple[Database, uuid.UUID]
) -> None:
    """They are in the transmission queue until the commit, then in the other database."""
    sales, _ = established_dialog
    stock = instance.create_database("Stock")
    stock.create_queue("Stock")
    stock.create_service("//Stock", queue="Stock")
    with sales.transaction() as t:
        dialog = t.begin_dialog(INITIATOR, "//Stock")
        t.send(dialog, b"first")
    with sales.transaction() as t:
        t.send(dialog, b"plain")
    with stock.transaction() as t:
        assert t.receive("Stock")["message_body"].to_pylist() == [b"first", b"plain"]
    assert instance.view("sys.transmission_queue").num_rows == 0


def test_a_message_has_the_columns_of_the_table(established_dialog: tuple[Database, uuid.UUID]) -> None:
    sales, dialog = established_dialog
    with sales.transaction() as t:
        t.send_batch(pa.table({"conversation_handle": [dialog.bytes] * 2, "message_body": [b"one", b"two"]}))
    with pytest.raises(RuntimeError), sales.transaction() as t:
        table = t.receive(QUEUE)
        raise RuntimeError
    with sales.transaction() as t:
        one = t.receive_one(QUEUE)
        t.connection.execute("SELECT 1")  # from here on the fast path is not used
        two = t.receive_one(QUEUE)
        assert t.receive_one(QUEUE) is None
    for message, row in zip((one, two), table.to_pylist(), strict=True):
        assert message is not None
        for name in ("message_body", "message_type_name", "is_initiator", "message_sequence_number", "service_name"):
            assert getattr(message, name) == row[name]
        for name in ("service_contract_name", "priority", "queuing_order", "validation"):
            assert getattr(message, name) == row[name]
        for name in ("conversation_handle", "conversation_group_id", "conversation_id"):
            assert getattr(message, name) == uuid.UUID(bytes=row[name])
    assert one != two
    assert len({one, one, two}) == 2
    assert "DEFAULT" in repr(one)


def test_one_message_of_a_named_conversation(established_dialog: tuple[Database, uuid.UUID]) -> None:
    sales, dialog = established_dialog
    with sales.transaction() as t:
        other = t.begin_dialog(INITIATOR, TARGET)
        t.send(dialog, b"older")
        t.send(other, b"newer")
        far = [row["conversation_handle"] for row in t.receive(QUEUE, groups=2).to_pylist()]
        t.send(dialog, b"older")
        t.send(other, b"newer")
        message = t.receive_one(QUEUE, conversation_handle=far[1])
        assert message is not None
        assert message.message_body == b"newer"
        assert t.receive_one(QUEUE, conversation_group_id=message.conversation_group_id) is None


def test_a_fast_send_wakes_a_waiting_receive(established_dialog: tuple[Database, uuid.UUID]) -> None:
    sales, dialog = established_dialog
    found: list[bytes | None] = []

    def wait() -> None:
        with sales.transaction() as t:
            message = t.receive_one(QUEUE, timeout=60.0)
        found.append(None if message is None else message.message_body)

    thread = threading.Thread(target=wait)
    thread.start()
    signals = database_context(sales).commit_signals
    queue_id = database_context(sales).objects().queues["dbo", QUEUE].queue_id
    while not signals.waiting(queue_id):
        pass
    count_before = signals.count(queue_id)
    with sales.transaction() as t:
        t.send(dialog, b"arrived")
    thread.join(30)
    assert found == [b"arrived"]
    assert signals.count(queue_id) == count_before + 1


def test_the_fast_path_is_counted(instance: Instance, established_dialog: tuple[Database, uuid.UUID]) -> None:
    sales, dialog = established_dialog
    before = instance_context(instance).counters.counts()
    with sales.transaction() as t:
        t.send(dialog, b"a")
        t.send(dialog, b"b")
    with sales.transaction() as t:
        t.receive(QUEUE)
    after = instance_context(instance).counters.counts()
    changes = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert changes == {
        "sql_sends": 2,
        "sql_receives": 1,
        "enqueued_messages": 2,
        "enqueued_local_messages": 2,
        "enqueued_p5_messages": 2,
    }


def test_a_garbage_collected_fast_transaction_is_rolled_back(established_dialog: tuple[Database, uuid.UUID]) -> None:
    sales, dialog = established_dialog
    t = sales.transaction()
    t.__enter__()
    t.send(dialog, b"never")
    holders = [database_context(sales).file.write_lock.holder]
    left = [t]
    del t
    with pytest.warns(ResourceWarning, match="deleted before it ended"):
        left.clear()
    holders.append(database_context(sales).file.write_lock.holder)
    assert holders == [threading.get_ident(), None]
    with sales.transaction() as t:
        assert t.receive(QUEUE).num_rows == 0


def test_an_exception_rolls_back_a_fast_transaction(
    instance: Instance, established_dialog: tuple[Database, uuid.UUID]
) -> None:
    sales, dialog = established_dialog
    before, counts = rows(sales), instance_context(instance).counters.counts()
    with pytest.raises(KeyError), sales.transaction() as t:
        t.send(dialog, b"never")
        raise KeyError
    assert rows(sales) == before
    assert instance_context(instance).counters.counts() == counts | {"broker_transaction_rollbacks": 1}


def test_rolled_back_fast_receives_count_until_a_commit(
    established_dialog: tuple[Database, uuid.UUID],
) -> None:
    sales, dialog = established_dialog
    with sales.transaction() as t:
        t.send(dialog, b"poison")

    def rollbacks() -> object:
        return database_context(sales).file.query(
            lambda connection: connection.execute("SELECT max(rollbacks) FROM ssb_queues").get
        )

    for number in (1, 2):
        with pytest.raises(KeyError), sales.transaction() as t:
            t.receive_one(QUEUE)
            raise KeyError
        assert rollbacks() == number
    with sales.transaction() as t:
        t.receive_one(QUEUE)
    assert rollbacks() == 0


def test_a_commit_resets_the_rollback_count_of_each_queue_received_from(
    established_dialog: tuple[Database, uuid.UUID],
) -> None:
    sales, dialog = established_dialog
    with sales.transaction() as t:
        t.send(dialog, b"request")
        request = t.receive_one(QUEUE)
        assert request is not None
        t.send(request.conversation_handle, b"reply")
        t.send(dialog, b"another request")
    sales.create_queue("Unused")
    with database_context(sales).file.write() as connection:
        connection.execute("UPDATE ssb_queues SET rollbacks = 2")
    with sales.transaction() as t:
        assert t.receive_one("Replies") is not None
        assert t.receive_one(QUEUE) is not None
    with database_context(sales).file.read() as connection:
        reset = connection.execute("SELECT name FROM ssb_queues WHERE rollbacks = 0 ORDER BY name").fetchall()
    assert reset == [(QUEUE,), ("Replies",)]


def test_a_moved_file_accepts_no_fast_commit(established_dialog: tuple[Database, uuid.UUID], tmp_path: Path) -> None:
    sales, dialog = established_dialog
    with pytest.raises(StorageError, match="was moved or deleted"), sales.transaction() as t:
        t.send(dialog, b"lost")
        sales.path.rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="was moved or deleted"), sales.transaction() as t:
        t.send(dialog, b"lost")
    (tmp_path / "elsewhere").rename(sales.path)
    with sales.transaction() as t:
        t.send(dialog, b"kept")


def test_concurrent_use_of_a_transaction_is_rejected_without_deadlock(
    without_shared_memory: None, established_dialog: tuple[Database, uuid.UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second call happens during the commit of the first, which wakes waiting threads."""
    sales, dialog = established_dialog
    refused: list[str] = []

    def send_concurrently() -> None:
        try:
            t.send(dialog, b"too")
        except (RuntimeError, SsbrokerError) as error:
            refused.append(str(error))

    def wake() -> None:
        thread = threading.Thread(target=send_concurrently)
        thread.start()
        thread.join(30)

    monkeypatch.setattr(database_context(sales).commit_signals, "wake", wake)
    with database_context(sales).commit_signals.count_waiter(1), sales.transaction() as t:
        t.send(dialog, b"one")
    assert refused == ["the transaction is not open: use it inside its `with` block"]


def test_the_fast_path_continues_after_application_statements(
    established_dialog: tuple[Database, uuid.UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    sales, dialog = established_dialog
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE orders (name TEXT)")
        t.send(dialog, b"with a row")
        t.connection.execute("INSERT INTO orders VALUES ('chair')")
    forbid_slow_path(monkeypatch)
    with sales.transaction() as t:
        message = t.receive_one(QUEUE)
    assert message is not None


@pytest.mark.parametrize("size", [(64 << 10) - 1, 64 << 10, (64 << 10) + 1, 3 << 20])
def test_long_bodies_are_read_unchanged(established_dialog: tuple[Database, uuid.UUID], size: int) -> None:
    sales, dialog = established_dialog
    bodies = [random.Random(size).randbytes(size), b"", b"short"]
    with sales.transaction() as t:
        for body in bodies:
            t.send(dialog, body)
    with sales.transaction() as t:
        assert t.receive(QUEUE)["message_body"].to_pylist() == bodies


def test_sqlite_errors_are_raised_as_apsw_errors(established_dialog: tuple[Database, uuid.UUID]) -> None:
    """For example, for a file with altered tables."""
    sales, dialog = established_dialog
    with database_context(sales).file.write() as connection:
        connection.execute("ALTER TABLE ssb_queued_messages RENAME COLUMN precedence TO importance")
    with pytest.raises(StorageError, match="the tables do not match the schema version"), sales.transaction() as t:
        t.send(dialog, b"body")
    with database_context(sales).file.write() as connection:
        connection.execute("ALTER TABLE ssb_queued_messages RENAME COLUMN importance TO precedence")
    with sales.transaction() as t:
        t.send(dialog, b"body")
        assert t.receive(QUEUE).num_rows == 1


def test_threads_take_turns(established_dialog: tuple[Database, uuid.UUID]) -> None:
    """With and without the fast path, writers are serialized and no message is lost."""
    sales, _ = established_dialog
    with sales.transaction() as t:
        dialogs = [t.begin_dialog(INITIATOR, TARGET) for _ in range(4)]
        for dialog in dialogs:
            t.send(dialog, b"first")

    def send(dialog: uuid.UUID, use_fast_path: bool) -> None:  # noqa: FBT001
        for number in range(50):
            with sales.transaction() as t:
                if not use_fast_path:
                    t.connection.execute("SELECT 1").fetchall()
                t.send(dialog, b"%d" % number)

    threads = [
        threading.Thread(target=functools.partial(send, dialog, place % 2 == 0)) for place, dialog in enumerate(dialogs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with warnings.catch_warnings(), sales.transaction() as t:
        table = t.receive(QUEUE, groups=None)
    found: dict[bytes, list[bytes]] = {}
    for row in table.to_pylist():
        found.setdefault(row["conversation_handle"], []).append(row["message_body"])
    assert list(found.values()) == [[b"first", *(b"%d" % number for number in range(50))]] * 4
