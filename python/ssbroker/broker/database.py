"""A database of an instance: its broker id, its objects, its transactions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Final, NoReturn

from ssbroker._arguments import boolean, guid_bytes, string_list, utc_datetime
from ssbroker.broker import identity, object_definitions, principals
from ssbroker.broker.activation import Activation, Procedure
from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.databases import InstanceChange
from ssbroker.broker.object_definitions import DEFAULT_LEVEL, SentBy, ValidationName
from ssbroker.broker.principals import GivenCertificate
from ssbroker.broker.transaction import Transaction
from ssbroker.broker.validation import (
    check_bytes,
    check_flags,
    check_numbers,
    check_texts,
    existing,
    refusal,
)
from ssbroker.ddl.statements import BrokerOption, Clauses, QueueSettings
from ssbroker.exceptions import OptionError
from ssbroker.protocol.config import DEFAULT
from ssbroker.security.certificates import certificate_to_pem
from ssbroker.store import object_changes as changes
from ssbroker.store.objects import Objects, Role
from ssbroker.store.registry import MSDB_NAME
from ssbroker.store.sqlite import Connection


class Database:
    """A database of an open instance, as `Instance.database` and `Instance.create_database` return it.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
        ...     sales = instance.create_database("Sales")
        ...     sales.name, sales.path.name, sales.is_broker_enabled
        ('Sales', 'Sales.sqlite', True)
    """

    def __init__(self, context: DatabaseContext, activation: Activation) -> None:
        self._context: Final = context
        self._activation: Final = activation

    @property
    def name(self) -> str:
        """The name of the database."""
        return self._context.name

    @property
    def database_id(self) -> int:
        """The number of the database in its instance, as in `sys.databases`."""
        return self._context.database_id

    @property
    def path(self) -> Path:
        """The SQLite file of the database."""
        return self._context.file.path

    @property
    def service_broker_guid(self) -> uuid.UUID:
        """The broker id (I1)."""
        return uuid.UUID(bytes=self._context.objects().broker.service_broker_guid)

    @property
    def is_broker_enabled(self) -> bool:
        """Whether the database sends and receives messages (I2)."""
        return self._context.objects().broker.is_broker_enabled

    @property
    def mirroring_role(self) -> Role:
        """Whether the database is the principal of its mirrored pair, or the mirror (N25); without a pair it is the principal."""
        return self._context.objects().broker.mirroring_role

    def set_broker(self, option: BrokerOption) -> None:
        """Enables or disables the broker, with a new id or the old one (I4, I5, I6).

        Args:
            option: `ENABLE_BROKER` and `DISABLE_BROKER` keep id and conversations; `NEW_BROKER` gives a new id and ends every
                conversation here; `ERROR_BROKER_CONVERSATIONS` keeps the id and ends every conversation with an error at both ends.

        Raises:
            BrokerError: Another database of the instance is enabled under this id (9772, I7).

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     guid = sales.service_broker_guid
            ...     sales.set_broker("NEW_BROKER")
            ...     sales.service_broker_guid == guid
            False
        """
        instance = self._context.instance
        with InstanceChange(instance) as alteration:
            identity.set_broker(instance, alteration, self._context, option)

    def set_mirroring_role(self, role: Role, *, number: int | None = None) -> None:
        """Says what the database is in a mirrored pair (N25). It stands in the file, and travels with it.

        A mirror is not found by *Locate*, sends nothing and takes nothing. Whoever has a mirrored route sends to the one that says that it
        is the principal, and of two that say so to the one with the greater number (N24).

        Args:
            role: "principal" or "mirror".
            number: How often the role has changed hands; left out, one more than the file says where a mirror becomes the principal.
                Name it where the file does not know of the last failover, since it was not copied from the other one after that.

        Raises:
            OptionError: The role is neither, or the number is less than the file says.
            BrokerError: The database is msdb.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.set_mirroring_role("mirror")
            ...     sales.mirroring_role, instance.catalog().databases["is_broker_enabled"].to_pylist()
            ('mirror', [True, False])
        """
        if self.name == MSDB_NAME:
            raise refusal("msdb belongs to its instance, and cannot be mirrored")
        self._context.change(object_definitions.set_role, role=role, number=number)

    def transaction(self) -> Transaction:
        """A transaction of this database: the application's own tables and its conversations, committed together or not at all.

        Returns:
            The transaction, for one `with` block; nothing is locked before its first use.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
            ...     with instance.create_database("Sales").transaction() as t:
            ...         _ = t.connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        """
        return Transaction(self._context)

    def activate(self, queue: str, function: Procedure, *, max_queue_readers: int = 1) -> None:
        """Has this process call a function when messages wait in a queue and nobody receives them.

        The function is called with the database. It begins transactions of its own and receives until it finds the queue empty;
        when messages come later, it is called again. More run at once, up to the limit, while messages are left for them. One that
        raises has its transaction rolled back, and is called again when it is next needed.

        Args:
            queue: The queue; without a schema it is in `dbo`.
            function: The function.
            max_queue_readers: How many may run at once, each in a thread of its own.

        Raises:
            BrokerError: There is no such queue (15151).
            OptionError: `function` cannot be called, or the number is none from 0 to 32767.
        """
        self._activation.activate(self._context, queue, function, max_queue_readers=max_queue_readers)

    def deactivate(self, queue: str) -> None:
        """Ends what `activate` began: no further reader is started; those that run end by themselves.

        Args:
            queue: The queue; without a schema it is in `dbo`.

        Raises:
            BrokerError: There is no such queue (15151).
        """
        self._activation.deactivate(self._context, queue)

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
        self._context.change(object_definitions.create_message_type, name=name, validation=validation)

    def alter_message_type(self, name: str, *, validation: ValidationName) -> None:
        """Changes what a message type demands of bodies, for the messages that arrive from now on.

        Args:
            name: Its name.
            validation: What the body has to be.

        Raises:
            BrokerError: There is none (15151), or it is the system's (9663).
        """
        self._context.change(object_definitions.alter_message_type, name=name, validation=validation)

    def drop_message_type(self, name: str) -> None:
        """Removes a message type.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151), it is the system's (9663), or a contract or a message in a queue is of it.
        """
        self._context.change(object_definitions.drop_message_type, name=name)

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
        self._context.change(object_definitions.create_contract, name=name, messages=messages)

    def drop_contract(self, name: str) -> None:
        """Removes a contract.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151), it is the system's (9663), or a service, priority or open conversation uses it.
        """
        self._context.change(object_definitions.drop_contract, name=name)

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
        self._context.change(object_definitions.create_queue, name=name, settings=settings)

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
        self._context.change(object_definitions.alter_queue, name=name, settings=settings)

    def drop_queue(self, name: str) -> None:
        """Removes a queue.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151), or a service uses it.
        """
        self._context.change(object_definitions.drop_queue, name=name)

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
        accepted = string_list(contracts, name="contracts")
        self._context.change(object_definitions.create_service, name=name, queue=queue, contracts=accepted, owner=owner)

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
        added = string_list(add_contracts, name="add_contracts")
        dropped = string_list(drop_contracts, name="drop_contracts")
        self._context.change(
            object_definitions.alter_service, name=name, queue=queue, add_contracts=added, drop_contracts=dropped
        )

    def drop_service(self, name: str) -> None:
        """Removes a service.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151), or a priority or open conversation uses it.
        """
        self._context.change(object_definitions.drop_service, name=name)

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
        self._context.change(object_definitions.create_route, name=name, clauses=clauses, now=self._context.now())

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
        self._context.change(object_definitions.alter_route, name=name, clauses=clauses, now=self._context.now())

    def drop_route(self, name: str) -> None:
        """Removes a route.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151).
        """
        self._context.change(object_definitions.drop_route, name=name)

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
        self._context.change(
            object_definitions.create_broker_priority, name=name, said=[*said, ("remote_service", remote_service)]
        )

    def alter_broker_priority(self, name: str, *, level: int) -> None:
        """Changes a priority's level; conversations keep the one that they began with (B19).

        Args:
            name: Its name.
            level: 1 to 10.

        Raises:
            BrokerError: There is none (15151).
        """
        check_numbers(level=level)
        self._context.change(object_definitions.alter_broker_priority, name=name, said=[("level", level)])

    def drop_broker_priority(self, name: str) -> None:
        """Removes a priority.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151).
        """
        self._context.change(object_definitions.drop_broker_priority, name=name)

    def set_honor_broker_priority(self, *, is_on: bool) -> None:
        """Whether what waits is sent by the conversations' priorities (fact 150); off at first.

        Args:
            is_on: Whether it is.
        """
        self._context.change(_set_honor, is_on=boolean(is_on, name="is_on"))

    def create_user(self, name: str) -> None:
        """Makes a user, to whom services and certificates can belong.

        Args:
            name: Its name.

        Raises:
            BrokerError: The name is taken (15023), or none.

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_user("Stock")
            ...     instance.view("sys.database_principals", "Sales")["name"].to_pylist()
            ['public', 'dbo', 'Stock']
        """
        self._context.change(principals.create_user, name=name)

    def drop_user(self, name: str) -> None:
        """Removes a user.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151), or something belongs to it (15138).
        """
        self._context.change(principals.drop_user, name=name)

    def create_master_key(self, password: str) -> None:
        """Makes the master key, under which private keys are kept. This instance opens it without the password.

        Args:
            password: What it is opened with where the database is attached to another instance.

        Raises:
            BrokerError: There is one (15578).
        """
        check_texts(password=password)
        self._context.change(principals.create_master_key, credentials=self._context.credentials, password=password)

    def open_master_key(self, password: str) -> None:
        """Has this instance open the master key without the password from now on, such as after attaching the database.

        Args:
            password: Its password.

        Raises:
            BrokerError: There is no master key (15151), or it has another password (15313).
        """
        check_texts(password=password)
        self._context.change(principals.open_master_key, credentials=self._context.credentials, password=password)

    def drop_master_key(self) -> None:
        """Removes the master key.

        Raises:
            BrokerError: There is none (15151), or a private key stands under it (15580).
        """
        self._context.change(principals.drop_master_key)

    def create_certificate(
        self,
        name: str,
        *,
        certificate: bytes | None = None,
        private_key: bytes | None = None,
        password: str | None = None,
        subject: str | None = None,
        begins: datetime | None = None,
        ends: datetime | None = None,
        owner: str | None = None,
        active: bool = True,
    ) -> None:
        """Takes a certificate in, or makes one that signs itself.

        Args:
            name: Its name here.
            certificate: The certificate in PEM or DER; None makes one.
            private_key: Its private key in PEM or DER; None where that is another's.
            password: What the private key is encrypted with; None where it is not.
            subject: Whose the certificate is that is made; None is its name here.
            begins: From when on that holds; None is from now. Without a zone it is UTC.
            ends: Until when; None is for a year. Without a zone it is UTC.
            owner: The user to whom it belongs; None is dbo.
            active: Whether dialogs begin with it.

        Raises:
            BrokerError: The name is taken or the certificate here (15232), there is no such user (15151), it is no certificate with an RSA key
                of at least 2048 bits or the private key is another's (15208), or a private key has no master key to stand under (15581).

        Examples:
            >>> import tempfile
            >>> from ssbroker import Instance
            >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop", background=False) as instance:
            ...     sales = instance.create_database("Sales")
            ...     sales.create_master_key("long and secret")
            ...     sales.create_certificate("Shop", subject="shop.example.com")
            ...     instance.view("sys.certificates", "Sales")["subject"].to_pylist()
            ['CN=shop.example.com']
        """
        boolean(active, name="active")
        check_texts(password=password, subject=subject)
        check_bytes(certificate=certificate, private_key=private_key)
        begins = None if begins is None else utc_datetime(begins, name="begins")
        ends = None if ends is None else utc_datetime(ends, name="ends")
        given = (
            principals.made_certificate(subject or name, now=self._context.now(), begins=begins, ends=ends)
            if certificate is None
            else GivenCertificate(certificate, private_key, password)
        )
        self._context.change(
            principals.create_certificate,
            credentials=self._context.credentials,
            name=name,
            given=given,
            owner=owner,
            active=active,
        )

    def alter_certificate(self, name: str, *, active: bool) -> None:
        """Changes whether dialogs begin with a certificate; those that have begun go on.

        Args:
            name: Its name.
            active: Whether they do.

        Raises:
            BrokerError: There is none (15151).
        """
        is_active = boolean(active, name="active")
        self._context.change(
            principals.alter_certificate, credentials=self._context.credentials, name=name, active=is_active
        )

    def export_certificate(self, name: str) -> bytes:
        """A certificate without its private key, to be taken in by those who are to send here.

        Args:
            name: Its name.

        Returns:
            The certificate in PEM.

        Raises:
            BrokerError: There is none (15151).
        """
        found = existing(self._context.objects().security.certificates, name, kind="certificate")
        return certificate_to_pem(found.certificate)

    def drop_certificate(self, name: str) -> None:
        """Removes a certificate, with its private key.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151).
        """
        self._context.change(principals.drop_certificate, name=name)

    def create_remote_service_binding(self, name: str, *, service: str, user: str, anonymous: bool = False) -> None:
        """Says to whom a remote service belongs. Dialogs with it are secured from then on, whatever they ask for (N20).

        Args:
            name: Its name.
            service: The remote service.
            user: The user to whom the certificate of its owner belongs here.
            anonymous: Whether the far side is not told who sends.

        Raises:
            BrokerError: The name is taken, the service is bound already (9619), or there is no such user (15151).
        """
        boolean(anonymous, name="anonymous")
        check_texts(service=service)
        self._context.change(principals.create_binding, name=name, service=service, user=user, anonymous=anonymous)

    def alter_remote_service_binding(
        self, name: str, *, user: str | None = None, anonymous: bool | None = None
    ) -> None:
        """Changes what is given of a binding, for the dialogs that nobody has answered yet.

        Args:
            name: Its name.
            user: The user to whom the certificate of its owner belongs here.
            anonymous: Whether the far side is not told who sends.

        Raises:
            BrokerError: Binding or user is not there (15151).
        """
        check_flags(anonymous=anonymous)
        self._context.change(principals.alter_binding, name=name, user=user, anonymous=anonymous)

    def drop_remote_service_binding(self, name: str) -> None:
        """Removes a binding; dialogs that were answered go on.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151).
        """
        self._context.change(principals.drop_binding, name=name)

    def grant_send(self, service: str, *users: str) -> None:
        """Lets users send to a service from other instances; `public` is everybody, and has it from CREATE SERVICE on.

        Args:
            service: The service.
            users: The users.

        Raises:
            BrokerError: Service or user is not there (15151).
        """
        self._context.change(principals.set_permission, verb="GRANT", service=service, users=users)

    def deny_send(self, service: str, *users: str) -> None:
        """Forbids users to send to a service, whatever else was granted.

        Args:
            service: The service.
            users: The users.

        Raises:
            BrokerError: Service or user is not there (15151).
        """
        self._context.change(principals.set_permission, verb="DENY", service=service, users=users)

    def revoke_send(self, service: str, *users: str) -> None:
        """Takes back what was granted or denied to users on a service.

        Args:
            service: The service.
            users: The users.

        Raises:
            BrokerError: Service or user is not there (15151).
        """
        self._context.change(principals.set_permission, verb="REVOKE", service=service, users=users)

    def set_service_owner(self, service: str, user: str) -> None:
        """Gives a service to a user, with whose certificates its dialogs are secured.

        Args:
            service: The service.
            user: The user; dbo until told otherwise.

        Raises:
            BrokerError: Service or user is not there (15151).
        """
        self._context.change(principals.set_owner, name=service, user=user)

    def __reduce__(self) -> NoReturn:
        """A database is an open file and locks of this process.

        Raises:
            TypeError: Always; the message says what to do instead.
        """
        self._context.__reduce__()

    def __repr__(self) -> str:
        return f"Database({self.name!r})"


def context_of(database: Database) -> DatabaseContext:
    """The inner state of a database, for the parts of the library that build on it."""
    return database._context  # noqa: SLF001


def _check(settings: QueueSettings) -> None:
    check_flags(
        status=settings.status,
        retention=settings.retention,
        activation=settings.activation,
        poison_message_handling=settings.poison_message_handling,
    )
    check_texts(procedure=settings.procedure)
    check_numbers(max_queue_readers=settings.max_queue_readers)


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
        guid = uuid.UUID(bytes=guid_bytes(guid, name="broker_instance"))
    return Clauses(service_name, None if guid is None else str(guid), lifetime, address, mirror_address)
