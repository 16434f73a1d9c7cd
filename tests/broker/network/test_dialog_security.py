"""Dialogs between instances, secured with the certificates of the service owners (P22, P25)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ssbroker.broker.database import Database, database_context
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
def anonymous(tmp_path: Path) -> Iterator[ShopAndBank]:
    """With anonymous security."""
    yield from secured(tmp_path, anonymous=True)


@pytest.fixture
def unsecured(tmp_path: Path) -> Iterator[ShopAndBank]:
    """Without dialog security."""
    yield from shop_and_bank_pair(tmp_path)


def keys(database: Database) -> list[tuple[bytes | None, ...]]:
    """Returns the session keys and certificates of a database's endpoints."""
    with database_context(database).file.read() as connection:
        return [
            tuple(row)
            for row in connection.execute(
                "SELECT session_key, far_session_key, far_certificate FROM ssb_conversation_endpoints ORDER BY endpoint_id"
            )
        ]


def run_until_retry(shop_and_bank: ShopAndBank) -> None:
    """Runs the work of the background thread after a change of objects, then the next retry."""
    shop_and_bank.shop.run_due()
    shop_and_bank.network.settle(seconds=65)


def converse(shop_and_bank: ShopAndBank) -> None:
    """Sends a message, a reply and another message."""
    dialog = begin(shop_and_bank, b"two secret chairs")
    shop_and_bank.network.settle()
    assert shop_and_bank.answer(b"secretly on their way") == [b"two secret chairs"]
    shop_and_bank.network.settle(seconds=2)
    assert received(shop_and_bank.sales, REPLIES) == [b"secretly on their way"]
    shop_and_bank.send(b"two more secret chairs", dialog=dialog)
    shop_and_bank.network.settle(seconds=2)
    assert shop_and_bank.receive_orders() == [b"two more secret chairs"]
    assert waiting(shop_and_bank.sales) == waiting(shop_and_bank.stock) == []


@pytest.mark.rule("P22")
def test_full_security_uses_a_key_for_each_direction(shop_and_bank: ShopAndBank) -> None:
    """Bodies are encrypted in transit, and each endpoint has the certificate of the remote endpoint."""
    converse(shop_and_bank)
    ((own, far, certificate),) = keys(shop_and_bank.sales)
    assert (far, own, public("Shop").fingerprint) == keys(shop_and_bank.stock)[0]
    assert certificate == public("Bank").fingerprint
    assert own != far
    rows = [*rows_to(shop_and_bank, "bank"), *rows_to(shop_and_bank, "shop")]
    assert {row["security"] for row in rows} == {Protection.SEALED}
    assert not any(b"secret" in (row["message_body"] or b"") for row in rows)


def test_a_key_is_sent_until_it_is_acknowledged(shop_and_bank: ShopAndBank) -> None:
    """The initiator's until it is answered; the target's until it is acknowledged."""
    converse(shop_and_bank)
    for name in ("bank", "shop"):
        has_key = [row["key_exchange"] is not None for row in rows_to(shop_and_bank, name)]
        assert has_key[0], name
        assert not has_key[-1], name
        assert has_key == sorted(has_key, reverse=True)


def test_anonymous_security_needs_no_certificate_of_the_sender(anonymous: ShopAndBank) -> None:
    """One key is used in both directions; the target does not know the sender."""
    converse(anonymous)
    ((own, far, certificate),) = keys(anonymous.sales)
    assert (far, certificate) == (None, None)
    assert keys(anonymous.stock) == [(own, None, None)]
    assert [row for row in rows_to(anonymous, "shop") if row["key_exchange"] is not None] == []
    assert {row["security"] for row in rows_to(anonymous, "bank")} == {Protection.SEALED}


def test_an_encrypted_dialog_waits_until_its_security_is_configured(unsecured: ShopAndBank) -> None:
    """The transmission status names the next missing object."""
    dialog = begin(unsecured, b"two chairs")
    unsecured.network.settle()
    steps: list[tuple[Callable[[], None], str]] = [
        (lambda: import_certificate(unsecured.sales, "Bank"), "CREATE REMOTE SERVICE BINDING"),
        (lambda: unsecured.sales.create_remote_service_binding("B", service=STOCK, user="Bank"), "binding"),
        (lambda: create_own_certificate(unsecured.sales, "Shop", SHOP), "no valid certificate with a private key"),
    ]
    for repair, missing in steps:
        with unsecured.sales.transaction() as t:
            status = t.transmission_status(dialog)
        assert status.startswith("28050: ")
        assert missing in status
        assert rows_to(unsecured, "bank") == []
        repair()
        run_until_retry(unsecured)
    create_own_certificate(unsecured.stock, "Bank", STOCK)
    import_certificate(unsecured.stock, "Shop")
    unsecured.network.settle(seconds=65)
    assert unsecured.receive_orders() == [b"two chairs"]


