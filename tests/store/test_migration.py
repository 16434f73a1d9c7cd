"""Files of earlier versions, as their code left them, are migrated with all their content."""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any, Final

import apsw
import pytest

from ssbroker import Instance
from ssbroker.broker import views
from ssbroker.broker.database import database_context
from ssbroker.exceptions import StorageError
from ssbroker.store.database_file import DatabaseFile
from ssbroker.store.database_registry import MSDB_MIGRATIONS
from ssbroker.store.schema import DATABASE
from tests.broker.conftest import Clock

RECORDED: Final = Path(__file__).parent
VERSION: Final = len(DATABASE)
RENAMED: Final = 5
"""The version in which the table of messages got its present name."""
HIDDEN: Final = 9
"""The version from which on messages that wait are hidden."""


@pytest.fixture(params=range(1, VERSION), ids=lambda version: f"version {version}")
def version(request: pytest.FixtureRequest) -> int:
    """The version of the files."""
    return int(request.param)


@pytest.fixture
def folder(tmp_path: Path, version: int) -> Path:
    """An instance as that version left it: one dialog within Sales with a reply in transit, and one with another instance."""
    for script in (RECORDED / f"version_{version}").glob("*.sql"):
        connection = apsw.Connection(str(tmp_path / f"{script.stem}.sqlite"))
        connection.execute(script.read_text(encoding="utf-8"))
        connection.pragma("journal_mode", "wal")
        connection.close()
    return tmp_path


def opened(folder: Path) -> Instance:
    return Instance.open(folder, clock=Clock(), random=random.Random(7), background=False)


def columns(connection: Any) -> dict[str, list[Any]]:
    """Returns all tables and indexes of the library with their columns."""
    names = connection.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'ssb%' ORDER BY name").fetchall()
    return {
        name: [
            *connection.execute(f"SELECT * FROM pragma_table_xinfo('{name}')"),
            *connection.execute(f"SELECT * FROM pragma_index_xinfo('{name}')"),
            *connection.execute(f"SELECT * FROM pragma_foreign_key_list('{name}')"),
        ]
        for (name,) in names
    }


def test_an_instance_of_an_earlier_version_continues(folder: Path) -> None:
    with opened(folder) as instance:
        sales = instance.database("Sales")
        with sales.transaction() as t:
            assert t.connection.execute("SELECT what FROM orders").get == "two chairs"
            (row,) = t.receive("Orders").to_pylist()
            assert row["message_body"] == b"please"
            t.end_conversation(uuid.UUID(bytes=row["conversation_handle"]))
        with sales.transaction() as t:
            rows = t.receive("Replies").to_pylist()
            assert [row["message_body"] for row in rows] == [b"on its way", None]
            t.end_conversation(uuid.UUID(bytes=rows[0]["conversation_handle"]))
        (waiting,) = instance.view("sys.transmission_queue").to_pylist()
        assert (waiting["to_service_name"], waiting["message_body"]) == ("//Far", b"one table")
        assert [row["name"] for row in instance.view("sys.routes", database="Sales").to_pylist()][-1] == "Far"


@pytest.mark.parametrize(("name", "migrations"), [("Sales", DATABASE), ("msdb", MSDB_MIGRATIONS)])
def test_a_migrated_file_has_the_schema_of_a_new_one(
    folder: Path, tmp_path: Path, name: str, migrations: tuple[str, ...]
) -> None:
    led = DatabaseFile.open(folder / f"{name}.sqlite", migrations)
    created = DatabaseFile.create(tmp_path / "new.sqlite", migrations)
    with led.read() as old, created.read() as new:
        assert columns(old) == columns(new)
        assert old.pragma("user_version") == new.pragma("user_version") == VERSION
        assert old.pragma("integrity_check") == "ok"
        assert old.execute("PRAGMA foreign_key_check").fetchall() == []
    for file in (led, created):
        file.close()


def test_new_columns_have_values_that_describe_old_data(folder: Path) -> None:
    with opened(folder) as instance, database_context(instance.database("Sales")).file.read() as connection:
        rows = connection.execute(
            "SELECT is_remote, far_peer, session_key, far_session_key, far_certificate, begin_time FROM ssb_conversation_endpoints"
        ).fetchall()
        assert len(rows) == 3
        assert {*rows} == {(0, None, None, None, None, None)}
        assert connection.execute("SELECT mirroring_role, mirroring_number FROM ssb_database").get == ("principal", 0)
        queued = "SELECT count(*), count(enqueue_time) FROM ssb_queued_messages WHERE queue_id <> 0"
        assert connection.execute(queued).get == (2, 2)  # they count from the migration
        sends = "SELECT count(*) FROM ssb_send_permissions JOIN ssb_services USING (service_id) WHERE state = 'G'"
        assert connection.execute(sends).get == connection.execute("SELECT count(*) FROM ssb_services").get


