"""What an explanation advises, done to the letter: the conversation is on its way then."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

import ssbroker
from ssbroker import Catalog, Explanation, Router
from ssbroker._text import soften
from ssbroker.advice import advice

_NOW: Final = datetime(2026, 11, 20, 21, tzinfo=UTC)
_ORDERS: Final = "11111111-1111-1111-1111-111111111111"
_OTHER: Final = "22222222-2222-2222-2222-222222222222"
_STALE: Final = "33333333-3333-3333-3333-333333333333"
_FILLED: Final = {
    "<name>": "[Advised]",
    "<host>": "far",
    "<endpoint>": "[Broker]",
    "<seconds>": "600",
    "<queue>": "Advised",
    " (<contract>)": "",
    "<database>": "Orders",
}
_BEGINNING: Final = f"""
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
_BEGUN: Final[dict[str, Any]] = {"database": "Sales"}
_EXPIRED: Final = "-- ssbroker: lifetime=2026-11-01T00:00:00Z\n"
_ON_THE_WAY: Final = {"LOCAL", "REMOTE", "FORWARD"}


def _explained(script: str, folder: Path, service: str = "//Orders", **asked: Any) -> Explanation:
    file = folder / "net.sql"
    file.write_text(_BEGINNING + script, encoding="utf-8")
    catalog = Catalog.load(file, now=_NOW)
    return Router(catalog, tie_break="first").explain(service, now=_NOW, **asked)


def _commands(explanation: Explanation) -> list[str]:
    return [soften(each.command) for each in advice(explanation.details) if each.command is not None]


def _done(script: str, command: str) -> str:
    for place, value in _FILLED.items():
        command = command.replace(place, value)
    assert re.search(r"<\w+>", command) is None
    return f"{script}\nGO\n{command}\n"


