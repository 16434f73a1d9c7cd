"""Attacks on secured dialogs by another instance that does not have the private keys."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ssbroker._arguments import epoch_microseconds
from ssbroker._well_known import ERROR
from ssbroker.broker.database import Database, database_context
from ssbroker.protocol.envelope import Protection
from ssbroker.protocol.events import CorruptedMessage, MessageUndeliverable
from ssbroker.security.key_exchange import Direction, KeyOffers
from tests.broker import sample_databases
from tests.broker.network.secured_pair import (
    begin,
    create_own_certificate,
    deliver_rows,
    import_certificate,
    rows_to,
    secured,
)
from tests.broker.network.shop_and_bank import ShopAndBank
from tests.broker.sample_databases import REPLIES, STOCK, received, states, waiting
from tests.internals import instance_of
from tests.security.shared_certificates import own, public
from tests.system.forged_rows import acknowledging, forged

BANK = "TCP://bank:4022"
SHOP = "TCP://shop:4022"
Row = dict[str, Any]


@pytest.fixture
def shop_and_bank(tmp_path: Path) -> Iterator[ShopAndBank]:
    """With full security."""
    yield from secured(tmp_path)


def intercept_request(shop_and_bank: ShopAndBank) -> Row:
    """Intercepts the first row of a dialog."""
    shop_and_bank.network.lossy.add(BANK)
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle()
    shop_and_bank.network.lossy.clear()
    return rows_to(shop_and_bank, "bank")[-1]


def intercept_answer(shop_and_bank: ShopAndBank) -> Row:
    """Intercepts the answer to the first row of a dialog."""
    shop_and_bank.network.lossy.add(SHOP)
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle(seconds=2)
    shop_and_bank.network.lossy.clear()
    return rows_to(shop_and_bank, "shop")[-1]


def handle_of(database: Database) -> uuid.UUID:
    """Returns the handle of a database's only conversation."""
    (handle,) = (
        instance_of(database).view("sys.conversation_endpoints", database.name)["conversation_handle"].to_pylist()
    )
    return uuid.UUID(bytes=bytes(handle or b""))


def refused(shop_and_bank: ShopAndBank, name: str) -> set[int]:
    """Returns the error numbers of the rows that an instance rejected."""
    return {
        event.error
        for kind in (CorruptedMessage, MessageUndeliverable)
        for event in shop_and_bank.network.emitted(name, kind)
    }


def key_blob(
    shop_and_bank: ShopAndBank, row: Row, *, by: str | None, to: str, key: bytes = bytes(32), **other: Any
) -> bytes:
    """Returns a key exchange blob for the direction of a row, signed by `by` or anonymous."""
    names = {name: row[name] for name in ("conversation_id", "is_initiator", "from_service_name", "to_service_name")}
    of = Direction(**{**names, **other})
    sender = None if by is None else own(by)
    return KeyOffers().make_blob(
        key, of, receiver=public(to), sender=sender, now=epoch_microseconds(database_context(shop_and_bank.sales).now())
    )


@pytest.mark.threat("T15")
def test_security_cannot_be_downgraded(shop_and_bank: ShopAndBank) -> None:
    """Rows without the key, with an unsecured header or with an anonymous key are rejected; the original row is accepted."""
    row = intercept_request(shop_and_bank)
    for downgraded in (
        {**row, "key_exchange": None},
        forged({**row, "key_exchange": None}, security=Protection.PLAIN, message_body=b"two tables"),
        {**row, "security": Protection.SIGNED},
        {**row, "key_exchange": key_blob(shop_and_bank, row, by=None, to="Bank")},
        {**row, "key_exchange": row["key_exchange"][:-1]},
        {**row, "key_exchange": b""},
    ):
        deliver_rows(shop_and_bank, "bank", [downgraded])
    assert shop_and_bank.receive_orders() == []
    assert states(shop_and_bank.stock) == []
    shop_and_bank.network.settle(seconds=5)
    assert shop_and_bank.receive_orders() == [b"two chairs"]


@pytest.mark.threat("T15", "T11")
def test_a_secured_dialog_rejects_unsecured_rows(shop_and_bank: ShopAndBank) -> None:
    """Neither acknowledgements nor errors are accepted, before the answer and after it."""
    row = intercept_request(shop_and_bank)
    plain = {**row, "security": Protection.PLAIN}
    error: Row = {"message_type_name": ERROR, "is_conversation_error": True, "message_body": b"<Error/>"}
    forgeries = [acknowledging(plain, 5), acknowledging(plain, 0, **error), acknowledging(row, 5)]
    deliver_rows(shop_and_bank, "shop", forgeries)
    assert (states(shop_and_bank.sales), len(waiting(shop_and_bank.sales))) == (["CO"], 1)
    shop_and_bank.network.settle(seconds=5)
    shop_and_bank.network.lossy.add(BANK)
    shop_and_bank.send(b"a table", dialog=handle_of(shop_and_bank.sales))
    shop_and_bank.network.settle()
    shop_and_bank.network.lossy.clear()
    deliver_rows(shop_and_bank, "shop", forgeries)
    assert (states(shop_and_bank.sales), len(waiting(shop_and_bank.sales))) == (["CO"], 1)
    shop_and_bank.network.settle(seconds=5)
    assert shop_and_bank.receive_orders() == [b"two chairs", b"a table"]


