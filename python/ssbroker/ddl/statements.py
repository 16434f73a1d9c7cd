"""The statements that say something about routing, as parsed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BrokerOption = Literal["ENABLE_BROKER", "DISABLE_BROKER", "NEW_BROKER", "ERROR_BROKER_CONVERSATIONS"]


@dataclass(frozen=True, slots=True)
class Clauses:
    """The clauses of CREATE ROUTE and ALTER ROUTE; None is not named."""

    service_name: str | None = None
    broker_instance: str | None = None
    lifetime: int | None = None
    address: str | None = None
    mirror_address: str | None = None


@dataclass(frozen=True, slots=True)
class CreateRoute:
    """CREATE ROUTE."""

    name: str
    clauses: Clauses


@dataclass(frozen=True, slots=True)
class AlterRoute:
    """ALTER ROUTE."""

    name: str
    clauses: Clauses


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
    """CREATE DATABASE; `attached` with FOR ATTACH."""

    name: str
    attached: bool
    option: BrokerOption | None


@dataclass(frozen=True, slots=True)
class AlterDatabase:
    """ALTER DATABASE ... SET or MODIFY NAME; the name None is CURRENT, `ignored` the options that don't matter here."""

    name: str | None
    option: BrokerOption | None
    new_name: str | None
    ignored: str


@dataclass(frozen=True, slots=True)
class DropDatabase:
    """DROP DATABASE."""

    names: tuple[str, ...]
    if_exists: bool


@dataclass(frozen=True, slots=True)
class QueueName:
    """A queue with its schema; the database None is the current one."""

    database: str | None
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class CreateQueue:
    """CREATE QUEUE."""

    queue: QueueName


@dataclass(frozen=True, slots=True)
class AlterQueue:
    """ALTER QUEUE."""

    queue: QueueName


@dataclass(frozen=True, slots=True)
class DropQueue:
    """DROP QUEUE."""

    queue: QueueName


@dataclass(frozen=True, slots=True)
class CreateService:
    """CREATE SERVICE."""

    name: str
    queue: QueueName


@dataclass(frozen=True, slots=True)
class AlterService:
    """ALTER SERVICE; the queue None stays."""

    name: str
    queue: QueueName | None


@dataclass(frozen=True, slots=True)
class DropService:
    """DROP SERVICE."""

    name: str


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """What an endpoint statement says; None is not named. `ip` is `ALL` or an IP address."""

    port: int | None = None
    ip: str | None = None
    forwarding: bool | None = None


@dataclass(frozen=True, slots=True)
class CreateEndpoint:
    """CREATE ENDPOINT ... FOR SERVICE_BROKER."""

    name: str
    settings: EndpointSettings


@dataclass(frozen=True, slots=True)
class AlterEndpoint:
    """ALTER ENDPOINT; without FOR it may be an endpoint of another kind."""

    name: str
    settings: EndpointSettings
    for_broker: bool


@dataclass(frozen=True, slots=True)
class DropEndpoint:
    """DROP ENDPOINT."""

    name: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """A statement that is not run; `holds` are the statements within it that would matter."""

    holds: tuple[str, ...] = ()


Statement = (
    CreateRoute
    | AlterRoute
    | DropRoute
    | UseDatabase
    | CreateDatabase
    | AlterDatabase
    | DropDatabase
    | CreateQueue
    | AlterQueue
    | DropQueue
    | CreateService
    | AlterService
    | DropService
    | CreateEndpoint
    | AlterEndpoint
    | DropEndpoint
    | Skipped
)
