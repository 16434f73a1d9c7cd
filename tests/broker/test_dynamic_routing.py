"""Missing routes are requested, and messages that wait for them are then sent (R61, R62)."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path

import pytest

from ssbroker._arguments import epoch_microseconds
from ssbroker._well_known import CONFIGURATION_NOTICE, CONFIGURATION_SERVICE, MISSING_ROUTE, SYSTEM_SERVICE
from ssbroker.broker.database import Database
from ssbroker.broker.dynamic_routing import RETRY_AFTER_ANSWER, RETRY_AFTER_REFUSAL, MissingRoute
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.exceptions import MalformedDataError
from ssbroker.protocol.events import LOG_LINES_MAX
from ssbroker.protocol.settings import SECOND
from tests.broker import sample_databases
from tests.broker.conftest import Clock
from tests.broker.sample_databases import ORDERS, SHOP, STOCK, received, send, statuses, waiting
from tests.internals import background_of, instance_of

CONFIG = "Config"
MINUTE = 60
BACK_OFF_MAX = 75  # P17: 64 s and its jitter


@pytest.fixture
def sales(instance: Instance) -> Database:
    """A database whose only route leads to its own configuration service."""
    database = sample_databases.shop(instance)
    database.drop_route("AutoCreatedLocal")
    database.create_queue(CONFIG)
    database.create_service(CONFIGURATION_SERVICE, queue=CONFIG, contracts=[CONFIGURATION_NOTICE])
    database.create_route("Configuration", service_name=CONFIGURATION_SERVICE, address="LOCAL")
    return database


@pytest.fixture
def stock(instance: Instance) -> Database:
    return sample_databases.stock(instance)


def requests(database: Database) -> list[MissingRoute]:
    """Returns the requests in the queue of the configuration service; they stay there."""
    found = instance_of(database).view(CONFIG, database.name)
    return [
        MissingRoute.read(body)
        for kind, body in zip(found["message_type_name"].to_pylist(), found["message_body"].to_pylist(), strict=True)
        if kind == MISSING_ROUTE
    ]


def answer(database: Database, *, error: tuple[int, str] | None = None) -> MissingRoute:
    """Receives the next request at the configuration service and ends its dialog."""
    with database.transaction() as t:
        table = t.receive(CONFIG)
        t.end_conversation(table["conversation_handle"][0].as_py(), error=error)
    return MissingRoute.read(table["message_body"][0].as_py())


def pass_time(instance: Instance, clock: Clock, *, seconds: float) -> None:
    clock.advance(seconds=seconds)
    instance.run_due()


@pytest.mark.rule("R61")
def test_a_missing_route_is_requested(sales: Database, stock: Database) -> None:
    send(sales, b"two chairs")
    assert requests(sales) == [MissingRoute(STOCK)]
    assert statuses(sales) == {"9770"}


@pytest.mark.rule("R61")
def test_the_request_is_a_dialog_of_the_system_service(sales: Database) -> None:
    send(sales, b"two chairs")
    (row,) = instance_of(sales).view(CONFIG, "Sales").to_pylist()
    assert row["message_type_name"] == MISSING_ROUTE
    assert row["service_contract_name"] == CONFIGURATION_NOTICE
    ends = instance_of(sales).view("sys.conversation_endpoints", "Sales").to_pylist()
    assert {row["far_service"] for row in ends} == {STOCK, CONFIGURATION_SERVICE, SYSTEM_SERVICE}


@pytest.mark.rule("R61")
def test_the_request_contains_the_broker_id_of_the_conversation(sales: Database) -> None:
    guid = uuid.UUID(int=7)
    with sales.transaction() as t:
        t.send(t.begin_dialog(SHOP, STOCK, broker_instance=guid), b"two chairs")
    assert requests(sales) == [MissingRoute(STOCK, guid)]


@pytest.mark.rule("R61")
def test_one_request_at_a_time_for_each_service(sales: Database, instance: Instance, clock: Clock) -> None:
    for _ in range(5):
        send(sales, b"two chairs")
        send(sales, b"an invoice", to="//Invoices")
    for _ in range(5):
        pass_time(instance, clock, seconds=BACK_OFF_MAX)
    assert sorted(each.service_name for each in requests(sales)) == ["//Invoices", STOCK]


def test_the_pending_requests_of_the_catalog_are_the_open_dialogs(sales: Database, instance: Instance) -> None:
    send(sales, b"two chairs")
    assert STOCK in instance.catalog().pending_requests
    answer(sales)
    assert STOCK not in instance.catalog().pending_requests


def test_nothing_is_requested_without_a_route_to_a_configuration_service(instance: Instance) -> None:
    send(sample_databases.shop(instance), b"two chairs")
    assert instance.catalog().pending_requests == ()


@pytest.mark.rule("R62")
def test_waiting_messages_are_sent_after_the_answer(sales: Database, stock: Database, instance: Instance) -> None:
    send(sales, b"two chairs")
    sales.create_route("Stock", service_name=STOCK, address="LOCAL")
    answer(sales)
    instance.run_due()
    assert received(stock) == [b"two chairs"]
    assert waiting(sales) == []


@pytest.mark.rule("R62")
def test_an_error_is_reported_and_valid_for_a_minute(sales: Database, instance: Instance, clock: Clock) -> None:
    send(sales, b"two chairs")
    answer(sales, error=(12, "nobody knows it"))
    instance.run_due()
    assert statuses(sales) == {"9761"}
    assert "nobody knows it" in waiting(sales)[0].transmission_status
    for _ in range(RETRY_AFTER_REFUSAL // SECOND - 1):
        pass_time(instance, clock, seconds=1)
    assert requests(sales) == []
    pass_time(instance, clock, seconds=1 + BACK_OFF_MAX)
    assert requests(sales) == [MissingRoute(STOCK)]


def test_a_clock_set_back_does_not_prolong_a_refusal(sales: Database, instance: Instance, clock: Clock) -> None:
    """For example on a computer that started with a wrong year."""
    send(sales, b"two chairs")
    answer(sales, error=(12, "nobody knows it"))
    instance.run_due()
    clock.advance(seconds=-3600)
    pass_time(instance, clock, seconds=BACK_OFF_MAX)
    assert requests(sales) == [MissingRoute(STOCK)]


def test_only_the_first_refusals_of_a_minute_are_logged(
    sales: Database, instance: Instance, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Peers choose the service names."""
    caplog.set_level(logging.WARNING)
    for number in range(LOG_LINES_MAX + 7):
        send(sales, b"two chairs", to=f"//{number}")
        answer(sales, error=(12, "nobody knows it"))
        instance.run_due()
    assert sum("9761" in line for line in caplog.messages) == LOG_LINES_MAX
    clock.advance(seconds=MINUTE)
    instance_context(instance).events.log_suppressed(now=epoch_microseconds(clock()))
    assert caplog.messages[-1] == "9761: 7 more lines suppressed within a minute, from Sales"


