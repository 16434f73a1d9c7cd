"""Catalogs and transmission queues read through a DB-API connection."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

import pytest

from ssbroker import Catalog, InvalidGuidError, MalformedDataError, OptionError, Router, diagnose, schemas
from ssbroker.catalog import sql_server
from tests.catalog.recorded_results import HANDLE, SALES, STOCK, Connection, Driver, recorded, shop
from tests.rules.test_worked_examples import HERE, ONE, TWO, USER

DRIVERS: tuple[Driver, ...] = ("text", "uuid", "bytes")


def test_a_catalog_is_read_from_the_catalog_views() -> None:
    connection = Connection(shop())
    catalog = Catalog.from_sql_server(connection, addresses=["tcp://sql-01.example"])
    assert catalog.addresses == ("TCP://sql-01:4022", "TCP://sql-01.example:4022")
    assert catalog.details.specified_addresses == {"TCP://sql-01.example:4022"}
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
def test_guids_may_be_text_or_uuid(guid: object) -> None:
    names = ("name", "service_broker_guid", "is_broker_enabled")
    only = Connection(shop(**{sql_server.DATABASES_QUERY: (names, [("Sales", guid, True)])}))
    (row,) = [row for row in Catalog.from_sql_server(only).databases.to_pylist() if row["name"] == "Sales"]
    assert row["service_broker_guid"] == uuid.UUID(SALES).bytes


def test_the_listener_address_of_an_endpoint_is_an_address() -> None:
    names = ("machine", "port", "ip_address", "is_message_forwarding_enabled")
    rows = [("SQL-01", 5022, "10.0.0.1", False), ("SQL-01", 5022, "2001:db8::7", False)]
    catalog = Catalog.from_sql_server(Connection(shop(**{sql_server.ENDPOINTS_QUERY: (names, rows)})))
    assert catalog.addresses == ("TCP://sql-01:5022", "TCP://10.0.0.1:5022", "TCP://[2001:db8::7]:5022")
    assert not catalog.message_forwarding
    bare = Catalog.from_sql_server(Connection(shop(**{sql_server.ENDPOINTS_QUERY: (names, [])})))
    assert (bare.addresses, bare.message_forwarding) == ((), False)


def test_invalid_values_are_rejected() -> None:
    names = ("name", "service_broker_guid", "is_broker_enabled")
    with pytest.raises(InvalidGuidError, match="service_broker_guid: 'no id' is not a valid GUID"):
        Catalog.from_sql_server(Connection(shop(**{sql_server.DATABASES_QUERY: (names, [("Sales", "no id", 1)])})))
    query = sql_server.ROUTES_QUERY.format(database="[msdb]")
    routes = (shop()[query][0], [("R", 1, None, None, "soon", "LOCAL", None)])
    with pytest.raises(MalformedDataError, match="expected a datetime, got 'soon'"):
        Catalog.from_sql_server(Connection(shop(**{query: routes})))
    with pytest.raises(OptionError, match="addresses"):
        Catalog.from_sql_server(Connection(shop()), addresses="TCP://one")


@pytest.mark.rule("R8")
def test_a_stuck_queue_is_read_and_explained() -> None:
    """The status of the server, the current decision, and the finding that explains it."""
    queue = sql_server.read_transmission_queue(Connection(shop()))
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
    assert stock["end"] == "ELSEWHERE: sent to TCP://stock:4022, which is not a known address of any of the instances"


@pytest.mark.rule("R11", "R13")
@pytest.mark.parametrize("driver", DRIVERS)
def test_the_views_of_documented_example_5(driver: Driver) -> None:
    """As the catalog views of a server contain it."""
    catalog = Catalog.from_sql_server(Connection(recorded("example_5", driver=driver)))
    assert catalog.addresses == ("TCP://aw-sql01:4022",)
    assert catalog.message_forwarding
    assert {row["name"]: row["service_broker_guid"] for row in catalog.databases.to_pylist()}[USER] == HERE.bytes
    assert catalog.services.to_pylist() == [{"database": USER, "name": "LocalService"}]
    router = Router(catalog)
    for broker, server in ((ONE, 1), (TWO, 2)):
        decided = router.explain("BalancedService", database=USER, to_broker_instance=broker).decision
        assert (decided["outcome"], decided["match_step"]) == ("REMOTE", 1)
        assert decided["next_hop_address"] == f"TCP://server{server}.adventure-works.com:4022"
    assert router.explain("BalancedService", database=USER).decision["match_step"] == 3
    assert router.explain("MissingService", database=USER).decision["outcome"] == "DELAYED"
    assert router.explain("MissingService").decision["outcome"] == "FORWARD"


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_queue_of_documented_example_5_is_explained(driver: Driver) -> None:
    """Messages with a status, with an empty one, and of a deleted conversation; ids in each form that drivers return."""
    connection = Connection(recorded("example_5", driver=driver))
    queue = sql_server.read_transmission_queue(connection)
    assert queue.schema == sql_server.TRANSMISSION_QUEUE
    rows = queue.to_pylist()
    assert [uuid.UUID(bytes=row["conversation_id"]) for row in rows] == [
        uuid.UUID("0E984725-C51C-4BF4-9960-E1C80E27ABA0"),
        uuid.UUID("1E984725-C51C-4BF4-9960-E1C80E27ABA0"),
        uuid.UUID("8F9619FF-8B86-D011-B42D-00C04FC964FF"),
    ]
    assert [row["is_initiator"] for row in rows] == [True, False, True]
    assert [row["message_sequence_number"] for row in rows] == [0, 2**63 - 1, 1]
    assert rows[2]["enqueue_time"] == datetime(2026, 11, 20, 20, 59, 59, 997000, tzinfo=UTC)

    explained = diagnose.stuck(Catalog.from_sql_server(connection), queue, at=datetime(2026, 11, 20, 21, tzinfo=UTC))
    decisions = [(row["outcome"], row["reason"]) for row in explained.to_pylist()]
    assert decisions == [("DELAYED", "service_not_found"), ("REMOTE", "matched"), ("REMOTE", "matched")]
    assert explained["transmission_status"].to_pylist() == [rows[0]["transmission_status"], "", ""]


@pytest.mark.rule("R5")
def test_names_that_differ_only_in_case_are_different() -> None:
    """As on an instance with a case-sensitive collation: databases, services and routes."""
    catalog = Catalog.from_sql_server(Connection(recorded("case_sensitive", driver="text")))
    enabled = {row["name"]: row["is_broker_enabled"] for row in catalog.databases.to_pylist()}
    assert enabled == {"Odd]Name": False, "SALES": False, "Sales": True, "msdb": True}
    assert catalog.services.to_pylist() == [
        {"database": "SALES", "name": "//orders"},
        {"database": "Sales", "name": "//Orders"},
    ]
    assert catalog.addresses == ("TCP://sql-02:5022", "TCP://10.0.0.1:5022", "TCP://[2001:db8::7]:5022")
    routes = {row["name"]: row for row in catalog.routes.to_pylist() if row["database"] == "Sales"}
    assert routes["Stock"]["lifetime"] == datetime(2027, 1, 1, 12, 30, 0, 123000, tzinfo=UTC)
    assert [routes[name]["address"] for name in ("Stock", "STOCK", "Lost", "Read")] == [
        "tcp://Stock-1:4022",
        "tcp://stock-3",
        "TCP://stock-4:4022",
        "transport",
    ]
    found = diagnose.lint(catalog, at=datetime(2026, 12, 20, tzinfo=UTC))
    assert {(finding.code, finding.object) for finding in found if finding.database == "Sales"} >= {
        ("SSB001", 'route "Lost"'),
        ("SSB004", 'route "Stock"'),
    }


@pytest.mark.parametrize(("name", "databases"), [("nothing_to_see", ["Sales", "msdb"]), ("no_database", ["msdb"])])
def test_a_login_without_permissions_gets_an_empty_catalog(name: str, databases: list[str]) -> None:
    connection = Connection(recorded(name, driver="uuid"))
    catalog = Catalog.from_sql_server(connection)
    assert sorted(map(str, catalog.databases["name"].to_pylist())) == databases
    assert (catalog.routes.num_rows, catalog.services.num_rows, catalog.addresses) == (0, 0, ())
    assert sql_server.read_transmission_queue(connection).num_rows == 0


def test_bytes_of_wrong_length_are_rejected() -> None:
    results = recorded("example_5", driver="bytes")
    query = sql_server.TRANSMISSION_QUEUE_QUERY.format(database=f"[{USER}]")
    names, rows = results[query]
    with pytest.raises(InvalidGuidError, match="conversation_handle: b'short' is not a valid GUID"):
        sql_server.read_transmission_queue(Connection({**results, query: (names, [(b"short", *rows[0][1:])])}))
