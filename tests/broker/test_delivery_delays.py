"""The reasons for which a message waits, its `transmission_status`, and the changes that deliver it (R17, R18, R33, R34, P34, I2)."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ssbroker.broker import local_delivery
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance
from ssbroker.protocol.events import Event, MessageClassify
from tests.broker import sample_databases
from tests.broker.conftest import Clock
from tests.broker.sample_databases import ORDERS, REPLIES, SHOP, STOCK, received, send, states, statuses, waiting
from tests.guards.repository import ROOT


@pytest.fixture
def sales(instance: Instance) -> Database:
    return sample_databases.shop(instance)


@pytest.fixture
def stock(instance: Instance) -> Database:
    return sample_databases.stock(instance)


@pytest.mark.rule("R18", "R17")
def test_a_new_service_gets_waiting_messages(instance: Instance, sales: Database) -> None:
    """A missing service is not an error, and any change causes an immediate retry."""
    send(sales, b"one", b"two")
    assert statuses(sales) == {"9796"}
    stock = sample_databases.stock(instance)
    instance.run_due()
    assert received(stock) == [b"one", b"two"]
    assert waiting(sales) == []


@pytest.mark.rule("R18")
def test_changes_of_other_processes_are_seen_at_the_next_check(
    instance: Instance, sales: Database, clock: Clock
) -> None:
    """This process is not notified, and the retry is not due yet."""
    send(sales, b"one")
    instance.run_due()
    with Instance.open(instance.folder, clock=clock, background=False) as other:
        stock = sample_databases.stock(other)
        instance.run_due()
        assert received(stock) == [b"one"]


@pytest.mark.rule("P16")
@pytest.mark.parametrize("dies_in", ["deliver_to", "acknowledge"])
def test_messages_of_a_killed_process_are_delivered_once_by_another(
    instance: Instance, sales: Database, stock: Database, clock: Clock, dies_in: str
) -> None:
    """Killed before or after the commit of the target, while the other process keeps checking."""
    instance.run_due()
    command = [sys.executable, "-m", "tests.system.undelivered_process", str(instance.folder), dies_in]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert len(waiting(sales)) == 2
    for _ in range(2):  # the first check finds the messages; their process might still continue
        clock.advance(seconds=4)
        instance.run_due()
    assert waiting(sales) == []
    assert received(stock) == [b"one", b"two"]


@pytest.mark.rule("R17")
def test_a_new_route_is_used_for_waiting_messages(instance: Instance, sales: Database, stock: Database) -> None:
    """Each delivery uses the current routes."""
    sales.drop_route("AutoCreatedLocal")
    send(sales, b"one")
    assert statuses(sales) == {"9750"}
    sales.create_route("Stock", address="LOCAL", service_name=STOCK)
    instance.run_due()
    assert received(stock) == [b"one"]


@pytest.mark.rule("R33", "I2")
def test_a_disabled_database_is_not_found_until_it_is_enabled(
    instance: Instance, sales: Database, stock: Database
) -> None:
    stock.set_broker("DISABLE_BROKER")
    send(sales, b"one")
    assert statuses(sales) == {"28012"}
    assert "ALTER DATABASE [Stock] SET ENABLE_BROKER" in waiting(sales)[0].transmission_status
    stock.set_broker("ENABLE_BROKER")
    instance.run_due()
    assert received(stock) == [b"one"]


@pytest.mark.rule("R33", "R8", "R31")
def test_a_bound_conversation_waits_for_its_own_database(instance: Instance, sales: Database, stock: Database) -> None:
    """Another copy of the service does not take over."""
    dialog = send(sales, b"one")
    other = sample_databases.stock(instance, "Stock2")
    stock.set_broker("DISABLE_BROKER")
    send(sales, b"two", dialog=dialog)
    assert statuses(sales) == {"28012"}
    stock.set_broker("ENABLE_BROKER")
    instance.run_due()
    assert (received(stock), received(other)) == ([b"one", b"two"], [])


@pytest.mark.rule("R34", "I2")
def test_a_disabled_database_keeps_its_messages(instance: Instance, sales: Database, stock: Database) -> None:
    sales.set_broker("DISABLE_BROKER")
    send(sales, b"one")
    assert statuses(sales) == {"9791"}
    sales.set_broker("ENABLE_BROKER")
    instance.run_due()
    assert received(stock) == [b"one"]


@pytest.mark.rule("R34", "I2")
def test_a_disabled_database_does_not_deliver_to_itself(instance: Instance, sales: Database) -> None:
    """A disabled database receives nothing, even directly into its own queue."""
    sales.create_queue(ORDERS)
    sales.create_service(STOCK, queue=ORDERS)
    sales.set_broker("DISABLE_BROKER")
    send(sales, b"one")
    assert (statuses(sales), received(sales)) == ({"9791"}, [])
    sales.set_broker("ENABLE_BROKER")
    instance.run_due()
    assert received(sales) == [b"one"]


@pytest.mark.rule("R34")
def test_a_database_that_is_disabled_during_a_delivery_does_not_deliver_to_itself(
    instance: Instance, sales: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the decision for the conversation, which exists already, and the transaction that delivers."""
    sales.create_queue(ORDERS)
    sales.create_service(STOCK, queue=ORDERS)
    dialog = send(sales, b"one")
    sales.alter_queue(ORDERS, status=False)
    send(sales, b"two", dialog=dialog)
    sales.alter_queue(ORDERS, status=True)
    read = local_delivery.read_batches

    def disable(*args: Any) -> Any:
        sales.set_broker("DISABLE_BROKER")
        return read(*args)

    monkeypatch.setattr(local_delivery, "read_batches", disable)
    instance.run_due()
    monkeypatch.undo()
    assert len(waiting(sales)) == 1
    sales.set_broker("ENABLE_BROKER")
    instance.run_due()
    assert received(sales) == [b"one", b"two"]


