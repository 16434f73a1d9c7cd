"""Rules I1 to I8: databases are created, attached, detached, dropped, and change their broker ids."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from ssbroker.broker import instance_transaction
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance
from ssbroker.exceptions import (
    BrokerError,
    BrokerWarning,
    LockTimeoutError,
    OptionError,
    SsbrokerError,
    StorageError,
    UnknownDatabaseError,
)
from tests.broker.conftest import Clock

OPTIONS = ["ENABLE_BROKER", "DISABLE_BROKER", "NEW_BROKER", "ERROR_BROKER_CONVERSATIONS"]


def copy_of(instance: Instance, name: str) -> Path:
    """Returns a backup of a database's file."""
    path = instance.database(name).path
    instance.detach_database(name)
    target = path.with_name("copy.sqlite")
    shutil.copy(path, target)
    instance.attach_database(name, path)
    return target


def listed(instance: Instance) -> dict[str, tuple[bytes, bool]]:
    """Returns the state of each database in the list."""
    with database_context(instance.msdb).file.read() as connection:
        rows = connection.execute("SELECT name, service_broker_guid, is_broker_enabled FROM ssb_databases")
        return {name: (guid, bool(enabled)) for name, guid, enabled in rows}


def agrees(instance: Instance) -> bool:
    """Returns whether list and files agree, and I7 holds."""
    states = {one.name: (one.service_broker_guid.bytes, one.is_broker_enabled) for one in instance.databases}
    enabled = [guid for guid, is_enabled in states.values() if is_enabled]
    return states == listed(instance) and len(set(enabled)) == len(enabled)


@pytest.mark.rule("I4")
def test_disable_and_enable_keep_the_id(instance: Instance, sales: Database) -> None:
    guid = sales.service_broker_guid
    for option, is_enabled in (("DISABLE_BROKER", False), ("ENABLE_BROKER", True), ("ENABLE_BROKER", True)):
        sales.set_broker(option)  # type: ignore[arg-type]
        assert (sales.service_broker_guid, sales.is_broker_enabled) == (guid, is_enabled)
        assert agrees(instance)


@pytest.mark.rule("I5")
def test_new_broker_enables_with_a_new_id(instance: Instance, sales: Database) -> None:
    guid = sales.service_broker_guid
    sales.set_broker("DISABLE_BROKER")
    sales.set_broker("NEW_BROKER")
    assert sales.is_broker_enabled
    assert sales.service_broker_guid != guid
    assert agrees(instance)


@pytest.mark.rule("I6")
def test_error_broker_conversations_enables_and_keeps_the_id(instance: Instance, sales: Database) -> None:
    guid = sales.service_broker_guid
    sales.set_broker("DISABLE_BROKER")
    sales.set_broker("ERROR_BROKER_CONVERSATIONS")
    assert (sales.service_broker_guid, sales.is_broker_enabled) == (guid, True)
    assert agrees(instance)


def test_msdb_is_a_database_like_others(instance: Instance) -> None:
    guid = instance.msdb.service_broker_guid
    instance.msdb.set_broker("DISABLE_BROKER")
    assert not instance.msdb.is_broker_enabled
    instance.msdb.set_broker("NEW_BROKER")
    assert instance.msdb.service_broker_guid != guid
    assert agrees(instance)


@pytest.mark.threat("T25")
def test_an_invalid_option_is_rejected(sales: Database) -> None:
    """An option that ends conversations must be named exactly."""
    with pytest.raises(OptionError, match="ENABLE_BROKER"):
        sales.set_broker("ENABLE")  # type: ignore[arg-type]


@pytest.mark.rule("I8")
@pytest.mark.threat("T25")
@pytest.mark.parametrize("is_enabled", [True, False])
def test_detach_and_attach_change_neither_id_nor_state(
    instance: Instance, sales: Database, *, is_enabled: bool
) -> None:
    """No conversation ends unless requested."""
    guid, path = sales.service_broker_guid, sales.path
    sales.set_honor_broker_priority(is_on=True)
    if not is_enabled:
        sales.set_broker("DISABLE_BROKER")
    instance.detach_database("Sales")
    assert [database.name for database in instance.databases] == ["msdb"]
    assert not Path(f"{path}-wal").exists()
    with pytest.raises(StorageError):
        database_context(sales).objects()
    again = instance.attach_database("Shop", path)
    assert (again.service_broker_guid, again.is_broker_enabled) == (guid, is_enabled)
    assert set(database_context(again).objects().services) == {"//Orders", "//Shop"}
    assert not database_context(again).objects().broker.is_honor_broker_priority_on
    assert agrees(instance)


