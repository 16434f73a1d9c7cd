"""Rows become messages of dialogs, and each batch is sent once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from ssbroker import BrokerError, InvalidGuidError, NullError
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.dialogs.bulk_send import NumberedBatch, SendDefaults, send_batch_once
from tests.broker.conftest import INITIATOR, QUEUE, TARGET, Clock
from tests.internals import instance_of

TO_ORDERS = SendDefaults(from_service=INITIATOR, to_service=TARGET)


def rows(bodies: list[bytes | None], **columns: list[Any]) -> list[pa.Table]:
    """One part with these bodies, and text, numbers or bytes in other columns."""
    return [pa.table({"message_body": pa.array(bodies, pa.binary()), **columns})]


def received(sales: Database, queue: str = QUEUE) -> list[list[bytes | None]]:
    """Returns the bodies of the waiting messages of each conversation, in order."""
    found: dict[bytes, list[bytes | None]] = {}
    with sales.transaction() as t:
        for row in t.receive(queue, groups=None).to_pylist():
            found.setdefault(row["conversation_handle"], []).append(row["message_body"])
    return list(found.values())


def endpoints(sales: Database) -> list[Mapping[str, Any]]:
    table = instance_of(sales).view("sys.conversation_endpoints", database=sales.name)
    return [row for row in table.to_pylist() if row["is_initiator"]]


def test_rows_with_equal_keys_are_sent_in_one_dialog_in_order(sales: Database) -> None:
    parts = [*rows([b"a1", b"b1", b"a2"], dialog=["a", "b", "a"]), *rows([b"b2", b"a3"], dialog=["b", "a"])]
    assert send_batch_once(database_context(sales), parts, TO_ORDERS) == 5
    assert received(sales) == [[b"a1", b"a2", b"a3"], [b"b1", b"b2"]]


def test_rows_without_keys_are_sent_in_one_dialog(sales: Database) -> None:
    send_batch_once(database_context(sales), rows([b"1", b"2"]), TO_ORDERS)
    assert received(sales) == [[b"1", b"2"]]


def test_a_column_overrides_an_option_unless_null(sales: Database) -> None:
    sales.create_message_type("//Order", validation="NONE")
    sales.create_contract("//Trade", {"//Order": "ANY"})
    sales.create_service("//Trades", queue=QUEUE, contracts=["//Trade"])
    columns = {
        "to_service": ["//Trades", None],
        "contract": ["//Trade", None],
        "message_type": ["//Order", None],
        "from_service": [None, INITIATOR],
    }
    send_batch_once(database_context(sales), rows([b"1", b"2"], **columns), TO_ORDERS)
    with sales.transaction() as t:
        found = t.receive(QUEUE, groups=None).to_pylist()
    assert [(row["service_name"], row["message_type_name"], row["message_body"]) for row in found] == [
        ("//Trades", "//Order", b"1"),
        (TARGET, "DEFAULT", b"2"),
    ]


def test_a_broker_id_may_be_text_or_bytes(sales: Database) -> None:
    guid = sales.service_broker_guid
    send_batch_once(
        database_context(sales), rows([b"1"], to_broker_instance=[str(guid)]), TO_ORDERS, batch=NumberedBatch("w", 0)
    )
    send_batch_once(
        database_context(sales), rows([b"2"], to_broker_instance=[guid.bytes]), TO_ORDERS, batch=NumberedBatch("w", 1)
    )
    assert received(sales) == [[b"1", b"2"]]


def test_a_repeated_batch_is_sent_once(sales: Database) -> None:
    answers = [
        send_batch_once(database_context(sales), rows([b"%d" % n]), TO_ORDERS, batch=NumberedBatch("w", n))
        for n in (0, 0, 3, 2, 3, 4)
    ]
    assert answers == [1, None, 1, None, None, 1]
    assert send_batch_once(database_context(sales), rows([b"other"]), TO_ORDERS, batch=NumberedBatch("v", 0)) == 1
    assert received(sales) == [[b"0", b"3", b"4"], [b"other"]]


def test_a_writer_reuses_its_dialogs(sales: Database) -> None:
    for number in range(3):
        part = rows([b"%d" % number] * 2, dialog=["a", "b"])
        send_batch_once(database_context(sales), part, TO_ORDERS, batch=NumberedBatch("w", number))
    assert received(sales) == [[b"0", b"1", b"2"]] * 2
    assert len(endpoints(sales)) == 2


def test_a_dialog_ended_by_the_other_side_is_replaced(sales: Database) -> None:
    send_batch_once(database_context(sales), rows([b"1"]), TO_ORDERS, batch=NumberedBatch("w", 0))
    with sales.transaction() as t:
        (row,) = t.receive(QUEUE).to_pylist()
        t.end_conversation(row["conversation_handle"])
    send_batch_once(database_context(sales), rows([b"2"]), TO_ORDERS, batch=NumberedBatch("w", 1))
    send_batch_once(database_context(sales), rows([b"3"]), TO_ORDERS, batch=NumberedBatch("w", 2))
    assert received(sales) == [[b"2", b"3"]]


def test_an_expired_dialog_is_replaced(sales: Database, clock: Clock) -> None:
    short = SendDefaults(from_service=INITIATOR, to_service=TARGET, lifetime=10)
    send_batch_once(database_context(sales), rows([b"1"]), short, batch=NumberedBatch("w", 0))
    clock.advance(seconds=11)
    send_batch_once(database_context(sales), rows([b"2"]), short, batch=NumberedBatch("w", 1))
    assert len(endpoints(sales)) == 2


def test_stored_keys_are_removed_with_their_endpoint(sales: Database) -> None:
    send_batch_once(database_context(sales), rows([b"1"]), TO_ORDERS, batch=NumberedBatch("w", 0))
    with sales.transaction() as t:
        t.end_conversation(endpoints(sales)[0]["conversation_handle"], cleanup=True)
    with database_context(sales).file.read() as connection:
        assert connection.execute("SELECT count(*) FROM ssb_writer_dialogs").get == 0


def test_dialogs_can_end_after_the_batch(sales: Database) -> None:
    ending = SendDefaults(from_service=INITIATOR, to_service=TARGET, ends=True)
    for number in range(2):
        send_batch_once(database_context(sales), rows([b"%d" % number]), ending, batch=NumberedBatch("w", number))
    assert received(sales) == [[b"0", None], [b"1", None]]
    assert endpoints(sales) == []


def test_a_rejected_row_undoes_its_batch(sales: Database) -> None:
    def parts() -> Iterator[pa.Table]:
        yield from rows([b"1"], message_type=["DEFAULT"])
        yield from rows([b"2"], message_type=["//No"])

    with pytest.raises(BrokerError, match="//No"):
        send_batch_once(database_context(sales), parts(), TO_ORDERS, batch=NumberedBatch("w", 0))
    assert endpoints(sales) == []
    assert send_batch_once(database_context(sales), rows([b"again"]), TO_ORDERS, batch=NumberedBatch("w", 0)) == 1
    assert received(sales) == [[b"again"]]


def test_a_row_without_a_service_is_reported(sales: Database) -> None:
    with pytest.raises(NullError, match="to_service: row 1 has no value") as emitted:
        send_batch_once(
            database_context(sales), rows([b"1", b"2"], to_service=[TARGET, None]), SendDefaults(from_service=INITIATOR)
        )
    assert (emitted.value.column, emitted.value.row) == ("to_service", 1)


def test_an_invalid_broker_id_is_reported(sales: Database) -> None:
    with pytest.raises(InvalidGuidError, match="in row 1"):
        send_batch_once(database_context(sales), rows([b"1", b"2"], to_broker_instance=[None, "x"]), TO_ORDERS)