def test_without_binding_and_encryption_a_dialog_is_unsecured(unsecured: ShopAndBank) -> None:
    """A service that accepts everybody accepts it. A later binding only affects later dialogs."""
    dialog = begin(unsecured, b"two chairs", encryption=False)
    unsecured.network.down.add("TCP://bank:4022")
    import_certificate(unsecured.sales, "Bank")
    unsecured.sales.create_remote_service_binding("B", service=STOCK, user="Bank")
    unsecured.network.down.clear()
    unsecured.network.settle(seconds=65)
    unsecured.send(b"a table", dialog=dialog)
    unsecured.network.settle()
    assert unsecured.receive_orders() == [b"two chairs", b"a table"]
    assert {row["security"] for row in rows_to(unsecured, "bank")} == {Protection.PLAIN}


def test_a_key_is_never_set_for_another_dialog(unsecured: ShopAndBank) -> None:
    """An unencrypted dialog gets the id of an encrypted one that was removed before its key was set."""
    removed = begin(unsecured, b"two secret chairs")
    with unsecured.sales.transaction() as t:
        t.end_conversation(removed, cleanup=True)
    begin(unsecured, b"two chairs", encryption=False)
    import_certificate(unsecured.sales, "Bank")
    unsecured.sales.create_remote_service_binding("B", service=STOCK, user="Bank", anonymous=True)
    unsecured.network.settle()
    assert keys(unsecured.sales) == [(None, None, None)]
    assert unsecured.receive_orders() == [b"two chairs"]


def test_a_binding_secures_dialogs_without_encryption(shop_and_bank: ShopAndBank) -> None:
    begin(shop_and_bank, b"two secret chairs", encryption=False)
    shop_and_bank.network.settle()
    assert shop_and_bank.receive_orders() == [b"two secret chairs"]
    assert {row["security"] for row in rows_to(shop_and_bank, "bank")} == {Protection.SEALED}


def test_without_an_open_master_key_the_dialog_waits(shop_and_bank: ShopAndBank) -> None:
    """28050, for example after the database was attached to another instance; the password opens the key."""
    instance_of(shop_and_bank.sales).execute("USE Sales; ALTER MASTER KEY DROP ENCRYPTION BY SERVICE MASTER KEY")
    dialog = begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle()
    assert statuses(shop_and_bank.sales) == {"28050"}
    with shop_and_bank.sales.transaction() as t:
        assert "OPEN MASTER KEY" in t.transmission_status(dialog)
    shop_and_bank.sales.open_master_key("long and secret")
    run_until_retry(shop_and_bank)
    assert shop_and_bank.receive_orders() == [b"two chairs"]


def test_without_an_open_master_key_at_the_target_messages_wait(shop_and_bank: ShopAndBank) -> None:
    instance_of(shop_and_bank.stock).execute("USE Stock; ALTER MASTER KEY DROP ENCRYPTION BY SERVICE MASTER KEY")
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle(seconds=5)
    assert (len(waiting(shop_and_bank.sales)), states(shop_and_bank.stock)) == (1, [])
    shop_and_bank.stock.open_master_key("long and secret")
    shop_and_bank.network.settle(seconds=65)
    assert shop_and_bank.receive_orders() == [b"two chairs"]


def test_the_certificate_with_the_latest_end_is_used(shop_and_bank: ShopAndBank) -> None:
    """A certificate that is not active for BEGIN DIALOG is not used; existing dialogs continue with theirs."""
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
    assert shop_and_bank.receive_orders() == [b"under the new one", b"still under the old one"]


@pytest.mark.parametrize("side", ["shop", "bank"])
def test_keys_survive_crashes(shop_and_bank: ShopAndBank, side: str) -> None:
    """During the key exchange and after it."""
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
    assert shop_and_bank.receive_orders() == [b"a table"]