_ORDERS_ROUTE: Final = "CREATE ROUTE R WITH SERVICE_NAME = '//Orders', "
_BY_ID: Final = f"{_ORDERS_ROUTE} BROKER_INSTANCE = '{_STALE}', "
_DISABLED: Final = "ALTER DATABASE Orders SET DISABLE_BROKER\n"
_PASS_ON: Final = "ALTER ENDPOINT Broker FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED)\n"
_BY_LOCAL: Final = f"USE Sales {_ORDERS_ROUTE} ADDRESS = 'LOCAL'\n"
_MINE: Final = "me:4022/Orders"
_CASES: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "no route": (_SERVICE, _BEGUN),
    "no route from outside": (_SERVICE, {}),
    "an expired route": ("USE Sales " + _ORDERS_ROUTE + "ADDRESS = 'TCP://a' " + _EXPIRED + _SERVICE, _BEGUN),
    "an expired route in msdb": ("USE msdb " + _ORDERS_ROUTE + "ADDRESS = 'TCP://a' " + _EXPIRED + _SERVICE, {}),
    "another id, and expired": (
        f"USE Sales {_BY_ID} ADDRESS = 'TCP://a' {_EXPIRED}",
        _BEGUN | {"to_broker_instance": _ORDERS},
    ),
    "another case, another id, and expired": (
        f"USE Sales CREATE ROUTE R WITH SERVICE_NAME = '//orders', BROKER_INSTANCE = '{_STALE}', ADDRESS = 'TCP://a' {_EXPIRED}",
        _BEGUN | {"to_broker_instance": _ORDERS},
    ),
    "the database is disabled": (
        "USE Sales CREATE ROUTE R WITH ADDRESS = 'LOCAL'\nALTER DATABASE Orders SET DISABLE_BROKER\n" + _SERVICE,
        _BEGUN,
    ),
    "the service is nowhere": ("USE Sales CREATE ROUTE R WITH ADDRESS = 'LOCAL'\n", _BEGUN),
    "the service is nowhere, for a message from outside": ("USE msdb CREATE ROUTE R WITH ADDRESS = 'LOCAL'\n", {}),
    "no database has the id of a route that names it": (
        f"USE Sales {_BY_ID} ADDRESS = 'LOCAL'\n",
        _BEGUN | {"to_broker_instance": _STALE},
    ),
    "the database of the id lacks the service and is disabled": (
        "USE Sales CREATE ROUTE R WITH ADDRESS = 'LOCAL'\nALTER DATABASE Orders SET DISABLE_BROKER\n",
        _BEGUN | {"to_broker_instance": _ORDERS},
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
    "no address in the name": ("USE Sales CREATE ROUTE R WITH ADDRESS = 'TRANSPORT'\n" + _SERVICE, _BEGUN),
    "no address in the name, from outside": ("USE msdb CREATE ROUTE R WITH ADDRESS = 'TRANSPORT'\n" + _SERVICE, {}),
    "no address in the name, beside an expired route like it": (
        f"USE Sales CREATE ROUTE R WITH ADDRESS = 'TRANSPORT'\nCREATE ROUTE Old WITH ADDRESS = 'TRANSPORT' {_EXPIRED}{_SERVICE}",
        _BEGUN,
    ),
    "no service here, beside an expired route to LOCAL": (
        f"USE Sales CREATE ROUTE R WITH ADDRESS = 'LOCAL'\nCREATE ROUTE Old WITH ADDRESS = 'LOCAL' {_EXPIRED}",
        _BEGUN,
    ),
    "an expired route back to this instance, where no route is": (
        f"USE Sales {_ORDERS_ROUTE} ADDRESS = 'TCP://me' {_EXPIRED}{_SERVICE}",
        _BEGUN,
    ),
    "an expired route back to this instance, in msdb": (
        f"{_PASS_ON}USE msdb {_ORDERS_ROUTE} ADDRESS = 'TCP://me' {_EXPIRED}{_SERVICE}",
        {},
    ),
    "an expired route to LOCAL, and the service is nowhere": (
        f"USE Sales {_ORDERS_ROUTE} ADDRESS = 'LOCAL' {_EXPIRED}",
        _BEGUN,
    ),
    "a route and a service of nearly the name": (
        "USE Sales CREATE ROUTE R WITH SERVICE_NAME = '//orders', ADDRESS = 'LOCAL'\nUSE Orders CREATE SERVICE [//orders] ON QUEUE Advised\n",
        _BEGUN,
    ),
    "a route of nearly the name, which a step after the last would find": (
        f"{_BY_LOCAL}CREATE ROUTE Near WITH SERVICE_NAME = '//orders', BROKER_INSTANCE = '{_STALE}', ADDRESS = 'TCP://a'\n",
        _BEGUN,
    ),
    "no route, and the database is disabled": (_SERVICE + _DISABLED, _BEGUN),
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
    "forwarding is off, and the name of the service leads back": (
        f"USE msdb CREATE ROUTE R WITH ADDRESS = 'TRANSPORT'\nUSE Orders CREATE SERVICE [{_MINE}] ON QUEUE Advised\n",
        {"service": _MINE},
    ),
    "a loop by the name of the service": (
        f"{_PASS_ON}USE msdb CREATE ROUTE R WITH ADDRESS = 'TRANSPORT'\nUSE Orders CREATE SERVICE [{_MINE}] ON QUEUE Advised\n",
        {"service": _MINE},
    ),
    "a loop, and the database is disabled": (
        f"{_PASS_ON}USE msdb CREATE ROUTE R WITH ADDRESS = 'TCP://me'\n{_SERVICE}{_DISABLED}",
        {},
    ),
    "a loop by a mirrored route": (
        f"{_PASS_ON}USE msdb {_BY_ID.replace(_STALE, _ORDERS)} ADDRESS = 'TCP://me', MIRROR_ADDRESS = 'TCP://b'\n{_SERVICE}",
        {"to_broker_instance": _ORDERS},
    ),
    "the id is enabled where the conversation began": (
        f"{_DISABLED}{_COPY}USE Copy\n{_SERVICE}",
        {"database": "Copy"},
    ),
}


@pytest.mark.parametrize("case", _CASES)
def test_what_is_advised_sets_the_conversation_on_its_way(case: str, tmp_path: Path) -> None:
    script, asked = _CASES[case]
    stuck = _explained(script, tmp_path, **asked)
    assert stuck.decision["outcome"] not in _ON_THE_WAY
    commands = _commands(stuck)
    assert commands
    for command in commands:
        if "ADDRESS = N'LOCAL'" in command and f"CREATE SERVICE [{asked.get('service', '//Orders')}]" not in script:
            continue  # "if it is in this instance", and it is not
        if (begun := re.search(r"BEGIN DIALOG .* N'(.*)'", command)) is not None:
            then = _explained(script, tmp_path, begun[1], **asked)
        else:
            then = _explained(_done(script, command), tmp_path, **asked)
        assert then.decision["outcome"] in _ON_THE_WAY, f"{command}\n{then}"


@pytest.mark.rule("I7")
@pytest.mark.parametrize("asked", [{}, {"to_broker_instance": _ORDERS}])
@pytest.mark.parametrize("is_initiator", [True, False])
def test_a_database_whose_id_is_enabled_in_another_is_not_just_enabled(
    asked: dict[str, Any], *, is_initiator: bool, tmp_path: Path
) -> None:
    """ENABLE_BROKER fails there."""
    script = (
        f"ALTER DATABASE Orders SET DISABLE_BROKER\n{_COPY}USE msdb CREATE ROUTE R WITH ADDRESS = 'LOCAL'\n{_SERVICE}"
    )
    stuck = _explained(script, tmp_path, is_initiator=is_initiator, **asked)
    assert stuck.decision["reason"] == "service_not_found"
    assert 'its broker id is enabled in "Copy"' in " ".join(str(stuck).split())
    for command in _commands(stuck):
        if "CREATE ROUTE" not in command and "CREATE SERVICE" not in command:
            then = _explained(_done(script, command), tmp_path, is_initiator=is_initiator, **asked)
            assert then.decision["outcome"] == "LOCAL", command


