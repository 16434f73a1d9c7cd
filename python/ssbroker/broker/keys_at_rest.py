"""Encrypts and decrypts the master keys and private keys of databases."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from ssbroker._files import create_file
from ssbroker.ddl import refusal_texts
from ssbroker.exceptions import StorageError
from ssbroker.protocol.broker_errors import refusal
from ssbroker.security import keys
from ssbroker.security.key_exchange import DialogCertificate
from ssbroker.store.security import Certificate, MasterKey, Security

_MASTER_KEY: Final = b"ssbroker master key by instance 1"
_PRIVATE_KEY: Final = b"ssbroker private key 1\0"
_CACHED_MAX: Final = 1024
_SERVICE_KEY_FILE: Final = "service_master.key"
_SERVICE_KEY_BYTES: Final = 32


class KeyEncryption:
    """Encrypts and decrypts the keys of databases.

    A database file contains its master key twice: encrypted with the password, and encrypted with the service master
    key, which is stored in a file in the instance folder. So the instance needs no password, and a copy of the database
    file alone does not reveal private keys.
    """

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder
        self._certificates: dict[tuple[bytes, bytes | None, bytes | None], DialogCertificate] = {}

    def new_master_key(self, password: str) -> MasterKey:
        """Creates a master key."""
        key = keys.new_master_key()
        return MasterKey(keys.seal_with_password(key, password), self._encrypt_with_service_key(key))

    def reopen(self, master_key: MasterKey, password: str) -> MasterKey:
        """Returns the same master key, encrypted so that this instance can open it without the password."""
        key = keys.open_with_password(master_key.by_password, password)
        if key is None:
            raise refusal(refusal_texts.wrong_master_key_password(), 15313)
        return MasterKey(master_key.by_password, self._encrypt_with_service_key(key))

    def master_key(self, security_objects: Security) -> bytes | None:
        """Returns the decrypted master key of a database; None if this instance cannot open it."""
        sealed = None if security_objects.master_key is None else security_objects.master_key.by_service
        key = None if sealed is None else _read_service_key(self._folder)
        return None if sealed is None or key is None else keys.open_with_key(key, sealed, purpose=_MASTER_KEY)

    def encrypt_private_key(self, security: Security, private_key: bytes, *, fingerprint: bytes) -> bytes:
        """Encrypts a private key with the master key of the database."""
        key = self.master_key(security)
        if key is None:
            is_missing = security.master_key is None
            raise refusal(
                refusal_texts.master_key_missing_for_key() if is_missing else refusal_texts.MASTER_KEY_CLOSED, 15581
            )
        return keys.seal_with_key(key, private_key, purpose=_PRIVATE_KEY + fingerprint)

    def private_key(self, security: Security, certificate: Certificate) -> bytes | None:
        """Returns the decrypted private key of a certificate; None if the certificate has no private key, or the master key is not open."""
        key = None if certificate.private_key is None else self.master_key(security)
        if key is None or certificate.private_key is None:
            return None
        return keys.open_with_key(key, certificate.private_key, purpose=_PRIVATE_KEY + certificate.fingerprint)

    def certificate(self, security: Security, certificate: Certificate) -> DialogCertificate:
        """Returns a certificate, with its private key if the master key is open."""
        sealed = None if security.master_key is None else security.master_key.by_service
        cache_key = (certificate.fingerprint, certificate.private_key, sealed)
        found = self._certificates.get(cache_key)
        if found is None:
            found = DialogCertificate(certificate.certificate, self.private_key(security, certificate))
            if len(self._certificates) >= _CACHED_MAX:
                self._certificates.clear()
            if found.has_key or certificate.private_key is None:  # otherwise, the key may be opened later
                self._certificates[cache_key] = found
        return found

    def _encrypt_with_service_key(self, key: bytes) -> bytes:
        service = _read_or_create_service_key(self._folder)
        return keys.seal_with_key(service, key, purpose=_MASTER_KEY)


def _read_service_key(folder: Path) -> bytes | None:
    """Reads the service master key; returns None if there is no such file, and raises StorageError if the file is unreadable or invalid."""
    path = folder / _SERVICE_KEY_FILE
    try:
        key = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be read: {error.strerror or error}", file=str(path), errno=error.errno
        ) from error
    if len(key) != _SERVICE_KEY_BYTES:
        raise StorageError(
            f"{path}: expected a key of {_SERVICE_KEY_BYTES} bytes, got {len(key)} bytes; restore the file from a backup",
            file=str(path),
        )
    return key


def _read_or_create_service_key(folder: Path) -> bytes:
    """Reads the service master key, or creates the file with a new key; concurrent processes get the same key."""
    key = _read_service_key(folder)
    if key is not None:
        return key
    path = folder / _SERVICE_KEY_FILE
    try:
        with suppress(FileExistsError):  # another process created it first
            create_file(path, keys.new_master_key(), mode=0o600)
    except OSError as error:
        raise StorageError(
            f"{path}: cannot be written: {error.strerror or error}", file=str(path), errno=error.errno
        ) from error
    key = _read_service_key(folder)
    if key is None:
        raise StorageError(
            f"{path}: another process deleted the file immediately after it was created; run the statement again",
            file=str(path),
        )
    return key
