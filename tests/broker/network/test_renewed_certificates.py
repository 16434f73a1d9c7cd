"""Certificates of service owners are renewed while dialogs wait for their first answer."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ssbroker.broker.database import context_of as database_context
from ssbroker.broker.instance import context_of as instance_context
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
def both(tmp_path: Path) -> Iterator[ShopAndBank]:
    """With full security."""
    yield from secured(tmp_path)


def unanswered(both: ShopAndBank) -> uuid.UUID:
    """A dialog that the bank has taken, while nothing of the bank's comes to the shop."""
    both.pipes.down.add("TCP://shop:4022")
    dialog = begin(both, b"two chairs")
    both.pipes.settle(seconds=5)
    assert far_certificates(both) == [public("Shop").fingerprint]
    return dialog


def far_certificates(both: ShopAndBank) -> list[Any]:
    """The certificates that authenticate the peers of the bank."""
    with database_context(both.stock).file.read() as connection:
        return [one for (one,) in connection.execute("SELECT far_certificate FROM ssb_conversation_endpoints")]


def undelivered(both: ShopAndBank) -> str:
    """What the bank said last of what it did not take."""
    *_, last = both.pipes.told("bank", MessageUndeliverable)
    assert isinstance(last, MessageUndeliverable)
    return last.text


def take_in(both: ShopAndBank, made: CertificateWithKey) -> None:
    """The shop's new certificate, on both sides."""
    both.sales.create_certificate("New", certificate=made.certificate, private_key=made.key, owner="Shop")
    both.stock.create_certificate("New", certificate=made.certificate, owner="Shop")


def is_whole(both: ShopAndBank) -> None:
    """A message there and one back, and nothing left."""
    both.pipes.down.clear()
    for _ in range(3):
        both.shop.run_due()
        both.bank.run_due()
        both.pipes.settle(seconds=5 * MINUTE)
    assert both.answer(b"on their way") == [b"two chairs"]
    both.pipes.settle(seconds=MINUTE)
    assert received(both.sales, REPLIES) == [b"on their way"]
    assert waiting(both.sales) == waiting(both.stock) == []


@pytest.mark.parametrize("dropped", ["here", "there", "both"])
def test_the_old_certificate_may_be_dropped_before_the_first_answer(both: ShopAndBank, dropped: str) -> None:
    """What the documents say of a renewal, with a dialog in the middle of it: it is answered under the new certificate."""
    unanswered(both)
    new = certified("New Shop", ends=LATER)
    take_in(both, new)
    if dropped != "there":
        both.sales.drop_certificate("OwnShop")
    if dropped != "here":
        both.stock.drop_certificate("OfShop")
    is_whole(both)
    assert far_certificates(both) == [fingerprint(new.certificate)]


def test_a_certificate_may_expire_before_the_first_answer(both: ShopAndBank) -> None:
    now = both.pipes.clock()
    short = make_certificate(["short"], Validity(now - timedelta(hours=1), now + timedelta(minutes=30)), kind="RSA")
    both.sales.drop_certificate("OwnShop")
    both.sales.create_certificate("Short", certificate=short.certificate, private_key=short.key, owner="Shop")
    both.stock.create_certificate("Short", certificate=short.certificate, owner="Shop")
    both.pipes.down.add("TCP://shop:4022")
    begin(both, b"two chairs")
    both.pipes.settle(seconds=40 * MINUTE)
    take_in(both, certified("New Shop"))
    is_whole(both)