@pytest.mark.rule("I7")
def test_a_sender_whose_id_is_enabled_in_another_database_is_told_which(tmp_path: Path) -> None:
    """ENABLE_BROKER fails there."""
    script = f"ALTER DATABASE Orders SET DISABLE_BROKER\n{_COPY}"
    stuck = _explained(script, tmp_path, database="Orders")
    assert 'its broker id is enabled in "Copy"' in " ".join(str(stuck).split())
    for command in _commands(stuck):
        then = _explained(_done(script, command), tmp_path, database="Orders")
        assert then.decision["reason"] != "sender_disabled", command


@pytest.mark.parametrize("near", ["//orders", "//Ordes", "//Orderss", "//Odrers", "// Orders", "//0rders"])
def test_a_service_of_nearly_the_name_is_named(near: str, tmp_path: Path) -> None:
    script = f"USE Sales CREATE ROUTE R WITH ADDRESS = 'LOCAL'\n{_SERVICE}"
    stuck = _explained(script, tmp_path, near, **_BEGUN)
    assert "BEGIN DIALOG ... TO SERVICE N'//Orders';" in _commands(stuck)
    assert _explained(script, tmp_path, **_BEGUN).decision["outcome"] == "LOCAL"


def test_a_near_name_that_leads_nowhere_either_is_not_named(tmp_path: Path) -> None:
    assert "BEGIN DIALOG" not in str(_explained(_SERVICE, tmp_path, "//orders", **_BEGUN))


@pytest.mark.parametrize("near", ["sales", "Sale", " Sales", "Slaes"])
def test_a_database_of_nearly_the_name_is_named(near: str, tmp_path: Path) -> None:
    with pytest.raises(ssbroker.UnknownDatabaseError, match='did you mean "Sales"') as caught:
        _explained("", tmp_path, database=near)
    assert caught.value.column == "database"


def test_an_id_that_no_database_has_is_told(tmp_path: Path) -> None:
    """A service that is created has not got the id either."""
    script, asked = _CASES["no database has the id of a route that names it"]
    text = " ".join(str(_explained(script, tmp_path, **asked)).split())
    assert f"No database of this instance has the broker id {_STALE}" in text
    assert "CREATE SERVICE" not in text


@pytest.mark.rule("R14")
@pytest.mark.parametrize("asked", [_BEGUN, {}])
def test_a_route_to_the_dynamic_routing_service_is_prolonged_so_that_it_can_be_asked(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    """The request does not leave by way of the conversation, so forwarding has no part in it."""
    table = asked.get("database", "msdb")
    script = f"USE {table} CREATE ROUTE R WITH SERVICE_NAME = 'SQL/ServiceBroker/BrokerConfiguration', ADDRESS = 'TCP://a' {_EXPIRED}"
    first = _commands(_explained(script, tmp_path, **asked))[0]
    assert first == f"USE [{table}]; ALTER ROUTE [R] WITH LIFETIME = <seconds>;"
    assert _explained(_done(script, first), tmp_path, **asked).decision["reason"] == "route_requested"


@pytest.mark.rule("R31")
def test_a_service_in_databases_of_other_ids_is_not_looked_for_by_a_route_to_local(tmp_path: Path) -> None:
    """LOCAL leads to the database of the id that the conversation names, or nowhere."""
    script = f"USE msdb CREATE ROUTE R WITH ADDRESS = 'TCP://a'\n{_SERVICE}"
    stuck = _explained(script, tmp_path, to_broker_instance=_STALE)
    assert f'The service is in "Orders", whose broker id is not {_STALE}' in " ".join(str(stuck).split())
    assert "ADDRESS = N'LOCAL'" not in str(stuck)


@pytest.mark.rule("R23")
def test_what_leads_one_service_back_leads_others_on_after_the_advice(tmp_path: Path) -> None:
    """A route to TRANSPORT was given an address, by which every service went there."""
    script, asked = _CASES["a loop by the name of the service"]
    for command in _commands(_explained(script, tmp_path, **asked)):
        other = _explained(_done(script, command), tmp_path, "TCP://far:4023/Other")
        assert other.decision["next_hop_address"] == "TCP://far:4023", command
