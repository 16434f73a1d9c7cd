"""The application of `examples/orders_over_http`, called as an ASGI server calls it."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ssbroker import Instance
from tests.broker.conftest import Clock
from tests.guards.repository import ROOT


@pytest.fixture
def shop() -> ModuleType:
    """The module `shop.py`."""
    spec = importlib.util.spec_from_file_location("shop", ROOT / "examples" / "orders_over_http" / "shop.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def instance(tmp_path: Path, clock: Clock) -> Iterator[Instance]:
    with Instance.create(tmp_path / "shop", name="shop", clock=clock, background=False) as opened:
        yield opened


def test_an_order_may_arrive_in_parts(shop: ModuleType, instance: Instance) -> None:
    parts: Iterator[dict[str, Any]] = iter(
        [
            {"type": "http.request", "body": b'{"article": ', "more_body": True},
            {"type": "http.request", "body": b'"chair"}'},
        ]
    )
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return next(parts)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    application = shop.Application()
    application._shop = shop.Shop(instance.create_database("Shop"))
    asyncio.run(application({"type": "http", "method": "POST"}, receive, send))
    assert [message.get("status", message.get("body")) for message in sent] == [202, b'{"order": 1}']
    assert application._shop.count() == {"orders": 1, "shipped": 0, "repeated": 0}


def test_failing_orders_do_not_end_the_workers(
    shop: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One for each worker. When the server stops, the workers finish their current orders."""
    began = 0
    asleep = asyncio.sleep

    async def carry(seconds: float) -> None:
        nonlocal began
        began += 1
        if began <= shop.WORKERS:
            raise OSError("the carrier does not answer")
        await asleep(10 * seconds)

    async def main() -> None:
        to_server, from_server = asyncio.Queue[dict[str, Any]](), asyncio.Queue[dict[str, Any]]()
        application = shop.Application()
        server = asyncio.create_task(application({"type": "lifespan"}, to_server.get, from_server.put))
        await to_server.put({"type": "lifespan.startup"})
        assert await from_server.get() == {"type": "lifespan.startup.complete"}
        store = application._shop
        for _ in range(shop.WORKERS):
            await store.accept("chair")
        while began < shop.WORKERS:
            await asleep(0.01)
        await store.accept("table")
        while began == shop.WORKERS:
            await asleep(0.01)
        await to_server.put({"type": "lifespan.shutdown"})
        await server

    monkeypatch.setenv("SHOP", str(tmp_path / "shop"))
    monkeypatch.setattr(shop.asyncio, "sleep", carry)
    asyncio.run(main())
    with Instance.open(tmp_path / "shop") as instance:
        counts = shop.Shop(instance.database("Shop")).count()
        assert counts["orders"] == shop.WORKERS + 1
        assert counts["shipped"] == began - shop.WORKERS >= 1
        assert "LEASED" not in instance.view("sys.dm_broker_leases")["state"].to_pylist()
    assert caplog.text.count("OSError: the carrier does not answer, retry_at=") == shop.WORKERS
