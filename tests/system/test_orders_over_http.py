"""The application of `examples/orders_over_http`, called as an ASGI server calls it."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
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


def test_a_worker_that_loses_its_order_ships_the_next(
    shop: ModuleType, instance: Instance, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = shop.Shop(instance.create_database("Shop"))
    carried: list[float] = []

    async def carry(seconds: float) -> None:
        carried.append(seconds)
        if len(carried) == 1:
            clock.advance(seconds=60)
            with store.to_ship.take(timeout=0) as taken_by_another:
                assert taken_by_another

    async def main() -> None:
        for article in ("chair", "table"):
            await store.accept(article)
        worker = asyncio.create_task(store.ship())
        while (await asyncio.to_thread(store.count))["shipped"] < 1:
            assert not worker.done()
        worker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await worker

    monkeypatch.setattr(shop, "asyncio", SimpleNamespace(sleep=carry))
    asyncio.run(main())
    assert store.count() == {"orders": 2, "shipped": 1, "repeated": 0}