@pytest.mark.rule("P34", "P14", "P16")
def test_messages_for_a_disabled_queue_enter_it_once_it_is_enabled(sales: Database, stock: Database) -> None:
    """They are stored in the receiving database, so the sender removes them."""
    stock.alter_queue(ORDERS, status=False)
    dialog = send(sales, b"one", b"two")
    send(sales, b"three", dialog=dialog)
    assert waiting(sales) == []
    assert [row.is_inbound for row in waiting(stock)] == [1, 1, 1]
    assert statuses(stock) == {"11219"}
    assert "ALTER QUEUE [dbo].[Orders] WITH STATUS = ON" in waiting(stock)[0].transmission_status
    stock.alter_queue(ORDERS, status=True)
    assert waiting(stock) == []
    assert received(stock) == [b"one", b"two", b"three"]


@pytest.mark.rule("P34")
def test_a_queue_enabled_by_another_process_is_found(
    instance: Instance, sales: Database, stock: Database, clock: Clock
) -> None:
    stock.alter_queue(ORDERS, status=False)
    send(sales, b"one")
    with database_context(stock).file.write() as connection:
        connection.execute("UPDATE ssb_queues SET is_receive_enabled = 1, is_enqueue_enabled = 1")
        connection.execute("UPDATE ssb_database SET catalog_version = catalog_version + 1")
    instance.run_due()
    assert received(stock) == [b"one"]


@pytest.mark.rule("P34")
@pytest.mark.parametrize("own", [True, False])
def test_the_status_contains_a_runnable_command_to_enable_the_queue(
    instance: Instance, sales: Database, *, own: bool
) -> None:
    """Within a database the message waits at the sender; between databases it waits at the receiver (P34)."""
    target = sales if own else instance.create_database("Odd")
    target.create_queue("[dbo].[In]]Box]", status=False)
    target.create_service(STOCK, queue="[dbo].[In]]Box]")
    send(sales, b"one")
    (row,) = waiting(target)
    found = re.search(r"USE .* ALTER QUEUE .* WITH STATUS = ON;", row.transmission_status)
    assert found is not None
    instance.execute(found[0])
    instance.run_due()
    assert received(target, "[dbo].[In]]Box]") == [b"one"]


