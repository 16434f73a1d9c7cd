"""RESTORE DATABASE makes a database known; its broker options are those of ALTER DATABASE."""

from __future__ import annotations

import pytest

from tests.ddl.scripts import databases, names, read, refused, services, skipped


@pytest.mark.parametrize(
    "clauses",
    [
        "FROM DISK = N'c:\\s.bak'",
        "FROM DISK = @file WITH MOVE N'a' TO N'b', REPLACE, STATS = 10, FILE = 1;",
        "FROM Device, [Other] WITH NORECOVERY",
        "WITH RECOVERY",
        "",
        "FROM DATABASE_SNAPSHOT = 'Sales_old'",
        "FILE = N'f' FROM DISK = 'a' WITH PARTIAL, NEW_BROKER, MOVE 'x' TO 'y'",
        "FROM URL = 'https://x' WITH ERROR_BROKER_CONVERSATIONS",
        "FROM DISK = 'a' WITH ENABLE_BROKER\nGO",
    ],
)
def test_restore_makes_a_database_known(clauses: str) -> None:
    script = read(
        "CREATE DATABASE Mon",
        f"RESTORE DATABASE Sales {clauses}",
        "ALTER DATABASE Sales SET NEW_BROKER",
        "USE Sales",
        "CREATE QUEUE Q ALTER ROUTE AutoCreatedLocal WITH ADDRESS = 'TRANSPORT'",
    )
    assert databases(script) == {"Mon": (None, True), "Sales": (None, True), "msdb": (None, True)}
    assert names(script) == ["AutoCreatedLocal"]
    assert script.notes == ()
    assert script.positions["database", "Sales", ""].line in (2, 3, 4)


CHECK = (
    "the database is restored or attached without ENABLE_BROKER: ssbroker assumes that its broker is enabled, but it may be disabled; "
    "check with SELECT is_broker_enabled FROM sys.databases WHERE name = N'Sales';"
)


@pytest.mark.parametrize(
    "statement", ["RESTORE DATABASE {} FROM DISK = 'a'", "CREATE DATABASE {} ON (FILENAME = 'f') FOR ATTACH"]
)
@pytest.mark.parametrize("rest", ["USE sales CREATE QUEUE Q", "ALTER DATABASE Sales SET HONOR_BROKER_PRIORITY ON"])
def test_broker_of_a_restored_database_may_be_disabled(statement: str, rest: str) -> None:
    script, _ = skipped(statement.format("Sales"), rest)
    assert [(note.kind, note.text) for note in script.notes] == [("restored", CHECK)]
    assert databases(script)["Sales"] == (None, True)
    options = ("ENABLE_BROKER", "DISABLE_BROKER", "NEW_BROKER", "ERROR_BROKER_CONVERSATIONS")
    for option in options:
        assert read(statement.format("Sales"), f"ALTER DATABASE Sales SET {option}", rest).notes == ()


def test_guard_enables_the_broker_of_a_restored_database() -> None:
    guard = "IF (SELECT is_broker_enabled FROM sys.databases WHERE name = N'Sales') = 0 ALTER DATABASE Sales SET ENABLE_BROKER"
    script = read("RESTORE DATABASE Sales FROM DISK = 'a'", guard, "USE Sales CREATE QUEUE Q")
    assert (script.notes, databases(script)["Sales"]) == ((), (None, True))


def test_name_of_a_restored_database_may_differ_in_case() -> None:
    script, _ = skipped("CREATE DATABASE Sales", "RESTORE DATABASE SALES FROM DISK = 'a'")
    assert [(note.kind, note.position.line) for note in script.notes] == [("restored", 2)]


def test_database_that_is_left_offline_is_disabled() -> None:
    script, _ = skipped("CREATE DATABASE Sales", "ALTER DATABASE sales SET OFFLINE WITH ROLLBACK IMMEDIATE")
    assert [(note.kind, note.position.line) for note in script.notes] == [("offline", 2)]
    assert databases(script)["Sales"] == (None, False)
    online = read("CREATE DATABASE Sales", "ALTER DATABASE Sales SET OFFLINE", "ALTER DATABASE Sales SET ONLINE")
    assert (online.notes, databases(online)["Sales"]) == ((), (None, True))
    other, _ = skipped("ALTER DATABASE Old SET OFFLINE", "USE HR")
    assert ([note.kind for note in other.notes], list(databases(other))) == (["skipped"], ["HR", "msdb"])


def test_restore_replaces_the_objects_of_a_database() -> None:
    before = "CREATE DATABASE Sales USE Sales CREATE QUEUE Q CREATE SERVICE S ON QUEUE Q ALTER DATABASE Sales SET DISABLE_BROKER"
    script = read(before, "USE master RESTORE DATABASE SALES FROM DISK = 'a' WITH REPLACE, ENABLE_BROKER")
    assert services(script) == []
    assert databases(script)["Sales"] == (None, True)


def test_a_broker_option_of_the_log_ends_a_restore() -> None:
    script = read(
        "RESTORE DATABASE Sales FROM DISK = 'a' WITH NORECOVERY",
        "RESTORE LOG Sales FROM DISK = 'b' WITH RECOVERY, ENABLE_BROKER",
    )
    assert (databases(script)["Sales"], script.notes) == ((None, True), ())


@pytest.mark.parametrize(
    "statement",
    [
        "RESTORE FILELISTONLY FROM DISK = 'a'",
        "RESTORE LOG Sales",
        "RESTORE LOG Sales FROM DISK = 'a'",
        "RESTORE LOG Sales FROM DISK = 'a' WITH MOVE 'b' TO 'c', NORECOVERY",
        "RESTORE DATABASE @name FROM DISK = 'a'",
        "RESTORE DATABASE master FROM DISK = 'a' WITH REPLACE",
    ],
)
def test_other_restores_are_skipped(statement: str) -> None:
    _, messages = skipped("USE HR", statement, "CREATE QUEUE Q")
    assert len(messages) == 1
    assert messages[0].endswith("skipped (not about Service Broker)")


def test_restore_has_one_broker_option() -> None:
    error = refused("RESTORE DATABASE Sales FROM DISK = 'a' WITH NEW_BROKER, ENABLE_BROKER")
    assert "only one broker option is allowed" in str(error)
    assert "expected the rest of the statement" in str(refused("RESTORE DATABASE Sales FROM"))