@pytest.mark.rule("I1", "I8")
def test_a_copy_restored_in_another_instance_keeps_its_id(instance: Instance, sales: Database, tmp_path: Path) -> None:
    copy = copy_of(instance, "Sales")
    guid = instance.database("Sales").service_broker_guid
    with Instance.create(tmp_path / "other", name="other", background=False) as other:
        restored = other.attach_database("Sales", copy)
        assert (restored.service_broker_guid, restored.is_broker_enabled) == (guid, True)


@pytest.mark.rule("I7")
@pytest.mark.parametrize("option", [None, "ENABLE_BROKER", "ERROR_BROKER_CONVERSATIONS", "DISABLE_BROKER"])
def test_an_attached_copy_is_disabled(instance: Instance, sales: Database, option: str | None) -> None:
    copy = copy_of(instance, "Sales")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        second = instance.attach_database("Copy", copy, option=option)  # type: ignore[arg-type]
    emitted = [str(warning.message) for warning in caught if warning.category is BrokerWarning]
    assert [text[:4] for text in emitted] == ([] if option == "DISABLE_BROKER" else ["9773"])
    assert not second.is_broker_enabled
    assert second.service_broker_guid == instance.database("Sales").service_broker_guid
    assert agrees(instance)


@pytest.mark.rule("I7")
def test_a_copy_with_a_new_id_is_enabled(instance: Instance, sales: Database) -> None:
    copy = copy_of(instance, "Sales")
    second = instance.attach_database("Copy", copy, option="NEW_BROKER")
    assert second.is_broker_enabled
    assert second.service_broker_guid != instance.database("Sales").service_broker_guid
    assert agrees(instance)


@pytest.mark.rule("I7")
@pytest.mark.threat("T14")
@pytest.mark.parametrize("option", ["ENABLE_BROKER", "ERROR_BROKER_CONVERSATIONS"])
def test_two_databases_with_one_id_are_never_both_enabled(instance: Instance, sales: Database, option: str) -> None:
    """A copy never replaces the original."""
    second = instance.attach_database("Copy", copy_of(instance, "Sales"), option="DISABLE_BROKER")
    with pytest.raises(BrokerError) as refused:
        second.set_broker(option)  # type: ignore[arg-type]
    assert refused.value.number == 9772
    instance.database("Sales").set_broker("DISABLE_BROKER")
    second.set_broker(option)  # type: ignore[arg-type]
    assert second.is_broker_enabled
    with pytest.raises(BrokerError, match="9772"):
        instance.database("Sales").set_broker("ENABLE_BROKER")
    assert agrees(instance)


@pytest.mark.rule("I7")
def test_a_file_replaced_while_the_instance_was_closed(instance: Instance, sales: Database) -> None:
    """A copy of another database in place of a database's file keeps its own id, and cannot be enabled at the same time as the original."""
    other = instance.create_database("Other").path
    copy = copy_of(instance, "Sales")
    guid, folder = instance.database("Sales").service_broker_guid, instance.folder
    instance.close()
    copy.replace(other)
    with Instance.open(folder, background=False) as again:
        assert again.database("Other").service_broker_guid == guid
        assert sorted(one.is_broker_enabled for one in (again.database("Sales"), again.database("Other"))) == [
            False,
            True,
        ]
        assert agrees(again)


