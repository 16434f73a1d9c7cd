"""Effects of identity changes on conversations (I2, I5, I6)."""

from __future__ import annotations

import uuid
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from ssbroker._well_known import ERROR
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance


@pytest.fixture
def shop(instance: Instance, sales: Database) -> Database:
    """The database Shop, whose service //Buyer begins conversations with //Orders of Sales."""
    database = instance.create_database("Shop")
    database.create_queue("Answers")
    database.create_service("//Buyer", queue="Answers")
    return database


def received(database: Database, queue: str) -> list[dict[str, Any]]:
    """Receives all messages of a queue."""
    found: list[dict[str, Any]] = []
    while True:
        with database.transaction() as t:
            rows = t.receive(queue).to_pylist()
        if not rows:
            return found
        found += rows


def begin(database: Database, service: str, *bodies: bytes) -> uuid.UUID:
    """Begins a dialog with //Orders and sends messages in it."""
    with database.transaction() as t:
        dialog = t.begin_dialog(service, "//Orders")
        for body in bodies:
            t.send(dialog, body)
    return dialog


def states(database: Database) -> dict[tuple[str, bool], str]:
    """Returns the state of each endpoint, by its service and side."""
    with database_context(database).file.read() as connection:
        rows = connection.execute(
            "SELECT name, is_initiator, state FROM ssb_conversation_endpoints JOIN ssb_services USING (service_id)"
        )
        return {(name, bool(initiator)): state for name, initiator, state in rows}


def waiting(database: Database) -> int:
    """Returns the number of messages in the transmission queue."""
    with database_context(database).file.read() as connection:
        found: int = connection.execute("SELECT count(*) FROM ssb_transmission_queue").get
    return found


def copy_detached(instance: Instance, database: Database, source: Path, target: Path, **options: Any) -> Database:
    """Detaches a database, copies a file, and attaches the database again, with these options."""
    instance.detach_database(database.name)
    copy(source, target)
    return instance.attach_database(database.name, database.path, **options)


def assert_each_got_8462(*queues: tuple[Database, str]) -> None:
    """Each queue contains the error -8462 and nothing else, and no message waits."""
    for database, queue in queues:
        assert [b"<Code>-8462</Code>" in row["message_body"] for row in received(database, queue)] == [True], queue
        assert waiting(database) == 0


@pytest.mark.rule("I5")
def test_new_broker_ends_conversations_without_notifying_remote_endpoints(
    instance: Instance, sales: Database, shop: Database
) -> None:
    begin(shop, "//Buyer", b"one")
    begin(sales, "//Shop", b"two")
    assert [row["message_body"] for row in received(sales, "Orders")] == [b"one", b"two"]
    sales.set_broker("NEW_BROKER")
    for queue, count in (("Orders", 2), ("Replies", 1)):
        errors = received(sales, queue)
        assert [row["message_type_name"] for row in errors] == [ERROR] * count
        assert all(b"<Code>-9719</Code>" in row["message_body"] for row in errors)
    assert set(states(sales).values()) == {"ER"}
    assert received(shop, "Answers") == []
    assert states(shop) == {("//Buyer", True): "CO"}


@pytest.mark.rule("I5", "R17")
def test_messages_to_the_old_id_wait(instance: Instance, sales: Database, shop: Database) -> None:
    dialog = begin(shop, "//Buyer", b"one")
    received(sales, "Orders")
    sales.set_broker("NEW_BROKER")
    received(sales, "Orders")
    with shop.transaction() as t:
        t.send(dialog, b"two")
    assert waiting(shop) == 1
    assert received(sales, "Orders") == []


@pytest.mark.rule("I6")
def test_error_broker_conversations_sends_errors_to_both_ends(
    instance: Instance, sales: Database, shop: Database
) -> None:
    begin(shop, "//Buyer", b"one")
    begin(sales, "//Shop", b"two")
    received(sales, "Orders")
    guid = sales.service_broker_guid
    sales.set_broker("ERROR_BROKER_CONVERSATIONS")
    assert sales.service_broker_guid == guid
    for database, queue, count, code in (
        (sales, "Orders", 2, b"-9719"),
        (sales, "Replies", 1, b"-9719"),
        (shop, "Answers", 1, b"-9720"),
    ):
        errors = received(database, queue)
        assert [row["message_type_name"] for row in errors] == [ERROR] * count
        assert all(b"<Code>" + code + b"</Code>" in row["message_body"] for row in errors)
    assert set(states(sales).values()) | set(states(shop).values()) == {"ER"}
    assert waiting(sales) == waiting(shop) == 0


