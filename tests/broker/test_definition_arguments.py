"""Invalid values in definitions are rejected, since SQLite would store them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ssbroker import Catalog, Trust
from ssbroker.broker.database import Database, database_context
from ssbroker.diagnose import Fleet
from ssbroker.exceptions import BrokerError, OptionError, SchemaError
from tests.broker.conftest import QUEUE, TARGET
from tests.internals import instance_of

WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("alter_queue", (QUEUE,), {"status": "OFF"}),
    ("alter_queue", (QUEUE,), {"retention": 1}),
    ("create_queue", ("New",), {"activation": "ON"}),
    ("create_queue", ("New",), {"poison_message_handling": "OFF"}),
    ("alter_queue", (QUEUE,), {"procedure": print}),
    ("alter_queue", (QUEUE,), {"max_queue_readers": 1.5}),
    ("set_honor_broker_priority", (), {"is_on": "OFF"}),
    ("alter_route", ("AutoCreatedLocal",), {"lifetime": timedelta(hours=1)}),
    ("alter_route", ("AutoCreatedLocal",), {"address": 5}),
    ("alter_route", ("AutoCreatedLocal",), {"service_name": b"//Far"}),
    ("create_broker_priority", ("New",), {"level": "5"}),
    ("create_broker_priority", ("New",), {"remote_service": 5}),
    ("create_contract", ("New",), {"messages": ["DEFAULT"]}),
    ("create_contract", ("New",), {"messages": {"DEFAULT": "initiator"}}),
    ("create_contract", ("New",), {"messages": {"DEFAULT": ["ANY"]}}),
    ("alter_service", (TARGET,), {"add_contracts": "DEFAULT"}),
    ("alter_service", (TARGET,), {"drop_contracts": "DEFAULT"}),
    ("create_certificate", ("New",), {"active": "ON"}),
    ("create_certificate", ("New",), {"subject": 5}),
    ("create_certificate", ("New",), {"certificate": "-----BEGIN CERTIFICATE-----"}),
    ("create_certificate", ("New",), {"ends": 2027}),
    ("create_master_key", (), {"password": b"secret"}),
]


@pytest.mark.parametrize(("method", "arguments", "wrong"), WRONG)
def test_invalid_definition_arguments_are_named(
    sales: Database, method: str, arguments: tuple[Any, ...], wrong: dict[str, Any]
) -> None:
    before = database_context(sales).objects()
    with pytest.raises(OptionError, match=f"^{next(iter(wrong))}: expected "):
        getattr(sales, method)(*arguments, **wrong)
    assert database_context(sales).objects() == before


def test_the_message_types_of_a_contract_are_named(sales: Database) -> None:
    wrong: Any = {5: "ANY"}
    with pytest.raises(SchemaError, match=r"^message type: expected str, got int$"):
        sales.create_contract("New", wrong)
    with pytest.raises(
        BrokerError, match=r"8492: .* needs at least one message type that is SENT BY INITIATOR or ANY$"
    ):
        sales.create_contract("New", {"DEFAULT": "TARGET"})


@pytest.mark.parametrize("anonymous", ["OFF", None, 0])
def test_a_binding_is_anonymous_only_if_requested(sales: Database, anonymous: Any) -> None:
    """A text such as 'OFF' must not count as true."""
    sales.create_user("Far")
    with pytest.raises(OptionError, match=r"^anonymous: expected True or False"):
        sales.create_remote_service_binding("Far", service="//Far", user="Far", anonymous=anonymous)
    assert not database_context(sales).objects().security.bindings


@pytest.mark.parametrize("lenient", ["x", None, 1])
def test_a_script_is_lenient_only_if_requested(sales: Database, tmp_path: Path, lenient: Any) -> None:
    script = tmp_path / "shop.sql"
    script.write_text("CREATE DATABASE Shop")
    instance = instance_of(sales)
    for run in (
        lambda: instance.execute("CREATE DATABASE Shop", lenient=lenient),
        lambda: instance.ensure("CREATE DATABASE Shop", lenient=lenient),
        lambda: Catalog.load(script, lenient=lenient),
        lambda: Fleet.load(script, lenient=lenient),
    ):
        with pytest.raises(OptionError, match=r"^lenient: expected True or False"):
            run()


@pytest.mark.parametrize("name", [None, 5, b"Orders", ["Orders"]])
def test_invalid_names_are_rejected(sales: Database, name: Any) -> None:
    with pytest.raises(BrokerError, match="is not a valid name; expected a string"):
        sales.create_contract(name, {"DEFAULT": "ANY"})
    with pytest.raises(BrokerError, match="is not a valid name; expected a string"):
        instance_of(sales).create_database(name)


def test_a_script_is_given_as_text_not_as_a_path(sales: Database) -> None:
    with pytest.raises(OptionError, match=r"^ddl: expected the text of a script, got "):
        instance_of(sales).execute(Path("shop.sql"))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["begins", "ends"])
def test_the_validity_of_a_certificate_needs_a_time_zone(sales: Database, name: str) -> None:
    sales.create_master_key("long and secret")
    naive = datetime(2030, 1, 1)  # noqa: DTZ001 - the naive time under test
    with pytest.raises(OptionError, match=rf"^{name}: expected a datetime with a time zone, got 2030"):
        sales.create_certificate("Shop", **{name: naive})  # type: ignore[arg-type]
    assert instance_of(sales).view("sys.certificates", "Sales").num_rows == 0


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("certificate", {"certificate": b"shop.pem"}),
        ("key", {"key": 5}),
        ("authority", {"authority": b"authority.pem"}),
        ("pinned: stock", {"pinned": {"stock": "stock.pem"}}),
        ("pinned: stock", {"pinned": {"stock": Path("stock.pem")}}),
        ("pinned: stock", {"pinned": {"stock": [b"stock.pem"]}}),
    ],
)
def test_files_of_certificates_are_paths(name: str, wrong: dict[str, Any]) -> None:
    valid_options: dict[str, Any] = {
        "certificate": Path("a"),
        "key": Path("a"),
        "authority": Path("a"),
        "names": ["stock"],
    }
    with pytest.raises(OptionError, match=f"^{name}: expected a (path|sequence of paths)"):
        Trust(**valid_options | wrong)


def test_files_of_certificates_may_be_text() -> None:
    given: Any = {"certificate": "a.pem", "key": "a.key", "authority": "authority.pem", "names": ["stock"]}
    trust = Trust(**given, pinned={"stock": ["stock.pem", Path("other.pem")]})
    assert (trust.certificate, trust.key, trust.authority) == (Path("a.pem"), Path("a.key"), Path("authority.pem"))
    assert dict(trust.pinned) == {"stock": (Path("stock.pem"), Path("other.pem"))}
    assert replace(trust, names=["bank"]).pinned == trust.pinned


def test_a_queue_is_not_altered_without_a_setting(sales: Database) -> None:
    with pytest.raises(OptionError, match=r"alter_queue\('Orders'\): expected a setting to change"):
        sales.alter_queue("Orders")
