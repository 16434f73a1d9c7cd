"""Two instances that are served over real sockets, with routes to each other."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from ssbroker.broker.instance import Instance
from tests.broker import sample_databases
from tests.broker.sample_databases import SHOP, STOCK


class ServedPair:
    """A shop and a bank."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.shop, self.bank = (
            stack.enter_context(Instance.create(folder / name, name=name)) for name in ("shop", "bank")
        )
        self.sales, self.stock = sample_databases.shop(self.shop), sample_databases.stock(self.bank)
        self.servers = [
            stack.enter_context(each.serve(port=0, allow_unencrypted=True)) for each in (self.shop, self.bank)
        ]
        self.sales.create_route("There", address=self.servers[1].address, service_name=STOCK)
        self.stock.create_route("Back", address=self.servers[0].address, service_name=SHOP)
