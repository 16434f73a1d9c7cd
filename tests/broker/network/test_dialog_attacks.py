"""Attacks on secured dialogs by an instance between or beside the two, without their private keys."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.database import Database
from ssbroker.broker.database import context_of as database_context
from ssbroker.protocol.config import ERROR
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
def both(tmp_path: Path) -> Iterator[ShopAndBank]:
    """With full security."""
    yield from secured(tmp_path)


def intercepted(both: ShopAndBank) -> Row:
    """The first row of a dialog, which does not arrive."""
    both.pipes.swallows.add(BANK)
    begin(both, b"two chairs")
    both.pipes.settle()
    both.pipes.swallows.clear()
    return rows_to(both, "bank")[-1]


def unanswered(both: ShopAndBank) -> Row:
    """The answer to the first row of a dialog, which does not arrive."""
    both.pipes.swallows.add(SHOP)
    begin(both, b"two chairs")
    both.pipes.settle(seconds=2)
    both.pipes.swallows.clear()
    return rows_to(both, "shop")[-1]


def handle_of(database: Database) -> uuid.UUID:
    """The one conversation of a database."""
    (handle,) = (
        instance_of(database).view("sys.conversation_endpoints", database.name)["conversation_handle"].to_pylist()
    )
    return uuid.UUID(bytes=bytes(handle or b""))


def refused(both: ShopAndBank, name: str) -> set[int]:
    """The numbers with which an instance refused what came."""
    return {event.error for kind in (CorruptedMessage, MessageUndeliverable) for event in both.pipes.told(name, kind)}


def offer(both: ShopAndBank, row: Row, *, by: str | None, to: str, key: bytes = bytes(32), **other: Any) -> bytes:
    """A blob for the direction of a row, made by whom."""
    names = {name: row[name] for name in ("conversation_id", "is_initiator", "from_service_name", "to_service_name")}
    of = Direction(**{**names, **other})
    sender = None if by is None else own(by)
    return KeyOffers().make_blob(
        key, of, receiver=public(to), sender=sender, now=epoch_microseconds(database_context(both.sales).now())
    )


@pytest.mark.threat("T15")
def test_security_cannot_be_downgraded(both: ShopAndBank) -> None:
    """Without its key, with a plain header, or as anonymous: it is not taken, and the honest row is."""
    row = intercepted(both)
    for less in (
        {**row, "key_exchange": None},
        forged({**row, "key_exchange": None}, security=Protection.PLAIN, message_body=b"two tables"),
        {**row, "security": Protection.SIGNED},
        {**row, "key_exchange": offer(both, row, by=None, to="Bank")},
        {**row, "key_exchange": row["key_exchange"][:-1]},
        {**row, "key_exchange": b""},
    ):
        deliver_rows(both, "bank", [less])
    assert both.ordered() == []
    assert states(both.stock) == []
    both.pipes.settle(seconds=5)
    assert both.ordered() == [b"two chairs"]


@pytest.mark.threat("T15", "T11")
def test_a_secured_dialog_rejects_unsecured_rows(both: ShopAndBank) -> None:
    """Neither an acknowledgement nor an error that says that the far side is gone, before the answer and after it."""
    row = intercepted(both)
    plain = {**row, "security": Protection.PLAIN}
    error: Row = {"message_type_name": ERROR, "is_conversation_error": True, "message_body": b"<Error/>"}
    lies = [acknowledging(plain, 5), acknowledging(plain, 0, **error), acknowledging(row, 5)]
    deliver_rows(both, "shop", lies)
    assert (states(both.sales), len(waiting(both.sales))) == (["CO"], 1)
    both.pipes.settle(seconds=5)
    both.pipes.swallows.add(BANK)
    both.send(b"a table", dialog=handle_of(both.sales))
    both.pipes.settle()
    both.pipes.swallows.clear()
    deliver_rows(both, "shop", lies)
    assert (states(both.sales), len(waiting(both.sales))) == (["CO"], 1)
    both.pipes.settle(seconds=5)
    assert both.ordered() == [b"two chairs", b"a table"]


def test_an_unknown_certificate_is_not_answered(both: ShopAndBank) -> None:
    """The sender keeps what it has; once its certificate is taken in, it goes by itself."""
    both.stock.drop_certificate("OfShop")
    begin(both, b"two chairs")
    both.pipes.settle(seconds=5)
    assert refused(both, "bank") == {11229}
    assert rows_to(both, "shop") == []
    assert (len(waiting(both.sales)), states(both.stock)) == (1, [])
    import_certificate(both.stock, "Shop2", certificate="Shop")
    both.stock.grant_send(STOCK, "Shop2")
    both.pipes.settle(seconds=65)
    assert both.ordered() == [b"two chairs"]


@pytest.mark.threat("T1", "T14")
@pytest.mark.parametrize("thief", ["Thief", "Bank"])
def test_an_initiator_cannot_be_impersonated(both: ShopAndBank, thief: str) -> None:
    """With a certificate of his own, which the bank does not know, or with that of a user who may not send."""
    row = intercepted(both)
    deliver_rows(both, "bank", [{**row, "key_exchange": offer(both, row, by=thief, to="Bank")}])
    assert both.ordered() == []
    assert states(both.stock) == []
    assert refused(both, "bank") <= {11229, 11230}
    both.pipes.settle(seconds=5)
    assert both.ordered() == [b"two chairs"]


@pytest.mark.rule("P25")
@pytest.mark.threat("T14")
@pytest.mark.parametrize("thief", ["Thief", "Shop"])
def test_a_clone_without_the_private_key_cannot_answer(both: ShopAndBank, thief: str) -> None:
    """The shop is bound by the answer of whom its binding names, not by the first one that comes."""
    row = unanswered(both)
    for blob in (offer(both, row, by=thief, to="Shop"), offer(both, row, by=None, to="Shop"), None):
        deliver_rows(both, "shop", [{**row, "key_exchange": blob}])
    assert len(waiting(both.sales)) == 1
    deliver_rows(both, "shop", [row])
    assert waiting(both.sales) == []


@pytest.mark.threat("T14")
def test_an_answer_by_another_user_than_the_bindings_is_rejected(both: ShopAndBank) -> None:
    """Also by one whose certificate is known here."""
    import_certificate(both.sales, "Thief")
    row = unanswered(both)
    deliver_rows(both, "shop", [{**row, "key_exchange": offer(both, row, by="Thief", to="Shop")}])
    assert len(waiting(both.sales)) == 1
    assert 11229 in refused(both, "shop")


@pytest.mark.threat("T17")
def test_a_key_for_one_service_is_useless_at_another(both: ShopAndBank) -> None:
    """What is led astray to a service that belongs to somebody else is not taken there, nor what names another service."""
    row = intercepted(both)
    both.stock.set_service_owner(STOCK, "dbo")
    deliver_rows(both, "bank", [row])
    assert refused(both, "bank") == {11229}
    both.stock.set_service_owner(STOCK, "Bank")
    both.stock.create_queue("Other")
    both.stock.create_service("//Other", queue="Other", owner="Bank")
    deliver_rows(both, "bank", [{**row, "to_service_name": "//Other"}])
    assert states(both.stock) == []
    both.pipes.settle(seconds=5)
    assert both.ordered() == [b"two chairs"]


@pytest.mark.threat("T2")
def test_a_blob_of_another_conversation_is_rejected(both: ShopAndBank) -> None:
    """Nor that of the other direction."""
    row = intercepted(both)
    other = intercepted(both)
    assert row["conversation_id"] != other["conversation_id"]
    reflected = {**row, "is_initiator": False, "key_exchange": row["key_exchange"]}
    deliver_rows(both, "bank", [{**row, "key_exchange": other["key_exchange"]}, reflected])
    assert states(both.stock) == []
    both.pipes.settle(seconds=5)
    assert sorted(both.ordered()) == [b"two chairs", b"two chairs"]


@pytest.mark.threat("T2")
def test_a_recorded_dialog_cannot_be_replayed(both: ShopAndBank) -> None:
    """Neither while its closed endpoint is there, nor once that is gone."""
    dialog = begin(both, b"pay 10")
    both.pipes.settle()
    assert both.answer(b"paid") == [b"pay 10"]
    both.pipes.settle(seconds=2)
    with both.sales.transaction() as t:
        t.end_conversation(dialog)
    both.pipes.settle(seconds=2)
    with both.stock.transaction() as t:
        t.end_conversation(handle_of(both.stock))
    both.pipes.settle(seconds=2)
    recorded = rows_to(both, "bank")
    received(both.sales, REPLIES)
    for _ in range(2):
        deliver_rows(both, "bank", recorded)
        assert both.ordered() == []
        assert states(both.stock) in (["CD"], [])
        both.pipes.clock.advance(seconds=31 * 60)
        both.bank.run_due()
        both.pipes.settle()
    assert states(both.stock) == []
    deliver_rows(both, "bank", recorded)
    assert (both.ordered(), states(both.stock)) == ([], [])
    assert 11230 in refused(both, "bank")


@pytest.mark.threat("T11")
def test_every_bit_of_the_first_answer_is_authenticated(both: ShopAndBank) -> None:
    """With a key that came along and was changed, and with a header that says more than was received."""
    row = unanswered(both)
    number = int.from_bytes(row["key_exchange"])
    size = len(row["key_exchange"])
    flipped = [{**row, "key_exchange": (number ^ 1 << bit).to_bytes(size)} for bit in range(0, 8 * size, 97)]
    for bad in (*flipped, {**row, "acked_sequence_number": 5}, {**row, "from_broker_instance": bytes(16)}):
        deliver_rows(both, "shop", [bad])
    assert len(waiting(both.sales)) == 1
    deliver_rows(both, "shop", [row])
    assert waiting(both.sales) == []


@pytest.mark.rule("P26")
def test_hostile_blobs_do_not_affect_honest_peers(both: ShopAndBank) -> None:
    """Of any size and content, and many of them."""
    row = intercepted(both)
    for blob in (b"\0", bytes(1 << 16), b"\1\1" + b"\xff" * 700, row["key_exchange"] * 2):
        deliver_rows(
            both, "bank", [{**row, "key_exchange": blob}, {**row, "conversation_id": bytes(16), "key_exchange": blob}]
        )
    assert states(both.stock) == []
    both.pipes.settle(seconds=5)
    assert both.ordered() == [b"two chairs"]


@pytest.mark.rule("R8", "P25")
def test_a_second_copy_with_the_same_certificate_gets_an_error(both: ShopAndBank) -> None:
    """-8495, so that it does not wait for ever; the copy that answered first goes on."""
    instance = both.pipes.instance("copy")
    copy = sample_databases.stock(instance)
    create_own_certificate(copy, "Bank", STOCK)
    import_certificate(copy, "Shop")
    copy.create_route("Back", address=SHOP, service_name="//Shop")
    guid = copy.service_broker_guid
    both.sales.create_route("Copy", address="TCP://copy:4022", service_name=STOCK, broker_instance=guid)
    both.sales.create_route("Bank", address=BANK, service_name=STOCK, broker_instance=both.stock.service_broker_guid)
    row = intercepted(both)
    both.pipes.settle(seconds=5)
    assert both.answer(b"yes") == [b"two chairs"]
    both.pipes.settle(seconds=2)
    deliver_rows(both, "copy", [row])
    both.pipes.settle(seconds=2)
    assert (states(copy), states(both.stock)) == (["ER"], ["CO"])
    both.answer()
    assert received(both.sales, REPLIES) == [b"yes"]
