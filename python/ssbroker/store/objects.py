"""The objects of a database, read as immutable snapshots or one at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, TypeAlias, TypeVar

from ssbroker import _core
from ssbroker.store import security
from ssbroker.store.mirroring import Role
from ssbroker.store.security import OWNER, Principal, Security
from ssbroker.store.sqlite import Connection, only_row

Validation = Literal["N", "E", "X"]
"""NONE, EMPTY or WELL_FORMED_XML (facts 138 and 154)."""

DEFAULT_SCHEMA: Final = "dbo"


@dataclass(frozen=True, slots=True)
class Broker:
    """What a database says of itself (B25); `attached_to` is the instance that has it (B26), the rest its place in a pair (N25)."""

    service_broker_guid: bytes
    is_broker_enabled: bool
    is_honor_broker_priority_on: bool
    attached_to: bytes | None = None
    mirroring_role: Role = "principal"
    mirroring_number: int = 0

    @property
    def is_delivering(self) -> bool:
        """Whether the database sends and takes messages: its broker is enabled, and it is no mirror copy (fact 191)."""
        return self.is_broker_enabled and self.mirroring_role == "principal"


@dataclass(frozen=True, slots=True)
class MessageType:
    """A row of sys.service_message_types."""

    message_type_id: int
    name: str
    validation: Validation


@dataclass(frozen=True, slots=True)
class ContractMessage:
    """Who may send a message type under a contract."""

    message_type_id: int
    is_sent_by_initiator: bool
    is_sent_by_target: bool


@dataclass(frozen=True, slots=True)
class Contract:
    """A row of sys.service_contracts, with its message types by their ids."""

    service_contract_id: int
    name: str
    messages: Mapping[int, ContractMessage]


@dataclass(frozen=True, slots=True)
class Queue:
    """A row of sys.service_queues (fact 157)."""

    queue_id: int
    schema_name: str
    name: str
    is_receive_enabled: bool = True
    is_enqueue_enabled: bool = True
    is_retention_enabled: bool = False
    is_activation_enabled: bool = False
    activation_procedure: str | None = None
    max_readers: int = 0
    is_poison_message_handling_enabled: bool = True


@dataclass(frozen=True, slots=True)
class Service:
    """A row of sys.services, with the ids of the contracts that it accepts as a target, and its owner."""

    service_id: int
    name: str
    queue_id: int
    contracts: frozenset[int]
    principal_id: int = OWNER


@dataclass(frozen=True, slots=True)
class Route:
    """A row of sys.routes; `lifetime` is the moment of expiry in microseconds since 1970, UTC."""

    route_id: int
    name: str
    remote_service_name: str | None
    broker_instance: bytes | None
    lifetime: int | None
    address: str
    mirror_address: str | None


@dataclass(frozen=True, slots=True)
class Priority:
    """A row of sys.conversation_priorities; None is ANY (facts 147, 148)."""

    priority_id: int
    name: str
    service_contract_id: int | None
    local_service_id: int | None
    remote_service_name: str | None
    priority: int


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """The Service Broker endpoint of an instance, which stands in msdb (facts 171, 173)."""

    name: str
    state: str
    port: int
    ip: str
    is_message_forwarding_enabled: bool
    message_forwarding_size: int


@dataclass(frozen=True)
class Objects:
    """All objects of one database at one moment.

    Attributes:
        version: Never twice the same for different objects of a database, not even where a change was rolled back.
        broker: The database itself.
        message_types: By name; likewise contracts, services, routes and priorities.
        queues: By schema and name.
        endpoint: The instance's endpoint; None where there is none, and in all databases but msdb.
        security: Who is known here, and what may be believed of them.
    """

    version: int
    broker: Broker
    message_types: Mapping[str, MessageType]
    contracts: Mapping[str, Contract]
    queues: Mapping[tuple[str, str], Queue]
    services: Mapping[str, Service]
    routes: Mapping[str, Route]
    priorities: Mapping[str, Priority]
    endpoint: BrokerEndpoint | None = None
    security: Security = field(default_factory=Security)

    @cached_property
    def message_types_by_id(self) -> Mapping[int, MessageType]:
        """The message types by their ids."""
        return {kind.message_type_id: kind for kind in self.message_types.values()}

    @cached_property
    def contracts_by_id(self) -> Mapping[int, Contract]:
        """The contracts by their ids."""
        return {contract.service_contract_id: contract for contract in self.contracts.values()}

    @cached_property
    def queues_by_id(self) -> Mapping[int, Queue]:
        """The queues by their ids."""
        return {queue.queue_id: queue for queue in self.queues.values()}

    @cached_property
    def services_by_id(self) -> Mapping[int, Service]:
        """The services by their ids."""
        return {service.service_id: service for service in self.services.values()}

    def services_of(self, queue: Queue) -> tuple[Service, ...]:
        """The services whose messages arrive in a queue."""
        return tuple(service for service in self.services.values() if service.queue_id == queue.queue_id)


def version_of(connection: Connection) -> int:
    """The version of the objects as this connection sees them."""
    return connection.statements.catalog_version()


def load(connection: Connection) -> Objects:
    """Reads the objects as this connection sees them, in the order of their ids."""
    version, broker = load_broker(connection)
    message_types = [MessageType(*row) for row in connection.execute(MESSAGE_TYPES)]
    queues = [queue_of(*row) for row in connection.execute(QUEUES)]
    routes = [Route(*row) for row in connection.execute(ROUTES)]
    priorities = [Priority(*row) for row in connection.execute(PRIORITIES)]
    return Objects(
        version=version,
        broker=broker,
        message_types={kind.name: kind for kind in message_types},
        contracts=_contracts(connection),
        queues={(queue.schema_name, queue.name): queue for queue in queues},
        services=_services(connection),
        routes={route.name: route for route in routes},
        priorities={priority.name: priority for priority in priorities},
        endpoint=load_endpoint(connection),
        security=security.load(connection),
    )


MESSAGE_TYPES: Final = "SELECT message_type_id, name, validation FROM ssb_message_types ORDER BY message_type_id"
CONTRACTS: Final = "SELECT service_contract_id, name FROM ssb_contracts ORDER BY service_contract_id"
QUEUES: Final = """
    SELECT queue_id, schema_name, name, is_receive_enabled, is_enqueue_enabled, is_retention_enabled,
        is_activation_enabled, activation_procedure, max_readers, is_poison_message_handling_enabled
    FROM ssb_queues ORDER BY queue_id"""
SERVICES: Final = "SELECT service_id, name, queue_id, principal_id FROM ssb_services ORDER BY service_id"
ROUTES: Final = """
    SELECT route_id, name, remote_service_name, broker_instance, lifetime, address, mirror_address
    FROM ssb_routes ORDER BY route_id"""
PRIORITIES: Final = """
    SELECT priority_id, name, service_contract_id, local_service_id, remote_service_name, priority
    FROM ssb_conversation_priorities ORDER BY priority_id"""
_BROKER: Final = """
    SELECT service_broker_guid, is_broker_enabled, is_honor_broker_priority_on, attached_to, mirroring_role, mirroring_number,
        catalog_version
    FROM ssb_database"""
_ENDPOINT: Final = """
    SELECT name, state, port, ip, is_message_forwarding_enabled, message_forwarding_size
    FROM ssb_service_broker_endpoint"""


def queue_of(
    number: int,
    schema: str,
    name: str,
    receive: int,
    enqueue: int,
    retain: int,
    active: int,
    procedure: str | None,
    most: int,
    poison: int,
) -> Queue:
    """A queue of its columns."""
    states = bool(receive), bool(enqueue), bool(retain), bool(active)
    return Queue(number, schema, name, *states, procedure, most, bool(poison))


def load_broker(connection: Connection) -> tuple[int, Broker]:
    """The version of the objects, and what the database says of itself."""
    guid, enabled, honor, attached_to, role, number, version = only_row(connection, _BROKER)
    return version, Broker(guid, bool(enabled), bool(honor), attached_to, role, number)


def load_endpoint(connection: Connection) -> BrokerEndpoint | None:
    """The instance's endpoint, in msdb."""
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'ssb_service_broker_endpoint'").get is None:
        return None
    row = connection.execute(_ENDPOINT).get
    if row is None:
        return None
    name, state, port, ip, forwarding, size = row
    return BrokerEndpoint(name, state, port, ip, bool(forwarding), size)


