"""What each statement of a script does to an instance, within one change."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ssbroker.broker.database import Database
from ssbroker.broker.databases import endpoint, identity
from ssbroker.broker.databases.alteration import Alteration
from ssbroker.broker.scripts import security_script
from ssbroker.broker.scripts.statements import ObjectStatement, change
from ssbroker.ddl import statements
from ssbroker.ddl.instance import SYSTEM_DATABASES, canonical
from ssbroker.ddl.security_statements import SecurityStatement
from ssbroker.ddl.source import RefusalError
from ssbroker.ddl.statements import Statement
from ssbroker.exceptions import UnknownDatabaseError
from ssbroker.store import object_changes as changes
from ssbroker.store.registry import MSDB_NAME

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance

NOTHING_TO_AN_INSTANCE: Final = "skipped, it means nothing to an instance"


class Script:
    """Runs statements one after the other.

    Attributes:
        current: The database that USE has selected.
    """

    def __init__(self, instance: Instance, alteration: Alteration, current: str | None) -> None:
        self._instance: Final = instance
        self._alteration: Final = alteration
        self.current = current

    @property
    def only_database(self) -> str | None:
        """The one user database; None where there are several, or none."""
        users = [name for name in self._alteration.names if name != MSDB_NAME]
        return users[0] if len(users) == 1 else None

    def run(self, statement: Statement, annotations: Mapping[str, str]) -> str | None:
        """Runs one statement.

        Args:
            statement: The statement.
            annotations: What its `-- ssbroker:` comments say.

        Returns:
            What was left out of account, for a warning.

        Raises:
            RefusalError: The statement is refused.
            BrokerError: The same.
            UnknownDatabaseError: It names a database that is not there.
        """
        if isinstance(statement, SecurityStatement):
            return self._secure(statement, annotations)
        match statement:
            case statements.UseDatabase(name):
                self._use(name, annotations)
            case statements.CreateDatabase():
                return self._create_database(statement, annotations)
            case statements.AlterDatabase():
                return self._alter_database(statement, annotations)
            case statements.DropDatabase(names, if_exists):
                for name in names:
                    self._drop_database(canonical(name), if_exists=if_exists)
            case statements.CreateEndpoint() | statements.AlterEndpoint() | statements.DropEndpoint():
                return endpoint.run(self._alteration, statement, annotations)
            case statements.Skipped(holds):
                return f"skipped whole, with the {', '.join(holds)} in it" if holds else NOTHING_TO_AN_INSTANCE
            case _:
                self._change(statement, annotations)
        return None

    def _use(self, name: str, annotations: Mapping[str, str]) -> None:
        name = canonical(name)
        # Scripts pass through master to create databases and endpoints; an instance has none.
        if name not in SYSTEM_DATABASES - {MSDB_NAME}:
            self._set_guid(self._alteration.database(name), annotations)
        self.current = name

    def _create_database(self, statement: statements.CreateDatabase, annotations: Mapping[str, str]) -> str | None:
        name, files = statement.name, statement.files
        if not statement.attached:
            database = identity.create(self._instance, self._alteration, name)
            self._set_guid(database, annotations)
            return "skipped FILENAME: the file stands beside that of msdb" if files else None
        if not files:
            raise RefusalError("FOR ATTACH needs ON (FILENAME = '...')")
        try:
            path = Path(files[0]).resolve()
        except ValueError as error:
            raise RefusalError(f"{files[0]}: can be no file: {error}") from None
        database = identity.attach(self._instance, self._alteration, name, path, statement.option)
        self._set_guid(database, annotations)
        return None

    def _alter_database(self, statement: statements.AlterDatabase, annotations: Mapping[str, str]) -> str | None:
        name = self._context_name() if statement.name is None else canonical(statement.name)
        database = self._database(name)
        if statement.honor_broker_priority is not None:
            connection = self._alteration.connection(database)
            changes.set_honor_broker_priority(connection, is_on=statement.honor_broker_priority)
        if statement.option is not None:
            identity.set_broker(self._instance, self._alteration, database, statement.option)
        self._set_guid(database, annotations)
        if statement.new_name is not None:
            identity.rename(self._alteration, name, statement.new_name)
            self.current = statement.new_name if self.current == name else self.current
        return f"skipped {statement.ignored}" if statement.ignored else None

    def _drop_database(self, name: str, *, if_exists: bool) -> None:
        if name == self.current:
            raise RefusalError(f"the database {name} is in use by this script", 3702)
        if name not in {*self._alteration.names, *self._alteration.lost, *SYSTEM_DATABASES}:
            if if_exists:
                return
            raise RefusalError(f"the database {name} does not exist", 3701)
        identity.detach(self._alteration, name, is_dropped=True)

    def _change(self, statement: ObjectStatement, annotations: Mapping[str, str]) -> None:
        queue = getattr(statement, "queue", None)
        named = None if queue is None else queue.database
        database = self._database(self._context_name() if named is None else canonical(named))
        connection = self._alteration.connection(database)
        change(connection, database.sight(connection), statement, annotations, now=self._instance.clock())

    def _secure(self, statement: SecurityStatement, annotations: Mapping[str, str]) -> str | None:
        if annotations:
            raise RefusalError(f"the annotation {min(annotations)} does not belong to this statement")
        database = self._database(self._context_name())
        connection = self._alteration.connection(database)
        return security_script.change(
            connection,
            database.sight(connection),
            statement,
            credentials=self._instance.credentials,
            now=self._instance.clock(),
            wrote=self._alteration.wrote,
        )

    def _context_name(self) -> str:
        name = self.current or self.only_database
        if name is None:
            users = ", ".join(one for one in self._alteration.names if one != MSDB_NAME)
            raise RefusalError(f"no USE says which database is meant: {users or 'there is none yet'}")
        return name

    def _database(self, name: str) -> Database:
        if name in SYSTEM_DATABASES - {MSDB_NAME}:
            raise UnknownDatabaseError(f"an instance has no database {name}", value=name)
        return self._alteration.database(name)

    def _set_guid(self, database: Database, annotations: Mapping[str, str]) -> None:
        text = annotations.get("service_broker_guid")
        if text is None or text == "unknown":
            return
        try:
            guid = uuid.UUID(text).bytes
        except ValueError:
            raise RefusalError(f"the annotation service_broker_guid={text} is no GUID") from None
        identity.set_guid(self._alteration, database, guid)
