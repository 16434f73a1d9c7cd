"""Parsed T-SQL statements, one class each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Final, Literal, TypeVar

from ssbroker.ddl.lexer import Token

Permission = Literal["GRANT", "DENY", "REVOKE"]
OwnedKind = Literal["service", "certificate"]


@dataclass(frozen=True, slots=True)
class CreateUser:
    """CREATE USER; `ignored` names the clauses that an instance does not support, such as logins."""

    name: str
    ignored: str = ""


@dataclass(frozen=True, slots=True)
class DropUser:
    """DROP USER."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True, slots=True)
class CreateMasterKey:
    """CREATE MASTER KEY."""

    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AlterMasterKey:
    """ALTER MASTER KEY; `is_encrypted_by_service_key` states whether the master key opens automatically, with the service master key."""

    is_encrypted_by_service_key: bool


@dataclass(frozen=True, slots=True)
class OpenMasterKey:
    """OPEN MASTER KEY."""

    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DropMasterKey:
    """DROP MASTER KEY."""


@dataclass(frozen=True, slots=True)
class GivenKey:
    """A private key in a file or a binary constant; neither if only its password changes.

    Attributes:
        file: The file.
        binary: The key itself.
        password: The password that encrypts the file or constant; for BACKUP, the password with which to encrypt it.
        has_own_password: Whether a password will encrypt the key in the database, so that Service Broker cannot use it.
    """

    file: str | None = None
    binary: bytes | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    has_own_password: bool = False


@dataclass(frozen=True, slots=True)
class CreateCertificate:
    """CREATE CERTIFICATE, from a file or a binary constant, or self-signed; dates are unparsed text.

    `unsupported_source` is a source from which an instance cannot read a certificate. With `has_own_password`, a
    password encrypts the key of a self-signed certificate.
    """

    name: str
    owner: str | None = None
    file: str | None = None
    binary: bytes | None = None
    unsupported_source: str = ""
    key: GivenKey | None = None
    has_own_password: bool = False
    subject: str | None = None
    start_date: str | None = None
    expiry_date: str | None = None
    is_active: bool = True

    @property
    def is_self_signed(self) -> bool:
        """Whether the statement creates a new certificate, instead of reading one."""
        return self.file is None and self.binary is None and not self.unsupported_source

    @property
    def has_unusable_key(self) -> bool:
        """Whether there is a private key that Service Broker cannot use, because a password encrypts it."""
        return self.has_own_password if self.key is None else self.key.has_own_password


@dataclass(frozen=True, slots=True)
class AlterCertificate:
    """ALTER CERTIFICATE; None means not specified."""

    name: str
    is_active: bool | None = None
    key: GivenKey | None = None
    removes_key: bool = False


@dataclass(frozen=True, slots=True)
class BackupCertificate:
    """BACKUP CERTIFICATE."""

    name: str
    file: str
    key: GivenKey | None = None


