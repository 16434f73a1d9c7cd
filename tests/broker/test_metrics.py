"""Metrics of an instance for Prometheus."""

from __future__ import annotations

import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import ssbroker
from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.broker.metrics import Metrics
from ssbroker.exceptions import MissingDependencyError
from ssbroker.protocol.events import ConnectionEvent, ConnectionStep, CorruptedMessage, MessageUndeliverable
from tests.broker import sample_databases
from tests.broker.conftest import Clock
from tests.broker.sample_databases import ORDERS, received, send
from tests.internals import instance_of

CONNECTIONS = "sys.dm_broker_connections"
SOME_ID = uuid.UUID(int=7)


@pytest.fixture
def metrics(instance: Instance) -> Iterator[Metrics]:
    made = Metrics(instance)
    yield made
    made.close()


def numbers(metrics: Metrics) -> dict[str, float]:
    """Returns all samples, by name and labels."""
    found = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={sample.labels[name]}" for name in sorted(sample.labels))
            found[sample.name + (f"[{labels}]" if labels else "")] = sample.value
    return found


def test_sends_receives_and_rollbacks_are_counted(instance: Instance, metrics: Metrics) -> None:
    sales, stock = sample_databases.shop(instance), sample_databases.stock(instance)
    send(sales, b"two chairs", b"a table")
    received(stock)
    with pytest.raises(ZeroDivisionError), stock.transaction() as t:
        t.receive(ORDERS)
        raise ZeroDivisionError
    found = numbers(metrics)
    assert found["ssbroker_sql_sends_total"] == 2
    assert found["ssbroker_sql_receives_total"] == 2
    assert found["ssbroker_enqueued_messages_total"] == 2
    assert found["ssbroker_enqueued_local_messages_total"] == 2
    assert found["ssbroker_enqueued_transport_messages_total"] == 0
    assert found["ssbroker_enqueued_transmissionq_messages_total"] == 2
    assert found["ssbroker_dequeued_transmissionq_messages_total"] == 2
    assert found["ssbroker_broker_transaction_rollbacks_total"] == 1


def test_messages_within_a_database_bypass_the_transmission_queue(sales: Database, metrics: Metrics) -> None:
    with sales.transaction() as t:
        t.send(t.begin_dialog("//Shop", "//Orders"), b"two chairs")
    found = numbers(metrics)
    assert found["ssbroker_enqueued_messages_total"] == 1
    assert found["ssbroker_enqueued_transmissionq_messages_total"] == 0


def test_messages_are_counted_by_priority(sales: Database, metrics: Metrics) -> None:
    instance_of(sales).execute("USE Sales; CREATE BROKER PRIORITY Urgent FOR CONVERSATION SET (PRIORITY_LEVEL = 9);")
    with sales.transaction() as t:
        t.send(t.begin_dialog("//Shop", "//Orders"), b"two chairs")
    found = numbers(metrics)
    assert found["ssbroker_enqueued_p9_messages_total"] == 1
    assert sum(found[f"ssbroker_enqueued_p{priority}_messages_total"] for priority in range(1, 11)) == 1


def test_dropped_messages_leave_the_transmission_queue_too(sales: Database, metrics: Metrics) -> None:
    with sales.transaction() as t:
        handle = t.begin_dialog("//Shop", "//Nowhere")
        t.send(handle, b"two chairs")
        t.send(handle, b"a table")
    assert numbers(metrics)["ssbroker_dequeued_transmissionq_messages_total"] == 0
    with sales.transaction() as t:
        t.end_conversation(handle, cleanup=True)
    assert numbers(metrics)["ssbroker_dequeued_transmissionq_messages_total"] == 2


