"""The configuration service of the library."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssbroker._well_known import CONFIGURATION_NOTICE
from ssbroker.broker.configuration_service import (
    LIFETIME,
    ConfigurationService,
    DirectoryEntry,
    FileDirectory,
    TableDirectory,
)
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance
from ssbroker.exceptions import BrokerError, BrokerWarning, InputError, OptionError
from tests.broker import sample_databases
from tests.broker.conftest import START, Clock
from tests.broker.sample_databases import SHOP, STOCK, received, send, statuses, waiting
from tests.internals import instance_of

NORTH, SOUTH = uuid.UUID(int=1), uuid.UUID(int=2)
HEAD = "service_name,broker_instance,address,mirror_address,lifetime\n"


@pytest.fixture
def sales(instance: Instance) -> Database:
    database = sample_databases.shop(instance)
    database.drop_route("AutoCreatedLocal")
    return database


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "services.csv"
    path.write_text(HEAD)
    return path


def add(path: Path, *cells: object) -> None:
    with path.open("a") as file:
        file.write(",".join("" if cell is None else str(cell) for cell in cells) + "\n")


def install_and_request(sales: Database, instance: Instance, directory: Path) -> ConfigurationService:
    """Installs a service in msdb with the address of the stock, and causes a request."""
    service = ConfigurationService(FileDirectory(directory))
    add(directory, STOCK, None, "LOCAL", None, None)
    service.install(instance.msdb, asked_by=[sales])
    send(sales, b"two chairs")
    return service


def configured_routes(database: Database) -> list[tuple[str, object, str, object]]:
    """Returns the configured routes: service, broker id, address, expiry time."""
    return [
        (row["remote_service_name"], row["broker_instance"], row["address"], row["lifetime"])
        for row in instance_of(database).view("sys.routes", database.name).to_pylist()
        if row["name"].startswith("Configured")
    ]


def test_known_services_are_delivered(sales: Database, instance: Instance, directory: Path) -> None:
    stock = sample_databases.stock(instance)
    add(directory, STOCK, None, "LOCAL", None, None)
    ConfigurationService(FileDirectory(directory)).install(sales)
    send(sales, b"two chairs")
    instance.run_due()
    instance.run_due()
    assert received(stock) == [b"two chairs"]
    assert configured_routes(sales) == [(STOCK, None, "LOCAL", START + timedelta(seconds=LIFETIME))]


def test_the_directory_sets_the_lifetime(sales: Database, instance: Instance, directory: Path) -> None:
    add(directory, STOCK, None, "TCP://stock.example", None, 60)
    ConfigurationService(FileDirectory(directory)).install(sales)
    send(sales, b"two chairs")
    instance.run_due()
    assert [row[3] for row in configured_routes(sales)] == [START + timedelta(seconds=60)]


def test_all_copies_or_the_named_copy_get_a_route(
    sales: Database, instance: Instance, clock: Clock, directory: Path
) -> None:
    add(directory, STOCK, NORTH, "TCP://north.example", None, None)
    add(directory, STOCK, SOUTH, "TCP://south.example", "TCP://mirror.example", None)
    ConfigurationService(FileDirectory(directory)).install(sales)
    with sales.transaction() as t:
        dialog = t.begin_dialog(SHOP, STOCK, broker_instance=SOUTH)
        t.send(dialog, b"two chairs")
    instance.run_due()
    assert [row[1] for row in configured_routes(sales)] == [SOUTH.bytes]
    sales.drop_route(next(name for name in database_context(sales).objects().routes if name.startswith("Configured")))
    clock.advance(seconds=60)
    with sales.transaction() as t:
        t.end_conversation(dialog, cleanup=True)
    send(sales, b"a table")
    instance.run_due()
    assert {row[1] for row in configured_routes(sales)} == {NORTH.bytes, SOUTH.bytes}


def test_an_unknown_service_ends_with_error_1(sales: Database, instance: Instance, directory: Path) -> None:
    add(directory, "//Other", None, "TCP://other.example", None, None)
    ConfigurationService(FileDirectory(directory)).install(sales)
    send(sales, b"two chairs")
    instance.run_due()
    instance.run_due()
    assert statuses(sales) == {"9761"}
    assert "error 1, " in waiting(sales)[0].transmission_status
    assert configured_routes(sales) == []


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ((STOCK, None, "stock.example:4022:1", None, None), "9744"),
        ((STOCK, "7", "TCP://stock.example", None, None), "broker_instance"),
        ((STOCK, None, "TCP://stock.example", None, 0), "lifetime"),
        ((STOCK, None, "TCP://stock.example", "TCP://mirror.example", None), "9661"),
    ],
)
def test_an_invalid_entry_ends_with_error_2(
    sales: Database, instance: Instance, directory: Path, cells: tuple[object, ...], text: str
) -> None:
    add(directory, *cells)
    ConfigurationService(FileDirectory(directory)).install(sales)
    send(sales, b"two chairs")
    instance.run_due()
    instance.run_due()
    (row,) = waiting(sales)
    assert "error 2, " in row.transmission_status
    assert text in row.transmission_status


def test_a_missing_directory_ends_with_error_2(sales: Database, instance: Instance, directory: Path) -> None:
    ConfigurationService(FileDirectory(directory)).install(sales)
    directory.unlink()
    send(sales, b"two chairs")
    instance.run_due()
    instance.run_due()
    assert "error 2, " in waiting(sales)[0].transmission_status


def test_a_changed_directory_is_used_from_the_next_request(
    sales: Database, instance: Instance, clock: Clock, directory: Path
) -> None:
    stock = sample_databases.stock(instance)
    ConfigurationService(FileDirectory(directory)).install(sales)
    send(sales, b"two chairs")
    instance.run_due()
    add(directory, STOCK, None, "LOCAL", None, None)
    for _ in range(4):
        clock.advance(seconds=75)
        instance.run_due()
    instance.run_due()
    assert received(stock) == [b"two chairs"]


def test_an_expired_route_is_renewed_by_the_next_request(
    sales: Database, instance: Instance, clock: Clock, directory: Path
) -> None:
    stock = sample_databases.stock(instance)
    add(directory, STOCK, None, "LOCAL", None, 60)
    ConfigurationService(FileDirectory(directory)).install(sales)
    send(sales, b"two chairs")
    instance.run_due()
    clock.advance(seconds=3600)
    send(sales, b"a table")
    instance.run_due()
    instance.run_due()
    assert received(stock) == [b"two chairs", b"a table"]
    assert [row[3] for row in configured_routes(sales)] == [START + timedelta(seconds=3660)]


@pytest.mark.rule("R62")
def test_one_service_answers_several_databases(sales: Database, instance: Instance, directory: Path) -> None:
    """The route is created in the requesting database."""
    stock = sample_databases.stock(instance)
    add(directory, STOCK, None, "LOCAL", None, None)
    ConfigurationService(FileDirectory(directory)).install(instance.msdb, asked_by=[sales])
    send(sales, b"two chairs")
    instance.run_due()
    instance.run_due()
    assert len(configured_routes(sales)) == 1
    assert configured_routes(instance.msdb) == []
    assert received(stock) == [b"two chairs"]


@pytest.mark.rule("I7")
@pytest.mark.parametrize("copy", ["Archive", "Yesterday"])
def test_the_requesting_one_of_two_copies_gets_the_route(
    sales: Database, instance: Instance, directory: Path, tmp_path: Path, copy: str
) -> None:
    """Whichever was attached first; a route in the copy would not answer the request."""
    stock = sample_databases.stock(instance)
    add(directory, STOCK, None, "LOCAL", None, None)
    database_context(sales).file.checkpoint()
    shutil.copyfile(sales.path, tmp_path / "copy.sqlite")
    if copy == "Archive":
        instance.detach_database("Sales")
        instance.attach_database(copy, tmp_path / "copy.sqlite").set_broker("DISABLE_BROKER")
        sales = instance.attach_database("Sales", sales.path)
    else:
        with pytest.warns(BrokerWarning, match="9773"):
            instance.attach_database(copy, tmp_path / "copy.sqlite")
    ConfigurationService(FileDirectory(directory)).install(instance.msdb, asked_by=[sales])
    send(sales, b"two chairs")
    instance.run_due()
    instance.run_due()
    assert configured_routes(instance.database(copy)) == []
    assert received(stock) == [b"two chairs"]


def test_a_database_disabled_after_its_request_still_gets_the_route(
    sales: Database, instance: Instance, directory: Path
) -> None:
    service = install_and_request(sales, instance, directory)
    sales.set_broker("DISABLE_BROKER")
    service(instance.msdb)
    assert len(configured_routes(sales)) == 1


def test_a_request_from_another_instance_ends_with_error_2(
    sales: Database, instance: Instance, directory: Path
) -> None:
    """A route in a file of another instance cannot be created."""
    service = install_and_request(sales, instance, directory)
    instance.detach_database("Sales")
    service(instance.msdb)
    (ended,) = (
        row for row in instance.view("sys.transmission_queue", "msdb").to_pylist() if row["is_conversation_error"]
    )
    assert b"<Code>2</Code>" in ended["message_body"]


def test_installing_twice_changes_nothing(sales: Database, instance: Instance, directory: Path) -> None:
    for _ in range(2):
        ConfigurationService(FileDirectory(directory)).install(sales)
    assert len(database_context(sales).objects().routes) == 1


def test_messages_of_other_kinds_are_answered_too(sales: Database, instance: Instance, directory: Path) -> None:
    ConfigurationService(FileDirectory(directory)).install(sales)
    sales.create_route("Shop", service_name=SHOP, address="LOCAL")
    with sales.transaction() as t:
        dialog = t.begin_dialog(SHOP, "SQL/ServiceBroker/BrokerConfiguration", contract=CONFIGURATION_NOTICE)
        t.send(dialog, b"<x/>", message_type=f"{CONFIGURATION_NOTICE}/MissingRemoteServiceBinding")
    instance.run_due()
    with sales.transaction() as t:
        (row,) = t.receive(sample_databases.REPLIES).to_pylist()
    assert b"<Code>3</Code>" in row["message_body"]


def test_a_request_is_answered_once(sales: Database, instance: Instance, directory: Path) -> None:
    service = ConfigurationService(FileDirectory(directory))
    add(directory, STOCK, None, "TCP://stock.example", None, None)
    service.install(sales)
    send(sales, b"two chairs")
    for _ in range(3):
        service(sales)
    assert len(configured_routes(sales)) == 1


def test_a_disabled_queue_ends_the_reader(sales: Database, instance: Instance, directory: Path) -> None:
    """It would otherwise read the same requests for ever."""
    service = install_and_request(sales, instance, directory)
    instance.msdb.alter_queue("BrokerConfiguration", status=False)
    with pytest.raises(BrokerError, match="9617"):
        service(instance.msdb)


def _json(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text(json.dumps(rows))


def _parquet(path: Path, rows: list[dict[str, object]]) -> None:
    pq.write_table(pa.Table.from_pylist(rows), path)


@pytest.mark.parametrize(("name", "write"), [("services.json", _json), ("services.parquet", _parquet)])
def test_a_directory_has_one_of_several_formats(
    tmp_path: Path, name: str, write: Callable[[Path, list[dict[str, object]]], None]
) -> None:
    write(
        tmp_path / name,
        [
            {"service_name": STOCK, "address": "TCP://a", "broker_instance": str(NORTH), "lifetime": 7},
            {"service_name": "//Other", "address": "TCP://b", "broker_instance": None, "lifetime": None},
        ],
    )
    found = FileDirectory(tmp_path / name)
    assert found.find(STOCK) == [DirectoryEntry(STOCK, "TCP://a", NORTH, None, 7)]
    assert found.find("//Other") == [DirectoryEntry("//Other", "TCP://b")]
    assert found.find("//other") == []


def test_an_invalid_directory_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"services\.md"):
        FileDirectory(tmp_path / "services.md")
    path = tmp_path / "services.csv"
    path.write_text("service,address\n//Stock,TCP://a\n")
    with pytest.raises(InputError, match="service_name"):
        FileDirectory(path).find(STOCK)


def test_an_application_table_can_be_the_directory(sales: Database, instance: Instance) -> None:
    stock = sample_databases.stock(instance)
    with sales.transaction() as t:
        t.connection.execute(
            'CREATE TABLE "where is" (service_name, broker_instance, address, mirror_address, lifetime)'
        )
        t.connection.execute("""INSERT INTO "where is" VALUES ('//Stock', NULL, 'LOCAL', NULL, 60)""")
    ConfigurationService(TableDirectory(sales, "where is")).install(sales)
    send(sales, b"two chairs")
    instance.run_due()
    instance.run_due()
    assert received(stock) == [b"two chairs"]


@pytest.mark.parametrize("lifetime", [0, -1, 2**31, True, "60"])
def test_an_invalid_lifetime_is_rejected(directory: Path, lifetime: object) -> None:
    with pytest.raises(OptionError, match="lifetime"):
        ConfigurationService(FileDirectory(directory), lifetime=lifetime)  # type: ignore[arg-type]
