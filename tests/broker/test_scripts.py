"""`Instance.execute` runs the DDL that `Catalog.load` reads; a batch is executed completely or not at all."""

from __future__ import annotations

import uuid
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest

from ssbroker.broker.background import Background
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.database import Database
from ssbroker.broker.database import context_of as database_context
from ssbroker.broker.instance import Instance
from ssbroker.broker.instance import context_of as instance_context
from ssbroker.exceptions import DdlError, DdlWarning, LockTimeoutError
from ssbroker.store import objects
from ssbroker.store.objects import Objects
from ssbroker.store.sqlite import Connection
from tests.broker.test_database_lifecycle import agrees, copy_of

SCRIPT = """
CREATE DATABASE Sales;
GO
USE Sales;
GO
CREATE MESSAGE TYPE [//order] AUTHORIZATION dbo VALIDATION = WELL_FORMED_XML;
CREATE MESSAGE TYPE [//receipt];
CREATE CONTRACT [//ordering] ([//order] SENT BY INITIATOR, [//receipt] SENT BY TARGET, [DEFAULT] SENT BY ANY);
CREATE QUEUE Orders WITH STATUS = ON, RETENTION = ON,
    ACTIVATION (STATUS = ON, PROCEDURE_NAME = dbo.ReadOrders, MAX_QUEUE_READERS = 3, EXECUTE AS OWNER),
    POISON_MESSAGE_HANDLING (STATUS = OFF) ON [PRIMARY];
CREATE QUEUE shop.Replies
CREATE SERVICE [//Orders] ON QUEUE Orders ([//ordering], [DEFAULT]);
CREATE SERVICE [//Shop] ON QUEUE shop.Replies;
CREATE ROUTE Far AUTHORIZATION dbo WITH SERVICE_NAME = '//Far', LIFETIME = 60, ADDRESS = 'TCP://far:4022';
CREATE BROKER PRIORITY High FOR CONVERSATION
    SET (CONTRACT_NAME = [//ordering], LOCAL_SERVICE_NAME = [//Orders], REMOTE_SERVICE_NAME = ANY, PRIORITY_LEVEL = 9);
ALTER DATABASE CURRENT SET HONOR_BROKER_PRIORITY ON;
GO
USE master
CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022)
    FOR SERVICE_BROKER (AUTHENTICATION = CERTIFICATE C, MESSAGE_FORWARDING = ENABLED, MESSAGE_FORWARD_SIZE = 20)
GO
"""


