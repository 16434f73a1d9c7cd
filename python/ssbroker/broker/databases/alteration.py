"""A change of an instance that touches the list of databases and any number of files: done whole, or undone."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from ssbroker.broker.database import Database
from ssbroker.broker.databases import creation
from ssbroker.broker.work.effects import Effects
from ssbroker.broker.work.work import Work
from ssbroker.exceptions import BrokerWarning, LockTimeoutError, StorageError, UnknownDatabaseError
from ssbroker.store import registry
from ssbroker.store.objects import Objects
from ssbroker.store.registry import MSDB_NAME, Listed
from ssbroker.store.session import Session
from ssbroker.store.sqlite import Connection

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance


class Alteration:
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

    def __init__(self, instance: Instance, *, changed: set[Database] | None = None) -> None:
        self._instance: Final = instance
        self._changed: Final = changed
        self._open = {database.name: database for database in instance.databases}
        self.lost: Final = set(instance.unavailable)
        self._msdb: Final = self._open[MSDB_NAME]
        self._sessions: dict[Database, Session] = {}
        self._joined: list[tuple[Database, bool]] = []
        self._effects: Final[dict[Database, Effects]] = {}
        self._left: list[tuple[Database, bool]] = []
        self._written: list[Path] = []
        self._not_whole: list[str] = []
        self._gains: set[Database] = set()

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

    def connection(self, database: Database) -> Connection:
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

    def _begin(self, database: Database) -> Connection:
        session = self._sessions[database] = database.file.session()
        try:
            return session.begin()
        except StorageError as error:
            gone = all(one is not database for one in (*self._instance.databases, *(one for one, _ in self._joined)))
            if not gone or isinstance(error, LockTimeoutError):
                raise
            raise _gone(database) from error

    def _keep(self, database: Database, connection: Connection) -> None:
        """Notes again that a database is the instance's, where a crash left it half detached.

        Raises:
            UnknownDatabaseError: Another process has taken it away.
        """
        if registry.note_of(connection).attached_to != self._instance.instance_id:
            self.row(database)
            identity = registry.identity_of(database.file.path)
            registry.note(connection, attached_to=self._instance.instance_id, identity=identity)

    def work(self, database: Database) -> Work:
        """What the conversations of a database need; whoever it concerns is told once all is committed."""
        effects = self._effects.setdefault(database, Effects(log=self._instance.events))
        return Work(database, self.connection(database), effects)

    def objects(self, database: Database) -> Objects:
        """What stands in a database now, within this change."""
        return database.objects(self.connection(database))

    def database(self, name: str) -> Database:
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

    def row(self, database: Database) -> Listed:
        """The row of a database on the list.

        Raises:
            UnknownDatabaseError: Another process has taken it away.
        """
        for row in registry.load(self.listing()):
            if row.database_id == database.database_id:
                return row
        raise _gone(database)

    def gains(self, database: Database) -> None:
        """Has the file committed after the list: it was enabled, or attached."""
        self._gains.add(database)

    def loses(self, database: Database) -> None:
        """Has the file committed before the list: it was disabled after all."""
        if all(database is not joined for joined, _ in self._joined):
            self._gains.discard(database)

    def joined(self, database: Database, *, created: bool) -> None:
        """Notes a database that is new on the list; undone, a file that was created goes again."""
        self._open[database.name] = database
        self._joined.append((database, created))
        self.gains(database)

    def left(self, database: Database, *, is_dropped: bool) -> None:
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

    def renamed(self, database: Database, new: str) -> None:
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
                    self._instance.objects_changed(database)
                else:
                    self._changed.add(database)
                if effects is not None:
                    self._instance.worker.committed(database, effects)

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
                creation.remove_dropped(self._instance, self._msdb.file, database.file.path)

    def _make_whole(self, database: Database) -> None:
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
                    stack.callback(creation.remove_files, database.file.path)
                stack.callback(database.close)
            for session in self._sessions.values():
                stack.callback(session.close)
            for file in self._written:
                stack.callback(file.unlink, missing_ok=True)


def _gone(database: Database) -> UnknownDatabaseError:
    return UnknownDatabaseError(f"the database {database.name!r} is no longer there", value=database.name)
