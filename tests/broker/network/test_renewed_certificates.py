"""Renewal of service owners' certificates while dialogs wait for their first answer."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ssbroker.broker.database import database_context
from ssbroker.broker.instance import instance_context
from ssbroker.protocol.events import MessageUndeliverable
from ssbroker.security.certificates import CertificateWithKey, Validity, fingerprint, make_certificate
from ssbroker.security.key_exchange import Direction, KeyOffers
from tests.broker.network.secured_pair import begin, deliver_rows, rows_to, secured
from tests.broker.network.shop_and_bank import ShopAndBank
from tests.broker.sample_databases import ORDERS, REPLIES, SHOP, STOCK, received, waiting
from tests.security.shared_certificates import certified, own, public

MINUTE = 60
LATER = datetime(2041, 1, 1, tzinfo=UTC)


@pytest.fixture
def shop_and_bank(tmp_path: Path) -> Iterator[ShopAndBank]:
    """With full security."""
    yield from secured(tmp_path)


def begin_unanswered(shop_and_bank: ShopAndBank) -> uuid.UUID:
    """Begins a dialog that the bank receives, while rows from the bank do not reach the shop."""
    shop_and_bank.network.down.add("TCP://shop:4022")
    dialog = begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle(seconds=5)
    assert far_certificates(shop_and_bank) == [public("Shop").fingerprint]
    return dialog


def far_certificates(shop_and_bank: ShopAndBank) -> list[Any]:
    """Returns the certificates that authenticate the peers of the bank."""
    with database_context(shop_and_bank.stock).file.read() as connection:
        return [one for (one,) in connection.execute("SELECT far_certificate FROM ssb_conversation_endpoints")]


def undelivered(shop_and_bank: ShopAndBank) -> str:
    """Returns the text of the bank's last MessageUndeliverable event."""
    *_, last = shop_and_bank.network.emitted("bank", MessageUndeliverable)
    assert isinstance(last, MessageUndeliverable)
    return last.text


def create_new_certificates(shop_and_bank: ShopAndBank, made: CertificateWithKey) -> None:
    """Creates the shop's new certificate on both sides."""
    shop_and_bank.sales.create_certificate("New", certificate=made.certificate, private_key=made.key, owner="Shop")
    shop_and_bank.stock.create_certificate("New", certificate=made.certificate, owner="Shop")


def assert_dialog_works(shop_and_bank: ShopAndBank) -> None:
    """Asserts that a message and a reply arrive and nothing waits."""
    shop_and_bank.network.down.clear()
    for _ in range(3):
        shop_and_bank.shop.run_due()
        shop_and_bank.bank.run_due()
        shop_and_bank.network.settle(seconds=5 * MINUTE)
    assert shop_and_bank.answer(b"on their way") == [b"two chairs"]
    shop_and_bank.network.settle(seconds=MINUTE)
    assert received(shop_and_bank.sales, REPLIES) == [b"on their way"]
    assert waiting(shop_and_bank.sales) == waiting(shop_and_bank.stock) == []


@pytest.mark.parametrize("dropped", ["here", "there", "both"])
def test_the_old_certificate_may_be_dropped_before_the_first_answer(shop_and_bank: ShopAndBank, dropped: str) -> None:
    """A dialog during the documented renewal is answered under the new certificate."""
    begin_unanswered(shop_and_bank)
    new = certified("New Shop", ends=LATER)
    create_new_certificates(shop_and_bank, new)
    if dropped != "there":
        shop_and_bank.sales.drop_certificate("OwnShop")
    if dropped != "here":
        shop_and_bank.stock.drop_certificate("OfShop")
    assert_dialog_works(shop_and_bank)
    assert far_certificates(shop_and_bank) == [fingerprint(new.certificate)]


def test_a_certificate_may_expire_before_the_first_answer(shop_and_bank: ShopAndBank) -> None:
    now = shop_and_bank.network.clock()
    short = make_certificate(["short"], Validity(now - timedelta(hours=1), now + timedelta(minutes=30)), kind="RSA")
    shop_and_bank.sales.drop_certificate("OwnShop")
    shop_and_bank.sales.create_certificate("Short", certificate=short.certificate, private_key=short.key, owner="Shop")
    shop_and_bank.stock.create_certificate("Short", certificate=short.certificate, owner="Shop")
    shop_and_bank.network.down.add("TCP://shop:4022")
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle(seconds=40 * MINUTE)
    create_new_certificates(shop_and_bank, certified("New Shop"))
    assert_dialog_works(shop_and_bank)


