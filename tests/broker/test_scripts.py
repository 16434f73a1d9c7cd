"""`Instance.execute` runs the DDL that `Catalog.load` reads; a batch is executed completely or not at all."""

from __future__ import annotations

import uuid
import warnings
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest

from ssbroker.broker.background import Background
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.broker.instance_transaction import InstanceTransaction
from ssbroker.broker.scripts import execution
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
    """Returns the warnings of a script."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        instance.execute(script, file="x.sql")
    assert {warning.category for warning in found} <= {DdlWarning}
    assert {Path(warning.filename) for warning in found} <= {Path(__file__)}
    return [str(warning.message) for warning in found]


def refused(instance: Instance, script: str) -> DdlError:
    """Returns the error that a script raises."""
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
    message = "x.sql:11: DROP QUEUE [Nothing]: error 15151: the queue 'dbo.Nothing' does not exist; the batches up to line 2 remain in effect"
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


def test_a_script_that_changes_nothing_does_not_claim_a_commit(instance: Instance, sales: Database) -> None:
    for script in ("SELECT 1", "SEND ON CONVERSATION @h (N'x')", "RECEIVE * FROM Q"):
        error = str(refused(instance, script))
        query = f"ssbroker sql {instance.folder} --query"
        assert f"scripts do not execute SELECT (use `{query}`), BEGIN DIALOG, SEND or RECEIVE" in error
        assert error.endswith("use lenient (--lenient) to accept such a script")


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
    assert str(refused(instance, script)).endswith(f"; the batches up to line {up_to} remain in effect")
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
        "x.sql:4: IF @a = 1 CREATE QUEUE R: not executed, although it contains CREATE QUEUE: its condition cannot be evaluated from the script",
        "x.sql:5: ALTER DATABASE [Sales]: skipped RECOVERY",
        "x.sql:7: ALTER ENDPOINT [Other]: skipped (the instance has no Service Broker endpoint)",
        "x.sql: skipped 2 statements not about Service Broker: 1 GRANT, 1 ALTER QUEUE REBUILD",
    ]
    assert ("dbo", "Q") in database_context(sales).objects().queues


def test_messages_are_not_sent(instance: Instance, sales: Database) -> None:
    assert warnings_of(
        instance,
        "CREATE QUEUE Q\nSEND ON CONVERSATION @h ('x')\nCREATE EVENT NOTIFICATION n ON QUEUE Q FOR QUEUE_ACTIVATION TO SERVICE 'S', 'x'",
    ) == [
        "x.sql:3: CREATE EVENT NOTIFICATION n ON QUEUE Q FOR QUEUE_ACTIVATION ...: not executed: event notifications are not supported",
        (
            "x.sql: did not execute 1 statement to send or receive messages (1 SEND): scripts define objects; to send and receive, "
            "use a transaction in Python"
        ),
    ]


def test_a_backup_is_not_restored(instance: Instance, sales: Database) -> None:
    text = "x.sql:1: RESTORE DATABASE [Stock]: not executed: an instance cannot restore a backup of SQL Server; create the database"
    for run in (instance.execute, instance.ensure):
        with pytest.warns(DdlWarning) as caught:
            run("RESTORE DATABASE Stock FROM DISK = 'a' WITH NEW_BROKER, MOVE 'x' TO 'y'\nGO\nUSE Sales", file="x.sql")
        assert [str(each.message).startswith(text) for each in caught] == [True]
    assert [database.name for database in instance.databases] == ["msdb", "Sales"]


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


def test_a_guarded_script_can_run_twice(instance: Instance) -> None:
    script = """
        IF DB_ID(N'Sales') IS NULL CREATE DATABASE Sales
        GO
        USE Sales
        IF NOT EXISTS (SELECT * FROM sys.service_queues WHERE name = N'Orders') CREATE QUEUE Orders
        IF NOT EXISTS (SELECT * FROM sys.services WHERE name = N'//Orders') CREATE SERVICE [//Orders] ON QUEUE dbo.orders
        IF EXISTS (SELECT * FROM sys.routes WHERE name = N'Far') DROP ROUTE Far
        EXEC (N'CREATE ROUTE Far WITH ADDRESS = ''TCP://far:4022''')
    """
    for _ in range(2):
        instance.execute(script)
        objects = database_context(instance.database("Sales")).objects()
        assert set(objects.queues) == {("dbo", "Orders")}
        assert set(objects.services) == {"//Orders"}
        assert set(objects.routes) == {"AutoCreatedLocal", "Far"}


def test_after_a_failure_the_corrected_script_runs_from_the_start(instance: Instance, sales: Database) -> None:
    script = "CREATE DATABASE New\nGO\nUSE New\nCREATE QUEUE Q\nGO\nUSE Sales\nCREATE QUEUE R\nGO\n{} QUEUE S"
    error = refused(instance, script.format("DROP"))
    assert str(error).endswith(
        "; what the script created was removed again (database 'New'); all other changes up to line 7 remain in effect"
    )
    assert [database.name for database in instance.databases] == ["msdb", "Sales"]
    assert list(instance.folder.glob("New*")) == []
    instance.execute("DROP QUEUE R")
    instance.execute(script.format("CREATE"))
    assert agrees(instance)


def test_a_failed_script_removes_its_endpoint_and_its_files(instance: Instance, tmp_path: Path) -> None:
    script = (
        "CREATE ENDPOINT Broker STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER\nGO\n"
        "CREATE DATABASE New\nGO\nUSE New\nCREATE MASTER KEY ENCRYPTION BY PASSWORD = 'p'\n"
        "CREATE CERTIFICATE C WITH SUBJECT = 'c'\n"
        f"BACKUP CERTIFICATE C TO FILE = '{tmp_path / 'c.cer'}'\nGO\n{{}} QUEUE S"
    )
    error = refused(instance, script.format("DROP"))
    assert f"was removed again (database 'New', endpoint 'Broker', file '{tmp_path / 'c.cer'}'); all other" in str(
        error
    )
    assert not (tmp_path / "c.cer").exists()
    instance.execute(script.format("CREATE"))
    refused(instance, f"ALTER ENDPOINT Broker STATE = STOPPED\nGO\n{script.format('DROP')}")
    assert instance.view("sys.service_broker_endpoints")["name"].to_pylist() == ["Broker"]


def test_a_locked_database_ends_a_script_like_a_rejected_statement(instance: Instance, sales: Database) -> None:
    with Instance.open(instance.folder, lock_timeout=0.05, background=False) as hasty:
        session = database_context(sales).file.session()
        session.begin()
        with pytest.raises(LockTimeoutError) as failure:
            hasty.execute("CREATE DATABASE New\nGO\nUSE Sales\nCREATE QUEUE Q")
        session.close()
        assert str(failure.value).endswith(
            "; what the script created was removed again (database 'New'); all other changes up to line 1 remain in effect"
        )
        assert failure.value.file == str(database_context(sales).file.path)
        assert {database.name for database in hasty.databases} == {"msdb", "Sales"}


def test_a_failed_script_names_the_databases_that_it_could_not_drop(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_batch = execution._Execution._batch
    with Instance.open(instance.folder, lock_timeout=0.05, background=False) as hasty, ExitStack() as locks:

        def lock(self: Any, *args: Any) -> None:
            run_batch(self, *args)
            session = database_context(instance.database("New")).file.session()
            session.begin()
            locks.callback(session.close)

        monkeypatch.setattr(execution._Execution, "_batch", lock)
        with pytest.raises(LockTimeoutError) as failure:
            hasty.execute("CREATE DATABASE New\nGO\nUSE New\nCREATE QUEUE Q")
        assert (
            "; the batches up to line 1 remain in effect, and what the script created (database 'New') could not be removed: "
            in str(failure.value)
        )


def test_an_interrupted_script_leaves_no_database(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> None:
    run_batch = execution._Execution._batch

    def interrupt(self: Any, *args: Any) -> None:
        run_batch(self, *args)
        raise KeyboardInterrupt

    monkeypatch.setattr(execution._Execution, "_batch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        instance.execute("CREATE DATABASE New\nGO\nUSE New\nCREATE QUEUE Q")
    assert [database.name for database in instance.databases] == ["msdb"]


def test_a_failed_script_drops_no_database_of_others(
    instance: Instance, sales: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread or process creates it between two batches."""
    run_batch = execution._Execution._batch

    def create_another(self: Any, *args: Any) -> None:
        run_batch(self, *args)
        instance.create_database("Other", exist_ok=True)

    monkeypatch.setattr(execution._Execution, "_batch", create_another)
    refused(instance, "CREATE DATABASE New\nGO\nUSE Sales\nCREATE QUEUE R\nGO\nDROP QUEUE S")
    assert {database.name for database in instance.databases} == {"msdb", "Other", "Sales"}


def test_a_failed_script_drops_its_database_and_no_other_of_that_name(instance: Instance) -> None:
    instance.create_database("Precious")
    refused(
        instance,
        "CREATE DATABASE Temp\nGO\nALTER DATABASE Temp MODIFY NAME = Renamed\nGO\n"
        "ALTER DATABASE Precious MODIFY NAME = Temp\nGO\nUSE Temp\nDROP QUEUE S",
    )
    assert [database.name for database in instance.databases] == ["msdb", "Temp"]


def test_security_in_master_is_skipped_with_one_note(instance: Instance) -> None:
    assert warnings_of(
        instance,
        "USE master\nCREATE MASTER KEY ENCRYPTION BY PASSWORD = 'Hush'\nCREATE CERTIFICATE c FROM FILE = 'c.cer'\n"
        "CREATE USER [CORP\\ann] FOR LOGIN [CORP\\ann]\nBACKUP CERTIFICATE c TO FILE = 'c.cer'\n"
        "CREATE LOGIN ann WITH PASSWORD = 'Hush'\nGRANT CONNECT ON ENDPOINT::e TO ann\nCREATE DATABASE Sales",
    ) == [
        (
            "x.sql: skipped 6 statements about transport security (CREATE MASTER KEY, CREATE CERTIFICATE, CREATE USER, "
            "BACKUP CERTIFICATE, CREATE LOGIN, GRANT ON ENDPOINT): an instance takes certificates from the options of "
            "`ssbroker serve`, such as --certificate and --pin"
        )
    ]
    assert not Path("c.cer").exists()


@pytest.mark.parametrize("name", ["AutoCreatedLocal", "AUTOCREATEDLOCAL"])
def test_the_initial_route_may_be_created_again(instance: Instance, sales: Database, name: str) -> None:
    (warning,) = warnings_of(instance, f"CREATE ROUTE {name} WITH ADDRESS = N'LOCAL'")
    assert warning.endswith("skipped, because every database is created with the same route AutoCreatedLocal")
    instance.execute("ALTER ROUTE AutoCreatedLocal WITH ADDRESS = 'TRANSPORT'")
    assert "every database is created with this route" in str(
        refused(instance, f"CREATE ROUTE {name} WITH ADDRESS = 'LOCAL'")
    )


def test_names_of_databases_queues_and_schemas_compare_without_case(instance: Instance) -> None:
    instance.execute("CREATE DATABASE Sales\nGO\nUSE SALES\nCREATE QUEUE Orders CREATE SERVICE S ON QUEUE DBO.ORDERS")
    assert refused(instance, "CREATE DATABASE sales").number == 1801
    assert refused(instance, "USE sales CREATE QUEUE DBO.orders").number == 2714
    assert refused(instance, "USE sales DROP SERVICE s").number == 15151
    instance.execute("USE sales DROP SERVICE S ALTER QUEUE [orders] WITH STATUS = OFF DROP QUEUE dbo.ORDERS")
    instance.execute("ALTER DATABASE SALES MODIFY NAME = sales")
    assert [database.name for database in instance.databases] == ["msdb", "sales"]


def test_databases_are_locked_in_a_fixed_order_in_whatever_case_a_script_writes_them(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, two scripts that use the same databases in different orders wait for each other."""
    locked: list[str] = []
    begin = InstanceTransaction._begin

    def recording(transaction: InstanceTransaction, database: DatabaseContext) -> Connection:
        locked.append(database.name)
        return begin(transaction, database)

    instance.execute("CREATE DATABASE Sales\nCREATE DATABASE Stock")
    monkeypatch.setattr(InstanceTransaction, "_begin", recording)
    instance.execute("USE STOCK CREATE QUEUE Q CREATE QUEUE SALES..Q")
    assert locked == ["Sales", "Stock"]


def test_system_contracts_and_message_types_exist(instance: Instance, sales: Database) -> None:
    post = "http://schemas.microsoft.com/SQL/Notifications/PostEventNotification"
    kind = "http://schemas.microsoft.com/SQL/Notifications/EventNotification"
    instance.execute(f"CREATE QUEUE Q CREATE SERVICE N ON QUEUE Q ([{post}]) CREATE CONTRACT C ([{kind}] SENT BY ANY)")
    objects = database_context(sales).objects()
    assert [objects.contracts_by_id[number].name for number in objects.services["N"].contracts] == [post]
    assert refused(instance, f"CREATE CONTRACT [{post}] ([DEFAULT] SENT BY ANY)").number is None
    assert refused(instance, f"DROP CONTRACT [{post}]").number == 9663
    assert refused(instance, f"ALTER MESSAGE TYPE [{kind}] VALIDATION = NONE").number == 9663


@pytest.mark.parametrize(
    ("script", "number", "reason"),
    [
        ("", None, "the script executes no statement that creates, alters or drops"),
        ("SET NOCOUNT ON\nUSE Sales\n", None, "the script executes no statement that creates, alters or drops"),
        ("CREATE QUEU Q", 343, "CREATE QUEU is not a statement of T-SQL; did you mean CREATE QUEUE?"),
        ("CREAT QUEUE Q", 102, "no statement of T-SQL starts with CREAT; did you mean CREATE?"),
        ("hello world", 102, "no statement of T-SQL starts with hello"),
        ("USE Sale", 911, "did you mean Sales?"),
        ("CREATE QUEUE Q WITH STATU = ON", 102, "did you mean STATUS?"),
        ("CREATE DATABASE Sales", 1801, "guard it: IF DB_ID(N'Sales') IS NULL CREATE DATABASE [Sales]"),
        ("\n:connect other\nCREATE QUEUE Q", None, "x.sql:2: :connect other: a script runs on one instance"),
    ],
)
def test_nothing_made_is_an_error(
    instance: Instance, sales: Database, script: str, number: int | None, reason: str
) -> None:
    error = refused(instance, script)
    assert error.number == number
    assert reason in str(error)


def test_lenient_accepts_exports_of_whole_servers(instance: Instance, sales: Database) -> None:
    with pytest.warns(DdlWarning, match="skipped: CREATE QUEU is not a statement of T-SQL"):
        instance.execute("CREATE QUEU Q\nGO\nCREATE QUEUE Q", lenient=True)
    assert ("dbo", "Q") in database_context(sales).objects().queues
    instance.execute("", lenient=True)


def test_variables_of_sqlcmd(instance: Instance) -> None:
    instance.execute("CREATE DATABASE [$(Db)]", variables={"Db": "Sales"})
    assert instance.database("Sales").is_broker_enabled


def test_a_batch_is_repeated_as_often_as_go_says(instance: Instance, sales: Database) -> None:
    route = "CREATE ROUTE A WITH ADDRESS = 'LOCAL'"
    instance.execute(f"IF EXISTS (SELECT * FROM sys.routes WHERE name = 'A') DROP ROUTE A ELSE {route}\nGO 3")
    assert "A" in database_context(sales).objects().routes


def test_an_endpoint_that_replaces_one_stays_after_a_failure(instance: Instance) -> None:
    """Without an endpoint, the instance would be off the network."""
    endpoint = "CREATE ENDPOINT E STATE = STARTED AS TCP (LISTENER_PORT = 4022) FOR SERVICE_BROKER ();"
    instance.execute(endpoint)
    with pytest.raises(DdlError) as caught:
        instance.execute(f"DROP ENDPOINT E;\nGO\n{endpoint}\nGO\nUSE Sales; DROP QUEUE [Nothing];")
    assert "removed again" not in str(caught.value)
    with pytest.raises(DdlError, match="already has the Service Broker endpoint 'E'"):
        instance.execute(endpoint)
