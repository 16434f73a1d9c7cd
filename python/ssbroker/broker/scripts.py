"""Runs T-SQL scripts on an instance, each batch in one transaction."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from ssbroker._arguments import epoch_microseconds
from ssbroker.broker import (
    database_lifecycle,
    endpoint_ddl,
    needed_statements,
    object_ddl,
    object_descriptions,
    security_ddl,
)
from ssbroker.broker.context import DatabaseContext, InstanceContext
from ssbroker.broker.definition_checks import existing, queue_text, refusal
from ssbroker.broker.instance_change import InstanceChange
from ssbroker.broker.needed_statements import ObjectChange
from ssbroker.broker.security_ddl import GivenCertificate, KeyStore
from ssbroker.ddl import catalog_views, statements
from ssbroker.ddl.catalog_views import DatabaseObjects, DatabaseRow, EndpointRow, QueueRow, RouteRow, ServiceRow
from ssbroker.ddl.certificate_dates import parse_date
from ssbroker.ddl.expressions import Row, folded
from ssbroker.ddl.lexer import (
    RefusalError,
    ScriptBatch,
    ScriptPosition,
    ScriptSource,
    batches,
    parse_broker_id,
    parse_lifetime,
    parse_route_id,
)
from ssbroker.ddl.model import (
    INITIAL_ROUTE_EXISTS,
    already_exists,
    collection_remark,
    find_name,
    initial_route_hint,
    is_initial_route,
)
from ssbroker.ddl.parser import ParsedBatch
from ssbroker.ddl.parser_base import did_you_mean
from ssbroker.ddl.reader import REPETITIONS_MAX, STRICT, ScriptOptions
from ssbroker.ddl.route_validation import AUTO_CREATED_LOCAL
from ssbroker.ddl.script_notes import Remark, ScriptNote
from ssbroker.ddl.script_runner import EMPTY, ScriptRunner
from ssbroker.ddl.sqlcmd import substitute
from ssbroker.ddl.statements import QueueName, SecurityStatement, Statement, walk
from ssbroker.ddl.system_objects import (
    SYSTEM_CONTRACTS,
    SYSTEM_DATABASES,
    SYSTEM_MESSAGE_TYPES,
    SYSTEM_SERVICES,
    canonical_name,
)
from ssbroker.exceptions import BrokerError, DdlError, InputError, UnknownDatabaseError
from ssbroker.security.certificates import KEY_PASSWORD_BYTES_MAX, certificate_to_pem, key_to_pem
from ssbroker.store import object_changes as changes
from ssbroker.store.database_registry import MSDB_NAME
from ssbroker.store.objects import ContractMessage, Objects, Route, lazy_objects
from ssbroker.store.sqlite import Connection

_FILE_BYTES_MAX: Final = 64 * 1024


FileCreated: TypeAlias = Callable[[Path], None]


def change_security(
    connection: Connection,
    objects: Objects,
    statement: SecurityStatement,
    *,
    credentials: KeyStore,
    now: datetime,
    file_created: FileCreated,
) -> Remark | None:
    """Executes a statement; returns what was not done, if anything."""
    match statement:
        case statements.CreateUser(name, ignored):
            check_not_similar(objects.security.principals, name, kind="user", number=15023)
            security_ddl.create_user(connection, objects, name=name)
            return Remark("ignored", f"skipped {ignored}") if ignored else None
        case statements.DropUser(name):
            security_ddl.drop_user(connection, objects, name=_user(objects, name))
        case statements.CreateBinding(name, service, user, anonymous):
            check_not_similar(objects.security.bindings, name, kind="remote service binding")
            user = _user(objects, user)
            security_ddl.create_binding(connection, objects, name=name, service=service, user=user, anonymous=anonymous)
        case statements.AlterBinding(name, remote, is_anonymous):
            name = similar_name(objects.security.bindings, name)
            remote = None if remote is None else _user(objects, remote)
            security_ddl.alter_binding(connection, objects, name=name, user=remote, anonymous=is_anonymous)
        case statements.DropBinding(name):
            security_ddl.drop_binding(connection, objects, name=similar_name(objects.security.bindings, name))
        case statements.SetPermission():
            return _change_permission(connection, objects, statement)
        case statements.SetOwner(kind, name, user):
            set_owner = security_ddl.set_owner if kind == "service" else security_ddl.set_certificate_owner
            known = objects.services if kind == "service" else objects.security.certificates
            found = name if kind == "service" else similar_name(known, name)
            set_owner(connection, objects, name=found, user=_user(objects, user))
        case _:
            _change_keys(connection, objects, statement, credentials, now, file_created)
    return None


def _user(objects: Objects, name: str) -> str:
    """Returns the user whose name compares equal without case."""
    return name if name in objects.security.principals else similar_name(objects.security.principals, name)


def _change_permission(connection: Connection, objects: Objects, statement: statements.SetPermission) -> Remark | None:
    denied = security_ddl.set_permission(
        connection,
        objects,
        verb=statement.permission,
        service=statement.service,
        users=tuple(_user(objects, user) for user in statement.users),
        by_control=statement.by_control,
    )
    if denied:
        return Remark(
            "ignored", f"SEND remains denied to {', '.join(denied)}: CONTROL does not lift a denial; use REVOKE SEND"
        )
    return Remark("ignored", f"skipped {statement.ignored}") if statement.ignored else None


def _change_keys(
    connection: Connection,
    objects: Objects,
    statement: statements.CreateMasterKey
    | statements.AlterMasterKey
    | statements.OpenMasterKey
    | statements.DropMasterKey
    | statements.CreateCertificate
    | statements.AlterCertificate
    | statements.BackupCertificate
    | statements.DropCertificate,
    credentials: KeyStore,
    now: datetime,
    file_created: FileCreated,
) -> None:
    match statement:
        case statements.CreateMasterKey(password):
            security_ddl.create_master_key(connection, objects, credentials=credentials, password=password)
        case statements.OpenMasterKey(password):
            security_ddl.open_master_key(connection, objects, credentials=credentials, password=password)
        case statements.AlterMasterKey(is_encrypted_by_service_key):
            security_ddl.keep_master_key(
                connection, objects, credentials=credentials, is_encrypted_by_service_key=is_encrypted_by_service_key
            )
        case statements.DropMasterKey():
            security_ddl.drop_master_key(connection, objects)
        case statements.CreateCertificate(name, owner, is_active=active):
            check_not_similar(objects.security.certificates, name, kind="certificate", number=15232)
            security_ddl.create_certificate(
                connection,
                objects,
                credentials=credentials,
                name=name,
                given=_certificate_source(statement, now),
                owner=None if owner is None else _user(objects, owner),
                active=active,
            )
        case statements.AlterCertificate(name, active_now, key, removes_key):
            security_ddl.alter_certificate(
                connection,
                objects,
                credentials=credentials,
                name=similar_name(objects.security.certificates, name),
                active=active_now,
                private_key=None if key is None else _read_certificate_file(key.file),
                password=None if key is None else key.password,
                removes_key=removes_key,
            )
        case statements.BackupCertificate():
            _back_up(objects, statement, credentials, file_created)
        case statements.DropCertificate(name):
            security_ddl.drop_certificate(connection, objects, name=similar_name(objects.security.certificates, name))


def _certificate_source(statement: statements.CreateCertificate, now: datetime) -> GivenCertificate:
    if statement.file is None:
        return security_ddl.self_signed_certificate(
            statement.subject or statement.name,
            now=now,
            begins=parse_date(statement.start_date),
            ends=parse_date(statement.expiry_date),
        )
    key = statement.key
    return GivenCertificate(
        _read_certificate_file(statement.file),
        None if key is None else _read_certificate_file(key.file),
        None if key is None else key.password,
    )


def _back_up(
    objects: Objects, statement: statements.BackupCertificate, credentials: KeyStore, file_created: FileCreated
) -> None:
    name = similar_name(objects.security.certificates, statement.name)
    certificate = existing(objects.security.certificates, name, kind="certificate")
    key = statement.key
    pem = certificate_to_pem(certificate.certificate)
    if key is not None:
        if not key.password:
            raise refusal("the private key needs ENCRYPTION BY PASSWORD = '...'")
        if len(key.password.encode()) > KEY_PASSWORD_BYTES_MAX:
            raise refusal(
                f"the password of the private key is too long: it can have up to {KEY_PASSWORD_BYTES_MAX} bytes in UTF-8",
                15118,
            )
        found = credentials.private_key(objects.security, certificate)
        if found is None:
            raise refusal(f"certificate {statement.name!r} has no private key, or the master key is not open", 15581)
        _write(key.file, key_to_pem(found, password=key.password), file_created)
    _write(statement.file, pem, file_created)


def _read_certificate_file(file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(_FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # ValueError: the name is not valid for a file
        raise refusal(f"{file}: cannot be read: {_os_error_text(error)}", 15208) from None
    if len(data) > _FILE_BYTES_MAX:
        raise refusal(f"{file}: is too large for a certificate or a private key", 15208)
    return data


def _write(file: str, data: bytes, file_created: FileCreated) -> None:
    """Writes a new file completely, or not at all."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(data)
        except OSError:
            Path(file).unlink()
            raise
    except (OSError, ValueError) as error:
        raise refusal(f"{file}: cannot be written: {_os_error_text(error)}", 15240) from None
    file_created(Path(file))


