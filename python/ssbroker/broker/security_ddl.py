"""Users, permissions, remote service bindings, master keys and certificates of a database."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal

from ssbroker._arguments import is_service_name
from ssbroker.broker.keys_at_rest import KeyEncryption
from ssbroker.broker.object_names import check_not_existing, check_object_name, existing
from ssbroker.ddl import refusal_texts
from ssbroker.exceptions import InputError, OptionError
from ssbroker.protocol.broker_errors import refusal
from ssbroker.security.certificates import Validity, key_to_der, make_dialog_certificate
from ssbroker.security.key_exchange import DialogCertificate
from ssbroker.store import object_changes as changes
from ssbroker.store.object_changes import Value
from ssbroker.store.objects import Objects
from ssbroker.store.security import OWNER, PUBLIC, MasterKey, PermissionState
from ssbroker.store.sqlite import Connection

PermissionVerb = Literal["GRANT", "DENY", "REVOKE"]

_STATES: Final[dict[PermissionVerb, PermissionState | None]] = {"GRANT": "G", "DENY": "D", "REVOKE": None}
_SYSTEM_PRINCIPALS: Final = (PUBLIC, OWNER)
_SYSTEM_PRINCIPAL_NAMES: Final = ("public", "dbo")


def principal_id(objects: Objects, name: str | None) -> int:
    """Returns the id of a user; None means dbo. The names public and dbo are case-insensitive."""
    if name is None:
        return OWNER
    if str(name).lower() in _SYSTEM_PRINCIPAL_NAMES and name not in objects.security.principals:
        name = name.lower()
    return existing(objects.security.principals, name, kind="user").principal_id


def create_user(connection: Connection, objects: Objects, *, name: str) -> None:
    """Creates a user."""
    check_object_name(name)
    if name.lower() in _SYSTEM_PRINCIPAL_NAMES:
        raise refusal(refusal_texts.already_exists("user", name.lower()), 15023)
    check_not_existing(objects.security.principals, name, kind="user", number=15023)
    changes.create(connection, "ssb_principals", values={"name": name})


def drop_user(connection: Connection, objects: Objects, *, name: str) -> None:
    """Drops a user that owns nothing, and its permissions."""
    user = existing(objects.security.principals, name, kind="user")
    if user.principal_id in _SYSTEM_PRINCIPALS:
        raise refusal(refusal_texts.permanent_user(name), 15150)
    services, certificates, bindings = changes.find_owned_objects(connection, principal_id=user.principal_id)
    if services or certificates or bindings:
        text = refusal_texts.user_in_use(name, services=services, certificates=certificates, bindings=bindings)
        raise refusal(text, 15138)
    changes.drop_send_permissions(connection, principal_id=user.principal_id)
    changes.drop(connection, "ssb_principals", user.principal_id)


def set_owner(connection: Connection, objects: Objects, *, name: str, user: str) -> None:
    """Changes the owner of a service; the owner's certificates secure the dialogs of the service."""
    number = existing(objects.services, name, kind="service").service_id
    owner = principal_id(objects, user)
    if owner == PUBLIC:
        raise refusal(refusal_texts.owned_by_public("service", name))
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
    """Grants, denies or revokes the SEND permission on a service; returns the users whose denial remains."""
    denied = []
    number = existing(objects.services, service, kind="service").service_id
    for user in users:
        holder = principal_id(objects, user)
        if holder == OWNER:
            raise refusal(refusal_texts.DBO_CAN_SEND, 15151)
        if by_control and verb != "DENY" and objects.security.permissions.get((number, holder)) == "D":
            denied.append(user)
            continue
        changes.set_send_permission(connection, service_id=number, principal_id=holder, state=_STATES[verb])
    return denied


