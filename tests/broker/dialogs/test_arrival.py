"""Messages are received once and in order, or rejected with a reason (P11, P14, P16)."""

from __future__ import annotations

import tracemalloc
import uuid
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import pytest

from ssbroker._well_known import DEFAULT, END_DIALOG, ERROR
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.dialogs.arrival import arrive
from ssbroker.broker.dialogs.message import DeliveryOutcome, DialogMessage, MessageHeader
from ssbroker.broker.instance import Instance
from ssbroker.exceptions import BrokerError
from tests.broker import dialog_calls, sample_databases
from tests.broker.conftest import INITIATOR, QUEUE, TARGET, Clock
from tests.broker.dialog_calls import begin, contents_of, drain, end, handle_of, receive, send
from tests.internals import instance_of

ELSEWHERE = uuid.UUID(int=77).bytes
LIFETIME = 2**60


def header(**changed: Any) -> MessageHeader:
    """Returns the header of a message from an initiator in another database."""
    usual = {
        "conversation_id": uuid.UUID(int=9).bytes,
        "is_initiator": True,
        "from_service_name": INITIATOR,
        "from_broker_instance": ELSEWHERE,
        "to_service_name": TARGET,
        "to_broker_instance": None,
        "service_contract_name": DEFAULT,
        "lifetime": LIFETIME,
        "is_encrypted": False,
    }
    return MessageHeader(**{**usual, **changed})


def number(index: int) -> DialogMessage:
    return DialogMessage(index, DEFAULT, f"{index}".encode())


def end_dialog(index: int) -> DialogMessage:
    return DialogMessage(index, END_DIALOG, None)


def deliver_messages(
    database: Database, *messages: DialogMessage, park_if_disabled: bool = True, **changed: Any
) -> DeliveryOutcome:
    with database.transaction() as t, t._call() as work:
        return arrive(work, header(**changed), messages, park_if_disabled=park_if_disabled)


@pytest.mark.rule("P11", "P14", "P12")
def test_messages_in_any_order_are_received_once_and_in_order(sales: Database) -> None:
    """Early messages are stored and received in order."""
    for place, order in enumerate(permutations(range(4))):
        conversation = uuid.UUID(int=1000 + place).bytes
        got: list[bytes | str] = []
        for index in (*order, *order):
            deliver_messages(sales, number(index), conversation_id=conversation)
            got += contents_of(drain(sales))
            assert got == [f"{each}".encode() for each in range(len(got))], order
        assert len(got) == 4, order


@pytest.mark.rule("P14")
def test_early_messages_are_in_the_queue_with_status_2(sales: Database) -> None:
    assert deliver_messages(sales, number(1)).acknowledged == 0
    with database_context(sales).file.read() as connection:
        assert connection.execute("SELECT status FROM ssb_queued_messages").fetchall() == [(2,)]
        assert connection.execute("SELECT state FROM ssb_conversation_endpoints").get == "SI"
    assert deliver_messages(sales, number(0)).acknowledged == 2
    with database_context(sales).file.read() as connection:
        assert connection.execute("SELECT state FROM ssb_conversation_endpoints").get == "CO"


@pytest.mark.rule("P14")
def test_an_early_end_waits_for_the_messages_before_it(sales: Database) -> None:
    deliver_messages(sales, number(0))
    deliver_messages(sales, end_dialog(2))
    assert contents_of(drain(sales)) == [b"0"]
    deliver_messages(sales, number(1))
    assert contents_of(drain(sales)) == [b"1", "EndDialog"]


@pytest.mark.rule("P34", "P14")
def test_messages_for_a_disabled_queue_enter_it_in_order(sales: Database) -> None:
    """Until then they are in the transmission queue of the receiving database, and are acknowledged."""
    deliver_messages(sales, number(0))
    dialog_calls.switch(sales, on=False)
    assert deliver_messages(sales, number(1), number(3)).acknowledged == 2
    assert deliver_messages(sales, number(2)).acknowledged == 4
    assert deliver_messages(sales, number(3)).acknowledged == 4
    assert dialog_calls.waiting(sales) == 3
    dialog_calls.switch(sales, on=True)
    assert contents_of(drain(sales)) == [b"0", b"1", b"2", b"3"]
    assert dialog_calls.waiting(sales) == 0


