"""The role of a database in a mirrored pair."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from ssbroker import OptionError
from ssbroker.broker.database import Database
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.broker.network.mirrored_routes import MirroredRoutes
from ssbroker.exceptions import BrokerError
from ssbroker.protocol.wire.frames import MirroringRole
from tests.broker import sample_databases
from tests.broker.sample_databases import STOCK, received, send, statuses


@pytest.fixture
def sales(instance: Instance) -> Database:
    return sample_databases.shop(instance)


@pytest.fixture
def stock(instance: Instance) -> Database:
    return sample_databases.stock(instance)


def role_of(instance: Instance, broker_instance: bytes) -> tuple[MirroringRole, int]:
    """Returns the role that the instance reports for a database."""
    mirrors = MirroredRoutes(instance_context(instance), Mock(), changed=lambda _: None)
    (role,) = mirrors.mirroring_roles([broker_instance])
    return role


def mirroring_rows(instance: Instance) -> dict[str, tuple[int, str, int]]:
    """Returns the row of each database in `sys.database_mirroring`."""
    rows = instance.view("sys.database_mirroring").to_pylist()
    names = {database.database_id: database.name for database in instance.databases}
    return {
        names[row["database_id"]]: (
            row["mirroring_role"],
            row["mirroring_role_desc"],
            row["mirroring_role_sequence"],
        )
        for row in rows
    }


def test_a_database_is_the_principal_by_default(instance: Instance, sales: Database) -> None:
    assert sales.mirroring_role == "principal"
    assert role_of(instance, sales.service_broker_guid.bytes) == ("principal", 0)
    assert mirroring_rows(instance) == {"msdb": (1, "PRINCIPAL", 0), "Sales": (1, "PRINCIPAL", 0)}


def test_the_number_grows_by_one_with_each_failover(instance: Instance, sales: Database) -> None:
    guid = sales.service_broker_guid.bytes
    sales.set_mirroring_role("mirror")
    assert role_of(instance, guid) == ("mirror", 0)
    sales.set_mirroring_role("mirror")
    sales.set_mirroring_role("principal")
    sales.set_mirroring_role("principal")
    assert role_of(instance, guid) == ("principal", 1)
    sales.set_mirroring_role("mirror", number=7)
    sales.set_mirroring_role("principal")
    assert mirroring_rows(instance)["Sales"] == (1, "PRINCIPAL", 8)


def test_a_role_set_by_another_process_is_used_immediately(instance: Instance, sales: Database) -> None:
    """An outdated answer could give two principals."""
    guid = sales.service_broker_guid.bytes
    assert role_of(instance, guid) == ("principal", 0)
    with Instance.open(instance.folder, background=False) as other:
        other.database("Sales").set_mirroring_role("mirror", number=2)
        assert role_of(instance, guid) == ("mirror", 2)


@pytest.mark.parametrize(
    "wrong", [{"role": "witness"}, {"role": "principal", "number": 3}, {"role": "principal", "number": "4"}]
)
def test_invalid_roles_and_old_numbers_are_rejected(sales: Database, wrong: dict[str, Any]) -> None:
    sales.set_mirroring_role("mirror", number=4)
    with pytest.raises(OptionError):
        sales.set_mirroring_role(**wrong)
    assert sales.mirroring_role == "mirror"


def test_the_role_is_stored_in_the_file(instance: Instance, sales: Database, tmp_path: Path) -> None:
    """A copy that takes over then has the later claim."""
    guid = sales.service_broker_guid
    sales.set_mirroring_role("mirror", number=4)
    instance.detach_database("Sales")
    copy = tmp_path / "copy.sqlite"
    shutil.copyfile(instance.folder / "Sales.sqlite", copy)
    with Instance.create(tmp_path / "other", name="other", background=False) as other:
        attached = other.attach_database("Sales", copy)
        assert role_of(other, guid.bytes) == ("mirror", 4)
        attached.set_mirroring_role("principal")
    with Instance.open(tmp_path / "other", background=False) as other:
        assert role_of(other, guid.bytes) == ("principal", 5)


def test_missing_and_disabled_databases_claim_no_role(instance: Instance, sales: Database) -> None:
    """The role `unknown` is not a claim."""
    guid = sales.service_broker_guid.bytes
    assert role_of(instance, bytes(16)) == ("unknown", 0)
    sales.set_broker("DISABLE_BROKER")
    assert role_of(instance, guid) == ("unknown", 0)
    sales.set_broker("ENABLE_BROKER")
    instance.detach_database("Sales")
    assert role_of(instance, guid) == ("unknown", 0)


@pytest.mark.rule("R33")
def test_a_mirror_is_not_found_and_receives_nothing(instance: Instance, sales: Database, stock: Database) -> None:
    stock.set_mirroring_role("mirror")
    send(sales, b"two chairs")
    assert received(stock) == []
    assert statuses(sales) == {"28012"}
    stock.set_mirroring_role("principal")
    instance.run_due()
    assert received(stock) == [b"two chairs"]


@pytest.mark.rule("R34")
def test_a_mirror_sends_nothing(instance: Instance, sales: Database, stock: Database) -> None:
    """Its messages wait until it is the principal, with a status."""
    dialog = send(sales, b"two chairs")
    sales.set_mirroring_role("mirror")
    send(sales, b"a table", dialog=dialog)
    assert statuses(sales) == {"28018"}
    assert received(stock) == [b"two chairs"]
    sales.set_mirroring_role("principal")
    instance.run_due()
    assert received(stock) == [b"a table"]
    assert sample_databases.waiting(sales) == []


@pytest.mark.rule("P33")
def test_a_service_of_the_mirror_receives_nothing_from_itself(instance: Instance, sales: Database) -> None:
    """Not even from its own database."""
    sales.create_queue("Orders")
    sales.create_service(STOCK, queue="Orders")
    sales.set_mirroring_role("mirror")
    send(sales, b"two chairs")
    assert received(sales) == []
    sales.set_mirroring_role("principal")
    instance.run_due()
    assert received(sales) == [b"two chairs"]


def test_only_the_principal_gets_a_new_broker_id(sales: Database) -> None:
    """9778."""
    guid = sales.service_broker_guid
    sales.set_mirroring_role("mirror")
    with pytest.raises(BrokerError, match="9778"):
        sales.set_broker("NEW_BROKER")
    assert sales.service_broker_guid == guid


@pytest.mark.rule("R1")
def test_msdb_cannot_be_a_mirror(instance: Instance) -> None:
    """msdb routes the messages that arrive at this instance."""
    with pytest.raises(BrokerError, match="msdb"):
        instance.msdb.set_mirroring_role("mirror")
    assert instance.msdb.mirroring_role == "principal"
