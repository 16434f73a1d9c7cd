"""The objects of a database, read as immutable snapshots or on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from ssbroker import _core
from ssbroker._well_known import CONFIGURATION_SERVICE, WORK_QUEUE_CONTRACT
from ssbroker.store import security
from ssbroker.store.conversation_endpoints import ConversationEndpoint
from ssbroker.store.security import OWNER, Principal, Security
from ssbroker.store.sqlite import Connection, single_row

Validation = Literal["N", "E", "X"]
"""NONE, EMPTY or WELL_FORMED_XML."""

DEFAULT_SCHEMA: Final = "dbo"


Role = Literal["principal", "mirror"]


class MirroringState(NamedTuple):
    """The role of a database in a mirrored pair, and the number of its role changes."""

    role: Role
    """`principal` unless changed."""
    number: int
    """Number of failovers recorded in the database."""


@dataclass(frozen=True, slots=True)
class Broker:
    """The state of a database: its broker, the instance to which it is attached, and its mirroring role."""

    service_broker_guid: bytes
    is_broker_enabled: bool
    is_honor_broker_priority_on: bool
    attached_to: bytes | None = None
    mirroring_role: Role = "principal"
    mirroring_number: int = 0

    @property
    def is_delivering(self) -> bool:
        """Whether the database sends and receives messages: its broker is enabled, and it is not a mirror."""
        return self.is_broker_enabled and self.mirroring_role == "principal"


@dataclass(frozen=True, slots=True)
class MessageType:
    """A row of `sys.service_message_types`."""

    message_type_id: int
    name: str
    validation: Validation


@dataclass(frozen=True, slots=True)
class ContractMessage:
    """Which endpoint may send a message type under a contract."""

    message_type_id: int
    is_sent_by_initiator: bool
    is_sent_by_target: bool


@dataclass(frozen=True, slots=True)
class Contract:
    """A row of `sys.service_contracts`, with its message types by id."""

    service_contract_id: int
    name: str
    messages: Mapping[int, ContractMessage]


@dataclass(frozen=True, slots=True)
class Queue:
    """A row of `sys.service_queues`."""

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
    poison_queue_id: int | None = None
    """The queue to which conversation groups that fail again and again are moved; None if the queue is disabled instead."""


@dataclass(frozen=True, slots=True)
class Service:
    """A row of `sys.services`, with the ids of the contracts that it accepts as a target, and its owner."""

    service_id: int
    name: str
    queue_id: int
    contracts: frozenset[int]
    principal_id: int = OWNER


@dataclass(frozen=True, slots=True)
class Route:
    """A row of `sys.routes`; `lifetime` is the time of expiry in microseconds since 1970, UTC."""

    route_id: int
    name: str
    remote_service_name: str | None
    broker_instance: bytes | None
    lifetime: int | None
    address: str
    mirror_address: str | None


@dataclass(frozen=True, slots=True)
class Priority:
    """A row of `sys.conversation_priorities`; None means ANY."""

    priority_id: int
    name: str
    service_contract_id: int | None
    local_service_id: int | None
    remote_service_name: str | None
    priority: int


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    """Service Broker endpoint of an instance, stored in msdb."""

    name: str
    state: str
    port: int
    ip: str
    is_message_forwarding_enabled: bool
    message_forwarding_size: int


PRIORITY_DEFAULT: Final = 5
"""The priority of an endpoint without a matching broker priority."""


@dataclass(frozen=True)
class Objects:
    """Objects of a database at one version.

    Attributes:
        version: Unique for each state of the objects, even if a change is rolled back.
        broker: State of the database.
        message_types: Message types by name; contracts, services, routes and priorities are also by name.
        queues: Queues by schema and name.
        endpoint: The endpoint of the instance, in msdb; None if there is none, and in all other databases.
        security: Principals, certificates, bindings and permissions.
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
        """Message types by id."""
        return {kind.message_type_id: kind for kind in self.message_types.values()}

    @cached_property
    def contracts_by_id(self) -> Mapping[int, Contract]:
        """Contracts by id."""
        return {contract.service_contract_id: contract for contract in self.contracts.values()}

    @cached_property
    def queues_by_id(self) -> Mapping[int, Queue]:
        """Queues by id."""
        return {queue.queue_id: queue for queue in self.queues.values()}

    @cached_property
    def services_by_id(self) -> Mapping[int, Service]:
        """Services by id."""
        return {service.service_id: service for service in self.services.values()}

    @cached_property
    def services_routed_locally(self) -> frozenset[str]:
        """Services without a route to another instance, so that messages for them with the broker id of this database stay in this database.

        For these, every routing step that finds a route finds LOCAL (R11 to R16), and *Locate* finds exactly one enabled database with
        the broker id (R31, I7). So neither other databases nor the time can change the result.
        """
        routes = self.routes.values()
        if not self.broker.is_delivering or any(one.remote_service_name == CONFIGURATION_SERVICE for one in routes):
            return frozenset()
        routed = {
            one.remote_service_name for one in routes if one.mirror_address is not None or one.address.upper() != _LOCAL
        }
        return frozenset() if None in routed else frozenset(self.services.keys() - routed)

    def services_of(self, queue: Queue) -> tuple[Service, ...]:
        """Returns the services of a queue."""
        return tuple(service for service in self.services.values() if service.queue_id == queue.queue_id)

    def is_of_work_queue(self, endpoint: ConversationEndpoint) -> bool:
        """Returns whether an endpoint belongs to a conversation that a work queue has begun."""
        contract = self.contracts.get(WORK_QUEUE_CONTRACT)
        if contract is None or endpoint.service_contract_id != contract.service_contract_id:
            return False
        return endpoint.far_service == self.services_by_id[endpoint.service_id].name

    def priority_of_endpoint(self, *, service_contract_id: int, service_id: int, far_service: str) -> int:
        """Returns the priority of a new endpoint: the level of the most specific broker priority that matches."""
        best, best_level = -1, PRIORITY_DEFAULT
        for one in self.priorities.values():
            criteria = (
                (one.service_contract_id, service_contract_id),
                (one.local_service_id, service_id),
                (one.remote_service_name, far_service),
            )
            if any(expected not in (None, actual) for expected, actual in criteria):
                continue
            # A matching contract takes precedence over a matching local service, and this over a matching remote service.
            weight = sum(rank for rank, (expected, _) in zip((4, 2, 1), criteria, strict=True) if expected is not None)
            if weight > best:
                best, best_level = weight, one.priority
        return best_level


