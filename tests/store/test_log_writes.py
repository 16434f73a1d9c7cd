"""The log contains what SQLite writes to it, whether the frames of a commit are written one by one or in one piece."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple

import apsw
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ssbroker import _core
from ssbroker.exceptions import StorageError
from ssbroker.store.database_file import DatabaseFile
from ssbroker.store.sqlite import connect
from tests.store.failing_calls import failing_calls
from tests.store.numbered_rows import MIGRATIONS, expected, numbers_at, write
from tests.system.power.recording import NAME, Create, Mark, Operation, Recording, Sync, Write, recording

_PAGE: Final = 1024
_LOG_HEADER: Final = 32
_FRAME_HEADER: Final = struct.Struct(">II8s8x")
_MODES: Final = (apsw.SQLITE_CHECKPOINT_PASSIVE, apsw.SQLITE_CHECKPOINT_RESTART, apsw.SQLITE_CHECKPOINT_TRUNCATE)
_ROWS: Final = "SELECT number, body FROM numbers ORDER BY number"

Frame = tuple[int, int, bytes]
"""Its page's number, the number of pages after a commit or 0, and the page."""


class Put(NamedTuple):
    """Inserts a row, which may be larger than the cache, so that some pages are written to the log before the commit."""

    number: int
    size: int


class Take(NamedTuple):
    number: int


class Look(NamedTuple):
    """Reads all rows, including those in the log."""


class Nested(NamedTuple):
    """A savepoint, which is rolled back or not."""

    changes: tuple[Put | Take | Look, ...]
    is_undone: bool


class Transaction(NamedTuple):
    changes: tuple[Put | Take | Look | Nested, ...]
    is_undone: bool
    is_of_another: bool
    """Of a connection that SQLite's own file system serves, as one of another process would be."""


class Checkpoint(NamedTuple):
    mode: int


class Synchronous(NamedTuple):
    level: Literal["off", "normal", "full"]


Step = Transaction | Checkpoint | Synchronous

_PUT: Final = st.builds(Put, st.integers(0, 2), st.sampled_from([10, 3_000, 30_000]))
_CHANGE: Final = st.one_of(_PUT, _PUT, _PUT, st.builds(Take, st.integers(0, 2)), st.just(Look()))
_NESTED: Final = st.builds(Nested, st.lists(_CHANGE, min_size=1, max_size=4).map(tuple), st.booleans())
_TRANSACTION: Final = st.builds(
    Transaction,
    st.lists(st.one_of(_CHANGE, _CHANGE, _NESTED), min_size=1, max_size=6).map(tuple),
    st.booleans(),
    st.integers(0, 3).map(lambda drawn: drawn == 0),
)
_REST: Final = st.builds(Checkpoint, st.sampled_from(_MODES)) | st.builds(
    Synchronous, st.sampled_from(["off", "normal", "full"])
)
STEPS: Final = st.lists(st.one_of(_TRANSACTION, _TRANSACTION, _REST), min_size=2, max_size=8)

LARGE: Final = (Put(0, 30_000), Put(1, 30_000))
SMALL: Final = (Put(2, 10),)
UNDONE_AFTER_A_RESTART: Final[list[Step]] = [
    Checkpoint(apsw.SQLITE_CHECKPOINT_TRUNCATE),
    Transaction(LARGE, is_undone=True, is_of_another=False),
    Transaction(SMALL, is_undone=False, is_of_another=True),
    Transaction(SMALL, is_undone=False, is_of_another=False),
]
"""Nothing is read of the log while it is undone."""
WRITTEN_TWICE: Final[list[Step]] = [
    Transaction((Put(2, 10), *LARGE, Put(2, 3_000), *LARGE, Put(2, 10)), is_undone=False, is_of_another=False),
]
"""A page that is in the log is written over while it is in the cache."""


