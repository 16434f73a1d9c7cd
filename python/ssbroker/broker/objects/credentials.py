"""The keys of an instance's databases, as far as it can open them: master keys, and the private keys of certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ssbroker.broker.objects.refusals import refusal
from ssbroker.security import at_rest
from ssbroker.security.dialog_certificate import DialogCertificate
from ssbroker.store import service_key
from ssbroker.store.security import Certificate, MasterKey, Security

_MASTER_KEY: Final = b"ssbroker master key by instance 1"
_PRIVATE_KEY: Final = b"ssbroker private key 1\0"
_CACHED_MOST: Final = 1024


class Credentials:
    """Opens and seals the keys of databases.

    A database's file holds its master key twice: under its password, and under the key of the instance, which stands in a file of the
    instance's folder. So the instance needs no password, and who has only the database's file gets no private key out of it.

    Args:
        folder: The instance's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._certificates: dict[tuple[bytes, bytes | None, bytes | None], DialogCertificate] = {}

    def new_master_key(self, password: str) -> MasterKey:
        """Makes a master key.

        Args:
            password: What it can be opened with elsewhere.

        Returns:
            The key, sealed.
        """
        key = at_rest.new_key()
        return MasterKey(at_rest.sealed_by_password(key, password), self._sealed_by_service(key))

    def reopened(self, master_key: MasterKey, password: str) -> MasterKey:
        """A master key that this instance opens by itself from now on.

        Args:
            master_key: The key, sealed.
            password: Its password.

        Returns:
            The key, sealed for this instance.

        Raises:
            BrokerError: The password is another (15313).
        """
        key = at_rest.opened_by_password(master_key.by_password, password)
        if key is None:
            raise refusal("the master key has another password", 15313)
        return MasterKey(master_key.by_password, self._sealed_by_service(key))

    def master_key(self, security: Security) -> bytes | None:
        """A database's master key.

        Args:
            security: What the database holds.

        Returns:
            The key; None where there is none, or another instance's.
        """
        sealed = None if security.master_key is None else security.master_key.by_service
        key = None if sealed is None else service_key.read(self._folder)
        return None if sealed is None or key is None else at_rest.opened_under(key, sealed, purpose=_MASTER_KEY)

    def sealed(self, security: Security, private_key: bytes, *, fingerprint: bytes) -> bytes:
        """Seals a private key for the database's file.

        Args:
            security: What the database holds.
            private_key: The key.
            fingerprint: The certificate that it belongs to.

        Returns:
            The key, sealed under the master key.

        Raises:
            BrokerError: There is no master key, or it is not open (15581).
        """
        key = self.master_key(security)
        if key is None:
            raise refusal(
                "private keys need a master key: CREATE MASTER KEY, or OPEN MASTER KEY where there is one", 15581
            )
        return at_rest.sealed_under(key, private_key, purpose=_PRIVATE_KEY + fingerprint)

    def private_key(self, security: Security, certificate: Certificate) -> bytes | None:
        """The private key of a certificate.

        Args:
            security: What the database holds.
            certificate: The certificate.

        Returns:
            The key; None where it is not here, or the master key is not open.
        """
        key = None if certificate.private_key is None else self.master_key(security)
        if key is None or certificate.private_key is None:
            return None
        return at_rest.opened_under(key, certificate.private_key, purpose=_PRIVATE_KEY + certificate.fingerprint)

    def certificate(self, security: Security, certificate: Certificate) -> DialogCertificate:
        """A certificate, with its private key where that can be opened.

        Args:
            security: What the database holds.
            certificate: The certificate.

        Returns:
            The certificate; the same object as long as nothing has changed.
        """
        sealed = None if security.master_key is None else security.master_key.by_service
        name = (certificate.fingerprint, certificate.private_key, sealed)
        found = self._certificates.get(name)
        if found is None:
            found = DialogCertificate(certificate.certificate, self.private_key(security, certificate))
            if len(self._certificates) >= _CACHED_MOST:
                self._certificates.clear()
            if found.has_key or certificate.private_key is None:  # else the key may be opened later
                self._certificates[name] = found
        return found

    def _sealed_by_service(self, key: bytes) -> bytes:
        service = service_key.read_or_create(self._folder, at_rest.new_key)
        return at_rest.sealed_under(service, key, purpose=_MASTER_KEY)