def warnings_of(instance: Instance, script: str) -> list[str]:
    """The warnings of a script."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        instance.execute(script, file="x.sql")
    assert {warning.category for warning in found} <= {DdlWarning}
    assert {Path(warning.filename) for warning in found} <= {Path(__file__)}
    return [str(warning.message) for warning in found]


def refused(instance: Instance, script: str) -> DdlError:
    """The error that a script raises."""
    with pytest.raises(DdlError) as error:
        instance.execute(script, file="x.sql")
    return error.value


def test_a_script_creates_all_kinds_of_objects(instance: Instance) -> None:
    assert warnings_of(instance, SCRIPT) == []
    objects = database_context(instance.database("Sales")).objects()
    assert objects.message_types["//order"].validation == "X"
    assert len(objects.contracts["//ordering"].messages) == 3
    orders = objects.queues["dbo", "Orders"]
    assert (orders.is_retention_enabled, orders.is_poison_message_handling_enabled) == (True, False)
    assert (orders.is_activation_enabled, orders.activation_procedure, orders.max_readers) == (
        True,
        "dbo.ReadOrders",
        3,
    )
    assert {objects.contracts_by_id[number].name for number in objects.services["//Orders"].contracts} == {
        "//ordering",
        "DEFAULT",
    }
    assert objects.services["//Shop"].contracts == frozenset()
    assert objects.routes["Far"].address == "TCP://far:4022"
    assert objects.priorities["High"].priority == 9
    assert objects.broker.is_honor_broker_priority_on
    endpoint = database_context(instance.msdb).objects().endpoint
    assert endpoint is not None
    assert (endpoint.state, endpoint.port, endpoint.ip, endpoint.message_forwarding_size) == (
        "STARTED",
        4022,
        "ALL",
        20,
    )
    catalog = instance.catalog()
    assert catalog.message_forwarding
    assert "TCP://localhost:4022" in catalog.addresses


def test_a_script_alters_and_drops(instance: Instance) -> None:
    instance.execute(SCRIPT)
    instance.execute(
        """
        USE Sales
        ALTER MESSAGE TYPE [//receipt] VALIDATION = EMPTY
        ALTER QUEUE Orders WITH STATUS = OFF, ACTIVATION (DROP)
        ALTER SERVICE [//Orders] ON QUEUE shop.Replies (DROP CONTRACT [DEFAULT])
        """
    )
    objects = database_context(instance.database("Sales")).objects()
    assert objects.message_types["//receipt"].validation == "E"
    orders = objects.queues["dbo", "Orders"]
    assert (orders.is_receive_enabled, orders.activation_procedure, orders.max_readers) == (False, None, 0)
    assert objects.queues_by_id[objects.services["//Orders"].queue_id].name == "Replies"
    instance.execute(
        """
        USE Sales
        ALTER BROKER PRIORITY High FOR CONVERSATION SET (PRIORITY_LEVEL = DEFAULT, REMOTE_SERVICE_NAME = '//Far')
        ALTER ROUTE Far WITH ADDRESS = 'LOCAL'
        """
    )
    objects = database_context(instance.database("Sales")).objects()
    high = objects.priorities["High"]
    assert (high.priority, high.remote_service_name) == (5, "//Far")
    assert high.local_service_id is not None
    assert objects.routes["Far"].remote_service_name == "//Far"
    instance.execute(
        """
        USE Sales
        DROP BROKER PRIORITY High; DROP ROUTE Far; DROP SERVICE [//Orders]; DROP SERVICE [//Shop]
        DROP QUEUE Orders; DROP QUEUE shop.Replies; DROP CONTRACT [//ordering]
        DROP MESSAGE TYPE [//order]; DROP MESSAGE TYPE [//receipt]; DROP ENDPOINT Broker
        """
    )
    objects = database_context(instance.database("Sales")).objects()
    assert (objects.queues, objects.services, objects.priorities) == ({}, {}, {})
    assert "//ordering" not in objects.contracts
    assert database_context(instance.msdb).objects().endpoint is None
    instance.execute("DROP DATABASE Sales")
    assert [database.name for database in instance.databases] == ["msdb"]


def test_a_batch_is_executed_completely_or_not_at_all(instance: Instance, sales: Database) -> None:
    before = (database_context(sales).objects(), database_context(instance.msdb).objects())
    error = refused(
        instance,
        "USE Sales\nCREATE QUEUE First\nGO\nCREATE QUEUE Second\nUSE msdb\nCREATE QUEUE Third\nCREATE DATABASE New\n"
        "USE New\nCREATE QUEUE Fourth\nUSE Sales\nDROP QUEUE Nothing",
    )
    assert error.number == 15151
    assert (error.file, error.line) == ("x.sql", 11)
    message = "x.sql:11: DROP QUEUE [Nothing]: error 15151: queue 'dbo.Nothing' does not exist; the statements up to line 2 were committed"
    assert str(error) == message
    assert set(database_context(sales).objects().queues) == {*before[0].queues, ("dbo", "First")}
    assert database_context(instance.msdb).objects() == before[1]
    assert [database.name for database in instance.databases] == ["msdb", "Sales"]
    assert not (instance.folder / "New.sqlite").exists()


def test_a_syntax_error_undoes_its_batch(instance: Instance, sales: Database) -> None:
    error = refused(instance, "CREATE QUEUE First\nCREATE QUEUE\n")
    assert (error.number, error.line) == (102, 2)
    assert "is done" not in str(error)
    assert ("dbo", "First") not in database_context(sales).objects().queues


@pytest.mark.parametrize(
    ("script", "up_to"),
    [
        ("CREATE QUEUE First\nGO\nGO\nCREATE QUEUE 'x'", 1),
        ("CREATE QUEUE First;\nCREATE QUEUE Second\n  WITH\n  STATUS = ON;\nGO\n-- more\nSELECT [", 4),
        ("CREATE QUEUE First\nGO 2", 1),
    ],
)
def test_an_error_states_how_far_the_script_was_executed(
    instance: Instance, sales: Database, script: str, up_to: int
) -> None:
    """The corrected script must be run from there on."""
    assert str(refused(instance, script)).endswith(f"; the statements up to line {up_to} were committed")
    assert ("dbo", "First") in database_context(sales).objects().queues


def test_a_batch_creates_a_database_and_its_objects(instance: Instance) -> None:
    instance.execute("CREATE DATABASE A; USE A; CREATE QUEUE Q; ALTER DATABASE A SET DISABLE_BROKER; CREATE DATABASE B")
    assert set(database_context(instance.database("A")).objects().queues) == {("dbo", "Q")}
    assert not instance.database("A").is_broker_enabled
    assert instance.database("B").is_broker_enabled
    assert agrees(instance)


def test_a_database_is_replaced_completely_or_not_at_all(instance: Instance) -> None:
    """Also an empty database, whose file has no owner recorded."""
    guid = instance.create_database("Sales").service_broker_guid
    script = "DROP DATABASE Sales; CREATE DATABASE Sales; USE Sales; CREATE QUEUE Q"
    assert refused(instance, f"{script}; DROP QUEUE Nothing").number == 15151
    assert instance.database("Sales").service_broker_guid == guid
    instance.execute(script)
    assert instance.database("Sales").service_broker_guid != guid
    assert set(database_context(instance.database("Sales")).objects().queues) == {("dbo", "Q")}
    assert agrees(instance)
    assert len([*instance.folder.glob("Sales*.sqlite")]) == 1


def test_identity_by_ddl(instance: Instance, sales: Database) -> None:
    copy, path = copy_of(instance, "Sales"), instance.database("Sales").path
    guid = instance.database("Sales").service_broker_guid
    with pytest.warns(UserWarning, match="9773"):
        instance.execute(f"CREATE DATABASE Copy ON (FILENAME = '{copy}') FOR ATTACH")
    assert not instance.database("Copy").is_broker_enabled
    assert refused(instance, "ALTER DATABASE Copy SET ENABLE_BROKER WITH ROLLBACK IMMEDIATE").number == 9772
    instance.execute("ALTER DATABASE Sales SET DISABLE_BROKER; ALTER DATABASE Copy SET ENABLE_BROKER")
    assert (instance.database("Sales").is_broker_enabled, instance.database("Copy").is_broker_enabled) == (False, True)
    instance.execute("ALTER DATABASE Sales SET NEW_BROKER; ALTER DATABASE Copy MODIFY NAME = Other")
    assert instance.database("Sales").service_broker_guid != guid
    assert instance.database("Other").service_broker_guid == guid
    assert instance.database("Sales").path == path
    instance.execute("DROP DATABASE IF EXISTS Copy, Other")
    assert not copy.exists()
    assert agrees(instance)


def test_a_database_may_get_the_old_name_of_a_renamed_one(instance: Instance, sales: Database) -> None:
    instance.execute("ALTER DATABASE Sales MODIFY NAME = Old; CREATE DATABASE Sales")
    assert set(database_context(instance.database("Old")).objects().services) == {"//Orders", "//Shop"}
    assert database_context(instance.database("Sales")).objects().services == {}
    assert sales.name == "Old"


@pytest.mark.parametrize(
    ("script", "number"),
    [
        ("USE Nothing; CREATE QUEUE Q", 911),
        ("USE master; CREATE QUEUE Q", 911),
        ("CREATE DATABASE Sales", 1801),
        ("CREATE DATABASE msdb", 1801),
        ("DROP DATABASE Nothing", 3701),
        ("USE Sales; DROP DATABASE Sales", 3702),
        ("DROP DATABASE msdb", 3708),
        ("CREATE DATABASE X FOR ATTACH", None),
        ("CREATE QUEUE Orders", 2714),
        ("CREATE SERVICE S ON QUEUE Nothing", 15151),
        ("CREATE CONTRACT C ([DEFAULT] SENT BY TARGET)", 8492),
        ("CREATE ROUTE R WITH ADDRESS = 'nowhere'", 9744),
        ("CREATE QUEUE Q WITH STATUS = ON, STATUS = OFF", 1039),
        ("CREATE QUEUE Q WITH STATUS = 1", 102),
        ("CREATE BROKER PRIORITY P FOR CONVERSATION SET (PRIORITY_LEVEL = 0)", 9606),
        ("ALTER ENDPOINT E FOR SERVICE_BROKER (MESSAGE_FORWARDING = ENABLED)", 15151),
        ("CREATE ROUTE R WITH ADDRESS = 'LOCAL' -- ssbroker: route_id=65536", None),
        ("CREATE QUEUE Q -- ssbroker: route_id=1", None),
    ],
)
def test_errors_have_service_brokers_numbers(
    instance: Instance, sales: Database, script: str, number: int | None
) -> None:
    before = database_context(sales).objects()
    error = refused(instance, script)
    assert (error.number, error.line) == (number, 1)
    assert database_context(sales).objects() == before


def test_without_use_a_script_applies_to_the_only_user_database(instance: Instance, sales: Database) -> None:
    instance.execute("CREATE QUEUE Q")
    assert ("dbo", "Q") in database_context(sales).objects().queues
    instance.create_database("Stock")
    assert "no database is selected; use USE with one of: Sales, Stock" in str(refused(instance, "CREATE QUEUE R"))


def test_use_lasts_from_batch_to_batch(instance: Instance, sales: Database) -> None:
    instance.create_database("Stock")
    instance.execute("USE Stock\nGO\nCREATE QUEUE Q\nGO 1\nCREATE QUEUE R")
    assert set(database_context(instance.database("Stock")).objects().queues) == {("dbo", "Q"), ("dbo", "R")}


def test_statements_without_effect_warn(instance: Instance, sales: Database) -> None:
    assert warnings_of(
        instance,
        "USE Sales\nGRANT EXECUTE ON dbo.P TO public\nCREATE QUEUE Q\n"
        "IF @a = 1 CREATE QUEUE R\nALTER DATABASE Sales SET RECOVERY FULL, ENABLE_BROKER\n"
        "ALTER QUEUE Q REBUILD\nALTER ENDPOINT Other STATE = STARTED\n",
    ) == [
        "x.sql:4: IF @a = 1 CREATE QUEUE R: not carried out, though it holds CREATE QUEUE: the script does not decide its condition",
        "x.sql:5: ALTER DATABASE [Sales]: skipped RECOVERY",
        "x.sql:7: ALTER ENDPOINT [Other]: skipped (not the Service Broker endpoint)",
        "x.sql: skipped 2 statements not about Service Broker: 1 GRANT, 1 ALTER QUEUE REBUILD",
    ]
    assert ("dbo", "Q") in database_context(sales).objects().queues


def test_a_catalog_written_as_a_script_becomes_a_running_instance(instance: Instance, tmp_path: Path) -> None:
    """Broker ids, route ids and expiry times are in the annotations that `to_ddl` writes."""
    with Instance.create(
        tmp_path / "from", name="from", clock=instance_context(instance).clock, background=False
    ) as source:
        source.execute(SCRIPT)
        source.execute("USE Sales; DROP ROUTE Far; CREATE ROUTE Later WITH LIFETIME = 90, ADDRESS = 'LOCAL'; USE msdb")
        catalog = source.catalog()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DdlWarning)
        instance.execute(catalog.to_ddl(now=instance_context(instance).clock()))
    assert instance.catalog() == catalog


def test_a_broker_id_is_set_only_if_nothing_uses_the_old_one(instance: Instance, sales: Database) -> None:
    guid = uuid.UUID(int=77)
    instance.execute(f"USE Sales -- ssbroker: service_broker_guid={guid}")
    assert sales.service_broker_guid == guid
    assert agrees(instance)
    with sales.transaction() as t:
        t.begin_dialog("//Shop", "//Orders")
    assert "conversations" in str(refused(instance, "USE Sales -- ssbroker: service_broker_guid=" + str(uuid.uuid4())))
    assert refused(instance, f"CREATE DATABASE B -- ssbroker: service_broker_guid={guid}").number == 9772


def test_a_locked_database_is_a_clear_error_and_changes_nothing(instance: Instance, sales: Database) -> None:
    with Instance.open(instance.folder, lock_timeout=0.05, background=False) as hasty:
        session = database_context(sales).file.session()
        session.begin()
        with pytest.raises(LockTimeoutError):
            hasty.execute("USE msdb; CREATE QUEUE Q; USE Sales; CREATE QUEUE Q")
        session.close()
        assert database_context(instance.msdb).objects().queues == {}


@pytest.mark.parametrize("ending", ["", "DROP ROUTE Nothing\nGO\n"])
def test_objects_are_not_reloaded_for_each_batch(
    instance: Instance, sales: Database, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """Otherwise most of the time of a script with many batches is spent on loading objects."""
    loads = 0

    def load(connection: Connection) -> Objects:
        nonlocal loads
        loads += 1
        return read(connection)

    read = objects.load
    monkeypatch.setattr(objects, "load", load)
    routes = "".join(f"CREATE ROUTE R{number} WITH ADDRESS = 'LOCAL'\nGO\n" for number in range(40))
    emitted: list[DatabaseContext] = []
    monkeypatch.setattr(Background, "changed", lambda _self, database: emitted.append(database))
    with pytest.raises(DdlError) if ending else nullcontext():
        instance.execute(f"USE Sales\nGO\n{routes}{ending}")
    assert loads <= 2
    assert emitted == [database_context(sales)]
    assert len(database_context(sales).objects().routes) == 41