@pytest.fixture
def gathering(tmp_path: Path) -> str:
    """Name of the virtual file system on top of the default one; it exists once a file was opened."""
    DatabaseFile.create(tmp_path / "first.sqlite", MIGRATIONS).close()
    name = _core.register_wal_vfs(None)
    assert name is not None
    return name


def change(connection: apsw.Connection, changes: Sequence[Put | Take | Look | Nested]) -> None:
    for each in changes:
        match each:
            case Put(number, size):
                body = random.Random(size * 10 + number).randbytes(size)
                connection.execute("INSERT OR REPLACE INTO numbers VALUES (?, ?)", (number, body))
            case Take(number):
                connection.execute("DELETE FROM numbers WHERE number = ?", (number,))
            case Look():
                connection.execute(_ROWS).fetchall()
            case Nested(inner, is_undone):
                connection.execute("SAVEPOINT inside")
                change(connection, inner)
                if is_undone:
                    connection.execute("ROLLBACK TO inside")
                connection.execute("RELEASE inside")


def play(path: Path, vfs: str | None, steps: Sequence[Step]) -> Iterator[tuple[list[Frame], list[object]]]:
    """Returns the valid frames of the log after each step, and the rows that a reader finds after a kill."""
    with ExitStack() as stack:
        own, another = (stack.enter_context(closing(apsw.Connection(str(path), vfs=name))) for name in (vfs, None))
        own.pragma("page_size", _PAGE)
        own.pragma("journal_mode", "wal")
        own.execute("CREATE TABLE numbers (number INTEGER PRIMARY KEY, body BLOB)")
        for connection in (own, another):
            connection.pragma("synchronous", "full")
            connection.pragma("wal_autocheckpoint", 0)
            connection.pragma("cache_size", 10)
            connection.pragma("journal_size_limit", 100_000)
        for number, step in enumerate(steps):
            match step:
                case Transaction(changes, is_undone, is_of_another):
                    connection = another if is_of_another else own
                    connection.execute("BEGIN IMMEDIATE")
                    change(connection, changes)
                    connection.execute("ROLLBACK" if is_undone else "COMMIT")
                case Checkpoint(mode):
                    own.wal_checkpoint(mode=mode)
                case Synchronous(level):
                    own.pragma("synchronous", level)
            rows: list[object] = [*own.execute(_ROWS)]
            assert another.execute(_ROWS).fetchall() == rows
            assert rows_after_a_kill(path, path.with_name(f"{number}")) == rows
            yield frames(path), rows


def frames(path: Path) -> list[Frame]:
    """Returns the valid frames of the log: those of its current round, to the last commit. The rest may be anything."""
    log = path.with_name(path.name + "-wal").read_bytes()
    found: list[Frame] = []
    for start in range(_LOG_HEADER, len(log), _FRAME_HEADER.size + _PAGE):
        number, pages, salt = _FRAME_HEADER.unpack_from(log, start)
        if salt != log[16:24]:
            break
        body = start + _FRAME_HEADER.size
        found.append((number, pages, log[body : body + _PAGE]))
    while found and not found[-1][1]:
        found.pop()
    return found


def rows_after_a_kill(path: Path, folder: Path) -> list[object]:
    folder.mkdir()
    for name in (path.name, path.name + "-wal"):
        shutil.copy(path.with_name(name), folder)
    with closing(apsw.Connection(str(folder / path.name))) as connection:
        assert connection.pragma("integrity_check") == "ok"
        found = connection.execute(_ROWS).fetchall()
    shutil.rmtree(folder)
    return list(found)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(steps=STEPS)
@example(steps=UNDONE_AFTER_A_RESTART)
@example(steps=WRITTEN_TWICE)
def test_the_log_equals_that_of_sqlite(
    tmp_path_factory: pytest.TempPathFactory, gathering: str, steps: list[Step]
) -> None:
    """Frame for frame, after commits, rollbacks, cache spills, rewrites and checkpoints of two connections."""
    plain, gathered = (play(tmp_path_factory.mktemp("file") / "file.sqlite", vfs, steps) for vfs in (None, gathering))
    for one, other in zip(plain, gathered, strict=True):
        assert one == other