def _os_error_text(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


RouteStatement: TypeAlias = statements.CreateRoute | statements.AlterRoute | statements.DropRoute
TypeStatement: TypeAlias = (
    statements.CreateMessageType
    | statements.AlterMessageType
    | statements.DropMessageType
    | statements.CreateContract
    | statements.DropContract
)
QueueStatement: TypeAlias = statements.CreateQueue | statements.AlterQueue | statements.DropQueue
ServiceStatement: TypeAlias = statements.CreateService | statements.AlterService | statements.DropService
PriorityStatement: TypeAlias = statements.CreatePriority | statements.AlterPriority | statements.DropPriority
ObjectStatement: TypeAlias = RouteStatement | TypeStatement | QueueStatement | ServiceStatement | PriorityStatement


def change_objects(
    connection: Connection,
    objects: Objects,
    statement: ObjectStatement,
    annotations: Mapping[str, str],
    *,
    now: datetime,
) -> Remark | None:
    """Executes a statement; returns what was not done, if anything."""
    if isinstance(statement, RouteStatement):
        return _change_route(connection, objects, statement, annotations, now)
    if isinstance(statement, TypeStatement):
        return _change_type(connection, objects, statement)
    if isinstance(statement, QueueStatement):
        _change_queue(connection, objects, statement)
    elif isinstance(statement, ServiceStatement):
        _change_service(connection, objects, statement)
    else:
        _change_priority(connection, objects, statement)
    return None


def _change_route(
    connection: Connection,
    objects: Objects,
    statement: RouteStatement,
    annotations: Mapping[str, str],
    now: datetime,
) -> Remark | None:
    name = statement.name
    match statement:
        case statements.CreateRoute(clauses=clauses):
            found = AUTO_CREATED_LOCAL if is_initial_route(statement) else name
            route = objects.routes.get(found)
            if route is not None and is_initial_route(statement) and _is_initial(route):
                return INITIAL_ROUTE_EXISTS
            if route is not None:
                raise refusal(f"route {found!r} already exists{initial_route_hint(found)}")
            object_ddl.create_route(connection, objects, name=name, clauses=clauses, now=now)
        case statements.AlterRoute(clauses=clauses):
            name = similar_name(objects.routes, name)
            object_ddl.alter_route(connection, objects, name=name, clauses=clauses, now=now)
        case statements.DropRoute():
            object_ddl.drop_route(connection, objects, name=similar_name(objects.routes, name))
    if annotations and not isinstance(statement, statements.DropRoute):
        ends, number = annotations.get("lifetime"), annotations.get("route_id")
        object_ddl.annotate(
            connection,
            objects,
            name=name,
            lifetime=None if ends is None else epoch_microseconds(parse_lifetime(ends)),
            route_id=None if number is None else parse_route_id(number),
        )
    return None


def _is_initial(route: Route) -> bool:
    others = (route.remote_service_name, route.broker_instance, route.lifetime, route.mirror_address)
    return route.address.upper() == "LOCAL" and others == (None, None, None, None)


def _change_type(connection: Connection, objects: Objects, statement: TypeStatement) -> Remark | None:
    name = statement.name
    match statement:
        case statements.CreateMessageType(validation=validation):
            _refuse_system_name(name, SYSTEM_MESSAGE_TYPES, objects.message_types, kind="message type")
            object_ddl.create_message_type(connection, objects, name=name, validation=_validation(validation))
            return collection_remark(statement)
        case statements.AlterMessageType(validation=validation):
            _refuse_change(name, SYSTEM_MESSAGE_TYPES, kind="message type")
            object_ddl.alter_message_type(connection, objects, name=name, validation=_validation(validation))
            return collection_remark(statement)
        case statements.DropMessageType():
            _refuse_change(name, SYSTEM_MESSAGE_TYPES, kind="message type")
            object_ddl.drop_message_type(connection, objects, name=name)
        case statements.CreateContract(messages=messages):
            _refuse_system_name(name, SYSTEM_CONTRACTS, objects.contracts, kind="contract")
            objects = with_system_objects(connection, objects, types=[message_type for message_type, _ in messages])
            object_ddl.create_contract(connection, objects, name=name, messages=dict(messages))
        case statements.DropContract():
            _refuse_change(name, SYSTEM_CONTRACTS, kind="contract")
            object_ddl.drop_contract(connection, objects, name=name)
    return None


def _validation(name: str) -> str:
    return "WELL_FORMED_XML" if name == "VALID_XML" else name


def _refuse_system_name(name: str, system: Collection[str], known: Collection[str], *, kind: str) -> None:
    """Raises if a new object has the name of a system object that the database does not list."""
    if name in system and name not in known:
        raise refusal(f"{kind} {name!r} already exists")


def _refuse_change(name: str, system: Collection[str], *, kind: str) -> None:
    if name in system:
        raise refusal(f"{kind} {name!r} is a system {kind}, which cannot be altered or dropped", 9663)


_SYSTEM_TYPE_IDS: Final = {name: number for number, name in enumerate(SYSTEM_MESSAGE_TYPES, start=1)}
_SYSTEM_CONTRACT_IDS: Final = {name: number for number, name in enumerate(SYSTEM_CONTRACTS, start=1)}


def with_system_objects(
    connection: Connection, objects: Objects, *, types: Iterable[str] = (), contracts: Iterable[str] = ()
) -> Objects:
    """Adds the system message types and contracts of these names, which SQL Server has in every database, at their first use."""
    missing = [name for name in contracts if name in SYSTEM_CONTRACTS and name not in objects.contracts]
    needed = [*types, *(message_type for name in missing for message_type, _ in SYSTEM_CONTRACTS[name])]
    added = False
    for message_type in dict.fromkeys(needed):
        if message_type in SYSTEM_MESSAGE_TYPES and message_type not in objects.message_types:
            validation = object_ddl.VALIDATIONS[SYSTEM_MESSAGE_TYPES[message_type]]
            number = _SYSTEM_TYPE_IDS[message_type]
            changes.create_message_type(connection, name=message_type, validation=validation, message_type_id=number)
            added = True
    for name in dict.fromkeys(missing):
        messages = [
            ContractMessage(
                _SYSTEM_TYPE_IDS[message_type],
                is_sent_by_initiator=sender in ("INITIATOR", "ANY"),
                is_sent_by_target=sender in ("TARGET", "ANY"),
            )
            for message_type, sender in SYSTEM_CONTRACTS[name]
        ]
        changes.create_contract(
            connection, name=name, messages=messages, service_contract_id=_SYSTEM_CONTRACT_IDS[name]
        )
        added = True
    return lazy_objects(connection) if added else objects


def _change_queue(connection: Connection, objects: Objects, statement: QueueStatement) -> None:
    found = _similar_queue(objects, statement.queue)
    name = queue_text(*found)
    match statement:
        case statements.CreateQueue(settings=settings):
            object_ddl.create_queue(connection, objects, name=name, settings=settings)
        case statements.AlterQueue(settings=settings):
            object_ddl.alter_queue(connection, objects, name=name, settings=settings)
        case statements.DropQueue():
            object_ddl.drop_queue(connection, objects, name=name)


def _change_service(connection: Connection, objects: Objects, statement: ServiceStatement) -> None:
    name = statement.name
    match statement:
        case statements.CreateService(queue=queue, contracts=contracts, owner=owner):
            _refuse_system_name(name, SYSTEM_SERVICES, objects.services, kind="service")
            objects = with_system_objects(connection, objects, contracts=contracts)
            object_ddl.create_service(
                connection,
                objects,
                name=name,
                queue=queue_text(*_similar_queue(objects, queue)),
                contracts=contracts,
                owner=None if owner is None else _user(objects, owner),
            )
        case statements.AlterService(queue=moved, add_contracts=added, drop_contracts=dropped):
            objects = with_system_objects(connection, objects, contracts=(*added, *dropped))
            object_ddl.alter_service(
                connection,
                objects,
                name=name,
                queue=None if moved is None else queue_text(*_similar_queue(objects, moved)),
                add_contracts=added,
                drop_contracts=dropped,
            )
        case statements.DropService():
            object_ddl.drop_service(connection, objects, name=name)


def _change_priority(connection: Connection, objects: Objects, statement: PriorityStatement) -> None:
    name = statement.name
    match statement:
        case statements.CreatePriority(settings=settings):
            check_not_similar(objects.priorities, name, kind="broker priority")
            objects = with_system_objects(connection, objects, contracts=_contracts(settings))
            object_ddl.create_broker_priority(connection, objects, name=name, clauses=settings.options)
        case statements.AlterPriority(settings=settings):
            found = similar_name(objects.priorities, name)
            objects = with_system_objects(connection, objects, contracts=_contracts(settings))
            object_ddl.alter_broker_priority(connection, objects, name=found, clauses=settings.options)
        case statements.DropPriority():
            found = similar_name(objects.priorities, name)
            object_ddl.drop_broker_priority(connection, objects, name=found)


def _contracts(settings: statements.PrioritySettings) -> list[str]:
    return [str(value) for option, value in settings.options if option == "contract"]


def similar_name(known: Iterable[str], name: str) -> str:
    """Returns the name of the object that a script means, whose name may differ in case."""
    return find_name(name, known) or name


def check_not_similar(known: Iterable[str], name: str, *, kind: str, number: int | None = None) -> None:
    """Raises if there is an object of this name, or of one that differs only in case."""
    found = find_name(name, known)
    if found is not None:
        if found == name:
            raise refusal(f"{kind} {found!r} already exists", number)
        raise refusal(f"{kind} {found!r} already exists, and {name!r} differs from it only in case", number)


def _similar_queue(objects: Objects, queue: QueueName) -> tuple[str, str]:
    """Returns schema and name of the queue that a script means, whose names may differ in case."""
    key = (queue.schema, queue.name)
    if key in objects.queues:
        return key
    wanted = (folded(queue.schema), folded(queue.name))
    return next((other for other in objects.queues if (folded(other[0]), folded(other[1])) == wanted), key)


class InstanceTarget:
    """Runs the statements of a batch on an instance, in one transaction.

    Args:
        instance: The instance.
        change: The transaction.
        current: The database that an earlier batch selected.
        differing: If given, existing objects are made to match the script, and those that cannot be are added to this list.

    Attributes:
        current: The database that USE selected.
    """

    def __init__(
        self,
        instance: InstanceContext,
        change: InstanceChange,
        current: str | None,
        *,
        differing: list[ObjectChange] | None = None,
    ) -> None:
        self._instance: Final = instance
        self._instance_change: Final = change
        self._differing: Final = differing
        self.current = current

    @property
    def only_database(self) -> str | None:
        """The only user database; None if there are several or none."""
        users = [name for name in self._instance_change.names if name != MSDB_NAME]
        return users[0] if len(users) == 1 else None

    def run(self, statement: Statement, annotations: Mapping[str, str], position: ScriptPosition) -> Remark | None:
        """Runs one statement; returns what was not done, if anything."""
        del position  # an instance does not record it
        try:
            if self._differing is None:
                return self._run(statement, annotations)
            return self._ensure(statement, annotations, self._differing)
        except BrokerError as error:
            reason = str(error).removeprefix(f"{error.number}: ")
            raise RefusalError(reason, error.number) from None
        except UnknownDatabaseError as error:
            raise RefusalError(str(error), 911) from None

    def _ensure(
        self, statement: Statement, annotations: Mapping[str, str], differing: list[ObjectChange]
    ) -> Remark | None:
        """Runs the statements that make the objects match a statement."""
        remark = None
        known = needed_statements.Existing(
            databases=lambda: self._instance_change.names,
            endpoint=lambda: self._instance_change.objects(self._instance_change.database(MSDB_NAME)).endpoint,
            objects=lambda: self._objects_of(statement),
            now=epoch_microseconds(self._instance.clock()),
        )
        for one in needed_statements.needed_statements(statement, annotations, known):
            if isinstance(one, needed_statements.Differs):
                place = None if one.kind in needed_statements.INSTANCE_KINDS else self._context_name()
                differing.append(ObjectChange("unchanged", one.kind, one.name, place, one.text))
            else:
                remark = self._run(one, annotations) or remark
        return remark

    def _objects_of(self, statement: Statement) -> Objects:
        """Returns the objects of the database to which a statement applies."""
        database = self._database_of(statement)
        return database.lazy_objects(self._instance_change.connection(database))

    def restore(self, current: str | None) -> None:
        """Makes a database the current one again."""
        self.current = current

    def suppose(self, name: str) -> None:
        """Does nothing: an instance has only its own databases."""

    def rows(self, view: str, database: str | None) -> Iterable[Row] | None:
        """Returns the rows of a catalog view, as of this batch."""
        return catalog_views.view_rows(
            view,
            databases=lambda: map(self._database_row, self._instance_change.names),
            endpoint=self._endpoint_row,
            objects=lambda: self._viewed_objects(database),
        )

    def resolve(self, name: str) -> str:
        """Returns the name of the database that a script means, whose name may differ in case."""
        name = canonical_name(name)
        names = self._instance_change.names
        return name if name in names else next((one for one in names if folded(one) == folded(name)), name)

    def _database_row(self, name: str) -> DatabaseRow:
        database = self._instance_change.database(name)
        broker = self._instance_change.visible_objects(database).broker
        guid = str(uuid.UUID(bytes=broker.service_broker_guid)).upper()
        return DatabaseRow(name, broker.is_broker_enabled, guid)

    def _endpoint_row(self) -> EndpointRow | None:
        msdb = self._instance_change.database(MSDB_NAME)
        endpoint = self._instance_change.visible_objects(msdb).endpoint
        return None if endpoint is None else EndpointRow(endpoint.name, endpoint.state, endpoint.port)

    def _viewed_objects(self, database: str | None) -> DatabaseObjects:
        name = (self.current or self.only_database) if database is None else self.resolve(database)
        if name not in self._instance_change.names:
            return DatabaseObjects()
        return _objects_for_views(self._instance_change.visible_objects(self._instance_change.database(name)))

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
            case statements.CreateEndpoint() | statements.AlterEndpoint() | statements.DropEndpoint():
                return endpoint_ddl.change_endpoint(self._instance_change, statement, annotations)
            case _ if isinstance(statement, ObjectStatement):
                return self._change(statement, annotations)
            case _:
                raise AssertionError(statement)
        return None

    def _use(self, name: str, annotations: Mapping[str, str]) -> None:
        # Scripts select master to create databases and endpoints; an instance has no such database.
        if name not in SYSTEM_DATABASES - {MSDB_NAME}:
            self._set_guid(self._existing_database(name), annotations)
        self.current = name

    def _existing_database(self, name: str, *, number: int = 911) -> DatabaseContext:
        """Returns a database; raises if there is none with this name."""
        names = self._instance_change.names
        if name not in names:
            known = [one for one in names if one != MSDB_NAME]
            has = f"it has {', '.join(known)}" if known else "it has no databases yet"
            raise RefusalError(f"the instance has no database {name!r}; {has}{did_you_mean(name, known)}", number)
        return self._instance_change.database(name)

    def _create_database(self, statement: statements.CreateDatabase, annotations: Mapping[str, str]) -> Remark | None:
        name, files = statement.name, statement.files
        if self.resolve(name) in {*self._instance_change.names, *SYSTEM_DATABASES}:
            raise RefusalError(already_exists(self.resolve(name)), 1801)
        if not statement.is_attach:
            database = database_lifecycle.create(self._instance, self._instance_change, name)
            self._set_guid(database, annotations)
            if files:
                return Remark("ignored", "skipped FILENAME: the file is created in the folder of the instance")
            return None
        if not files:
            raise RefusalError("FOR ATTACH needs ON (FILENAME = '...')")
        try:
            path = Path(files[0]).resolve()
        except ValueError as error:
            raise RefusalError(f"{files[0]!r}: is not a valid file name: {error}") from None
        database = database_lifecycle.attach(self._instance, self._instance_change, name, path, statement.option)
        self._set_guid(database, annotations)
        return None

    def _alter_database(self, statement: statements.AlterDatabase, annotations: Mapping[str, str]) -> Remark | None:
        name = self._context_name() if statement.name is None else self.resolve(statement.name)
        database = self._database(name, number=5011)
        if statement.honor_broker_priority is not None:
            connection = self._instance_change.connection(database)
            changes.set_honor_broker_priority(connection, is_on=statement.honor_broker_priority)
        if statement.option is not None:
            database_lifecycle.set_broker(self._instance, self._instance_change, database, statement.option)
        self._set_guid(database, annotations)
        if statement.new_name is not None:
            self._rename(name, statement.new_name)
        return Remark("ignored", f"skipped {statement.ignored}") if statement.ignored else None

    def _rename(self, name: str, new: str) -> None:
        if new == name and name not in SYSTEM_DATABASES:
            return
        other = self.resolve(new)
        if name not in SYSTEM_DATABASES and other != name and other in self._instance_change.names:
            raise RefusalError(f"the database {other!r} already exists", 1801)
        database_lifecycle.rename(self._instance_change, name, new)
        self.current = new if self.current == name else self.current

    def _drop_database(self, name: str, *, if_exists: bool) -> None:
        if name == self.current and name not in SYSTEM_DATABASES:
            raise RefusalError(f"the database {name} is in use by this script; select another one with USE", 3702)
        if name not in {*self._instance_change.names, *self._instance_change.lost, *SYSTEM_DATABASES}:
            if if_exists:
                return
            raise RefusalError(f"the database {name} does not exist", 3701)
        database_lifecycle.detach(self._instance_change, name, is_dropped=True)

    def _change(self, statement: ObjectStatement, annotations: Mapping[str, str]) -> Remark | None:
        database = self._database_of(statement)
        connection = self._instance_change.connection(database)
        return change_objects(
            connection, database.lazy_objects(connection), statement, annotations, now=self._instance.clock()
        )

    def _database_of(self, statement: Statement) -> DatabaseContext:
        named = statement.queue.database if isinstance(statement, QueueStatement) else None
        return self._database(self._context_name() if named is None else self.resolve(named))

    def _secure(self, statement: SecurityStatement) -> Remark | None:
        database = self._database(self._context_name())
        connection = self._instance_change.connection(database)
        return change_security(
            connection,
            database.lazy_objects(connection),
            statement,
            credentials=self._instance.credentials,
            now=self._instance.clock(),
            file_created=self._instance_change.file_created,
        )

    def _context_name(self) -> str:
        name = self.current or self.only_database
        if name is None:
            users = ", ".join(one for one in self._instance_change.names if one != MSDB_NAME)
            raise RefusalError(
                f"no database is selected; use USE with one of: {users or '(the instance has no databases yet)'}"
            )
        return name

    def _database(self, name: str, *, number: int = 911) -> DatabaseContext:
        if name in SYSTEM_DATABASES - {MSDB_NAME}:
            raise UnknownDatabaseError(
                f"an instance has no objects in the database {name}; select another one with USE", value=name
            )
        return self._existing_database(name, number=number)

    def _set_guid(self, database: DatabaseContext, annotations: Mapping[str, str]) -> None:
        text = annotations.get("service_broker_guid")
        guid = None if text is None else parse_broker_id(text)
        if guid is not None:
            database_lifecycle.set_guid(self._instance_change, database, guid)


def _objects_for_views(objects: Objects) -> DatabaseObjects:
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


def execute(
    instance: InstanceContext, text: str, *, file: str | None, options: ScriptOptions = STRICT
) -> list[ScriptNote]:
    """Runs a script; returns what it left undone. Until the first USE, it applies to the only user database."""
    run = _Execution(instance, options, database=None)
    run.script(text, file, may_be_empty=options.lenient)
    return run.runner.notes


def execute_file(instance: InstanceContext, path: Path, *, options: ScriptOptions = STRICT) -> list[ScriptNote]:
    """Runs a script file, in UTF-8 or the encoding of its byte order mark; returns what it left undone."""
    return execute(instance, _read_script(path, options), file=str(path), options=options)


def _read_script(path: Path, options: ScriptOptions) -> str:
    try:
        return options.read_file(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}", value=str(path)) from error


class ScriptSession:
    """Runs statements one after the other, in the database that the last USE selected.

    Args:
        instance: The instance.
        options: How scripts are read.
    """

    def __init__(self, instance: InstanceContext, options: ScriptOptions = STRICT) -> None:
        self._instance: Final = instance
        self._options: Final = options
        self._selected: str | None = None

    @property
    def database(self) -> str | None:
        """The current database: the one selected, or the only user database; None if there are several or none."""
        names = [database.name for database in self._instance.databases]
        if self._selected in names:
            return self._selected
        users = [name for name in names if name != MSDB_NAME]
        return users[0] if len(users) == 1 else None

    def execute(self, text: str) -> list[ScriptNote]:
        """Runs a script, which need not be about Service Broker; returns what it left undone."""
        return self._execute(text, None, may_be_empty=True)

    def execute_file(self, path: Path) -> list[ScriptNote]:
        """Runs a script file; returns what it left undone."""
        return self._execute(_read_script(path, self._options), str(path), may_be_empty=self._options.lenient)

    def _execute(self, text: str, file: str | None, *, may_be_empty: bool) -> list[ScriptNote]:
        run = _Execution(self._instance, self._options, database=self.database)
        try:
            run.script(text, file, may_be_empty=may_be_empty)
        finally:
            self._selected = run.database
        return run.runner.notes


def ensure(
    instance: InstanceContext, text: str, *, file: str | None, options: ScriptOptions = STRICT
) -> tuple[tuple[ObjectChange, ...], list[ScriptNote]]:
    """Makes the objects match a script, in one transaction; returns what has changed, and what was left undone."""
    while True:
        known = {database.name for database in instance.databases}
        try:
            return _ensure(instance, text, file, options)
        except DdlError as error:
            # Another process has created the same database meanwhile.
            if error.number != _DATABASE_EXISTS or known == {database.name for database in instance.databases}:
                raise


_DATABASE_EXISTS: Final = 1801


def _ensure(
    instance: InstanceContext, text: str, file: str | None, options: ScriptOptions
) -> tuple[tuple[ObjectChange, ...], list[ScriptNote]]:
    runner = ScriptRunner(lenient=options.lenient)
    source = substitute(text, file, variables=options.variables, read_file=options.read_file)
    parsed = []
    for batch in batches(source):
        if batch.server is not None:
            position = batch.tokens[0].start if batch.tokens else 0
            raise source.error(position, f":connect {batch.server}: ensure changes one instance, without :connect")
        parsed.append(_parse(runner, source, batch))
    differing: list[ObjectChange] = []
    with InstanceChange(instance) as change:
        target = InstanceTarget(instance, change, None, differing=differing)
        # Which database a batch changes depends on the USE of those before it.
        names: set[str] = set()
        current: str | None = None
        for one in parsed:
            names.update(_changed_databases(one, target, current=current))
            current = next(
                (
                    target.resolve(each.statement.name)
                    for each in reversed([*walk(one.statements)])
                    if isinstance(each.statement, statements.UseDatabase)
                ),
                current,
            )
        change.lock(names)
        before = _describe_instance(change)
        for one in parsed:
            runner.run(target, source, one)
        if not runner.seen_count and not options.lenient:
            raise source.error(0, f"the script {EMPTY}; use the option lenient to accept it")
        after = _describe_instance(change)
    changed: list[ObjectChange] = []
    for name in dict.fromkeys([*before, *after]):
        if name not in after:
            changed.append(ObjectChange("dropped", "database", name, None))
            continue
        changed += needed_statements.changes(before.get(name, {}), after[name], database=name)
    return (*changed, *differing), runner.notes


def _describe_instance(change: InstanceChange) -> dict[str, object_descriptions.Described]:
    """Returns the objects of all databases within a change, and the endpoint."""
    found: dict[str, object_descriptions.Described] = {}
    for name in change.names:
        objects = change.visible_objects(change.database(name))
        found[name] = object_descriptions.describe_database(objects)
        if name == MSDB_NAME:
            found[name] |= object_descriptions.describe_endpoint(objects.endpoint)
    return found


class _Execution:
    """The run of a script on an instance, batch by batch."""

    def __init__(self, instance: InstanceContext, options: ScriptOptions, *, database: str | None) -> None:
        self.runner: Final = ScriptRunner(lenient=options.lenient)
        self.database = database
        """The database that USE selected."""
        self._instance: Final = instance
        self._options: Final = options
        self._before: Final = {database.name for database in instance.databases}
        self._last_line = 0
        """The last line that was committed."""
        self._has_changed_others = False
        # Changes are announced at the end, because an announcement reads all objects again: too slow after each of thousands of batches.
        self._changed: Final[set[DatabaseContext]] = set()

    def script(self, text: str, file: str | None, *, may_be_empty: bool) -> None:
        """Runs a script; raises if it has no statement about Service Broker, unless it `may_be_empty`."""
        options = self._options
        source = substitute(text, file, variables=options.variables, read_file=options.read_file)
        try:
            for batch in batches(source):
                if batch.server is not None:
                    position = batch.tokens[0].start if batch.tokens else 0
                    raise source.error(
                        position,
                        f":connect {batch.server}: a script runs on one instance; put the statements of each server into a script "
                        "of its own, and run each on its instance",
                    )
                self._batch(source, batch)
            if not self.runner.seen_count and not may_be_empty:
                raise source.error(0, f"the script {EMPTY}; use the option lenient to accept it")
        except DdlError as error:
            raise self._failed(error) from None
        finally:
            self._announce()

    def _batch(self, source: ScriptSource, batch: ScriptBatch) -> None:
        """Runs a batch as often as its GO says; each time in one transaction."""
        parsed = _parse(self.runner, source, batch)
        for repetition in range(min(batch.count, REPETITIONS_MAX)):
            with InstanceChange(self._instance, changed=self._changed) as change:
                target = InstanceTarget(self._instance, change, self.database)
                names = set(_changed_databases(parsed, target))
                change.lock(names)
                has_run = self.runner.run(target, source, parsed, is_repeated=repetition > 0)
            self.database = target.current
            if parsed.statements:
                self._last_line = source.line(parsed.statements[-1].end - 1)
            if not has_run:
                break

    def _failed(self, error: DdlError) -> DdlError:
        """Drops the databases that the script created, and returns the error with what remains in effect."""
        created = sorted({database.name for database in self._instance.databases} - self._before)
        if not self._last_line or not (self._changed or created):
            return error
        with InstanceChange(self._instance, changed=self._changed) as change:
            for name in created:
                database_lifecycle.detach(change, name, is_dropped=True)
        effect = f"the statements up to line {self._last_line} were committed"
        if created:
            names = ", ".join(map(repr, created))
            effect += f", but the databases that the script created ({names}) were dropped again"
        message = f"{error}; {effect}"
        return DdlError(message, number=error.number, file=error.file, line=error.line)

    def _announce(self) -> None:
        """Tells the instance which databases have changed."""
        for database in self._instance.databases:
            if database in self._changed:
                self._instance.listener.changed(database)


def _parse(runner: ScriptRunner, source: ScriptSource, batch: ScriptBatch) -> ParsedBatch:
    """Parses a batch, and notes the annotations that do not apply to an instance."""
    parsed = runner.parse(source, batch)
    for position, key, _ in parsed.instance_annotations:
        text = "skipped (an instance determines it by itself)"
        runner.notes.append(ScriptNote("ignored", f"the annotation {key}", text, source.position(position)))
    return parsed


def _changed_databases(batch: ParsedBatch, target: InstanceTarget, *, current: str | None = None) -> Iterator[str]:
    """Yields the databases that a batch changes, as far as known in advance; `current` is that of the batches before."""
    current = current or target.current or target.only_database or ""
    for parsed in walk(batch.statements):
        match parsed.statement:
            case statements.UseDatabase(name):
                current = target.resolve(name)
            case statements.AlterDatabase(name=name):
                yield current if name is None else target.resolve(name)
            case statements.DropDatabase(names):
                yield from map(target.resolve, names)
            case statements.CreateQueue(queue) | statements.AlterQueue(queue) | statements.DropQueue(queue):
                yield current if queue.database is None else target.resolve(queue.database)
            case _ if parsed.verb not in (None, "CREATE DATABASE"):
                yield current
