"""Two instances connected in memory: a shop, which orders, and a bank, which answers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance
from tests.broker.network.memory_connections import MemoryNetwork
from tests.broker.sample_databases import ORDERS, SHOP, STOCK, received, shop, stock

SALES = "Sales"


@dataclass
class ShopAndBank:
    """The instances `shop` and `bank`, with a database each and routes to each other."""

    network: MemoryNetwork
    shop: Instance
    bank: Instance
    sales: Database
    stock: Database

    def send(self, *bodies: bytes, to: str = STOCK, dialog: uuid.UUID | None = None, **asked: Any) -> uuid.UUID:
        """The shop sends, in a new dialog unless one is named."""
        with self.sales.transaction() as t:
            handle = t.begin_dialog(SHOP, to, encryption=False, **asked) if dialog is None else dialog
            for body in bodies:
                t.send(handle, body)
        return handle

    def answer(self, *bodies: bytes) -> list[bytes]:
        """The bank receives all there is and answers the last conversation; what it received."""
        found: list[bytes] = []
        with self.stock.transaction() as t:
            while (table := t.receive(ORDERS)).num_rows:
                found += [body or b"" for body in table["message_body"].to_pylist()]
                handle = table["conversation_handle"][0].as_py()
            for body in bodies:
                t.send(handle, body)
        return found

    def crash(self, name: str) -> None:
        """Ends an instance as a crash would, and opens it again."""
        self.network.crash(name)
        instance = self.network.instance(name)
        if name == "shop":
            self.shop, self.sales = instance, instance.database(SALES)
        else:
            self.bank, self.stock = instance, instance.database(self.stock.name)

    def ordered(self) -> list[bytes]:
        """What the bank receives."""
        return received(self.stock)


def shop_and_bank_pair(folder: Path) -> Iterator[ShopAndBank]:
    """Both, with routes to each other."""
    with ExitStack() as stack:
        network = MemoryNetwork(folder, stack)
        one, other = network.instance("shop"), network.instance("bank")
        both = ShopAndBank(network, one, other, shop(one, SALES), stock_of(other))
        both.sales.create_route("There", address="TCP://bank:4022", service_name=STOCK)
        both.stock.create_route("Back", address="TCP://shop:4022", service_name=SHOP)
        yield both


def stock_of(instance: Instance) -> Database:
    """A database with the service `//Stock`."""
    return stock(instance)
