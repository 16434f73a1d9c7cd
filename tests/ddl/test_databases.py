"""USE, and CREATE, ALTER and DROP DATABASE."""

from __future__ import annotations

import uuid
import warnings

import pytest

from ssbroker import ddl, schemas
from ssbroker.exceptions import DdlError
from tests.ddl.scripts import GUID, LENIENT, NOW, databases, names, read, refused, services, skipped

ID = uuid.UUID(GUID)


def test_tables_have_the_documented_schemas() -> None:
    for script in (skipped()[0], read("USE Sales", "CREATE QUEUE q", "CREATE SERVICE s ON QUEUE q")):
        assert script.routes.schema.equals(schemas.ROUTES)
        assert script.databases.schema.equals(schemas.DATABASES)
        assert script.services.schema.equals(schemas.SERVICES)
        script.routes.validate(full=True)


def test_empty_script_has_only_msdb() -> None:
    script, _ = skipped()
    assert databases(script) == {"msdb": (None, True)}
    assert names(script, "msdb") == ["AutoCreatedLocal"]
    assert services(script) == []
    assert (script.addresses, script.message_forwarding, script.pending_requests) == ((), False, ())


def test_databases_are_in_order_of_creation_and_include_msdb() -> None:
    assert list(databases(read("USE C", "CREATE DATABASE B", "USE A", "USE B"))) == ["C", "B", "A", "msdb"]
    assert list(databases(read("USE B", "USE [MsDb]", "USE A DROP ROUTE AutoCreatedLocal"))) == ["B", "msdb", "A"]


def test_msdb_is_case_insensitive() -> None:
    script = read("USE MSDB", "CREATE ROUTE R WITH ADDRESS = 'LOCAL'", "ALTER DATABASE [MsDb] SET DISABLE_BROKER")
    assert databases(script) == {"msdb": (None, False)}
    assert names(script, "msdb") == ["AutoCreatedLocal", "R"]


def test_use_alone_does_not_add_master() -> None:
    script = read("USE master", "GO", "CREATE DATABASE Sales", "USE Master", "USE tempdb USE model")
    assert list(databases(script)) == ["Sales", "msdb"]


def test_objects_in_master_are_kept_and_master_has_no_initial_route() -> None:
    script = read(
        "USE Master", "CREATE ROUTE R WITH ADDRESS = 'LOCAL'", "USE tempdb", "CREATE ROUTE R WITH ADDRESS = 'LOCAL'"
    )
    assert list(databases(script)) == ["master", "tempdb", "msdb"]
    assert names(script, "master") == ["R"]
    assert names(script, "tempdb") == ["AutoCreatedLocal", "R"]


def test_statements_before_any_use_belong_to_the_only_user_database() -> None:
    assert names(read("CREATE ROUTE R WITH ADDRESS = 'LOCAL'"), "user") == ["AutoCreatedLocal", "R"]
    assert names(read("ALTER DATABASE CURRENT SET DISABLE_BROKER"), "user") == ["AutoCreatedLocal"]
    script = read(
        "CREATE DATABASE Sales", "CREATE ROUTE R WITH ADDRESS = 'LOCAL'", "CREATE DATABASE HR", "DROP ROUTE R"
    )
    assert list(databases(script)) == ["Sales", "HR", "msdb"]
    assert names(script) == ["AutoCreatedLocal"]


def test_use_is_required_with_several_user_databases() -> None:
    error = refused("CREATE DATABASE Sales", "CREATE DATABASE HR", "CREATE ROUTE R WITH ADDRESS = 'LOCAL'")
    assert (
        str(error)
        == "routes.sql:3: CREATE ROUTE [R]: select a database with USE first; the script contains the databases Sales, HR"
    )


@pytest.mark.parametrize(
    "clauses",
    [
        "",
        "CONTAINMENT = PARTIAL",
        "ON (NAME = a, FILENAME = 'C:\\a.mdf', SIZE = 10) LOG ON (NAME = b, FILENAME = N'C:\\b.ldf')",
        "ON PRIMARY (NAME = a), FILEGROUP [x] CONTAINS FILESTREAM DEFAULT (NAME = c) COLLATE Latin1_General_BIN2",
        "COLLATE Latin1_General_BIN2 WITH DB_CHAINING ON, TRUSTWORTHY ON",
        "ON (FILENAME = 'C:\\a.mdf') FOR ATTACH WITH RESTRICTED_USER, ENABLE_BROKER",
        "ON (FILENAME = 'C:\\a.mdf') FOR ATTACH_REBUILD_LOG WITH ENABLE_BROKER",
        "ON (FILENAME = 'C:\\a.mdf') FOR ATTACH WITH NEW_BROKER",
        "ON (FILENAME = 'C:\\a.mdf') FOR ATTACH WITH ERROR_BROKER_CONVERSATIONS",
    ],
)
@pytest.mark.parametrize("end", [";", "", "\nGO"])
def test_create_database_with_any_clauses(clauses: str, end: str) -> None:
    script = read(f"CREATE DATABASE Sales {clauses}{end}", "USE Sales CREATE ROUTE R WITH ADDRESS = 'LOCAL'")
    assert databases(script) == {"Sales": (None, True), "msdb": (None, True)}
    assert names(script) == ["AutoCreatedLocal", "R"]


