"""The databases of an instance: opened, created, altered across files, and reconciled after a crash."""

from __future__ import annotations

import logging
import os
import random as randomness
import re
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ssbroker._arguments import is_utf8_text
from ssbroker.broker import object_definitions
from ssbroker.broker.context import DatabaseContext, InstanceContext, random_guid
from ssbroker.broker.effects import Effects
from ssbroker.broker.unit_of_work import Work
from ssbroker.broker.validation import refusal
from ssbroker.exceptions import BrokerWarning, LockTimeoutError, OptionError, StorageError, UnknownDatabaseError
from ssbroker.store import object_changes as changes
from ssbroker.store import objects as stored
from ssbroker.store import registry
from ssbroker.store.file import DatabaseFile, Session
from ssbroker.store.objects import Objects
from ssbroker.store.registry import MSDB_NAME, FileOwner, RegisteredDatabase
from ssbroker.store.schema import DATABASE
from ssbroker.store.sqlite import Connection, FileNotEmptyError, is_missing


def reconcile(file: DatabaseFile, msdb: DatabaseFile, database_id: int, *, instance_id: bytes) -> None:
    """Has file and list say the same: the id is the file's, and the broker is enabled only where both say so.

    Args:
        file: The database's file, open.
        msdb: The file with the list.
        database_id: The database.
        instance_id: The instance.

    Raises:
        StorageError: Another instance has the file, or a file cannot be used.
    """
    here = FileOwner(instance_id, registry.file_identity(file.path))
    with msdb.read() as listing, file.read() as connection:
        if _agree(connection, _row(listing, database_id), here):
            return
    # The file before msdb, as everywhere; whoever was in the middle of a change is done with it then.
    with file.write() as connection, msdb.write() as listing:
        row = _row(listing, database_id)
        if row is None or _agree(connection, row, here):
            return
        note, broker = registry.read_owner(connection), stored.load(connection).broker
        if note.attached_to not in (None, instance_id) and note.identity == here.identity:
            raise StorageError(f"{file.path}: is attached to another instance", file=str(file.path))
        guid = broker.service_broker_guid
        twin = registry.find_enabled_duplicate(listing, service_broker_guid=guid, name=row.name)
        is_enabled = broker.is_broker_enabled and row.is_broker_enabled and twin is None
        registry.record_owner(connection, attached_to=instance_id, identity=here.identity)
        if is_enabled != broker.is_broker_enabled:
            changes.set_broker(connection, is_broker_enabled=is_enabled)
        registry.set_broker(listing, name=row.name, service_broker_guid=guid, is_broker_enabled=is_enabled)


def _row(listing: Connection, database_id: int) -> RegisteredDatabase | None:
    return next((row for row in registry.load(listing) if row.database_id == database_id), None)


def _agree(connection: Connection, row: RegisteredDatabase | None, here: FileOwner) -> bool:
    broker = stored.load(connection).broker  # refuses an altered file before anything is written to it
    if row is None or registry.read_owner(connection) != here:
        return False
    said = (broker.service_broker_guid, broker.is_broker_enabled)
    return said == (row.service_broker_guid, row.is_broker_enabled)


_log: Final = logging.getLogger("ssbroker.broker")
_NOT_AVAILABLE: Final = "the database %r is not available: %s"


