"""`ssbroker serve` on a full disk."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

import pytest

from ssbroker import Instance
from tests.broker import sample_databases
from tests.broker.sample_databases import ORDERS, SHOP, STOCK
from tests.cli.serve_process import DEADLINE, ServeProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux can limit another process")
BODY = b"one chair more than the disk can take" * 30_000
FULL = 4096


def limit_file_size(process: int, size: int | None) -> None:
    """Limits the size of the files that a process writes; None is no limit."""
    import resource  # noqa: PLC0415 - Windows has none

    unlimited = resource.RLIM_INFINITY
    resource.prlimit(process, resource.RLIMIT_FSIZE, (unlimited if size is None else size, unlimited))


def health(served: ServeProcess) -> tuple[int, dict[str, str]]:
    """Returns the status and the problems of `/health`."""
    connection = HTTPConnection(served.serving["http"], timeout=DEADLINE)
    try:
        connection.request("GET", "/health")
        response = connection.getresponse()
        return response.status, json.loads(response.read())["problems"]
    finally:
        connection.close()


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until the condition is true."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_health_reports_write_failures_although_a_write_has_succeeded(tmp_path: Path) -> None:
    """Small writes may succeed while the disk is full, so a failure is reported for two minutes (`tests/broker/test_health.py`)."""
    with Instance.create(tmp_path / "stock", name="stock", background=False) as instance:
        sample_databases.stock(instance)
    options = ("--listen", "127.0.0.1:0", "--allow-unencrypted", "--http", "127.0.0.1:0")
    with (
        ServeProcess(tmp_path / "stock", *options) as served,
        Instance.create(tmp_path / "shop", name="shop") as shop,
        shop.serve(port=0, allow_unencrypted=True),
    ):
        sample_databases.shop(shop)
        sales = shop.database("Sales")
        sales.create_route("to stock", service_name=STOCK, address=f"TCP://{served.serving['listen']}")
        assert health(served) == (200, {})
        limit_file_size(served.process.pid, FULL)
        with sales.transaction() as t:
            t.send(t.begin_dialog(SHOP, STOCK, encryption=False), BODY)
        wait_for(lambda: health(served)[0] == 503)
        problems = health(served)[1]
        assert list(problems) == ["database Stock"]
        assert problems["database Stock"].startswith(f"could not be written: {tmp_path / 'stock' / 'Stock.sqlite'}: ")
        limit_file_size(served.process.pid, None)
        with Instance.open(tmp_path / "stock") as stock, stock.database("Stock").transaction() as t:
            assert t.receive(ORDERS, timeout=DEADLINE)["message_body"].to_pylist() == [BODY]
        assert health(served) == (503, problems)
        assert served.stop() == 0


def test_health_reports_a_full_disk_although_the_server_writes_nothing(tmp_path: Path) -> None:
    """The disk is full for the workers, which are other processes."""
    Instance.create(tmp_path / "shop", name="shop", background=False).close()
    options = ("--listen", "127.0.0.1:0", "--allow-unencrypted", "--http", "127.0.0.1:0")
    with ServeProcess(tmp_path / "shop", *options) as served:
        limit_file_size(served.process.pid, FULL)
        status, problems = health(served)
        assert (status, list(problems)) == (503, ["database msdb"])
        assert problems["database msdb"].startswith("could not be written: ")
        assert served.stop() == 0
