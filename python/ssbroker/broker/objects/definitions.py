"""What stands in a database, made, changed and dropped by method: message types, contracts, queues, services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ssbroker import options
from ssbroker.broker.objects import message_types, queues
from ssbroker.broker.objects.arguments import check_flags, check_numbers, check_texts
from ssbroker.broker.objects.message_types import SentBy, ValidationName
from ssbroker.broker.objects.security_definitions import SecurityDefinitions
from ssbroker.ddl.statements import QueueSettings
from ssbroker.exceptions import OptionError
from ssbroker.protocol.names import DEFAULT


class Definitions(SecurityDefinitions):
    """The methods of a database that define its objects, each in a transaction of its own."""

    def create_message_type(self, name: str, *, validation: ValidationName = "NONE") -> None:
        """Makes a message type.

        Args:
            name: Its name.
            validation: What the body has to be: anything, empty, or well-formed XML.

        Raises:
            BrokerError: The name is taken, or none.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_message_type("//order", validation="WELL_FORMED_XML")
            ...     instance.view("sys.service_message_types", "Sales")["name"].to_pylist()[-1]
            '//order'
        """
        self.change(message_types.create_message_type, name=name, validation=validation)

    def alter_message_type(self, name: str, *, validation: ValidationName) -> None:
        """Changes what a message type demands of bodies, for the messages that arrive from now on.

        Args:
            name: Its name.
            validation: What the body has to be.

        Raises:
            BrokerError: There is none (15151), or it is the system's (9663).
        """
        self.change(message_types.alter_message_type, name=name, validation=validation)

    def drop_message_type(self, name: str) -> None:
        """Removes a message type.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151), it is the system's (9663), or a contract or a message in a queue is of it.
        """
        self.change(message_types.drop_message_type, name=name)

    def create_contract(self, name: str, messages: Mapping[str, SentBy]) -> None:
        """Makes a contract.

        Args:
            name: Its name.
            messages: Who sends each message type: the INITIATOR, the TARGET or ANY of them.

        Raises:
            BrokerError: The name is taken, a message type is not there (15151), or the initiator could send nothing (8492).

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_message_type("//order")
            ...     sales.create_contract("//ordering", {"//order": "INITIATOR", "DEFAULT": "ANY"})
            ...     instance.view("sys.service_contracts", "Sales")["name"].to_pylist()[-1]
            '//ordering'
        """
        given: object = messages
        if not isinstance(given, Mapping):
            raise OptionError(f"messages: expected message types, each with who sends it; got {given!r:.80}")
        self.change(message_types.create_contract, name=name, messages=messages)

    def drop_contract(self, name: str) -> None:
        """Removes a contract.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151), it is the system's (9663), or a service, priority or open conversation uses it.
        """
        self.change(message_types.drop_contract, name=name)

    def create_queue(
        self,
        name: str,
        *,
        status: bool = True,
        retention: bool = False,
        activation: bool | None = None,
        procedure: str | None = None,
        max_queue_readers: int | None = None,
        poison_message_handling: bool = True,
    ) -> None:
        """Makes a queue.

        Args:
            name: Its name, with its schema if that is not `dbo`: `Orders`, `shop.Orders`, `[shop].[Orders.New]`.
            status: Whether it takes and gives messages.
            retention: Whether messages stay until their conversation ends.
            activation: Whether its readers are started when messages wait; left out, whether they have a procedure (B23).
            procedure: What its readers are called.
            max_queue_readers: How many of them run at once; left out, one where they have a procedure.
            poison_message_handling: Whether five rollbacks in a row turn it off.

        Raises:
            BrokerError: The name is taken (2714), or none.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders", retention=True)
            ...     instance.view("sys.service_queues")["is_retention_enabled"].to_pylist()
            [True]
        """
        settings = QueueSettings(status, retention, activation, procedure, max_queue_readers, poison_message_handling)
        _check(settings)
        self.change(queues.create_queue, name=name, settings=settings)

    def alter_queue(
        self,
        name: str,
        *,
        status: bool | None = None,
        retention: bool | None = None,
        activation: bool | None = None,
        procedure: str | None = None,
        max_queue_readers: int | None = None,
        poison_message_handling: bool | None = None,
    ) -> None:
        """Changes what is given of a queue; the rest stays, but for what `create_queue` says of a queue that gets its first procedure.

        Args:
            name: Its name.
            status: Whether it takes and gives messages; what arrived while it was off enters it now (P34).
            retention: Whether messages stay until their conversation ends.
            activation: Whether its readers are started when messages wait.
            procedure: What its readers are called.
            max_queue_readers: How many of them run at once.
            poison_message_handling: Whether five rollbacks in a row turn it off.

        Raises:
            BrokerError: There is none (15151).

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.alter_queue("Orders", status=False)
            ...     instance.view("sys.service_queues")["is_receive_enabled"].to_pylist()
            [False]
        """
        settings = QueueSettings(status, retention, activation, procedure, max_queue_readers, poison_message_handling)
        _check(settings)
        self.change(queues.alter_queue, name=name, settings=settings)

    def drop_queue(self, name: str) -> None:
        """Removes a queue.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151), or a service uses it.
        """
        self.change(queues.drop_queue, name=name)

    def create_service(
        self, name: str, *, queue: str, contracts: Sequence[str] = (DEFAULT,), owner: str | None = None
    ) -> None:
        """Makes a service.

        Args:
            name: Its name.
            queue: Where its messages arrive.
            contracts: What others may begin conversations with it on; none, and it can only begin them itself.
            owner: The user to whom it belongs, with whose certificates its dialogs are secured; None is dbo.

        Raises:
            BrokerError: The name is taken, or queue or contract is not there (15151).

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_queue("Orders")
            ...     sales.create_service("//Orders", queue="Orders")
            ...     instance.view("sys.services")["name"].to_pylist()
            ['//Orders']
        """
        accepted = options.texts(contracts, name="contracts")
        self.change(queues.create_service, name=name, queue=queue, contracts=accepted, owner=owner)

    def alter_service(
        self,
        name: str,
        *,
        queue: str | None = None,
        add_contracts: Sequence[str] = (),
        drop_contracts: Sequence[str] = (),
    ) -> None:
        """Moves a service with its messages to another queue, and changes its contracts; conversations go on.

        Args:
            name: Its name.
            queue: Where its messages arrive from now on; None leaves it.
            add_contracts: What it accepts besides.
            drop_contracts: What new conversations may not begin on any more.

        Raises:
            BrokerError: Service, queue or contract is not there (15151), or is had already.
        """
        added = options.texts(add_contracts, name="add_contracts")
        dropped = options.texts(drop_contracts, name="drop_contracts")
        self.change(queues.alter_service, name=name, queue=queue, add_contracts=added, drop_contracts=dropped)

    def drop_service(self, name: str) -> None:
        """Removes a service.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151), or a priority or open conversation uses it.
        """
        self.change(queues.drop_service, name=name)


def _check(settings: QueueSettings) -> None:
    check_flags(
        status=settings.status,
        retention=settings.retention,
        activation=settings.activation,
        poison_message_handling=settings.poison_message_handling,
    )
    check_texts(procedure=settings.procedure)
    check_numbers(max_queue_readers=settings.max_queue_readers)