def create_binding(
    connection: Connection, objects: Objects, *, name: str, service: str, user: str, anonymous: bool
) -> None:
    """Binds a remote service to a user; new dialogs with the service are secured."""
    check_object_name(name)
    security = objects.security
    check_not_existing(security.bindings, name, kind="remote service binding")
    if not is_service_name(service):
        raise refusal(refusal_texts.invalid_service_name(service), 8412)
    other = security.by_service.get(service)
    if other is not None:
        raise refusal(refusal_texts.binding_exists(service, other.name), 9619)
    values: dict[str, Value] = {
        "name": name,
        "remote_service_name": service,
        "remote_principal_id": _remote_user_id(objects, user),
        "is_anonymous_on": anonymous,
    }
    changes.create(connection, "ssb_remote_service_bindings", values=values)


def alter_binding(
    connection: Connection, objects: Objects, *, name: str, user: str | None = None, anonymous: bool | None = None
) -> None:
    """Alters the given settings of a remote service binding."""
    binding = existing(objects.security.bindings, name, kind="remote service binding")
    values: dict[str, Value] = {}
    if user is not None:
        values["remote_principal_id"] = _remote_user_id(objects, user)
    if anonymous is not None:
        values["is_anonymous_on"] = anonymous
    changes.alter(connection, "ssb_remote_service_bindings", binding.remote_service_binding_id, values)


def drop_binding(connection: Connection, objects: Objects, *, name: str) -> None:
    """Drops a remote service binding."""
    binding = existing(objects.security.bindings, name, kind="remote service binding")
    changes.drop(connection, "ssb_remote_service_bindings", binding.remote_service_binding_id)


def _remote_user_id(objects: Objects, user: str) -> int:
    found = principal_id(objects, user)
    if found in _SYSTEM_PRINCIPALS:
        raise refusal(refusal_texts.no_remote_user(user))
    return found


YEAR: Final = timedelta(days=365)
"""The default validity of self-signed certificates."""


@dataclass(frozen=True, slots=True)
class GivenCertificate:
    """A certificate to import.

    Attributes:
        certificate: The certificate in PEM or DER.
        private_key: The private key in PEM or DER; None for the certificate of another party.
        password: The password that encrypts the private key; None if it is not encrypted.
    """

    certificate: bytes
    private_key: bytes | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)


def create_master_key(
    connection: Connection, objects: Objects, *, key_encryption: KeyEncryption, password: str
) -> None:
    """Creates the master key of a database."""
    if objects.security.master_key is not None:
        raise refusal(refusal_texts.master_key_exists(), 15578)
    _check_password(password)
    master_key = key_encryption.new_master_key(password)
    changes.set_master_key(connection, by_password=master_key.by_password, by_service=master_key.by_service)


def open_master_key(connection: Connection, objects: Objects, *, key_encryption: KeyEncryption, password: str) -> None:
    """Lets this instance open the master key without the password from now on."""
    _check_password(password)
    found = key_encryption.reopen(_master_key(objects), password)
    changes.set_master_key(connection, by_password=found.by_password, by_service=found.by_service)


def keep_master_key(
    connection: Connection, objects: Objects, *, key_encryption: KeyEncryption, is_encrypted_by_service_key: bool
) -> None:
    """Sets whether the instance can open the master key without the password."""
    found = _master_key(objects)
    if is_encrypted_by_service_key and key_encryption.master_key(objects.security) is None:
        raise refusal(refusal_texts.MASTER_KEY_CLOSED, 15581)
    if not is_encrypted_by_service_key:
        changes.set_master_key(connection, by_password=found.by_password, by_service=None)


def drop_master_key(connection: Connection, objects: Objects) -> None:
    """Drops the master key if it encrypts no private key."""
    _master_key(objects)
    certificates = [one.name for one in objects.security.certificates.values() if one.private_key is not None]
    if certificates:
        raise refusal(refusal_texts.master_key_in_use(certificates), 15580)
    changes.drop_master_key(connection)


