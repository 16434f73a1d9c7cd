"""Runs T-SQL scripts on an instance, each batch in one transaction."""

from __future__ import annotations

import os
import re
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final, TypeAlias

from ssbroker._arguments import epoch_microseconds, parse_timestamp
from ssbroker.broker import database_lifecycle, object_definitions, principals
from ssbroker.broker.context import DatabaseContext, InstanceContext
from ssbroker.broker.databases import InstanceChange
from ssbroker.broker.principals import GivenCertificate, KeyStore
from ssbroker.broker.validation import existing, queue_text, refusal
from ssbroker.ddl import decode, statements
from ssbroker.ddl.interpreter import SYSTEM_DATABASES, canonical_name
from ssbroker.ddl.lexer import RefusalError, ScriptSource, batches, parse_lifetime, parse_route_id, refusal_text
from ssbroker.ddl.parser import ParsedBatch, ParsedStatement, parse
from ssbroker.ddl.statements import QueueName, SecurityStatement, Statement
from ssbroker.exceptions import BrokerError, DdlError, DdlWarning, InputError, StorageError, UnknownDatabaseError
from ssbroker.security.certificates import KEY_PASSWORD_BYTES_MAX, certificate_to_pem, key_to_pem
from ssbroker.store import object_changes as changes
from ssbroker.store.objects import Objects
from ssbroker.store.registry import MSDB_NAME
from ssbroker.store.sqlite import Connection

_FILE_BYTES_MAX: Final = 64 * 1024
# Date formats of SQL Server other than ISO 8601: 20261121 and 11/21/2026.
_DATE_FORMATS: Final = (
    re.compile(r"(?P<year>\d{4})(?P<month>\d\d)(?P<day>\d\d)(?=\Z|[T ])", re.ASCII),
    re.compile(r"(?P<month>\d{1,2})/(?P<day>\d{1,2})/(?P<year>\d{4})(?=\Z|[T ])", re.ASCII),
)


FileCreated: TypeAlias = Callable[[Path], None]


def change_security(
    connection: Connection,
    objects: Objects,
    statement: SecurityStatement,
    *,
    credentials: KeyStore,
    now: datetime,
    file_created: FileCreated,
) -> str | None:
    """Executes a statement; returns a warning about what was skipped, if any."""
    match statement:
        case statements.CreateUser(name, ignored):
            principals.create_user(connection, objects, name=name)
            return f"skipped {ignored}" if ignored else None
        case statements.DropUser(name, if_exists):
            if not if_exists or name in objects.security.principals:
                principals.drop_user(connection, objects, name=name)
        case statements.CreateBinding(name, service, user, anonymous):
            principals.create_binding(connection, objects, name=name, service=service, user=user, anonymous=anonymous)
        case statements.AlterBinding(name, user, anonymous):
            principals.alter_binding(connection, objects, name=name, user=user, anonymous=anonymous)
        case statements.DropBinding(name):
            principals.drop_binding(connection, objects, name=name)
        case statements.SetPermission():
            return _change_permission(connection, objects, statement)
        case statements.SetOwner(kind, name, user):
            set_owner = principals.set_owner if kind == "service" else principals.set_certificate_owner
            set_owner(connection, objects, name=name, user=user)
        case _:
            _change_keys(connection, objects, statement, credentials, now, file_created)
    return None


def _change_permission(connection: Connection, objects: Objects, statement: statements.SetPermission) -> str | None:
    denied = principals.set_permission(
        connection,
        objects,
        verb=statement.permission,
        service=statement.service,
        users=statement.users,
        by_control=statement.by_control,
    )
    if denied:
        return f"SEND remains denied to {', '.join(denied)}: CONTROL does not lift a denial; use REVOKE SEND"
    return f"skipped {statement.ignored}" if statement.ignored else None


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
            principals.create_master_key(connection, objects, credentials=credentials, password=password)
        case statements.OpenMasterKey(password):
            principals.open_master_key(connection, objects, credentials=credentials, password=password)
        case statements.AlterMasterKey(by_service):
            principals.keep_master_key(connection, objects, credentials=credentials, by_service=by_service)
        case statements.DropMasterKey():
            principals.drop_master_key(connection, objects)
        case statements.CreateCertificate(name, owner, is_active=active):
            principals.create_certificate(
                connection,
                objects,
                credentials=credentials,
                name=name,
                given=_certificate_source(statement, now),
                owner=owner,
                active=active,
            )
        case statements.AlterCertificate(name, active_now, key, removes_key):
            principals.alter_certificate(
                connection,
                objects,
                credentials=credentials,
                name=name,
                active=active_now,
                private_key=None if key is None else _read(key.file),
                password=None if key is None else key.password,
                removes_key=removes_key,
            )
        case statements.BackupCertificate():
            _back_up(objects, statement, credentials, file_created)
        case statements.DropCertificate(name):
            principals.drop_certificate(connection, objects, name=name)


