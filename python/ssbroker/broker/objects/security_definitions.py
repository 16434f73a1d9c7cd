"""What stands in a database, made, changed and dropped by method: users, keys, certificates, bindings, permissions."""

from __future__ import annotations

from abc import abstractmethod
from datetime import datetime

from ssbroker import moment, options
from ssbroker.broker.objects import certificates, principals
from ssbroker.broker.objects.arguments import check_bytes, check_flags, check_texts
from ssbroker.broker.objects.certificates import Given
from ssbroker.broker.objects.credentials import Credentials
from ssbroker.broker.objects.refusals import existing
from ssbroker.broker.objects.route_definitions import RouteDefinitions
from ssbroker.security.key_files import certificate_as_pem
from ssbroker.store.objects import Objects


class SecurityDefinitions(RouteDefinitions):
    """The methods that say who is known, and what may be believed of them (N19, N20)."""

    @property
    @abstractmethod
    def credentials(self) -> Credentials:
        """What opens the keys of the instance."""

    @abstractmethod
    def current(self) -> Objects:
        """What stands in the database, as last committed."""

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
        self.change(principals.create_user, name=name)

    def drop_user(self, name: str) -> None:
        """Removes a user.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151), or something belongs to it (15138).
        """
        self.change(principals.drop_user, name=name)

    def create_master_key(self, password: str) -> None:
        """Makes the master key, under which private keys are kept. This instance opens it without the password.

        Args:
            password: What it is opened with where the database is attached to another instance.

        Raises:
            BrokerError: There is one (15578).
        """
        check_texts(password=password)
        self.change(certificates.create_master_key, credentials=self.credentials, password=password)

    def open_master_key(self, password: str) -> None:
        """Has this instance open the master key without the password from now on, such as after attaching the database.

        Args:
            password: Its password.

        Raises:
            BrokerError: There is no master key (15151), or it has another password (15313).
        """
        check_texts(password=password)
        self.change(certificates.open_master_key, credentials=self.credentials, password=password)

    def drop_master_key(self) -> None:
        """Removes the master key.

        Raises:
            BrokerError: There is none (15151), or a private key stands under it (15580).
        """
        self.change(certificates.drop_master_key)

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
        options.flag(active, name="active")
        check_texts(password=password, subject=subject)
        check_bytes(certificate=certificate, private_key=private_key)
        begins = None if begins is None else moment.as_utc(begins, name="begins")
        ends = None if ends is None else moment.as_utc(ends, name="ends")
        given = (
            certificates.made_certificate(subject or name, now=self.now(), begins=begins, ends=ends)
            if certificate is None
            else Given(certificate, private_key, password)
        )
        self.change(
            certificates.create_certificate,
            credentials=self.credentials,
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
        is_active = options.flag(active, name="active")
        self.change(certificates.alter_certificate, credentials=self.credentials, name=name, active=is_active)

    def export_certificate(self, name: str) -> bytes:
        """A certificate without its private key, to be taken in by those who are to send here.

        Args:
            name: Its name.

        Returns:
            The certificate in PEM.

        Raises:
            BrokerError: There is none (15151).
        """
        found = existing(self.current().security.certificates, name, kind="certificate")
        return certificate_as_pem(found.certificate)

    def drop_certificate(self, name: str) -> None:
        """Removes a certificate, with its private key.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151).
        """
        self.change(certificates.drop_certificate, name=name)

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
        options.flag(anonymous, name="anonymous")
        check_texts(service=service)
        self.change(principals.create_binding, name=name, service=service, user=user, anonymous=anonymous)

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
        self.change(principals.alter_binding, name=name, user=user, anonymous=anonymous)

    def drop_remote_service_binding(self, name: str) -> None:
        """Removes a binding; dialogs that were answered go on.

        Args:
            name: Its name.

        Raises:
            BrokerError: There is none (15151).
        """
        self.change(principals.drop_binding, name=name)

    def grant_send(self, service: str, *users: str) -> None:
        """Lets users send to a service from other instances; `public` is everybody, and has it from CREATE SERVICE on.

        Args:
            service: The service.
            users: The users.

        Raises:
            BrokerError: Service or user is not there (15151).
        """
        self.change(principals.set_permission, verb="GRANT", service=service, users=users)

    def deny_send(self, service: str, *users: str) -> None:
        """Forbids users to send to a service, whatever else was granted.

        Args:
            service: The service.
            users: The users.

        Raises:
            BrokerError: Service or user is not there (15151).
        """
        self.change(principals.set_permission, verb="DENY", service=service, users=users)

    def revoke_send(self, service: str, *users: str) -> None:
        """Takes back what was granted or denied to users on a service.

        Args:
            service: The service.
            users: The users.

        Raises:
            BrokerError: Service or user is not there (15151).
        """
        self.change(principals.set_permission, verb="REVOKE", service=service, users=users)

    def set_service_owner(self, service: str, user: str) -> None:
        """Gives a service to a user, with whose certificates its dialogs are secured.

        Args:
            service: The service.
            user: The user; dbo until told otherwise.

        Raises:
            BrokerError: Service or user is not there (15151).
        """
        self.change(principals.set_owner, name=service, user=user)
