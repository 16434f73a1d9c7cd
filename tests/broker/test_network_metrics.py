"""Metrics of a served instance's connections and dialogs with other instances."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ssbroker.broker.instance import Instance
from ssbroker.broker.metrics import Metrics
from ssbroker.broker.network.instance_server import Server
from ssbroker.protocol.events import ConnectionEvent, ConnectionStep, Event
from tests.broker.network.recording_endpoints import HOST, Authority, RecordingEndpoint
from tests.broker.network.shop_and_bank import ShopAndBank, shop_and_bank_pair
from tests.broker.test_metrics import numbers
from tests.protocol.wire.links import numbered


@pytest.fixture
def shop_and_bank(tmp_path: Path) -> Iterator[ShopAndBank]:
    yield from shop_and_bank_pair(tmp_path)


def test_fragments_are_counted_by_priority(instance: Instance) -> None:
    rows = numbered(5)
    at = rows.schema.get_field_index("priority")
    rows = rows.set_column(at, rows.schema.field(at), pa.array([3, 10, 3, 1, 3], pa.int8()))
    metrics = Metrics(instance)
    with instance.serve(port=0, allow_unencrypted=True) as server, RecordingEndpoint("bank") as bank:
        server.endpoint.send(bank.address, rows)
        bank.wait_for(lambda: len(bank.numbers()) == 5)
        found = numbers(metrics)
    expected = {1: 1, 3: 3, 10: 1}
    assert {priority: found[f"ssbroker_message_fragment_p{priority}_sends_total"] for priority in range(1, 11)} == {
        priority: expected.get(priority, 0) for priority in range(1, 11)
    }
    assert found["ssbroker_connections_refused_total"] == 0
    assert numbers(metrics)["ssbroker_message_fragment_p3_sends_total"] == 0
    metrics.close()


def _exchange_and_cut(instance: Instance, server: Server, *, received: int, events: list[Event]) -> None:
    """Sends five fragments, receives three for a total of `received`, and cuts the connection; `events` then starts empty."""
    with RecordingEndpoint("bank") as bank:
        server.endpoint.send(bank.address, numbered(5))
        bank.wait_for(lambda: len(bank.numbers()) == 5)
        bank.endpoint.send(f"TCP://{HOST}:{server.port}", numbered(3))
        bank.wait_for(lambda: server.endpoint.traffic["total_fragments_received"] == received)
        bank.wait_for(lambda: instance.view("sys.dm_broker_connections").num_rows == len(bank.connections()) == 1)
        events.clear()
        bank.endpoint._call(bank.endpoint._manager.cut)
        bank.wait_for(lambda: not instance.view("sys.dm_broker_connections").num_rows)


def test_bytes_of_a_connection_that_broke_between_scrapes_count(instance: Instance) -> None:
    """The connection sent no GOODBYE, and no scrape happened while it was open."""
    metrics = Metrics(instance)
    events: list[Event] = []
    instance.subscribe(events.append, ConnectionEvent)
    with instance.serve(port=0, allow_unencrypted=True) as server:
        for received in (3, 6):
            _exchange_and_cut(instance, server, received=received, events=events)
        found = numbers(metrics)
    assert [
        event for event in events if isinstance(event, ConnectionEvent) and event.step is ConnectionStep.CLOSING
    ] == []
    assert found["ssbroker_open_connections"] == 0
    assert found["ssbroker_message_fragment_sends_total"] == 10
    assert sum(found[f"ssbroker_message_fragment_p{priority}_sends_total"] for priority in range(1, 11)) == 10
    assert found["ssbroker_message_fragment_receives_total"] == 6
    assert found["ssbroker_transport_send_bytes_total"] > 0
    assert found["ssbroker_transport_receive_bytes_total"] > 0
    metrics.close()


def test_stored_and_loaded_transmission_objects_are_counted(shop_and_bank: ShopAndBank) -> None:
    metrics = Metrics(shop_and_bank.shop)
    dialog = shop_and_bank.send(b"two chairs")
    shop_and_bank.network.settle()
    shop_and_bank.network.clock.advance(seconds=60)
    shop_and_bank.network.settle()
    found = numbers(metrics)
    assert (found["ssbroker_tran_object_writes_total"], found["ssbroker_tran_object_gets_total"]) == (1, 0)
    assert found["ssbroker_tran_object_write_batches_total"] == 1
    assert found["ssbroker_tran_object_write_seconds_total"] > 0
    assert found["ssbroker_tran_objects_marked_dirty_total"] == 1
    for _ in range(3):
        shop_and_bank.send(b"a table", dialog=dialog)
        shop_and_bank.network.settle()
    assert numbers(metrics)["ssbroker_tran_object_gets_total"] == 1
    for _ in range(2):
        shop_and_bank.network.clock.advance(seconds=60)
        shop_and_bank.network.settle()
    found = numbers(metrics)
    assert (found["ssbroker_tran_object_writes_total"], found["ssbroker_tran_objects_marked_dirty_total"]) == (2, 2)
    metrics.close()


def test_messages_from_other_instances_are_counted_separately(shop_and_bank: ShopAndBank) -> None:
    """Received messages and stored fragments at the target; acknowledged messages at the sender."""
    at_shop, at_bank = Metrics(shop_and_bank.shop), Metrics(shop_and_bank.bank)
    shop_and_bank.send(bytes(9 << 20))
    shop_and_bank.network.settle()
    found = numbers(at_bank)
    assert found["ssbroker_enqueued_transport_messages_total"] == 1
    assert found["ssbroker_enqueued_local_messages_total"] == 0
    assert 0 < found["ssbroker_enqueued_transport_msg_frags_total"] <= 288
    assert numbers(at_shop)["ssbroker_dequeued_transmissionq_messages_total"] == 1
    at_shop.close()
    at_bank.close()


def test_the_expiry_of_the_certificate_is_shown(tmp_path: Path, instance: Instance) -> None:
    metrics = Metrics(instance)
    authority = Authority(tmp_path / "certificates")
    with instance.serve(port=0, trust=authority.trust("shop", "bank")):
        assert numbers(metrics)["ssbroker_certificate_expiry_timestamp_seconds"] == int(
            authority.validity.not_after.timestamp()
        )
    with instance.serve(port=0, allow_unencrypted=True):
        assert "ssbroker_certificate_expiry_timestamp_seconds" not in numbers(metrics)
    metrics.close()


def test_unwritten_bytes_are_shown(instance: Instance) -> None:
    metrics = Metrics(instance)
    with socket.create_server((HOST, 0)) as silent, instance.serve(port=0, allow_unencrypted=True) as server:
        server.endpoint.send(f"TCP://{HOST}:{silent.getsockname()[1]}", numbered(5))
        found = numbers(metrics)
        assert found["ssbroker_pending_msg_frags_for_send_io"] == 5
        assert found["ssbroker_pending_bytes_for_send_io"] > 0
    metrics.close()
