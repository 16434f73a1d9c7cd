"""The databases of an instance: opened, created, altered across files, and reconciled after a crash."""

from __future__ import annotations

import logging
import os
import random as randomness
import re
import threading
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ssbroker._arguments import is_utf8_text
from ssbroker.broker import object_ddl
from ssbroker.broker.context import DatabaseContext, InstanceContext, random_guid
from ssbroker.broker.definition_checks import refusal
from ssbroker.broker.effects import Effects
from ssbroker.broker.unit_of_work import Work
from ssbroker.ddl.parser_base import did_you_mean
from ssbroker.exceptions import (
    BrokerError,
    BrokerWarning,
    LockTimeoutError,
    OptionError,
    StorageError,
    UnknownDatabaseError,
)
from ssbroker.store import database_registry
from ssbroker.store import object_changes as changes
from ssbroker.store import objects as stored
from ssbroker.store.database_file import SHARED_MEMORY_SUFFIX, DatabaseFile, Session
from ssbroker.store.database_registry import MSDB_NAME, FileOwner, RegisteredDatabase
from ssbroker.store.objects import Objects
from ssbroker.store.schema import DATABASE
from ssbroker.store.sqlite import Connection, FileNotEmptyError, is_missing


def reconcile(file: DatabaseFile, msdb: DatabaseFile, database_id: int, *, instance_id: bytes) -> None:
    """Makes a database file and the registry agree: the broker id of the file wins; the broker is enabled only if both say so."""
    expected_owner = FileOwner(instance_id, database_registry.file_identity(file.path))
    with msdb.read() as listing, file.read() as connection:
        if _is_consistent(connection, _row(listing, database_id), expected_owner):
            return
    # Locks the file before msdb, as everywhere; then no other process is in the middle of a change.
    with file.write() as connection, msdb.write() as listing:
        row = _row(listing, database_id)
        if row is None or _is_consistent(connection, row, expected_owner):
            return
        owner, broker = database_registry.read_owner(connection), stored.load(connection).broker
        if owner.attached_to not in (None, instance_id) and owner.identity == expected_owner.identity:
            raise StorageError(f"{file.path}: is attached to another instance", file=str(file.path))
        guid = broker.service_broker_guid
        duplicate = database_registry.find_enabled_duplicate(listing, service_broker_guid=guid, name=row.name)
        is_enabled = broker.is_broker_enabled and row.is_broker_enabled and duplicate is None
        database_registry.record_owner(connection, attached_to=instance_id, identity=expected_owner.identity)
        if is_enabled != broker.is_broker_enabled:
            changes.set_broker(connection, is_broker_enabled=is_enabled)
        database_registry.set_broker(listing, name=row.name, service_broker_guid=guid, is_broker_enabled=is_enabled)


def _row(listing: Connection, database_id: int) -> RegisteredDatabase | None:
    return next((row for row in database_registry.load(listing) if row.database_id == database_id), None)


def _is_consistent(connection: Connection, row: RegisteredDatabase | None, expected_owner: FileOwner) -> bool:
    broker = stored.load(connection).broker  # raises for a foreign file before anything is written to it
    if row is None or database_registry.read_owner(connection) != expected_owner:
        return False
    return (broker.service_broker_guid, broker.is_broker_enabled) == (row.service_broker_guid, row.is_broker_enabled)


_log: Final = logging.getLogger("ssbroker.broker")
_NOT_AVAILABLE: Final = "the database %r is not available: %s"