def version_of(connection: Connection) -> int:
    """Returns the current version of the objects."""
    return connection.statements.catalog_version()


def load(connection: Connection) -> Objects:
    """Reads all objects, in the order of their ids."""
    version, broker = load_broker(connection)
    message_types = [MessageType(*row) for row in connection.execute(MESSAGE_TYPES)]
    queues = [queue_from_row(*row) for row in connection.execute(QUEUES)]
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
        is_activation_enabled, activation_procedure, max_readers, is_poison_message_handling_enabled, poison_queue_id
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


def queue_from_row(
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
    poison_queue_id: int | None,
) -> Queue:
    """Creates a queue from the columns of a row."""
    states = bool(receive), bool(enqueue), bool(retain), bool(active)
    return Queue(number, schema, name, *states, procedure, most, bool(poison), poison_queue_id)


def load_broker(connection: Connection) -> tuple[int, Broker]:
    """Reads the version of the objects and the state of the database."""
    guid, enabled, honor, attached_to, role, number, version = single_row(connection, _BROKER)
    return version, Broker(guid, bool(enabled), bool(honor), attached_to, role, number)


def load_endpoint(connection: Connection) -> BrokerEndpoint | None:
    """Reads the endpoint of the instance; None except in msdb."""
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
Item = TypeVar("Item")
_NAME: Final = ("name",)


