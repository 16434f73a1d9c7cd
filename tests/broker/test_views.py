"""System views as Arrow tables, which DuckDB and Polars can query."""

from __future__ import annotations

import uuid
from contextlib import suppress
from datetime import timedelta

import duckdb
import polars as pl
import pyarrow as pa
import pytest

import ssbroker
from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance
from ssbroker.broker.views import DATABASE_VIEWS, INSTANCE_VIEWS
from ssbroker.exceptions import BrokerError, InputError, UnknownDatabaseError
from tests.broker.conftest import Clock
from tests.security.shared_certificates import certified

GUID = pa.binary(16)


@pytest.fixture
def busy(instance: Instance, sales: Database) -> Database:
    """The database Sales with rows for every view, including a conversation with an unknown service."""
    sales.create_user("Ann")
    sales.create_certificate("C", certificate=certified("Ann").certificate, owner="Ann")
    sales.create_remote_service_binding("B", service="//Far", user="Ann")
    sales.create_broker_priority("High", level=8, local_service="//Shop")
    with sales.transaction() as t:
        t.send(t.begin_dialog("//Shop", "//Orders"), b"here")
        lost = t.begin_dialog("//Shop", "//Nowhere", lifetime=60, broker_instance=uuid.UUID(int=3))
        t.send(lost, b"one")
        t.send(lost, b"")
    with sales.take("Orders") as job:
        job.retry(after=60)
    return sales


@pytest.mark.parametrize("name", [*DATABASE_VIEWS, *INSTANCE_VIEWS])
def test_every_view_has_its_columns_with_and_without_rows(instance: Instance, busy: Database, name: str) -> None:
    poison = busy.queue("Poison", retry_after=0)
    poison.put(b"poison")
    for _ in range(5):
        with suppress(ZeroDivisionError), poison.take(timeout=0):
            raise ZeroDivisionError
    table = instance.view(name)
    expected = [*DATABASE_VIEWS.get(name, INSTANCE_VIEWS.get(name, pa.schema([])))]
    if name in DATABASE_VIEWS:
        expected = [pa.field("database", pa.string()), *expected]
    assert [*table.schema] == expected
    table.validate(full=True)
    if name in DATABASE_VIEWS:
        assert instance.view(name, "Sales").to_pylist() == [
            row for row in table.to_pylist() if row["database"] == "Sales"
        ]
        assert instance.view(name, database="Sales").num_rows > 0
        assert instance.view(name, database="Sales").schema == table.schema


def test_sys_databases(instance: Instance, sales: Database) -> None:
    sales.set_broker("DISABLE_BROKER")
    assert instance.view("sys.databases").to_pylist() == [
        {
            "name": database.name,
            "database_id": number,
            "state": 0,
            "state_desc": "ONLINE",
            "service_broker_guid": database.service_broker_guid.bytes,
            "is_broker_enabled": database is not sales,
            "is_honor_broker_priority_on": False,
        }
        for number, database in ((4, instance.msdb), (5, sales))
    ]


def test_a_database_with_a_missing_file_is_shown(instance: Instance, sales: Database) -> None:
    folder, path = instance.folder, sales.path
    instance.close()
    path.unlink()
    with Instance.open(folder, background=False) as again:
        assert again.view("sys.databases").select(["name", "state_desc"]).to_pylist()[1:] == [
            {"name": "Sales", "state_desc": "RECOVERY_PENDING"}
        ]


def test_sys_conversation_endpoints(instance: Instance, busy: Database, clock: Clock) -> None:
    rows = {
        (row["far_service"], row["is_initiator"]): row
        for row in instance.view("sys.conversation_endpoints").to_pylist()
    }
    lost = rows["//Nowhere", True]
    assert (lost["state"], lost["state_desc"], lost["send_sequence"], lost["priority"]) == ("CO", "CONVERSING", 2, 8)
    assert lost["lifetime"] == clock() + timedelta(seconds=60)
    assert lost["far_broker_instance"] == uuid.UUID(int=3).bytes
    initiator, target = rows["//Orders", True], rows["//Shop", False]
    assert initiator["conversation_id"] == target["conversation_id"]
    assert initiator["conversation_handle"] != target["conversation_handle"]
    assert (target["receive_sequence"], target["priority"]) == (1, 5)
    assert instance.view("sys.conversation_groups").num_rows == 3


def test_rows_of_sys_transmission_queue_can_be_routed(instance: Instance, busy: Database, clock: Clock) -> None:
    table = instance.view("sys.transmission_queue")
    assert table.select(
        ["database", "to_service_name", "from_service_name", "service_contract_name", "message_sequence_number"]
    ).to_pylist() == [
        {
            "database": "Sales",
            "to_service_name": "//Nowhere",
            "from_service_name": "//Shop",
            "service_contract_name": "DEFAULT",
            "message_sequence_number": number,
        }
        for number in (0, 1)
    ]
    assert table["message_body"].to_pylist() == [b"one", None]
    assert table["enqueue_time"].to_pylist() == [clock()] * 2
    assert table["is_initiator"].to_pylist() == [True] * 2
    assert all(table["transmission_status"].to_pylist())
    assert instance.router().route(table)["reason"].to_pylist() == ["service_not_found"] * 2


