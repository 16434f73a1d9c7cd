"""`ssbroker serve` while its disk takes nothing (B4, N28, N35)."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path

import pytest

from ssbroker import Instance
from tests.broker import shops
from tests.broker.shops import ORDERS, SHOP, STOCK
from tests.cli.served import DEADLINE, Served

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are Linux's")
BODY = b"one chair more than the disk can take" * 30_000
FULL = 4096


def allowed(number: int, size: int | None) -> None:
    """Says how large a process may let files become; None is as large as they like."""
    import resource  # noqa: PLC0415 - Windows has none

    most = resource.RLIM_INFINITY
    resource.prlimit(number, resource.RLIMIT_FSIZE, (most if size is None else size, most))


def health(served: Served) -> tuple[int, dict[str, str]]:
    """What it answers about its health."""
    connection = HTTPConnection(served.serving["monitor"], timeout=DEADLINE)
    try:
        connection.request("GET", "/health")
        response = connection.getresponse()
        return response.status, json.loads(response.read())["problems"]
    finally:
        connection.close()


def wait_for(what: Callable[[], bool]) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + DEADLINE
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_health_says_that_nothing_can_be_written_until_something_is(tmp_path: Path) -> None:
    with Instance.create(tmp_path / "stock", name="stock", background=False) as instance:
        shops.stock(instance)
    watched = ("--listen", "127.0.0.1:0", "--allow-unencrypted", "--monitor", "127.0.0.1:0")
    with (
        Served(tmp_path / "stock", *watched) as served,
        Instance.create(tmp_path / "shop", name="shop") as shop,
        shop.serve(port=0, allow_unencrypted=True),
    ):
        shops.shop(shop)
        sales = shop.database("Sales")
        sales.create_route("to stock", service_name=STOCK, address=f"TCP://{served.serving['listen']}")
        assert health(served) == (200, {})
        allowed(served.process.pid, FULL)
        with sales.transaction() as t:
            t.send(t.begin_dialog(SHOP, STOCK, encryption=False), BODY)
        wait_for(lambda: health(served)[0] == 503)
        problems = health(served)[1]
        assert list(problems) == ["database Stock"]
        assert problems["database Stock"].startswith(f"could not be written: {tmp_path / 'stock' / 'Stock.sqlite'}: ")
        allowed(served.process.pid, None)
        with Instance.open(tmp_path / "stock") as stock, stock.database("Stock").transaction() as t:
            assert t.receive(ORDERS, timeout=DEADLINE)["message_body"].to_pylist() == [BODY]
        wait_for(lambda: health(served) == (200, {}))
        assert served.stop() == 0
