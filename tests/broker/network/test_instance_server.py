"""Served instances over real sockets: options, lock, addresses and closing (P3)."""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ssbroker import _files
from ssbroker.broker import commit_signals, serve_lock
from ssbroker.broker.background import Background
from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.broker.network.inbox import Inbox
from ssbroker.broker.network.tls import Trust
from ssbroker.broker.serve_lock import ServeLock
from ssbroker.exceptions import EndpointError, InvalidAddressError, OptionError, ProtocolError, StorageError
from ssbroker.protocol.settings import ProtocolSettings
from tests.broker import sample_databases
from tests.broker.network.served_pair import ServedPair
from tests.broker.sample_databases import ORDERS, REPLIES, SHOP, STOCK

DEADLINE = 60.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as exit_stack:
        yield exit_stack


def create_instance(folder: Path, name: str, stack: ExitStack) -> Instance:
    return stack.enter_context(Instance.create(folder / name, name=name, random=random.Random(name)))


def receive_one(database: Database, queue: str) -> pa.Table:
    """Waits for the next message."""
    with database.transaction() as t:
        table = t.receive(queue, timeout=DEADLINE)
    assert table.num_rows
    return table


def test_two_instances_exchange_messages(tmp_path: Path, stack: ExitStack) -> None:
    pair = ServedPair(tmp_path, stack)
    with pair.sales.transaction() as t:
        t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"two chairs")
    order = receive_one(pair.stock, ORDERS)
    with pair.stock.transaction() as t:
        t.send(order["conversation_handle"][0].as_py(), b"on their way")
    assert receive_one(pair.sales, REPLIES)["message_body"].to_pylist() == [b"on their way"]


def test_messages_of_another_process_are_sent(tmp_path: Path, stack: ExitStack) -> None:
    """Another `Instance` on the same folder is like another process: the first one is not notified."""
    here, there = create_instance(tmp_path, "shop", stack), create_instance(tmp_path, "bank", stack)
    sales, stock = sample_databases.shop(here), sample_databases.stock(there)
    servers = [stack.enter_context(each.serve(port=0, allow_unencrypted=True)) for each in (here, there)]
    sales.create_route("There", address=servers[1].address, service_name=STOCK)
    with Instance.open(here.folder) as other, other.database("Sales").transaction() as t:
        t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"from elsewhere")
    assert receive_one(stock, ORDERS)["message_body"].to_pylist() == [b"from elsewhere"]