@pytest.mark.rule("R62")
def test_after_an_end_without_a_route_the_request_is_repeated_later(
    sales: Database, instance: Instance, clock: Clock
) -> None:
    """Not immediately: otherwise requests would follow answers without a pause."""
    send(sales, b"two chairs")
    answer(sales)
    instance.run_due()
    instance.run_due()
    assert requests(sales) == []
    pass_time(instance, clock, seconds=RETRY_AFTER_ANSWER // SECOND + BACK_OFF_MAX)
    assert requests(sales) == [MissingRoute(STOCK)]


@pytest.mark.rule("R62")
def test_an_expired_route_is_requested_again(
    sales: Database, stock: Database, instance: Instance, clock: Clock
) -> None:
    dialog = send(sales, b"two chairs")
    sales.create_route("Stock", service_name=STOCK, address="LOCAL", lifetime=MINUTE)
    answer(sales)
    instance.run_due()
    clock.advance(seconds=MINUTE)
    send(sales, b"a table", dialog=dialog)
    assert requests(sales) == [MissingRoute(STOCK, stock.service_broker_guid)]


def test_a_request_survives_a_restart(sales: Database, instance: Instance, clock: Clock) -> None:
    send(sales, b"two chairs")
    folder = instance.folder
    instance.close()
    with Instance.open(folder, clock=clock, background=False) as again:
        again.run_due()
        assert STOCK in again.catalog().pending_requests
        assert requests(again.database("Sales")) == [MissingRoute(STOCK)]


@pytest.mark.rule("I8", "R62")
def test_a_moved_database_sends_its_own_request(instance: Instance, clock: Clock, tmp_path: Path) -> None:
    """The service of the old instance cannot create a route in a file of another instance."""
    sales = sample_databases.shop(instance)
    with Instance.create(tmp_path / "other", name="other", clock=clock, background=False) as other:
        for each in (instance, other):
            each.msdb.create_queue(CONFIG)
            each.msdb.create_service(CONFIGURATION_SERVICE, queue=CONFIG, contracts=[CONFIGURATION_NOTICE])
        sales.drop_route("AutoCreatedLocal")
        sales.create_route("Configuration", service_name=CONFIGURATION_SERVICE, address="LOCAL")
        send(sales, b"two chairs")
        assert requests(instance.msdb) == [MissingRoute(STOCK)]
        instance.detach_database("Sales")
        moved = other.attach_database("Sales", sales.path)
        pass_time(other, clock, seconds=BACK_OFF_MAX)
        assert requests(other.msdb) == [MissingRoute(STOCK)]
        answer(other.msdb, error=(12, "nobody knows it"))
        other.run_due()
        assert statuses(moved) == {"9761"}


def test_an_answer_from_before_a_crash_is_processed_later(
    sales: Database, stock: Database, instance: Instance, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(sales, b"two chairs")
    sales.create_route("Stock", service_name=STOCK, address="LOCAL")
    monkeypatch.setattr(background_of(instance).dynamic_routing, "arrived", lambda *_: False)
    answer(sales)
    folder = instance.folder
    instance.close()
    with Instance.open(folder, clock=clock, background=False) as again:
        again.run_due()
        assert STOCK not in again.catalog().pending_requests
        assert received(again.database("Stock")) == [b"two chairs"]


@pytest.mark.rule("R41")
def test_the_database_whose_table_was_read_sends_the_request(instance: Instance) -> None:
    """A route back to this instance leads to msdb's table, which sends its own requests."""
    instance.execute("CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER ();")
    sales = sample_databases.shop(instance)
    sales.create_route("Self", service_name=STOCK, address=instance.catalog().addresses[0])
    instance.msdb.create_queue(CONFIG)
    instance.msdb.create_service(CONFIGURATION_SERVICE, queue=CONFIG, contracts=[CONFIGURATION_NOTICE])
    instance.msdb.create_route("Configuration", service_name=CONFIGURATION_SERVICE, address="LOCAL")
    send(sales, b"two chairs")
    assert requests(instance.msdb) == [MissingRoute(STOCK)]


@pytest.mark.rule("R1", "R14")
def test_an_unanswered_request_of_another_database_blocks_nothing(
    sales: Database, stock: Database, instance: Instance, clock: Clock
) -> None:
    """The answer to the other database creates no route here."""
    send(sales, b"two chairs")
    other = sample_databases.shop(instance, "Other")
    other.drop_route("AutoCreatedLocal")
    other.create_queue(CONFIG)
    other.create_service(CONFIGURATION_SERVICE, queue=CONFIG, contracts=[CONFIGURATION_NOTICE])
    other.create_route("Configuration", service_name=CONFIGURATION_SERVICE, address="LOCAL")
    send(other, b"a table")
    send(other, b"a lamp")
    assert statuses(other) == {"9770"}
    pass_time(instance, clock, seconds=BACK_OFF_MAX)
    assert requests(other) == [MissingRoute(STOCK)]
    other.create_route("Stock", service_name=STOCK, address="LOCAL")
    answer(other)
    instance.run_due()
    assert received(stock) == [b"a table", b"a lamp"]
    assert requests(sales) == [MissingRoute(STOCK)]
    assert len(waiting(sales)) == 1


def test_answers_to_the_requesting_service_need_no_route(sales: Database, instance: Instance) -> None:
    """Dynamic routing hides the services of the instance, but not for the answers."""
    sales.drop_route("Configuration")
    configuration_database = instance.create_database("Asked")
    configuration_database.create_queue(CONFIG)
    configuration_database.create_service("Else", queue=CONFIG)
    configuration_database.create_route("Configuration", service_name=CONFIGURATION_SERVICE, address="LOCAL")
    sales.create_route("Configuration", service_name=CONFIGURATION_SERVICE, address="LOCAL")
    with configuration_database.transaction() as t:
        t.send(t.begin_dialog("Else", STOCK), b"two chairs")
    assert requests(sales) == [MissingRoute(STOCK)]
    answer(sales, error=(1, "no"))
    instance.run_due()
    assert requests(sales) == []
    assert statuses(configuration_database) == {"9761"}


@pytest.mark.rule("R61")
def test_the_body_contains_service_and_broker_id() -> None:
    body = MissingRoute("//a<b", uuid.UUID(int=255)).body()
    assert body == (
        b'<MissingRoute xmlns="http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice/MissingRoute">'
        b"<SERVICE_NAME>//a&lt;b</SERVICE_NAME><BROKER_INSTANCE>00000000-0000-0000-0000-0000000000FF</BROKER_INSTANCE>"
        b"</MissingRoute>"
    )
    assert MissingRoute.read(body) == MissingRoute("//a<b", uuid.UUID(int=255))


@pytest.mark.rule("R61")
@pytest.mark.parametrize(
    "body",
    [
        None,
        b"",
        b"MissingRoute",
        b"<MissingRoute>",
        b"<MissingRoute/>",
        b"<Other><SERVICE_NAME>x</SERVICE_NAME></Other>",
        b"<MissingRoute><A><SERVICE_NAME>x</SERVICE_NAME></A></MissingRoute>",
        b"<MissingRoute><SERVICE_NAME>x</SERVICE_NAME><BROKER_INSTANCE>7</BROKER_INSTANCE></MissingRoute>",
    ],
)
def test_an_invalid_body_is_rejected(body: bytes | None) -> None:
    with pytest.raises(MalformedDataError, match="MissingRoute"):
        MissingRoute.read(body)


def test_background_threads_request_routes(tmp_path: Path) -> None:
    with Instance.create(tmp_path / "instance", name="shop") as instance:
        sales, stock = sample_databases.shop(instance), sample_databases.stock(instance)
        sales.create_queue(CONFIG)
        sales.create_service(CONFIGURATION_SERVICE, queue=CONFIG, contracts=[CONFIGURATION_NOTICE])
        sales.create_route("Configuration", service_name=CONFIGURATION_SERVICE, address="LOCAL")
        sales.drop_route("AutoCreatedLocal")

        def configure(database: Database) -> None:
            with database.transaction() as t:
                for row in t.receive(CONFIG).to_pylist():
                    request = MissingRoute.read(row["message_body"])
                    routes.append(request.service_name)
                    t.end_conversation(row["conversation_handle"])
            for name in routes:
                database.create_route(name, service_name=name, address="LOCAL")
            routes.clear()

        routes: list[str] = []
        sales.activate(CONFIG, configure)
        send(sales, b"two chairs")
        with stock.transaction() as t:
            assert t.receive(ORDERS, timeout=60.0)["message_body"].to_pylist() == [b"two chairs"]
