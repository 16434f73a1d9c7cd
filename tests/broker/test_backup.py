"""`Database.backup` copies a snapshot of a database that is in use."""

from __future__ import annotations

import stat
from collections.abc import Callable
from itertools import count
from pathlib import Path

import apsw
import pytest

from ssbroker import Database, Instance, OutputError, StorageError
from ssbroker.broker.database import database_context
from ssbroker.broker.overview import health_problems
from tests.broker.dialog_calls import begin, contents_of, receive
from tests.store.failing_calls import Kind, failing_calls


def test_a_backup_has_the_last_commit(instance: Instance, sales: Database, tmp_path: Path) -> None:
    """Also while another transaction is open, which it does not wait for."""
    with sales.transaction() as t:
        t.connection.execute("CREATE TABLE orders (body)")
        t.connection.execute("INSERT INTO orders VALUES (zeroblob(5000000))")
    begin(sales, b"one")
    session = database_context(sales).file.session()
    session.begin().execute("DELETE FROM orders")
    sales.backup(tmp_path / "copy")
    session.close()
    assert receive(sales).num_rows == 1
    instance.drop_database("Sales")
    restored = instance.attach_database("Sales", tmp_path / "copy")
    assert contents_of(receive(restored)) == [b"one"]
    with restored.transaction() as t:
        assert t.connection.execute("SELECT sum(length(body)) FROM orders").fetchone() == (5_000_000,)


def test_an_instance_is_restored_from_copies_of_its_databases(
    instance: Instance, sales: Database, tmp_path: Path
) -> None:
    begin(sales, b"one")
    folder = tmp_path / "backup"
    folder.mkdir()
    for database in instance.databases:
        database.backup(folder / database.path.name)
    instance.close()
    with Instance.open(folder, background=False) as restored:
        assert restored.name == "shop"
        assert contents_of(receive(restored.database("Sales"))) == [b"one"]


class Inverted(apsw.VFS):
    """A file system that stores inverted bytes, like one that encrypts."""

    def __init__(self) -> None:
        super().__init__("inverted", "")

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> InvertedFile:  # noqa: N802
        return InvertedFile(name, flags)


class InvertedFile(apsw.VFSFile):
    def __init__(self, name: apsw.URIFilename | str | None, flags: list[int]) -> None:
        super().__init__("", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        return bytes(255 - byte for byte in super().xRead(amount, offset))

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        super().xWrite(bytes(255 - byte for byte in data), offset)


def test_a_backup_uses_the_file_system_of_the_instance(tmp_path: Path) -> None:
    vfs = Inverted()
    with Instance.create(tmp_path / "shop", name="shop", background=False, vfs="inverted") as instance:
        instance.queue("Jobs").put(b"secret")
        instance.database("Queues").backup(tmp_path / "copy")
        assert b"secret" not in (tmp_path / "copy").read_bytes()
        instance.drop_database("Queues")
        instance.attach_database("Queues", tmp_path / "copy")
        with instance.queue("Jobs").take(timeout=0) as job:
            assert job.value == b"secret"
    vfs.unregister()


def test_others_cannot_read_a_backup(sales: Database, tmp_path: Path) -> None:
    sales.backup(tmp_path / "copy.sqlite")
    assert stat.S_IMODE((tmp_path / "copy.sqlite").stat().st_mode) == 0o600


def test_an_existing_file_is_not_replaced(sales: Database, tmp_path: Path) -> None:
    path = tmp_path / "copy"
    path.write_text("important")
    with pytest.raises(OutputError, match=r"copy: cannot be created: File exists"):
        sales.backup(path)
    assert path.read_text() == "important"
    with pytest.raises(OutputError, match="cannot be created: No such file or directory"):
        sales.backup(tmp_path / "missing" / "copy")


def storage_error_of(what: Callable[[], object]) -> StorageError | None:
    """Returns the only error that a failing disk may cause."""
    try:
        what()
    except StorageError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("full", "database or disk is full"), ("write", "cannot be written during the copy: disk I/O error")],
)
def test_a_backup_to_a_disk_that_is_full_or_fails_names_the_copy(tmp_path: Path, kind: Kind, reason: str) -> None:
    """Nothing of it is left, and the database is not reported as unreadable."""
    with (
        failing_calls(kind) as disk,
        Instance.create(tmp_path / "shop", name="shop", background=False) as instance,
    ):
        queue = instance.queue("Jobs")
        for _ in range(10):
            queue.put(bytes(50_000))
        database, path = instance.database("Queues"), tmp_path / "backup" / "copy"
        path.parent.mkdir()
        for lasts in (True, False):
            for attempt in count(1):
                disk.lasts, disk.asked, disk.fails_at = lasts, 0, attempt
                error = storage_error_of(lambda: database.backup(path))
                disk.fails_at = 0
                if error is None:
                    assert attempt > 1
                    path.unlink()
                    break
                assert (str(error), error.file) == (f"{path}: {reason}", str(path))
                assert [*path.parent.iterdir()] == []
        assert list(health_problems(instance)) == ["endpoint"]


class Unreadable(Inverted):
    """A file system of which reads of a database fail, once that is asked for."""

    is_failing = False

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> InvertedFile:  # noqa: N802
        return UnreadableFile(self, name, flags)


class UnreadableFile(InvertedFile):
    def __init__(self, vfs: Unreadable, name: apsw.URIFilename | str | None, flags: list[int]) -> None:
        super().__init__(name, flags)
        self.vfs = vfs
        self.is_source = name is not None and "Queues.sqlite" in (name if isinstance(name, str) else name.filename())

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802
        if self.vfs.is_failing and self.is_source:
            error = apsw.IOError()
            error.extendedresult = apsw.SQLITE_IOERR_READ  # type: ignore[attr-defined]  # the stub lacks it
            raise error
        return super().xRead(amount, offset)


def test_a_backup_of_a_file_that_cannot_be_read_names_the_source(tmp_path: Path) -> None:
    vfs = Unreadable()
    with Instance.create(tmp_path / "shop", name="shop", background=False, vfs="inverted") as instance:
        queue = instance.queue("Jobs")
        for _ in range(500):
            queue.put(bytes(50_000))
        source = instance.database("Queues").path
        vfs.is_failing = True
        with pytest.raises(
            StorageError, match=r"Queues\.sqlite: cannot be read during the copy: disk I/O error$"
        ) as failed:
            instance.database("Queues").backup(tmp_path / "copy")
        vfs.is_failing = False
        assert failed.value.file == str(source)
        assert not (tmp_path / "copy").exists()
    vfs.unregister()


def test_a_failed_backup_leaves_no_file(instance: Instance, sales: Database, tmp_path: Path) -> None:
    instance.close()
    with pytest.raises(StorageError, match="is closed"):
        sales.backup(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