@pytest.mark.parametrize("how", ["same", "relative", "symlink", "hard link", "through a linked folder"])
def test_a_file_is_attached_only_once_by_any_path(
    instance: Instance, sales: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = sales.path
    link = tmp_path / "link.sqlite"
    if how == "relative":
        monkeypatch.chdir(path.parent)
        link = Path(path.name)
    elif how == "symlink":
        link.symlink_to(path)
    elif how == "hard link":
        os.link(path, link)
    elif how == "through a linked folder":
        (tmp_path / "folder").symlink_to(path.parent)
        link = tmp_path / "folder" / path.name
    else:
        link = path
    with pytest.raises(BrokerError, match="is already attached as the database 'Sales'"):
        instance.attach_database("Again", link)
    assert [database.name for database in instance.databases] == ["msdb", "Sales"]
    assert sales.is_broker_enabled


@pytest.mark.parametrize("is_linked", [False, True])
def test_a_file_is_attached_to_one_instance(
    instance: Instance, sales: Database, tmp_path: Path, *, is_linked: bool
) -> None:
    path = sales.path
    instance.detach_database("Sales")
    instance.attach_database("Sales", path)
    link = tmp_path / "link.sqlite"
    os.link(path, link)
    with Instance.create(tmp_path / "other", name="other", background=False) as other:
        with pytest.raises(BrokerError, match="attached to another instance"):
            other.attach_database("Sales", link if is_linked else path)
        assert [database.name for database in other.databases] == ["msdb"]
    assert instance.database("Sales").is_broker_enabled


def test_a_foreign_file_is_rejected(instance: Instance, tmp_path: Path) -> None:
    text, foreign = tmp_path / "text.sqlite", tmp_path / "foreign.sqlite"
    text.write_text("no database, although it is long enough to look like one " * 20)
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE stock (article TEXT)")
    connection.close()
    with Instance.create(tmp_path / "other", name="other", background=False):
        pass
    for path in (text, foreign, tmp_path / "other" / "msdb.sqlite"):
        before = path.read_bytes()
        with pytest.raises(BrokerError) as refused:
            instance.attach_database("X", path)
        assert refused.value.number == 5171
        assert path.read_bytes() == before
    with pytest.raises(StorageError, match="no such file"):
        instance.attach_database("X", tmp_path / "nothing.sqlite")
    assert [database.name for database in instance.databases] == ["msdb"]


def test_an_existing_name_is_rejected(instance: Instance, sales: Database) -> None:
    with pytest.raises(BrokerError, match="1801"):
        instance.attach_database("Sales", copy_of(instance, "Sales"))


def test_dropping_a_database_removes_its_file(instance: Instance, sales: Database) -> None:
    path = sales.path
    instance.drop_database("Sales")
    assert [one for one in path.parent.iterdir() if one.name.startswith("Sales")] == []
    assert database_context(instance.create_database("Sales")).objects().queues == {}


@pytest.mark.parametrize(("method", "number"), [("drop_database", 3708), ("detach_database", 7940)])
def test_msdb_cannot_be_removed(instance: Instance, method: str, number: int) -> None:
    with pytest.raises(BrokerError) as refused:
        getattr(instance, method)("msdb")
    assert refused.value.number == number
    with pytest.raises(BrokerError, match=rf"^{number}: 'TempDB' is a system database, which cannot be"):
        getattr(instance, method)("TempDB")
    with pytest.raises(UnknownDatabaseError):
        getattr(instance, method)("Nothing")


def test_detaching_waits_for_open_transactions(instance: Instance, tmp_path: Path) -> None:
    with Instance.open(instance.folder, lock_timeout=0.05, background=False) as second_instance:
        second_instance.create_database("Sales")
        session = database_context(instance.database("Sales")).file.session()
        session.begin()
        with pytest.raises(LockTimeoutError):
            second_instance.detach_database("Sales")
        session.close()
        assert second_instance.database("Sales").is_broker_enabled
        second_instance.detach_database("Sales")


def test_a_detached_file_is_complete_even_if_another_process_has_it_open(
    instance: Instance, sales: Database, tmp_path: Path
) -> None:
    with Instance.open(instance.folder, background=False) as other:
        assert other.database("Sales").is_broker_enabled
        with sales.transaction() as t:
            t.send(t.begin_dialog("//Shop", "//Orders"), b"kept")
        instance.detach_database("Sales")
        shutil.copy(sales.path, tmp_path / "copy.sqlite")
    with Instance.create(tmp_path / "new", name="new", background=False) as new:
        restored = new.attach_database("Sales", tmp_path / "copy.sqlite")
        with restored.transaction() as t:
            assert t.receive("Orders")["message_body"].to_pylist() == [b"kept"]


def test_detaching_a_file_with_readers_reports_that_it_is_incomplete(instance: Instance, sales: Database) -> None:
    path = sales.path
    database_context(sales).file.lock_timeout = 0.1
    with (
        Instance.open(instance.folder, background=False) as other,
        database_context(other.database("Sales")).file.read() as reader,
    ):
        assert reader.execute("SELECT count(*) FROM ssb_queues").get
        with sales.transaction() as t:
            t.send(t.begin_dialog("//Shop", "//Orders"), b"kept")
        with pytest.warns(BrokerWarning, match=r"its last commits are still in Sales.sqlite-wal"):
            instance.detach_database("Sales")
        assert [one.name for one in instance.databases] == ["msdb"]
    with instance.attach_database("Sales", path).transaction() as t:
        assert t.receive("Orders")["message_body"].to_pylist() == [b"kept"]


def test_a_detached_file_cannot_be_written_by_others(instance: Instance, sales: Database) -> None:
    with Instance.open(instance.folder, background=False) as other:
        database_of_other = other.database("Sales")
        instance.detach_database("Sales")
        with pytest.raises(StorageError, match="no longer attached"):
            database_of_other.create_queue("Late")
        with pytest.raises(StorageError, match="no longer attached"), database_of_other.transaction() as t:
            t.begin_dialog("//Shop", "//Orders")
        with pytest.raises(UnknownDatabaseError):
            other.database("Sales")


def test_a_missing_file_does_not_affect_other_databases(instance: Instance, sales: Database, clock: Clock) -> None:
    instance.create_database("Stock")
    path, folder = sales.path, instance.folder
    instance.close()
    path.rename(path.with_name("away"))
    with Instance.open(folder, background=False) as again:
        assert [database.name for database in again.databases] == ["msdb", "Stock"]
        with pytest.raises(StorageError, match="Sales"):
            again.database("Sales")
        path.with_name("away").rename(path)
        assert again.database("Sales").is_broker_enabled


def test_an_instance_folder_can_be_moved(instance: Instance, sales: Database, tmp_path: Path) -> None:
    guid, folder = sales.service_broker_guid, instance.folder
    instance.close()
    folder.rename(tmp_path / "moved")
    with Instance.open(tmp_path / "moved", background=False) as again:
        assert again.database("Sales").service_broker_guid == guid


def test_an_existing_file_in_place_of_a_new_database_is_not_changed(instance: Instance, sales: Database) -> None:
    path = sales.path
    instance.detach_database("Sales")
    before = path.read_bytes()
    with pytest.raises(BrokerError) as refused:
        instance.create_database("Sales")
    assert refused.value.number == 5170
    assert path.read_bytes() == before
    assert set(database_context(instance.attach_database("Sales", path)).objects().services) == {"//Orders", "//Shop"}


@pytest.mark.parametrize(
    "step",
    ["database_registry.add", "changes.set_broker", "database_registry.set_broker", "file_ownership.record_owner"],
)
def test_a_full_disk_during_a_change_leaves_no_partial_change(
    instance: Instance, sales: Database, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    copy = copy_of(instance, "Sales")
    before, files = listed(instance), {path.name for path in instance.folder.glob("*.sqlite")}

    def full(*_: object, **__: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(f"ssbroker.broker.database_lifecycle.{step}", full)
    changes: list[Callable[[], object]] = [
        lambda: instance.attach_database("Copy", copy, option="DISABLE_BROKER"),
        lambda: instance.create_database("New"),
        lambda: instance.database("Sales").set_broker("NEW_BROKER"),
        lambda: instance.detach_database("Sales"),
    ]
    failed = 0
    for change in changes:
        try:
            change()
        except StorageError:
            failed += 1
            assert listed(instance) == before
            assert {path.name for path in instance.folder.glob("*.sqlite")} == files
            assert agrees(instance)
        before, files = listed(instance), {path.name for path in instance.folder.glob("*.sqlite")}
    assert failed
    monkeypatch.undo()
    instance.create_database("Further")
    assert agrees(instance)


@pytest.fixture
def restored(instance: Instance, sales: Database, tmp_path: Path) -> Iterator[Instance]:
    """A copy of the instance, whose database Sales is in another folder, made and opened while the instance is open."""
    path, elsewhere = sales.path, tmp_path / "elsewhere.sqlite"
    instance.detach_database("Sales")
    path.rename(elsewhere)
    instance.attach_database("Sales", elsewhere)
    folder = tmp_path / "restored"
    folder.mkdir()
    for database in instance.databases:
        database.backup(folder / database.path.name)
    with Instance.open(folder, background=False) as copy:
        yield copy


def test_a_copy_of_an_instance_does_not_use_files_outside_of_its_folder(instance: Instance, restored: Instance) -> None:
    with pytest.raises(
        StorageError,
        match="belongs to another instance, or to the one from which this msdb was copied; detach 'Sales' here",
    ):
        restored.database("Sales")
    assert instance.database("Sales").is_broker_enabled


@pytest.mark.parametrize("how", ["detach", "drop"])
def test_a_copy_of_an_instance_leaves_the_files_of_the_original_alone(
    instance: Instance, restored: Instance, how: str
) -> None:
    original = instance.database("Sales")
    if how == "detach":
        restored.detach_database("Sales")
    else:
        restored.drop_database("Sales")
    with pytest.raises(BrokerError, match="attached to another instance"):
        restored.attach_database("Sales", original.path)
    copy = restored.attach_database("Sales", restored.msdb.path.with_name("elsewhere.sqlite"))
    assert copy.is_broker_enabled
    assert original.path.exists()
    assert original.is_broker_enabled
    with original.transaction() as t:
        t.connection.execute("CREATE TABLE still_writable (x)")


def test_a_copy_of_an_instance_does_not_attach_the_files_in_the_folder_of_the_original(
    instance: Instance, sales: Database, tmp_path: Path
) -> None:
    folder = tmp_path / "restored"
    folder.mkdir()
    instance.msdb.backup(folder / "msdb.sqlite")
    sales.backup(folder / sales.path.name)
    with Instance.open(folder, background=False) as restored:
        assert restored.database("Sales").path.parent == folder
        with pytest.raises(BrokerError, match="attached to another instance"):
            restored.attach_database("Live", sales.path)
    assert sales.is_broker_enabled


@pytest.mark.parametrize("how", ["detached", "replaced"])
def test_a_copy_of_an_instance_does_not_take_a_file_that_the_original_has_released(
    instance: Instance, restored: Instance, tmp_path: Path, how: str
) -> None:
    """Until the original attaches it again, or opens a backup that was put in its place."""
    path = tmp_path / "elsewhere.sqlite"
    if how == "detached":
        instance.detach_database("Sales")
    else:
        folder = instance.msdb.path.parent
        instance.close()
        shutil.copy(restored.msdb.path.with_name("elsewhere.sqlite"), tmp_path / "backup.sqlite")
        (tmp_path / "backup.sqlite").replace(path)
    with pytest.raises(StorageError, match="belongs to another instance"):
        restored.database("Sales")
    if how == "detached":
        assert instance.attach_database("Sales", path).is_broker_enabled
    else:
        with Instance.open(folder, background=False) as again:
            assert again.database("Sales").is_broker_enabled
    with pytest.raises(StorageError, match="belongs to another instance"):
        restored.database("Sales")


def test_a_copy_of_an_instance_keeps_the_files_that_it_has_attached(restored: Instance, tmp_path: Path) -> None:
    """Also after it was closed, and after a backup was put in the place of the file."""
    copy, folder = tmp_path / "own.sqlite", restored.msdb.path.parent
    restored.detach_database("Sales")
    shutil.copy(folder / "elsewhere.sqlite", copy)
    assert restored.attach_database("Sales", copy).is_broker_enabled
    restored.database("Sales").backup(tmp_path / "backup.sqlite")
    restored.close()
    for _ in range(2):
        with Instance.open(folder, background=False) as again:
            assert again.database("Sales").is_broker_enabled
        (tmp_path / "backup.sqlite").replace(copy)
        shutil.copy(copy, tmp_path / "backup.sqlite")


def test_an_instance_keeps_the_files_that_an_earlier_version_attached(
    instance: Instance, sales: Database, tmp_path: Path
) -> None:
    """It recorded the instance id in files outside of the folder, too."""
    path, elsewhere = sales.path, tmp_path / "elsewhere.sqlite"
    instance.detach_database("Sales")
    path.rename(elsewhere)
    instance.attach_database("Sales", elsewhere)
    folder = instance.msdb.path.parent
    instance.close()
    with closing(sqlite3.connect(elsewhere)) as file, closing(sqlite3.connect(folder / "msdb.sqlite")) as msdb, file:
        (instance_id,) = msdb.execute("SELECT instance_id FROM ssb_instance").fetchone()
        file.execute("UPDATE ssb_database SET attached_to = ?, catalog_version = random()", (instance_id,))
    for _ in range(2):
        with Instance.open(folder, background=False) as again:
            assert again.database("Sales").is_broker_enabled


@pytest.mark.parametrize("is_empty", [True, False])
@pytest.mark.parametrize(
    "use",
    [
        lambda folder: Instance.create(folder, name="again"),
        lambda folder: Instance.open(folder, create=True),
        Instance.open,
    ],
    ids=["create", "open or create", "open"],
)
def test_an_instance_without_msdb_is_not_created_again(
    instance: Instance, sales: Database, *, use: Callable[[Path], Instance], is_empty: bool
) -> None:
    folder = sales.path.parent
    instance.close()
    (folder / "msdb.sqlite").unlink()
    if is_empty:
        (folder / "msdb.sqlite").touch()
    with pytest.raises(SsbrokerError, match=r"contains databases of an instance \(Sales.sqlite\), but no msdb.sqlite"):
        use(folder)
    assert (folder / "msdb.sqlite").exists() == is_empty
    assert not is_empty or (folder / "msdb.sqlite").stat().st_size == 0


@pytest.mark.parametrize("method", ["drop_database", "detach_database"])
def test_waits_for_messages_end_with_an_error_when_the_database_goes(tmp_path: Path, method: str) -> None:
    """In the process that drops the database, as in others; a wait that the end of the instance ends has no error."""

    def wait(database: Database) -> None:
        with database.queue("Jobs").take(timeout=10) as job:
            assert not job

    with Instance.open(tmp_path / "shop", create=True) as instance, Instance.open(tmp_path / "shop") as other:
        instance.create_database("Sales").queue("Jobs")
        instance.queue("Jobs")
        with ThreadPoolExecutor() as threads:
            waits = [threads.submit(wait, each.database("Sales")) for each in (instance, other)]
            last = threads.submit(wait, instance.database("Queues"))
            contexts = [database_context(each.database("Sales")) for each in (instance, other)]
            queue_id = contexts[0].objects().queues["dbo", "Jobs"].queue_id
            deadline = time.monotonic() + 30
            while not all(each.commit_signals.waiting(queue_id) for each in contexts):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            getattr(instance, method)("Sales")
            for waiting in waits:
                with pytest.raises(StorageError, match=r"Sales\.sqlite: is no longer attached to this instance"):
                    waiting.result(60)
            instance.close()
            last.result(60)


def test_a_backup_does_not_get_the_log_of_a_dropped_database_whose_file_was_missing(tmp_path: Path) -> None:
    with Instance.open(tmp_path / "shop", create=True, background=False) as instance:
        sales = instance.create_database("Sales")
        sales.backup(tmp_path / "backup.sqlite")
        sales.create_queue("Orders")
        for suffix in ("", "-wal"):
            shutil.copy(f"{sales.path}{suffix}", tmp_path / f"saved{suffix}")
    # As after a crash, and the loss of the file.
    shutil.copy(tmp_path / "saved-wal", f"{sales.path}-wal")
    sales.path.unlink()
    with Instance.open(tmp_path / "shop", background=False) as instance:
        (unavailable,) = instance.unavailable_databases.items()
        assert unavailable[0] == "Sales"
        assert str(unavailable[1]) == f"{sales.path}: no such file"
        assert [each.name for each in instance.databases] == ["msdb"]
        instance.drop_database("Sales")
        assert instance.unavailable_databases == {}
        assert list(sales.path.parent.glob("Sales*")) == []
        shutil.copy(tmp_path / "backup.sqlite", sales.path)
        instance.attach_database("Sales", sales.path)
        assert instance.view("sys.service_queues", "Sales").num_rows == 0


def test_a_file_that_replaces_the_missing_file_of_a_dropped_database_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Instance.open(tmp_path / "shop", create=True, background=False) as instance:
        sales = instance.create_database("Sales")
    sales.path.unlink()

    def copy_after_check(path: Path) -> bool:
        path.write_bytes(b"from a backup")
        return True

    monkeypatch.setattr(instance_transaction, "is_missing", copy_after_check)
    with Instance.open(tmp_path / "shop", background=False) as instance:
        instance.drop_database("Sales")
    assert sales.path.read_bytes() == b"from a backup"


def test_the_log_of_a_missing_file_is_kept_when_the_database_is_detached(tmp_path: Path) -> None:
    with Instance.open(tmp_path / "shop", create=True, background=False) as instance:
        sales = instance.create_database("Sales")
    sales.path.rename(tmp_path / "moved.sqlite")
    log = sales.path.with_name("Sales.sqlite-wal")
    log.write_bytes(b"commits")
    with Instance.open(tmp_path / "shop", background=False) as instance:
        instance.detach_database("Sales")
    assert log.read_bytes() == b"commits"
