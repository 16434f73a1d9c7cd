"""P22: secured dialogs over real sockets and through a forwarder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ssbroker.broker.database import Database
from ssbroker.broker.database import context_of as database_context
from tests.broker.network import socket_instances
from tests.broker.network.secured_pair import has_own_certificate, knows
from tests.broker.network.socket_instances import Street, answered, order, taken
from tests.broker.sample_databases import REPLIES, SHOP, STOCK


@pytest.fixture
def street(tmp_path: Path) -> Iterator[Street]:
    with socket_instances.street(tmp_path) as made:
        yield made


def keys(database: Database) -> list[tuple[bytes | None, bytes | None]]:
    """With what each endpoint seals, and its far side."""
    with database_context(database).file.read() as connection:
        return [*connection.execute("SELECT session_key, far_session_key FROM ssb_conversation_endpoints")]


@pytest.mark.rule("P22")
@pytest.mark.parametrize("anonymous", [False, True])
def test_a_secured_dialog_passes_through_a_forwarder_without_keys(street: Street, *, anonymous: bool) -> None:
    """Full and anonymous security, large messages, and answers."""
    near, between, far = (street.moves_in(name) for name in ("near", "between", "far"))
    between.leads("msdb", STOCK, far.address)
    between.leads("msdb", SHOP, near.address)
    between.forwards()
    sales, stock = socket_instances.shop(near), socket_instances.stock(far)
    near.leads("Sales", STOCK, between.address)
    far.leads("Stock", SHOP, between.address)
    has_own_certificate(stock, "Bank", STOCK)
    knows(sales, "Bank")
    sales.create_remote_service_binding("B", service=STOCK, user="Bank", anonymous=anonymous)
    if not anonymous:
        has_own_certificate(sales, "Shop", SHOP)
        knows(stock, "Shop")
        stock.revoke_send(STOCK, "public")
        stock.grant_send(STOCK, "Shop")
    bodies = [b"secret order %d" % number * 5000 for number in range(5)]
    order(sales, *bodies)
    assert answered(stock, 5, b"secret thanks") == bodies
    assert taken(sales, 1, queue=REPLIES) == [b"secret thanks"]
    ((own, far_key),) = keys(sales)
    assert own is not None
    assert keys(stock) == ([(own, None)] if anonymous else [(far_key, own)])
    assert (far_key is None) == anonymous
    assert between.instance.view("sys.conversation_endpoints").num_rows == 0
