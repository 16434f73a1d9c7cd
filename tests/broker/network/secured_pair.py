"""Two instances connected in memory with dialog security: users, certificates and bindings on both sides."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ssbroker.broker.database import Database, database_context
from ssbroker.broker.network.interfaces import Peer
from ssbroker.protocol.wire.frames import WIRE
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import SHOP, STOCK
from tests.security.shared_certificates import certified

PASSWORD = "long and secret"


def create_own_certificate(database: Database, user: str, service: str) -> None:
    """Makes a new user, with a certificate and its private key, the owner of a service."""
    database.create_user(user)
    if database_context(database).objects().security.master_key is None:
        database.create_master_key(PASSWORD)
    made = certified(user)
    database.create_certificate(f"Own{user}", certificate=made.certificate, private_key=made.key, owner=user)
    database.set_service_owner(service, user)


def import_certificate(database: Database, user: str, *, certificate: str | None = None) -> None:
    """Creates a user for a remote principal, with its certificate but without the private key."""
    database.create_user(user)
    name = certificate or user
    database.create_certificate(f"Of{name}", certificate=certified(name).certificate, owner=user)


def secured(folder: Path, *, anonymous: bool = False) -> Iterator[ShopAndBank]:
    """A shop with a binding to the bank's service, which accepts only the shop, or everybody if `anonymous`."""
    for shop_and_bank in shop_and_bank_pair(folder):
        create_own_certificate(shop_and_bank.stock, "Bank", STOCK)
        import_certificate(shop_and_bank.sales, "Bank")
        shop_and_bank.sales.create_remote_service_binding("B", service=STOCK, user="Bank", anonymous=anonymous)
        if not anonymous:
            create_own_certificate(shop_and_bank.sales, "Shop", SHOP)
            import_certificate(shop_and_bank.stock, "Shop")
            shop_and_bank.stock.revoke_send(STOCK, "public")
            shop_and_bank.stock.grant_send(STOCK, "Shop")
        yield shop_and_bank


def begin(shop_and_bank: ShopAndBank, *bodies: bytes, **options: Any) -> uuid.UUID:
    """Begins a dialog at the shop with the default encryption."""
    with shop_and_bank.sales.transaction() as t:
        handle = t.begin_dialog(SHOP, STOCK, **options)
        for body in bodies:
            t.send(handle, body)
    return handle


def rows_to(shop_and_bank: ShopAndBank, name: str) -> list[dict[str, Any]]:
    """Returns all rows sent to an instance so far."""
    sender = "shop" if name == "bank" else "bank"
    sent = [table for address, table in shop_and_bank.network.pipe(sender).sent if address == f"TCP://{name}:4022"]
    return [row for table in sent for row in to_rows(table)]


def to_rows(table: pa.Table) -> list[dict[str, Any]]:
    return table.to_pylist()


def deliver_rows(
    shop_and_bank: ShopAndBank, name: str, rows: Iterable[dict[str, Any]], *, principal: str | None = None
) -> None:
    """Delivers rows to an instance as a peer does."""
    peer = Peer(bytes(16), "somebody", principal, "TCP://somebody:4022", uuid.UUID(int=9), True)
    shop_and_bank.network.pipe(name).receiver.rows_received(peer, pa.Table.from_pylist(list(rows), schema=WIRE))
    shop_and_bank.network.settle()