def test_a_commit_is_one_write_and_one_sync(tmp_path: Path) -> None:
    """Except when the log is extended by zeros."""
    with recording() as disk, closing(DatabaseFile.create(tmp_path / "file.sqlite", MIGRATIONS, vfs=NAME)) as file:
        for number in range(20):
            with file.write() as connection:
                connection.execute("INSERT INTO numbers VALUES (?, ?)", (number, b"12"))
            disk.trace.append(Mark("committed", number))
        log = max(each.inode for each in disk.trace if isinstance(each, Write))
        commits = [[each for each in some if getattr(each, "inode", log) == log] for some in split(disk.trace)]
    for commit in commits[1:]:
        *ahead, frames, sync = commit
        assert isinstance(frames, Write)
        assert isinstance(sync, Sync)
        assert all(isinstance(each, Write) and not any(each.data) for each in ahead)
    assert sum(len(commit) == 2 for commit in commits) > 15


def log_operations(disk: Recording, name: str, run: Callable[[], object]) -> list[str]:
    """Returns the kinds of operations on a log and on its database file, in order; zeros that extend the log do not count."""
    inodes = {each.inode: Path(each.name).name for each in disk.trace if isinstance(each, Create)}
    kinds = {name: "file", f"{name}-wal": "log"}
    before = len(disk.trace)
    run()
    return [
        f"{type(each).__name__} {kinds[inodes[each.inode]]}"
        for each in disk.trace[before:]
        if isinstance(each, Sync) or (isinstance(each, Write) and any(each.data))
    ]


def insert(file: DatabaseFile, number: int, *, is_durable: bool) -> None:
    with file.write(is_durable=is_durable) as connection:
        connection.execute("INSERT INTO numbers VALUES (?, ?)", (number, b"12"))


def test_a_commit_that_need_not_be_durable_omits_its_sync_only(tmp_path: Path) -> None:
    with recording() as disk, closing(DatabaseFile.create(tmp_path / "file.sqlite", MIGRATIONS, vfs=NAME)) as file:
        insert(file, 1, is_durable=True)
        found = [
            log_operations(disk, "file.sqlite", partial(insert, file, number, is_durable=is_durable))
            for number, is_durable in enumerate([True, False, False, True, False, True], start=2)
        ]
    synced, unsynced = ["Write log", "Sync log"], ["Write log"]
    assert found == [synced, unsynced, unsynced, synced, unsynced, synced]


def test_a_checkpoint_in_a_commit_that_omits_its_sync_syncs_the_log_first(tmp_path: Path) -> None:
    with recording() as disk, closing(DatabaseFile.create(tmp_path / "file.sqlite", MIGRATIONS, vfs=NAME)) as file:
        with file.write() as connection:
            connection.pragma("wal_autocheckpoint", 1)
        found = log_operations(disk, "file.sqlite", partial(insert, file, 1, is_durable=False))
    assert found[:3] == ["Write log", "Sync log", "Write file"]
    assert found[-1] == "Sync file"


def test_a_failed_commit_that_would_have_omitted_its_sync_leaves_the_next_ones_synced(tmp_path: Path) -> None:
    with recording() as disk, closing(DatabaseFile.create(tmp_path / "file.sqlite", MIGRATIONS, vfs=NAME)) as file:
        insert(file, 1, is_durable=True)
        with file.write() as connection:
            connection.execute("CREATE TABLE parents (parent PRIMARY KEY)")
            connection.execute("CREATE TABLE children (parent REFERENCES parents DEFERRABLE INITIALLY DEFERRED)")
        with pytest.raises(apsw.ConstraintError), file.write(is_durable=False) as connection:
            connection.execute("INSERT INTO children VALUES (1)")
        found = log_operations(disk, "file.sqlite", partial(insert, file, 2, is_durable=True))
    assert found == ["Write log", "Sync log"]