class Databases:
    """Opens databases when they are first asked for, and closes those that have gone from the list."""

    def __init__(self, instance: InstanceContext, msdb: DatabaseFile) -> None:
        self._instance: Final = instance
        self._msdb: Final = msdb
        self._guard: Final = threading.RLock()
        self._known: dict[str, DatabaseContext] = {}
        self._aside: dict[int, DatabaseContext] = {}
        self._unavailable: dict[str, StorageError] = {}
        self._version: int | None = None
        self._is_looking = False

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked process, whose parent may have held any lock at that moment."""
        return self._msdb.is_inherited

    def check(self) -> None:
        """Refuses where the files cannot be used by anybody here.

        Raises:
            StorageError: This process was forked after they were opened, or they are closed.
        """
        self._msdb.check()

    def one(self, name: str) -> DatabaseContext:
        """A database by its name.

        Raises:
            UnknownDatabaseError: There is none of this name.
            StorageError: Its file is not there, or cannot be used.
        """
        databases = self.all()
        if name in self._unavailable:
            raise self._unavailable[name]
        if name not in databases:
            raise UnknownDatabaseError(
                f"the instance has no database {name!r}; it has {', '.join(databases)}", value=name
            )
        return databases[name]

    def all(self) -> dict[str, DatabaseContext]:
        """The databases as the list has them now; objects of those that stay are kept."""
        self._msdb.check()  # before the lock: in a forked process nobody gives it back
        with self._guard:
            if self._is_looking:  # the handler of a signal, or of the log, in the thread that looks
                if not self._known:
                    raise StorageError(
                        f"{self._msdb.path}: its databases are being opened by what this has interrupted"
                    )
                return self._known
            self._is_looking = True
            try:
                return self._look()
            finally:
                self._is_looking = False

    def _look(self) -> dict[str, DatabaseContext]:
        """What `all` does, with the lock."""
        if self._version is not None and self._msdb.ask(registry.version_of) == self._version:
            return self._known
        with self._msdb.read() as connection:
            version = registry.version_of(connection)
            listed = registry.load(connection)
        before = {one.database_id: one for one in (*self._known.values(), *self._aside.values())}
        aside, self._aside = self._aside, {}
        databases: dict[str, DatabaseContext] = {}
        told, self._unavailable = {name: str(error) for name, error in self._unavailable.items()}, {}
        for row in listed:
            database = before.pop(row.database_id, None)
            try:
                database = self._opened(row) if database is None else database.renamed(row.name)
                if row.database_id in aside:
                    self.settle(database)
                databases[row.name] = database
            except StorageError as error:
                if database is not None:
                    self._aside[row.database_id] = database
                self._unavailable[row.name] = error
                if told.get(row.name) != str(error):
                    _log.warning(_NOT_AVAILABLE, row.name, error)
        for gone in before.values():
            gone.close()
        if databases != self._known:
            self._known = databases
        # One that could not be opened is tried again at the next look.
        self._version = None if self._unavailable else version
        return self._known

    def unavailable(self) -> list[str]:
        """The names of those on the list whose files cannot be used."""
        self.check()
        with self._guard:
            self.all()
            return list(self._unavailable)

    def seen(self) -> list[tuple[DatabaseContext, Objects]]:
        """The databases with what stands in them; one that goes meanwhile, or cannot be read, is left out.

        Raises:
            StorageError: The file of msdb cannot be read.
        """
        found = []
        for database in self.all().values():
            try:
                found.append((database, database.objects()))
            except StorageError as error:
                if database.name == MSDB_NAME:
                    raise
                self._put_aside(database, error)
        return found

    def settle(self, database: DatabaseContext) -> None:
        """Waits for whoever takes a database away, and keeps it where that came to nothing.

        Raises:
            StorageError: The file cannot be read.
        """
        reconcile(database.file, self._msdb, database.database_id, instance_id=self._instance.instance_id)

    def close(self) -> None:
        """Closes all files."""
        with self._guard:
            databases = [*self._known.values(), *self._aside.values()]
            self._known, self._aside = {}, {}
            self._version = None
        for database in databases:
            database.close()
        self._msdb.close()

    def _put_aside(self, database: DatabaseContext, error: StorageError) -> None:
        """Leaves a database out until its file can be read again (B42); it stays the same object."""
        with self._guard:
            if self.all().get(database.name) is not database:
                return  # it has gone from the list
            self._known = {name: each for name, each in self._known.items() if each is not database}
            self._aside[database.database_id] = database
            self._unavailable[database.name] = error
            self._version = None
            _log.warning(_NOT_AVAILABLE, database.name, error)

    def _opened(self, row: RegisteredDatabase) -> DatabaseContext:
        instance, path = self._instance, self._instance.folder / row.file
        if row.name == MSDB_NAME:
            return DatabaseContext(instance, database_id=row.database_id, name=row.name, file=self._msdb)
        file = DatabaseFile.open(path, DATABASE, lock_timeout=instance.lock_timeout, vfs=instance.vfs)
        try:
            reconcile(file, self._msdb, row.database_id, instance_id=instance.instance_id)
        except BaseException:
            file.close()
            raise
        return DatabaseContext(instance, database_id=row.database_id, name=row.name, file=file)


_ESCAPED: Final = re.compile(r"[^\w -]", re.ASCII)
_NAME_BYTES_MAX: Final = 200  # file systems allow 255, SQLite appends


def resolved(path: str | os.PathLike[str]) -> Path:
    """Where a path leads.

    Raises:
        StorageError: Nowhere: it goes in a circle, or SQLite cannot be told of it.
    """
    try:
        place = Path(path).resolve()
        str(place).encode()
    except UnicodeEncodeError as error:
        raise StorageError(f"{os.fsencode(path)!r}: is no path that UTF-8 can write", file=repr(path)) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise StorageError(f"{os.fspath(path)!r}: leads nowhere: {error}", file=repr(path)) from error
    return place


def create_msdb(
    path: Path, *, name: str, random: randomness.Random, lock_timeout: float, vfs: str | None
) -> DatabaseFile:
    """Makes the file of msdb with the list, on which msdb itself stands first."""
    if not is_utf8_text(name):
        raise OptionError(f"name: expected text that UTF-8 can write; got {name!r:.80}")
    existed = os.path.exists(path)  # noqa: PTH110 - pathlib raises where it may not look
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{path.parent}: cannot be made: {error.strerror or error}", file=str(path)) from error
    guid = random_guid(random).bytes
    instance_id = random_guid(random).bytes

    def fill(connection: Connection) -> None:
        registry.create_instance_row(connection, name=name, instance_id=instance_id)
        _fill(connection, path, service_broker_guid=guid, attached_to=instance_id)
        registry.add(
            connection, name=registry.MSDB_NAME, file=path.name, service_broker_guid=guid, is_broker_enabled=True
        )

    try:
        return DatabaseFile.create(path, registry.MSDB_MIGRATIONS, fill=fill, lock_timeout=lock_timeout, vfs=vfs)
    except LockTimeoutError:
        raise
    except StorageError as error:
        if existed or isinstance(error, FileNotEmptyError):
            raise refusal(f"{path.parent} holds an instance") from error
        raise


def open_msdb(path: Path, *, lock_timeout: float, vfs: str | None) -> DatabaseFile:
    """Opens the file of msdb; without one, a folder is not that of an instance."""
    try:
        return DatabaseFile.open(path, registry.MSDB_MIGRATIONS, lock_timeout=lock_timeout, vfs=vfs)
    except StorageError as error:
        if not is_missing(path):
            raise
        raise StorageError(
            f"{path.parent}: is not the folder of an instance, since it has no {path.name}; "
            "`ssbroker sql FOLDER --create SCRIPT` or Instance.create makes one",
            file=str(path),
        ) from error


def create_database(
    instance: InstanceContext, listing: Connection, *, name: str, service_broker_guid: bytes
) -> DatabaseFile:
    """Makes the file of a database, beside msdb's."""
    listed = {row.file for row in registry.load(listing)}
    with instance.msdb.file.read() as committed:  # what this change drops stands there until it is committed
        listed |= {row.file for row in registry.load(committed)}
    path = next(
        instance.folder / candidate
        for number in count(1)
        if (candidate := file_name(name, number=number)) not in listed  # a database of another name may have it
    )
    existed = path.exists()
    if existed and _is_leftover(instance, path):
        remove_files(path)
    try:
        return DatabaseFile.create(
            path,
            DATABASE,
            fill=lambda connection: _fill(
                connection, path, service_broker_guid=service_broker_guid, attached_to=instance.instance_id
            ),
            lock_timeout=instance.lock_timeout,
            vfs=instance.vfs,
        )
    except StorageError as error:
        if isinstance(error, FileNotEmptyError) or (existed and not isinstance(error, LockTimeoutError)):
            raise refusal(f"{path} stands there already: attach it, or move it away", 5170) from error
        if not existed:
            remove_files(path)
        raise


