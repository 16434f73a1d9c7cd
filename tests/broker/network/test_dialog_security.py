"""P22, P25: dialogs between instances, secured with the certificates of their services' owners."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ssbroker.broker.database import Database
from ssbroker.broker.database import context_of as database_context
from ssbroker.protocol.envelope import Protection
from tests.broker import sample_databases
from tests.broker.network.secured_pair import begin, create_own_certificate, import_certificate, rows_to, secured
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.sample_databases import REPLIES, SHOP, STOCK, received, states, statuses, waiting
from tests.internals import instance_of
from tests.security.shared_certificates import certified, public

MINUTE = 60


@pytest.fixture
def shop_and_bank(tmp_path: Path) -> Iterator[ShopAndBank]:
    """With full security."""
    yield from secured(tmp_path)


@pytest.fixture
def unknown(tmp_path: Path) -> Iterator[ShopAndBank]:
    """With anonymous security."""
    yield from secured(tmp_path, anonymous=True)


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[ShopAndBank]:
    """With nothing that dialog security would need."""
    yield from shop_and_bank_pair(tmp_path)


def keys(database: Database) -> list[tuple[bytes | None, ...]]:
    """What the endpoints of a database have."""
    with database_context(database).file.read() as connection:
        return [
            tuple(row)
            for row in connection.execute(
                "SELECT session_key, far_session_key, far_certificate FROM ssb_conversation_endpoints ORDER BY endpoint_id"
            )
        ]


def goes_on(shop_and_bank: ShopAndBank) -> None:
    """What the background thread does when the objects have changed."""
    shop_and_bank.shop.run_due()
    shop_and_bank.network.settle(seconds=65)


def converse(shop_and_bank: ShopAndBank) -> None:
    """A message each way, and another."""
    dialog = begin(shop_and_bank, b"two secret chairs")
    shop_and_bank.network.settle()
    assert shop_and_bank.answer(b"secretly on their way") == [b"two secret chairs"]
    shop_and_bank.network.settle(seconds=2)
    assert received(shop_and_bank.sales, REPLIES) == [b"secretly on their way"]
    shop_and_bank.send(b"two more secret chairs", dialog=dialog)
    shop_and_bank.network.settle(seconds=2)
    assert shop_and_bank.ordered() == [b"two more secret chairs"]
    assert waiting(shop_and_bank.sales) == waiting(shop_and_bank.stock) == []


@pytest.mark.rule("P22")
def test_full_security_uses_a_key_for_each_direction(shop_and_bank: ShopAndBank) -> None:
    """Nothing of a body is readable on the way, and both sides are known by their certificates."""
    converse(shop_and_bank)
    ((own, far, certificate),) = keys(shop_and_bank.sales)
    assert (far, own, public("Shop").fingerprint) == keys(shop_and_bank.stock)[0]
    assert certificate == public("Bank").fingerprint
    assert own != far
    rows = [*rows_to(shop_and_bank, "bank"), *rows_to(shop_and_bank, "shop")]
    assert {row["security"] for row in rows} == {Protection.SEALED}
    assert not any(b"secret" in (row["message_body"] or b"") for row in rows)


def test_a_key_is_sent_until_it_is_acknowledged(shop_and_bank: ShopAndBank) -> None:
    """Of the initiator until it is answered; of the target until it is acknowledged."""
    converse(shop_and_bank)
    for name in ("bank", "shop"):
        rides = [row["key_exchange"] is not None for row in rows_to(shop_and_bank, name)]
        assert rides[0], name
        assert not rides[-1], name
        assert rides == sorted(rides, reverse=True)


def test_anonymous_security_needs_no_certificate_of_the_sender(unknown: ShopAndBank) -> None:
    """One key serves both directions; the target does not know who sends."""
    converse(unknown)
    ((own, far, certificate),) = keys(unknown.sales)
    assert (far, certificate) == (None, None)
    assert keys(unknown.stock) == [(own, None, None)]
    assert [row for row in rows_to(unknown, "shop") if row["key_exchange"] is not None] == []
    assert {row["security"] for row in rows_to(unknown, "bank")} == {Protection.SEALED}


def test_without_a_binding_an_encrypted_dialog_waits_until_there_is_one(bare: ShopAndBank) -> None:
    """The status says what is missing, one thing after the other; then it goes by itself."""
    dialog = begin(bare, b"two chairs")
    bare.network.settle()
    steps: list[tuple[Callable[[], None], str]] = [
        (lambda: import_certificate(bare.sales, "Bank"), "CREATE REMOTE SERVICE BINDING"),
        (lambda: bare.sales.create_remote_service_binding("B", service=STOCK, user="Bank"), "binding"),
        (lambda: create_own_certificate(bare.sales, "Shop", SHOP), "no valid certificate with a private key"),
    ]
    for mended, missing in steps:
        with bare.sales.transaction() as t:
            status = t.transmission_status(dialog)
        assert status.startswith("28050: ")
        assert missing in status
        assert rows_to(bare, "bank") == []
        mended()
        goes_on(bare)
    create_own_certificate(bare.stock, "Bank", STOCK)
    import_certificate(bare.stock, "Shop")
    bare.network.settle(seconds=65)
    assert bare.ordered() == [b"two chairs"]


def test_without_binding_and_encryption_a_dialog_is_unsecured(bare: ShopAndBank) -> None:
    """And it is taken where everybody may send. A binding that is made later is for dialogs that begin later."""
    dialog = begin(bare, b"two chairs", encryption=False)
    bare.network.down.add("TCP://bank:4022")
    import_certificate(bare.sales, "Bank")
    bare.sales.create_remote_service_binding("B", service=STOCK, user="Bank")
    bare.network.down.clear()
    bare.network.settle(seconds=65)
    bare.send(b"a table", dialog=dialog)
    bare.network.settle()
    assert bare.ordered() == [b"two chairs", b"a table"]
    assert {row["security"] for row in rows_to(bare, "bank")} == {Protection.PLAIN}


def test_a_binding_secures_dialogs_without_encryption(shop_and_bank: ShopAndBank) -> None:
    begin(shop_and_bank, b"two secret chairs", encryption=False)
    shop_and_bank.network.settle()
    assert shop_and_bank.ordered() == [b"two secret chairs"]
    assert {row["security"] for row in rows_to(shop_and_bank, "bank")} == {Protection.SEALED}


def test_without_an_open_master_key_the_dialog_waits(shop_and_bank: ShopAndBank) -> None:
    """28050: such as after the database was attached to another instance; its password opens it."""
    instance_of(shop_and_bank.sales).execute("USE Sales; ALTER MASTER KEY DROP ENCRYPTION BY SERVICE MASTER KEY")
    dialog = begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle()
    assert statuses(shop_and_bank.sales) == {"28050"}
    with shop_and_bank.sales.transaction() as t:
        assert "OPEN MASTER KEY" in t.transmission_status(dialog)
    shop_and_bank.sales.open_master_key("long and secret")
    goes_on(shop_and_bank)
    assert shop_and_bank.ordered() == [b"two chairs"]


def test_without_an_open_master_key_at_the_target_messages_wait(shop_and_bank: ShopAndBank) -> None:
    instance_of(shop_and_bank.stock).execute("USE Stock; ALTER MASTER KEY DROP ENCRYPTION BY SERVICE MASTER KEY")
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle(seconds=5)
    assert (len(waiting(shop_and_bank.sales)), states(shop_and_bank.stock)) == (1, [])
    shop_and_bank.stock.open_master_key("long and secret")
    shop_and_bank.network.settle(seconds=65)
    assert shop_and_bank.ordered() == [b"two chairs"]


def test_the_certificate_with_the_latest_end_is_used(shop_and_bank: ShopAndBank) -> None:
    """Those of tomorrow, of yesterday and those that are not active for BEGIN DIALOG are not; what has begun goes on."""
    first = begin(shop_and_bank, b"under the old one")
    shop_and_bank.network.settle()
    shop_and_bank.answer(b"yes")
    shop_and_bank.network.settle(seconds=2)
    new = certified("Newer Bank")
    shop_and_bank.stock.create_certificate("New", certificate=new.certificate, private_key=new.key, owner="Bank")
    shop_and_bank.sales.create_certificate("New", certificate=new.certificate, owner="Bank")
    shop_and_bank.sales.alter_certificate("OfBank", active=False)
    begin(shop_and_bank, b"under the new one")
    shop_and_bank.network.settle()
    to = {row["key_exchange"][10:42] for row in rows_to(shop_and_bank, "bank") if row["key_exchange"] is not None}
    assert to == {public("Bank").fingerprint, public("Newer Bank").fingerprint}
    shop_and_bank.sales.drop_certificate("OfBank")
    shop_and_bank.stock.drop_certificate("OwnBank")
    shop_and_bank.send(b"still under the old one", dialog=first)
    shop_and_bank.network.settle(seconds=2)
    assert shop_and_bank.ordered() == [b"under the new one", b"still under the old one"]


@pytest.mark.parametrize("side", ["shop", "bank"])
def test_keys_survive_crashes(shop_and_bank: ShopAndBank, side: str) -> None:
    """In the middle of the exchange, and after it."""
    dialog = begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.turn()
    shop_and_bank.crash(side)
    shop_and_bank.network.settle(seconds=65)
    assert shop_and_bank.answer(b"on their way") == [b"two chairs"]
    shop_and_bank.crash(side)
    shop_and_bank.network.settle(seconds=65)
    assert received(shop_and_bank.sales, REPLIES) == [b"on their way"]
    shop_and_bank.crash(side)
    shop_and_bank.send(b"a table", dialog=dialog)
    shop_and_bank.network.settle(seconds=65)
    assert shop_and_bank.ordered() == [b"a table"]


@pytest.mark.threat("T2")
def test_a_blob_is_renewed_without_an_answer(shop_and_bank: ShopAndBank) -> None:
    """Else what waits for longer than a recorded one is believed would never arrive."""
    shop_and_bank.network.swallows.add("TCP://bank:4022")
    begin(shop_and_bank, b"two chairs")
    for _ in range(45):
        shop_and_bank.network.settle(seconds=MINUTE)
    shop_and_bank.network.swallows.clear()
    for _ in range(2):
        shop_and_bank.network.settle(seconds=MINUTE)
    assert shop_and_bank.ordered() == [b"two chairs"]


def error_of(database: Database, queue: str = REPLIES) -> list[Any]:
    """The errors that an application receives."""
    return [body for body in received(database, queue) if b"<Code>" in body]


@pytest.mark.parametrize("verb", ["revoke_send", "deny_send"])
def test_a_denied_sender_gets_an_encrypted_error(shop_and_bank: ShopAndBank, verb: str) -> None:
    """-8494, which nobody on the way could have made; the service takes nothing."""
    getattr(shop_and_bank.stock, verb)(STOCK, "Shop")
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle(seconds=2)
    assert b"<Code>-8494</Code>" in b"".join(error_of(shop_and_bank.sales))
    assert (states(shop_and_bank.sales), states(shop_and_bank.stock), shop_and_bank.ordered()) == (["ER"], [], [])
    assert {row["security"] for row in rows_to(shop_and_bank, "shop")} == {Protection.SEALED}


def test_anonymous_and_unsecured_senders_are_public(unknown: ShopAndBank) -> None:
    unknown.stock.revoke_send(STOCK, "public")
    begin(unknown, b"two chairs")
    unknown.network.settle(seconds=2)
    assert b"<Code>-8494</Code>" in b"".join(error_of(unknown.sales))
    unknown.sales.drop_remote_service_binding("B")
    begin(unknown, b"two chairs", encryption=False)
    unknown.network.settle(seconds=2)
    assert b"<Code>-8494</Code>" in b"".join(error_of(unknown.sales))
    unknown.stock.grant_send(STOCK, "public")
    begin(unknown, b"two chairs", encryption=False)
    unknown.network.settle(seconds=2)
    assert unknown.ordered() == [b"two chairs"]


def test_deny_overrides_grant(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.stock.deny_send(STOCK, "public")
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle(seconds=2)
    assert b"<Code>-8494</Code>" in b"".join(error_of(shop_and_bank.sales))


def test_views_show_the_remote_principal(shop_and_bank: ShopAndBank) -> None:
    """The user to whom its certificate belongs here; nobody for who is anonymous."""
    converse(shop_and_bank)
    principals = shop_and_bank.bank.view("sys.database_principals", "Stock").to_pylist()
    users = {row["name"]: row["principal_id"] for row in principals}
    row = shop_and_bank.bank.view("sys.conversation_endpoints", "Stock").to_pylist()[0]
    assert (row["principal_id"], row["far_principal_id"]) == (users["Bank"], users["Shop"])


def test_within_an_instance_nothing_is_encrypted(shop_and_bank: ShopAndBank) -> None:
    """Also where a binding is there: the key goes as soon as it is known that nobody needs it."""
    other = sample_databases.stock(shop_and_bank.shop, "Warehouse")
    shop_and_bank.sales.drop_route("There")
    begin(shop_and_bank, b"two chairs")
    assert keys(shop_and_bank.sales) == [(None, None, None)]
    assert received(other) == [b"two chairs"]


def test_a_key_that_cannot_be_stored_is_stored_later(bare: ShopAndBank) -> None:
    """Whoever is writing to the file holds up its own conversations only, and not for long."""
    begin(bare, b"two chairs")
    bare.network.settle()
    import_certificate(bare.sales, "Bank")
    create_own_certificate(bare.stock, "Bank", STOCK)
    bare.sales.create_remote_service_binding("B", service=STOCK, user="Bank", anonymous=True)
    bare.shop.run_due()
    with bare.sales.transaction() as t:
        t.connection.execute("CREATE TABLE busy (id INTEGER)")
        bare.network.turn()
        assert keys(bare.sales) == [(None, None, None)]
    bare.network.clock.advance(seconds=65)
    goes_on(bare)
    assert bare.ordered() == [b"two chairs"]
