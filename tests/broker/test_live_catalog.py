"""The catalog of a running instance."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.store.objects import Objects
from tests.broker.test_database_lifecycle import copy_of


def route(instance: Instance, service: str, *, database: str | None = "Sales") -> dict[str, object]:
    """Routes a conversation from a database."""
    conversations = pa.table(
        {
            "conversation_id": pa.array([uuid.UUID(int=1).bytes], pa.binary(16)),
            "database": pa.array([database], pa.string()),
            "to_service_name": [service],
            "to_broker_instance": pa.nulls(1, pa.binary(16)),
            "is_initiator": [True],
        }
    )
    (row,) = instance.router().route(conversations, now=instance_context(instance).clock()).to_pylist()
    return row


def test_the_catalog_has_the_content_of_the_instance(instance: Instance, sales: Database) -> None:
    sales.create_route(
        "Far", address="TCP://far:4022", service_name="//Far", broker_instance=uuid.UUID(int=9), lifetime=60
    )
    catalog = instance.catalog()
    assert catalog.databases.to_pylist() == [
        {
            "name": database.name,
            "service_broker_guid": database.service_broker_guid.bytes,
            "is_broker_enabled": True,
        }
        for database in (instance.msdb, sales)
    ]
    assert catalog.services.to_pylist() == [
        {"database": "Sales", "name": "//Orders"},
        {"database": "Sales", "name": "//Shop"},
    ]
    far = catalog.routes.to_pylist()[-1]
    assert far["database"] == "Sales"
    assert far["name"] == "Far"
    assert far["broker_instance"] == uuid.UUID(int=9).bytes
    assert (far["lifetime"] - instance_context(instance).clock()).total_seconds() == 60


def test_the_running_instance_routes(instance: Instance, sales: Database) -> None:
    assert route(instance, "//Orders")["target_database"] == "Sales"
    assert route(instance, "//Far")["outcome"] == "DELAYED"
    sales.create_route("Far", address="TCP://far", service_name="//Far")
    assert route(instance, "//Far")["next_hop_address"] == "TCP://far:4022"
    sales.drop_route("Far")
    assert route(instance, "//Far")["outcome"] == "DELAYED"


@pytest.mark.rule("I2", "R33")
def test_the_services_of_a_disabled_database_are_not_found(instance: Instance, sales: Database) -> None:
    instance.create_database("Shop")
    assert route(instance, "//Orders", database="Shop")["target_database"] == "Sales"
    sales.set_broker("DISABLE_BROKER")
    assert route(instance, "//Orders", database="Shop")["outcome"] == "DELAYED"


def test_the_catalog_is_the_same_object_until_something_changes(instance: Instance, sales: Database) -> None:
    catalog, router = instance.catalog(), instance.router()
    assert instance.catalog() is catalog
    assert instance.router() is router
    assert instance.router(tie_break="round_robin") is not router
    sales.create_queue("Other")
    assert instance.catalog() is not catalog
    assert instance.catalog() == catalog
    catalog = instance.catalog()
    instance.create_database("Shop")
    assert instance.catalog() != catalog


def test_changes_by_another_process_are_visible(instance: Instance, sales: Database) -> None:
    before = instance.catalog()
    with Instance.open(instance.folder, background=False) as other:
        other.database("Sales").create_route("Far", address="TCP://far", service_name="//Far")
    assert instance.catalog() != before


@pytest.mark.rule("R24")
def test_round_robin_takes_turns_on_a_live_instance(instance: Instance, sales: Database) -> None:
    for name in ("A", "B"):
        sales.create_route(name, address=f"TCP://{name}", service_name="//Far")
    conversations = pa.table(
        {
            "conversation_id": pa.array([uuid.UUID(int=1).bytes], pa.binary(16)),
            "database": ["Sales"],
            "to_service_name": ["//Far"],
            "to_broker_instance": pa.nulls(1, pa.binary(16)),
        }
    )
    taken = [
        str(instance.router(tie_break="round_robin").route(conversations)["next_hop_address"][0]) for _ in range(4)
    ]
    assert sorted(taken) == ["TCP://a:4022", "TCP://a:4022", "TCP://b:4022", "TCP://b:4022"]


@pytest.mark.rule("I7")
def test_an_id_that_moves_during_reading_occurs_once(
    instance: Instance, sales: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process disables one database and enables its copy between two reads."""
    copy = instance.attach_database("Copy", copy_of(instance, "Sales"), option="DISABLE_BROKER")
    sales = instance.database("Sales")
    read = DatabaseContext.objects

    def meanwhile(database: DatabaseContext, *arguments: Any) -> Objects:
        found = read(database, *arguments)
        if database is database_context(sales) and found.broker.is_broker_enabled:
            monkeypatch.undo()
            sales.set_broker("DISABLE_BROKER")
            copy.set_broker("ENABLE_BROKER")
        return found

    monkeypatch.setattr(DatabaseContext, "objects", meanwhile)
    assert instance.catalog().databases["is_broker_enabled"].to_pylist() == [True, False, True]
