from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from ssbroker.explain import Explanation
from tests.routing.explanation_scenarios import (
    ORDERS_ID,
    SCENARIOS,
    STALE_ID,
    explained,
    group,
    rejected,
    route,
    step,
    table,
)

_GOLDEN = Path(__file__).with_name("explanations")
_WIDTH = 100
_NO_ROUTE = {"outcome": "DELAYED", "match_step": 7, "reason": "no_route"}


def _slug(name: str) -> str:
    return name.replace(" ", "-")


@pytest.mark.parametrize("name", SCENARIOS)
def test_text_of_each_scenario(name: str) -> None:
    expected = (_GOLDEN / f"{_slug(name)}.txt").read_text(encoding="utf-8")
    assert str(Explanation(SCENARIOS[name])) + "\n" == expected


def test_every_golden_file_has_a_scenario() -> None:
    assert {file.stem for file in _GOLDEN.iterdir()} == {_slug(name) for name in SCENARIOS}


@pytest.mark.parametrize("name", [name for name in SCENARIOS if "mirrored" not in name])
def test_lines_fit_the_terminal_except_long_names_and_commands(name: str) -> None:
    lines = str(Explanation(SCENARIOS[name])).splitlines()
    assert [line for line in lines if len(line) > _WIDTH and not line.startswith("      USE ")] == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_last_line_is_the_decision(name: str) -> None:
    explanation = Explanation(SCENARIOS[name])
    last = str(explanation).splitlines()[-1]
    assert last.startswith(f"Decision: {explanation.decision['outcome']}")
    assert explanation.decision["reason"] in last


def test_decision_holds_python_values() -> None:
    decision = Explanation(SCENARIOS["remote by service name and broker id"]).decision
    assert decision["broker_instance"] == uuid.UUID(ORDERS_ID)
    assert Explanation(SCENARIOS["three copies share the load"]).decision["broker_instance"] is None


@pytest.mark.parametrize("name", SCENARIOS)
def test_dict_is_a_copy_and_json_serializable(name: str) -> None:
    explanation = Explanation(SCENARIOS[name])
    exported = explanation.to_dict()
    assert json.loads(json.dumps(exported)) == SCENARIOS[name]
    exported["decision"]["outcome"] = "changed"
    exported["passes"].clear()
    assert explanation.to_dict() == SCENARIOS[name]


def test_control_characters_in_names_are_escaped() -> None:
    hostile = "//Orders\x1b[2J\n\u202eDecision:  REMOTE"
    text = str(
        Explanation(explained({"to_service_name": hostile}, [table("Sales", "begun_here", "delayed")], _NO_ROUTE))
    )
    assert all(line.isprintable() for line in text.splitlines())
    assert '"//Orders\\x1b[2J\\n\\u202eDecision:  REMOTE"' in text


def test_names_are_never_split_across_lines() -> None:
    name = "a service " * 20
    text = str(Explanation(explained({"to_service_name": name}, [table("Sales", "begun_here", "delayed")], _NO_ROUTE)))
    assert f'Conversation with the service "{name}"' in text.splitlines()


def test_names_in_commands_are_quoted_for_t_sql() -> None:
    near = route(65537, "Or]ders", "TCP://a:4022", remote_service_name="//o'hara")
    sales = table("Sa]les", "begun_here", "delayed", steps=[step(2, **rejected((near, "name_differs_in_case")))])
    text = str(Explanation(explained({"to_service_name": "//O'Hara"}, [sales], _NO_ROUTE)))
    assert "USE [Sa]]les]; ALTER ROUTE [Or]]ders] WITH SERVICE_NAME = N'//O''Hara';" in text


@pytest.mark.parametrize("space", ["\u3000", "\u00a0", "\u2009"])
def test_commands_keep_unicode_spaces_in_names(space: str) -> None:
    """T-SQL would take an escape sequence for part of the name; in descriptions the escape makes the space visible."""
    name = f"//注文{space}受付"
    near = route(65537, f"In{space}box", "TCP://a:4022", remote_service_name="//注文 受付")
    sales = table("Sales", "begun_here", "delayed", steps=[step(2, **rejected((near, "name_differs_in_white_space")))])
    text = str(Explanation(explained({"to_service_name": name}, [sales], _NO_ROUTE)))
    assert f"USE [Sales]; ALTER ROUTE [In{space}box] WITH SERVICE_NAME = N'{name}';" in text
    assert f'"//注文{ascii(space)[1:-1]}受付"' in text.splitlines()[0]


def test_route_rejected_by_several_steps_is_advised_on_once() -> None:
    expired = route(65537, "Orders", "TCP://a:4022", lifetime="2026-11-01T00:00:00Z")
    steps = [step(number, **rejected((expired, "expired"))) for number in (2, 3)]
    text = str(Explanation(explained({}, [table("Sales", "begun_here", "delayed", steps=steps)], _NO_ROUTE)))
    assert text.count("ALTER ROUTE [Orders] WITH LIFETIME") == 1


def test_unlisted_rejected_routes_are_counted() -> None:
    expired = route(65537, "Orders", "TCP://a:4022", lifetime="2026-11-01T00:00:00Z")
    steps = [step(2, **(rejected((expired, "expired")) | {"rejected_count": 8}))]
    text = str(Explanation(explained({}, [table("Sales", "begun_here", "delayed", steps=steps)], _NO_ROUTE)))
    assert "     - and 7 more" in text.splitlines()


