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


def test_restore_replaces_the_objects_of_a_database() -> None:
    before = "CREATE DATABASE Sales USE Sales CREATE QUEUE Q CREATE SERVICE S ON QUEUE Q ALTER DATABASE Sales SET DISABLE_BROKER"
    script = read(before, "USE master RESTORE DATABASE SALES FROM DISK = 'a' WITH REPLACE, ENABLE_BROKER")
    assert services(script) == []
    assert databases(script)["Sales"] == (None, True)


@pytest.mark.parametrize(
    "statement",
    [
        "RESTORE FILELISTONLY FROM DISK = 'a'",
        "RESTORE LOG Sales FROM DISK = 'a'",
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