def test_snapshots_are_not_in_the_catalog() -> None:
    script, _ = skipped("CREATE DATABASE Old ON (NAME = a, FILENAME = 'a.ss') AS SNAPSHOT OF Sales")
    assert list(databases(script)) == ["msdb"]


KNOWN = f"CREATE DATABASE Sales -- ssbroker: service_broker_guid={GUID}"


@pytest.mark.rule("I4", "I5", "I6")
@pytest.mark.parametrize(
    ("option", "guid", "enabled"),
    [
        ("ENABLE_BROKER", ID.bytes, True),
        ("DISABLE_BROKER", ID.bytes, False),
        ("NEW_BROKER", None, True),
        ("ERROR_BROKER_CONVERSATIONS", ID.bytes, True),
    ],
)
@pytest.mark.parametrize(
    "end",
    ["", ";", " WITH ROLLBACK IMMEDIATE", " WITH ROLLBACK AFTER 5 SECONDS;", " WITH ROLLBACK AFTER 5", " WITH NO_WAIT"],
)
@pytest.mark.parametrize("before", ["ENABLE_BROKER", "DISABLE_BROKER"])
def test_broker_options(option: str, guid: bytes | None, enabled: bool, end: str, before: str) -> None:  # noqa: FBT001
    script = read(
        KNOWN, f"ALTER DATABASE Sales SET {before}", f"alter database [Sales] set {option.lower()}{end} USE Sales"
    )
    assert databases(script)["Sales"] == (guid, enabled)


def test_alter_database_current() -> None:
    assert databases(read("USE Sales", "ALTER DATABASE CURRENT SET DISABLE_BROKER"))["Sales"] == (None, False)


def test_other_options_are_skipped_with_a_warning() -> None:
    script, warnings = skipped(
        KNOWN,
        "ALTER DATABASE Sales SET RECOVERY FULL, DISABLE_BROKER, QUERY_STORE = ON (OPERATION_MODE = READ_WRITE, X = 1), "
        "HONOR_BROKER_PRIORITY ON WITH ROLLBACK IMMEDIATE",
    )
    assert databases(script)["Sales"] == (ID.bytes, False)
    assert warnings == ["routes.sql:2: ALTER DATABASE [Sales]: skipped RECOVERY, QUERY_STORE"]


@pytest.mark.parametrize(
    "rest",
    [
        "SET RECOVERY SIMPLE",
        "SET SINGLE_USER WITH ROLLBACK IMMEDIATE",
        "ADD FILE (NAME = a)",
        "COLLATE Latin1_General_BIN2",
        "MODIFY FILE (NAME = a, SIZE = 5MB)",
    ],
)
def test_other_forms_of_alter_database_are_skipped(rest: str) -> None:
    script, warnings = skipped(f"ALTER DATABASE Sales {rest}", "USE HR")
    assert list(databases(script)) == ["HR", "msdb"]
    assert warnings == [f"routes.sql:1: ALTER DATABASE Sales {rest}: skipped (not about Service Broker)"]


def test_renamed_database_keeps_its_position() -> None:
    script = read(
        "CREATE DATABASE A CREATE DATABASE B",
        "USE A CREATE QUEUE Q CREATE SERVICE S ON QUEUE Q CREATE ROUTE R WITH ADDRESS = 'LOCAL'",
        "ALTER DATABASE A MODIFY NAME = C",
        "CREATE SERVICE T ON QUEUE Q",
        "USE C DROP SERVICE T",
    )
    assert list(databases(script)) == ["C", "B", "msdb"]
    assert names(script, "C") == ["AutoCreatedLocal", "R"]
    assert services(script) == [("C", "S")]
    assert refused("CREATE DATABASE A ALTER DATABASE A MODIFY NAME = C USE A").number == 911


