"""Invalid arguments raise an error of the library, and the transaction continues."""

from __future__ import annotations

import mmap
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

import ssbroker
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance
from ssbroker.exceptions import (
    BrokerError,
    InputError,
    OptionError,
    SchemaError,
    SsbrokerError,
    UnknownDatabaseError,
)
from ssbroker.protocol.settings import BODY_MAX
from tests.broker import dialog_calls
from tests.broker.conftest import INITIATOR, QUEUE, TARGET
from tests.broker.dialog_calls import begin, contents_of, receive
from tests.internals import instance_of

HALF = "\ud800"
WRONG: list[Any] = [None, [], {}, 5, 1.5, b"S", ..., HALF, "a\0b", "", "x" * 300]
CALLS: dict[str, Any] = {
    "from_service": lambda t, _, wrong: t.begin_dialog(wrong, TARGET),
    "contract": lambda t, _, wrong: t.begin_dialog(INITIATOR, TARGET, contract=wrong),
    "queue": lambda t, _, wrong: t.receive(wrong),
    "queue of a group": lambda t, _, wrong: t.get_conversation_group(wrong),
    "dialog": lambda t, _, wrong: t.send(wrong, b"lost"),
    "message_type": lambda t, dialog, wrong: t.send(dialog, b"lost", message_type=wrong),
    "messages": lambda t, _, wrong: t.send_batch(wrong),
    "ended": lambda t, _, wrong: t.end_conversation(wrong),
    "group": lambda t, dialog, wrong: t.move_conversation(dialog, wrong),
}


@pytest.mark.parametrize(
    ("call", "wrong"),
    [(call, wrong) for call in CALLS for wrong in WRONG if (call, wrong) != ("messages", [])],  # no messages are valid
    ids=ascii,
)
def test_after_an_invalid_argument_the_transaction_continues(sales: Database, call: str, wrong: object) -> None:
    dialog = begin(sales, b"first")
    with sales.transaction() as t:
        before = dialog_calls.contents(sales, t.connection)
        with pytest.raises(SsbrokerError):
            CALLS[call](t, dialog, wrong)
        assert dialog_calls.contents(sales, t.connection) == before
        t.send(dialog, b"second")
    assert contents_of(receive(sales)) == [b"first", b"second"]


@pytest.mark.parametrize("wrong", [None, [], 5, b"S", HALF, "", "x" * 257], ids=ascii)
def test_an_invalid_service_name_is_rejected(sales: Database, wrong: Any) -> None:
    with sales.transaction() as t:
        with pytest.raises((BrokerError, TypeError), match=r"to_service|8412"):
            t.begin_dialog(INITIATOR, wrong)
        with pytest.raises(SsbrokerError, match="broker_instance"):
            t.begin_dialog(INITIATOR, TARGET, broker_instance=wrong if isinstance(wrong, str) else "none")
        t.send(t.begin_dialog(INITIATOR, TARGET), b"first")
    assert contents_of(receive(sales)) == [b"first"]


def test_a_body_that_is_too_long_is_rejected_before_it_is_copied(sales: Database) -> None:
    with sales.transaction() as t, mmap.mmap(-1, BODY_MAX + 1) as nothing, memoryview(nothing) as body:
        dialog = t.begin_dialog(INITIATOR, TARGET)
        with pytest.raises(BrokerError, match="8459"):
            t.send(dialog, body)
        t.send(dialog, b"first")
    assert contents_of(receive(sales)) == [b"first"]


def test_sqlite_can_store_the_longest_message(sales: Database) -> None:
    with sales.transaction() as t:
        assert 512 < t.connection.limit(apsw.SQLITE_LIMIT_LENGTH) - BODY_MAX < 4096


def test_infinite_timeouts_are_allowed(tmp_path: Path) -> None:
    held, done = threading.Event(), threading.Event()
    with Instance.create(tmp_path / "shop", name="shop", lock_timeout=float("inf"), background=False) as instance:
        sales = instance.create_database("Sales")

        def hold_lock() -> None:
            with sales.transaction() as t:
                t.connection.execute("CREATE TABLE orders (id INTEGER)")
                held.set()
                done.wait(0.05)

        holder = threading.Thread(target=hold_lock)
        holder.start()
        held.wait(30.0)
        sales.create_queue(QUEUE)
        holder.join(30.0)
        assert database_context(sales).objects().queues