@pytest.mark.rule("P34")
def test_a_message_right_after_enabling_the_queue_does_not_overtake(sales: Database) -> None:
    deliver_messages(sales, number(0))
    with database_context(
        sales
    ).file.write() as connection:  # disabled and enabled without processing the waiting messages
        connection.execute("UPDATE ssb_queues SET is_enqueue_enabled = 0")
        connection.execute("UPDATE ssb_database SET catalog_version = catalog_version + 1")
    deliver_messages(sales, number(1))
    with database_context(sales).file.write() as connection:
        connection.execute("UPDATE ssb_queues SET is_enqueue_enabled = 1")
        connection.execute("UPDATE ssb_database SET catalog_version = catalog_version + 1")
    deliver_messages(sales, number(2))
    assert contents_of(drain(sales)) == [b"0", b"1", b"2"]


def test_a_message_for_a_disabled_queue_is_not_stored_without_parking(sales: Database) -> None:
    dialog_calls.switch(sales, on=False)
    arrival = deliver_messages(sales, number(0), park_if_disabled=False)
    assert (arrival.acknowledged, arrival.error_number) == (0, 11219)
    assert dialog_calls.waiting(sales) == 0


def create_strict_service(database: Database) -> None:
    """Creates a strict service whose contract has message types of every validation."""
    database.create_message_type("//Xml", validation="WELL_FORMED_XML")
    database.create_message_type("//Empty", validation="EMPTY")
    database.create_message_type("//Back")
    database.create_contract("//Contract", {"//Xml": "INITIATOR", "//Empty": "ANY", "//Back": "TARGET"})
    database.create_message_type("//Unlisted")
    database.create_service("//Strict", queue=QUEUE, contracts=["//Contract"])


STRICT: dict[str, Any] = {"to_service_name": "//Strict", "service_contract_name": "//Contract"}
REFUSED: list[tuple[dict[str, Any], DialogMessage, int]] = [
    ({"service_contract_name": "//Contract"}, DialogMessage(0, "//Xml", b"<a/>"), -8408),
    ({"service_contract_name": "//Unknown"}, DialogMessage(0, DEFAULT, b""), -8408),
    (STRICT, DialogMessage(0, "//Unlisted", None), -8498),
    (STRICT, DialogMessage(0, "//Unknown", None), -8498),
    (STRICT, DialogMessage(0, "//Back", None), -8457),
    (STRICT, DialogMessage(0, "//Xml", b"<a>"), -8430),
    (STRICT, DialogMessage(0, "//Xml", None), -8430),
    (STRICT, DialogMessage(0, "//Empty", b"x"), -8430),
]


@pytest.mark.parametrize(("changed", "message", "code"), REFUSED, ids=str)
def test_a_refused_first_message_creates_nothing(
    sales: Database, changed: dict[str, Any], message: DialogMessage, code: int
) -> None:
    create_strict_service(sales)
    before = dialog_calls.contents(sales)
    arrival = deliver_messages(sales, message, **changed)
    assert arrival.error is not None
    assert arrival.error.code == code
    assert dialog_calls.contents(sales) == before


def test_an_unknown_service_of_a_local_broker_id_is_an_error(sales: Database) -> None:
    with_broker_id = deliver_messages(
        sales, number(0), to_service_name="//Nobody", to_broker_instance=sales.service_broker_guid.bytes
    )
    assert with_broker_id.error is not None
    assert with_broker_id.error.code == -8490
    without_broker_id = deliver_messages(sales, number(0), to_service_name="//Nobody")
    assert without_broker_id.error is None
    assert without_broker_id.error_number == 11210


# The cases that neither SEND nor BEGIN DIALOG rejects.
SENT_AND_REFUSED = [REFUSED[0], *REFUSED[5:]]


