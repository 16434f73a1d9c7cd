"""Secured dialogs over real sockets and through a forwarder (P22)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.broker.database import Database, database_context
from tests.broker.network import socket_instances
from tests.broker.network.secured_pair import create_own_certificate, import_certificate
from tests.broker.network.socket_instances import InstanceGroup, order, receive_and_reply, receive_count
from tests.broker.sample_databases import REPLIES, SHOP, STOCK


@pytest.fixture
def instance_group(tmp_path: Path) -> Iterator[InstanceGroup]:
    with socket_instances.instance_group(tmp_path) as made:
        yield made


def keys(database: Database) -> list[tuple[bytes | None, bytes | None]]:
    """Returns the key that each endpoint encrypts with, and the key of its remote endpoint."""
    with database_context(database).file.read() as connection:
        return [*connection.execute("SELECT session_key, far_session_key FROM ssb_conversation_endpoints")]


@pytest.mark.rule("P22")
@pytest.mark.parametrize("anonymous", [False, True])
def test_a_secured_dialog_passes_through_a_forwarder_without_keys(
    instance_group: InstanceGroup, *, anonymous: bool
) -> None:
    near, between, far = (instance_group.create_instance(name) for name in ("near", "between", "far"))
    between.add_route("msdb", STOCK, far.address)
    between.add_route("msdb", SHOP, near.address)
    between.enable_forwarding()
    sales, stock = socket_instances.shop(near), socket_instances.stock(far)
    near.add_route("Sales", STOCK, between.address)
    far.add_route("Stock", SHOP, between.address)
    create_own_certificate(stock, "Bank", STOCK)
    import_certificate(sales, "Bank")
    sales.create_remote_service_binding("B", service=STOCK, user="Bank", anonymous=anonymous)
    if not anonymous:
        create_own_certificate(sales, "Shop", SHOP)
        import_certificate(stock, "Shop")
        stock.revoke_send(STOCK, "public")
        stock.grant_send(STOCK, "Shop")
    bodies = [b"secret order %d" % number * 5000 for number in range(5)]
    order(sales, *bodies)
    assert receive_and_reply(stock, 5, b"secret thanks") == bodies
    assert receive_count(sales, 1, queue=REPLIES) == [b"secret thanks"]
    ((own, far_key),) = keys(sales)
    assert own is not None
    assert keys(stock) == ([(own, None)] if anonymous else [(far_key, own)])
    assert (far_key is None) == anonymous
    assert between.instance.view("sys.conversation_endpoints").num_rows == 0