def test_an_unknown_certificate_is_not_answered(shop_and_bank: ShopAndBank) -> None:
    """The sender keeps the message until its certificate is imported."""
    shop_and_bank.stock.drop_certificate("OfShop")
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle(seconds=5)
    assert refused(shop_and_bank, "bank") == {11229}
    assert rows_to(shop_and_bank, "shop") == []
    assert (len(waiting(shop_and_bank.sales)), states(shop_and_bank.stock)) == (1, [])
    import_certificate(shop_and_bank.stock, "Shop2", certificate="Shop")
    shop_and_bank.stock.grant_send(STOCK, "Shop2")
    shop_and_bank.network.settle(seconds=65)
    assert shop_and_bank.receive_orders() == [b"two chairs"]


@pytest.mark.threat("T1", "T14")
@pytest.mark.parametrize("thief", ["Thief", "Bank"])
def test_an_initiator_cannot_be_impersonated(shop_and_bank: ShopAndBank, thief: str) -> None:
    """Neither with a certificate that the bank does not know, nor with that of a user without SEND permission."""
    row = intercept_request(shop_and_bank)
    deliver_rows(shop_and_bank, "bank", [{**row, "key_exchange": key_blob(shop_and_bank, row, by=thief, to="Bank")}])
    assert shop_and_bank.receive_orders() == []
    assert states(shop_and_bank.stock) == []
    assert refused(shop_and_bank, "bank") <= {11229, 11230}
    shop_and_bank.network.settle(seconds=5)
    assert shop_and_bank.receive_orders() == [b"two chairs"]


@pytest.mark.rule("P25")
@pytest.mark.threat("T14")
@pytest.mark.parametrize("thief", ["Thief", "Shop"])
def test_a_clone_without_the_private_key_cannot_answer(shop_and_bank: ShopAndBank, thief: str) -> None:
    """The dialog is bound by an answer of the user in the binding, not by the first answer."""
    row = intercept_answer(shop_and_bank)
    for blob in (
        key_blob(shop_and_bank, row, by=thief, to="Shop"),
        key_blob(shop_and_bank, row, by=None, to="Shop"),
        None,
    ):
        deliver_rows(shop_and_bank, "shop", [{**row, "key_exchange": blob}])
    assert len(waiting(shop_and_bank.sales)) == 1
    deliver_rows(shop_and_bank, "shop", [row])
    assert waiting(shop_and_bank.sales) == []


@pytest.mark.threat("T14")
def test_an_answer_by_another_user_than_the_bindings_is_rejected(shop_and_bank: ShopAndBank) -> None:
    """Also if the shop has the certificate."""
    import_certificate(shop_and_bank.sales, "Thief")
    row = intercept_answer(shop_and_bank)
    deliver_rows(shop_and_bank, "shop", [{**row, "key_exchange": key_blob(shop_and_bank, row, by="Thief", to="Shop")}])
    assert len(waiting(shop_and_bank.sales)) == 1
    assert 11229 in refused(shop_and_bank, "shop")


@pytest.mark.threat("T17")
def test_a_key_for_one_service_is_useless_at_another(shop_and_bank: ShopAndBank) -> None:
    """A row is rejected by a service of another owner, and if its service name was changed."""
    row = intercept_request(shop_and_bank)
    shop_and_bank.stock.set_service_owner(STOCK, "dbo")
    deliver_rows(shop_and_bank, "bank", [row])
    assert refused(shop_and_bank, "bank") == {11229}
    shop_and_bank.stock.set_service_owner(STOCK, "Bank")
    shop_and_bank.stock.create_queue("Other")
    shop_and_bank.stock.create_service("//Other", queue="Other", owner="Bank")
    deliver_rows(shop_and_bank, "bank", [{**row, "to_service_name": "//Other"}])
    assert states(shop_and_bank.stock) == []
    shop_and_bank.network.settle(seconds=5)
    assert shop_and_bank.receive_orders() == [b"two chairs"]


