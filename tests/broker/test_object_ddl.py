"""Creating, altering and dropping objects of a database by method."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance
from ssbroker.exceptions import BrokerError, OptionError
from ssbroker.store.objects import Objects


def error_number(database: Database, call: Callable[[], object]) -> int | None:
    """Returns the error number of a rejected call, which must change nothing."""
    before = database_context(database).objects()
    with pytest.raises(BrokerError) as error:
        call()
    assert database_context(database).objects() == before
    return error.value.number


def test_a_message_type_is_created_altered_and_dropped(sales: Database) -> None:
    sales.create_message_type("Order", validation="WELL_FORMED_XML")
    assert database_context(sales).objects().message_types["Order"].validation == "X"
    sales.alter_message_type("Order", validation="EMPTY")
    assert database_context(sales).objects().message_types["Order"].validation == "E"
    sales.drop_message_type("Order")
    assert "Order" not in database_context(sales).objects().message_types


def test_a_contract_defines_who_sends_which_types(sales: Database) -> None:
    for name in ("Order", "Receipt", "Note"):
        sales.create_message_type(name)
    sales.create_contract("Ordering", {"Order": "INITIATOR", "Receipt": "TARGET", "Note": "ANY"})
    objects = database_context(sales).objects()
    assert {
        objects.message_types_by_id[number].name: (message.is_sent_by_initiator, message.is_sent_by_target)
        for number, message in objects.contracts["Ordering"].messages.items()
    } == {"Order": (True, False), "Receipt": (False, True), "Note": (True, True)}
    sales.drop_contract("Ordering")
    assert "Ordering" not in database_context(sales).objects().contracts


def test_options_of_a_queue(sales: Database) -> None:
    sales.create_queue(
        "[shop].[In.Box]", status=False, retention=True, activation=True, procedure="read", max_queue_readers=4
    )
    queue = database_context(sales).objects().queues["shop", "In.Box"]
    assert (queue.is_receive_enabled, queue.is_enqueue_enabled, queue.is_retention_enabled) == (False, False, True)
    assert (queue.is_activation_enabled, queue.activation_procedure, queue.max_readers) == (True, "read", 4)
    assert queue.is_poison_message_handling_enabled
    sales.alter_queue("shop.[In.Box]", status=True, poison_message_handling=False)
    changed = database_context(sales).objects().queues["shop", "In.Box"]
    assert changed.is_receive_enabled
    assert changed.is_enqueue_enabled
    assert not changed.is_poison_message_handling_enabled
    assert (changed.is_retention_enabled, changed.max_readers) == (True, 4)
    sales.drop_queue("shop.[In.Box]")
    assert ("shop", "In.Box") not in database_context(sales).objects().queues


def test_enabling_a_queue_resets_its_rollback_count(sales: Database) -> None:
    with database_context(sales).file.write() as connection:
        connection.execute("UPDATE ssb_queues SET rollbacks = 5")
    sales.alter_queue("Orders", retention=True)
    sales.alter_queue("Replies", status=True)
    with database_context(sales).file.read() as connection:
        assert connection.execute("SELECT name, rollbacks FROM ssb_queues ORDER BY name").fetchall() == [
            ("Orders", 5),
            ("Replies", 0),
        ]


def test_a_service_changes_its_queue_and_contracts(sales: Database) -> None:
    sales.create_message_type("Order")
    sales.create_contract("Ordering", {"Order": "INITIATOR"})
    sales.alter_service("//Orders", queue="Replies", add_contracts=["Ordering"], drop_contracts=["DEFAULT"])
    objects = database_context(sales).objects()
    service = objects.services["//Orders"]
    assert objects.queues_by_id[service.queue_id].name == "Replies"
    assert service.contracts == {objects.contracts["Ordering"].service_contract_id}
    sales.drop_service("//Orders")
    assert set(database_context(sales).objects().services) == {"//Shop"}


def test_a_service_without_contracts_can_only_begin_dialogs(sales: Database) -> None:
    sales.create_service("//Starter", queue="Orders", contracts=())
    assert database_context(sales).objects().services["//Starter"].contracts == frozenset()


def test_altering_a_route_keeps_unspecified_clauses(sales: Database) -> None:
    guid = uuid.UUID(int=5)
    sales.create_route("R", address="tcp://far", service_name="//Far", broker_instance=guid, lifetime=60)
    before = database_context(sales).objects().routes["R"]
    assert (before.route_id, before.remote_service_name, before.broker_instance) == (65_537, "//Far", guid.bytes)
    sales.alter_route("R", address="TCP://other:4023")
    after = database_context(sales).objects().routes["R"]
    assert after.address == "TCP://other:4023"
    assert (after.remote_service_name, after.broker_instance, after.lifetime) == ("//Far", guid.bytes, before.lifetime)
    sales.drop_route("R")
    assert set(database_context(sales).objects().routes) == {"AutoCreatedLocal"}


def test_a_priority_is_created_altered_and_dropped(sales: Database) -> None:
    sales.create_broker_priority("High", level=9, local_service="//Orders", remote_service="//Anywhere")
    priority = database_context(sales).objects().priorities["High"]
    assert (priority.priority, priority.service_contract_id, priority.remote_service_name) == (9, None, "//Anywhere")
    assert priority.local_service_id == database_context(sales).objects().services["//Orders"].service_id
    sales.alter_broker_priority("High", level=3)
    assert database_context(sales).objects().priorities["High"].priority == 3
    assert database_context(sales).objects().priorities["High"].local_service_id == priority.local_service_id
    sales.drop_broker_priority("High")
    assert database_context(sales).objects().priorities == {}


def test_honor_broker_priority_is_off_until_it_is_set(sales: Database) -> None:
    assert not database_context(sales).objects().broker.is_honor_broker_priority_on
    sales.set_honor_broker_priority(is_on=True)
    assert database_context(sales).objects().broker.is_honor_broker_priority_on


REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any], int | None]] = [
    ("create_message_type", ("DEFAULT",), {}, None),
    ("create_message_type", ("",), {}, 1038),
    ("create_message_type", ("x" * 129,), {}, 103),
    ("alter_message_type", ("DEFAULT",), {"validation": "EMPTY"}, 9663),
    ("alter_message_type", ("Nothing",), {"validation": "EMPTY"}, 15151),
    ("drop_message_type", ("DEFAULT",), {}, 9663),
    ("drop_message_type", ("Nothing",), {}, 15151),
    ("create_contract", ("DEFAULT", {"DEFAULT": "ANY"}), {}, None),
    ("create_contract", ("C", {"DEFAULT": "TARGET"}), {}, 8492),
    ("create_contract", ("C", {}), {}, 8492),
    ("create_contract", ("C", {"Nothing": "ANY"}), {}, 15151),
    ("drop_contract", ("DEFAULT",), {}, 9663),
    ("drop_contract", ("Nothing",), {}, 15151),
    ("create_queue", ("Orders",), {}, 2714),
    ("create_queue", ("dbo.Orders",), {}, 2714),
    ("create_queue", ("a.b.c",), {}, 208),
    ("create_queue", ("",), {}, 208),
    ("create_queue", ("Q",), {"max_queue_readers": 32_768}, 9607),
    ("alter_queue", ("orders",), {"status": True}, 15151),
    ("drop_queue", ("Orders",), {}, None),
    ("drop_queue", ("Nothing",), {}, 15151),
    ("create_service", ("//Orders",), {"queue": "Orders"}, None),
    ("create_service", ("n\0l",), {"queue": "Orders"}, None),
    ("create_service", ("//New",), {"queue": "Nothing"}, 15151),
    ("create_service", ("//New",), {"queue": "Orders", "contracts": ["default"]}, 15151),
    ("alter_service", ("//Orders",), {"add_contracts": ["DEFAULT"]}, None),
    ("alter_service", ("//Orders",), {"queue": "Replies", "drop_contracts": ["Nothing"]}, 15151),
    ("drop_service", ("//orders",), {}, 15151),
    ("create_route", ("AutoCreatedLocal",), {"address": "LOCAL"}, None),
    ("create_route", ("R",), {"address": "somewhere"}, 9744),
    ("create_route", ("R",), {"address": "LOCAL", "service_name": ""}, 9659),
    ("create_route", ("R",), {"address": "LOCAL", "broker_instance": uuid.UUID(int=1)}, 9662),
    ("create_route", ("R",), {"address": "LOCAL", "lifetime": 0}, 9746),
    ("alter_route", ("AutoCreatedLocal",), {"address": ""}, 9659),
    ("alter_route", ("Nothing",), {"address": "LOCAL"}, 15151),
    ("drop_route", ("Nothing",), {}, 15151),
    ("create_broker_priority", ("P",), {"level": 11}, 9606),
    ("create_broker_priority", ("P",), {"contract": "Nothing"}, 15151),
    ("drop_broker_priority", ("Nothing",), {}, 15151),
]


@pytest.mark.parametrize(("method", "arguments", "options", "number"), REFUSED)
def test_a_rejected_call_has_an_error_number_and_changes_nothing(
    sales: Database, method: str, arguments: tuple[Any, ...], options: dict[str, Any], number: int | None
) -> None:
    assert error_number(sales, lambda: getattr(sales, method)(*arguments, **options)) == number


def test_objects_in_use_cannot_be_dropped(sales: Database) -> None:
    sales.create_message_type("Order")
    sales.create_contract("Ordering", {"Order": "INITIATOR"})
    error_number(sales, lambda: sales.drop_message_type("Order"))
    sales.create_broker_priority("P", contract="Ordering", local_service="//Shop")
    error_number(sales, lambda: sales.drop_contract("Ordering"))
    error_number(sales, lambda: sales.drop_service("//Shop"))
    error_number(sales, lambda: sales.create_broker_priority("Same", contract="Ordering", local_service="//Shop"))


def test_objects_of_open_conversations_cannot_be_dropped(sales: Database) -> None:
    with sales.transaction() as t:
        dialog = t.begin_dialog("//Shop", "//Orders")
        t.send(dialog, b"one")
    error_number(sales, lambda: sales.drop_service("//Shop"))
    error_number(sales, lambda: sales.drop_service("//Orders"))
    with sales.transaction() as t:
        t.end_conversation(dialog)
        received = t.receive("Orders")["conversation_handle"].to_pylist()
        t.end_conversation(uuid.UUID(bytes=received[0]))
    sales.drop_service("//Orders")
    sales.drop_service("//Shop")
    assert database_context(sales).objects().services == {}


def test_an_invalid_option_is_rejected(sales: Database) -> None:
    with pytest.raises(OptionError, match="VALID_XML"):
        sales.create_message_type("Order", validation="VALID_XML")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="NOBODY"):
        sales.create_contract("C", {"DEFAULT": "NOBODY"})  # type: ignore[dict-item]


def test_the_error_suggests_a_name_in_another_case(sales: Database) -> None:
    with pytest.raises(BrokerError, match=r"'dbo.orders' does not exist; did you mean 'dbo.Orders'"):
        sales.drop_queue("orders")


def test_names_that_differ_in_case_are_different(sales: Database) -> None:
    sales.create_queue("orders")
    sales.create_service("//ORDERS", queue="orders")
    assert set(database_context(sales).objects().services) == {"//Orders", "//ORDERS", "//Shop"}


def test_the_snapshot_is_reloaded_only_after_changes(sales: Database) -> None:
    before = database_context(sales).objects()
    assert database_context(sales).objects() is before
    with database_context(sales).file.write() as connection:
        connection.execute("CREATE TABLE stock (article TEXT)")
    assert database_context(sales).objects() is before
    sales.create_queue("Other")
    assert database_context(sales).objects() is not before


def test_rolled_back_objects_are_never_used_as_committed(instance: Instance, sales: Database) -> None:
    """The version of a rolled back change is never that of a later one."""
    seen: list[Objects] = []
    for name in ("First", "Second"):
        session = database_context(sales).file.session()
        connection = session.begin()
        connection.execute("INSERT INTO ssb_queues (schema_name, name) VALUES ('dbo', ?)", (name,))
        connection.execute("UPDATE ssb_database SET catalog_version = random()")
        seen.append(database_context(sales).objects(connection))
        if name == "Second":
            session.commit()
        session.close()
    assert ("dbo", "First") in seen[0].queues
    assert set(database_context(sales).objects().queues) == {("dbo", "Orders"), ("dbo", "Replies"), ("dbo", "Second")}