def _certificate_source(statement: statements.CreateCertificate, now: datetime) -> GivenCertificate:
    if statement.file is None:
        return principals.self_signed_certificate(
            statement.subject or statement.name,
            now=now,
            begins=_timestamp(statement.start_date),
            ends=_timestamp(statement.expiry_date),
        )
    key = statement.key
    return GivenCertificate(
        _read(statement.file), None if key is None else _read(key.file), None if key is None else key.password
    )


def _back_up(
    objects: Objects, statement: statements.BackupCertificate, credentials: KeyStore, file_created: FileCreated
) -> None:
    certificate = existing(objects.security.certificates, statement.name, kind="certificate")
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


def _timestamp(text: str | None) -> datetime | None:
    if text is None:
        return None
    found = next(filter(None, (date_format.match(text) for date_format in _DATE_FORMATS)), None)
    day = "" if found is None else f"{found['year']}-{found['month']:0>2}-{found['day']:0>2}"
    try:
        return parse_timestamp(text if found is None else day + text[found.end() :])
    except ValueError:
        raise refusal(
            f"{text!r:.80} is not a valid timestamp; expected one such as '2026-11-21', '20261121' or '2026-11-21 08:00:00'",
            241,
        ) from None


def _read(file: str) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(_FILE_BYTES_MAX + 1)
    except (OSError, ValueError) as error:  # ValueError: the name is not valid for a file
        raise refusal(f"{file}: cannot be read: {_reason(error)}", 15208) from None
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
        raise refusal(f"{file}: cannot be written: {_reason(error)}", 15240) from None
    file_created(Path(file))


def _reason(error: OSError | ValueError) -> str:
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
) -> None:
    """Executes a statement; returns a warning about what was skipped, if any."""
    if not isinstance(statement, RouteStatement) and annotations:
        raise RefusalError(f"the annotation {min(annotations)} does not apply to this statement")
    if isinstance(statement, RouteStatement):
        _change_route(connection, objects, statement, annotations, now)
    elif isinstance(statement, TypeStatement):
        _change_type(connection, objects, statement)
    elif isinstance(statement, QueueStatement):
        _change_queue(connection, objects, statement)
    elif isinstance(statement, ServiceStatement):
        _change_service(connection, objects, statement)
    else:
        _change_priority(connection, objects, statement)


def _change_route(
    connection: Connection,
    objects: Objects,
    statement: RouteStatement,
    annotations: Mapping[str, str],
    now: datetime,
) -> None:
    name = statement.name
    match statement:
        case statements.CreateRoute(clauses=clauses):
            object_definitions.create_route(connection, objects, name=name, clauses=clauses, now=now)
        case statements.AlterRoute(clauses=clauses):
            object_definitions.alter_route(connection, objects, name=name, clauses=clauses, now=now)
        case statements.DropRoute():
            object_definitions.drop_route(connection, objects, name=name)
    if annotations and not isinstance(statement, statements.DropRoute):
        ends, number = annotations.get("lifetime"), annotations.get("route_id")
        object_definitions.annotate(
            connection,
            objects,
            name=name,
            lifetime=None if ends is None else epoch_microseconds(parse_lifetime(ends)),
            route_id=None if number is None else parse_route_id(number),
        )


def _change_type(connection: Connection, objects: Objects, statement: TypeStatement) -> None:
    name = statement.name
    match statement:
        case statements.CreateMessageType(validation=validation):
            object_definitions.create_message_type(connection, objects, name=name, validation=_validation(validation))
        case statements.AlterMessageType(validation=validation):
            object_definitions.alter_message_type(connection, objects, name=name, validation=_validation(validation))
        case statements.DropMessageType():
            object_definitions.drop_message_type(connection, objects, name=name)
        case statements.CreateContract(messages=messages):
            object_definitions.create_contract(connection, objects, name=name, messages=dict(messages))
        case statements.DropContract():
            object_definitions.drop_contract(connection, objects, name=name)


def _validation(name: str) -> str:
    if name not in object_definitions.VALIDATIONS:
        raise RefusalError(f"VALIDATION = {name}: an instance has no schema collections; use WELL_FORMED_XML")
    return name


def _change_queue(connection: Connection, objects: Objects, statement: QueueStatement) -> None:
    name = _queue_text(statement.queue)
    match statement:
        case statements.CreateQueue(settings=settings):
            object_definitions.create_queue(connection, objects, name=name, settings=settings)
        case statements.AlterQueue(settings=settings):
            object_definitions.alter_queue(connection, objects, name=name, settings=settings)
        case statements.DropQueue():
            object_definitions.drop_queue(connection, objects, name=name)


