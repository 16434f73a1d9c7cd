"""Transactions on several database files of an instance, committed together."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ssbroker.broker.context import DatabaseContext, InstanceContext
from ssbroker.broker.effects import Effects
from ssbroker.broker.instance_files import remove_dropped, remove_files, remove_log
from ssbroker.broker.open_databases import unknown_database
from ssbroker.broker.unit_of_work import Work
from ssbroker.exceptions import BrokerWarning, LockTimeoutError, StorageError, UnknownDatabaseError
from ssbroker.store import database_registry, file_ownership
from ssbroker.store.database_registry import MSDB_NAME, RegisteredDatabase
from ssbroker.store.objects import Objects
from ssbroker.store.session import Session
from ssbroker.store.sqlite import Connection, is_missing


class InstanceTransaction:
    """Transactions on several database files, committed together at the end of a `with` block.

    Each file is locked at its first use, and msdb after all other files, so that two instance transactions never
    deadlock. The files of databases that are disabled or detached are committed before the registry, and the files of
    databases that are enabled or attached are committed after it. A crash therefore never leaves two databases enabled
    with the same broker id.

    Attributes:
        unavailable: The names of listed databases whose files cannot be used, with the reasons.
        created_endpoint: The name of the endpoint that CREATE ENDPOINT created; None if there was no such statement.
    """

    def __init__(self, instance: InstanceContext, *, changed: set[DatabaseContext] | None = None) -> None:
        self._instance: Final = instance
        self._changed: Final = changed
        self._open = {database.name: database for database in instance.databases}
        self.unavailable: Final = instance.databases_list.unavailable()
        self._msdb: Final = self._open[MSDB_NAME]
        self._sessions: dict[DatabaseContext, Session] = {}
        self._added: list[tuple[DatabaseContext, bool]] = []
        self._effects: Final[dict[DatabaseContext, Effects]] = {}
        self._removed: list[tuple[DatabaseContext, bool]] = []
        self._created_files: list[Path] = []
        self._dropped_files: list[Path] = []
        self.created_endpoint: str | None = None
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
            raise _detached_error(database.name) from error

    def _restore_owner(self, database: DatabaseContext, connection: Connection) -> None:
        """Records the instance as the owner again if a crash left the database half detached."""
        ownership, path = self._instance.ownership, database.file.path
        if file_ownership.read_owner(connection).attached_to != ownership.owner_id(path):
            self.row(database)
            file_ownership.record_owner(connection, ownership.owner(path))

    def work(self, database: DatabaseContext) -> Work:
        """Returns the started transaction of a database, whose effects are announced after the commit."""
        effects = self._effects.setdefault(database, Effects(log=self._instance.events))
        return Work(database, self.connection(database), effects)

    def objects(self, database: DatabaseContext) -> Objects:
        """Returns the objects of a database within this transaction."""
        return database.objects(self.connection(database))

    def visible_objects(self, database: DatabaseContext) -> Objects:
        """Returns the objects of a database within this transaction, without locking it."""
        session = self._sessions.get(database)
        return database.objects() if session is None else database.lazy_objects(session.begin())

    def database(self, name: str) -> DatabaseContext:
        """Returns a database by its name within this transaction."""
        if name not in self._open:
            raise unknown_database(name, self._open)
        return self._open[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the databases within this transaction."""
        return tuple(self._open)

    def row(self, database: DatabaseContext) -> RegisteredDatabase:
        """Returns the registry row of a database."""
        row = database_registry.by_id(self.listing(), database.database_id)
        if row is None:
            raise _detached_error(database.name)
        return row

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

    @property
    def created(self) -> list[int]:
        """The ids of the databases that this transaction creates."""
        return [database.database_id for database, is_created in self._added if is_created]

    def remove(self, database: DatabaseContext, *, is_dropped: bool) -> None:
        """Removes a database; the commit deletes its file if it was dropped."""
        del self._open[database.name]
        self._committed_last.discard(database)
        self._removed.append((database, is_dropped))

    @property
    def created_files(self) -> tuple[Path, ...]:
        """The files that this transaction creates, except database files."""
        return tuple(self._created_files)

    def file_created(self, file: Path) -> None:
        """Records a new file; a rollback removes it."""
        self._created_files.append(file.absolute())

    def remove_unavailable(self, name: str, *, is_dropped: bool) -> None:
        """Removes an unusable database from the registry; leaves its file unchanged.

        If the database is dropped and its file is missing from the instance folder, the commit deletes the log of the file, which SQLite
        would apply to another file with the same name, such as a backup.
        """
        row = database_registry.by_name(self.listing(), name)
        if row is None:
            raise _detached_error(name)
        path = self._instance.folder / row.file
        if is_dropped and path.parent == self._instance.folder:
            self._dropped_files.append(path)
        database_registry.remove(self.listing(), name=name)
        self.unavailable.pop(name, None)

    def renamed(self, database: DatabaseContext, new: str) -> None:
        """Records a new name, which the database object gets at the next refresh."""
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
        self._close_removed()

    def _close_removed(self) -> None:
        """Closes the removed databases, and deletes the files of those that were dropped, or only the log if the database file is missing."""
        for database, is_dropped in self._removed:
            if not is_dropped:
                self._checkpoint(database)
            database.remove()
            if is_dropped:
                remove_dropped(self._instance, self._msdb.file, database.file.path)
        for path in self._dropped_files:
            if is_missing(path):  # otherwise, the log may belong to the file that is there
                remove_dropped(self._instance, self._msdb.file, path, remove=remove_log)

    def _checkpoint(self, database: DatabaseContext) -> None:
        """Moves the WAL of a detached database into the database file; warns if this fails, for example because another process reads the file."""
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


def _detached_error(name: str) -> UnknownDatabaseError:
    return UnknownDatabaseError(f"the database {name!r} no longer exists", value=name)
