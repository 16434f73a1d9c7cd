"""The file in which the serving process reports to other processes of its instance."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ssbroker import Catalog
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.broker.network.forwarding import ForwardedRows
from ssbroker.broker.network.status_file import StatusFile, read_status
from ssbroker.broker.overview import overview_of
from ssbroker.broker.serve_lock import ServeLock
from ssbroker.catalog.instance_folder import STATUS_FILE
from tests.broker import sample_databases
from tests.broker.network.forwarded_rows import forward_to, peer, row, wire
from tests.broker.sample_databases import ORDERS, REPLIES, SHOP, STOCK

DEADLINE = 60.0


def test_the_connections_are_in_the_overview_of_every_process(tmp_path: Path) -> None:
    with Instance.create(tmp_path / "near", name="near") as near, Instance.create(tmp_path / "far", name="far") as far:
        with near.serve(port=0, allow_unencrypted=True) as here, far.serve(port=0, allow_unencrypted=True) as there:
            sales, stock = sample_databases.shop(near), sample_databases.stock(far)
            sales.create_route("there", service_name=STOCK, address=there.address)
            stock.create_route("back", service_name=SHOP, address=here.address)
            with sales.transaction() as t:
                t.send(t.begin_dialog(SHOP, STOCK, encryption=False), b"two chairs")
            with stock.transaction() as t:
                t.send(t.receive(ORDERS, timeout=DEADLINE)["conversation_handle"][0].as_py(), b"done")
            with sales.transaction() as t:
                assert t.receive(REPLIES, timeout=DEADLINE).num_rows == 1
            assert here._status_file is not None
            here._status_file.write()
            with Instance.open(tmp_path / "near", background=False) as another:
                status = overview_of(another)["serving"]
        assert overview_of(near)["serving"] is None
    assert status["listens"] == f"127.0.0.1:{here.port}"
    found = [each for each in status["connections"] if each["state_desc"] == "LOGGED_IN"]
    assert [each["remote_user_name"] for each in found] == ["far"]
    assert found[0]["total_bytes_sent"] > 0
    assert Catalog.load(tmp_path / "near").addresses[0] == here.address, "it remains known"


def test_held_rows_are_counted_without_iterating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ForwardedRows, "view_rows", lambda *_given, **_options: pytest.fail("the rows were iterated"))
    with Instance.create(tmp_path / "between", name="between", background=False) as between:
        between.execute(
            "CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED);"
        )
        with between.serve(port=0, allow_unencrypted=True) as server:
            held = forward_to("TCP://127.0.0.1:1", 3, mirror="TCP://127.0.0.1:2")
            server.forwarding.forward(peer(), wire([row(number) for number in range(3)]), held)
            assert server._status_file is not None
            server._status_file.write()
            status = read_status(between.folder)
    assert status is not None
    assert status["forwarded_pending"] == 3


def test_the_file_of_a_killed_process_is_ignored(tmp_path: Path) -> None:
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        StatusFile(instance_context(instance), ("127.0.0.1", 1)).write()
        assert read_status(instance.folder) is None
        lock = ServeLock(instance.folder)
        lock.acquire()
        assert read_status(instance.folder) is not None
        for content in ("{half", '{"process": 1, "listens": "127.0.0.1:2"}'):  # the latter is of another process
            (instance.folder / STATUS_FILE).write_text(content)
            found = read_status(instance.folder)
            assert found is not None
            assert (found["process"], found["listens"]) == (os.getpid(), None)
        lock.release()
        assert read_status(instance.folder) is None


def test_a_read_only_folder_can_be_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        (instance.folder / "serving.new").mkdir()
        status_file = StatusFile(instance_context(instance), ("127.0.0.1", 1))
        status_file.start()
        status_file.close()
    assert "cannot be updated" in caplog.text


def test_a_file_that_cannot_be_written_does_not_prevent_closing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        (instance.folder / STATUS_FILE / "something").mkdir(parents=True)
        with instance.serve(port=0, allow_unencrypted=True):
            pass
        assert not ServeLock.is_held(instance.folder)
    assert f"{STATUS_FILE}: cannot be updated" in caplog.text


def test_a_file_that_cannot_be_written_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The write is retried every two seconds, and a disk may stay full for days."""
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        obstacle = instance.folder / "serving.new"
        status_file = StatusFile(instance_context(instance), ("127.0.0.1", 1))
        for count in (1, 2):
            obstacle.mkdir()
            status_file.write()
            status_file.write()
            assert caplog.text.count("cannot be updated") == count
            obstacle.rmdir()
            status_file.write()


def test_an_ipv6_address_is_bracketed(tmp_path: Path) -> None:
    """This separates it from its port, as in a URL."""
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        lock = ServeLock(instance.folder)
        lock.acquire()
        StatusFile(instance_context(instance), ("::1", 4022)).write()
        status = read_status(instance.folder)
        lock.release()
    assert status is not None
    assert status["listens"] == "[::1]:4022"