def file_name(name: str, *, number: int = 1) -> str:
    """The name of a database's file: its own name, with what file systems dislike written as in a URL.

    Examples:
        >>> file_name("Sales"), file_name("Sales", number=2), file_name("a/b")
        ('Sales.sqlite', 'Sales.2.sqlite', 'a%2Fb.sqlite')
    """
    escaped = _ESCAPED.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)
    if len(escaped) > _NAME_BYTES_MAX:
        escaped = f"{escaped[:_NAME_BYTES_MAX]}-{sha256(name.encode()).hexdigest()[:16]}"
    return f"{escaped}.sqlite" if number == 1 else f"{escaped}.{number}.sqlite"


def remove_files(path: Path) -> None:
    """Removes a database file with what SQLite keeps beside it."""
    for beside in ("-wal", "-shm", ""):
        Path(f"{path}{beside}").unlink(missing_ok=True)


def remove_dropped(instance: InstanceContext, msdb: DatabaseFile, path: Path) -> None:
    """Removes the file of a dropped database, unless a new one stands at its place already.

    Where it cannot be removed now, whoever makes a database of that name does it.
    """
    try:
        with msdb.write() as listing:
            if all(instance.folder / row.file != path for row in registry.load(listing)):
                remove_files(path)
    except OSError as error:
        _log.warning("%s: is dropped, and could not be removed: %s", path, error)


