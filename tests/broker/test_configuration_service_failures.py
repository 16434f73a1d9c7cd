"""A configuration service answers all other requests if its directory fails or a request is invalid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ssbroker._well_known import CONFIGURATION_NOTICE, MISSING_ROUTE
from ssbroker.broker.configuration_service import (
    ConfigurationService,
    Directory,
    DirectoryEntry,
    FileDirectory,
    MissingRoute,
    TableDirectory,
)
from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance
from ssbroker.protocol.events import LOG_LINES_MAX
from tests.broker import sample_databases
from tests.broker.sample_databases import SHOP, STOCK, received, send, statuses, waiting


@pytest.fixture
def sales(instance: Instance) -> Database:
    database = sample_databases.shop(instance)
    database.drop_route("AutoCreatedLocal")
    return database


class Unforeseen:
    """A user's directory that fails for one service."""

    def find(self, service_name: str) -> list[DirectoryEntry]:
        if service_name != STOCK:
            raise ConnectionError("the registry is not there", "x" * 5_000)
        return [DirectoryEntry(STOCK, "LOCAL")]


def unreadable(database: Database) -> TableDirectory:
    """Returns a table with a row that is not text."""
    with database.transaction() as t:
        t.connection.execute("CREATE TABLE place (service_name, broker_instance, address, mirror_address, lifetime)")
        t.connection.execute("INSERT INTO place VALUES ('//Stock', NULL, 'LOCAL', NULL, NULL)")
        t.connection.execute("INSERT INTO place VALUES ('//Other', NULL, CAST(x'ff' AS TEXT), NULL, NULL)")
    return TableDirectory(database, "place")


@pytest.mark.parametrize("directory_of", [lambda _: Unforeseen(), unreadable])
def test_a_directory_that_fails_for_one_service_answers_for_the_others(
    sales: Database, instance: Instance, directory_of: Callable[[Database], Directory]
) -> None:
    """The failure is an answer too, so the reader is not restarted for this request."""
    stock = sample_databases.stock(instance)
    ConfigurationService(directory_of(instance.msdb)).install(instance.msdb, asked_by=[sales])
    send(sales, b"a lamp", to="//Other")
    send(sales, b"two chairs")
    instance.run_due()
    instance.run_due()
    assert received(stock) == [b"two chairs"]
    assert statuses(sales) == {"9761"}
    assert "error 2, " in waiting(sales)[0].transmission_status


@pytest.mark.parametrize("mirror", ["7", "x'00ff'"])
def test_an_invalid_mirror_address_ends_with_error_2(sales: Database, instance: Instance, mirror: str) -> None:
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE place (service_name, broker_instance, address, mirror_address, lifetime)")
        t.connection.execute(f"INSERT INTO place VALUES ('//Stock', NULL, 'TCP://a', {mirror}, NULL)")
    ConfigurationService(TableDirectory(sales, "place")).install(sales)
    send(sales, b"two chairs")
    instance.run_due()
    instance.run_due()
    place = "the table 'place' in the database 'Sales', service '//Stock'"
    assert f"error 2, {place}: mirror_address" in waiting(sales)[0].transmission_status


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("another (service_name)", " does not exist"),
        ("place (Service_Name, Broker_Instance, mirror_address, lifetime)", ": required column is missing: 'address'"),
    ],
)
def test_an_invalid_directory_table_is_reported_as_such(
    sales: Database, instance: Instance, columns: str, message: str
) -> None:
    """The error must not blame the broker's own tables."""
    with sales.transaction() as t:
        t.connection.execute(f"CREATE TABLE {columns}")
    ConfigurationService(TableDirectory(sales, "place")).install(sales)
    send(sales, b"two chairs")
    instance.run_due()
    instance.run_due()
    assert f"error 2, the table 'place' in the database 'Sales'{message}" in waiting(sales)[0].transmission_status


@pytest.mark.threat("T6")
def test_long_requests_do_not_delay_others(sales: Database, instance: Instance, tmp_path: Path) -> None:
    """Any permitted sender, such as a peer, chooses the names."""
    directory = tmp_path / "services.csv"
    directory.write_text(f"service_name,address\n{STOCK},LOCAL\n")
    ConfigurationService(FileDirectory(directory)).install(sales)
    sales.create_route("Shop", service_name=SHOP, address="LOCAL")
    with sales.transaction() as t:
        dialog = t.begin_dialog(SHOP, "SQL/ServiceBroker/BrokerConfiguration", contract=CONFIGURATION_NOTICE)
        t.send(dialog, MissingRoute("x" * 10_000).body(), message_type=MISSING_ROUTE)
    send(sales, b"a lamp", to="//Other")
    instance.run_due()
    instance.run_due()
    assert statuses(sales) == {"9761"}


def test_only_the_first_unanswered_requests_of_a_minute_are_logged(
    sales: Database, instance: Instance, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Peers choose the service names."""
    ConfigurationService(FileDirectory(tmp_path / "gone.csv")).install(sales)
    for number in range(LOG_LINES_MAX + 7):
        send(sales, b"two chairs", to=f"//{number}")
    instance.run_due()
    assert sum("could not be answered" in line for line in caplog.messages) == LOG_LINES_MAX
