"""Many messages sent from an Arrow table."""

from __future__ import annotations

import uuid
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from ssbroker.broker.database import Database
from ssbroker.exceptions import BrokerError, InputError, SchemaError
from tests.broker import dialog_calls
from tests.broker.conftest import INITIATOR, TARGET, Clock
from tests.broker.dialog_calls import begin, contents_of, drain, receive


def batch(database: Database, table: Any) -> None:
    with database.transaction() as t:
        t.send_batch(table)


@pytest.mark.rule("P11", "P12")
def test_each_conversation_keeps_its_order(sales: Database) -> None:
    dialogs = [begin(sales) for _ in range(3)]
    order = [0, 1, 2, 2, 1, 0, 0, 2, 1]
    batch(
        sales,
        pa.table(
            {
                "conversation_handle": pa.array([dialogs[which].bytes for which in order], pa.binary(16)),
                "message_body": [f"{which}.{row}".encode() for row, which in enumerate(order)],
            }
        ),
    )
    rows = drain(sales)
    for which, dialog in enumerate(dialogs):
        here = [row for row in rows if row["conversation_handle"] == dialog_calls.far_handle(sales, dialog).bytes]
        expected = [f"{which}.{row}".encode() for row, other in enumerate(order) if other == which]
        assert [row["message_body"] for row in here] == expected
        assert [row["message_sequence_number"] for row in here] == [0, 1, 2]


HANDLE_TYPES = [pa.binary(16), pa.binary(), pa.large_binary(), pa.binary_view()]
BODY_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(4)]


@pytest.mark.parametrize("body_type", BODY_TYPES, ids=str)
@pytest.mark.parametrize("handle_type", HANDLE_TYPES, ids=str)
def test_any_layout_of_the_columns(sales: Database, handle_type: pa.DataType, body_type: pa.DataType) -> None:
    dialog = begin(sales)
    rows = pa.table(
        {
            "more": [1, 2],
            "message_type_name": pa.array(["DEFAULT"] * 2).dictionary_encode(),
            "message_body": pa.array([b"abcd", b"efgh"], body_type),
            "conversation_handle": pa.array([dialog.bytes] * 2, handle_type),
        }
    )
    batch(sales, rows)
    batch(sales, rows.slice(1))
    assert contents_of(receive(sales)) == [b"abcd", b"efgh", b"efgh"]


def test_handles_as_text_from_polars_and_in_chunks(sales: Database) -> None:
    dialog = begin(sales)
    frame = pl.DataFrame({"conversation_handle": [str(dialog), f"{{{dialog}}}".upper()], "message_body": [b"a", b""]})
    batch(sales, pl.concat([frame, frame], rechunk=False))
    assert contents_of(receive(sales)) == [b"a", b"", b"a", b""]


def test_a_batch_without_rows_sends_nothing(sales: Database) -> None:
    dialog = begin(sales)
    batch(
        sales, pa.table({"conversation_handle": pa.array([], pa.string()), "message_body": pa.array([], pa.binary())})
    )
    none: Any = []
    batch(sales, none)
    assert dialog_calls.state(sales, dialog) == "SO"


def rows_of(handles: list[Any], bodies: list[Any], kinds: list[Any] | None = None) -> pa.Table:
    columns = {"conversation_handle": pa.array(handles), "message_body": pa.array(bodies, pa.binary())}
    return pa.table(columns if kinds is None else {**columns, "message_type_name": pa.array(kinds, pa.string())})