@pytest.mark.rule("R31")
def test_stale_broker_id_is_explained() -> None:
    """The conversation names a broker id that the database of its service no longer has."""
    local = route(65536, "AutoCreatedLocal", "LOCAL")
    databases = [
        {
            "name": "Orders",
            "broker_instance": ORDERS_ID,
            "is_broker_enabled": True,
            "has_service": True,
            "id_enabled_in": None,
        }
    ]
    sales = table(
        "Sales",
        "begun_here",
        "delayed",
        steps=[step(5, "One live route names neither.", matched=[local])],
        classes=[
            group("mirror"),
            group("local", local, unusable="service_not_found"),
            group("network"),
            group("transport"),
        ],
        locate={"rule": "R31", "broker_instance": STALE_ID, "databases": databases, "candidates": [], "picked": None},
    )
    decision = {"outcome": "DELAYED", "match_step": 5, "reason": "service_not_found"}
    text = str(Explanation(explained({"to_broker_instance": STALE_ID}, [sales], decision)))
    assert f"Locate: the database with broker id {STALE_ID}, if it has the service" in text
    assert '  - "Orders"  has the service, but has a different broker id' in text.splitlines()
    assert "  routes to LOCAL                              1, not usable" in text.splitlines()
    assert f'The service is in "Orders", whose broker id is not {STALE_ID}' in text


@pytest.mark.rule("R13")
def test_picked_broker_id_is_shown() -> None:
    """If routes have several broker ids, one is picked."""
    name = "//Contoso/Orders"
    picked = route(65537, "A", "TCP://a:4022", remote_service_name=name, broker_instance=ORDERS_ID)
    other = route(65538, "B", "TCP://b:4022", remote_service_name=name, broker_instance=STALE_ID)
    third = step(
        3,
        "Two broker ids occur.",
        matched=[picked],
        candidate_broker_ids=[ORDERS_ID, STALE_ID],
        picked_broker_id=ORDERS_ID,
        **rejected((other, "not_the_picked_id")),
    )
    sales = table("Sales", "begun_here", "send", steps=[third])
    decision = {
        "outcome": "REMOTE",
        "match_step": 3,
        "route_id": 65537,
        "next_hop_address": "TCP://a:4022",
        "reason": "matched",
    }
    text = str(Explanation(explained({}, [sales], decision)))
    assert f"     {ORDERS_ID} is picked from 2 broker ids" in text.splitlines()
    assert f"has a broker id that was not picked, {STALE_ID}" in " ".join(text.split())


def test_equal_details_make_equal_explanations() -> None:
    first, second = (SCENARIOS[name] for name in list(SCENARIOS)[:2])
    assert Explanation(first) == Explanation(Explanation(first).to_dict())
    assert Explanation(first) != Explanation(second)


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        ("address_unusable", "USE [Sales]; CREATE ROUTE"),
        ("forwarding_disabled", "ALTER ENDPOINT <endpoint> FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED);"),
        ("no_route", "USE [Sales]; CREATE ROUTE"),
        ("route_requested", "SQL/ServiceBroker/BrokerConfiguration"),
        ("routing_loop", "USE [Sales]; ALTER ROUTE [Back] WITH ADDRESS = N'LOCAL';"),
        (
            "sender_disabled",
            "ALTER DATABASE [Sales] SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE;",
        ),
        ("service_not_found", "USE <database>; CREATE SERVICE [//Contoso/Orders]"),
    ],
)
def test_every_reason_for_delay_or_drop_has_advice(reason: str, command: str) -> None:
    back = route(65537, "Back", "TCP://me:4022")
    sales = table("Sales", "begun_here", "dropped", classes=[group("network", back, picked=0)])
    text = str(Explanation(explained({}, [sales], {"outcome": "DROPPED", "reason": reason})))
    assert "What to do" in text
    assert command in text


@pytest.mark.rule("R22")
def test_no_database_is_picked_if_another_route_was_chosen() -> None:
    """A route to LOCAL was usable, but a route to a network address was chosen."""
    mirrored = [
        route(65536 + n, f"M{n}", address, mirror_address="TCP://b:4022")
        for n, address in enumerate(("LOCAL", "TCP://a:4022"))
    ]
    databases = [
        {"name": name, "broker_instance": None, "is_broker_enabled": True, "has_service": True, "id_enabled_in": None}
        for name in ("A", "B")
    ]
    sales = table(
        "Sales",
        "begun_here",
        "send",
        steps=[step(5, "found", matched=mirrored)],
        classes=[group("mirror", *mirrored, picked=1)],
        locate={
            "rule": "R32",
            "broker_instance": None,
            "databases": databases,
            "candidates": ["A", "B"],
            "picked": None,
        },
        next_hop={"address": "TCP://a:4022", "is_this_instance": False},
    )
    decision = {
        "outcome": "REMOTE",
        "match_step": 5,
        "route_id": 65537,
        "next_hop_address": "TCP://a:4022",
        "reason": "matched",
    }
    lines = str(Explanation(explained({}, [sales], decision))).splitlines()
    assert '  + "B"  has the service' in lines
    assert lines[-1] == 'Decision: REMOTE, sent to TCP://a:4022 by route 65537 "M1" (step 5, matched).'
