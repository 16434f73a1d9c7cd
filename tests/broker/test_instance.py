"""An instance is a folder of database files."""

from __future__ import annotations

import os
import pickle
import random
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ssbroker import _well_known
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance, instance_context
from ssbroker.broker.instance_transaction import InstanceTransaction
from ssbroker.broker.open_databases import Databases
from ssbroker.exceptions import BrokerError, DdlError, OptionError, SsbrokerError, StorageError, UnknownDatabaseError
from ssbroker.store.database_file import DatabaseFile
from tests.broker.conftest import Clock
from tests.unprivileged import nobody


def test_an_instance_is_a_folder_with_one_file_for_each_database(instance: Instance) -> None:
    instance.create_database("Sales")
    assert {path.name for path in instance.folder.iterdir() if path.suffix == ".sqlite"} == {
        "msdb.sqlite",
        "Sales.sqlite",
    }
    assert [database.name for database in instance.databases] == ["msdb", "Sales"]


@pytest.mark.skipif(os.name == "nt", reason="folders have no such modes there")
def test_the_folder_of_a_new_instance_is_private(tmp_path: Path) -> None:
    """Its files contain unencrypted bodies and session keys; an existing folder keeps its mode."""
    (tmp_path / "made").mkdir()
    (tmp_path / "made").chmod(0o750)
    before = os.umask(0o022)
    try:
        for name in ("new", "made"):
            Instance.create(tmp_path / name, name=name, background=False).close()
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new", "made")] == [0o700, 0o750]


def test_objects_persist_when_the_instance_is_reopened(instance: Instance, sales: Database) -> None:
    guid = sales.service_broker_guid
    folder = instance.folder
    instance.close()
    with Instance.open(folder, background=False) as again:
        assert again.name == "shop"
        found = again.database("Sales")
        assert found.service_broker_guid == guid
        assert set(database_context(found).objects().services) == {"//Orders", "//Shop"}
        assert set(database_context(found).objects().queues) == {("dbo", "Orders"), ("dbo", "Replies")}


@pytest.mark.rule("I1")
def test_every_database_has_its_own_broker_id_and_is_enabled(instance: Instance) -> None:
    databases = [instance.msdb, *(instance.create_database(f"Copy{number}") for number in range(5))]
    assert len({database.service_broker_guid for database in databases}) == len(databases)
    assert {database.service_broker_guid.version for database in databases} == {4}
    assert all(database.is_broker_enabled for database in databases)


@pytest.mark.parametrize("name", ["msdb", "Sales"])
def test_a_new_database_has_the_defaults(instance: Instance, name: str) -> None:
    instance.create_database("Sales")
    objects = database_context(instance.database(name)).objects()
    assert {kind.name: kind.validation for kind in objects.message_types.values()} == {
        _well_known.ERROR: "X",
        _well_known.END_DIALOG: "E",
        _well_known.DIALOG_TIMER: "E",
        _well_known.DEFAULT: "N",
        _well_known.MISSING_ROUTE: "X",
        _well_known.MISSING_REMOTE_SERVICE_BINDING: "X",
    }
    notice = objects.contracts[_well_known.CONFIGURATION_NOTICE].messages
    assert [objects.message_types_by_id[number].name for number in notice] == [
        _well_known.MISSING_ROUTE,
        _well_known.MISSING_REMOTE_SERVICE_BINDING,
    ]
    (message,) = objects.contracts[_well_known.DEFAULT].messages.values()
    assert objects.message_types_by_id[message.message_type_id].name == _well_known.DEFAULT
    assert message.is_sent_by_initiator
    assert message.is_sent_by_target
    (route,) = objects.routes.values()
    assert (route.name, route.address, route.remote_service_name, route.lifetime) == (
        "AutoCreatedLocal",
        "LOCAL",
        None,
        None,
    )


