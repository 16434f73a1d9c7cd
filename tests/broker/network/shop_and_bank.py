"""Two instances connected in memory: a shop that sends orders and a bank that replies."""

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
    """The instances `shop` and `bank`, each with one database and a route to the other."""

    network: MemoryNetwork
    shop: Instance
    bank: Instance
    sales: Database
    stock: Database

    def send(self, *bodies: bytes, to: str = STOCK, dialog: uuid.UUID | None = None, **options: Any) -> uuid.UUID:
        """Sends from the shop, in a new dialog unless one is given; returns the handle."""
        with self.sales.transaction() as t:
            handle = t.begin_dialog(SHOP, to, encryption=False, **options) if dialog is None else dialog
            for body in bodies:
                t.send(handle, body)
        return handle

    def answer(self, *bodies: bytes) -> list[bytes]:
        """Receives all messages at the bank and replies in the last conversation; returns the received bodies."""
        bodies_received: list[bytes] = []
        with self.stock.transaction() as t:
            while (table := t.receive(ORDERS)).num_rows:
                bodies_received += [body or b"" for body in table["message_body"].to_pylist()]
                handle = table["conversation_handle"][0].as_py()
            for body in bodies:
                t.send(handle, body)
        return bodies_received

    def crash(self, name: str) -> None:
        """Crashes an instance and opens it again."""
        self.network.crash(name)
        instance = self.network.instance(name)
        if name == "shop":
            self.shop, self.sales = instance, instance.database(SALES)
        else:
            self.bank, self.stock = instance, instance.database(self.stock.name)

    def receive_orders(self) -> list[bytes]:
        """Receives all messages at the bank; returns their bodies."""
        return received(self.stock)


def shop_and_bank_pair(folder: Path) -> Iterator[ShopAndBank]:
    """Creates both instances, with routes to each other."""
    with ExitStack() as stack:
        network = MemoryNetwork(folder, stack)
        shop_instance, bank_instance = network.instance("shop"), network.instance("bank")
        both = ShopAndBank(network, shop_instance, bank_instance, shop(shop_instance, SALES), stock(bank_instance))
        both.sales.create_route("There", address="TCP://bank:4022", service_name=STOCK)
        both.stock.create_route("Back", address="TCP://shop:4022", service_name=SHOP)
        yield both