def _change_service(connection: Connection, objects: Objects, statement: ServiceStatement) -> None:
    name = statement.name
    match statement:
        case statements.CreateService(queue=queue, contracts=contracts, owner=owner):
            object_definitions.create_service(
                connection, objects, name=name, queue=_queue_text(queue), contracts=contracts, owner=owner
            )
        case statements.AlterService(queue=moved, add_contracts=added, drop_contracts=dropped):
            object_definitions.alter_service(
                connection,
                objects,
                name=name,
                queue=None if moved is None else _queue_text(moved),
                add_contracts=added,
                drop_contracts=dropped,
            )
        case statements.DropService():
            object_definitions.drop_service(connection, objects, name=name)


def _change_priority(connection: Connection, objects: Objects, statement: PriorityStatement) -> None:
    name = statement.name
    match statement:
        case statements.CreatePriority(settings=settings):
            object_definitions.create_broker_priority(connection, objects, name=name, clauses=settings.options)
        case statements.AlterPriority(settings=settings):
            object_definitions.alter_broker_priority(connection, objects, name=name, clauses=settings.options)
        case statements.DropPriority():
            object_definitions.drop_broker_priority(connection, objects, name=name)


def _queue_text(queue: QueueName) -> str:
    return queue_text(queue.schema, queue.name)


NO_EFFECT_ON_INSTANCE: Final = "skipped (does not affect an instance)"


class ScriptRun:
    """Runs the statements of a batch.

    Attributes:
        current: The database selected by USE.
    """

    def __init__(self, instance: InstanceContext, change: InstanceChange, current: str | None) -> None:
        self._instance: Final = instance
        self._instance_change: Final = change
        self.current = current

    @property
    def only_database(self) -> str | None:
        """The only user database; None if there are several or none."""
        users = [name for name in self._instance_change.names if name != MSDB_NAME]
        return users[0] if len(users) == 1 else None

    def run(self, statement: Statement, annotations: Mapping[str, str]) -> str | None:
        """Runs one statement; returns a warning about what was skipped, if any."""
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
                    self._drop_database(canonical_name(name), if_exists=if_exists)
            case statements.CreateEndpoint() | statements.AlterEndpoint() | statements.DropEndpoint():
                return database_lifecycle.run(self._instance_change, statement, annotations)
            case statements.Skipped(contained):
                return f"skipped entirely, including {', '.join(contained)}" if contained else NO_EFFECT_ON_INSTANCE
            case _:
                self._change(statement, annotations)
        return None

    def _use(self, name: str, annotations: Mapping[str, str]) -> None:
        name = canonical_name(name)
        # Scripts select master to create databases and endpoints; an instance has no such database.
        if name not in SYSTEM_DATABASES - {MSDB_NAME}:
            self._set_guid(self._instance_change.database(name), annotations)
        self.current = name

    def _create_database(self, statement: statements.CreateDatabase, annotations: Mapping[str, str]) -> str | None:
        name, files = statement.name, statement.files
        if not statement.attached:
            database = database_lifecycle.create(self._instance, self._instance_change, name)
            self._set_guid(database, annotations)
            return "skipped FILENAME: the file is created in the folder of the instance" if files else None
        if not files:
            raise RefusalError("FOR ATTACH needs ON (FILENAME = '...')")
        try:
            path = Path(files[0]).resolve()
        except ValueError as error:
            raise RefusalError(f"{files[0]!r}: is not a valid file name: {error}") from None
        database = database_lifecycle.attach(self._instance, self._instance_change, name, path, statement.option)
        self._set_guid(database, annotations)
        return None

    def _alter_database(self, statement: statements.AlterDatabase, annotations: Mapping[str, str]) -> str | None:
        name = self._context_name() if statement.name is None else canonical_name(statement.name)
        database = self._database(name)
        if statement.honor_broker_priority is not None:
            connection = self._instance_change.connection(database)
            changes.set_honor_broker_priority(connection, is_on=statement.honor_broker_priority)
        if statement.option is not None:
            database_lifecycle.set_broker(self._instance, self._instance_change, database, statement.option)
        self._set_guid(database, annotations)
        if statement.new_name is not None:
            database_lifecycle.rename(self._instance_change, name, statement.new_name)
            self.current = statement.new_name if self.current == name else self.current
        return f"skipped {statement.ignored}" if statement.ignored else None

    def _drop_database(self, name: str, *, if_exists: bool) -> None:
        if name == self.current:
            raise RefusalError(f"the database {name} is in use by this script; select another one with USE", 3702)
        if name not in {*self._instance_change.names, *self._instance_change.lost, *SYSTEM_DATABASES}:
            if if_exists:
                return
            raise RefusalError(f"the database {name} does not exist", 3701)
        database_lifecycle.detach(self._instance_change, name, is_dropped=True)

    def _change(self, statement: ObjectStatement, annotations: Mapping[str, str]) -> None:
        queue = getattr(statement, "queue", None)
        database_name = None if queue is None else queue.database
        database = self._database(self._context_name() if database_name is None else canonical_name(database_name))
        connection = self._instance_change.connection(database)
        change_objects(
            connection, database.lazy_objects(connection), statement, annotations, now=self._instance.clock()
        )

    def _secure(self, statement: SecurityStatement, annotations: Mapping[str, str]) -> str | None:
        if annotations:
            raise RefusalError(f"the annotation {min(annotations)} does not apply to this statement")
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

    def _database(self, name: str) -> DatabaseContext:
        if name in SYSTEM_DATABASES - {MSDB_NAME}:
            raise UnknownDatabaseError(f"an instance has no database {name}", value=name)
        return self._instance_change.database(name)

    def _set_guid(self, database: DatabaseContext, annotations: Mapping[str, str]) -> None:
        text = annotations.get("service_broker_guid")
        if text is None or text == "unknown":
            return
        try:
            guid = uuid.UUID(text).bytes
        except ValueError:
            raise RefusalError(f"the annotation service_broker_guid={text} is not a valid GUID") from None
        database_lifecycle.set_guid(self._instance_change, database, guid)