def test_the_same_seed_gives_the_same_ids(tmp_path: Path, clock: Clock) -> None:
    ids = []
    for folder in ("first", "second"):
        with Instance.create(
            tmp_path / folder, name="x", clock=clock, random=random.Random(1), background=False
        ) as made:
            ids.append(made.create_database("Sales").service_broker_guid)
    assert ids[0] == ids[1]


def test_a_folder_holds_one_instance(instance: Instance) -> None:
    with pytest.raises(BrokerError, match="already contains an instance"):
        Instance.create(instance.folder, name="other")
    assert Instance.open(instance.folder, background=False).name == "shop"


def test_creating_an_instance_can_be_repeated_after_a_crash(tmp_path: Path) -> None:
    (tmp_path / "msdb.sqlite").touch()
    with Instance.create(tmp_path, name="shop", background=False) as made:
        assert made.msdb.is_broker_enabled


def test_only_one_of_two_concurrent_creations_succeeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create = DatabaseFile.create

    def create_meanwhile(*given: Any, **options: Any) -> DatabaseFile:
        monkeypatch.undo()
        Instance.create(tmp_path, name="first", background=False).close()
        return create(*given, **options)

    monkeypatch.setattr(DatabaseFile, "create", create_meanwhile)
    with pytest.raises(BrokerError, match="already contains an instance"):
        Instance.create(tmp_path, name="second")
    assert Instance.open(tmp_path, background=False).name == "first"


