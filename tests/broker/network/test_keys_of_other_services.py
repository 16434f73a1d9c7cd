"""A certificate of another service's owner cannot provide keys for a conversation, in any batch (P22, P25)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ssbroker import _well_known
from ssbroker._arguments import epoch_microseconds
from ssbroker.broker.database import database_context
from ssbroker.protocol.ack_ranges import pack_ack_ranges
from ssbroker.protocol.envelope import EnvelopeRow, Protection, rows_to_table
from ssbroker.security import SecuredDirection
from ssbroker.security.key_exchange import DialogCertificate, Direction, KeyOffers
from tests.broker.network.secured_pair import begin, create_own_certificate, deliver_rows, import_certificate, secured
from tests.broker.network.shop_and_bank import ShopAndBank
from tests.broker.sample_databases import REPLIES, SHOP, STOCK, received
from tests.security.shared_certificates import certified

EVIL = "//Mallory/Evil"
KEY = b"m" * 32


@pytest.fixture(params=[False, True], ids=["full", "anonymous"])
def shop_and_bank(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ShopAndBank]:
    """The shop also has the certificate of Mallory, for Mallory's service."""
    for each in secured(tmp_path, anonymous=request.param):
        if request.param:
            create_own_certificate(each.sales, "Shop", SHOP)
        import_certificate(each.sales, "Mallory")
        each.sales.create_remote_service_binding("M", service=EVIL, user="Mallory")
        yield each


def blob(shop_and_bank: ShopAndBank, conversation: bytes, *, is_initiator: bool, to: str) -> bytes:
    """Returns a key exchange blob with Mallory's key, signed with Mallory's certificate."""
    (row,) = [
        one for one in database_context(shop_and_bank.sales).objects().security.certificates.values() if one.name == to
    ]
    mallory = certified("Mallory")
    return KeyOffers().make_blob(
        KEY,
        Direction(conversation, is_initiator, EVIL, SHOP),
        receiver=DialogCertificate(row.certificate),
        sender=DialogCertificate(mallory.certificate, mallory.key),
        now=epoch_microseconds(database_context(shop_and_bank.sales).now()),
    )


def forged(conversation: bytes, sender: str, *, is_initiator: bool, broker: bytes) -> EnvelopeRow:
    """Returns a message sealed with Mallory's key."""
    values: list[Any] = [conversation, is_initiator, 0, 0, 1, b"pay Mallory", bytes(16), bytes(16), True]
    values += [sender, broker, SHOP, None, _well_known.DEFAULT, _well_known.DEFAULT, uuid.UUID(int=5).bytes]
    values += [5, False, False, None, Protection.SEALED, None, pack_ack_ranges(()), b""]
    row = EnvelopeRow(*values)
    keys = SecuredDirection(KEY, conversation_id=conversation, is_initiator=is_initiator)
    row.header_signature = keys.sign_header(row.signature_input(row.header))
    row.body = keys.seal(row.body, sequence=0, fragment=0, is_bound=False, header=row.header)
    return row


@pytest.mark.rule("P25")
@pytest.mark.parametrize("side", [False, True], ids=["as the target", "as an initiator"])
def test_the_owner_of_one_service_cannot_answer_for_another(shop_and_bank: ShopAndBank, *, side: bool) -> None:
    """A row from Mallory's service contains the key; the next row claims to be from the bank."""
    begin(shop_and_bank, b"question")
    with database_context(shop_and_bank.sales).file.read() as connection:
        ((conversation,),) = [
            tuple(row) for row in connection.execute("SELECT conversation_id FROM ssb_conversation_endpoints")
        ]
    own = [
        one.name
        for one in database_context(shop_and_bank.sales).objects().security.certificates.values()
        if one.private_key is not None
    ]
    key_blob = blob(shop_and_bank, conversation, is_initiator=side, to=own[0])
    broker = database_context(shop_and_bank.stock).objects().broker.service_broker_guid
    rows: list[dict[str, Any]] = rows_to_table(
        [
            forged(conversation, EVIL, is_initiator=side, broker=broker),
            forged(conversation, STOCK, is_initiator=False, broker=broker),
        ]
    ).to_pylist()
    hop = {"hops_remaining": 16, "time_to_live": 60, "time_consumed": 0}
    deliver_rows(
        shop_and_bank,
        "shop",
        [{**row, **hop, "key_exchange": key_blob if at == 0 else None} for at, row in enumerate(rows)],
    )
    assert b"pay Mallory" not in received(shop_and_bank.sales, REPLIES)
    query = "SELECT far_session_key FROM ssb_conversation_endpoints WHERE is_initiator"
    with database_context(shop_and_bank.sales).file.read() as connection:
        stored_keys = [tuple(row) for row in connection.execute(query)]
    assert (KEY,) not in stored_keys