def test_drop_database_drops_its_objects() -> None:
    script = read(
        "CREATE DATABASE Sales",
        "USE Sales CREATE QUEUE Q CREATE SERVICE S ON QUEUE Q CREATE ROUTE R WITH ADDRESS = 'LOCAL'",
        "CREATE DATABASE HR",
        "USE HR",
        "DROP DATABASE IF EXISTS Sales, Sales, Never",
    )
    assert list(databases(script)) == ["HR", "msdb"]
    assert services(script) == []
    assert script.routes.num_rows == 2


def test_recreated_database_is_empty() -> None:
    script = read(
        KNOWN,
        "USE Sales CREATE QUEUE Q CREATE ROUTE R WITH ADDRESS = 'LOCAL' USE master",
        "DROP DATABASE Sales CREATE DATABASE Sales USE Sales CREATE QUEUE Q",
    )
    assert databases(script)["Sales"] == (None, True)
    assert names(script) == ["AutoCreatedLocal"]


def test_recreated_database_can_be_altered() -> None:
    script = read("DROP DATABASE Sales CREATE DATABASE Sales", "ALTER DATABASE Sales SET DISABLE_BROKER")
    assert databases(script)["Sales"] == (None, False)


@pytest.mark.rule("I7")
def test_attached_database_with_an_enabled_id_is_disabled() -> None:
    attach = "CREATE DATABASE Copy ON (FILENAME = 'c.mdf') FOR ATTACH"
    for option in ("", " WITH ENABLE_BROKER"):
        script = read(KNOWN, f"{attach}{option} -- ssbroker: service_broker_guid={GUID}")
        assert databases(script)["Copy"] == (ID.bytes, False)


@pytest.mark.rule("I7")
def test_disabled_databases_may_share_an_id() -> None:
    script = read(
        "USE Copy", KNOWN, f"ALTER DATABASE Copy SET DISABLE_BROKER -- ssbroker: service_broker_guid={{{GUID.lower()}}}"
    )
    assert databases(script)["Copy"] == (ID.bytes, False)


def test_a_database_that_the_script_only_uses_exists_already() -> None:
    """On the server, it usually does, also if the script creates another one."""
    script = read(
        "CREATE DATABASE Sales", "USE HR CREATE QUEUE Q", "DROP DATABASE Old", "ALTER DATABASE Stock SET NEW_BROKER"
    )
    assert list(databases(script)) == ["Sales", "HR", "Stock", "msdb"]
    assert script.notes == ()
    assert refused("CREATE DATABASE HR", "USE Stock CREATE SERVICE S ON QUEUE Q").number == 15151
    assert list(databases(read("CREATE QUEUE Q", "USE Users CREATE QUEUE Q"))) == ["user", "Users", "msdb"]


@pytest.mark.parametrize(
    ("created", "used", "note"),
    [
        (
            "Shop1",
            "Shop2",
            "assumed to be an existing database, because the script does not create it; did you mean Shop1?",
        ),
        (
            "Sales2",
            "Sales",
            "assumed to be an existing database, because the script does not create it; did you mean Sales2?",
        ),
        (
            "Orders",
            "OrderDB",
            "assumed to be an existing database, because the script does not create it; did you mean Orders?",
        ),
        ("A", "B", None),
        ("Sales", "sales", None),
    ],
)
def test_a_similar_database_is_noted(created: str, used: str, note: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script = read(f"CREATE DATABASE {created}", f"USE {used} DROP ROUTE AutoCreatedLocal")
    assert [(one.kind, one.text, one.position.line) for one in script.notes] == (
        [] if note is None else [("existing", note, 2)]
    )


def test_a_database_whose_name_differs_by_a_letter_from_a_created_one_is_refused() -> None:
    error = refused("CREATE DATABASE Sales", "USE Sale")
    assert (error.line, error.number) == (2, 911)
    said = "the script creates no database 'Sale'; it creates Sales; did you mean Sales?"
    assert str(error) == f"routes.sql:2: USE [Sale]: error 911: {said}"
    assert refused("CREATE DATABASE Sales", "ALTER DATABASE Sale SET NEW_BROKER").number == 5011
    assert refused("CREATE DATABASE Sales", "DROP DATABASE Sale").number == 3701
    script = ddl.read("CREATE DATABASE Sales; USE Sale", now=NOW, options=LENIENT)
    assert list(databases(script)) == ["Sales", "Sale", "msdb"]


def test_names_of_databases_queues_and_schemas_compare_without_case() -> None:
    script = read(
        "CREATE DATABASE Sales USE SALES CREATE QUEUE Orders CREATE SERVICE S ON QUEUE DBO.ORDERS",
        "ALTER DATABASE sales MODIFY NAME = Shop USE shop DROP SERVICE S DROP QUEUE [Dbo].[orders]",
    )
    assert list(databases(script)) == ["Shop", "msdb"]
    assert refused("CREATE DATABASE Sales CREATE DATABASE SALES").number == 1801


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("ENABLE_BROKERS WITH ROLLBACK IMMEDIATE", "ENABLE_BROKER"),
        ("RECOVERY SIMPLE, DISABLE_BROCKER", "DISABLE_BROKER"),
        ("NEWBROKER", "NEW_BROKER"),
        ("ERROR_BROKER_CONVERSATION", "ERROR_BROKER_CONVERSATIONS"),
        ("HONOUR_BROKER_PRIORITY ON", "HONOR_BROKER_PRIORITY"),
    ],
)
def test_a_misspelled_option_of_the_broker_is_refused(option: str, meant: str) -> None:
    error = refused("CREATE DATABASE Sales", f"ALTER DATABASE Sales SET {option}")
    assert (error.line, error.number) == (2, 102)
    assert f"is not an option of a database; did you mean {meant}?" in str(error)
    assert refused("RESTORE DATABASE Sales FROM DISK = 'a' WITH REPLACE, ENABLE_BROKR").number == 102