def execute(instance: InstanceContext, text: str, *, file: str | None) -> None:
    """Runs a script. Until the first USE, it applies to the only user database."""
    source = ScriptSource(text, file)
    current: str | None = None
    last_line = 0  # the last line that was committed
    # Changes are announced at the end, because an announcement reads all objects again: too slow after each of thousands of batches.
    changed: set[DatabaseContext] = set()
    try:
        for batch in batches(source):
            parsed = parse(source, batch, scope="objects")
            # The second run has the same result as all later ones, because its objects already exist.
            for repetition in range(min(batch.count, 2)):
                current, skipped = _run_batch(instance, source, parsed, current, changed)
                if parsed.statements:
                    last_line = source.line(parsed.statements[-1].end - 1)
                if repetition == 0:
                    for warning in skipped:
                        warnings.warn(warning, DdlWarning, stacklevel=3)  # the caller of Instance.execute
    except DdlError as error:
        if not last_line:
            raise
        message = f"{error}; the statements up to line {last_line} were committed"
        raise DdlError(message, number=error.number, file=error.file, line=error.line) from None
    finally:
        for database in instance.databases:
            if database in changed:
                instance.listener.changed(database)


def execute_file(instance: InstanceContext, path: Path) -> None:
    """Runs a script file, in UTF-8 or the encoding of its byte order mark."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}", value=str(path)) from error
    execute(instance, decode(data, file=str(path)), file=str(path))


def _run_batch(
    instance: InstanceContext,
    source: ScriptSource,
    batch: ParsedBatch,
    current: str | None,
    changed: set[DatabaseContext],
) -> tuple[str | None, list[str]]:
    """Runs one batch; returns the database selected afterwards, and warnings."""
    skipped = [
        f"{source.location(position)}: the annotation {key} was skipped (an instance determines it by itself)"
        for position, key, _ in batch.instance_annotations
    ]
    with InstanceChange(instance, changed=changed) as change:
        script = ScriptRun(instance, change, current)
        change.lock(_changed_databases(batch, script))
        for parsed in batch.statements:
            warning = _run(source, script, parsed)
            if warning is not None:
                skipped.append(f"{source.location(parsed.start)}: {parsed.subject}: {warning}")
    return script.current, skipped


def _run(source: ScriptSource, script: ScriptRun, parsed: ParsedStatement) -> str | None:
    try:
        return script.run(parsed.statement, parsed.annotations)
    except RefusalError as refusal:
        reason, number = refusal.reason, refusal.number
    except BrokerError as error:
        reason, number = str(error).removeprefix(f"{error.number}: "), error.number
    except UnknownDatabaseError as error:
        reason, number = str(error), 911
    except StorageError as error:
        message = refusal_text(str(error), subject=parsed.subject, number=None)
        raise type(error)(f"{source.location(parsed.start)}: {message}", file=error.file) from error
    raise source.error(parsed.start, reason, subject=parsed.subject, number=number)


def _changed_databases(batch: ParsedBatch, script: ScriptRun) -> Iterator[str]:
    """Yields the databases that a batch changes, as far as known in advance."""
    current = script.current
    for parsed in batch.statements:
        match parsed.statement:
            case statements.UseDatabase(name):
                current = canonical_name(name)
            case statements.AlterDatabase(name=name):
                yield current or "" if name is None else canonical_name(name)
            case statements.DropDatabase(names):
                yield from names
            case statements.CreateQueue(queue) | statements.AlterQueue(queue) | statements.DropQueue(queue):
                yield queue.database or current or script.only_database or ""
            case statements.Skipped() | statements.CreateDatabase():
                pass
            case _:
                yield current or script.only_database or ""
