"""A catalog, and a transmission queue, through a DB-API connection."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from ssbroker import Catalog, InvalidGuidError, MalformedDataError, OptionError, diagnose, schemas, sql_server
from tests.unit.recorded import HANDLE, SALES, STOCK, Connection, shop


def test_the_catalog_views_become_a_catalog() -> None:
    connection = Connection(shop())
    catalog = Catalog.from_sql_server(connection, addresses=["tcp://sql-01.example"])
    assert catalog.addresses == ("TCP://sql-01:4022", "TCP://sql-01.example:4022")
    assert catalog.message_forwarding
    assert {
        row["name"]: (row["service_broker_guid"], row["is_broker_enabled"]) for row in catalog.databases.to_pylist()
    } == {
        "Odd]Name": (None, False),
        "Sales": (uuid.UUID(SALES).bytes, True),
        "msdb": (uuid.UUID("11111111-2222-4333-8444-555555555555").bytes, True),
    }
    assert catalog.services.to_pylist() == [{"database": "Sales", "name": "//Sales"}]
    assert catalog.routes.schema == schemas.ROUTES
    stock = next(row for row in catalog.routes.to_pylist() if row["name"] == "Stock")
    assert stock == {
        "database": "Sales",
        "name": "Stock",
        "route_id": 65537,
        "remote_service_name": "//Stock",
        "broker_instance": uuid.UUID(STOCK).bytes,
        "lifetime": datetime(2027, 1, 1, 12, 30, 0, 123000, tzinfo=UTC),
        "address": "TCP://stock:4022",
        "mirror_address": None,
    }
    assert all(cursor.closed for cursor in connection.cursors)


@pytest.mark.parametrize("guid", [SALES, SALES.lower(), uuid.UUID(SALES), f"{{{SALES}}}"])
def test_a_driver_may_give_guids_as_text_or_as_such(guid: object) -> None:
    names = ("name", "service_broker_guid", "is_broker_enabled")
    only = Connection(shop(**{sql_server.DATABASES: (names, [("Sales", guid, True)])}))
    (row,) = [row for row in Catalog.from_sql_server(only).databases.to_pylist() if row["name"] == "Sales"]
    assert row["service_broker_guid"] == uuid.UUID(SALES).bytes


def test_an_endpoint_that_listens_on_one_address_is_reached_by_it() -> None:
    names = ("machine", "port", "ip_address", "is_message_forwarding_enabled")
    rows = [("SQL-01", 5022, "10.0.0.1", False), ("SQL-01", 5022, "2001:db8::7", False)]
    catalog = Catalog.from_sql_server(Connection(shop(**{sql_server.ENDPOINTS: (names, rows)})))
    assert catalog.addresses == ("TCP://sql-01:5022", "TCP://10.0.0.1:5022", "TCP://[2001:db8::7]:5022")
    assert not catalog.message_forwarding
    bare = Catalog.from_sql_server(Connection(shop(**{sql_server.ENDPOINTS: (names, [])})))
    assert (bare.addresses, bare.message_forwarding) == ((), False)


def test_what_is_none_is_refused() -> None:
    names = ("name", "service_broker_guid", "is_broker_enabled")
    with pytest.raises(InvalidGuidError, match="service_broker_guid: 'no id' is no GUID"):
        Catalog.from_sql_server(Connection(shop(**{sql_server.DATABASES: (names, [("Sales", "no id", 1)])})))
    query = sql_server.ROUTES.format(database="[msdb]")
    routes = (shop()[query][0], [("R", 1, None, None, "soon", "LOCAL", None)])
    with pytest.raises(MalformedDataError, match="expected a moment, got 'soon'"):
        Catalog.from_sql_server(Connection(shop(**{query: routes})))
    with pytest.raises(OptionError, match="addresses"):
        Catalog.from_sql_server(Connection(shop()), addresses="TCP://one")


def test_a_stuck_queue_is_read_and_explained() -> None:
    """R8: the status of the server, the decision now, and the finding that is the cause."""
    queue = sql_server.transmission_queue(Connection(shop()))
    assert queue.schema.names == sql_server.TRANSMISSION_QUEUE.names
    first, second = queue.to_pylist()
    assert (first["database"], first["conversation_id"], first["is_initiator"]) == (
        "Sales",
        uuid.UUID(SALES).bytes,
        True,
    )
    assert (second["conversation_id"], second["to_broker_instance"]) == (
        uuid.UUID(HANDLE).bytes,
        uuid.UUID(STOCK).bytes,
    )
    assert second["enqueue_time"] == datetime(2026, 11, 20, 20, tzinfo=UTC)

    catalog = Catalog.from_sql_server(Connection(shop()))
    gone, stock = diagnose.stuck(catalog, queue, at=datetime(2026, 11, 20, 21, tzinfo=UTC)).to_pylist()
    assert gone["transmission_status"] == "The target service name could not be found."
    assert (gone["outcome"], gone["reason"], gone["code"]) == ("DELAYED", "service_not_found", "SSB008")
    assert 'route "Broken"' in gone["cause"]
    assert (stock["outcome"], stock["code"], stock["cause"]) == ("REMOTE", None, None)
    assert stock["end"] == "ELSEWHERE: leaves for TCP://stock:4022, which no instance here has"