def test_a_file_that_appears_during_creation_is_not_overwritten(
    instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example a backup copied to that path."""
    theirs = instance.create_database("Stock").path
    instance.detach_database("Stock")
    place = theirs.with_name("Sales.sqlite")
    create = DatabaseFile.create

    def create_meanwhile(*given: Any, **options: Any) -> DatabaseFile:
        theirs.rename(place)
        return create(*given, **options)

    monkeypatch.setattr(DatabaseFile, "create", create_meanwhile)
    with pytest.raises(BrokerError, match="already exists"):
        instance.create_database("Sales")
    assert instance.attach_database("Stock", place).is_broker_enabled


def test_concurrent_creations_of_a_database_create_it_once(instance: Instance) -> None:
    def make(number: int) -> int | None:
        try:
            instance.create_database("Sales" if number % 2 else f"Own{number}")
        except BrokerError as error:
            return error.number
        return None

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make, range(8)))
    assert made[::2] == [None] * 4
    assert sorted(map(str, made[1::2])) == ["1801", "1801", "1801", "None"]
    assert len(instance.databases) == 6


@pytest.mark.parametrize(
    "make", [partial(Instance.open, create=True), Instance.open, partial(Instance.create, name="x")]
)
def test_an_instance_in_memory_is_refused(
    make: Callable[[str], Instance], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        OptionError, match=r"folder: ':memory:' is not possible.* pass a folder from tempfile\.TemporaryDirectory\(\)$"
    ):
        make(":memory:")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("create", [True, False])
def test_a_file_is_not_the_folder_of_an_instance(tmp_path: Path, *, create: bool) -> None:
    file = tmp_path / "shop"
    file.touch()
    with pytest.raises(StorageError, match=r"shop: is a file; pass the instance folder$"):
        Instance.open(file, create=create)


def test_a_closed_instance_cannot_be_used_in_a_block(tmp_path: Path) -> None:
    with Instance.open(tmp_path / "shop", create=True) as instance:
        pass
    with pytest.raises(StorageError, match="is closed; open the instance again"), instance:
        pass


def test_an_inaccessible_folder_is_a_clear_error(open_to_all: Path) -> None:
    Instance.create(open_to_all, name="shop", background=False).close()
    open_to_all.chmod(0o600)
    with nobody():
        with pytest.raises(StorageError, match="Permission denied"):
            Instance.open(open_to_all, background=False)
        for folder in (open_to_all, open_to_all / "another"):
            with pytest.raises(StorageError, match="Permission denied"):
                Instance.create(folder, name="another", background=False)
    open_to_all.chmod(0o755)
    Instance.open(open_to_all, background=False).close()


def test_a_missing_instance_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="msdb"):
        Instance.open(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


def test_the_error_for_an_unknown_database_lists_the_existing_ones(instance: Instance) -> None:
    with pytest.raises(UnknownDatabaseError, match=r"'sales'.*msdb"):
        instance.database("sales")


@pytest.mark.parametrize(
    ("name", "number"),
    [("msdb", 1801), ("MSDB", 1801), ("tempdb", 1801), ("Sales", 1801), ("", 1038), ("x" * 129, 103)],
)
def test_existing_and_invalid_names_are_rejected(instance: Instance, name: str, number: int) -> None:
    instance.create_database("Sales")
    with pytest.raises(BrokerError) as refused:
        instance.create_database(name)
    assert refused.value.number == number
    assert [database.name for database in instance.databases] == ["msdb", "Sales"]


@pytest.mark.parametrize("name", ["MSDB", "master", "tempdb", "Model"])
def test_names_of_system_databases_are_reserved(instance: Instance, name: str, tmp_path: Path) -> None:
    instance.create_database("Sales")
    reserved = f"1801: the name '{name}' is reserved for a system database; choose another one$"
    with pytest.raises(BrokerError, match=reserved):
        instance.create_database(name)
    with pytest.raises(BrokerError, match=reserved):
        instance.create_database(name, exist_ok=True)
    with pytest.raises(BrokerError, match=reserved):
        instance.attach_database(name, tmp_path / "copy.sqlite")
    for script in (f"CREATE DATABASE {name}", f"ALTER DATABASE Sales MODIFY NAME = {name}"):
        with pytest.raises(DdlError, match=f"(?i)1801: the name '{name}' is reserved for a system database"):
            instance.execute(script)


@pytest.mark.parametrize("name", ["../Sales", "a/b", "c:d", "Прод", "x" * 128, " ", "CON.", "%41", "\n"])
def test_any_database_name_becomes_a_file_in_the_folder(instance: Instance, name: str) -> None:
    instance.create_database(name)
    (path,) = (path for path in instance.folder.glob("*.sqlite") if path.name != "msdb.sqlite")
    assert path.parent == instance.folder
    assert path.name.isascii()
    assert instance.database(name).is_broker_enabled


def test_databases_created_by_another_process_are_visible(instance: Instance) -> None:
    with Instance.open(instance.folder, background=False) as other:
        other.create_database("Sales").create_queue("Orders")
        assert set(database_context(instance.database("Sales")).objects().queues) == {("dbo", "Orders")}


@pytest.fixture
def with_missing_file(instance: Instance) -> Iterator[Instance]:
    """An instance reopened after the file of one database was removed; the other one is present."""
    for name in ("Sales", "Stock"):
        instance.create_database(name)
    missing_file = instance.database("Stock").path
    instance.close()
    missing_file.unlink()
    with Instance.open(instance.folder, background=False) as opened:
        yield opened


def test_a_missing_database_is_reported_once_and_others_work(
    with_missing_file: Instance, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        with with_missing_file.database("Sales").transaction() as t:
            t.connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER)")
        with_missing_file.run_due()
    with pytest.raises(StorageError, match="no such file"):
        with_missing_file.database("Stock")
    assert [line.getMessage() for line in caplog.records if "not available" in line.getMessage()] == [
        f"the database 'Stock' is not available until its file can be used again: {with_missing_file.folder / 'Stock.sqlite'}: no such file"
    ]


def test_missing_and_unreadable_databases_are_both_omitted(
    with_missing_file: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def fails() -> object:
        nonlocal looks
        looks += 1
        assert looks < 10, "the search must end"
        raise StorageError("the disk is on fire", file="Sales.sqlite")

    monkeypatch.setattr(database_context(with_missing_file.database("Sales")), "objects", fails)
    assert with_missing_file.catalog().databases["name"].to_pylist() == ["msdb"]


@pytest.mark.parametrize("what", ["instance", "database", "transaction"])
def test_pickling_objects_of_a_process_is_a_clear_error(instance: Instance, sales: Database, what: str) -> None:
    """Spark functions and process pools pickle the objects that they refer to."""
    one = {"instance": instance, "database": sales, "transaction": sales.transaction()}[what]
    with pytest.raises(TypeError, match=r"cannot be pickled.*Instance\.open"):
        pickle.dumps(one)


@pytest.mark.parametrize("name", ["loop", "\udcff", "a\0b"], ids=ascii)
def test_an_invalid_path_is_a_clear_error(tmp_path: Path, instance: Instance, name: str) -> None:
    """Circular links, a name that is not UTF-8, and an invalid name."""
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for use in (
        lambda: Instance.create(tmp_path / name, name="other", background=False),
        lambda: Instance.open(tmp_path / name, background=False),
        lambda: instance.attach_database("Other", tmp_path / name),
    ):
        with pytest.raises(SsbrokerError):
            use()
    assert [database.name for database in instance.databases] == ["msdb"]


@pytest.mark.parametrize("wrong", [None, 7, b"shop", "\udcff"], ids=ascii)
def test_an_invalid_instance_name_is_rejected(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(OptionError, match="name: expected a string"):
        Instance.create(tmp_path / "shop", name=wrong, background=False)
    assert not (tmp_path / "shop").exists()


@pytest.mark.parametrize(
    "go",
    [
        lambda instance: instance.detach_database("Stock"),
        lambda instance: instance.drop_database("Stock"),
        lambda instance: instance.execute("DROP DATABASE Stock"),
    ],
    ids=["detach", "drop", "DDL"],
)
@pytest.mark.parametrize("content", [None, b"", b"no database"], ids=["gone", "empty", "damaged"])
def test_a_database_with_a_lost_file_can_be_dropped_and_recreated(
    with_missing_file: Instance, go: Callable[[Instance], None], content: bytes | None
) -> None:
    """A registered database without a file must not block its name."""
    path = with_missing_file.folder / "Stock.sqlite"
    if content is not None:
        path.write_bytes(content)
    go(with_missing_file)
    assert [row["name"] for row in with_missing_file.view("sys.databases").to_pylist()] == ["msdb", "Sales"]
    assert (path.read_bytes() if path.exists() else None) == content
    path.unlink(missing_ok=True)
    assert with_missing_file.create_database("Stock").is_broker_enabled
    with Instance.open(with_missing_file.folder, background=False) as again:
        assert [database.name for database in again.databases] == ["msdb", "Sales", "Stock"]


def test_a_database_dropped_by_another_process_is_unknown(with_missing_file: Instance) -> None:
    with InstanceTransaction(instance_context(with_missing_file)) as alteration:
        with Instance.open(with_missing_file.folder, background=False) as other:
            other.drop_database("Stock")
        with pytest.raises(UnknownDatabaseError, match="no longer exists"):
            alteration.remove_unavailable("Stock", is_dropped=False)


def test_an_unavailable_database_is_not_unknown_while_another_thread_reads_the_registry(
    with_missing_file: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases = instance_context(with_missing_file).databases_list
    read_all, open_one = Databases.all, Databases._open
    is_reading, may_continue = threading.Event(), threading.Event()
    first = threading.current_thread()

    def open_slowly(self: Databases, row: Any) -> Any:
        if threading.current_thread() is not first:
            is_reading.set()
            may_continue.wait(60)
        return open_one(self, row)

    def all_and_then_another(self: Databases) -> Any:
        found = read_all(self)
        thread.start()
        is_reading.wait(0.2)  # it cannot read before this thread has finished
        return found

    thread = threading.Thread(target=read_all, args=(databases,))
    monkeypatch.setattr(Databases, "_open", open_slowly)
    monkeypatch.setattr(Databases, "all", all_and_then_another)
    try:
        with pytest.raises(StorageError):
            databases.one("Stock")
    finally:
        may_continue.set()
        thread.join()