@pytest.mark.parametrize(
    "wrong", [None, "10", True, -1, -0.001, float("nan"), float("-inf"), -(10**400), [10]], ids=ascii
)
def test_an_invalid_lock_timeout_is_rejected_before_anything_is_created(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(OptionError, match="lock_timeout: expected a non-negative number of seconds"):
        Instance.create(tmp_path / "shop", name="shop", lock_timeout=wrong)
    assert not (tmp_path / "shop").exists()
    Instance.create(tmp_path / "shop", name="shop", background=False).close()
    with pytest.raises(OptionError, match="lock_timeout: expected a non-negative number of seconds"):
        Instance.open(tmp_path / "shop", lock_timeout=wrong)


@pytest.mark.parametrize("wrong", [5, b"shop", None, ""], ids=ascii)
def test_an_invalid_path_is_rejected(
    sales: Database, tmp_path: Path, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty path would be the current folder."""
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OptionError, match=r"^folder: expected a path \(str or os\.PathLike\), got "):
        Instance.open(wrong, create=True)
    with pytest.raises(OptionError, match=r"^folder: expected a path \(str or os\.PathLike\), got "):
        Instance.create(wrong, name="shop")
    with pytest.raises(OptionError, match=r"^file: expected a path \(str or os\.PathLike\), got "):
        instance_of(sales).attach_database("Shop", wrong)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("clock", 5, "expected a function that returns an aware datetime, got 5"),
        ("clock", lambda: 5, "expected a function that returns an aware datetime, but it returned 5"),
        ("clock", lambda: datetime(2026, 1, 1), "expected a function that returns an aware datetime, but it returned"),  # noqa: DTZ001
        ("random", 5, r"expected a random\.Random or None, got 5"),
        ("random", random, r"expected a random\.Random or None, got <module"),
        ("background", "no", "expected True or False, got 'no'"),
        ("vfs", "nope", r"expected None or a virtual file system of SQLite \(.*unix.*\), got 'nope'"),
        ("vfs", 5, r"expected None or a virtual file system of SQLite \(.*unix.*\), got 5"),
    ],
)
def test_invalid_options_are_rejected_before_anything_is_created(
    tmp_path: Path, name: str, wrong: Any, message: str
) -> None:
    folder = tmp_path / "shop"
    with pytest.raises(OptionError, match=f"^{name}: {message}"):
        Instance.create(folder, name="shop", **{name: wrong})
    with pytest.raises(OptionError, match=f"^{name}: {message}"):
        Instance.open(folder, create=True, **{name: wrong})
    assert not folder.exists()


@pytest.mark.parametrize("endless", [float("inf"), 10**400, 1e300], ids=["infinity", "more than a float holds", "long"])
def test_infinite_timeouts_for_messages_and_locks_are_allowed(tmp_path: Path, endless: float) -> None:
    with Instance.create(tmp_path / "shop", name="shop", lock_timeout=endless, background=False) as instance:
        sales = instance.create_database("Sales")
        sales.create_queue(QUEUE)
        sales.create_service(TARGET, queue=QUEUE)
        sales.create_service(INITIATOR, queue=QUEUE)
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(receive, sales, timeout=endless)
            while not database_context(sales).commit_signals.waiting(65_536):
                assert not taken.done()
                time.sleep(0.001)
            begin(sales, b"one")
            assert contents_of(taken.result(30.0)) == [b"one"]


async def _coroutine(_database: Database) -> None: ...


def _generator(_database: Database) -> Iterator[None]:
    yield


class _AsyncCallable:
    async def __call__(self, _database: Database) -> None: ...


@pytest.mark.parametrize("function", [_coroutine, partial(_coroutine), _AsyncCallable(), _generator, "a name"])
def test_a_coroutine_or_generator_function_is_not_a_valid_reader(sales: Database, function: Any) -> None:
    with pytest.raises(OptionError, match=r"function: expected"):
        sales.activate(QUEUE, function)
    with pytest.raises(OptionError, match=r"function: expected"):
        instance_of(sales).register_procedure("dbo.reader", function)


@pytest.mark.parametrize("function", [ssbroker.metrics, ssbroker.traces])
def test_metrics_and_traces_need_an_instance(function: Any) -> None:
    with pytest.raises(SchemaError, match=r"^instance: expected Instance, got int$"):
        function(5)


def test_an_invalid_subscriber_is_rejected(sales: Database) -> None:
    subscribe: Any = instance_of(sales).subscribe
    with pytest.raises(OptionError, match=r"subscriber: expected a callable"):
        subscribe("print")

    async def coroutine(_: object) -> None: ...

    with pytest.raises(OptionError, match=r"subscriber: expected a regular function, got .* coroutine"):
        subscribe(coroutine)
    with pytest.raises(OptionError, match=r"kinds: expected event classes, such as QueueDisabled, got 'QueueDisabled'"):
        subscribe(print, "QueueDisabled")
    with pytest.raises(OptionError, match=r"kinds: expected event classes"):
        subscribe(print, int)
    begin(sales, b"two chairs")
    assert contents_of(receive(sales)) == [b"two chairs"]


@pytest.mark.rule("I4")
@pytest.mark.parametrize("wrong", [None, "enable_broker", 1], ids=ascii)
def test_an_invalid_broker_option_leaves_it_disabled(sales: Database, wrong: Any) -> None:
    """`attach_database` accepts None as no option, but `set_broker` requires one."""
    sales.set_broker("DISABLE_BROKER")
    with pytest.raises(OptionError, match="option: expected one of ENABLE_BROKER"):
        sales.set_broker(wrong)
    assert not sales.is_broker_enabled


@pytest.mark.parametrize("wrong", [None, b"Sales", 5], ids=ascii)
def test_invalid_view_and_database_names_are_rejected(sales: Database, wrong: Any) -> None:
    instance = instance_of(sales)
    with pytest.raises(InputError, match=r"name: expected the name of a view or a queue"):
        instance.view(wrong)
    for call in (instance.database, instance.detach_database, instance.drop_database):
        with pytest.raises(UnknownDatabaseError, match="the instance has no database"):
            call(wrong)


def test_a_database_with_a_similar_name_is_suggested(sales: Database) -> None:
    with pytest.raises(UnknownDatabaseError, match=r"has no database 'sales'; it has .*Sales.*; did you mean Sales\?$"):
        instance_of(sales).database("sales")