@pytest.mark.parametrize("version", [HIDDEN - 1], indirect=True)
@pytest.mark.parametrize(("until", "hidden"), [(0, 0), (1 << 60, 1)])
def test_messages_of_waiting_groups_are_hidden(folder: Path, until: int, hidden: int) -> None:
    connection = apsw.Connection(str(folder / "Sales.sqlite"))
    group, queue_id = connection.execute("""
        SELECT conversation_group_id, queue_id FROM ssb_queued_messages JOIN ssb_conversation_endpoints USING (endpoint_id)
        WHERE status = 1 LIMIT 1""").get
    connection.execute("INSERT INTO ssb_group_leases VALUES (?, ?, NULL, NULL, 0, ?, 1, 1)", (group, queue_id, until))
    connection.close()
    with opened(folder) as instance, database_context(instance.database("Sales")).file.read() as migrated:
        assert migrated.execute("SELECT count(*) FROM ssb_queued_messages WHERE is_hidden").get == hidden


def test_queuing_orders_are_not_reused(folder: Path) -> None:
    """A stream continues after the last number that it has read."""
    with opened(folder) as instance:
        sales = instance.database("Sales")
        seen = [row["queuing_order"] for row in instance.view("Orders", database="Sales").to_pylist()]
        for _ in range(2):
            with sales.transaction() as t:
                t.receive("Orders", groups=None)
            with sales.transaction() as t:
                t.send(t.begin_dialog("//Shop", "//Orders", contract="Trade"), b"one more")
            seen += [row["queuing_order"] for row in instance.view("Orders", database="Sales").to_pylist()]
        assert len(seen) == 3
        assert seen == sorted({*seen})


@pytest.mark.parametrize("version", range(3, VERSION), indirect=True)
def test_queuing_orders_of_deleted_messages_are_not_reused(folder: Path, version: int) -> None:
    """Files record them since version 3, and by a row since version 5."""
    connection = apsw.Connection(str(folder / "Sales.sqlite"))
    if version < RENAMED:
        connection.execute("DELETE FROM ssb_queue_messages WHERE queuing_order = 3")
    else:
        connection.execute("UPDATE ssb_queued_messages SET queue_id = 0, status = 0 WHERE queuing_order = 3")
    connection.close()
    with opened(folder) as instance:
        sales = instance.database("Sales")
        assert views.last_queuing_order(database_context(sales)) == 3
        assert instance.view("Orders", database="Sales").num_rows == 0
        with sales.transaction() as t:
            t.send(t.begin_dialog("//Shop", "//Orders", contract="Trade"), b"one more")
        assert instance.view("Orders", database="Sales")["queuing_order"].to_pylist() == [4]


@pytest.mark.parametrize("version", range(1, RENAMED), indirect=True)
def test_a_process_of_an_earlier_version_cannot_delete_messages(folder: Path) -> None:
    """It would not keep the last number; it stops because its tables no longer exist."""
    earlier = apsw.Connection(str(folder / "Sales.sqlite"))
    assert earlier.execute("SELECT count(*) FROM ssb_queue_messages").get == 2
    with opened(folder) as instance:
        assert instance.view("Orders", database="Sales").num_rows == 1
        with pytest.raises(apsw.SQLError, match="no such table"):
            earlier.execute("DELETE FROM ssb_queue_messages")
    earlier.close()


def test_a_failed_migration_leaves_the_file_unchanged(folder: Path, version: int) -> None:
    path = folder / "Sales.sqlite"
    broken = (*DATABASE[:-1], f"{DATABASE[-1]} CREATE TABLE ssb_database (wrong INTEGER);")
    with pytest.raises(StorageError, match="the tables do not match the schema version"):
        DatabaseFile.open(path, broken)
    connection = apsw.Connection(str(path))
    assert connection.pragma("user_version") == version
    table = "ssb_queue_messages" if version < RENAMED else "ssb_queued_messages"
    names = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({table})")]
    assert "is_hidden" not in names
    assert connection.execute(f"SELECT count(*) FROM {table}").get == 2
    connection.close()
    with opened(folder) as instance:
        assert instance.database("Sales").is_broker_enabled