def test_a_rejected_batch_changes_nothing(sales: Database) -> None:
    good, ended = begin(sales), begin(sales, b"x")
    dialog_calls.drain(sales)
    with sales.transaction() as t:
        t.end_conversation(dialog_calls.far_handle(sales, ended, t.connection))
    before = dialog_calls.contents(sales)
    two = [good.bytes] * 2
    refused = [
        (rows_of([good.bytes, uuid.UUID(int=1).bytes], [b"a"] * 2), 8426),
        (rows_of([good.bytes, ended.bytes], [b"a"] * 2), 8429),
        (rows_of(two, [b"a", None]), 8433),
        (rows_of(two, [b"a"] * 2, ["DEFAULT", "//Unknown"]), 8428),
        (rows_of(two, [b"a"] * 2, ["DEFAULT", "http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog"]), 8431),
    ]
    for table, number in refused:
        with sales.transaction() as t:
            with pytest.raises(BrokerError) as error:
                t.send_batch(table)
            assert error.value.number == number
            assert dialog_calls.contents(sales, t.connection) == before
    assert dialog_calls.contents(sales) == before


def test_invalid_rows_are_named(sales: Database) -> None:
    dialog = begin(sales)
    good = dialog.bytes
    for table, column, row in [
        (rows_of([good, None], [b"a"] * 2), "conversation_handle", 1),
        (rows_of([good, b"short"], [b"a"] * 2), "conversation_handle", 1),
        (rows_of([str(dialog), "none"], [b"a"] * 2), "conversation_handle", 1),
        (rows_of([good] * 2, [b"a"] * 2, ["DEFAULT", None]), "message_type_name", 1),
    ]:
        with sales.transaction() as t, pytest.raises(InputError) as error:
            t.send_batch(table)
        assert (error.value.column, error.value.row) == (column, row)


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"message_body": [b"a"]}),
        pa.table({"conversation_handle": [b"a"]}),
        pa.table({"conversation_handle": [1], "message_body": [b"a"]}),
        pa.table({"conversation_handle": [b"a"], "message_body": ["text"]}),
        pa.table({"conversation_handle": [b"a"], "message_body": [b"a"], "message_type_name": [b"DEFAULT"]}),
        [1, 2],
    ],
    ids=str,
)
def test_missing_and_mistyped_columns(sales: Database, table: Any) -> None:
    with sales.transaction() as t, pytest.raises(SchemaError):
        t.send_batch(table)


def test_a_batch_may_hold_first_messages_and_several_types(sales: Database) -> None:
    """The first message of each creates the target's endpoint, as with `send`."""
    sales.create_message_type("//Item")
    sales.create_contract("//Sale", {"//Item": "INITIATOR"})
    sales.create_service("//Till", queue="Orders", contracts=["//Sale"])
    with sales.transaction() as t:
        sale = t.begin_dialog(INITIATOR, "//Till", contract="//Sale")
        plain = t.begin_dialog(INITIATOR, TARGET)
        t.send_batch(rows_of([sale.bytes, plain.bytes], [b"item", b"plain"], ["//Item", "DEFAULT"]))
    rows = drain(sales)
    assert [(row["message_type_name"], row["service_name"]) for row in rows] == [
        ("//Item", "//Till"),
        ("DEFAULT", TARGET),
    ]


@pytest.mark.parametrize("number", [8489, 8429])
def test_checks_of_one_conversation_are_not_reused_for_another(sales: Database, clock: Clock, number: int) -> None:
    """Equal conversations are checked once; one with an expired lifetime or an ended remote endpoint is not equal."""
    with sales.transaction() as t:
        brief = t.begin_dialog(INITIATOR, TARGET, lifetime=10)
        lasting = [t.begin_dialog(INITIATOR, TARGET) for _ in range(2)]
        for dialog in (*lasting, brief):
            t.send(dialog, b"first")
    if number == 8489:
        clock.advance(seconds=11)
    else:
        with sales.transaction() as t:
            t.end_conversation(dialog_calls.far_handle(sales, brief))
    handles = [lasting[0].bytes, lasting[1].bytes, brief.bytes]
    rows = pa.table({"conversation_handle": pa.array(handles, pa.binary(16)), "message_body": [b"next"] * 3})
    with pytest.raises(BrokerError) as error:
        batch(sales, rows)
    assert error.value.number == number
    assert [row["message_body"] for row in drain(sales) if row["message_body"] == b"next"] == []
    batch(sales, rows.slice(0, 2))
    assert [row["message_body"] for row in drain(sales)] == [b"next"] * 2
