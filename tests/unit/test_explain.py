from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Catalog, Explanation, Router
from tests.unit.conversations import CATALOG, IDS, NOW, ORDERS_ID, conversations, routes
from tests.unit.explained import SCENARIOS


@pytest.mark.parametrize(
    "broker_instance", [ORDERS_ID, ORDERS_ID.bytes, str(ORDERS_ID), "{" + str(ORDERS_ID).upper() + "}", None]
)
def test_an_explanation_takes_a_guid_in_any_form(broker_instance: Any) -> None:
    told = Router(CATALOG).explain("//Sales", to_broker_instance=broker_instance, database="Sales", now=NOW)
    assert told.to_dict()["conversation"]["to_broker_instance"] == (None if broker_instance is None else str(ORDERS_ID))
    assert told.decision["outcome"] == ("DELAYED" if broker_instance is None else "LOCAL")


@pytest.mark.parametrize("name", ["to_broker_instance", "conversation_id"])
@pytest.mark.parametrize("value", ["", "22222222", "\udcff" * 36, bytes(15), bytes(17), 5, bytearray(16)])
def test_an_explanation_names_what_is_no_guid(name: str, value: Any) -> None:
    with pytest.raises(ssbroker.InvalidGuidError, match=f"^{name}: ") as caught:
        Router(CATALOG).explain("//Orders", database="Sales", **{name: value})
    assert caught.value.column == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("to_service_name", None),
        ("to_service_name", b"//Orders"),
        ("database", 5),
        ("is_initiator", 1),
        ("is_initiator", None),
    ],
)
def test_an_explanation_names_an_argument_of_another_type(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {"to_service_name": "//Orders", "database": "Sales", "is_initiator": True} | {
        name: value
    }
    with pytest.raises(ssbroker.SchemaError, match=f"^{name}: expected "):
        Router(CATALOG).explain(**arguments)


@pytest.mark.parametrize("name", ["to_service_name", "database"])
def test_an_explanation_names_what_no_bytes_can_write(name: str) -> None:
    arguments: dict[str, Any] = {"to_service_name": "//Orders", "database": "Sales"} | {name: "//\udcff"}
    with pytest.raises(ssbroker.InputError, match=rf"^{name}: expected valid UTF-8 text; got '//\\udcff'$"):
        Router(CATALOG).explain(**arguments)


def test_an_explanation_names_an_unknown_database() -> None:
    with pytest.raises(ssbroker.UnknownDatabaseError, match="sales"):
        Router(CATALOG).explain("//Orders", database="sales")


@pytest.mark.parametrize("tie_break", ["hash", "first"])
@pytest.mark.parametrize("name", ["//Orders", "//Late", "//Mirrored", "//Sales", "//Nobody"])
@pytest.mark.parametrize("database", ["Sales", "msdb", None])
def test_an_explanation_decides_as_routing_does(tie_break: Any, name: str, database: str | None) -> None:
    router = Router(CATALOG, tie_break=tie_break)
    decided = router.route(conversations([name], database), now=NOW).to_pylist()[0]
    explained = router.explain(name, database=database, conversation_id=IDS[0], now=NOW)
    broker_instance = decided.pop("broker_instance")
    expected = decided | {"broker_instance": broker_instance and uuid.UUID(bytes=broker_instance)}
    assert explained.decision == expected
    assert str(explained).splitlines()[-1].startswith(f"Decision: {expected['outcome']}")


def keys(value: Any, seen: dict[str, set[str]], path: str = "") -> dict[str, set[str]]:
    """The keys of each dict in a tree; lists add nothing to the path."""
    if isinstance(value, dict):
        seen.setdefault(path, set()).update(value)
        for key, item in value.items():
            keys(item, seen, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            keys(item, seen, path)
    return seen


def test_what_the_tests_of_the_text_suppose_is_what_the_router_tells() -> None:
    told: dict[str, set[str]] = {}
    for name in ("//Orders", "//Late", "//Mirrored", "//Sales", "//orders"):
        for guid in (None, ORDERS_ID):
            for database in ("Sales", None):
                explanation = Router(CATALOG).explain(name, to_broker_instance=guid, database=database, now=NOW)
                assert isinstance(explanation, Explanation)
                keys(explanation.to_dict(), told)
    keys(Router(CATALOG).explain("//Sales", to_broker_instance=ORDERS_ID, is_initiator=False).to_dict(), told)
    supposed: dict[str, set[str]] = {}
    keys(list(SCENARIOS.values()), supposed)
    assert {path: supposed[path] for path in told.keys() & supposed.keys()} == {
        path: told[path] for path in told.keys() & supposed.keys()
    }
    assert supposed.keys() <= told.keys()


@pytest.mark.rule("R32", "R41")
@pytest.mark.parametrize(
    ("database", "comes_first"),
    [("Stores", True), ("Sales", False), (None, False)],
)
def test_the_database_of_a_conversation_comes_first_only_where_it_counts_as_begun_here(
    database: str | None, *, comes_first: bool
) -> None:
    """It was said of what arrived, and of what came back to this instance, though another database was picked."""
    tables = routes(
        {"name": "ToMyself", "remote_service_name": "//Orders", "address": "TCP://me"},
        {"name": "Here", "address": "LOCAL", "database": "Stores"},
        {"name": "Arrived", "address": "LOCAL", "database": "msdb"},
    )
    services = pa.table({"database": ["Sales", "Stores"], "name": ["//Orders"] * 2})
    router = Router(Catalog(tables, services=services, addresses=["TCP://me"]))
    told = [router.explain("//Orders", database=database, conversation_id=id_, now=NOW) for id_ in IDS[:20]]
    assert {each.decision["target_database"] for each in told} == ({"Stores"} if comes_first else {"Sales", "Stores"})
    sentence = (
        "; the sender's own database is searched first"
        if comes_first
        else "; in any order, because the message came from outside"
    )
    assert all(f"Locate: a database that has the service{sentence}\n" in str(each) for each in told)
