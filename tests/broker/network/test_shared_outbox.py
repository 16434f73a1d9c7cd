"""Own and forwarded rows share an outbox that is smaller than either (R43)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.broker.network.forwarded_rows import peer, row, wire
from tests.broker.network.memory_connections import MemoryNetwork
from tests.broker.network.socket_instances import order
from tests.broker.sample_databases import SHOP, STOCK, received, shop, stock
from tests.internals import instance_of

FAR_ADDRESS = "TCP://far:4022"
OUTBOX_BYTES = 100_000
PART = bytes(8_000)


class ForwarderWithShop:
    """An instance that forwards rows for `//Stock` and has a shop that sends to it."""

    def __init__(self, network: MemoryNetwork) -> None:
        self.network = network
        self.far, self.between = network.instance("far"), network.instance("between")
        self.stock, self.sales = stock(self.far), shop(self.between)
        self.between.execute(
            "CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED)"
        )
        for database in (self.sales, self.between.msdb):
            database.create_route("Stock", service_name=STOCK, address=FAR_ADDRESS)
        self.stock.create_route("Shop", service_name=SHOP, address="TCP://between:4022")
        network.settle()
        network.pipe("between").outbox_bytes = OUTBOX_BYTES
        self.batches = 0

    def receive_from_peer(self) -> None:
        """Receives more rows from a peer than fit into one turn."""
        for _ in range(2):
            rows = [row(number, body=PART, conversation=1000 + self.batches) for number in range(10)]
            self.network.pipe("between").receiver.rows_received(peer(77), wire(rows))
            self.batches += 1


@pytest.fixture
def between(tmp_path: Path) -> Iterator[ForwarderWithShop]:
    with ExitStack() as stack:
        yield ForwarderWithShop(MemoryNetwork(tmp_path, stack))


@pytest.mark.rule("P17")
def test_forwarded_rows_do_not_block_own_messages(between: ForwarderWithShop) -> None:
    """However many forwarded rows arrive, own rows get their turn."""
    for _ in range(10):
        between.receive_from_peer()
    between.network.turn()
    order(between.sales, b"two chairs")
    found: list[bytes] = []
    for _ in range(20):
        between.receive_from_peer()
        between.network.turn()
        found += received(between.stock)
    assert b"two chairs" in found


@pytest.mark.rule("R43")
def test_own_messages_do_not_block_forwarded_rows(between: ForwarderWithShop) -> None:
    dialogs = [order(between.sales, PART) for _ in range(100)]
    for _ in range(10):
        between.network.turn()
    for dialog in dialogs:
        order(between.sales, *[PART] * 20, dialog=dialog)
    between.network.turn()
    between.receive_from_peer()
    for _ in range(20):
        between.network.turn()
    assert between.network.servers["between"].forwarding.counters.messages == 20
    assert instance_of(between.sales).view("sys.transmission_queue").num_rows > 100
