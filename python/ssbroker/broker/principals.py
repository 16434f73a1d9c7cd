"""Users, permissions, remote service bindings, master keys and certificates of a database."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from ssbroker.broker.validation import check_object_name, existing, refusal, refuse_taken
from ssbroker.exceptions import InputError, OptionError
from ssbroker.security import keys
from ssbroker.security.certificates import Validity, key_to_der, make_dialog_certificate
from ssbroker.security.key_exchange import DialogCertificate
from ssbroker.store import object_changes as changes
from ssbroker.store import security
from ssbroker.store.object_changes import Value
from ssbroker.store.objects import Objects, Service
from ssbroker.store.security import OWNER, PUBLIC, Certificate, MasterKey, PermissionState, Security
from ssbroker.store.sqlite import Connection

PermissionVerb = Literal["GRANT", "DENY", "REVOKE"]

_STATES: Final[dict[PermissionVerb, PermissionState | None]] = {"GRANT": "G", "DENY": "D", "REVOKE": None}
_BEARERS: Final = (PUBLIC, OWNER)
_EVERYWHERE: Final = ("public", "dbo")
_SERVICE_NAME_MAX: Final = 256


def principal_id(objects: Objects, name: str | None) -> int:
    """The id of a user; None is dbo. Those who are in every database, public and dbo, are known in any case of letters (N43).

    Raises:
        BrokerError: There is none (15151).
    """
    if name is None:
        return OWNER
    if str(name).lower() in _EVERYWHERE and name not in objects.security.principals:
        name = name.lower()
    return existing(objects.security.principals, name, kind="user").principal_id


def create_user(connection: Connection, objects: Objects, *, name: str) -> None:
    """Makes a user."""
    check_object_name(name)
    if name.lower() in _EVERYWHERE:
        raise refusal(f"user {name.lower()!r} is there already", 15023)
    refuse_taken(objects.security.principals, name, kind="user", number=15023)
    changes.create(connection, "ssb_principals", values={"name": name})


def drop_user(connection: Connection, objects: Objects, *, name: str) -> None:
    """Removes a user to whom nothing belongs; what it was granted goes with it."""
    user = existing(objects.security.principals, name, kind="user")
    if user.principal_id in _BEARERS:
        raise refusal(f"user {name!r} cannot be dropped", 15150)
    held = changes.find_owned_object(connection, principal_id=user.principal_id)
    if held is not None:
        kind, other = held
        raise refusal(f"user {name!r} cannot be dropped: {kind} {other!r} is of that user", 15138)
    changes.drop_send_permissions(connection, principal_id=user.principal_id)
    changes.drop(connection, "ssb_principals", user.principal_id)


def set_owner(connection: Connection, objects: Objects, *, name: str, user: str) -> None:
    """Gives a service to a user, with whose certificates its dialogs are secured from now on."""
    number = existing(objects.services, name, kind="service").service_id
    owner = principal_id(objects, user)
    if owner == PUBLIC:
        raise refusal(f"service {name!r} cannot belong to 'public'")
    changes.alter(connection, "ssb_services", number, {"principal_id": owner})


def set_permission(
    connection: Connection,
    objects: Objects,
    *,
    verb: PermissionVerb,
    service: str,
    users: tuple[str, ...],
    by_control: bool = False,
) -> list[str]:
    """Grants or denies users to send to a service, or takes back what was said.

    Returns:
        Those whose denial stays, since it was said of CONTROL, which lifts none of SEND (N43).
    """
    denied = []
    number = existing(objects.services, service, kind="service").service_id
    for user in users:
        holder = principal_id(objects, user)
        if holder == OWNER:
            raise refusal("'dbo' may always send; nothing can be granted or denied to it", 15151)
        if by_control and verb != "DENY" and objects.security.permissions.get((number, holder)) == "D":
            denied.append(user)
            continue
        changes.set_send_permission(connection, service_id=number, principal_id=holder, state=_STATES[verb])
    return denied


def create_binding(
    connection: Connection, objects: Objects, *, name: str, service: str, user: str, anonymous: bool
) -> None:
    """Says whose certificate a remote service has; from then on dialogs with it are secured."""
    check_object_name(name)
    security = objects.security
    refuse_taken(security.bindings, name, kind="remote service binding")
    if not 0 < len(service) <= _SERVICE_NAME_MAX:
        raise refusal(f"{service!r:.80} is no name of a service: it has to have 1 to 256 characters", 8412)
    other = security.by_service.get(service)
    if other is not None:
        raise refusal(f"service {service!r} is bound by {other.name!r} already", 9619)
    values: dict[str, Value] = {
        "name": name,
        "remote_service_name": service,
        "remote_principal_id": _remote(objects, user),
        "is_anonymous_on": anonymous,
    }
    changes.create(connection, "ssb_remote_service_bindings", values=values)


def alter_binding(
    connection: Connection, objects: Objects, *, name: str, user: str | None = None, anonymous: bool | None = None
) -> None:
    """Changes what is given of a binding."""
    binding = existing(objects.security.bindings, name, kind="remote service binding")
    values: dict[str, Value] = {}
    if user is not None:
        values["remote_principal_id"] = _remote(objects, user)
    if anonymous is not None:
        values["is_anonymous_on"] = anonymous
    changes.alter(connection, "ssb_remote_service_bindings", binding.remote_service_binding_id, values)


def drop_binding(connection: Connection, objects: Objects, *, name: str) -> None:
    """Removes a binding."""
    binding = existing(objects.security.bindings, name, kind="remote service binding")
    changes.drop(connection, "ssb_remote_service_bindings", binding.remote_service_binding_id)


def _remote(objects: Objects, user: str) -> int:
    found = principal_id(objects, user)
    if found in _BEARERS:
        raise refusal(f"a remote service binding needs a user of its own; {user!r} is none")
    return found


_MASTER_KEY: Final = b"ssbroker master key by instance 1"
_PRIVATE_KEY: Final = b"ssbroker private key 1\0"
_CACHED_MOST: Final = 1024


class KeyStore:
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
        key = keys.new_master_key()
        return MasterKey(keys.seal_with_password(key, password), self._sealed_by_service(key))

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
        key = keys.open_with_password(master_key.by_password, password)
        if key is None:
            raise refusal("the master key has another password", 15313)
        return MasterKey(master_key.by_password, self._sealed_by_service(key))

    def master_key(self, security_objects: Security) -> bytes | None:
        """A database's master key.

        Args:
            security_objects: What the database holds.

        Returns:
            The key; None where there is none, or another instance's.
        """
        sealed = None if security_objects.master_key is None else security_objects.master_key.by_service
        key = None if sealed is None else security.read_service_master_key(self._folder)
        return None if sealed is None or key is None else keys.open_with_key(key, sealed, purpose=_MASTER_KEY)

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
        return keys.seal_with_key(key, private_key, purpose=_PRIVATE_KEY + fingerprint)

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
        return keys.open_with_key(key, certificate.private_key, purpose=_PRIVATE_KEY + certificate.fingerprint)

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
        service = security.read_or_create_service_master_key(self._folder, keys.new_master_key)
        return keys.seal_with_key(service, key, purpose=_MASTER_KEY)


YEAR: Final = timedelta(days=365)
"""How long a certificate holds that is made here, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class GivenCertificate:
    """A certificate as it is given.

    Attributes:
        certificate: In PEM or DER.
        private_key: In PEM or DER; None where that is another's.
        password: What the private key is encrypted with; None where it is not.
    """

    certificate: bytes
    private_key: bytes | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)


