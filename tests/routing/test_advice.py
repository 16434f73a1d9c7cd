"""Following the advice of an explanation gets the conversation routed."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

import ssbroker
from ssbroker import Catalog, Explanation, Router
from ssbroker._text import restore_spaces
from ssbroker.advice import advice

_NOW: Final = datetime(2026, 11, 20, 21, tzinfo=UTC)
_ORDERS: Final = "11111111-1111-1111-1111-111111111111"
_OTHER: Final = "22222222-2222-2222-2222-222222222222"
_STALE: Final = "33333333-3333-3333-3333-333333333333"
_PLACEHOLDERS: Final = {
    "<name>": "[Advised]",
    "<host>": "far",
    "<endpoint>": "[Broker]",
    "<seconds>": "600",
    "<queue>": "Advised",
    " (<contract>)": "",
    "<database>": "Orders",
}
_BASE_SCRIPT: Final = f"""
CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER (MESSAGE_FORWARDING = DISABLED) -- ssbroker: addresses_only=TCP://me:4022
CREATE DATABASE Orders -- ssbroker: service_broker_guid={_ORDERS}
CREATE DATABASE Sales -- ssbroker: service_broker_guid={_OTHER}
GO
USE Orders
DROP ROUTE AutoCreatedLocal
CREATE QUEUE Advised
USE Sales
DROP ROUTE AutoCreatedLocal
USE msdb
DROP ROUTE AutoCreatedLocal
"""
_SERVICE: Final = "USE Orders CREATE SERVICE [//Orders] ON QUEUE Advised\n"
_COPY: Final = f"CREATE DATABASE Copy -- ssbroker: service_broker_guid={_ORDERS}\n"
_STARTED_IN_SALES: Final[dict[str, Any]] = {"database": "Sales"}
_EXPIRED: Final = "-- ssbroker: lifetime=2026-11-01T00:00:00Z\n"
_ROUTED: Final = {"LOCAL", "REMOTE", "FORWARD"}


def _explained(script: str, folder: Path, service: str = "//Orders", **options: Any) -> Explanation:
    file = folder / "net.sql"
    file.write_text(_BASE_SCRIPT + script, encoding="utf-8")
    catalog = Catalog.load(file, now=_NOW)
    return Router(catalog, tie_break="first").explain(service, now=_NOW, **options)


def _commands(explanation: Explanation) -> list[str]:
    return [restore_spaces(each.command) for each in advice(explanation.details) if each.command is not None]


def _run_command(script: str, command: str) -> str:
    for placeholder, value in _PLACEHOLDERS.items():
        command = command.replace(placeholder, value)
    assert re.search(r"<\w+>", command) is None
    return f"{script}\nGO\n{command}\n"


_ORDERS_ROUTE: Final = "CREATE ROUTE R WITH SERVICE_NAME = '//Orders', "
_BY_ID: Final = f"{_ORDERS_ROUTE} BROKER_INSTANCE = '{_STALE}', "
_DISABLED: Final = "ALTER DATABASE Orders SET DISABLE_BROKER\n"
_ENABLE_FORWARDING: Final = "ALTER ENDPOINT Broker FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED)\n"
_BY_LOCAL: Final = f"USE Sales {_ORDERS_ROUTE} ADDRESS = 'LOCAL'\n"
_OWN_NAME: Final = "me:4022/Orders"
_CASES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "no route": (_SERVICE, _STARTED_IN_SALES),
    "no route from outside": (_SERVICE, {}),
    "an expired route": (
        "USE Sales " + _ORDERS_ROUTE + "ADDRESS = 'TCP://a' " + _EXPIRED + _SERVICE,
        _STARTED_IN_SALES,
    ),
    "an expired route in msdb": ("USE msdb " + _ORDERS_ROUTE + "ADDRESS = 'TCP://a' " + _EXPIRED + _SERVICE, {}),
    "another id, and expired": (
        f"USE Sales {_BY_ID} ADDRESS = 'TCP://a' {_EXPIRED}",
        _STARTED_IN_SALES | {"to_broker_instance": _ORDERS},
    ),
    "another case, another id, and expired": (
        f"USE Sales CREATE ROUTE R WITH SERVICE_NAME = '//orders', BROKER_INSTANCE = '{_STALE}', ADDRESS = 'TCP://a' {_EXPIRED}",
        _STARTED_IN_SALES | {"to_broker_instance": _ORDERS},
    ),
    "the database is disabled": (
        "USE Sales CREATE ROUTE R WITH ADDRESS = 'LOCAL'\nALTER DATABASE Orders SET DISABLE_BROKER\n" + _SERVICE,
        _STARTED_IN_SALES,
    ),
    "no database has the service": ("USE Sales CREATE ROUTE R WITH ADDRESS = 'LOCAL'\n", _STARTED_IN_SALES),
    "no database has the service, for a message from outside": ("USE msdb CREATE ROUTE R WITH ADDRESS = 'LOCAL'\n", {}),
    "no database has the broker id": (
        f"USE Sales {_BY_ID} ADDRESS = 'LOCAL'\n",
        _STARTED_IN_SALES | {"to_broker_instance": _STALE},
    ),
    "the database of the id lacks the service and is disabled": (
        "USE Sales CREATE ROUTE R WITH ADDRESS = 'LOCAL'\nALTER DATABASE Orders SET DISABLE_BROKER\n",
        _STARTED_IN_SALES | {"to_broker_instance": _ORDERS},
    ),
    "a reply to a disabled database without the service": (
        "ALTER DATABASE Orders SET DISABLE_BROKER\n",
        {"to_broker_instance": _ORDERS, "is_initiator": False},
    ),
    "forwarding is off": ("USE msdb CREATE ROUTE R WITH ADDRESS = 'TCP://a'\n" + _SERVICE, {}),
    "forwarding is off, and a route names the id": (
        f"USE msdb {_BY_ID.replace(_STALE, _ORDERS)} ADDRESS = 'TCP://a'\n" + _SERVICE,
        {"to_broker_instance": _ORDERS},
    ),
    "forwarding is off, and the route is mirrored": (
        f"USE msdb {_BY_ID.replace(_STALE, _ORDERS)} ADDRESS = 'TCP://a', MIRROR_ADDRESS = 'TCP://b'\n" + _SERVICE,
        {"to_broker_instance": _ORDERS},
    ),
    "forwarding is off, and the route leads back": (
        "USE msdb CREATE ROUTE R WITH ADDRESS = 'TCP://me'\n" + _SERVICE,
        {},
    ),
    "a loop": (
        "ALTER ENDPOINT Broker FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED)\n"
        "USE msdb CREATE ROUTE R WITH ADDRESS = 'TCP://me'\n" + _SERVICE,
        {},
    ),
    "no address in the name": ("USE Sales CREATE ROUTE R WITH ADDRESS = 'TRANSPORT'\n" + _SERVICE, _STARTED_IN_SALES),
    "no address in the name, from outside": ("USE msdb CREATE ROUTE R WITH ADDRESS = 'TRANSPORT'\n" + _SERVICE, {}),
    "no address in the name, and a similar expired route": (
        f"USE Sales CREATE ROUTE R WITH ADDRESS = 'TRANSPORT'\nCREATE ROUTE Old WITH ADDRESS = 'TRANSPORT' {_EXPIRED}{_SERVICE}",
        _STARTED_IN_SALES,
    ),
    "no such service, and an expired route to LOCAL": (
        f"USE Sales CREATE ROUTE R WITH ADDRESS = 'LOCAL'\nCREATE ROUTE Old WITH ADDRESS = 'LOCAL' {_EXPIRED}",
        _STARTED_IN_SALES,
    ),
    "an expired route back to this instance, and no other route": (
        f"USE Sales {_ORDERS_ROUTE} ADDRESS = 'TCP://me' {_EXPIRED}{_SERVICE}",
        _STARTED_IN_SALES,
    ),
    "an expired route back to this instance, in msdb": (
        f"{_ENABLE_FORWARDING}USE msdb {_ORDERS_ROUTE} ADDRESS = 'TCP://me' {_EXPIRED}{_SERVICE}",
        {},
    ),
    "an expired route to LOCAL, and no database has the service": (
        f"USE Sales {_ORDERS_ROUTE} ADDRESS = 'LOCAL' {_EXPIRED}",
        _STARTED_IN_SALES,
    ),
    "a route and a service with a similar name": (
        "USE Sales CREATE ROUTE R WITH SERVICE_NAME = '//orders', ADDRESS = 'LOCAL'\nUSE Orders CREATE SERVICE [//orders] ON QUEUE Advised\n",
        _STARTED_IN_SALES,
    ),
    "a route with a similar name, for a later step of the search": (
        f"{_BY_LOCAL}CREATE ROUTE Near WITH SERVICE_NAME = '//orders', BROKER_INSTANCE = '{_STALE}', ADDRESS = 'TCP://a'\n",
        _STARTED_IN_SALES,
    ),
    "no route, and the database is disabled": (_SERVICE + _DISABLED, _STARTED_IN_SALES),
    "forwarding is off, and the database is disabled": (
        f"USE msdb CREATE ROUTE R WITH ADDRESS = 'TCP://a'\n{_SERVICE}{_DISABLED}",
        {},
    ),
    "forwarding is off, and two routes are mirrored": (
        "USE msdb "
        + "".join(
            f"CREATE ROUTE {name} WITH SERVICE_NAME = '//Orders', BROKER_INSTANCE = '{_ORDERS}', ADDRESS = 'TCP://{name}', "
            "MIRROR_ADDRESS = 'TCP://b'\n"
            for name in ("R1", "R2")
        )
        + _SERVICE,
        {"to_broker_instance": _ORDERS},
    ),
    "forwarding is off, and the address in the service name leads back": (
        f"USE msdb CREATE ROUTE R WITH ADDRESS = 'TRANSPORT'\nUSE Orders CREATE SERVICE [{_OWN_NAME}] ON QUEUE Advised\n",
        {"service": _OWN_NAME},
    ),
    "a loop by the address in the service name": (
        f"{_ENABLE_FORWARDING}USE msdb CREATE ROUTE R WITH ADDRESS = 'TRANSPORT'\nUSE Orders CREATE SERVICE [{_OWN_NAME}] ON QUEUE Advised\n",
        {"service": _OWN_NAME},
    ),
    "a loop, and the database is disabled": (
        f"{_ENABLE_FORWARDING}USE msdb CREATE ROUTE R WITH ADDRESS = 'TCP://me'\n{_SERVICE}{_DISABLED}",
        {},
    ),
    "a loop by a mirrored route": (
        f"{_ENABLE_FORWARDING}USE msdb {_BY_ID.replace(_STALE, _ORDERS)} ADDRESS = 'TCP://me', MIRROR_ADDRESS = 'TCP://b'\n{_SERVICE}",
        {"to_broker_instance": _ORDERS},
    ),
    "the id is enabled in the database of the sender": (
        f"{_DISABLED}{_COPY}USE Copy\n{_SERVICE}",
        {"database": "Copy"},
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_following_the_advice_gets_the_conversation_routed(case: str, tmp_path: Path) -> None:
    script, options = _CASES[case]
    before = _explained(script, tmp_path, **options)
    assert before.decision["outcome"] not in _ROUTED
    commands = _commands(before)
    assert commands
    for command in commands:
        if "ADDRESS = N'LOCAL'" in command and f"CREATE SERVICE [{options.get('service', '//Orders')}]" not in script:
            continue  # advice for a service in this instance does not apply
        if (restart := re.search(r"BEGIN DIALOG .* N'(.*)'", command)) is not None:
            after = _explained(script, tmp_path, restart[1], **options)
        else:
            after = _explained(_run_command(script, command), tmp_path, **options)
        assert after.decision["outcome"] in _ROUTED, f"{command}\n{after}"


@pytest.mark.rule("I7")
@pytest.mark.parametrize("options", [{}, {"to_broker_instance": _ORDERS}])
@pytest.mark.parametrize("is_initiator", [True, False])
def test_enabling_is_not_advised_if_the_broker_id_is_enabled_elsewhere(
    options: dict[str, Any], *, is_initiator: bool, tmp_path: Path
) -> None:
    """ENABLE_BROKER would fail."""
    script = (
        f"ALTER DATABASE Orders SET DISABLE_BROKER\n{_COPY}USE msdb CREATE ROUTE R WITH ADDRESS = 'LOCAL'\n{_SERVICE}"
    )
    before = _explained(script, tmp_path, is_initiator=is_initiator, **options)
    assert before.decision["reason"] == "service_not_found"
    assert 'its broker id is already enabled in "Copy"' in " ".join(str(before).split())
    for command in _commands(before):
        if "CREATE ROUTE" not in command and "CREATE SERVICE" not in command:
            after = _explained(_run_command(script, command), tmp_path, is_initiator=is_initiator, **options)
            assert after.decision["outcome"] == "LOCAL", command


def test_advice_names_the_endpoint_that_the_script_creates(tmp_path: Path) -> None:
    for script, name in (("", "[Broker]"), ("DROP ENDPOINT Broker\nGO\n", "<endpoint>")):
        explained = str(_explained(script, tmp_path, database=None))
        assert f"ALTER ENDPOINT {name} FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED);" in explained


@pytest.mark.rule("I7")
def test_advice_names_the_database_where_the_broker_id_is_enabled(tmp_path: Path) -> None:
    """ENABLE_BROKER would fail."""
    script = f"ALTER DATABASE Orders SET DISABLE_BROKER\n{_COPY}"
    before = _explained(script, tmp_path, database="Orders")
    assert 'its broker id is already enabled in "Copy"' in " ".join(str(before).split())
    for command in _commands(before):
        after = _explained(_run_command(script, command), tmp_path, database="Orders")
        assert after.decision["reason"] != "sender_disabled", command


@pytest.mark.parametrize("near", ["//orders", "//Ordes", "//Orderss", "//Odrers", "// Orders", "//0rders"])
def test_similar_service_is_suggested(near: str, tmp_path: Path) -> None:
    script = f"USE Sales CREATE ROUTE R WITH ADDRESS = 'LOCAL'\n{_SERVICE}"
    before = _explained(script, tmp_path, near, **_STARTED_IN_SALES)
    assert "BEGIN DIALOG ... TO SERVICE N'//Orders';" in _commands(before)
    assert _explained(script, tmp_path, **_STARTED_IN_SALES).decision["outcome"] == "LOCAL"


def test_similar_service_is_not_suggested_for_a_reply(tmp_path: Path) -> None:
    """The initiator has determined the name of its service."""
    script = f"USE Sales CREATE ROUTE R WITH ADDRESS = 'LOCAL'\n{_SERVICE}"
    assert "BEGIN DIALOG" not in str(_explained(script, tmp_path, "//orders", database="Sales", is_initiator=False))


@pytest.mark.parametrize(
    ("wanted", "existing"), [("//Shop/S21", "//Shop/S1"), ("//s/E", "//s/A"), ("//s/S1", "//s/T1"), ("//s/A", "//s/AB")]
)
def test_name_that_differs_on_purpose_is_not_suggested(wanted: str, existing: str, tmp_path: Path) -> None:
    script = f"USE Orders CREATE SERVICE [{existing}] ON QUEUE Advised\nUSE Sales CREATE ROUTE R WITH ADDRESS = 'LOCAL'"
    explained = _explained(script, tmp_path, wanted, **_STARTED_IN_SALES)
    assert f"TO SERVICE N'{existing}'" not in str(explained)


@pytest.mark.parametrize("wanted", [" //Orders", "//Orders ", "// Orders", "//Orders\u200b"])
def test_route_is_not_changed_to_a_name_with_more_white_space(wanted: str, tmp_path: Path) -> None:
    script = "USE Sales CREATE ROUTE R WITH SERVICE_NAME = '//Orders', ADDRESS = 'TCP://far'"
    commands = _commands(_explained(script, tmp_path, wanted, **_STARTED_IN_SALES))
    assert commands[0] == "BEGIN DIALOG ... TO SERVICE N'//Orders';"
    assert not any("ALTER ROUTE" in command for command in commands)


def test_route_with_white_space_in_its_name_is_corrected(tmp_path: Path) -> None:
    script = "USE Sales CREATE ROUTE R WITH SERVICE_NAME = '//Orders ', ADDRESS = 'TCP://far'"
    commands = _commands(_explained(script, tmp_path, "//Orders", **_STARTED_IN_SALES))
    assert commands[0] == "USE [Sales]; ALTER ROUTE [R] WITH SERVICE_NAME = N'//Orders';"


def test_unreachable_similar_service_is_not_suggested(tmp_path: Path) -> None:
    assert "BEGIN DIALOG" not in str(_explained(_SERVICE, tmp_path, "//orders", **_STARTED_IN_SALES))


@pytest.mark.parametrize("near", ["sales", "Sale", " Sales", "Slaes"])
def test_similar_database_is_suggested(near: str, tmp_path: Path) -> None:
    with pytest.raises(ssbroker.UnknownDatabaseError, match=r"did you mean Sales\?") as caught:
        _explained("", tmp_path, database=near)
    assert caught.value.column == "database"


def test_broker_id_that_no_database_has_is_reported(tmp_path: Path) -> None:
    """Creating the service would not help: no database would have the id."""
    script, options = _CASES["no database has the broker id"]
    text = " ".join(str(_explained(script, tmp_path, **options)).split())
    assert f"No database of this instance has the broker id {_STALE}" in text
    assert "CREATE SERVICE" not in text


_UNKNOWN_ID: Final = "CREATE DATABASE Unstated\nGO\nUSE Unstated CREATE QUEUE Q CREATE SERVICE [//Orders] ON QUEUE Q\n"


@pytest.mark.rule("R31")
@pytest.mark.parametrize(
    ("script", "options"),
    [
        (_UNKNOWN_ID, {"database": "Unstated"}),
        ("USE msdb CREATE ROUTE R WITH ADDRESS = 'LOCAL'\n" + _UNKNOWN_ID, {}),
        ("USE msdb CREATE ROUTE R WITH ADDRESS = 'LOCAL'\n" + _UNKNOWN_ID, {"is_initiator": False}),
        ("USE msdb CREATE ROUTE R WITH ADDRESS = 'LOCAL'\n" + _SERVICE + _UNKNOWN_ID, {}),
        ("USE msdb CREATE ROUTE R WITH ADDRESS = 'TCP://a'\n" + _UNKNOWN_ID, {}),
    ],
)
def test_unknown_broker_id_is_not_taken_for_another_id(script: str, options: dict[str, Any], tmp_path: Path) -> None:
    """The advice must not be to end the conversation, which loses messages."""
    explanation = _explained(script, tmp_path, to_broker_instance=_STALE, **options)
    text = " ".join(str(explanation).split())
    assert explanation.decision["outcome"] in ("DELAYED", "DROPPED")
    assert (
        '"Unstated" has the service, but the catalog does not contain its broker id, so whether the conversation is for this '
        "database cannot be determined; the decision assumes that it is not. Specify broker ids in a script with the comment "
        "-- ssbroker: service_broker_guid=<id> at the end of the statement that creates or uses the database, or in the column "
        "service_broker_guid of databases.csv."
    ) in text
    assert "SELECT name, service_broker_guid FROM sys.databases;" in _commands(explanation)
    for claim in (
        "End the conversation",
        "whose broker id is not",
        "No database of this instance has",
        "can accept the conversation",
        "no database of this instance has the broker id",
    ):
        assert claim not in text
    specified = script.replace("Unstated\n", f"Unstated -- ssbroker: service_broker_guid={_STALE}\n", 1)
    after = _explained(specified, tmp_path, to_broker_instance=_STALE, **options)
    assert after.decision["outcome"] == "LOCAL" or after.decision["reason"] == "forwarding_disabled"


def test_missing_service_is_reported_where_a_database_may_have_the_broker_id(tmp_path: Path) -> None:
    """Not a broker id that no database has."""
    script = f"USE Sales {_BY_ID} ADDRESS = 'LOCAL'\nCREATE DATABASE Unstated\n"
    explanation = _explained(script, tmp_path, to_broker_instance=_STALE, **_STARTED_IN_SALES)
    text = " ".join(str(explanation).split())
    assert "- no database of this instance has the service What" in text
    assert "End the conversation" not in text
    assert any("CREATE SERVICE" in command for command in _commands(explanation))


@pytest.mark.rule("I5")
def test_broker_id_that_new_broker_has_replaced_is_another_id(tmp_path: Path) -> None:
    """The catalog does not contain the new id, but the new id differs from the former one."""
    script = f"USE msdb CREATE ROUTE R WITH ADDRESS = 'LOCAL'\n{_SERVICE}GO\nALTER DATABASE Orders SET NEW_BROKER\n"
    text = " ".join(str(_explained(script, tmp_path, to_broker_instance=_ORDERS)).split())
    assert f'The service is in "Orders", whose broker id is not {_ORDERS}' in text
    assert '"Orders" has the service, but has a different broker id' in text


@pytest.mark.rule("R14")
@pytest.mark.parametrize("options", [_STARTED_IN_SALES, {}])
def test_expired_route_to_the_dynamic_routing_service_is_extended(options: dict[str, Any], tmp_path: Path) -> None:
    """The route request is a conversation of this instance, so forwarding is not needed."""
    table = options.get("database", "msdb")
    script = f"USE {table} CREATE ROUTE R WITH SERVICE_NAME = 'SQL/ServiceBroker/BrokerConfiguration', ADDRESS = 'TCP://a' {_EXPIRED}"
    first = _commands(_explained(script, tmp_path, **options))[0]
    assert first == f"USE [{table}]; ALTER ROUTE [R] WITH LIFETIME = <seconds>;"
    assert _explained(_run_command(script, first), tmp_path, **options).decision["reason"] == "route_requested"


@pytest.mark.rule("R31")
def test_no_local_route_is_advised_if_only_other_broker_ids_have_the_service(tmp_path: Path) -> None:
    """LOCAL delivers only to the database with the broker id that the conversation names."""
    script = f"USE msdb CREATE ROUTE R WITH ADDRESS = 'TCP://a'\n{_SERVICE}"
    before = _explained(script, tmp_path, to_broker_instance=_STALE)
    assert f'The service is in "Orders", whose broker id is not {_STALE}' in " ".join(str(before).split())
    assert "ADDRESS = N'LOCAL'" not in str(before)


@pytest.mark.rule("R23")
def test_advice_on_a_transport_loop_keeps_other_services_routed(tmp_path: Path) -> None:
    """Giving the TRANSPORT route a fixed address would send every service there."""
    script, options = _CASES["a loop by the address in the service name"]
    for command in _commands(_explained(script, tmp_path, **options)):
        other = _explained(_run_command(script, command), tmp_path, "TCP://far:4023/Other")
        assert other.decision["next_hop_address"] == "TCP://far:4023", command