def lazy_objects(connection: Connection) -> Objects:
    """Returns a lazy view of the objects: an object is read when it is looked up, and all objects of a kind are read when they are iterated.

    Changes on the connection are visible immediately, with two exceptions: changes of the database row, the endpoint and the master key,
    and properties that were used before, such as `queues_by_id`. The connection must hold the write lock.
    """
    version, broker = load_broker(connection)
    return Objects(
        version=version,
        broker=broker,
        message_types=_LazyMapping[str, MessageType](connection, MESSAGE_TYPES, _NAME, MessageType),
        contracts=_LazyMapping[str, Contract](connection, CONTRACTS, _NAME, _contract_of(connection)),
        queues=_LazyMapping[tuple[str, str], Queue](connection, QUEUES, ("schema_name", "name"), queue_from_row),
        services=_LazyMapping[str, Service](connection, SERVICES, _NAME, _service_of(connection)),
        routes=_LazyMapping[str, Route](connection, ROUTES, _NAME, Route),
        priorities=_LazyMapping[str, Priority](connection, PRIORITIES, _NAME, Priority),
        endpoint=load_endpoint(connection),
        security=_LazySecurity(
            _LazyMapping[str, Principal](connection, security.PRINCIPALS, _NAME, Principal),
            _LazyMapping[str, security.Certificate](
                connection, security.CERTIFICATES, _NAME, security.certificate_from_row
            ),
            _LazyMapping[str, security.Binding](connection, security.BINDINGS, _NAME, security.binding_from_row),
            _LazyMapping[tuple[int, int], security.PermissionState](
                connection,
                security.PERMISSIONS,
                ("service_id", "principal_id"),
                lambda _service, _principal, state: state,
            ),
            security.load_master_key(connection),
            fingerprints=_LazyMapping[bytes, security.Certificate](
                connection, security.CERTIFICATES, ("fingerprint",), security.certificate_from_row
            ),
            services=_LazyMapping[str, security.Binding](
                connection, security.BINDINGS, ("remote_service_name",), security.binding_from_row
            ),
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _LazySecurity(Security):
    """Security objects that are also looked up by fingerprint and by service in SQL; scanning all rows would make each new object slower."""

    fingerprints: Mapping[bytes, security.Certificate]
    services: Mapping[str, security.Binding]

    @property
    def by_fingerprint(self) -> Mapping[bytes, security.Certificate]:
        """Certificates by fingerprint."""
        return self.fingerprints

    @property
    def by_service(self) -> Mapping[str, security.Binding]:
        """Bindings by remote service."""
        return self.services


class _LazyMapping(Mapping[Key, Item]):
    """Objects of one kind, read from the database on access.

    Args:
        connection: The connection that reads.
        select: The query for all objects.
        keys: Key columns.
        read: Creates an object from the columns of its row.
    """

    def __init__(self, connection: Connection, select: str, keys: tuple[str, ...], read: Callable[..., Item]) -> None:
        self._connection: Final = connection
        self._select: Final = select
        self._keys: Final = keys
        self._read: Final = read

    def __getitem__(self, key: Key) -> Item:
        where = " AND ".join(f"{column} = ?" for column in self._keys)
        values = key if isinstance(key, tuple) else (key,)
        # The query and the columns are constants of the library.
        row: Any = self._connection.execute(f"SELECT * FROM ({self._select}) WHERE {where}", values).fetchone()  # noqa: S608
        if row is None:
            raise KeyError(key)
        return self._read(*row)

    def __iter__(self) -> Iterator[Key]:
        columns = ", ".join(self._keys)
        rows: list[Any] = self._connection.execute(f"SELECT {columns} FROM ({self._select})").fetchall()  # noqa: S608
        return iter([row if len(self._keys) > 1 else row[0] for row in rows])

    def __len__(self) -> int:
        count: int = self._connection.execute(f"SELECT count(*) FROM ({self._select})").get  # noqa: S608
        return count

    def values(self) -> ValuesView[Item]:
        """Returns all objects, read by one query."""
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


_LOCAL: Final = "LOCAL"

NativeSnapshot: TypeAlias = "_core.MetadataSnapshot"
"""Snapshot of the objects for native statements; an alias, so that other packages can name it without importing the native module."""


def native_snapshot(objects: Objects, *, is_name: Callable[[str], bool]) -> NativeSnapshot:
    """Creates the snapshot of the objects that native statements use.

    Args:
        objects: The objects.
        is_name: Returns whether a text that names a queue without a schema is a valid name.
    """
    return _core.MetadataSnapshot(
        broker_instance=objects.broker.service_broker_guid,
        queues=[
            (
                item.queue_id,
                item.is_receive_enabled,
                item.is_enqueue_enabled,
                item.is_retention_enabled,
                item.name if item.schema_name == DEFAULT_SCHEMA and is_name(item.name) else None,
            )
            for item in objects.queues.values()
        ],
        services=[(item.service_id, item.name, item.queue_id) for item in objects.services.values()],
        contracts=[
            (
                item.service_contract_id,
                item.name,
                [(kind, rule.is_sent_by_initiator, rule.is_sent_by_target) for kind, rule in item.messages.items()],
            )
            for item in objects.contracts.values()
        ],
        message_types=[(item.message_type_id, item.name, item.validation) for item in objects.message_types.values()],
        services_routed_locally=list(objects.services_routed_locally),
    )