def test_queues_and_waiting_messages_are_read_from_the_files(
    instance: Instance, sales: Database, clock: Clock, metrics: Metrics
) -> None:
    with sales.transaction() as t:
        t.send(t.begin_dialog("//Shop", "//Orders"), b"two chairs")
        t.send(t.begin_dialog("//Shop", "//Nowhere"), b"two chairs")
    clock.advance(seconds=90)
    sales.alter_queue("Replies", status=False)
    found = numbers(metrics)
    assert found["ssbroker_queue_messages[database=Sales,queue=dbo.Orders,status=ready]"] == 1
    assert found["ssbroker_queue_enabled[database=Sales,queue=dbo.Orders]"] == 1
    assert found["ssbroker_queue_enabled[database=Sales,queue=dbo.Replies]"] == 0
    assert found["ssbroker_conversations[database=Sales,state=CO]"] == 3
    waits = "[database=Sales,reason=9796,service=//Nowhere]"
    assert found[f"ssbroker_transmission_queue_messages{waits}"] == 1
    assert found[f"ssbroker_transmission_queue_oldest_seconds{waits}"] == 90
    sales.set_broker("DISABLE_BROKER")
    assert numbers(metrics)["ssbroker_database_enabled[database=Sales]"] == 0


def test_service_names_of_peers_create_a_limited_number_of_series(
    sales: Database, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Services with a series keep it; all others share one with their sum and oldest message."""
    monkeypatch.setattr("ssbroker.broker.metrics.SERVICES_MAX", 3)

    def waiting() -> dict[str, float]:
        name = "ssbroker_transmission_queue_messages["
        return {key.rpartition("=")[2][:-1]: value for key, value in numbers(metrics).items() if key.startswith(name)}

    with sales.transaction() as t:
        for number in range(2):
            t.send(t.begin_dialog("//Shop", f"//early {number}"), b"one")
    assert waiting() == {"//early 0": 1, "//early 1": 1}
    with sales.transaction() as t:
        for number in range(5):
            t.send(t.begin_dialog("//Shop", f"//late {number}"), b"one")
    found = waiting()
    assert (len(found), found["(others)"], sum(found.values())) == (4, 4, 7)
    assert found.items() >= {"//early 0": 1, "//early 1": 1}.items()
    assert waiting() == found


def test_names_may_contain_any_characters(instance: Instance, metrics: Metrics) -> None:
    name = 'shop "of\\ \n things'
    instance.create_database(name).create_queue('[a"b\\c]')
    found = numbers(metrics)
    assert found[f"ssbroker_database_enabled[database={name}]"] == 1


def test_events_are_counted_by_service_brokers_names(instance: Instance, metrics: Metrics) -> None:
    for event in (
        CorruptedMessage(at=0, conversation_id=SOME_ID),
        MessageUndeliverable(at=0, conversation_id=SOME_ID),
        MessageUndeliverable(at=0, conversation_id=SOME_ID),
        ConnectionEvent(at=0, connection_id=SOME_ID, step=ConnectionStep.CONNECT_FAILED, error=9754),
        ConnectionEvent(at=0, connection_id=SOME_ID, step=ConnectionStep.CONNECTED),
    ):
        instance_context(instance).events.emit(event)
    found = numbers(metrics)
    for name, expected in {
        "corrupted_messages": 1,
        "dropped_messages": 2,
        "forwarded_messages": 0,
        "forwarded_messages_discarded": 0,
        "connections_failed": 1,
        "tasks_started": 0,
    }.items():
        assert found[f"ssbroker_{name}_total"] == expected


def test_readers_of_queues_are_counted(sales: Database, instance: Instance, metrics: Metrics) -> None:
    def read(database: Database) -> None:
        received(database, ORDERS)

    sales.activate(ORDERS, read)
    with sales.transaction() as t:
        t.send(t.begin_dialog("//Shop", "//Orders"), b"two chairs")
    instance.run_due()
    assert numbers(metrics)["ssbroker_tasks_started_total"] == 1
    assert numbers(metrics)["ssbroker_tasks_aborted_total"] == 0


def test_messages_without_another_reader_are_counted(sales: Database, instance: Instance, metrics: Metrics) -> None:
    def order(body: bytes) -> None:
        with sales.transaction() as t:
            t.send(t.begin_dialog("//Shop", "//Orders"), body)

    def read(database: Database) -> None:
        with database.transaction() as t:
            bodies = t.receive(ORDERS)["message_body"].to_pylist()
        if bodies == [b"two chairs"]:
            order(b"a chair")
            order(b"a lamp")
        received(database, ORDERS)

    sales.activate(ORDERS, read)
    order(b"two chairs")
    assert numbers(metrics)["ssbroker_task_limit_reached_total"] == 0
    instance.run_due()
    assert numbers(metrics)["ssbroker_task_limit_reached_total"] == 2


def test_the_extra_is_named_if_the_library_is_missing(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("prometheus_client", "prometheus_client.core"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'ssbroker\[broker\]'"):
        Metrics(instance)


def test_after_close_nothing_is_counted(instance: Instance) -> None:
    metrics = Metrics(instance)
    metrics.close()
    instance_context(instance).events.emit(CorruptedMessage(at=0, conversation_id=SOME_ID))
    assert numbers(metrics)["ssbroker_corrupted_messages_total"] == 0


def test_the_age_of_the_oldest_ready_message_counts_from_its_arrival(
    instance: Instance, sales: Database, metrics: Metrics, clock: Clock
) -> None:
    """Also of messages that other processes have put, in each queue, and after others were received."""
    name = "ssbroker_queue_oldest_seconds[database=Sales,queue=dbo.%s]"
    queue = sales.queue("Jobs")
    assert numbers(metrics)[name % "Jobs"] == 0
    with Instance.open(instance.folder, clock=clock, background=False) as other:
        other.database("Sales").queue("Jobs").put(b"one")
    clock.advance(seconds=30)
    queue.put(b"two")
    assert (numbers(metrics)[name % "Jobs"], numbers(metrics)[name % "Orders"]) == (30, 0)
    clock.advance(seconds=5)
    with queue.take() as job:
        job.retry(after=600)
    assert numbers(metrics)[name % "Jobs"] == 5
    status = "ssbroker_queue_messages[database=Sales,queue=dbo.Jobs,status=%s]"
    assert [numbers(metrics)[status % each] for each in ("ready", "waiting", "leased")] == [1, 1, 0]
    clock.advance(seconds=600)
    with queue.take() as job:
        assert job.value == b"one"
    assert numbers(metrics)[name % "Jobs"] == 605
    with queue.take():
        pass
    assert numbers(metrics)[name % "Jobs"] == 0


def test_each_way_into_a_queue_keeps_the_time_of_arrival(
    instance: Instance, sales: Database, metrics: Metrics, clock: Clock
) -> None:
    """A first message, one of the fast path, many at once, and one from another database; until each has been received."""
    far = instance.create_database("Far")
    far.create_queue("Replies")
    far.create_service("//Far", queue="Replies")
    with sales.transaction() as t:
        dialog = t.begin_dialog("//Shop", "//Orders")
        t.send(dialog, b"the first")
    clock.advance(seconds=1)
    with sales.transaction() as t:
        t.send(dialog, b"on the fast path")
    clock.advance(seconds=1)
    with sales.transaction() as t:
        t.send_batch(pa.table({"conversation_handle": [dialog.bytes] * 2, "message_body": [b"many"] * 2}))
    clock.advance(seconds=1)
    with far.transaction() as t:
        t.send(t.begin_dialog("//Far", "//Orders"), b"from another database")
    clock.advance(seconds=10)
    ages = []
    while instance.view("dbo.Orders", database="Sales").num_rows:
        ages.append(numbers(metrics)["ssbroker_queue_oldest_seconds[database=Sales,queue=dbo.Orders]"])
        with sales.transaction() as t:
            t.receive("Orders", top=1)
    assert ages == [13, 12, 11, 11, 10]


def test_an_age_is_not_negative_after_the_clock_was_set_back(sales: Database, metrics: Metrics, clock: Clock) -> None:
    sales.queue("Jobs").put(b"one")
    numbers(metrics)
    clock.advance(seconds=-30)
    assert numbers(metrics)["ssbroker_queue_oldest_seconds[database=Sales,queue=dbo.Jobs]"] == 0


def test_leases_and_poisoned_queues_are_measured(instance: Instance, sales: Database, metrics: Metrics) -> None:
    queue = sales.queue("Jobs", retry_after=0)
    for number in range(3):
        queue.put(b"%d" % number)
    with pytest.raises(ZeroDivisionError), queue.take():
        raise ZeroDivisionError
    with queue.take():
        found = numbers(metrics)
        assert found["ssbroker_lease_groups[database=Sales,queue=dbo.Jobs,state=LEASED]"] == 1
        assert found["ssbroker_lease_attempts[database=Sales,queue=dbo.Jobs,state=LEASED]"] == 2
        assert found["ssbroker_lease_failures[database=Sales,queue=dbo.Jobs,state=LEASED]"] == 1
    assert numbers(metrics)["ssbroker_queue_poisoned[database=Sales,queue=dbo.Jobs]"] == 0
    for _ in range(5):
        with pytest.raises(ZeroDivisionError), queue.take():
            raise ZeroDivisionError
    found = numbers(metrics)
    assert found["ssbroker_queue_poisoned[database=Sales,queue=dbo.Jobs]"] == 1
    assert found["ssbroker_queue_enabled[database=Sales,queue=dbo.Jobs]"] == 0
    sales.alter_queue("Jobs", status=True)
    assert numbers(metrics)["ssbroker_queue_poisoned[database=Sales,queue=dbo.Jobs]"] == 0


def test_the_registry_of_an_application_collects_them(instance: Instance, sales: Database) -> None:
    registry = CollectorRegistry()
    collector = ssbroker.metrics(instance)
    registry.register(collector)
    sales.queue("Jobs").put(b"one")
    labels = {"database": "Sales", "queue": "dbo.Jobs", "status": "ready"}
    assert registry.get_sample_value("ssbroker_queue_messages", labels) == 1
    registry.unregister(collector)
    collector.close()


@pytest.mark.skipif(sys.platform == "win32", reason="the folder of an open instance cannot be moved")
def test_a_folder_that_was_moved_leaves_the_metrics_of_the_application(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception of one collector would end the whole scrape."""
    registry = CollectorRegistry()
    orders = Counter("orders", "Orders of the application.", registry=registry)
    with Instance.create(tmp_path / "shop", name="shop", background=False) as instance:
        instance.queue("Jobs").put(b"two chairs")
        registry.register(ssbroker.metrics(instance))
        orders.inc()
        (tmp_path / "shop").rename(tmp_path / "moved")
        for _ in range(2):
            lines = generate_latest(registry).decode().splitlines()
            assert "orders_total 1.0" in lines
            assert "ssbroker_enqueued_messages_total 1.0" in lines
            assert [line for line in lines if line.startswith("ssbroker_database_enabled")] == [
                'ssbroker_database_enabled{database="msdb"} 0.0'
            ]
            assert 'ssbroker_database_writable{database="msdb"} 0.0' in lines
        (record,) = caplog.records
        assert "shop: metrics of the databases are missing: " in record.getMessage()
        (tmp_path / "moved").rename(tmp_path / "shop")
        assert 'ssbroker_database_enabled{database="Queues"} 1.0' in generate_latest(registry).decode().splitlines()


def test_a_closed_instance_has_no_metrics() -> None:
    registry = CollectorRegistry()
    orders = Counter("orders", "Orders of the application.", registry=registry)
    with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
        registry.register(ssbroker.metrics(instance))
        instance.close()
        orders.inc()
        text = generate_latest(registry).decode()
        assert "orders_total 1.0" in text
        assert "ssbroker" not in text