@pytest.mark.threat("T2")
def test_a_blob_is_renewed_without_an_answer(shop_and_bank: ShopAndBank) -> None:
    """Otherwise a message that waits for longer than a blob is accepted would never arrive."""
    shop_and_bank.network.lossy.add("TCP://bank:4022")
    begin(shop_and_bank, b"two chairs")
    for _ in range(45):
        shop_and_bank.network.settle(seconds=MINUTE)
    shop_and_bank.network.lossy.clear()
    for _ in range(2):
        shop_and_bank.network.settle(seconds=MINUTE)
    assert shop_and_bank.receive_orders() == [b"two chairs"]


def received_errors(database: Database, queue: str = REPLIES) -> list[Any]:
    """Receives all messages; returns the bodies of the errors."""
    return [body for body in received(database, queue) if b"<Code>" in body]


@pytest.mark.parametrize("verb", ["revoke_send", "deny_send"])
def test_a_denied_sender_gets_an_encrypted_error(shop_and_bank: ShopAndBank, verb: str) -> None:
    """-8494; the service receives nothing."""
    getattr(shop_and_bank.stock, verb)(STOCK, "Shop")
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle(seconds=2)
    assert b"<Code>-8494</Code>" in b"".join(received_errors(shop_and_bank.sales))
    assert (states(shop_and_bank.sales), states(shop_and_bank.stock), shop_and_bank.receive_orders()) == (
        ["ER"],
        [],
        [],
    )
    assert {row["security"] for row in rows_to(shop_and_bank, "shop")} == {Protection.SEALED}


def test_anonymous_and_unsecured_senders_are_public(anonymous: ShopAndBank) -> None:
    anonymous.stock.revoke_send(STOCK, "public")
    begin(anonymous, b"two chairs")
    anonymous.network.settle(seconds=2)
    assert b"<Code>-8494</Code>" in b"".join(received_errors(anonymous.sales))
    anonymous.sales.drop_remote_service_binding("B")
    begin(anonymous, b"two chairs", encryption=False)
    anonymous.network.settle(seconds=2)
    assert b"<Code>-8494</Code>" in b"".join(received_errors(anonymous.sales))
    anonymous.stock.grant_send(STOCK, "public")
    begin(anonymous, b"two chairs", encryption=False)
    anonymous.network.settle(seconds=2)
    assert anonymous.receive_orders() == [b"two chairs"]


def test_deny_overrides_grant(shop_and_bank: ShopAndBank) -> None:
    shop_and_bank.stock.deny_send(STOCK, "public")
    begin(shop_and_bank, b"two chairs")
    shop_and_bank.network.settle(seconds=2)
    assert b"<Code>-8494</Code>" in b"".join(received_errors(shop_and_bank.sales))


def test_views_show_the_remote_principal(shop_and_bank: ShopAndBank) -> None:
    """The local user that owns the remote certificate."""
    converse(shop_and_bank)
    principals = shop_and_bank.bank.view("sys.database_principals", "Stock").to_pylist()
    users = {row["name"]: row["principal_id"] for row in principals}
    row = shop_and_bank.bank.view("sys.conversation_endpoints", "Stock").to_pylist()[0]
    assert (row["principal_id"], row["far_principal_id"]) == (users["Bank"], users["Shop"])


def test_dialogs_within_an_instance_are_not_encrypted(shop_and_bank: ShopAndBank) -> None:
    """Despite a binding: the key is removed once the target is known to be local."""
    other = sample_databases.stock(shop_and_bank.shop, "Warehouse")
    shop_and_bank.sales.drop_route("There")
    begin(shop_and_bank, b"two chairs")
    assert keys(shop_and_bank.sales) == [(None, None, None)]
    assert received(other) == [b"two chairs"]


def test_a_key_that_cannot_be_stored_is_stored_later(unsecured: ShopAndBank) -> None:
    """A concurrent writer delays the key exchange until its transaction ends."""
    begin(unsecured, b"two chairs")
    unsecured.network.settle()
    import_certificate(unsecured.sales, "Bank")
    create_own_certificate(unsecured.stock, "Bank", STOCK)
    unsecured.sales.create_remote_service_binding("B", service=STOCK, user="Bank", anonymous=True)
    with unsecured.sales.transaction() as t:
        t.connection.execute("CREATE TABLE busy (id INTEGER)")
        unsecured.network.turn()
        assert keys(unsecured.sales) == [(None, None, None)]
    unsecured.network.clock.advance(seconds=65)
    run_until_retry(unsecured)
    assert unsecured.receive_orders() == [b"two chairs"]