@pytest.mark.threat("T14")
@pytest.mark.parametrize("flaw", ["another key", "who may not send"])
def test_another_certificate_cannot_take_over_a_dialog(both: ShopAndBank, flaw: str) -> None:
    """The bank has the thief's certificate, and he has seen all traffic; or he had the key and may not send."""
    both.stock.create_user("Thief")
    both.stock.create_certificate("OfThief", certificate=certified("Thief").certificate, owner="Thief")
    if flaw == "another key":
        both.stock.grant_send(STOCK, "Thief")
    unanswered(both)
    row = rows_to(both, "bank")[-1]
    with database_context(both.sales).file.read() as connection:
        key: Any = connection.execute("SELECT session_key FROM ssb_conversation_endpoints").get
    of = Direction(row["conversation_id"], True, SHOP, STOCK)
    now = int(both.pipes.clock().timestamp() * 1_000_000)
    given = bytes(32) if flaw == "another key" else key
    stolen = KeyOffers().make_blob(given, of, receiver=public("Bank"), sender=own("Thief"), now=now)
    deliver_rows(both, "bank", [row | {"key_exchange": stolen}])
    assert far_certificates(both) == [public("Shop").fingerprint]
    is_whole(both)


def test_a_refusal_names_the_missing_or_invalid_certificate(both: ShopAndBank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender hears nothing; who has to mend it reads it at the target, and then it goes."""
    both.stock.drop_certificate("OfShop")
    begin(both, b"two chairs")
    both.pipes.settle(seconds=5)
    assert public("Shop").fingerprint.hex() in undelivered(both)
    now = both.pipes.clock()
    tomorrow = make_certificate(["later"], Validity(now + timedelta(minutes=2), now + timedelta(days=9)), kind="RSA")
    both.stock.create_certificate("OfShop", certificate=certified("Shop").certificate, owner="Shop")
    both.stock.create_certificate("Tomorrow", certificate=tomorrow.certificate, private_key=tomorrow.key, owner="Bank")
    both.sales.create_certificate("Tomorrow", certificate=tomorrow.certificate, owner="Bank")
    both.sales.drop_certificate("OfBank")
    monkeypatch.setattr(instance_context(both.shop), "clock", lambda: both.pipes.clock() + timedelta(minutes=4))
    both.shop.run_due()
    both.pipes.settle(seconds=MINUTE)
    assert 'certificate "Tomorrow" is not valid now: its validity is ' in undelivered(both)
    both.pipes.settle(seconds=3 * MINUTE)
    assert both.ordered() == [b"two chairs"]


def renewed(both: ShopAndBank) -> None:
    """The shop's certificate is another one, on both sides, and the old one is gone."""
    take_in(both, certified("New Shop", ends=LATER))
    both.sales.drop_certificate("OwnShop")
    both.stock.drop_certificate("OfShop")


def an_answer_arrives(both: ShopAndBank, handle: uuid.UUID) -> None:
    with both.stock.transaction() as t:
        t.send(handle, b"on their way at last")
    both.pipes.settle(seconds=MINUTE)
    assert received(both.sales, REPLIES) == [b"on their way at last"]
    assert waiting(both.stock) == []


@pytest.mark.parametrize("restarted", [False, True])
def test_the_old_certificate_may_be_dropped_before_the_bank_answers(both: ShopAndBank, *, restarted: bool) -> None:
    """The shop has the bank's key since the acknowledgement, and nothing more to send; the bank does not know this."""
    begin(both, b"two chairs")
    both.pipes.settle(seconds=5)
    with both.stock.transaction() as t:
        handle = t.receive(ORDERS)["conversation_handle"][0].as_py()
    renewed(both)
    if restarted:
        both.crash("bank")
    an_answer_arrives(both, handle)


@pytest.mark.parametrize("dropped", ["the shop's", "the bank's"])
def test_dialogs_continue_with_their_keys_after_a_restart(both: ShopAndBank, dropped: str) -> None:
    """What `drop_certificate` says; after a restart the bank does not know what has been settled."""
    begin(both, b"two chairs")
    both.pipes.settle(seconds=5)
    with both.stock.transaction() as t:
        handle = t.receive(ORDERS)["conversation_handle"][0].as_py()
        t.send(handle, b"we will see")
    both.pipes.settle(seconds=5)
    assert received(both.sales, REPLIES) == [b"we will see"]
    if dropped == "the shop's":
        renewed(both)
    else:
        both.stock.drop_certificate("OwnBank")
    both.crash("bank")
    an_answer_arrives(both, handle)