def _contracts(connection: Connection) -> dict[str, Contract]:
    messages: dict[int, dict[int, ContractMessage]] = {}
    for contract, kind, initiator, target in connection.execute(
        "SELECT service_contract_id, message_type_id, is_sent_by_initiator, is_sent_by_target FROM ssb_contract_messages"
    ):
        messages.setdefault(contract, {})[kind] = ContractMessage(kind, bool(initiator), bool(target))
    rows = connection.execute(CONTRACTS)
    return {name: Contract(number, name, messages.get(number, {})) for number, name in rows}


def _services(connection: Connection) -> dict[str, Service]:
    contracts: dict[int, set[int]] = {}
    for service, contract in connection.execute("SELECT service_id, service_contract_id FROM ssb_service_contracts"):
        contracts.setdefault(service, set()).add(contract)
    return {
        name: Service(number, name, queue, frozenset(contracts.get(number, ())), owner)
        for number, name, queue, owner in connection.execute(SERVICES)
    }


Key = TypeVar("Key")
Found = TypeVar("Found")
_NAME: Final = ("name",)


def sight(connection: Connection) -> Objects:
    """The objects as this connection sees them; what it changes is seen at once, but for the database itself and its master key.

    Args:
        connection: The database, locked.

    Returns:
        The objects. Those of a kind are read by their name, or all together.
    """
    version, broker = load_broker(connection)
    return Objects(
        version=version,
        broker=broker,
        message_types=_Rows[str, MessageType](connection, MESSAGE_TYPES, _NAME, MessageType),
        contracts=_Rows[str, Contract](connection, CONTRACTS, _NAME, _contract_of(connection)),
        queues=_Rows[tuple[str, str], Queue](connection, QUEUES, ("schema_name", "name"), queue_of),
        services=_Rows[str, Service](connection, SERVICES, _NAME, _service_of(connection)),
        routes=_Rows[str, Route](connection, ROUTES, _NAME, Route),
        priorities=_Rows[str, Priority](connection, PRIORITIES, _NAME, Priority),
        endpoint=load_endpoint(connection),
        security=_SeenSecurity(
            _Rows[str, Principal](connection, security.PRINCIPALS, _NAME, Principal),
            _Rows[str, security.Certificate](connection, security.CERTIFICATES, _NAME, security.certificate_of),
            _Rows[str, security.Binding](connection, security.BINDINGS, _NAME, security.binding_of),
            _Rows[tuple[int, int], security.PermissionState](
                connection,
                security.PERMISSIONS,
                ("service_id", "principal_id"),
                lambda _service, _principal, state: state,
            ),
            security.load_master_key(connection),
            fingerprints=_Rows[bytes, security.Certificate](
                connection, security.CERTIFICATES, ("fingerprint",), security.certificate_of
            ),
            services=_Rows[str, security.Binding](
                connection, security.BINDINGS, ("remote_service_name",), security.binding_of
            ),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _SeenSecurity(Security):
    """What is asked for by another key than its name is looked up as well: by walking through all, each binding took longer than the one before."""

    fingerprints: Mapping[bytes, security.Certificate]
    services: Mapping[str, security.Binding]

    @property
    def by_fingerprint(self) -> Mapping[bytes, security.Certificate]:
        """The certificates by their fingerprints."""
        return self.fingerprints

    @property
    def by_service(self) -> Mapping[str, security.Binding]:
        """The bindings by their services."""
        return self.services


class _Rows(Mapping[Key, Found]):
    """The objects of one kind.

    Args:
        connection: Whose sight counts.
        select: What reads them all.
        keys: The columns that tell them apart.
        read: Makes one of its columns.
    """

    def __init__(self, connection: Connection, select: str, keys: tuple[str, ...], read: Callable[..., Found]) -> None:
        self._connection: Final = connection
        self._select: Final = select
        self._keys: Final = keys
        self._read: Final = read

    def __getitem__(self, key: Key) -> Found:
        where = " AND ".join(f"{column} = ?" for column in self._keys)
        values = key if isinstance(key, tuple) else (key,)
        # A name of this library, and the columns too.
        row: Any = self._connection.execute(f"SELECT * FROM ({self._select}) WHERE {where}", values).fetchone()  # noqa: S608
        if row is None:
            raise KeyError(key)
        return self._read(*row)

    def __iter__(self) -> Iterator[Key]:
        columns = ", ".join(self._keys)
        rows: list[Any] = self._connection.execute(f"SELECT {columns} FROM ({self._select})").fetchall()  # noqa: S608
        return iter([row if len(self._keys) > 1 else row[0] for row in rows])

    def __len__(self) -> int:
        number: int = self._connection.execute(f"SELECT count(*) FROM ({self._select})").get  # noqa: S608
        return number

    def values(self) -> ValuesView[Found]:
        """All of them, read at once."""
        rows: list[Any] = self._connection.execute(self._select).fetchall()
        return dict(enumerate(self._read(*row) for row in rows)).values()


def _contract_of(connection: Connection) -> Callable[[int, str], Contract]:
    def read(number: int, name: str) -> Contract:
        rows: list[Any] = connection.execute(
            "SELECT message_type_id, is_sent_by_initiator, is_sent_by_target FROM ssb_contract_messages "
            "WHERE service_contract_id = ?",
            (number,),
        ).fetchall()
        messages = {kind: ContractMessage(kind, bool(initiator), bool(target)) for kind, initiator, target in rows}
        return Contract(number, name, messages)

    return read


def _service_of(connection: Connection) -> Callable[[int, str, int, int], Service]:
    def read(number: int, name: str, queue: int, owner: int) -> Service:
        rows: list[Any] = connection.execute(
            "SELECT service_contract_id FROM ssb_service_contracts WHERE service_id = ?", (number,)
        ).fetchall()
        return Service(number, name, queue, frozenset(contract for (contract,) in rows), owner)

    return read


Picture: TypeAlias = "_core.Picture"
"""What the native statements are given with each message; other rooms name it without importing the module."""


def picture(objects: Objects, staying: Collection[str], *, is_name: Callable[[str], bool]) -> Picture:
    """The picture of objects.

    Args:
        objects: What stands in the database.
        staying: Those of its services that no route leads away from (B10).
        is_name: Whether a text, given as the name of a queue, means the one of `dbo` that is called so.

    Returns:
        The picture.
    """
    return _core.Picture(
        broker_instance=objects.broker.service_broker_guid,
        is_delivering=objects.broker.is_delivering,
        queues=[
            (
                one.queue_id,
                one.is_receive_enabled,
                one.is_enqueue_enabled,
                one.is_retention_enabled,
                one.name if one.schema_name == DEFAULT_SCHEMA and is_name(one.name) else None,
            )
            for one in objects.queues.values()
        ],
        services=[(one.service_id, one.name, one.queue_id) for one in objects.services.values()],
        contracts=[
            (
                one.service_contract_id,
                one.name,
                [(kind, rule.is_sent_by_initiator, rule.is_sent_by_target) for kind, rule in one.messages.items()],
            )
            for one in objects.contracts.values()
        ],
        message_types=[(one.message_type_id, one.name, one.validation) for one in objects.message_types.values()],
        staying=list(staying),
    )