@pytest.mark.threat("T14")
@pytest.mark.parametrize("flaw", ["another key", "who may not send"])
def test_another_certificate_cannot_take_over_a_dialog(shop_and_bank: ShopAndBank, flaw: str) -> None:
    """The thief is known to the bank but has another key, or has the key but no SEND permission."""
    shop_and_bank.stock.create_user("Thief")
    shop_and_bank.stock.create_certificate("OfThief", certificate=certified("Thief").certificate, owner="Thief")
    if flaw == "another key":
        shop_and_bank.stock.grant_send(STOCK, "Thief")
    begin_unanswered(shop_and_bank)
    row = rows_to(shop_and_bank, "bank")[-1]
    with database_context(shop_and_bank.sales).file.read() as connection:
        key: Any = connection.execute("SELECT session_key FROM ssb_conversation_endpoints").get
    of = Direction(row["conversation_id"], True, SHOP, STOCK)
    now = int(shop_and_bank.network.clock().timestamp() * 1_000_000)
    given = bytes(32) if flaw == "another key" else key
    stolen = KeyOffers().make_blob(given, of, receiver=public("Bank"), sender=own("Thief"), now=now)
    deliver_rows(shop_and_bank, "bank", [row | {"key_exchange": stolen}])
    assert far_certificates(shop_and_bank) == [public("Shop").fingerprint]
    assert_dialog_works(shop_and_bank)


def test_a_refusal_names_the_missing_or_invalid_certificate(
    shop_and_bank: ShopAndBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is reported at the target only; once it is fixed, the message arrives."""
    shop_and_bank.stock.drop_certificate("OfShop")
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle(seconds=5)
    assert public("Shop").fingerprint.hex() in undelivered(shop_and_bank)
    now = shop_and_bank.network.clock()
    tomorrow = make_certificate(["later"], Validity(now + timedelta(minutes=2), now + timedelta(days=9)), kind="RSA")
    shop_and_bank.stock.create_certificate("OfShop", certificate=certified("Shop").certificate, owner="Shop")
    shop_and_bank.stock.create_certificate(
        "Tomorrow", certificate=tomorrow.certificate, private_key=tomorrow.key, owner="Bank"
    )
    shop_and_bank.sales.create_certificate("Tomorrow", certificate=tomorrow.certificate, owner="Bank")
    shop_and_bank.sales.drop_certificate("OfBank")
    monkeypatch.setattr(
        instance_context(shop_and_bank.shop), "clock", lambda: shop_and_bank.network.clock() + timedelta(minutes=4)
    )
    shop_and_bank.shop.run_due()
    shop_and_bank.network.settle(seconds=MINUTE)
    assert 'certificate "Tomorrow" is not valid now: it is valid from ' in undelivered(shop_and_bank)
    shop_and_bank.network.settle(seconds=3 * MINUTE)
    assert shop_and_bank.receive_orders() == [b"two chairs"]


def renew_certificate(shop_and_bank: ShopAndBank) -> None:
    """Replaces the shop's certificate on both sides."""
    create_new_certificates(shop_and_bank, certified("New Shop", ends=LATER))
    shop_and_bank.sales.drop_certificate("OwnShop")
    shop_and_bank.stock.drop_certificate("OfShop")


def assert_answer_arrives(shop_and_bank: ShopAndBank, handle: uuid.UUID) -> None:
    with shop_and_bank.stock.transaction() as t:
        t.send(handle, b"on their way at last")
    shop_and_bank.network.settle(seconds=MINUTE)
    assert received(shop_and_bank.sales, REPLIES) == [b"on their way at last"]
    assert waiting(shop_and_bank.stock) == []


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_old_certificate_may_be_dropped_before_the_bank_answers(
    shop_and_bank: ShopAndBank, *, is_restarted: bool
) -> None:
    """The shop has the bank's key since the acknowledgement, but the bank does not know this."""
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle(seconds=5)
    with shop_and_bank.stock.transaction() as t:
        handle = t.receive(ORDERS)["conversation_handle"][0].as_py()
    renew_certificate(shop_and_bank)
    if is_restarted:
        shop_and_bank.crash("bank")
    assert_answer_arrives(shop_and_bank, handle)


@pytest.mark.parametrize("dropped", ["the shop's", "the bank's"])
def test_dialogs_continue_with_their_keys_after_a_restart(shop_and_bank: ShopAndBank, dropped: str) -> None:
    """As documented for `drop_certificate`, also after a restart of the bank."""
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle(seconds=5)
    with shop_and_bank.stock.transaction() as t:
        handle = t.receive(ORDERS)["conversation_handle"][0].as_py()
        t.send(handle, b"we will see")
    shop_and_bank.network.settle(seconds=5)
    assert received(shop_and_bank.sales, REPLIES) == [b"we will see"]
    if dropped == "the shop's":
        renew_certificate(shop_and_bank)
    else:
        shop_and_bank.stock.drop_certificate("OwnBank")
    shop_and_bank.crash("bank")
    assert_answer_arrives(shop_and_bank, handle)
