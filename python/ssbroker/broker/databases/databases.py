"""The open databases of an instance: as its list has them now, whichever process has changed it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from ssbroker.broker.database import Database
from ssbroker.broker.databases.reconciliation import reconcile
from ssbroker.exceptions import StorageError, UnknownDatabaseError
from ssbroker.store import registry
from ssbroker.store.file import DatabaseFile
from ssbroker.store.objects import Objects
from ssbroker.store.registry import MSDB_NAME, Listed
from ssbroker.store.schema import DATABASE

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance

_log: Final = logging.getLogger("ssbroker.broker")
_NOT_AVAILABLE: Final = "the database %r is not available: %s"


class Databases:
    """Opens databases when they are first asked for, and closes those that have gone from the list."""

    def __init__(self, instance: Instance, msdb: DatabaseFile) -> None:
        self._instance: Final = instance
        self._msdb: Final = msdb
        self._guard: Final = threading.RLock()
        self._known: dict[str, Database] = {}
        self._aside: dict[int, Database] = {}
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

    def one(self, name: str) -> Database:
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

    def all(self) -> dict[str, Database]:
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

    def _look(self) -> dict[str, Database]:
        """What `all` does, with the lock."""
        if self._version is not None and self._msdb.ask(registry.version_of) == self._version:
            return self._known
        with self._msdb.read() as connection:
            version = registry.version_of(connection)
            listed = registry.load(connection)
        before = {one.database_id: one for one in (*self._known.values(), *self._aside.values())}
        aside, self._aside = self._aside, {}
        databases: dict[str, Database] = {}
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

    def seen(self) -> list[tuple[Database, Objects]]:
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

    def settle(self, database: Database) -> None:
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

    def _put_aside(self, database: Database, error: StorageError) -> None:
        """Leaves a database out until its file can be read again (B42); it stays the same object."""
        with self._guard:
            if self.all().get(database.name) is not database:
                return  # it has gone from the list
            self._known = {name: each for name, each in self._known.items() if each is not database}
            self._aside[database.database_id] = database
            self._unavailable[database.name] = error
            self._version = None
            _log.warning(_NOT_AVAILABLE, database.name, error)

    def _opened(self, row: Listed) -> Database:
        instance, path = self._instance, self._instance.folder / row.file
        if row.name == MSDB_NAME:
            return Database(instance, database_id=row.database_id, name=row.name, file=self._msdb)
        file = DatabaseFile.open(path, DATABASE, lock_timeout=instance.lock_timeout, vfs=instance.vfs)
        try:
            reconcile(file, self._msdb, row.database_id, instance_id=instance.instance_id)
        except BaseException:
            file.close()
            raise
        return Database(instance, database_id=row.database_id, name=row.name, file=file)