def _is_leftover(instance: InstanceContext, path: Path) -> bool:
    """Whether a file that is not on the list may go: it is dropped, or what a crash left of making it, with nothing in it."""
    try:
        file = DatabaseFile.open(path, DATABASE, lock_timeout=instance.lock_timeout, vfs=instance.vfs)
    except StorageError:
        return False
    try:
        with file.read() as connection:
            note = registry.read_owner(connection)
            return note.attached_to == registry.DROPPED or (
                note == registry.FileOwner(instance.instance_id, registry.file_identity(path))
                and not stored.load(connection).queues
                and registry.has_only_broker_tables(connection)
            )
    finally:
        file.close()


def _fill(connection: Connection, path: Path, *, service_broker_guid: bytes, attached_to: bytes) -> None:
    changes.create_database_row(
        connection, service_broker_guid=service_broker_guid, attached_to=attached_to, is_broker_enabled=True
    )
    registry.record_owner(connection, attached_to=attached_to, identity=registry.file_identity(path))
    object_definitions.create(connection)


class InstanceChange:
    """Transactions of the files that a change touches, committed together at the end of a `with` block (B25).

    Each file is locked at its first use, msdb's after all others, so that two changes never wait for each other. What a
    database loses, its broker or its place in the instance, is committed before the list, and what it gains after it: a
    crash in between leaves no two databases enabled under one id.

    Args:
        instance: The instance.
        changed: Takes the databases that were changed, for a caller who makes many changes and tells of them at the end; None tells at once.

    Attributes:
        lost: The names on the list of which the files cannot be used.
    """

    def __init__(self, instance: InstanceContext, *, changed: set[DatabaseContext] | None = None) -> None:
        self._instance: Final = instance
        self._changed: Final = changed
        self._open = {database.name: database for database in instance.databases}
        self.lost: Final = set(instance.databases_list.unavailable())
        self._msdb: Final = self._open[MSDB_NAME]
        self._sessions: dict[DatabaseContext, Session] = {}
        self._joined: list[tuple[DatabaseContext, bool]] = []
        self._effects: Final[dict[DatabaseContext, Effects]] = {}
        self._left: list[tuple[DatabaseContext, bool]] = []
        self._written: list[Path] = []
        self._not_whole: list[str] = []
        self._gains: set[DatabaseContext] = set()

    def lock(self, names: Iterable[str]) -> None:
        """Locks databases beforehand, in an order that is always the same; those that are not there are left out."""
        found = []
        for name in sorted({*names} & self._open.keys() - {MSDB_NAME}):
            database = self._open[name]
            with self._leaving_out(name):
                found.append((name, database, self._begin(database)))
        for name, database, connection in found:
            with self._leaving_out(name):
                self._keep(database, connection)

    def listing(self) -> Connection:
        """The list, locked."""
        return self.connection(self._msdb)

    def connection(self, database: DatabaseContext) -> Connection:
        """The file of a database, locked."""
        session = self._sessions.get(database)
        if session is not None:
            return session.begin()
        connection = self._begin(database)
        if all(database is not joined for joined, _ in self._joined):
            self._keep(database, connection)
        return connection

    @contextmanager
    def _leaving_out(self, name: str) -> Iterator[None]:
        try:
            yield
        except UnknownDatabaseError:
            session = self._sessions.pop(self._open.pop(name), None)
            if session is not None:
                session.close()

    def _begin(self, database: DatabaseContext) -> Connection:
        session = self._sessions[database] = database.file.session()
        try:
            return session.begin()
        except StorageError as error:
            gone = all(one is not database for one in (*self._instance.databases, *(one for one, _ in self._joined)))
            if not gone or isinstance(error, LockTimeoutError):
                raise
            raise _gone(database) from error

    def _keep(self, database: DatabaseContext, connection: Connection) -> None:
        """Notes again that a database is the instance's, where a crash left it half detached.

        Raises:
            UnknownDatabaseError: Another process has taken it away.
        """
        if registry.read_owner(connection).attached_to != self._instance.instance_id:
            self.row(database)
            identity = registry.file_identity(database.file.path)
            registry.record_owner(connection, attached_to=self._instance.instance_id, identity=identity)

    def work(self, database: DatabaseContext) -> Work:
        """What the conversations of a database need; whoever it concerns is told once all is committed."""
        effects = self._effects.setdefault(database, Effects(log=self._instance.events))
        return Work(database, self.connection(database), effects)

    def objects(self, database: DatabaseContext) -> Objects:
        """What stands in a database now, within this change."""
        return database.objects(self.connection(database))

    def database(self, name: str) -> DatabaseContext:
        """A database by the name that it has within this change.

        Raises:
            UnknownDatabaseError: There is none.
        """
        if name not in self._open:
            raise UnknownDatabaseError(
                f"the instance has no database {name!r}; it has {', '.join(self._open)}", value=name
            )
        return self._open[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The databases' names within this change."""
        return tuple(self._open)

    def row(self, database: DatabaseContext) -> RegisteredDatabase:
        """The row of a database on the list.

        Raises:
            UnknownDatabaseError: Another process has taken it away.
        """
        for row in registry.load(self.listing()):
            if row.database_id == database.database_id:
                return row
        raise _gone(database)

    def gains(self, database: DatabaseContext) -> None:
        """Has the file committed after the list: it was enabled, or attached."""
        self._gains.add(database)

    def loses(self, database: DatabaseContext) -> None:
        """Has the file committed before the list: it was disabled after all."""
        if all(database is not joined for joined, _ in self._joined):
            self._gains.discard(database)

    def joined(self, database: DatabaseContext, *, created: bool) -> None:
        """Notes a database that is new on the list; undone, a file that was created goes again."""
        self._open[database.name] = database
        self._joined.append((database, created))
        self.gains(database)

    def left(self, database: DatabaseContext, *, is_dropped: bool) -> None:
        """Notes a database that the list no longer has; done, the file of a dropped one goes."""
        del self._open[database.name]
        self._gains.discard(database)
        self._left.append((database, is_dropped))

    def wrote(self, file: Path) -> None:
        """Notes a file that was not there before; undone, it goes again."""
        self._written.append(file.absolute())

    def forget(self, name: str) -> None:
        """Takes a database off the list whose file cannot be used; what there is of the file stays as it is.

        Raises:
            UnknownDatabaseError: Another process has taken it away.
        """
        if all(row.name != name for row in registry.load(self.listing())):
            raise UnknownDatabaseError(f"the database {name!r} is no longer there", value=name)
        registry.remove(self.listing(), name=name)
        self.lost.discard(name)

    def renamed(self, database: DatabaseContext, new: str) -> None:
        """Notes another name; the database object takes it when the list is read again."""
        self._open = {new if key == database.name else key: value for key, value in self._open.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        touched = {name: self._effects.get(one) for name, one in self._open.items() if one in self._sessions}
        try:
            if error is None:
                self._commit()
        finally:
            self._undo()
        if error is None:
            self._tell(touched)
        for what in self._not_whole:
            warnings.warn(what, BrokerWarning, stacklevel=3)  # the caller of Instance.detach_database

    def _tell(self, touched: dict[str, Effects | None]) -> None:
        for database in self._instance.databases:
            if database.name in touched:
                effects = touched[database.name]
                if self._changed is None or effects is not None:
                    self._instance.listener.changed(database)
                else:
                    self._changed.add(database)
                if effects is not None:
                    self._instance.listener.committed(database, effects)

    def _commit(self) -> None:
        listing = self._sessions.pop(self._msdb, None)
        late = [session for database, session in self._sessions.items() if database in self._gains]
        for session in self._sessions.values():
            if session not in late:
                session.commit()
        if listing is not None:
            listing.commit()
        joined, self._joined = self._joined, []
        for session in late:
            session.commit()
        self._written.clear()
        for database, _ in joined:
            database.close()  # the instance opens it anew, now that it is on the list
        for database, is_dropped in self._left:
            if not is_dropped:
                self._make_whole(database)
            database.close()
            if is_dropped:
                remove_dropped(self._instance, self._msdb.file, database.file.path)

    def _make_whole(self, database: DatabaseContext) -> None:
        """B29: other processes may have the file open still."""
        try:
            database.file.checkpoint()
        except StorageError as error:  # it is off the list, whatever becomes of the log
            path = database.file.path
            self._not_whole.append(
                f"{database.name!r} is detached, and what was committed last stands beside its file, in {path.name}-wal: "
                f"leave the two together until it is attached again ({error})"
            )

    def _undo(self) -> None:
        with ExitStack() as stack:
            for database, is_created in self._joined:
                if is_created:
                    stack.callback(remove_files, database.file.path)
                stack.callback(database.close)
            for session in self._sessions.values():
                stack.callback(session.close)
            for file in self._written:
                stack.callback(file.unlink, missing_ok=True)


def _gone(database: DatabaseContext) -> UnknownDatabaseError:
    return UnknownDatabaseError(f"the database {database.name!r} is no longer there", value=database.name)