@pytest.mark.parametrize(("changed", "message", "code"), SENT_AND_REFUSED, ids=str)
def test_the_sender_of_a_refused_message_gets_an_error(
    sales: Database, changed: dict[str, Any], message: DialogMessage, code: int
) -> None:
    create_strict_service(sales)
    with sales.transaction() as t:
        dialog = t.begin_dialog(
            INITIATOR, changed.get("to_service_name", TARGET), contract=changed["service_contract_name"]
        )
        t.send(dialog, message.message_body or b"", message_type=message.message_type_name)
        with pytest.raises(BrokerError, match="8429"):
            t.send(dialog, b"")
    assert dialog_calls.state(sales, dialog) == "ER"
    rows = drain(sales, dialog_calls.REPLIES)
    assert contents_of(rows) == ["Error"]
    assert f"<Code>{code}</Code>".encode() in rows[0]["message_body"]
    assert dialog_calls.waiting(sales) == 0
    assert receive(sales).num_rows == 0


def test_a_refused_later_message_ends_both_sides(sales: Database) -> None:
    create_strict_service(sales)
    with sales.transaction() as t:
        dialog = t.begin_dialog(INITIATOR, "//Strict", contract="//Contract")
        t.send(dialog, b"<fine/>", message_type="//Xml")
        t.send(dialog, b"<not", message_type="//Xml")
    target = dialog_calls.far_handle(sales, dialog)
    assert (dialog_calls.state(sales, dialog), dialog_calls.state(sales, target)) == ("ER", "ER")
    assert contents_of(drain(sales, dialog_calls.REPLIES)) == ["Error"]
    assert contents_of(drain(sales)) == ["Error", b"<fine/>"]


def test_an_invalid_early_message_is_refused_in_its_turn(sales: Database) -> None:
    create_strict_service(sales)
    deliver_messages(sales, DialogMessage(0, "//Xml", b"<a/>"), **STRICT)
    bad = DialogMessage(2, "//Xml", b"<a>")
    assert deliver_messages(sales, bad, **STRICT).error is None
    deliver_messages(sales, DialogMessage(1, "//Xml", b"<b/>"), **STRICT)
    refused = deliver_messages(sales, bad, **STRICT)
    assert refused.error is not None
    assert refused.error.code == -8430
    assert refused.acknowledged == 2
    assert contents_of(drain(sales)) == ["Error", b"<a/>", b"<b/>"]


def test_a_replayed_conversation_does_not_start_again(sales: Database) -> None:
    deliver_messages(sales, number(0))
    target = dialog_calls.handle_of(receive(sales))
    dialog_calls.end(sales, target)
    with database_context(sales).file.write() as connection:
        connection.execute("UPDATE ssb_conversation_endpoints SET state = 'CD'")
    assert deliver_messages(sales, number(0)).acknowledged == 1
    assert deliver_messages(sales, number(5)).acknowledged == 6
    assert drain(sales) == []
    with database_context(sales).file.read() as connection:
        assert connection.execute("SELECT count(*) FROM ssb_conversation_endpoints").get == 1


@pytest.mark.rule("P18")
def test_a_duplicate_is_acknowledged_again(sales: Database) -> None:
    assert deliver_messages(sales, number(0), number(1)).acknowledged == 2
    assert deliver_messages(sales, number(0)).acknowledged == 2
    assert contents_of(drain(sales)) == [b"0", b"1"]


def test_messages_of_unknown_conversations(sales: Database) -> None:
    """A sender to an unknown conversation gets an error, unless it only reports its end; an Error begins no conversation."""
    back: dict[str, Any] = {"is_initiator": False, "from_service_name": TARGET, "to_service_name": INITIATOR}
    gone = deliver_messages(sales, number(3), **back)
    assert gone.error is not None
    assert (gone.error.code, gone.acknowledged) == (-8462, 4)
    error = DialogMessage(3, ERROR, b"<Error/>")
    for message in (end_dialog(3), error):
        assert deliver_messages(sales, message, **back) == DeliveryOutcome(4)
    assert deliver_messages(sales, error) == DeliveryOutcome(4)
    with database_context(sales).file.read() as connection:
        assert connection.execute("SELECT count(*) FROM ssb_conversation_endpoints").get == 0