@dataclass(frozen=True, slots=True)
class DropCertificate:
    """DROP CERTIFICATE."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateBinding:
    """CREATE REMOTE SERVICE BINDING."""

    name: str
    service: str
    user: str
    anonymous: bool = False


@dataclass(frozen=True, slots=True)
class AlterBinding:
    """ALTER REMOTE SERVICE BINDING; None means not specified."""

    name: str
    user: str | None = None
    anonymous: bool | None = None


@dataclass(frozen=True, slots=True)
class DropBinding:
    """DROP REMOTE SERVICE BINDING."""

    name: str


@dataclass(frozen=True, slots=True)
class SetPermission:
    """GRANT, DENY or REVOKE of SEND on a service, or of CONTROL (`by_control`), which includes SEND; `ignored` are other permissions."""

    permission: Permission
    service: str
    users: tuple[str, ...]
    by_control: bool = False
    ignored: str = ""


@dataclass(frozen=True, slots=True)
class SetOwner:
    """ALTER AUTHORIZATION ON SERVICE or ON CERTIFICATE."""

    kind: OwnedKind
    name: str
    user: str


MasterKeyStatement = CreateMasterKey | AlterMasterKey | OpenMasterKey | DropMasterKey
CertificateStatement = CreateCertificate | AlterCertificate | BackupCertificate | DropCertificate
SecurityStatement = (
    CreateUser
    | DropUser
    | MasterKeyStatement
    | CertificateStatement
    | CreateBinding
    | AlterBinding
    | DropBinding
    | SetPermission
    | SetOwner
)


BrokerOption = Literal["ENABLE_BROKER", "DISABLE_BROKER", "NEW_BROKER", "ERROR_BROKER_CONVERSATIONS"]


@dataclass(frozen=True, slots=True)
class RouteClauses:
    """The clauses of CREATE ROUTE and ALTER ROUTE; None means not specified."""

    service_name: str | None = None
    broker_instance: str | None = None
    lifetime: int | None = None
    address: str | None = None
    mirror_address: str | None = None


@dataclass(frozen=True, slots=True)
class CreateRoute:
    """CREATE ROUTE."""

    name: str
    clauses: RouteClauses


@dataclass(frozen=True, slots=True)
class AlterRoute:
    """ALTER ROUTE."""

    name: str
    clauses: RouteClauses


@dataclass(frozen=True, slots=True)
class DropRoute:
    """DROP ROUTE."""

    name: str


@dataclass(frozen=True, slots=True)
class UseDatabase:
    """USE."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateDatabase:
    """CREATE DATABASE; `is_attach` is set by FOR ATTACH, `files` by FILENAME."""

    name: str
    is_attach: bool
    option: BrokerOption | None
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterDatabase:
    """ALTER DATABASE ... SET or MODIFY NAME; the name None means CURRENT, and `other_options` do not concern the broker.

    ONLINE and OFFLINE set `is_online`, and are also among `other_options`.
    """

    name: str | None
    option: BrokerOption | None
    new_name: str | None
    other_options: tuple[str, ...] = ()
    honor_broker_priority: bool | None = None
    is_online: bool | None = None

    @property
    def ignored(self) -> str:
        """The options that have no effect in an instance."""
        return ", ".join(self.other_options)

    @property
    def is_only_availability(self) -> bool:
        """Whether the statement only makes the database available or unavailable."""
        return self.is_online is not None and (self.option, self.honor_broker_priority) == (None, None)


@dataclass(frozen=True, slots=True)
class DropDatabase:
    """DROP DATABASE."""

    names: tuple[str, ...]
    if_exists: bool


@dataclass(frozen=True, slots=True)
class RestoreDatabase:
    """RESTORE DATABASE."""

    name: str
    option: BrokerOption | None


@dataclass(frozen=True, slots=True)
class QueueName:
    """A queue with its schema; the database None means the current database."""

    database: str | None
    schema: str
    name: str