def create_master_key(connection: Connection, objects: Objects, *, credentials: KeyStore, password: str) -> None:
    """Makes the database's master key."""
    if objects.security.master_key is not None:
        raise refusal("the database has a master key already", 15578)
    _check_password(password)
    made = credentials.new_master_key(password)
    changes.set_master_key(connection, by_password=made.by_password, by_service=made.by_service)


def open_master_key(connection: Connection, objects: Objects, *, credentials: KeyStore, password: str) -> None:
    """Has this instance open the master key by itself from now on, such as after the database came from another one."""
    _check_password(password)
    found = credentials.reopened(_master_key(objects), password)
    changes.set_master_key(connection, by_password=found.by_password, by_service=found.by_service)


def keep_master_key(connection: Connection, objects: Objects, *, credentials: KeyStore, by_service: bool) -> None:
    """Says whether the instance may open the master key by itself."""
    found = _master_key(objects)
    if by_service and credentials.master_key(objects.security) is None:
        raise refusal("the master key is not open: OPEN MASTER KEY DECRYPTION BY PASSWORD = '...' first", 15581)
    if not by_service:
        changes.set_master_key(connection, by_password=found.by_password, by_service=None)


def drop_master_key(connection: Connection, objects: Objects) -> None:
    """Removes the master key, under which no private key may stand any more."""
    _master_key(objects)
    held = [one.name for one in objects.security.certificates.values() if one.private_key is not None]
    if held:
        raise refusal(f"the private key of certificate {held[0]!r} stands under the master key", 15580)
    changes.drop_master_key(connection)