@pytest.mark.rule("R8")
def test_another_copy_of_the_service_cannot_answer(sales: Database) -> None:
    """A conversation is bound to the database that received its first message."""
    initiator, _ = dialog_calls.pair(sales)
    near = dialog_calls.endpoint(sales, initiator)
    assert near is not None
    back: dict[str, Any] = {
        "is_initiator": False,
        "conversation_id": near.conversation_id,
        "from_service_name": TARGET,
        "to_service_name": INITIATOR,
    }
    arrival = deliver_messages(sales, number(0), **back)
    assert arrival.error is not None
    assert arrival.error.code == -8495
    assert deliver_messages(sales, number(0), **{**back, "from_service_name": "//Other"}).error_number == 11222
    own: dict[str, Any] = {**back, "from_broker_instance": sales.service_broker_guid.bytes}
    assert deliver_messages(sales, number(0), **own) == DeliveryOutcome(1)
    assert contents_of(drain(sales, dialog_calls.REPLIES)) == [b"0"]


@pytest.fixture
def disabled(sales: Database) -> Iterator[Database]:
    sales.set_broker("DISABLE_BROKER")
    yield sales
    sales.set_broker("ENABLE_BROKER")


@pytest.mark.rule("I2")
def test_a_disabled_database_keeps_its_messages_and_creates_no_endpoint(disabled: Database) -> None:
    dialog = begin(disabled, b"waits")
    assert dialog_calls.waiting(disabled) == 1
    assert dialog_calls.state(disabled, dialog) == "CO"
    assert deliver_messages(disabled, number(0)).error_number == 28013


@pytest.mark.rule("P16")
def test_waiting_messages_keep_their_position(sales: Database) -> None:
    """A later message does not overtake a waiting one, although the queue is enabled by then."""
    dialog_calls.switch(sales, on=False)
    dialog = begin(sales, b"one")
    dialog_calls.switch(sales, on=True)
    with sales.transaction() as t:
        t.send(dialog, b"two")
        for table, count in (("ssb_transmission_queue", 2), ("ssb_queued_messages", 0)):
            assert t.connection.execute(f"SELECT count(*) FROM {table}").get == count
    instance_of(sales).run_due()
    assert dialog_calls.waiting(sales) == 0
    assert contents_of(drain(sales)) == [b"one", b"two"]


def test_a_message_for_an_ended_conversation_does_not_wait_for_its_queue(
    instance: Instance, clock: Clock, sales: Database
) -> None:
    """Otherwise it would create the endpoint again after 30 minutes, and that endpoint could never be ended."""
    dialog = begin(sales, b"first")
    with sales.transaction() as t:
        target = handle_of(t.receive(QUEUE))
    sales.alter_queue(QUEUE, status=False)
    send(sales, dialog, b"second")
    end(sales, target)
    for seconds in (5, 31 * 60):
        clock.advance(seconds=seconds)
        instance.run_due()
    sales.alter_queue(QUEUE, status=True)
    instance.run_due()
    end(sales, dialog)
    instance.run_due()
    assert instance.view("sys.conversation_endpoints", "Sales").num_rows == 0
    assert instance.view("sys.transmission_queue", "Sales").num_rows == 0


@pytest.mark.rule("P34")
def test_waiting_messages_enter_the_queue_without_being_held_in_memory(instance: Instance) -> None:
    shop, stock = sample_databases.shop(instance), sample_databases.stock(instance)
    stock.alter_queue(sample_databases.ORDERS, status=False)
    dialog = sample_databases.send(shop, b"first")
    for number in range(40):
        sample_databases.send(shop, bytes([number]) * (1 << 20), dialog=dialog)
    tracemalloc.start()
    stock.alter_queue(sample_databases.ORDERS, status=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20
    assert [body[0] for body in sample_databases.received(stock)[1:]] == list(range(40))