READERS_MAX: Final = 32_767
"""The largest MAX_QUEUE_READERS."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """The options of a queue; None means not specified. An empty `procedure` removes activation."""

    status: bool | None = None
    retention: bool | None = None
    activation: bool | None = None
    procedure: str | None = None
    max_queue_readers: int | None = None
    poison_message_handling: bool | None = None


@dataclass(frozen=True, slots=True)
class CreateQueue:
    """CREATE QUEUE."""

    queue: QueueName
    settings: QueueSettings = QueueSettings()


@dataclass(frozen=True, slots=True)
class AlterQueue:
    """ALTER QUEUE."""

    queue: QueueName
    settings: QueueSettings = QueueSettings()


@dataclass(frozen=True, slots=True)
class DropQueue:
    """DROP QUEUE."""

    queue: QueueName


@dataclass(frozen=True, slots=True)
class CreateService:
    """CREATE SERVICE; `contracts` are the accepted contracts, and the owner None means dbo."""

    name: str
    queue: QueueName
    contracts: tuple[str, ...] = ()
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class AlterService:
    """ALTER SERVICE; the queue None means unchanged."""

    name: str
    queue: QueueName | None
    add_contracts: tuple[str, ...] = ()
    drop_contracts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DropService:
    """DROP SERVICE."""

    name: str


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """The options of an endpoint; None means not specified. `ip` is `ALL` or an IP address."""

    port: int | None = None
    ip: str | None = None
    forwarding: bool | None = None
    forward_size: int | None = None
    state: str | None = None


_Settings = TypeVar("_Settings", QueueSettings, EndpointSettings)


def merge_settings(before: _Settings, given: _Settings) -> _Settings:
    """Returns the settings in `before`, replaced by those that a statement specifies."""
    return replace(
        before, **{one.name: value for one in fields(given) if (value := getattr(given, one.name)) is not None}
    )


@dataclass(frozen=True, slots=True)
class CreateEndpoint:
    """CREATE ENDPOINT ... FOR SERVICE_BROKER."""

    name: str
    settings: EndpointSettings


@dataclass(frozen=True, slots=True)
class AlterEndpoint:
    """ALTER ENDPOINT; without FOR, the endpoint may be of another kind."""

    name: str
    settings: EndpointSettings
    has_for_clause: bool


@dataclass(frozen=True, slots=True)
class DropEndpoint:
    """DROP ENDPOINT."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateMessageType:
    """CREATE MESSAGE TYPE; `validation` is the T-SQL keyword."""

    name: str
    validation: str
    collection: str | None = None
    """The schema collection of VALID_XML."""


@dataclass(frozen=True, slots=True)
class AlterMessageType:
    """ALTER MESSAGE TYPE."""

    name: str
    validation: str
    collection: str | None = None


@dataclass(frozen=True, slots=True)
class DropMessageType:
    """DROP MESSAGE TYPE."""

    name: str


@dataclass(frozen=True, slots=True)
class CreateContract:
    """CREATE CONTRACT; each message type with INITIATOR, TARGET or ANY."""

    name: str
    messages: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class DropContract:
    """DROP CONTRACT."""

    name: str


LEVELS: Final = range(1, 11)
"""The levels of a priority."""
DEFAULT_LEVEL: Final = 5