def create_certificate(
    connection: Connection,
    objects: Objects,
    *,
    credentials: KeyStore,
    name: str,
    given: GivenCertificate,
    owner: str | None = None,
    active: bool = True,
) -> None:
    """Takes a certificate in, and its private key where it is given."""
    check_object_name(name)
    security = objects.security
    refuse_taken(security.certificates, name, kind="certificate", number=15232)
    belongs = _owner(objects, name, owner)
    try:
        key = None if given.private_key is None else key_to_der(given.private_key, password=given.password)
        found = DialogCertificate(given.certificate, key)
    except InputError as error:
        raise refusal(f"certificate {name!r}: {error}", 15208) from None
    other = security.by_fingerprint.get(found.fingerprint)
    if other is not None:
        raise refusal(f"certificate {name!r} is here already, as {other.name!r}", 15232)
    sealed = None if key is None else credentials.sealed(security, key, fingerprint=found.fingerprint)
    values: dict[str, Value] = {
        "name": name,
        "principal_id": belongs,
        "is_active_for_begin_dialog": active,
        "fingerprint": found.fingerprint,
        "certificate": found.der,
        "private_key": sealed,
    }
    changes.create(connection, "ssb_certificates", values=values)


def made_certificate(
    subject: str, *, now: datetime, begins: datetime | None, ends: datetime | None
) -> GivenCertificate:
    """Makes a certificate that signs itself.

    Args:
        subject: Whose it is; `CN =` in front may be left out.
        now: The current moment.
        begins: From when on it holds; None is from now.
        ends: Until when; None is for a year.

    Returns:
        The certificate with its private key.

    Raises:
        BrokerError: There is no such certificate (15297).
    """
    name = subject.split("=", maxsplit=1)[1].strip() if subject.upper().startswith("CN") and "=" in subject else subject
    start = now if begins is None else begins
    try:
        end = start + YEAR if ends is None else ends
    except OverflowError:
        raise refusal(f"a year after it begins, at {start.isoformat()}, there is no moment", 15297) from None
    try:
        made = make_dialog_certificate(name, Validity(start, end))
    except OptionError as error:
        raise refusal(f"the certificate cannot be made: {error}", 15297) from None
    return GivenCertificate(made.certificate, made.key)


def alter_certificate(
    connection: Connection,
    objects: Objects,
    *,
    credentials: KeyStore,
    name: str,
    active: bool | None = None,
    private_key: bytes | None = None,
    password: str | None = None,
    removes_key: bool = False,
) -> None:
    """Changes whether dialogs begin with a certificate, and whether its private key is here."""
    certificate = existing(objects.security.certificates, name, kind="certificate")
    values: dict[str, Value] = {}
    if active is not None:
        values["is_active_for_begin_dialog"] = active
    if removes_key:
        values["private_key"] = None
    if private_key is not None:
        try:
            key = key_to_der(private_key, password=password)
            DialogCertificate(certificate.certificate, key)
        except InputError as error:
            raise refusal(f"certificate {name!r}: {error}", 15208) from None
        values["private_key"] = credentials.sealed(objects.security, key, fingerprint=certificate.fingerprint)
    changes.alter(connection, "ssb_certificates", certificate.certificate_id, values)


def set_certificate_owner(connection: Connection, objects: Objects, *, name: str, user: str) -> None:
    """Gives a certificate to a user."""
    certificate = existing(objects.security.certificates, name, kind="certificate")
    values: dict[str, Value] = {"principal_id": _owner(objects, name, user)}
    changes.alter(connection, "ssb_certificates", certificate.certificate_id, values)


def drop_certificate(connection: Connection, objects: Objects, *, name: str) -> None:
    """Removes a certificate; dialogs that it has begun go on with the keys that they have."""
    certificate = existing(objects.security.certificates, name, kind="certificate")
    changes.drop(connection, "ssb_certificates", certificate.certificate_id)


def _owner(objects: Objects, name: str, user: str | None) -> int:
    found = principal_id(objects, user)
    if found == PUBLIC:
        raise refusal(f"certificate {name!r} cannot belong to 'public'")
    return found


def _master_key(objects: Objects) -> MasterKey:
    found = objects.security.master_key
    if found is None:
        raise refusal("the database has no master key: CREATE MASTER KEY ENCRYPTION BY PASSWORD = '...'", 15151)
    return found


def _check_password(password: str) -> None:
    if not password:
        raise refusal("a master key needs a password, which may not be empty", 15118)


def may_send(objects: Objects, service: Service, certificate: bytes | None) -> bool:
    """Whether a sender may begin a conversation with a service.

    Args:
        objects: What stands in the service's database.
        service: The service.
        certificate: By which certificate the sender has proven itself, as its fingerprint; None for who did not: that is public.

    Returns:
        Whether it was granted SEND, or the service is its own.
    """
    security = objects.security
    holder = None if certificate is None else security.by_fingerprint.get(certificate)
    sender = PUBLIC if holder is None else holder.principal_id
    return security.may_send(service.service_id, sender, owner=service.principal_id)
