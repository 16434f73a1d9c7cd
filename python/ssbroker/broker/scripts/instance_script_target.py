"""Runs the statements of scripts on an instance. Statements about objects of a database are in `object_statements` and `security_statements`."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from ssbroker._text import did_you_mean
from ssbroker.broker import database_lifecycle
from ssbroker.broker.context import DatabaseContext, InstanceContext
from ssbroker.broker.instance_transaction import InstanceTransaction
from ssbroker.broker.object_names import similar_queue
from ssbroker.broker.scripts import object_comparison
from ssbroker.broker.scripts.object_comparison import ObjectChange
from ssbroker.broker.scripts.object_statements import ObjectStatement, QueueStatement, change_objects
from ssbroker.broker.scripts.security_statements import change_security
from ssbroker.ddl import catalog_views, refusal_texts, statements
from ssbroker.ddl.annotations import parse_broker_id
from ssbroker.ddl.catalog_views import DatabaseObjects, DatabaseRow, EndpointRow, QueueRow, RouteRow, ServiceRow
from ssbroker.ddl.errors import RefusalError
from ssbroker.ddl.expressions import Row, folded
from ssbroker.ddl.lexer import ScriptPosition
from ssbroker.ddl.script_notes import NOT_ABOUT_BROKER, OTHER_ENDPOINT, Remark, skipped_remark
from ssbroker.ddl.statements import EndpointSettings, SecurityStatement, Statement
from ssbroker.ddl.system_objects import (
    SYSTEM_CONTRACTS,
    SYSTEM_DATABASES,
    SYSTEM_MESSAGE_TYPES,
    canonical_name,
    refused_creation_text,
    taken_name_text,
)
from ssbroker.exceptions import BrokerError, StorageError, UnknownDatabaseError
from ssbroker.protocol.broker_errors import refusal
from ssbroker.store import object_changes as changes
from ssbroker.store.database_registry import MSDB_NAME
from ssbroker.store.objects import BrokerEndpoint, Objects

_MISSING: Final = 15151
_NAMED_OBJECTS: Final[dict[type, str]] = {
    statements.AlterMessageType: "message_types",
    statements.DropMessageType: "message_types",
    statements.DropContract: "contracts",
    statements.AlterService: "services",
    statements.DropService: "services",
    statements.AlterRoute: "routes",
    statements.DropRoute: "routes",
    statements.AlterPriority: "priorities",
    statements.DropPriority: "priorities",
}
"""The attribute of `Objects` with the objects that a statement names."""


class InstanceScriptTarget:
    """Runs the statements of a batch on an instance, in one transaction.

    Args:
        instance: The instance.
        transaction: The transaction.
        current: The database that an earlier batch selected.
        differing: If given, existing objects are made to match the script; objects that cannot match are added to this list.

    Attributes:
        current: The database that USE selected.
    """

    def __init__(
        self,
        instance: InstanceContext,
        transaction: InstanceTransaction,
        current: str | None,
        *,
        differing: list[ObjectChange] | None = None,
    ) -> None:
        self._instance: Final = instance
        self._transaction: Final = transaction
        self._differing: Final = differing
        self.current = current

    @property
    def only_database(self) -> str | None:
        """The only user database; None if there are several or none."""
        users = [name for name in self._transaction.names if name != MSDB_NAME]
        return users[0] if len(users) == 1 else None

    def run(self, statement: Statement, annotations: Mapping[str, str], position: ScriptPosition) -> Remark | None:
        """Runs one statement; returns what was not done, if anything."""
        del position  # an instance does not record the position
        try:
            if self._differing is None:
                return self._run(statement, annotations)
            return self._ensure(statement, annotations, self._differing)
        except BrokerError as error:
            reason = str(error).removeprefix(f"{error.number}: ")
            if error.number == _MISSING:
                reason += self._elsewhere(statement)
            raise RefusalError(reason, error.number) from None
        except UnknownDatabaseError as error:
            raise RefusalError(str(error), 911) from None

    def _elsewhere(self, statement: Statement) -> str:
        """Returns text that says which other database contains an object that a statement does not find."""
        found: dict[str, Objects] = {}
        for name in self._transaction.names:
            with suppress(StorageError):  # this database may be unreadable; the error is about another database
                found[name] = self._transaction.visible_objects(self._transaction.database(name))
        here = found.pop(self.current or self.only_database or "", None)
        kind, wanted = _NAMED_OBJECTS.get(type(statement)), getattr(statement, "name", None)
        if kind is not None and (here is None or wanted not in getattr(here, kind)):
            having = [name for name, objects in found.items() if wanted in getattr(objects, kind)]
        elif isinstance(queue := getattr(statement, "queue", None), statements.QueueName):
            having = [name for name, objects in found.items() if similar_queue(objects, queue) in objects.queues]
        else:
            return ""
        return f"; it exists in {refusal_texts.named('database', having)}" if having else ""

    def _ensure(
        self, statement: Statement, annotations: Mapping[str, str], differing: list[ObjectChange]
    ) -> Remark | None:
        """Runs the statements that make the objects match a statement; returns the last remark about them, or None."""
        remark = None
        known = object_comparison.Existing(
            databases=lambda: self._transaction.names,
            endpoint=lambda: self._transaction.objects(self._transaction.database(MSDB_NAME)).endpoint,
            objects=lambda: self._objects_of(statement),
            now=self._instance.microseconds(),
        )
        for one in object_comparison.needed_statements(statement, annotations, known):
            if isinstance(one, object_comparison.UnchangeableObject):
                place = None if one.kind in object_comparison.INSTANCE_KINDS else self._context_name()
                differing.append(ObjectChange("unchanged", one.kind, one.name, place, one.text))
            else:
                remark = self._run(one, annotations) or remark
        return remark

    def _objects_of(self, statement: Statement) -> Objects:
        """Returns the objects of the database to which a statement applies."""
        database = self._database_of(statement)
        return database.lazy_objects(self._transaction.connection(database))

    def restore(self, current: str | None) -> None:
        """Makes a database the current database again."""
        self.current = current

    def assume_database(self, name: str) -> None:
        """Does nothing: on an instance, a missing database is an error."""

    def rows(self, view: str, database: str | None) -> Iterable[Row] | None:
        """Returns the rows of a catalog view, as of this batch; None if the view is not about Service Broker."""
        return catalog_views.view_rows(
            view,
            databases=lambda: map(self._database_row, self._transaction.names),
            endpoint=self._endpoint_row,
            objects=lambda: self._viewed_objects(database),
        )

    def resolve(self, name: str) -> str:
        """Returns the name of the database that a script refers to; the case may differ."""
        name = canonical_name(name)
        names = self._transaction.names
        return name if name in names else next((one for one in names if folded(one) == folded(name)), name)

    def _database_row(self, name: str) -> DatabaseRow:
        database = self._transaction.database(name)
        broker = self._transaction.visible_objects(database).broker
        guid = str(uuid.UUID(bytes=broker.service_broker_guid)).upper()
        return DatabaseRow(name, broker.is_broker_enabled, guid)

    def _endpoint_row(self) -> EndpointRow | None:
        msdb = self._transaction.database(MSDB_NAME)
        endpoint = self._transaction.visible_objects(msdb).endpoint
        return None if endpoint is None else EndpointRow(endpoint.name, endpoint.state, endpoint.port)

    def _viewed_objects(self, database: str | None) -> DatabaseObjects:
        name = (self.current or self.only_database) if database is None else self.resolve(database)
        if name not in self._transaction.names:
            return DatabaseObjects()
        return _view_objects(self._transaction.visible_objects(self._transaction.database(name)))

    def _run(self, statement: Statement, annotations: Mapping[str, str]) -> Remark | None:
        if isinstance(statement, SecurityStatement):
            return self._secure(statement)
        match statement:
            case statements.UseDatabase(name):
                self._use(self.resolve(name), annotations)
            case statements.CreateDatabase():
                return self._create_database(statement, annotations)
            case statements.AlterDatabase():
                return self._alter_database(statement, annotations)
            case statements.DropDatabase(names, if_exists):
                for name in names:
                    self._drop_database(self.resolve(name), if_exists=if_exists)
            case statements.RestoreDatabase():
                return _RESTORE_NOT_EXECUTED
            case statements.CreateEndpoint() | statements.AlterEndpoint() | statements.DropEndpoint():
                return change_endpoint(self._transaction, statement, annotations)
            case _ if isinstance(statement, ObjectStatement):
                return self._change(statement, annotations)
            case _:
                raise AssertionError(statement)
        return None

    def _use(self, name: str, annotations: Mapping[str, str]) -> None:
        # Scripts select master to create databases and endpoints, but an instance has no such database.
        if name not in SYSTEM_DATABASES - {MSDB_NAME}:
            self._set_guid(self._existing_database(name), annotations)
        self.current = name

    def _existing_database(self, name: str, *, number: int = 911) -> DatabaseContext:
        """Returns a database; raises an error if no database has this name."""
        names = self._transaction.names
        if name in self._transaction.unavailable:
            raise RefusalError(f"the database {name!r} cannot be used: {self._transaction.unavailable[name]}", number)
        if name not in names:
            known = [one for one in names if one != MSDB_NAME]
            has = f"it has {', '.join(known)}" if known else "it has no databases yet"
            raise RefusalError(f"the instance has no database {name!r}; {has}{did_you_mean(name, known)}", number)
        return self._transaction.database(name)

    def _create_database(self, statement: statements.CreateDatabase, annotations: Mapping[str, str]) -> Remark | None:
        name, files = statement.name, statement.files
        if self.resolve(name) in {*self._transaction.names, *SYSTEM_DATABASES}:
            raise RefusalError(refused_creation_text(self.resolve(name)), 1801)
        if not statement.is_attach:
            database = database_lifecycle.create(self._instance, self._transaction, name)
            self._set_guid(database, annotations)
            if files:
                return Remark("ignored", "skipped FILENAME: the file is created in the instance folder")
            return None
        if not files:
            raise RefusalError("FOR ATTACH requires ON (FILENAME = '...')")
        try:
            path = Path(files[0]).resolve()
        except ValueError as error:
            raise RefusalError(f"{files[0]!r} is not a valid file name: {error}") from None
        database = database_lifecycle.attach(self._instance, self._transaction, name, path, statement.option)
        self._set_guid(database, annotations)
        return None

    def _alter_database(self, statement: statements.AlterDatabase, annotations: Mapping[str, str]) -> Remark | None:
        if statement.is_only_availability:
            return NOT_ABOUT_BROKER
        name = self._context_name() if statement.name is None else self.resolve(statement.name)
        database = self._database(name, number=5011)
        if statement.honor_broker_priority is not None:
            connection = self._transaction.connection(database)
            changes.set_honor_broker_priority(connection, is_on=statement.honor_broker_priority)
        if statement.option is not None:
            database_lifecycle.set_broker(self._instance, self._transaction, database, statement.option)
        self._set_guid(database, annotations)
        if statement.new_name is not None:
            self._rename(name, statement.new_name)
        return skipped_remark(statement.ignored)

    def _rename(self, name: str, new: str) -> None:
        if new == name and name not in SYSTEM_DATABASES:
            return
        other = self.resolve(new)
        if name not in SYSTEM_DATABASES and other != name and other in self._transaction.names:
            raise RefusalError(taken_name_text(other), 1801)
        database_lifecycle.rename(self._transaction, name, new)
        self.current = new if self.current == name else self.current

    def _drop_database(self, name: str, *, if_exists: bool) -> None:
        if name == self.current and name not in SYSTEM_DATABASES:
            raise RefusalError(
                f"the database {name!r} is in use by this script; select another database with USE", 3702
            )
        if name not in {*self._transaction.names, *self._transaction.unavailable, *SYSTEM_DATABASES}:
            if if_exists:
                return
            raise RefusalError(f"the database {name!r} does not exist", 3701)
        database_lifecycle.detach(self._transaction, name, is_dropped=True)

    def _change(self, statement: ObjectStatement, annotations: Mapping[str, str]) -> Remark | None:
        database = self._database_of(statement)
        connection = self._transaction.connection(database)
        return change_objects(
            connection, database.lazy_objects(connection), statement, annotations, now=self._instance.clock()
        )

    def _database_of(self, statement: Statement) -> DatabaseContext:
        named = statement.queue.database if isinstance(statement, QueueStatement) else None
        return self._database(self._context_name() if named is None else self.resolve(named))

    def _secure(self, statement: SecurityStatement) -> Remark | None:
        database = self._database(self._context_name())
        connection = self._transaction.connection(database)
        return change_security(
            connection,
            database.lazy_objects(connection),
            statement,
            key_encryption=self._instance.key_encryption,
            now=self._instance.clock(),
            file_created=self._transaction.file_created,
        )

    def _context_name(self) -> str:
        name = self.current or self.only_database
        if name is None:
            users = ", ".join(one for one in self._transaction.names if one != MSDB_NAME)
            raise RefusalError(
                f"no database is selected; use USE with one of: {users}"
                if users
                else "no database is selected, and the instance has no databases yet; create one with CREATE DATABASE"
            )
        return name

    def _database(self, name: str, *, number: int = 911) -> DatabaseContext:
        if name in SYSTEM_DATABASES - {MSDB_NAME}:
            raise UnknownDatabaseError(
                f"{name} is a system database, in which an instance has no objects; select another database with USE",
                value=name,
            )
        return self._existing_database(name, number=number)

    def _set_guid(self, database: DatabaseContext, annotations: Mapping[str, str]) -> None:
        text = annotations.get("service_broker_guid")
        guid = None if text is None else parse_broker_id(text)
        if guid is not None:
            database_lifecycle.set_guid(self._transaction, database, guid)


_RESTORE_NOT_EXECUTED: Final = Remark(
    "not_executed",
    "not executed: an instance cannot restore a backup of SQL Server; create the database and its objects with a script, or attach "
    "an ssbroker database with CREATE DATABASE ... FOR ATTACH",
)


def _view_objects(objects: Objects) -> DatabaseObjects:
    security = objects.security
    return DatabaseObjects(
        routes=(
            RouteRow(
                one.name,
                one.remote_service_name,
                None if one.broker_instance is None else str(uuid.UUID(bytes=one.broker_instance)).upper(),
                one.address,
                one.mirror_address,
            )
            for one in objects.routes.values()
        ),
        queues=(
            QueueRow(schema, name, one.is_receive_enabled, one.activation_procedure)
            for (schema, name), one in objects.queues.items()
        ),
        services=(
            ServiceRow(one.name, queue.schema_name, queue.name)
            for one in objects.services.values()
            for queue in [objects.queues_by_id[one.queue_id]]
        ),
        contracts=(name for name in objects.contracts if name not in SYSTEM_CONTRACTS),
        message_types=(name for name in objects.message_types if name not in SYSTEM_MESSAGE_TYPES),
        priorities=objects.priorities,
        bindings=security.bindings,
        certificates=security.certificates,
        users=(name for name in security.principals if name not in ("public", "dbo")),
        has_master_key=security.master_key is not None,
    )


_NO_ENDPOINT_HERE: Final = Remark("ignored", "skipped (the instance has no Service Broker endpoint)")


FORWARDING_SIZE: Final = 10
"""Default limit of forwarded messages in megabytes."""


def change_endpoint(
    transaction: InstanceTransaction,
    statement: statements.CreateEndpoint | statements.AlterEndpoint | statements.DropEndpoint,
    annotations: Mapping[str, str],
) -> Remark | None:
    """Executes an endpoint statement; returns what was not done, if anything."""
    msdb = transaction.database(MSDB_NAME)
    connection, known = transaction.connection(msdb), transaction.objects(msdb).endpoint
    name = statement.name
    is_known = known is not None and folded(known.name) == folded(name)
    if isinstance(statement, statements.CreateEndpoint):
        if known is not None:
            raise refusal(refusal_texts.endpoint_exists(known.name), 7862)
        transaction.created_endpoint = name
        changes.set_endpoint(
            connection,
            _with_settings(BrokerEndpoint(name, "STOPPED", 0, "ALL", False, FORWARDING_SIZE), statement.settings),
        )
    elif isinstance(statement, statements.DropEndpoint):
        if not is_known:
            return _NO_ENDPOINT_HERE if known is None else OTHER_ENDPOINT
        changes.set_endpoint(connection, None)
    elif known is None or not is_known:
        if not statement.has_for_clause:
            return _NO_ENDPOINT_HERE if known is None else OTHER_ENDPOINT
        raise refusal(refusal_texts.other_endpoint(name, None if known is None else known.name), 15151)
    else:
        changes.set_endpoint(connection, _with_settings(known, statement.settings))
    text = "skipped addresses_only (set the addresses when you serve the instance)"
    return Remark("ignored", text) if annotations else None


def drop_endpoint(transaction: InstanceTransaction, name: str) -> bool:
    """Drops the endpoint with this name; returns whether there was one."""
    msdb = transaction.database(MSDB_NAME)
    connection, known = transaction.connection(msdb), transaction.objects(msdb).endpoint
    if known is None or known.name != name:
        return False
    changes.set_endpoint(connection, None)
    return True


def _with_settings(before: BrokerEndpoint, settings: EndpointSettings) -> BrokerEndpoint:
    """Returns the endpoint with changed settings."""
    return BrokerEndpoint(
        before.name,
        before.state if settings.state is None else settings.state,
        before.port if settings.port is None else settings.port,
        before.ip if settings.ip is None else settings.ip,
        before.is_message_forwarding_enabled if settings.forwarding is None else settings.forwarding,
        before.message_forwarding_size if settings.forward_size is None else settings.forward_size,
    )