def test_a_commit_of_another_process_wakes_the_serving_process(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks for commits only once when it starts, unless something wakes it."""
    monkeypatch.setattr(commit_signals, "_CHECK_INTERVAL_WHEN_SHARED", 3600.0)
    monkeypatch.setattr(Background, "run_due", lambda *_: None)  # it would find them, too
    pair = ServedPair(tmp_path, stack)
    with Instance.open(pair.shop.folder) as other:
        with other.database("Sales").transaction() as t:
            dialog = t.begin_dialog(SHOP, STOCK, encryption=False)
        for body in (b"two chairs", b"a table"):
            with other.database("Sales").transaction() as t:
                t.send(dialog, body)
            assert receive_one(pair.stock, ORDERS)["message_body"].to_pylist() == [body]


def test_a_route_of_another_process_wakes_the_serving_process(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message waits for a route, and nothing but the new route wakes the server."""
    monkeypatch.setattr(commit_signals, "_CHECK_INTERVAL_WHEN_SHARED", 3600.0)
    monkeypatch.setattr(Background, "run_due", lambda *_: None)  # it would find them, too
    pair = ServedPair(tmp_path, stack)
    with pair.sales.transaction() as t:
        dialog = t.begin_dialog(SHOP, STOCK, encryption=False)
        t.send(dialog, b"two chairs")
    assert receive_one(pair.stock, ORDERS)["message_body"].to_pylist() == [b"two chairs"]
    pair.sales.drop_route("There")
    with pair.sales.transaction() as t:
        t.send(dialog, b"a table")
    with Instance.open(pair.shop.folder) as other:
        other.database("Sales").create_route("Again", address=pair.servers[1].address, service_name=STOCK)
        assert receive_one(pair.stock, ORDERS)["message_body"].to_pylist() == [b"a table"]


def test_an_idle_server_sleeps(tmp_path: Path, stack: ExitStack) -> None:
    """It is woken by events. Polling every 50 ms took 1.7% of a core."""
    here = create_instance(tmp_path, "shop", stack)
    if not instance_context(here).msdb.commit_signals.is_shared:
        pytest.skip("without shared memory, it polls")
    server = stack.enter_context(here.serve(port=0, allow_unencrypted=True))
    turns = 0
    turn = server.exchange.turn

    def counted() -> int:
        nonlocal turns
        turns += 1
        return turn()

    server.exchange.turn = counted  # type: ignore[method-assign]
    time.sleep(2.0)
    assert turns <= 10, "polling every 50 ms makes 40"


def test_closing_releases_the_lock(tmp_path: Path, stack: ExitStack) -> None:
    here = create_instance(tmp_path, "shop", stack)
    with here.serve(port=0, allow_unencrypted=True):
        assert ServeLock.is_held(here.folder)
    assert not ServeLock.is_held(here.folder)
    assert here.server is None
    with here.serve(port=0, allow_unencrypted=True):
        assert ServeLock.is_held(here.folder)


def test_checking_the_lock_does_not_look_like_serving(tmp_path: Path) -> None:
    """Every sending process checks at each commit whether the instance is served."""
    lock = ServeLock(tmp_path)
    lock.acquire()
    lock.release()
    with (tmp_path / serve_lock.FILE).open("r+b") as lock_file:
        assert not _files.is_locked(lock_file.fileno())
        assert not ServeLock.is_held(tmp_path)
    lock.acquire()
    assert ServeLock.is_held(tmp_path)
    lock.release()


def test_closing_the_instance_ends_its_server(tmp_path: Path) -> None:
    with Instance.create(tmp_path / "shop", name="shop") as here:
        server = here.serve(port=0, allow_unencrypted=True).start()
        folder = here.folder
    assert not ServeLock.is_held(folder)
    server.close()


@pytest.mark.rule("P3")
def test_a_port_in_use_is_rejected_and_the_chosen_port_is_available(tmp_path: Path, stack: ExitStack) -> None:
    here = create_instance(tmp_path, "shop", stack)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(EndpointError):
            here.serve(port=taken.getsockname()[1], allow_unencrypted=True).start()
    assert not ServeLock.is_held(here.folder), "the lock is released after a failed start"
    with here.serve(port=0, allow_unencrypted=True) as server:
        assert server.port
        assert server.address == f"TCP://127.0.0.1:{server.port}"


@pytest.mark.rule("P3")
def test_an_invalid_host_name_is_rejected(tmp_path: Path, stack: ExitStack) -> None:
    here = create_instance(tmp_path, "shop", stack)
    with pytest.raises(EndpointError, match="cannot listen on "):
        here.serve(port=0, host="x" * 70, allow_unencrypted=True).start()
    assert not ServeLock.is_held(here.folder)


@pytest.mark.rule("P3")
def test_a_failed_start_leaves_nothing_behind(
    tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise StorageError("disk I/O error", file="a file")

    here = create_instance(tmp_path, "shop", stack)
    server = here.serve(port=0, allow_unencrypted=True)
    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(Background, "changed", fails)
        server.start()
    assert not server.endpoint.is_alive
    assert not ServeLock.is_held(here.folder)
    assert here.server is None
    assert here.catalog().addresses == ()
    with here.serve(port=0, allow_unencrypted=True) as again:
        assert again.is_alive


@pytest.mark.rule("R41")
def test_own_addresses_are_in_the_catalog_while_the_instance_is_served(tmp_path: Path, stack: ExitStack) -> None:
    here = create_instance(tmp_path, "shop", stack)
    with here.serve(port=0, allow_unencrypted=True, addresses=["TCP://shop.example.com:4022"]) as server:
        found = here.catalog().addresses
        assert {server.address, f"TCP://localhost:{server.port}", "TCP://shop.example.com:4022"} <= {*found}
    assert here.catalog().addresses == ()


def test_a_server_can_be_entered_once(tmp_path: Path, stack: ExitStack) -> None:
    server = stack.enter_context(create_instance(tmp_path, "shop", stack).serve(port=0, allow_unencrypted=True))
    with pytest.raises(ProtocolError), server:
        pass


def test_the_error_of_an_ended_server_names_the_call_for_a_new_one(tmp_path: Path, stack: ExitStack) -> None:
    instance = create_instance(tmp_path, "shop", stack)
    with instance.serve(port=0, allow_unencrypted=True) as ended:
        taken = create_instance(tmp_path, "bank", stack).serve(port=ended.port, allow_unencrypted=True)
        for error in (EndpointError, ProtocolError):
            with pytest.raises(error):
                taken.start()
        with pytest.raises(ProtocolError, match="already running"):
            ended.start()
        assert ended.is_alive
    with pytest.raises(ProtocolError, match=r"can be started only once; call Instance\.serve again"):
        ended.start()
    with instance.serve(port=0, allow_unencrypted=True) as another:
        assert another.is_alive


@pytest.mark.rule("R41")
def test_an_invalid_address_is_rejected_before_anything_is_opened(tmp_path: Path, stack: ExitStack) -> None:
    with pytest.raises(InvalidAddressError, match="'no address' is not a valid address"):
        create_instance(tmp_path, "shop", stack).serve(allow_unencrypted=True, addresses=["no address"])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "allow_unencrypted=True"),
        ({"allow_unencrypted": True, "port": 70_000}, "port"),
        ({"allow_unencrypted": True, "host": ""}, "host"),
        ({"allow_unencrypted": True, "host": 5}, "host: expected an address or a host name, got 5"),
        ({"allow_unencrypted": True, "host": None}, "host: expected an address or a host name, got None"),
        ({"allow_unencrypted": True, "close_timeout": -1}, "close_timeout"),
        ({"allow_unencrypted": True, "addresses": "TCP://a:1"}, "addresses"),
        ({"allow_unencrypted": True, "limits": {}}, "limits: expected EndpointLimits"),
        ({"trust": "keys/shop.pem"}, "trust: expected Trust"),
        (
            {
                "allow_unencrypted": True,
                "trust": Trust(certificate=Path("a"), key=Path("b"), authority=Path("c"), names=["d"]),
            },
            "expected only one of them",
        ),
    ],
)
def test_inconsistent_options_are_rejected(
    tmp_path: Path, stack: ExitStack, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        create_instance(tmp_path, "shop", stack).serve(**options)


@pytest.mark.rule("P13")
@pytest.mark.parametrize("length", [2047, (1 << 20) + 1])
def test_fragment_sizes_that_peers_would_reject_are_rejected(tmp_path: Path, stack: ExitStack, length: int) -> None:
    """The smallest fragment size that peers accept, and the largest that fits a frame."""
    with pytest.raises(OptionError, match=r"settings\.max_fragment_bytes: expected an integer from 2048 to 1048576"):
        create_instance(tmp_path, "shop", stack).serve(
            allow_unencrypted=True, settings=ProtocolSettings(max_fragment_bytes=length)
        )


@pytest.mark.parametrize("limit", [{"bytes_max": 32_000}, {"rows_max": 4}])
def test_a_full_inbox_pauses_reading_until_a_turn_has_made_it_half_empty(limit: dict[str, Any]) -> None:
    calls: list[str] = []
    inbox = Inbox(pause=lambda: calls.append("pause"), resume=lambda: calls.append("resume"), **limit)
    peer: Any = None
    rows = pa.table({"body": [bytes(8_000)]})
    for _ in range(5):
        inbox.put(peer, rows)
    assert calls == ["pause"]
    taken = inbox.take()
    assert calls == ["pause", "resume"]
    inbox.put_back(taken)
    assert calls == ["pause", "resume", "pause"]
    assert [[table.num_rows for _, table in inbox.take()] for _ in range(2)] == [[1] * 4, [1]]
    assert inbox.is_empty


def test_closing_ends_everything_even_if_a_file_is_missing(tmp_path: Path, stack: ExitStack) -> None:
    """The server would otherwise serve on, and could not be closed again."""
    with Instance.create(tmp_path / "shop", name="shop") as shop:
        server = shop.serve(port=0, allow_unencrypted=True).__enter__()
        port = server.port
        (shop.folder / "msdb.sqlite").rename(tmp_path / "away")
        with suppress(StorageError):
            server.close()
        (tmp_path / "away").rename(shop.folder / "msdb.sqlite")
        assert not ServeLock.is_held(shop.folder)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5).close()
        with shop.serve(port=0, allow_unencrypted=True) as again:
            assert again.is_alive


def test_the_text_of_a_server_says_where_it_listens(tmp_path: Path) -> None:
    with Instance.create(tmp_path / "shop", name="shop") as instance:
        server = instance.serve(port=0, allow_unencrypted=True)
        assert repr(server) == "<Server of 'shop', not running>"
        with server:
            assert repr(server) == f"<Server of 'shop', at TCP://127.0.0.1:{server.port}>"
