"""The open databases of an instance, kept in agreement with the registry."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from typing import Final

from ssbroker._text import did_you_mean
from ssbroker.broker.context import DatabaseContext, InstanceContext
from ssbroker.exceptions import StorageError, UnknownDatabaseError
from ssbroker.store import database_registry, file_ownership
from ssbroker.store import object_changes as changes
from ssbroker.store import objects as stored
from ssbroker.store.database_file import DatabaseFile
from ssbroker.store.database_registry import MSDB_NAME, RegisteredDatabase
from ssbroker.store.file_ownership import FileOwner, FileOwnership
from ssbroker.store.objects import Objects
from ssbroker.store.schema import DATABASE
from ssbroker.store.sqlite import Connection


def reconcile(file: DatabaseFile, msdb: DatabaseFile, database_id: int, *, ownership: FileOwnership) -> None:
    """Makes a database file and the registry agree: the broker id in the file takes precedence; the broker is enabled only if it is enabled in both."""
    expected_owner = ownership.owner(file.path)
    with msdb.read() as listing, file.read() as connection:
        if _is_consistent(connection, database_registry.by_id(listing, database_id), expected_owner):
            return
    # Locks the file before msdb, as all code does; then no other process is in the middle of a change.
    with file.write() as connection, msdb.write() as listing:
        row = database_registry.by_id(listing, database_id)
        if row is None or _is_consistent(connection, row, expected_owner):
            return
        owner, broker = file_ownership.read_owner(connection), stored.load(connection).broker
        if not ownership.may_use(file.path, owner):
            raise StorageError(
                f"{file.path}: belongs to another instance, or to the one from which this msdb was copied; detach {row.name!r} here, "
                "and attach a backup of the file (Database.backup of that instance, or VACUUM INTO of sqlite3)",
                file=str(file.path),
            )
        guid = broker.service_broker_guid
        duplicate = database_registry.find_enabled_duplicate(listing, service_broker_guid=guid, name=row.name)
        is_enabled = broker.is_broker_enabled and row.is_broker_enabled and duplicate is None
        file_ownership.record_owner(connection, expected_owner)
        if is_enabled != broker.is_broker_enabled:
            changes.set_broker(connection, is_broker_enabled=is_enabled)
        database_registry.set_broker(listing, name=row.name, service_broker_guid=guid, is_broker_enabled=is_enabled)


def _is_consistent(connection: Connection, row: RegisteredDatabase | None, expected_owner: FileOwner) -> bool:
    broker = stored.load(connection).broker  # raises for a file of another instance before anything is written to it
    if row is None or file_ownership.read_owner(connection) != expected_owner:
        return False
    return (broker.service_broker_guid, broker.is_broker_enabled) == (row.service_broker_guid, row.is_broker_enabled)


_LOGGER: Final = logging.getLogger("ssbroker.broker")
_NOT_AVAILABLE: Final = "the database %r is not available until its file can be used again: %s"


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

    @property
    def is_closed(self) -> bool:
        """Whether the instance is closed, or was opened before a fork."""
        return self._msdb.is_inherited or self._msdb.connections.is_closed

    def check(self) -> None:
        """Raises `StorageError` if the instance was opened before a fork, or is closed."""
        self._msdb.check()

    def one(self, name: str) -> DatabaseContext:
        """Returns a database by its name."""
        self._msdb.check()  # before the lock, which may never be released in a forked process
        with self._guard:
            databases = self.all()
            error = self._unavailable.get(name)
        if error is not None:
            raise error
        if name not in databases:
            raise unknown_database(name, databases)
        return databases[name]

    def all(self) -> dict[str, DatabaseContext]:
        """Returns the databases that the registry currently lists; the objects of databases that are still listed stay the same."""
        self._msdb.check()  # before the lock, which may never be released in a forked process
        with self._guard:
            if self._is_refreshing:  # a signal or log handler in the refreshing thread
                if not self._by_name:
                    raise StorageError(
                        f"{self._msdb.path}: a signal or log handler cannot use the instance while the thread that it has interrupted opens the databases; use the instance after the handler has returned"
                    )
                return self._by_name
            self._is_refreshing = True
            try:
                return self._refresh()
            finally:
                self._is_refreshing = False

    def _refresh(self) -> dict[str, DatabaseContext]:
        """Reads the registry if it has changed; the caller holds the lock of this object."""
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
                    _LOGGER.warning(_NOT_AVAILABLE, row.name, error)
        for removed in before.values():
            removed.remove()
        if databases != self._by_name:
            self._by_name = databases
        # Unavailable databases are tried again at the next refresh.
        self._version = None if self._unavailable else version
        return self._by_name

    def unavailable(self) -> dict[str, StorageError]:
        """Returns the errors of the listed databases whose files cannot be used, by database name."""
        self.check()
        with self._guard:
            self.all()
            return dict(self._unavailable)

    def readable(self) -> list[tuple[DatabaseContext, Objects]]:
        """Returns the readable databases with their objects; omits databases that are detached in the meantime."""
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
        """Waits until an attach or detach in another process has finished, and repairs a change that a crash interrupted."""
        reconcile(database.file, self._msdb, database.database_id, ownership=self._instance.ownership)

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
            _LOGGER.warning(_NOT_AVAILABLE, database.name, error)

    def _open(self, row: RegisteredDatabase) -> DatabaseContext:
        instance, path = self._instance, self._instance.folder / row.file
        if row.name == MSDB_NAME:
            return DatabaseContext(instance, database_id=row.database_id, name=row.name, file=self._msdb)
        file = DatabaseFile.open(path, DATABASE, lock_timeout=instance.lock_timeout, vfs=instance.vfs)
        try:
            reconcile(file, self._msdb, row.database_id, ownership=instance.ownership)
        except BaseException:
            file.close()
            raise
        return DatabaseContext(instance, database_id=row.database_id, name=row.name, file=file)


def unknown_database(name: str, known: Collection[str]) -> UnknownDatabaseError:
    """Returns the error for a database name that does not exist in the instance."""
    hint = did_you_mean(str(name), known)
    return UnknownDatabaseError(f"the instance has no database {name!r}; it has {', '.join(known)}{hint}", value=name)