@pytest.mark.rule("P34")
def test_messages_that_wait_for_a_queue_are_shown_as_the_senders(instance: Instance, sales: Database) -> None:
    instance.create_database("Shop")
    instance.execute("USE Shop; CREATE QUEUE Q; CREATE SERVICE [//Buyer] ON QUEUE Q")
    with instance.database("Shop").transaction() as t:
        dialog = t.begin_dialog("//Buyer", "//Orders")
        t.send(dialog, b"one")
        sales.alter_queue("Orders", status=False)
    with instance.database("Shop").transaction() as t:
        t.send(dialog, b"two")
    for row in instance.view("sys.transmission_queue").to_pylist():
        assert (row["database"], row["from_service_name"], row["to_service_name"]) == ("Sales", "//Buyer", "//Orders")
        assert row["is_initiator"]
        assert row["to_broker_instance"] == sales.service_broker_guid.bytes
    assert instance.view("sys.transmission_queue")["message_body"].to_pylist() == [b"one", b"two"]


def test_a_queue_shows_its_messages(instance: Instance, busy: Database) -> None:
    (row,) = instance.view("dbo.Orders", database="Sales").to_pylist()
    assert row == {
        **row,
        "status": 1,
        "priority": 5,
        "message_sequence_number": 0,
        "service_name": "//Orders",
        "service_contract_name": "DEFAULT",
        "message_type_name": "DEFAULT",
        "validation": "N",
        "message_body": b"here",
    }
    assert instance.view("Orders") == instance.view("[dbo].[Orders]", database="Sales")


def test_contracts_services_queues_and_types(instance: Instance, sales: Database) -> None:
    sales.create_message_type("Order", validation="WELL_FORMED_XML")
    sales.create_contract("Ordering", {"Order": "INITIATOR"})
    sales.create_service("//Both", queue="Orders", contracts=["Ordering", "DEFAULT"])
    names = duckdb.connect()
    for view in ("services", "service_contracts", "service_contract_usages", "service_queues", "service_message_types"):
        names.register(view, instance.view(f"sys.{view}", database="Sales"))
    assert names.execute(
        """
        SELECT s.name, c.name, q.name FROM services s JOIN service_contract_usages USING (service_id)
            JOIN service_contracts c USING (service_contract_id) JOIN service_queues q ON q.object_id = s.service_queue_id
        WHERE s.name = '//Both' ORDER BY 2"""
    ).fetchall() == [("//Both", "DEFAULT", "Orders"), ("//Both", "Ordering", "Orders")]
    assert names.execute(
        "SELECT validation, validation_desc FROM service_message_types WHERE name = 'Order'"
    ).fetchall() == [("X", "XML")]


def test_polars_and_duckdb_query_them(instance: Instance, busy: Database) -> None:
    endpoints = instance.view("sys.conversation_endpoints")
    frame = pl.DataFrame(endpoints)
    assert frame.group_by("state").len().to_dicts() == [{"state": "CO", "len": 3}]
    found = duckdb.connect().execute("SELECT count(*), min(lifetime) < max(lifetime) FROM endpoints")
    assert found.fetchall() == [(3, True)]


def test_routing_views_can_be_loaded_as_a_catalog(instance: Instance, sales: Database) -> None:
    routes, databases, services = (instance.view(f"sys.{name}") for name in ("routes", "databases", "services"))
    assert ssbroker.Catalog(routes, databases, services) == instance.catalog()


def test_sys_service_broker_endpoints(instance: Instance) -> None:
    assert instance.view("sys.service_broker_endpoints").num_rows == 0
    instance.execute("CREATE ENDPOINT E STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER ()")
    (row,) = instance.view("sys.service_broker_endpoints").to_pylist()
    assert (row["name"], row["state_desc"], row["port"], row["message_forwarding_size"]) == ("E", "STARTED", 4022, 10)


def test_an_unknown_view_is_rejected(instance: Instance, sales: Database) -> None:
    with pytest.raises(InputError, match=r"sys\.routes"):
        instance.view("sys.nothing")
    with pytest.raises(InputError, match=r"the view 'SYS\.rout' does not exist; did you mean sys\.routes\?"):
        instance.view("SYS.rout")
    with pytest.raises(InputError, match=r"the queue 'Nothing' does not exist$"):
        instance.view("Nothing")
    with pytest.raises(BrokerError, match="208"):
        instance.view("a.b.c")
    with pytest.raises(UnknownDatabaseError):
        instance.view("sys.routes", database="Nothing")
    with pytest.raises(InputError, match="view of the instance"):
        instance.view("sys.databases", database="Sales")
