"""Delivery between the databases of an instance, from SEND to the queue (P16, P17, P33)."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from ssbroker.broker import local_delivery
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.delivery import OutgoingConversation
from ssbroker.broker.delivery_schedule import SenderId
from ssbroker.broker.dialogs import arrival
from ssbroker.broker.dialogs.message import DeliveryOutcome, DialogMessage, MessageHeader
from ssbroker.broker.dialogs.transmission_status import TransmissionStatus
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.broker.local_delivery import DeliveryResult, SenderUpdates
from ssbroker.broker.unit_of_work import Work
from ssbroker.ddl.statements import BrokerOption
from ssbroker.protocol.events import Event, MessageClassify
from ssbroker.store import conversation_endpoints
from tests.broker import sample_databases
from tests.broker.conftest import Clock
from tests.broker.sample_databases import ORDERS, REPLIES, SHOP, STOCK, received, send, statuses, waiting
from tests.internals import background_of


class Crash(BaseException):
    """Simulates the end of the process."""


@pytest.fixture
def sales(instance: Instance) -> Database:
    return sample_databases.shop(instance)


@pytest.fixture
def stock(instance: Instance) -> Database:
    return sample_databases.stock(instance)


@pytest.fixture
def locked(stock: Database) -> Iterator[threading.Event]:
    """Another writer holds Stock's lock until the event is set."""
    database_context(stock).file.lock_timeout = 0.01
    is_locked, may_release = threading.Event(), threading.Event()

    def write() -> None:
        with database_context(stock).file.write():
            is_locked.set()
            may_release.wait(30.0)

    writer = threading.Thread(target=write)
    writer.start()
    assert is_locked.wait(30.0)
    yield may_release
    may_release.set()
    writer.join(30.0)


def test_the_message_is_delivered_when_the_transaction_ends(sales: Database, stock: Database) -> None:
    send(sales, b"two chairs")
    assert waiting(sales) == []
    assert received(stock) == [b"two chairs"]


def test_rolled_back_messages_are_not_delivered(sales: Database, stock: Database) -> None:
    with pytest.raises(ZeroDivisionError), sales.transaction() as t:
        t.send(t.begin_dialog(SHOP, STOCK), b"two chairs")
        raise ZeroDivisionError
    assert received(stock) == []


def test_a_reply_is_delivered(sales: Database, stock: Database) -> None:
    send(sales, b"two chairs")
    with stock.transaction() as t:
        t.send(t.receive(ORDERS)["conversation_handle"][0].as_py(), b"done")
    assert received(sales, REPLIES) == [b"done"]


def test_a_long_conversation_arrives_complete_and_in_order(sales: Database, stock: Database) -> None:
    bodies = [str(number).encode() for number in range(local_delivery.MESSAGES_MAX_EACH * 2 + 7)]
    send(sales, *bodies)
    assert waiting(sales) == []
    assert received(stock) == bodies