@pytest.mark.threat("T2")
def test_a_blob_of_another_conversation_or_direction_is_rejected(shop_and_bank: ShopAndBank) -> None:
    row = intercept_request(shop_and_bank)
    other = intercept_request(shop_and_bank)
    assert row["conversation_id"] != other["conversation_id"]
    reflected = {**row, "is_initiator": False, "key_exchange": row["key_exchange"]}
    deliver_rows(shop_and_bank, "bank", [{**row, "key_exchange": other["key_exchange"]}, reflected])
    assert states(shop_and_bank.stock) == []
    shop_and_bank.network.settle(seconds=5)
    assert sorted(shop_and_bank.receive_orders()) == [b"two chairs", b"two chairs"]


@pytest.mark.threat("T2")
def test_a_recorded_dialog_cannot_be_replayed(shop_and_bank: ShopAndBank) -> None:
    """Neither while its closed endpoint exists, nor after that is removed."""
    dialog = begin(shop_and_bank, b"pay 10")
    shop_and_bank.network.settle()
    assert shop_and_bank.answer(b"paid") == [b"pay 10"]
    shop_and_bank.network.settle(seconds=2)
    with shop_and_bank.sales.transaction() as t:
        t.end_conversation(dialog)
    shop_and_bank.network.settle(seconds=2)
    with shop_and_bank.stock.transaction() as t:
        t.end_conversation(handle_of(shop_and_bank.stock))
    shop_and_bank.network.settle(seconds=2)
    recorded = rows_to(shop_and_bank, "bank")
    received(shop_and_bank.sales, REPLIES)
    for _ in range(2):
        deliver_rows(shop_and_bank, "bank", recorded)
        assert shop_and_bank.receive_orders() == []
        assert states(shop_and_bank.stock) in (["CD"], [])
        shop_and_bank.network.clock.advance(seconds=31 * 60)
        shop_and_bank.bank.run_due()
        shop_and_bank.network.settle()
    assert states(shop_and_bank.stock) == []
    deliver_rows(shop_and_bank, "bank", recorded)
    assert (shop_and_bank.receive_orders(), states(shop_and_bank.stock)) == ([], [])
    assert 11230 in refused(shop_and_bank, "bank")


@pytest.mark.threat("T11")
def test_every_bit_of_the_first_answer_is_authenticated(shop_and_bank: ShopAndBank) -> None:
    """Neither the key exchange blob nor the header can be changed."""
    row = intercept_answer(shop_and_bank)
    number = int.from_bytes(row["key_exchange"])
    size = len(row["key_exchange"])
    flipped = [{**row, "key_exchange": (number ^ 1 << bit).to_bytes(size)} for bit in range(0, 8 * size, 97)]
    for changed in (*flipped, {**row, "acked_sequence_number": 5}, {**row, "from_broker_instance": bytes(16)}):
        deliver_rows(shop_and_bank, "shop", [changed])
    assert len(waiting(shop_and_bank.sales)) == 1
    deliver_rows(shop_and_bank, "shop", [row])
    assert waiting(shop_and_bank.sales) == []


@pytest.mark.rule("P26")
def test_hostile_blobs_do_not_affect_honest_peers(shop_and_bank: ShopAndBank) -> None:
    row = intercept_request(shop_and_bank)
    for blob in (b"\0", bytes(1 << 16), b"\1\1" + b"\xff" * 700, row["key_exchange"] * 2):
        deliver_rows(
            shop_and_bank,
            "bank",
            [{**row, "key_exchange": blob}, {**row, "conversation_id": bytes(16), "key_exchange": blob}],
        )
    assert states(shop_and_bank.stock) == []
    shop_and_bank.network.settle(seconds=5)
    assert shop_and_bank.receive_orders() == [b"two chairs"]


@pytest.mark.rule("R8", "P25")
def test_a_second_copy_with_the_same_certificate_gets_an_error(shop_and_bank: ShopAndBank) -> None:
    """The copy that answered first keeps the conversation; the other one gets error -8495."""
    instance = shop_and_bank.network.instance("copy")
    copy = sample_databases.stock(instance)
    create_own_certificate(copy, "Bank", STOCK)
    import_certificate(copy, "Shop")
    copy.create_route("Back", address=SHOP, service_name="//Shop")
    guid = copy.service_broker_guid
    shop_and_bank.sales.create_route("Copy", address="TCP://copy:4022", service_name=STOCK, broker_instance=guid)
    shop_and_bank.sales.create_route(
        "Bank", address=BANK, service_name=STOCK, broker_instance=shop_and_bank.stock.service_broker_guid
    )
    row = intercept_request(shop_and_bank)
    shop_and_bank.network.settle(seconds=5)
    assert shop_and_bank.answer(b"yes") == [b"two chairs"]
    shop_and_bank.network.settle(seconds=2)
    deliver_rows(shop_and_bank, "copy", [row])
    shop_and_bank.network.settle(seconds=2)
    assert (states(copy), states(shop_and_bank.stock)) == (["ER"], ["CO"])
    shop_and_bank.answer()
    assert received(shop_and_bank.sales, REPLIES) == [b"yes"]