class Databases:
    """The open databases of an instance: opened on first use, closed when they leave the registry."""

    def __init__(self, instance: InstanceContext, msdb: DatabaseFile) -> None:
        self._instance: Final = instance
        self._msdb: Final = msdb
        self._guard: Final = threading.RLock()
        self._by_name: dict[str, DatabaseContext] = {}
        self._suspended: dict[int, DatabaseContext] = {}
        self._unavailable: dict[str, StorageError] = {}
        self._version: int | None = None
        self._is_refreshing = False

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked process, whose parent may have held any lock."""
        return self._msdb.is_inherited

    def check(self) -> None:
        """Raises `StorageError` if the instance was opened before a fork, or is closed."""
        self._msdb.check()

    def one(self, name: str) -> DatabaseContext:
        """Returns a database by its name."""
        databases = self.all()
        if name in self._unavailable:
            raise self._unavailable[name]
        if name not in databases:
            raise _unknown_database(name, databases)
        return databases[name]

    def all(self) -> dict[str, DatabaseContext]:
        """Returns the databases that the registry lists now; database objects that are still listed stay the same."""
        self._msdb.check()  # before the lock, which may never be released in a forked process
        with self._guard:
            if self._is_refreshing:  # a signal or log handler in the refreshing thread
                if not self._by_name:
                    raise StorageError(
                        f"{self._msdb.path}: the databases are being opened by the call that this one interrupted"
                    )
                return self._by_name
            self._is_refreshing = True
            try:
                return self._refresh()
            finally:
                self._is_refreshing = False

    def _refresh(self) -> dict[str, DatabaseContext]:
        """Reads the registry if it has changed, with the lock held."""
        if self._version is not None and self._msdb.query(database_registry.version_of) == self._version:
            return self._by_name
        with self._msdb.read() as connection:
            version = database_registry.version_of(connection)
            listed = database_registry.load(connection)
        before = {one.database_id: one for one in (*self._by_name.values(), *self._suspended.values())}
        suspended, self._suspended = self._suspended, {}
        databases: dict[str, DatabaseContext] = {}
        logged, self._unavailable = {name: str(error) for name, error in self._unavailable.items()}, {}
        for row in listed:
            database = before.pop(row.database_id, None)
            try:
                database = self._open(row) if database is None else database.renamed(row.name)
                if row.database_id in suspended:
                    self.reconcile(database)
                databases[row.name] = database
            except StorageError as error:
                if database is not None:
                    self._suspended[row.database_id] = database
                self._unavailable[row.name] = error
                if logged.get(row.name) != str(error):
                    _log.warning(_NOT_AVAILABLE, row.name, error)
        for removed in before.values():
            removed.close()
        if databases != self._by_name:
            self._by_name = databases
        # Unavailable databases are tried again at the next refresh.
        self._version = None if self._unavailable else version
        return self._by_name

    def unavailable(self) -> list[str]:
        """Returns the names of listed databases whose files cannot be used."""
        self.check()
        with self._guard:
            self.all()
            return list(self._unavailable)

    def readable(self) -> list[tuple[DatabaseContext, Objects]]:
        """Returns the readable databases with their objects; omits those that are detached meanwhile."""
        found = []
        for database in self.all().values():
            try:
                found.append((database, database.objects()))
            except StorageError as error:
                if database.name == MSDB_NAME:
                    raise
                self._suspend(database, error)
        return found

    def reconcile(self, database: DatabaseContext) -> None:
        """Waits until an attach or detach in another process has finished, and repairs what a crash left half done."""
        reconcile(database.file, self._msdb, database.database_id, instance_id=self._instance.instance_id)

    def close(self) -> None:
        """Closes all files."""
        with self._guard:
            databases = [*self._by_name.values(), *self._suspended.values()]
            self._by_name, self._suspended = {}, {}
            self._version = None
        for database in databases:
            database.close()
        self._msdb.close()

    def _suspend(self, database: DatabaseContext, error: StorageError) -> None:
        """Omits a database until its file can be read again; the database object stays the same."""
        with self._guard:
            if self.all().get(database.name) is not database:
                return  # no longer listed
            self._by_name = {name: each for name, each in self._by_name.items() if each is not database}
            self._suspended[database.database_id] = database
            self._unavailable[database.name] = error
            self._version = None
            _log.warning(_NOT_AVAILABLE, database.name, error)

    def _open(self, row: RegisteredDatabase) -> DatabaseContext:
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


def resolve_path(path: str | os.PathLike[str]) -> Path:
    """Returns the absolute path, or raises if it is not valid."""
    try:
        absolute = Path(path).resolve()
        str(absolute).encode()
    except UnicodeEncodeError as error:
        raise StorageError(f"{os.fsencode(path)!r}: the path cannot be encoded as UTF-8", file=repr(path)) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise StorageError(f"{os.fspath(path)!r}: the path is not valid: {error}", file=repr(path)) from error
    return absolute


def create_msdb(
    path: Path, *, name: str, random: randomness.Random, lock_timeout: float, vfs: str | None
) -> DatabaseFile:
    """Creates the msdb file with the registry, whose first entry is msdb."""
    if not is_utf8_text(name):
        raise OptionError(f"name: expected a string that can be encoded as UTF-8, got {name!r:.80}")
    existed = os.path.exists(path)  # noqa: PTH110  # pathlib raises if access is denied
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{path.parent}: cannot be created: {error.strerror or error}", file=str(path)) from error
    guid = random_guid(random).bytes
    instance_id = random_guid(random).bytes

    def fill(connection: Connection) -> None:
        database_registry.create_instance_row(connection, name=name, instance_id=instance_id)
        _fill(connection, path, service_broker_guid=guid, attached_to=instance_id)
        database_registry.add(
            connection,
            name=database_registry.MSDB_NAME,
            file=path.name,
            service_broker_guid=guid,
            is_broker_enabled=True,
        )

    try:
        return DatabaseFile.create(
            path, database_registry.MSDB_MIGRATIONS, fill=fill, lock_timeout=lock_timeout, vfs=vfs
        )
    except LockTimeoutError:
        raise
    except StorageError as error:
        if existed or isinstance(error, FileNotEmptyError):
            raise refusal(
                f"{path.parent} already contains an instance; use Instance.open, or Instance.open(folder, create=True) to create it only once"
            ) from error
        raise


def create_msdb_if_missing(
    path: Path, *, name: str, random: randomness.Random, lock_timeout: float, vfs: str | None
) -> DatabaseFile | None:
    """Creates the msdb file as `create_msdb` does; returns None if it exists. Of several processes, one creates it."""
    try:
        return create_msdb(path, name=name, random=random, lock_timeout=lock_timeout, vfs=vfs)
    except BrokerError:  # if the file is damaged, opening it reports that
        return None


def open_msdb(path: Path, *, lock_timeout: float, vfs: str | None) -> DatabaseFile:
    """Opens the msdb file, or raises if the folder is not an instance."""
    try:
        return DatabaseFile.open(path, database_registry.MSDB_MIGRATIONS, lock_timeout=lock_timeout, vfs=vfs)
    except StorageError as error:
        if not is_missing(path):
            raise
        raise StorageError(
            f"{path.parent}: is not the folder of an instance, because it has no {path.name}; "
            "create one with Instance.open(folder, create=True), or `ssbroker sql FOLDER --create SCRIPT`",
            file=str(path),
        ) from error


def create_database(
    instance: InstanceContext, listing: Connection, *, name: str, service_broker_guid: bytes
) -> DatabaseFile:
    """Creates the file of a database in the instance folder."""
    listed = {row.file for row in database_registry.load(listing)}
    with instance.msdb.file.read() as committed:  # includes databases that this change drops
        listed |= {row.file for row in database_registry.load(committed)}
    path = next(
        instance.folder / candidate
        for number in count(1)
        if (candidate := file_name(name, number=number)) not in listed  # another database may use the file name
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
            raise refusal(f"{path} already exists; attach it, or move it away", 5170) from error
        if not existed:
            remove_files(path)
        raise


def file_name(name: str, *, number: int = 1) -> str:
    """Returns the file name of a database: its name with special characters percent-encoded."""
    escaped = _ESCAPED.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), name)
    if len(escaped) > _NAME_BYTES_MAX:
        escaped = f"{escaped[:_NAME_BYTES_MAX]}-{sha256(name.encode()).hexdigest()[:16]}"
    return f"{escaped}.sqlite" if number == 1 else f"{escaped}.{number}.sqlite"


def remove_files(path: Path) -> None:
    """Removes a database file with its `-wal`, `-shm` and `-notify` files."""
    for suffix in ("-wal", "-shm", SHARED_MEMORY_SUFFIX, ""):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def remove_dropped(instance: InstanceContext, msdb: DatabaseFile, path: Path) -> None:
    """Removes the file of a dropped database, unless a new database uses it already.

    If it cannot be removed now, the next CREATE DATABASE with this name removes it.
    """
    try:
        with msdb.write() as listing:
            if all(instance.folder / row.file != path for row in database_registry.load(listing)):
                remove_files(path)
    except OSError as error:
        _log.warning("%s: the database was dropped, but the file could not be removed: %s", path, error)


def _is_leftover(instance: InstanceContext, path: Path) -> bool:
    """Returns whether an unlisted file can be removed: it was dropped, or a crash interrupted its creation."""
    try:
        file = DatabaseFile.open(path, DATABASE, lock_timeout=instance.lock_timeout, vfs=instance.vfs)
    except StorageError:
        return False
    try:
        with file.read() as connection:
            owner = database_registry.read_owner(connection)
            return owner.attached_to == database_registry.DROPPED or (
                owner == database_registry.FileOwner(instance.instance_id, database_registry.file_identity(path))
                and not stored.load(connection).queues
                and database_registry.has_only_broker_tables(connection)
            )
    finally:
        file.close()


def _fill(connection: Connection, path: Path, *, service_broker_guid: bytes, attached_to: bytes) -> None:
    changes.create_database_row(
        connection, service_broker_guid=service_broker_guid, attached_to=attached_to, is_broker_enabled=True
    )
    database_registry.record_owner(connection, attached_to=attached_to, identity=database_registry.file_identity(path))
    object_ddl.create_default_objects(connection)


class InstanceChange:
    """Transactions on several database files, committed together at the end of a `with` block.

    Each file is locked at its first use, msdb after all others, so that two changes never deadlock. Files of databases that are disabled or
    detached are committed before the registry, those that are enabled or attached after it, so that a crash never leaves two databases
    enabled with the same broker id.

    Attributes:
        lost: The names of listed databases whose files cannot be used.
    """

    def __init__(self, instance: InstanceContext, *, changed: set[DatabaseContext] | None = None) -> None:
        self._instance: Final = instance
        self._changed: Final = changed
        self._open = {database.name: database for database in instance.databases}
        self.lost: Final = set(instance.databases_list.unavailable())
        self._msdb: Final = self._open[MSDB_NAME]
        self._sessions: dict[DatabaseContext, Session] = {}
        self._added: list[tuple[DatabaseContext, bool]] = []
        self._effects: Final[dict[DatabaseContext, Effects]] = {}
        self._removed: list[tuple[DatabaseContext, bool]] = []
        self._created_files: list[Path] = []
        self._warnings: list[str] = []
        self._committed_last: set[DatabaseContext] = set()

    def lock(self, names: Iterable[str]) -> None:
        """Locks databases in advance, in a fixed order; ignores names that do not exist."""
        found = []
        for name in sorted({*names} & self._open.keys() - {MSDB_NAME}):
            database = self._open[name]
            with self._ignoring_detached(name):
                found.append((name, database, self._begin(database)))
        for name, database, connection in found:
            with self._ignoring_detached(name):
                self._restore_owner(database, connection)

    def listing(self) -> Connection:
        """Returns the connection to the registry in msdb, with the write lock."""
        return self.connection(self._msdb)

    def connection(self, database: DatabaseContext) -> Connection:
        """Returns the connection to a database, with the write lock."""
        session = self._sessions.get(database)
        if session is not None:
            return session.begin()
        connection = self._begin(database)
        if all(database is not added for added, _ in self._added):
            self._restore_owner(database, connection)
        return connection

    @contextmanager
    def _ignoring_detached(self, name: str) -> Iterator[None]:
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
            is_detached = all(
                one is not database for one in (*self._instance.databases, *(one for one, _ in self._added))
            )
            if not is_detached or isinstance(error, LockTimeoutError):
                raise
            raise _detached_error(database) from error

    def _restore_owner(self, database: DatabaseContext, connection: Connection) -> None:
        """Records the instance as owner again if a crash left the database half detached."""
        if database_registry.read_owner(connection).attached_to != self._instance.instance_id:
            self.row(database)
            identity = database_registry.file_identity(database.file.path)
            database_registry.record_owner(connection, attached_to=self._instance.instance_id, identity=identity)

    def work(self, database: DatabaseContext) -> Work:
        """Returns the work of a database, whose effects are announced after the commit."""
        effects = self._effects.setdefault(database, Effects(log=self._instance.events))
        return Work(database, self.connection(database), effects)

    def objects(self, database: DatabaseContext) -> Objects:
        """Returns the objects of a database within this change."""
        return database.objects(self.connection(database))

    def visible_objects(self, database: DatabaseContext) -> Objects:
        """Returns the objects of a database within this change, without locking it."""
        session = self._sessions.get(database)
        return database.objects() if session is None else database.lazy_objects(session.begin())

    def database(self, name: str) -> DatabaseContext:
        """Returns a database by its name within this change."""
        if name not in self._open:
            raise _unknown_database(name, self._open)
        return self._open[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the databases within this change."""
        return tuple(self._open)

    def row(self, database: DatabaseContext) -> RegisteredDatabase:
        """Returns the registry row of a database."""
        for row in database_registry.load(self.listing()):
            if row.database_id == database.database_id:
                return row
        raise _detached_error(database)

    def commit_after_registry(self, database: DatabaseContext) -> None:
        """Commits the file after the registry, because the database was enabled or attached."""
        self._committed_last.add(database)

    def commit_before_registry(self, database: DatabaseContext) -> None:
        """Commits the file before the registry, because the database was disabled."""
        if all(database is not added for added, _ in self._added):
            self._committed_last.discard(database)

    def add(self, database: DatabaseContext, *, created: bool) -> None:
        """Adds a new database; a rollback removes its file if it was created."""
        self._open[database.name] = database
        self._added.append((database, created))
        self.commit_after_registry(database)

    def remove(self, database: DatabaseContext, *, is_dropped: bool) -> None:
        """Removes a database; the commit deletes its file if it was dropped."""
        del self._open[database.name]
        self._committed_last.discard(database)
        self._removed.append((database, is_dropped))

    def file_created(self, file: Path) -> None:
        """Records a new file; a rollback removes it."""
        self._created_files.append(file.absolute())

    def remove_unavailable(self, name: str) -> None:
        """Removes a database whose file cannot be used from the registry; does not touch the file."""
        if all(row.name != name for row in database_registry.load(self.listing())):
            raise UnknownDatabaseError(f"the database {name!r} no longer exists", value=name)
        database_registry.remove(self.listing(), name=name)
        self.lost.discard(name)

    def renamed(self, database: DatabaseContext, new: str) -> None:
        """Records a new name; the database object gets it at the next refresh."""
        self._open = {new if key == database.name else key: value for key, value in self._open.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        effects_by_name = {name: self._effects.get(one) for name, one in self._open.items() if one in self._sessions}
        try:
            if error is None:
                self._commit()
        finally:
            self._roll_back()
        if error is None:
            self._announce(effects_by_name)
        for warning in self._warnings:
            warnings.warn(warning, BrokerWarning, stacklevel=3)  # the caller of Instance.detach_database

    def _announce(self, effects_by_name: dict[str, Effects | None]) -> None:
        for database in self._instance.databases:
            if database.name in effects_by_name:
                effects = effects_by_name[database.name]
                if self._changed is None or effects is not None:
                    self._instance.listener.changed(database)
                else:
                    self._changed.add(database)
                if effects is not None:
                    self._instance.listener.committed(database, effects)

    def _commit(self) -> None:
        listing = self._sessions.pop(self._msdb, None)
        late = [session for database, session in self._sessions.items() if database in self._committed_last]
        for session in self._sessions.values():
            if session not in late:
                session.commit()
        if listing is not None:
            listing.commit()
        added, self._added = self._added, []
        for session in late:
            session.commit()
        self._created_files.clear()
        for database, _ in added:
            database.close()  # the instance opens it again, now that it is listed
        for database, is_dropped in self._removed:
            if not is_dropped:
                self._checkpoint(database)
            database.close()
            if is_dropped:
                remove_dropped(self._instance, self._msdb.file, database.file.path)

    def _checkpoint(self, database: DatabaseContext) -> None:
        """Checkpoints the WAL of a detached database into its file; warns if another process prevents it."""
        try:
            database.file.checkpoint()
        except StorageError as error:  # the database is detached anyway
            path = database.file.path
            self._warnings.append(
                f"{database.name!r} is detached, but its last commits are still in {path.name}-wal; "
                f"keep this file together with the database file until it is attached again ({error})"
            )

    def _roll_back(self) -> None:
        with ExitStack() as stack:
            for database, is_created in self._added:
                if is_created:
                    stack.callback(remove_files, database.file.path)
                stack.callback(database.close)
            for session in self._sessions.values():
                stack.callback(session.close)
            for file in self._created_files:
                stack.callback(file.unlink, missing_ok=True)


def _detached_error(database: DatabaseContext) -> UnknownDatabaseError:
    return UnknownDatabaseError(f"the database {database.name!r} no longer exists", value=database.name)


def _unknown_database(name: str, known: Collection[str]) -> UnknownDatabaseError:
    hint = did_you_mean(str(name), known)
    return UnknownDatabaseError(f"the instance has no database {name!r}; it has {', '.join(known)}{hint}", value=name)