def split(trace: Sequence[Operation]) -> list[list[Operation]]:
    found: list[list[Operation]] = [[]]
    for each in trace:
        if isinstance(each, Mark):
            found.append([])
        else:
            found[-1].append(each)
    return found[:-1]


def test_a_disk_without_space_to_extend_the_log(tmp_path: Path) -> None:
    """Extending the log is optional, so that it is not an error if zeros do not fit."""
    grew: list[bool] = []
    for attempt in range(1, 12):
        path = tmp_path / f"{attempt}.sqlite"
        with failing_calls("full") as disk, closing(DatabaseFile.create(path, MIGRATIONS)) as file:
            if (writer := file.write_lock.take_idle_connection()) is not None:
                file.connections.give_back(writer)  # it extends the log again only if it has truncated it itself
            file.checkpoint()
            disk.lasts, disk.asked, disk.fails_at = False, 0, attempt
            try:
                with file.write() as connection:
                    connection.execute("INSERT INTO numbers VALUES (1, 'a')")
            except StorageError:
                assert rows_of(path) == []
                continue
            assert rows_of(path) == [(1, "a")]
            grew.append(path.with_name(path.name + "-wal").stat().st_size > 250_000)
    assert set(grew) == {False, True}


def rows_of(path: Path, question: str = _ROWS) -> list[object]:
    with closing(apsw.Connection(str(path))) as connection:
        return list(connection.execute(question))


def test_a_file_system_registered_later_with_the_same_name(tmp_path: Path) -> None:
    """The one below that was replaced is not used any more."""
    for attempt in range(3):
        path = tmp_path / f"{attempt}.sqlite"
        with recording() as disk, closing(DatabaseFile.create(path, MIGRATIONS, vfs=NAME)) as file:
            write(file, attempt)
            assert any(isinstance(each, Write) for each in disk.trace)
        assert numbers_at(path) == expected([attempt])


def test_an_unknown_file_system() -> None:
    assert _core.register_wal_vfs("nobody's") is None


def test_an_application_can_load_extensions_and_attach_files(tmp_path: Path) -> None:
    """On the connection of its transaction; an attached file keeps its journal mode."""
    path = tmp_path / "file.sqlite"
    DatabaseFile.create(path, MIGRATIONS).close()
    rows_of(tmp_path / "beside.sqlite", "PRAGMA user_version = 1")
    with closing(connect(path)) as connection:
        connection.enable_load_extension(True)
        connection.load_extension(_core.__file__, "ssbroker_sqlite_init")
        connection.execute("ATTACH ? AS beside", (str(tmp_path / "beside.sqlite"),))
        connection.execute("CREATE TABLE beside.things (thing)")
        connection.execute("CREATE TEMP TABLE passing (thing)")
        with connection:
            connection.execute("INSERT INTO numbers VALUES (1, 'a')")
            connection.execute("INSERT INTO beside.things VALUES ('b')")
            connection.execute("INSERT INTO passing VALUES (zeroblob(100000))")
        assert connection.execute("SELECT * FROM numbers, beside.things").get == (1, "a", "b")
    assert rows_of(tmp_path / "beside.sqlite", "SELECT thing FROM things") == [("b",)]


def test_nothing_is_gathered_without_powersafe_overwrite(tmp_path: Path) -> None:
    """SQLite then fills up the last sector of a commit, syncs within a frame, and lets others read it immediately."""
    for is_powersafe in (True, False):
        path = tmp_path / f"{is_powersafe}.sqlite"
        with (
            recording(is_powersafe=is_powersafe) as disk,
            closing(DatabaseFile.create(path, MIGRATIONS, vfs=NAME)) as file,
        ):
            before = len(disk.trace)
            with file.write() as connection:
                connection.execute("INSERT INTO numbers VALUES (1, 'a')")
            writes = [each for each in disk.trace[before:] if isinstance(each, Write)]
        assert any(len(each.data) == _FRAME_HEADER.size for each in writes) is not is_powersafe