def test_bodies_beyond_the_limit_of_a_transaction_arrive_too(sales: Database, stock: Database) -> None:
    bodies = [bytes([number]) * (local_delivery.BYTES_MAX // 2) for number in range(5)]
    send(sales, *bodies)
    assert received(stock) == bodies


@pytest.mark.rule("P16", "P18")
@pytest.mark.parametrize("crashes_in", ["deliver_to", "acknowledge"])
def test_a_crash_before_and_after_the_targets_commit_delivers_once(
    instance: Instance, sales: Database, stock: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch, crashes_in: str
) -> None:
    """The sender's file keeps the message until the target's file has it; then its sequence number makes it a duplicate."""

    def crash(*_args: object, **_named: object) -> list[DeliveryResult]:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(local_delivery, crashes_in, crash)
        with pytest.raises(Crash):
            send(sales, b"one", b"two")
    assert len(waiting(sales)) == 2
    instance.close()
    with Instance.open(instance.folder, clock=clock, background=False) as opened:
        opened.run_due()
        assert waiting(opened.database("Sales")) == []
        assert received(opened.database("Stock")) == [b"one", b"two"]


def test_a_reused_endpoint_id_removes_no_messages(sales: Database, stock: Database) -> None:
    """Between reading and acknowledging, the conversation is cleaned up, and a new one gets its endpoint id."""
    sales.set_broker("DISABLE_BROKER")
    first = send(sales, b"one")
    with database_context(sales).file.read() as connection:
        endpoint_id = connection.execute("SELECT endpoint_id FROM ssb_conversation_endpoints").get
    batches, _ = local_delivery.read_batches(database_context(sales), [endpoint_id])
    broker_instance = stock.service_broker_guid.bytes
    delivered = local_delivery.deliver_to(database_context(stock), batches, broker_instance=broker_instance)
    with sales.transaction() as t:
        t.end_conversation(first, cleanup=True)
    send(sales, b"another")
    updates = SenderUpdates(database_context(sales))
    updates.add_delivered(delivered, broker_instance)
    assert updates.write(None)
    assert len(waiting(sales)) == 1


@pytest.mark.rule("R31", "R33")
@pytest.mark.parametrize("option", ["DISABLE_BROKER", "NEW_BROKER"])
def test_a_database_that_changed_after_routing_receives_nothing(
    sales: Database, stock: Database, option: BrokerOption
) -> None:
    sales.set_broker("DISABLE_BROKER")
    send(sales, b"one")
    with database_context(sales).file.read() as connection:
        batches, _ = local_delivery.read_batches(
            database_context(sales), conversation_endpoints.deliverable_endpoints(connection)
        )
    routed_to = stock.service_broker_guid.bytes
    stock.set_broker(option)
    assert local_delivery.deliver_to(database_context(stock), batches, broker_instance=routed_to) == []
    stock.set_broker("ENABLE_BROKER")
    assert received(stock) == []


@pytest.mark.parametrize(("is_honored", "order"), [(True, [b"high", b"low"]), (False, [b"low", b"high"])])
def test_the_highest_priority_is_delivered_first_if_priorities_are_honored(
    instance: Instance, sales: Database, *, is_honored: bool, order: list[bytes]
) -> None:
    """In one transaction of the target, in the order of the senders' priorities."""
    sales.set_honor_broker_priority(is_on=is_honored)
    send(sales, b"low")
    sales.create_broker_priority("High", local_service=SHOP, level=9)
    send(sales, b"high")
    sample_databases.stock(instance)
    instance.run_due()
    assert [row["message_body"] for row in instance.view(ORDERS, database="Stock").to_pylist()] == order


@pytest.mark.rule("R8")
def test_after_the_first_acknowledgement_all_messages_go_to_the_same_database(
    instance: Instance, sales: Database
) -> None:
    """Even if routing would now also pick new copies of the service."""
    copies = [sample_databases.stock(instance, f"Stock{number}") for number in range(3)]
    dialogs = [send(sales, b"first") for _ in range(30)]
    counts = [len(received(copy)) for copy in copies]
    assert sum(counts) == 30
    assert all(counts), "the copies share the load (R24)"
    sample_databases.stock(instance, "Stock3")
    for dialog in dialogs:
        send(sales, b"second", dialog=dialog)
    assert [len(received(copy)) for copy in copies] == counts


def test_three_databases_in_a_ring(instance: Instance) -> None:
    names = ("A", "B", "C")
    databases = [instance.create_database(name) for name in names]
    for database in databases:
        database.create_queue(ORDERS)
        database.create_service(f"//{database.name}", queue=ORDERS)
    for database, next_database in zip(databases, (*databases[1:], databases[0]), strict=True):
        with database.transaction() as t:
            for number in range(10):
                t.send(t.begin_dialog(f"//{database.name}", f"//{next_database.name}"), b"%d" % number)
    for database in databases:
        for _ in range(10):
            with database.transaction() as t:
                t.send(t.receive(ORDERS, top=1)["conversation_handle"][0].as_py(), b"back")
    assert [received(database) for database in databases] == [[b"back"] * 10] * 3
    assert [waiting(database) for database in databases] == [[]] * 3


def test_a_thousand_conversations_each_get_their_answers(sales: Database, stock: Database) -> None:
    with sales.transaction() as t:
        for number in range(1_000):
            t.send(t.begin_dialog(SHOP, STOCK), b"%d" % number)
    with stock.transaction() as t:
        while (table := t.receive(ORDERS)).num_rows:
            t.send(table["conversation_handle"][0].as_py(), table["message_body"][0].as_py())
    assert sorted(received(sales, REPLIES), key=int) == [b"%d" % number for number in range(1_000)]
    assert waiting(sales) == waiting(stock) == []


@pytest.mark.rule("P17")
def test_delivery_is_retried_if_the_target_is_locked(
    instance: Instance, sales: Database, stock: Database, clock: Clock, locked: threading.Event
) -> None:
    send(sales, b"two chairs")
    assert statuses(sales) == {"9749"}
    locked.set()
    clock.advance(seconds=4.5)
    instance.run_due()
    assert received(stock) == [b"two chairs"]
    assert statuses(sales) == set()


@pytest.mark.rule("P17")
def test_a_reused_endpoint_id_has_no_retry_wait(sales: Database, stock: Database) -> None:
    """New endpoints get the ids of removed ones."""
    lost = send(sales, b"lost", to="//Nobody")
    with sales.transaction() as t:
        t.end_conversation(lost, cleanup=True)
    send(sales, b"found")
    assert received(stock) == [b"found"]


@pytest.mark.rule("P17")
def test_an_endpoint_id_reused_during_delivery_has_no_retry_wait(
    instance: Instance, sales: Database, stock: Database, clock: Clock
) -> None:
    """A new endpoint gets the id and sends before the attempt ends."""

    def replace_dialog(_: Event) -> None:
        stop()
        with sales.transaction() as t:
            t.end_conversation(lost, cleanup=True)
        send(sales, b"found")

    lost = send(sales, b"lost", to="//Nobody")
    stop = instance.subscribe(replace_dialog, MessageClassify)
    clock.advance(seconds=5)
    instance.run_due()
    assert received(stock) == [b"found"]
    assert waiting(sales) == []


@pytest.mark.rule("P17")
def test_retry_waits_are_4_8_16_32_64_seconds_with_jitter(instance: Instance, sales: Database, clock: Clock) -> None:
    tries: list[Event] = []
    instance.subscribe(tries.append, MessageClassify)
    send(sales, b"two chairs")
    for wait in (4, 8, 16, 32, 64, 64):
        before = len(tries)
        next_attempt = instance.run_due()
        assert next_attempt is not None
        assert timedelta(seconds=wait * 0.875) <= next_attempt - clock() <= timedelta(seconds=wait * 1.125)
        assert len(tries) == before, "no delivery is tried before its time"
        clock.now = next_attempt
        instance.run_due()
        assert len(tries) == before + 1


def test_delivery_within_a_transaction_of_the_target_does_not_deadlock(
    instance: Instance, sales: Database, stock: Database
) -> None:
    with stock.transaction() as t:
        t.connection.execute("CREATE TABLE chairs (number INTEGER)")
        send(sales, b"two chairs")
        assert len(waiting(sales)) == 1
    instance.run_due()
    assert received(stock) == [b"two chairs"]


def test_a_failing_conversation_does_not_delay_others(
    sales: Database, stock: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any failure is a bug in the library, and is logged."""

    def arrive(
        work: Work, header: MessageHeader, messages: Sequence[DialogMessage], *, park_if_disabled: bool
    ) -> DeliveryOutcome:
        if messages[0].message_body == b"1":
            raise ZeroDivisionError("no number")
        return arrival.arrive(work, header, messages, park_if_disabled=park_if_disabled)

    monkeypatch.setattr(local_delivery, "arrive", arrive)
    with sales.transaction() as t:
        for number in range(3):
            t.send(t.begin_dialog(SHOP, STOCK), b"%d" % number)
    assert received(stock) == [b"0", b"2"]
    (row,) = waiting(sales)
    assert row.transmission_status.startswith("9798: the message could not be delivered: ZeroDivisionError: no number.")


def test_a_failing_conversation_does_not_delay_other_databases(
    instance: Instance,
    sales: Database,
    stock: Database,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is the only one for its own database, and is retried."""

    def arrive(work: Work, *args: Any, **named: Any) -> DeliveryOutcome:
        if work.database == "Stock":
            raise ZeroDivisionError("no number")
        return arrival.arrive(work, *args, **named)

    other = instance.create_database("Other")
    other.create_queue(ORDERS)
    other.create_service("//Other", queue=ORDERS)
    with monkeypatch.context() as patched:
        patched.setattr(local_delivery, "arrive", arrive)
        with sales.transaction() as t:
            t.send(t.begin_dialog(SHOP, STOCK), b"two chairs")
            t.send(t.begin_dialog(SHOP, "//Other"), b"a table")
    assert received(other) == [b"a table"]
    assert statuses(sales) == {"9798"}
    assert "ZeroDivisionError: no number" in caplog.text
    clock.advance(seconds=5)
    instance.run_due()
    assert received(stock) == [b"two chairs"]


def test_a_detached_database_leaves_nothing_behind(instance: Instance, sales: Database, stock: Database) -> None:
    send(sales, b"two chairs")
    instance.run_due()
    detached, delivering = database_context(sales).database_id, background_of(instance).delivery
    assert detached in delivering._last_scans
    assert detached in delivering._delivery_locks
    instance.detach_database("Sales")
    instance.run_due()
    left = {each.database_id for each in instance_context(instance).databases}
    assert database_context(stock).database_id in left
    assert delivering._last_scans.keys() == left
    assert delivering._delivery_locks.keys() <= left


def test_remote_messages_wait_with_a_status_until_there_is_a_transport(instance: Instance, sales: Database) -> None:
    """A recording transport takes the place of the network."""
    sales.create_route("Far", address="TCP://far:4022", service_name="//Far")
    dialog = send(sales, b"two chairs", to="//Far")
    assert statuses(sales) == {"9748"}
    transported: list[OutgoingConversation] = []

    class RecordingTransport:
        def send_waiting(self, conversations: Sequence[OutgoingConversation]) -> dict[int, TransmissionStatus]:
            transported.extend(conversations)
            return {}

        def send_more(
            self, database: DatabaseContext, endpoint_ids: Collection[int], *, messages: int
        ) -> Collection[int]:
            return endpoint_ids

        def forget(self, sender: SenderId) -> None:
            pass

    background_of(instance).delivery.transport = RecordingTransport()
    send(sales, b"and a table", to="//Far")
    assert [(each.database.name, each.decision.next_hop_address) for each in transported] == [
        ("Sales", "TCP://far:4022")
    ]
    instance_context(instance).listener.changed(database_context(sales))
    instance.run_due()
    assert len({each.endpoint_id for each in transported}) == 2
    assert statuses(sales) == {""}, "sent, and not yet acknowledged"
    with sales.transaction() as t:
        t.end_conversation(dialog, cleanup=True)
