"""P13, P14: large messages between two instances over sockets."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ssbroker.broker.metrics import Metrics
from ssbroker.broker.network import inbox
from ssbroker.protocol.settings import SECOND, ProtocolSettings
from tests.broker.network import socket_instances
from tests.broker.network.socket_instances import order, receive_count, wait_until_sent
from tests.broker.sample_databases import SHOP, STOCK

MEBIBYTE = 1 << 20


@pytest.mark.rule("P13", "P14")
def test_a_large_message_is_written_once_at_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fragments wait in memory, so that none is stored before the message is complete."""
    for name in ("HELD_PAUSE", "HELD_TIME"):
        monkeypatch.setattr(inbox, name, 60 * SECOND)
    settings = ProtocolSettings(window_bytes=32 * MEBIBYTE)
    with socket_instances.instance_group(tmp_path) as group:
        shop, bank = (group.create_instance(name, settings=settings) for name in ("shop", "bank"))
        sales, stock = socket_instances.shop(shop), socket_instances.stock(bank)
        shop.add_route("Sales", STOCK, bank.address)
        bank.add_route("Stock", SHOP, shop.address)
        bodies = [b"first", *(Random(number).randbytes(9 * MEBIBYTE) for number in range(2)), b"last"]
        dialog = order(sales, bodies[0])
        wait_until_sent(sales)  # until then only the first message is sent
        order(sales, *bodies[1:], dialog=dialog)
        assert receive_count(stock, 4) == bodies
        wait_until_sent(sales)
        metrics = Metrics(bank.instance).text().decode().splitlines()
        assert "ssbroker_enqueued_transport_msg_frags_total 0" in [line.removesuffix(".0") for line in metrics]