@pytest.mark.parametrize(
    "option",
    [
        "READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK IMMEDIATE",
        "RECOVERY SIMPLE",
        "TRUSTWORTHY ON, DB_CHAINING OFF",
        "QUERY_STORE = ON (OPERATION_MODE = READ_WRITE)",
        "RESTRICTED_USER",
        "ERROR_SOMETHING_NEW ON",
    ],
)
def test_other_options_of_databases_are_skipped(option: str) -> None:
    script, _ = skipped("CREATE DATABASE Sales", f"ALTER DATABASE Sales SET {option}")
    assert [note.kind for note in script.notes] == ["skipped"]


@pytest.mark.parametrize(
    "call",
    [
        "EXEC sp_renamedb 'Sales', 'Shop'",
        "EXECUTE @r = master..sp_renamedb @dbname = N'sales', @newname = [Shop]",
        "EXEC sp_rename N'Sales', N'Shop', 'database'",
    ],
)
def test_procedures_rename_databases(call: str) -> None:
    script = read("CREATE DATABASE Sales", "USE Sales", "CREATE QUEUE Q", f"{call};", "USE Shop", "DROP QUEUE Q")
    assert list(databases(script)) == ["Shop", "msdb"]
    assert script.notes == ()


@pytest.mark.parametrize(
    ("call", "procedure"),
    [
        ("EXEC sp_renamedb @old, 'Shop'", "sp_renamedb"),
        ("EXEC master.dbo.sp_detach_db 'Sales'", "sp_detach_db"),
        ("IF @a = 1 EXEC sp_attach_db 'Sales', 'c:\\sales.mdf'", "sp_attach_db"),
        ("IF @a = 1 EXEC sp_renamedb 'Sales', 'Shop'", "ALTER DATABASE"),
    ],
)
def test_other_procedures_that_change_databases_are_reported(call: str, procedure: str) -> None:
    script, messages = skipped("CREATE DATABASE Sales", call)
    assert f"not executed, although it contains {procedure}: " in messages[0]
    assert script.notes[0].is_problem
    assert list(databases(script)) == ["Sales", "msdb"]


def test_scripts_run_in_sequence() -> None:
    scripts = [("USE Sales", "1.sql"), ("CREATE ROUTE R WITH ADDRESS = 'LOCAL'", None)]
    assert names(ddl.read_servers(scripts, now=NOW, options=ddl.STRICT)[None]) == ["AutoCreatedLocal", "R"]
    scripts = [("USE Sales\nGO\n", "1.sql"), ("\nDROP ROUTE R", "2.sql")]
    with pytest.raises(DdlError, match=r"^2\.sql:2: DROP ROUTE \[R\]"):
        ddl.read_servers(scripts, now=NOW, options=ddl.STRICT)


def test_a_script_is_continued_more_than_once() -> None:
    start = ddl.ScriptStart("CREATE DATABASE Sales; USE Sales; CREATE ROUTE R WITH ADDRESS = 'LOCAL'", now=NOW)
    for _ in range(2):
        changed = start.tables_after(
            "ALTER ROUTE R WITH ADDRESS = 'TCP://a:1'", "CREATE ROUTE [$(S)] WITH ADDRESS = 'LOCAL'"
        )
        assert names(changed) == ["AutoCreatedLocal", "R", "$(S)"]
        with pytest.raises(DdlError, match=r"^line 1: DROP ROUTE \[S\]"):
            start.tables_after("DROP ROUTE S")
    assert start.tables_after() == ddl.read(
        "CREATE DATABASE Sales; USE Sales; CREATE ROUTE R WITH ADDRESS = 'LOCAL'", now=NOW
    )