@pytest.mark.rule("I6")
@pytest.mark.parametrize("error", [None, (7, "over")])
def test_the_remote_endpoint_gets_the_error_even_if_this_one_has_ended(
    instance: Instance, sales: Database, shop: Database, error: tuple[int, str] | None
) -> None:
    """An application may end the conversation before the error is delivered to another database."""
    dialog = begin(shop, "//Buyer", b"one")
    received(sales, "Orders")
    sales.set_broker("DISABLE_BROKER")
    shop.set_broker("ERROR_BROKER_CONVERSATIONS")
    with shop.transaction() as t:
        (error_message,) = t.receive("Answers").to_pylist()
        assert b"-9719" in error_message["message_body"]
        t.end_conversation(dialog, error=error)
    assert states(shop) == {("//Buyer", True): "DO"}
    sales.set_broker("ENABLE_BROKER")
    instance.run_due()
    (error_message,) = received(sales, "Orders")
    assert b"<Code>-9720</Code>" in error_message["message_body"]
    assert (states(shop), waiting(shop)) == ({}, 0)


@pytest.mark.rule("I6")
@pytest.mark.parametrize("restored", ["initiator", "target"])
def test_a_remote_endpoint_ahead_of_the_backup_gets_the_error(
    instance: Instance, sales: Database, shop: Database, tmp_path: Path, restored: str
) -> None:
    """The documented procedure after a restore if remote endpoints have continued: both ends get an error."""
    dialog = begin(shop, "//Buyer", b"one")
    with sales.transaction() as t:
        answered = t.receive("Orders")["conversation_handle"][0].as_py()
    changed, backup = shop if restored == "initiator" else sales, tmp_path / "backup"
    changed = copy_detached(instance, changed, changed.path, backup)
    shop, sales = instance.database("Shop"), instance.database("Sales")
    for database, handle in ((shop, dialog), (sales, uuid.UUID(bytes=answered))):
        with database.transaction() as t:
            for number in range(3):
                t.send(handle, b"since then %d" % number)
    assert len(received(sales, "Orders")) == len(received(shop, "Answers")) == 3
    copy_detached(instance, changed, backup, changed.path, option="ERROR_BROKER_CONVERSATIONS")
    shop, sales = instance.database("Shop"), instance.database("Sales")
    errors = [row["message_body"] for row in (*received(shop, "Answers"), *received(sales, "Orders"))]
    codes = (b"-9719", b"-9720") if restored == "initiator" else (b"-9720", b"-9719")
    assert [body[body.index(b"-") :][:5] for body in errors] == [*codes]
    assert {*states(shop).values(), *states(sales).values()} == {"ER"}
    assert waiting(shop) == waiting(sales) == 0


@pytest.mark.rule("I8")
@pytest.mark.parametrize("restored", ["initiator", "target"])
def test_both_ends_get_an_error_if_acknowledged_messages_were_lost(
    instance: Instance, sales: Database, shop: Database, tmp_path: Path, restored: str
) -> None:
    """After a restore without an option: the remote endpoint has already deleted the lost messages."""
    dialog = begin(shop, "//Buyer", b"one")
    answered = uuid.UUID(bytes=received(sales, "Orders")[0]["conversation_handle"])
    changed, backup = shop if restored == "initiator" else sales, tmp_path / "backup"
    sender, handle, queue = (sales, answered, "Answers") if restored == "initiator" else (shop, dialog, "Orders")
    changed = copy_detached(instance, changed, changed.path, backup)
    with sender.transaction() as t:
        t.send(handle, b"lost")
    assert [row["message_body"] for row in received(changed, queue)] == [b"lost"]
    copy_detached(instance, changed, backup, changed.path)
    with sender.transaction() as t:
        t.send(handle, b"continued")
    assert_each_got_8462((instance.database("Shop"), "Answers"), (instance.database("Sales"), "Orders"))


