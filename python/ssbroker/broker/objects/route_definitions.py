"""What stands in a database, made, changed and dropped by method: routes and priorities."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from typing import Concatenate, ParamSpec

from ssbroker import guids, options
from ssbroker.broker.objects import priorities, routes
from ssbroker.broker.objects.arguments import check_numbers, check_texts
from ssbroker.broker.objects.priorities import DEFAULT_LEVEL
from ssbroker.ddl.statements import Clauses
from ssbroker.store import object_changes as changes
from ssbroker.store.objects import Objects
from ssbroker.store.sqlite import Connection

Options = ParamSpec("Options")


class RouteDefinitions(ABC):
    """The methods that say where messages go, and which go first."""

    @abstractmethod
    def change(
        self,
        what: Callable[Concatenate[Connection, Objects, Options], object],
        *args: Options.args,
        **kwargs: Options.kwargs,
    ) -> None:
        """Changes the objects in a transaction of its own."""

    @abstractmethod
    def now(self) -> datetime:
        """The current moment."""

    def create_route(
        self,
        name: str,
        *,
        address: str,
        service_name: str | None = None,
        broker_instance: uuid.UUID | str | bytes | None = None,
        lifetime: int | None = None,
        mirror_address: str | None = None,
    ) -> None:
        """Makes a route.

        Args:
            name: Its name.
            address: `TCP://host:port`, `LOCAL` or `TRANSPORT`.
            service_name: The service that it leads to; None is any.
            broker_instance: The broker id that it leads to; None is any.
            lifetime: The seconds until it expires; None is never.
            mirror_address: The address of the mirror.

        Raises:
            BrokerError: The name is taken, or CREATE ROUTE would refuse it; the number says why.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_route("Stock", service_name="//Stock", address="TCP://stock:4022", lifetime=3600)
            ...     instance.view("sys.routes", "Sales")["address"].to_pylist()
            ['LOCAL', 'TCP://stock:4022']
        """
        clauses = _clauses(service_name, broker_instance, lifetime, address, mirror_address)
        self.change(routes.create_route, name=name, clauses=clauses, now=self.now())

    def alter_route(
        self,
        name: str,
        *,
        address: str | None = None,
        service_name: str | None = None,
        broker_instance: uuid.UUID | str | bytes | None = None,
        lifetime: int | None = None,
        mirror_address: str | None = None,
    ) -> None:
        """Changes what is given of a route; the rest stays. The options are those of `create_route`.

        Args:
            name: Its name.
            address: `TCP://host:port`, `LOCAL` or `TRANSPORT`.
            service_name: The service that it leads to.
            broker_instance: The broker id that it leads to.
            lifetime: The seconds from now until it expires.
            mirror_address: The address of the mirror.

        Raises:
            BrokerError: There is none (15151), or ALTER ROUTE would refuse it; the number says why.
        """
        clauses = _clauses(service_name, broker_instance, lifetime, address, mirror_address)
        self.change(routes.alter_route, name=name, clauses=clauses, now=self.now())

    def drop_route(self, name: str) -> None:
        """Removes a route.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151).
        """
        self.change(routes.drop_route, name=name)

    def create_broker_priority(
        self,
        name: str,
        *,
        level: int = DEFAULT_LEVEL,
        contract: str | None = None,
        local_service: str | None = None,
        remote_service: str | None = None,
    ) -> None:
        """Makes a priority for conversations that begin from now on; of several that fit, the closest counts (fact 148).

        Args:
            name: Its name.
            level: 1 to 10; 10 goes first.
            contract: The contract of the conversations; None is any.
            local_service: Their service here; None is any.
            remote_service: Their far service; None is any.

        Raises:
            BrokerError: The name is taken, another is for the same conversations, or something is not there (15151).

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_broker_priority("Urgent", level=9, remote_service="//Stock")
            ...     instance.view("sys.conversation_priorities")["priority"].to_pylist()
            [9]
        """
        check_texts(contract=contract, local_service=local_service, remote_service=remote_service)
        check_numbers(level=level)
        said = [("level", level), ("contract", contract), ("local_service", local_service)]
        self.change(priorities.create_broker_priority, name=name, said=[*said, ("remote_service", remote_service)])

    def alter_broker_priority(self, name: str, *, level: int) -> None:
        """Changes a priority's level; conversations keep the one that they began with (B19).

        Args:
            name: Its name.
            level: 1 to 10.

        Raises:
            BrokerError: There is none (15151).
        """
        check_numbers(level=level)
        self.change(priorities.alter_broker_priority, name=name, said=[("level", level)])

    def drop_broker_priority(self, name: str) -> None:
        """Removes a priority.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151).
        """
        self.change(priorities.drop_broker_priority, name=name)

    def set_honor_broker_priority(self, *, is_on: bool) -> None:
        """Whether what waits is sent by the conversations' priorities (fact 150); off at first.

        Args:
            is_on: Whether it is.
        """
        self.change(_set_honor, is_on=options.flag(is_on, name="is_on"))


def _set_honor(connection: Connection, _: Objects, *, is_on: bool) -> None:
    changes.set_honor_broker_priority(connection, is_on=is_on)


def _clauses(
    service_name: str | None,
    broker_instance: uuid.UUID | str | bytes | None,
    lifetime: int | None,
    address: str | None,
    mirror_address: str | None,
) -> Clauses:
    check_texts(service_name=service_name, address=address, mirror_address=mirror_address)
    check_numbers(lifetime=lifetime)
    guid = broker_instance
    if isinstance(guid, bytes):
        guid = uuid.UUID(bytes=guids.as_bytes(guid, name="broker_instance"))
    return Clauses(service_name, None if guid is None else str(guid), lifetime, address, mirror_address)
