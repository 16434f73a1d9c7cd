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
def both(tmp_path: Path) -> Iterator[ShopAndBank]:
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


def goes_on(both: ShopAndBank) -> None:
    """What the background thread does when the objects have changed."""
    both.shop.run_due()
    both.pipes.settle(seconds=65)


def converse(both: ShopAndBank) -> None:
    """A message each way, and another."""
    dialog = begin(both, b"two secret chairs")
    both.pipes.settle()
    assert both.answer(b"secretly on their way") == [b"two secret chairs"]
    both.pipes.settle(seconds=2)
    assert received(both.sales, REPLIES) == [b"secretly on their way"]
    both.send(b"two more secret chairs", dialog=dialog)
    both.pipes.settle(seconds=2)
    assert both.ordered() == [b"two more secret chairs"]
    assert waiting(both.sales) == waiting(both.stock) == []


@pytest.mark.rule("P22")
def test_full_security_uses_a_key_for_each_direction(both: ShopAndBank) -> None:
    """Nothing of a body is readable on the way, and both sides are known by their certificates."""
    converse(both)
    ((own, far, certificate),) = keys(both.sales)
    assert (far, own, public("Shop").fingerprint) == keys(both.stock)[0]
    assert certificate == public("Bank").fingerprint
    assert own != far
    rows = [*rows_to(both, "bank"), *rows_to(both, "shop")]
    assert {row["security"] for row in rows} == {Protection.SEALED}
    assert not any(b"secret" in (row["message_body"] or b"") for row in rows)


def test_a_key_is_sent_until_it_is_acknowledged(both: ShopAndBank) -> None:
    """Of the initiator until it is answered; of the target until it is acknowledged."""
    converse(both)
    for name in ("bank", "shop"):
        rides = [row["key_exchange"] is not None for row in rows_to(both, name)]
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
    bare.pipes.settle()
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
    bare.pipes.settle(seconds=65)
    assert bare.ordered() == [b"two chairs"]


def test_without_binding_and_encryption_a_dialog_is_unsecured(bare: ShopAndBank) -> None:
    """And it is taken where everybody may send. A binding that is made later is for dialogs that begin later."""
    dialog = begin(bare, b"two chairs", encryption=False)
    bare.pipes.down.add("TCP://bank:4022")
    import_certificate(bare.sales, "Bank")
    bare.sales.create_remote_service_binding("B", service=STOCK, user="Bank")
    bare.pipes.down.clear()
    bare.pipes.settle(seconds=65)
    bare.send(b"a table", dialog=dialog)
    bare.pipes.settle()
    assert bare.ordered() == [b"two chairs", b"a table"]
    assert {row["security"] for row in rows_to(bare, "bank")} == {Protection.PLAIN}


def test_a_binding_secures_dialogs_without_encryption(both: ShopAndBank) -> None:
    begin(both, b"two secret chairs", encryption=False)
    both.pipes.settle()
    assert both.ordered() == [b"two secret chairs"]
    assert {row["security"] for row in rows_to(both, "bank")} == {Protection.SEALED}


def test_without_an_open_master_key_the_dialog_waits(both: ShopAndBank) -> None:
    """28050: such as after the database was attached to another instance; its password opens it."""
    instance_of(both.sales).execute("USE Sales; ALTER MASTER KEY DROP ENCRYPTION BY SERVICE MASTER KEY")
    dialog = begin(both, b"two chairs")
    both.pipes.settle()
    assert statuses(both.sales) == {"28050"}
    with both.sales.transaction() as t:
        assert "OPEN MASTER KEY" in t.transmission_status(dialog)
    both.sales.open_master_key("long and secret")
    goes_on(both)
    assert both.ordered() == [b"two chairs"]


def test_without_an_open_master_key_at_the_target_messages_wait(both: ShopAndBank) -> None:
    instance_of(both.stock).execute("USE Stock; ALTER MASTER KEY DROP ENCRYPTION BY SERVICE MASTER KEY")
    begin(both, b"two chairs")
    both.pipes.settle(seconds=5)
    assert (len(waiting(both.sales)), states(both.stock)) == (1, [])
    both.stock.open_master_key("long and secret")
    both.pipes.settle(seconds=65)
    assert both.ordered() == [b"two chairs"]


def test_the_certificate_with_the_latest_end_is_used(both: ShopAndBank) -> None:
    """Those of tomorrow, of yesterday and those that are not active for BEGIN DIALOG are not; what has begun goes on."""
    first = begin(both, b"under the old one")
    both.pipes.settle()
    both.answer(b"yes")
    both.pipes.settle(seconds=2)
    new = certified("Newer Bank")
    both.stock.create_certificate("New", certificate=new.certificate, private_key=new.key, owner="Bank")
    both.sales.create_certificate("New", certificate=new.certificate, owner="Bank")
    both.sales.alter_certificate("OfBank", active=False)
    begin(both, b"under the new one")
    both.pipes.settle()
    to = {row["key_exchange"][10:42] for row in rows_to(both, "bank") if row["key_exchange"] is not None}
    assert to == {public("Bank").fingerprint, public("Newer Bank").fingerprint}
    both.sales.drop_certificate("OfBank")
    both.stock.drop_certificate("OwnBank")
    both.send(b"still under the old one", dialog=first)
    both.pipes.settle(seconds=2)
    assert both.ordered() == [b"under the new one", b"still under the old one"]