@dataclass(frozen=True, slots=True)
class PrioritySettings:
    """The options of a priority: `contract`, `local_service`, `remote_service`, `level`; None means ANY or DEFAULT."""

    options: tuple[tuple[str, str | int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class CreatePriority:
    """CREATE BROKER PRIORITY."""

    name: str
    settings: PrioritySettings


@dataclass(frozen=True, slots=True)
class AlterPriority:
    """ALTER BROKER PRIORITY."""

    name: str
    settings: PrioritySettings


@dataclass(frozen=True, slots=True)
class DropPriority:
    """DROP BROKER PRIORITY."""

    name: str


Tokens = tuple[Token, ...]
"""An expression, which is evaluated when its statement runs."""


@dataclass(slots=True)
class ParsedStatement:
    """A statement with its place in the script."""

    statement: Statement
    subject: str
    start: int
    end: int
    verb: str | None = None
    """The verb and noun of a statement that a script runs, such as `CREATE ROUTE`; None for control flow and other statements."""
    annotations: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Branch:
    """The condition of an IF, and the statement that it guards."""

    condition: Tokens = field(repr=False)
    body: tuple[ParsedStatement, ...]


@dataclass(frozen=True, slots=True)
class If:
    """IF with its ELSE IF and ELSE."""

    branches: tuple[Branch, ...]
    otherwise: tuple[ParsedStatement, ...] = ()


@dataclass(frozen=True, slots=True)
class While:
    """WHILE."""

    condition: Tokens = field(repr=False)
    body: tuple[ParsedStatement, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """BEGIN ... END, or TRY ... CATCH; `handler` is the CATCH part, which runs after an error; None without one."""

    body: tuple[ParsedStatement, ...]
    handler: tuple[ParsedStatement, ...] | None = None


@dataclass(frozen=True, slots=True)
class Assign:
    """DECLARE, SET or SELECT of variables: the name, operator and value of each; the value None means NULL."""

    assignments: tuple[tuple[str, str, Tokens | None], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class ExecuteText:
    """EXEC ('...') or sp_executesql; `parameters` are the names and values of the parameters of sp_executesql."""

    text: Tokens = field(repr=False)
    database: str | None = None
    declarations: Tokens = field(default=(), repr=False)
    parameters: tuple[tuple[str | None, Tokens], ...] = field(default=(), repr=False)
    is_remote: bool = False


@dataclass(frozen=True, slots=True)
class CallProcedure:
    """EXEC of a procedure; `changed_variables` are variables that the procedure may change, and `text` is a text that it executes."""

    name: str
    changed_variables: tuple[str, ...] = ()
    text: Tokens = field(default=(), repr=False)
    is_remote: bool = False


@dataclass(frozen=True, slots=True)
class DefineModule:
    """CREATE or ALTER PROCEDURE, FUNCTION, TRIGGER or VIEW; `contained` are the known statements in it, and fragments of statements in its texts.

    `misplaced` are known statements that were probably meant to follow the module, because no GO separates them.
    """

    kind: str
    name: str
    contained: tuple[str, ...] = ()
    misplaced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TransactionControl:
    """BEGIN, COMMIT, ROLLBACK or SAVE TRANSACTION."""

    action: Literal["BEGIN", "COMMIT", "ROLLBACK", "SAVE"]


@dataclass(frozen=True, slots=True)
class SetNoexec:
    """SET NOEXEC."""

    is_on: bool


@dataclass(frozen=True, slots=True)
class ReturnOrThrow:
    """RETURN, which ends the batch, or THROW, which ends it with an error."""

    is_throw: bool = False


@dataclass(frozen=True, slots=True)
class Goto:
    """GOTO."""

    label: str


@dataclass(frozen=True, slots=True)
class Label:
    """A label, to which GOTO jumps."""

    name: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A statement that does not concern Service Broker.

    `changed_variables` are the variables, temporary tables and cursors that the statement may change, and `holds` are
    the fragments of statements in texts that it may store in them.
    """

    kind: str
    """The first words, by which statements are counted."""
    changed_variables: tuple[str, ...] = ()
    created: tuple[str, str] | None = None
    """The kind and name of an object that the statement creates, such as a table."""
    holds: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unknown:
    """A statement that does not exist in T-SQL."""

    reason: str
    number: int


ControlFlow = (
    If
    | While
    | Block
    | Assign
    | ExecuteText
    | CallProcedure
    | DefineModule
    | TransactionControl
    | SetNoexec
    | ReturnOrThrow
    | Goto
    | Label
)


Statement = (
    CreateRoute
    | AlterRoute
    | DropRoute
    | UseDatabase
    | CreateDatabase
    | AlterDatabase
    | DropDatabase
    | RestoreDatabase
    | CreateQueue
    | AlterQueue
    | DropQueue
    | CreateService
    | AlterService
    | DropService
    | CreateEndpoint
    | AlterEndpoint
    | DropEndpoint
    | CreateMessageType
    | AlterMessageType
    | DropMessageType
    | CreateContract
    | DropContract
    | CreatePriority
    | AlterPriority
    | DropPriority
    | SecurityStatement
    | ControlFlow
    | Skipped
    | Unknown
)


def walk(parsed: Iterable[ParsedStatement]) -> Iterator[ParsedStatement]:
    """Yields statements and all statements nested in them, in the order of the script."""
    for one in parsed:
        yield one
        match one.statement:
            case If(branches, otherwise):
                for branch in branches:
                    yield from walk(branch.body)
                yield from walk(otherwise)
            case While(_, body):
                yield from walk(body)
            case Block(body, handler):
                yield from walk(body)
                yield from walk(handler or ())
