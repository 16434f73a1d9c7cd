"""An ASGI application that accepts orders, and ships them in the background.

Run it with `uvicorn shop:app`, with one or several workers. `POST /` accepts an order, and `GET /` counts orders.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from ssbroker import Database, Instance, Job, WorkQueue

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

WORKERS: Final = 5


class Shop:
    """The database of the shop, and its queue of orders to ship."""

    def __init__(self, database: Database) -> None:
        self.database: Final = database
        self.to_ship: Final[WorkQueue] = database.queue("ToShip", on_poison="move")
        with database.transaction() as t:
            t.connection.execute(
                "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, article TEXT, shipped_by_attempt INTEGER)"
            )

    async def accept(self, article: str) -> int:
        """Stores an order together with the job to ship it; both are on the disk when this returns."""
        async with self.database.transaction() as t:
            t.connection.execute("INSERT INTO orders VALUES (NULL, ?, NULL)", (article,))
            order_id = t.connection.last_insert_rowid()
            self.to_ship.put({"order": order_id}, codec="json", transaction=t)
        return order_id

    async def ship(self, job: Job) -> None:
        """Ships an order. If this raises an exception or the process is killed, a worker tries again later."""
        await asyncio.sleep(0.05)  # call the carrier here
        async with job.transaction() as t:
            order = (job.attempt, job.value["order"])
            t.connection.execute("UPDATE orders SET shipped_by_attempt = ? WHERE id = ?", order)

    def count(self) -> dict[str, int]:
        """Returns the number of orders, how many are shipped, and how many of these by a repeated attempt."""
        with self.database.read() as connection:  # without the write lock
            counts = "SELECT count(*), count(shipped_by_attempt), count(nullif(shipped_by_attempt, 1)) FROM orders"
            (row,) = connection.execute(counts)
        return dict(zip(("orders", "shipped", "repeated"), row, strict=True))


class Application:
    """The ASGI application."""

    def __init__(self) -> None:
        self._shop: Shop | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serves a connection, as ASGI servers call it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http" and self._shop is not None:
            await self._answer(self._shop, scope["method"], receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Ships orders while the server runs."""
        await receive()
        async with Instance.open(os.environ.get("SHOP", "shop-data"), create=True) as instance:
            shop = self._shop = Shop(instance.create_database("Shop", exist_ok=True))
            async with asyncio.TaskGroup() as workers:
                for _ in range(WORKERS):
                    workers.create_task(shop.to_ship.arun_worker(shop.ship, lease=2))
                await send({"type": "lifespan.startup.complete"})
                await receive()
                instance.stop_workers()  # each ships its current order, and then returns
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, shop: Shop, method: str, receive: Receive, send: Send) -> None:
        if method == "POST":
            order = json.loads(await _body(receive))
            answer: object = {"order": await shop.accept(order["article"])}
        else:
            answer = await asyncio.to_thread(shop.count)
        status = 202 if method == "POST" else 200
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


async def _body(receive: Receive) -> bytes:
    """Returns the body of a request, which arrives in one or more parts."""
    parts = [await receive()]
    while parts[-1].get("more_body"):
        parts.append(await receive())
    return b"".join(part.get("body", b"") for part in parts)


app = Application()