@pytest.mark.parametrize("side", ["shop", "bank"])
def test_keys_survive_crashes(both: ShopAndBank, side: str) -> None:
    """In the middle of the exchange, and after it."""
    dialog = begin(both, b"two chairs")
    both.pipes.turn()
    both.crash(side)
    both.pipes.settle(seconds=65)
    assert both.answer(b"on their way") == [b"two chairs"]
    both.crash(side)
    both.pipes.settle(seconds=65)
    assert received(both.sales, REPLIES) == [b"on their way"]
    both.crash(side)
    both.send(b"a table", dialog=dialog)
    both.pipes.settle(seconds=65)
    assert both.ordered() == [b"a table"]


@pytest.mark.threat("T2")
def test_a_blob_is_renewed_without_an_answer(both: ShopAndBank) -> None:
    """Else what waits for longer than a recorded one is believed would never arrive."""
    both.pipes.swallows.add("TCP://bank:4022")
    begin(both, b"two chairs")
    for _ in range(45):
        both.pipes.settle(seconds=MINUTE)
    both.pipes.swallows.clear()
    for _ in range(2):
        both.pipes.settle(seconds=MINUTE)
    assert both.ordered() == [b"two chairs"]


def error_of(database: Database, queue: str = REPLIES) -> list[Any]:
    """The errors that an application receives."""
    return [body for body in received(database, queue) if b"<Code>" in body]


@pytest.mark.parametrize("verb", ["revoke_send", "deny_send"])
def test_a_denied_sender_gets_an_encrypted_error(both: ShopAndBank, verb: str) -> None:
    """-8494, which nobody on the way could have made; the service takes nothing."""
    getattr(both.stock, verb)(STOCK, "Shop")
    begin(both, b"two chairs")
    both.pipes.settle(seconds=2)
    assert b"<Code>-8494</Code>" in b"".join(error_of(both.sales))
    assert (states(both.sales), states(both.stock), both.ordered()) == (["ER"], [], [])
    assert {row["security"] for row in rows_to(both, "shop")} == {Protection.SEALED}


def test_anonymous_and_unsecured_senders_are_public(unknown: ShopAndBank) -> None:
    unknown.stock.revoke_send(STOCK, "public")
    begin(unknown, b"two chairs")
    unknown.pipes.settle(seconds=2)
    assert b"<Code>-8494</Code>" in b"".join(error_of(unknown.sales))
    unknown.sales.drop_remote_service_binding("B")
    begin(unknown, b"two chairs", encryption=False)
    unknown.pipes.settle(seconds=2)
    assert b"<Code>-8494</Code>" in b"".join(error_of(unknown.sales))
    unknown.stock.grant_send(STOCK, "public")
    begin(unknown, b"two chairs", encryption=False)
    unknown.pipes.settle(seconds=2)
    assert unknown.ordered() == [b"two chairs"]


def test_deny_overrides_grant(both: ShopAndBank) -> None:
    both.stock.deny_send(STOCK, "public")
    begin(both, b"two chairs")
    both.pipes.settle(seconds=2)
    assert b"<Code>-8494</Code>" in b"".join(error_of(both.sales))


def test_views_show_the_remote_principal(both: ShopAndBank) -> None:
    """The user to whom its certificate belongs here; nobody for who is anonymous."""
    converse(both)
    principals = both.bank.view("sys.database_principals", "Stock").to_pylist()
    users = {row["name"]: row["principal_id"] for row in principals}
    row = both.bank.view("sys.conversation_endpoints", "Stock").to_pylist()[0]
    assert (row["principal_id"], row["far_principal_id"]) == (users["Bank"], users["Shop"])


def test_within_an_instance_nothing_is_encrypted(both: ShopAndBank) -> None:
    """Also where a binding is there: the key goes as soon as it is known that nobody needs it."""
    other = sample_databases.stock(both.shop, "Warehouse")
    both.sales.drop_route("There")
    begin(both, b"two chairs")
    assert keys(both.sales) == [(None, None, None)]
    assert received(other) == [b"two chairs"]


def test_a_key_that_cannot_be_stored_is_stored_later(bare: ShopAndBank) -> None:
    """Whoever is writing to the file holds up its own conversations only, and not for long."""
    begin(bare, b"two chairs")
    bare.pipes.settle()
    import_certificate(bare.sales, "Bank")
    create_own_certificate(bare.stock, "Bank", STOCK)
    bare.sales.create_remote_service_binding("B", service=STOCK, user="Bank", anonymous=True)
    bare.shop.run_due()
    with bare.sales.transaction() as t:
        t.connection.execute("CREATE TABLE busy (id INTEGER)")
        bare.pipes.turn()
        assert keys(bare.sales) == [(None, None, None)]
    bare.pipes.clock.advance(seconds=65)
    goes_on(bare)
    assert bare.ordered() == [b"two chairs"]
