"""Explanations by a router."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Catalog, Explanation, Router
from tests.routing.conversations import CATALOG, IDS, NOW, ORDERS_ID, conversations, routes
from tests.routing.explanation_scenarios import SCENARIOS


@pytest.mark.parametrize(
    "broker_instance", [ORDERS_ID, ORDERS_ID.bytes, str(ORDERS_ID), "{" + str(ORDERS_ID).upper() + "}", None]
)
def test_explain_accepts_guids_in_any_form(broker_instance: Any) -> None:
    explanation = Router(CATALOG).explain("//Sales", to_broker_instance=broker_instance, database="Sales", now=NOW)
    assert explanation.to_dict()["conversation"]["to_broker_instance"] == (
        None if broker_instance is None else str(ORDERS_ID)
    )
    assert explanation.decision["outcome"] == ("DELAYED" if broker_instance is None else "LOCAL")


@pytest.mark.parametrize("name", ["to_broker_instance", "conversation_id"])
@pytest.mark.parametrize("value", ["", "22222222", "\udcff" * 36, bytes(15), bytes(17), 5, bytearray(16)])
def test_the_error_names_the_argument_that_is_not_a_guid(name: str, value: Any) -> None:
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
def test_the_error_names_the_argument_of_the_wrong_type(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {"to_service_name": "//Orders", "database": "Sales", "is_initiator": True} | {
        name: value
    }
    with pytest.raises(ssbroker.SchemaError, match=f"^{name}: expected "):
        Router(CATALOG).explain(**arguments)


@pytest.mark.parametrize("name", ["to_service_name", "database"])
def test_the_error_names_the_argument_that_is_not_valid_utf8(name: str) -> None:
    arguments: dict[str, Any] = {"to_service_name": "//Orders", "database": "Sales"} | {name: "//\udcff"}
    with pytest.raises(ssbroker.InputError, match=rf"^{name}: expected valid UTF-8 text, got '//\\udcff'$"):
        Router(CATALOG).explain(**arguments)


def test_the_error_names_the_unknown_database() -> None:
    with pytest.raises(ssbroker.UnknownDatabaseError, match="sales"):
        Router(CATALOG).explain("//Orders", database="sales")


@pytest.mark.parametrize("tie_break", ["hash", "first"])
@pytest.mark.parametrize("name", ["//Orders", "//Late", "//Mirrored", "//Sales", "//Nobody"])
@pytest.mark.parametrize("database", ["Sales", "msdb", None])
def test_explain_decides_like_route(tie_break: Any, name: str, database: str | None) -> None:
    router = Router(CATALOG, tie_break=tie_break)
    decided = router.route(conversations([name], database), now=NOW).to_pylist()[0]
    explained = router.explain(name, database=database, conversation_id=IDS[0], now=NOW)
    broker_instance = decided.pop("broker_instance")
    expected = decided | {"broker_instance": broker_instance and uuid.UUID(bytes=broker_instance)}
    assert explained.decision == expected
    assert str(explained).splitlines()[-1].startswith(f"Decision: {expected['outcome']}")


def keys(value: Any, seen: dict[str, set[str]], path: str = "") -> dict[str, set[str]]:
    """Returns the keys of each dict in a tree; lists add nothing to the path."""
    if isinstance(value, dict):
        seen.setdefault(path, set()).update(value)
        for key, item in value.items():
            keys(item, seen, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            keys(item, seen, path)
    return seen


def test_the_scenarios_of_text_tests_have_the_structure_of_native_explanations() -> None:
    native: dict[str, set[str]] = {}
    for name in ("//Orders", "//Late", "//Mirrored", "//Sales", "//orders"):
        for guid in (None, ORDERS_ID):
            for database in ("Sales", None):
                explanation = Router(CATALOG).explain(name, to_broker_instance=guid, database=database, now=NOW)
                assert isinstance(explanation, Explanation)
                keys(explanation.to_dict(), native)
    keys(Router(CATALOG).explain("//Sales", to_broker_instance=ORDERS_ID, is_initiator=False).to_dict(), native)
    supposed: dict[str, set[str]] = {}
    keys(list(SCENARIOS.values()), supposed)
    assert {path: supposed[path] for path in native.keys() & supposed.keys()} == {
        path: native[path] for path in native.keys() & supposed.keys()
    }
    assert supposed.keys() <= native.keys()


@pytest.mark.rule("R32", "R41")
@pytest.mark.parametrize(
    ("database", "comes_first"),
    [("Stores", True), ("Sales", False), (None, False)],
)
def test_the_own_database_is_preferred_only_for_local_conversations(database: str | None, *, comes_first: bool) -> None:
    """Explanations used to mention this for messages from outside, and for those that returned to this instance."""
    tables = routes(
        {"name": "ToMyself", "remote_service_name": "//Orders", "address": "TCP://me"},
        {"name": "Here", "address": "LOCAL", "database": "Stores"},
        {"name": "Arrived", "address": "LOCAL", "database": "msdb"},
    )
    services = pa.table({"database": ["Sales", "Stores"], "name": ["//Orders"] * 2})
    router = Router(Catalog(tables, services=services, addresses=["TCP://me"]))
    explanations = [router.explain("//Orders", database=database, conversation_id=id_, now=NOW) for id_ in IDS[:20]]
    assert {each.decision["target_database"] for each in explanations} == (
        {"Stores"} if comes_first else {"Sales", "Stores"}
    )
    sentence = (
        "; the sender's own database is searched first"
        if comes_first
        else "; no database is preferred for a message from another instance"
    )
    assert all(f"Locate: a database that has the service{sentence}\n" in str(each) for each in explanations)