def test_a_message_for_a_disabled_queue_of_the_same_database_waits_at_the_sender(
    instance: Instance, sales: Database
) -> None:
    sales.create_queue(ORDERS, status=False)
    sales.create_service(STOCK, queue=ORDERS)
    dialog = send(sales, b"one")
    send(sales, b"two", dialog=dialog)
    assert statuses(sales) == {"11219"}
    assert "ALTER QUEUE [dbo].[Orders] WITH STATUS = ON" in waiting(sales)[0].transmission_status
    sales.alter_queue(ORDERS, status=True)
    with sales.transaction() as t:
        t.send(dialog, b"three")
        assert t.receive(ORDERS).num_rows == 0, "later messages wait behind earlier ones"
    instance.run_due()
    assert received(sales) == [b"one", b"two", b"three"]


@pytest.mark.rule("R31")
def test_messages_wait_for_a_detached_database(
    instance: Instance, sales: Database, stock: Database, tmp_path: Path
) -> None:
    dialog = send(sales, b"one")
    file = stock.path
    instance.detach_database("Stock")
    send(sales, b"two", dialog=dialog)
    assert statuses(sales) == {"9795"}
    attached = instance.attach_database("Stock", file)
    instance.run_due()
    assert received(attached) == [b"one", b"two"]


def test_a_message_refused_by_the_target_returns_an_error(sales: Database, stock: Database) -> None:
    stock.alter_service(STOCK, drop_contracts=["DEFAULT"])
    send(sales, b"one", b"two")
    assert waiting(sales) == []
    assert (states(sales), states(stock)) == (["ER"], [])
    (body,) = received(sales, REPLIES)
    assert b"<Code>-8408</Code>" in body


def test_an_end_is_delivered_and_acknowledged_between_databases(sales: Database, stock: Database) -> None:
    dialog = send(sales, b"one")
    with sales.transaction() as t:
        t.end_conversation(dialog)
    assert (states(sales), states(stock)) == ([], ["DI"])
    with stock.transaction() as t:
        t.end_conversation(t.receive(ORDERS)["conversation_handle"][0].as_py())
    assert states(stock) == ["CD"]


def test_an_end_waits_with_the_messages_before_it(instance: Instance, sales: Database) -> None:
    dialog = send(sales, b"one")
    with sales.transaction() as t:
        t.end_conversation(dialog)
    assert (states(sales), len(waiting(sales))) == (["DO"], 2)
    stock = sample_databases.stock(instance)
    instance.run_due()
    assert (states(sales), waiting(sales)) == ([], [])
    assert sample_databases.received_types(stock) == ["DEFAULT", "EndDialog"]


def test_a_status_is_cleared_once_nothing_blocks_the_message(instance: Instance, sales: Database) -> None:
    """Also in a conversation that was bound before."""
    stock = sample_databases.stock(instance)
    dialog = send(sales, b"one")
    stock.set_broker("DISABLE_BROKER")
    send(sales, b"two", dialog=dialog)
    stock.set_broker("ENABLE_BROKER")
    instance.run_due()
    with sales.transaction() as t:
        assert t.transmission_status(dialog) == ""


def test_each_routing_emits_an_event_with_its_reason(instance: Instance, sales: Database) -> None:
    emitted: list[Event] = []
    instance.subscribe(emitted.append, MessageClassify)
    send(sales, b"one")
    sample_databases.stock(instance)
    instance.run_due()
    sales.create_route("Far", address="TCP://far:4022", service_name="//Far")
    send(sales, b"one", to="//Far")
    assert [(each.classification, each.reason) for each in emitted if isinstance(each, MessageClassify)] == [
        ("Delayed", "service_not_found"),
        ("Local", "matched"),
        ("Remote", "matched"),
    ]


@pytest.mark.rule("P33")
def test_a_conversation_within_a_database_needs_no_transmission_queue(sales: Database) -> None:
    send(sales, b"one", to=SHOP)
    assert (waiting(sales), received(sales, REPLIES)) == ([], [b"one"])