def create_certificate(
    connection: Connection,
    objects: Objects,
    *,
    key_encryption: KeyEncryption,
    name: str,
    given: GivenCertificate,
    owner: str | None = None,
    active: bool = True,
) -> None:
    """Imports a certificate, with its private key if given."""
    check_object_name(name)
    security = objects.security
    check_not_existing(security.certificates, name, kind="certificate", number=15232)
    owner_id = _owner(objects, name, owner)
    try:
        key = None if given.private_key is None else key_to_der(given.private_key, password=given.password)
        found = DialogCertificate(given.certificate, key)
    except InputError as error:
        raise refusal(f"the certificate {name!r}: {error}", 15208) from None
    other = security.by_fingerprint.get(found.fingerprint)
    if other is not None:
        raise refusal(
            f"the certificate {name!r} already exists under the name {other.name!r}; use this name, or drop {other.name!r} first",
            15232,
        )
    sealed = None if key is None else key_encryption.encrypt_private_key(security, key, fingerprint=found.fingerprint)
    values: dict[str, Value] = {
        "name": name,
        "principal_id": owner_id,
        "is_active_for_begin_dialog": active,
        "fingerprint": found.fingerprint,
        "certificate": found.der,
        "private_key": sealed,
    }
    changes.create(connection, "ssb_certificates", values=values)


def self_signed_certificate(
    subject: str, *, now: datetime, begins: datetime | None, ends: datetime | None
) -> GivenCertificate:
    """Creates a self-signed certificate."""
    name = subject.split("=", maxsplit=1)[1].strip() if subject.upper().startswith("CN") and "=" in subject else subject
    start = now if begins is None else begins
    try:
        end = start + YEAR if ends is None else ends
    except OverflowError:
        raise refusal(
            f"the validity of one year from {start.isoformat()} ends after the year 9999; specify an expiry date", 15297
        ) from None
    try:
        created = make_dialog_certificate(name, Validity(start, end))
    except OptionError as error:
        raise refusal(f"the certificate cannot be created: {error}", 15297) from None
    return GivenCertificate(created.certificate, created.key)


def alter_certificate(
    connection: Connection,
    objects: Objects,
    *,
    key_encryption: KeyEncryption,
    name: str,
    active: bool | None = None,
    private_key: bytes | None = None,
    password: str | None = None,
    removes_key: bool = False,
) -> None:
    """Sets whether new dialogs may use a certificate, and sets or removes its private key."""
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
            raise refusal(f"the certificate {name!r}: {error}", 15208) from None
        values["private_key"] = key_encryption.encrypt_private_key(
            objects.security, key, fingerprint=certificate.fingerprint
        )
    changes.alter(connection, "ssb_certificates", certificate.certificate_id, values)


def set_certificate_owner(connection: Connection, objects: Objects, *, name: str, user: str) -> None:
    """Changes the owner of a certificate."""
    certificate = existing(objects.security.certificates, name, kind="certificate")
    values: dict[str, Value] = {"principal_id": _owner(objects, name, user)}
    changes.alter(connection, "ssb_certificates", certificate.certificate_id, values)


def drop_certificate(connection: Connection, objects: Objects, *, name: str) -> None:
    """Drops a certificate; existing dialogs continue with their keys."""
    certificate = existing(objects.security.certificates, name, kind="certificate")
    changes.drop(connection, "ssb_certificates", certificate.certificate_id)


def _owner(objects: Objects, name: str, user: str | None) -> int:
    found = principal_id(objects, user)
    if found == PUBLIC:
        raise refusal(refusal_texts.owned_by_public("certificate", name))
    return found


def _master_key(objects: Objects) -> MasterKey:
    found = objects.security.master_key
    if found is None:
        raise refusal(refusal_texts.master_key_missing(), 15151)
    return found


def _check_password(password: str) -> None:
    if not password:
        raise refusal(refusal_texts.MASTER_KEY_PASSWORD_REQUIRED, 15118)