@pytest.mark.rule("I8")
@pytest.mark.parametrize("service", ["//Buyer", "//Shop"])
@pytest.mark.parametrize("ends", [False, True])
def test_both_ends_get_an_error_if_the_target_lost_the_conversation(
    sales: Database, shop: Database, service: str, *, ends: bool
) -> None:
    """The initiator of //Buyer is in another database, that of //Shop in the same one; an initiator that has ended needs no error."""
    database, queue = (shop, "Answers") if service == "//Buyer" else (sales, "Replies")
    dialog = begin(database, service, b"one")
    with sales.transaction() as t:
        t.end_conversation(t.receive("Orders")["conversation_handle"][0].as_py(), cleanup=True)
    with database.transaction() as t:
        if ends:
            t.end_conversation(dialog)
        else:
            t.send(dialog, b"two")
    assert_each_got_8462((sales, "Orders"), *([] if ends else [(database, queue)]))
    assert states(database).get((service, True)) == (None if ends else "ER")


@pytest.mark.rule("I6")
def test_a_pending_end_is_replaced_by_the_error(instance: Instance, sales: Database, shop: Database) -> None:
    dialog = begin(shop, "//Buyer", b"one")
    received(sales, "Orders")
    sales.set_broker("DISABLE_BROKER")
    with shop.transaction() as t:
        t.end_conversation(dialog)
    shop.set_broker("ERROR_BROKER_CONVERSATIONS")
    assert (states(shop), waiting(shop)) == ({("//Buyer", True): "DO"}, 1)
    sales.set_broker("ENABLE_BROKER")
    instance.run_due()
    (error_message,) = received(sales, "Orders")
    assert b"<Code>-9720</Code>" in error_message["message_body"]
    assert (states(shop), waiting(shop)) == ({}, 0)


@pytest.mark.rule("I6")
def test_attaching_can_end_conversations_with_an_error(instance: Instance, sales: Database, shop: Database) -> None:
    begin(shop, "//Buyer", b"one")
    path = sales.path
    instance.detach_database("Sales")
    again = instance.attach_database("Sales", path, option="ERROR_BROKER_CONVERSATIONS")
    assert [row["message_type_name"] for row in received(again, "Orders")] == [ERROR, "DEFAULT"]
    assert b"-9720" in received(shop, "Answers")[0]["message_body"]


@pytest.mark.rule("I2")
def test_a_disabled_database_sends_nothing_and_receives_nothing(
    instance: Instance, sales: Database, shop: Database
) -> None:
    shop.set_broker("DISABLE_BROKER")
    begin(shop, "//Buyer", b"kept")
    begin(sales, "//Shop", b"own")
    assert waiting(shop) == 1
    shop.set_broker("ENABLE_BROKER")
    instance.run_due()
    assert waiting(shop) == 0
    sales.set_broker("DISABLE_BROKER")
    begin(shop, "//Buyer", b"late")
    assert waiting(shop) == 1
    sales.set_broker("ENABLE_BROKER")
    instance.run_due()
    assert waiting(shop) == 0
    assert sorted(row["message_body"] for row in received(sales, "Orders")) == [b"kept", b"late", b"own"]


@pytest.mark.rule("I8")
def test_conversations_continue_after_detach_and_attach(instance: Instance, sales: Database, shop: Database) -> None:
    dialog = begin(shop, "//Buyer", b"one")
    path = sales.path
    instance.detach_database("Sales")
    with shop.transaction() as t:
        t.send(dialog, b"two")
    assert waiting(shop) == 1
    again = instance.attach_database("Sales", path)
    instance.run_due()
    assert [row["message_body"] for row in received(again, "Orders")] == [b"one", b"two"]
    assert waiting(shop) == 0


@pytest.mark.rule("I3")
def test_a_dialog_may_name_a_copy_by_its_broker_id(instance: Instance, sales: Database, shop: Database) -> None:
    other = instance.create_database("Other")
    other.create_queue("Orders")
    other.create_service("//Orders", queue="Orders")
    for target in (sales, other, other, sales):
        with shop.transaction() as t:
            dialog = t.begin_dialog("//Buyer", "//Orders", broker_instance=target.service_broker_guid)
            t.send(dialog, target.name.encode())
    assert [row["message_body"] for row in received(sales, "Orders")] == [b"Sales", b"Sales"]
    assert [row["message_body"] for row in received(other, "Orders")] == [b"Other", b"Other"]
